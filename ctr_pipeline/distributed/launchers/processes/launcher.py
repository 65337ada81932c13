"""The launcher whose members are processes of this machine, and its children.

One thread owns all processes: it starts them, so that they die when it does; it reads what they
write, notices their ends, and restarts the master. Other threads have it run their calls.
"""

import errno
import logging
import os
import secrets
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from ctr_pipeline.distributed.coordination.exit_codes import format_exit
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    ExitReason,
    LauncherBusyError,
    LauncherContext,
    MemberStart,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.coordination.news import JobNews
from ctr_pipeline.distributed.launchers.exits import classify_exit, count_oom_kills
from ctr_pipeline.distributed.launchers.processes import parent_death
from ctr_pipeline.distributed.launchers.processes.calls import CallQueue
from ctr_pipeline.distributed.launchers.processes.fork_server import (
    SINGLE_THREADED,
    Failed,
    ForkServer,
    Ready,
    Spawned,
)
from ctr_pipeline.distributed.launchers.processes.log_file import LogFile
from ctr_pipeline.distributed.launchers.processes.output import OutputPipe
from ctr_pipeline.distributed.launchers.processes.spawning import ProcessHandle, spawn
from ctr_pipeline.distributed.launchers.restarts import KeptRunning

_LOGGER = logging.getLogger(__name__)
_FORK_SERVER_SECONDS = 60.0
"""Longest that a start waits for the fork server to be ready."""
_EXIT_NOT_STARTED = 70
_RESOURCE_ERRORS = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

T = TypeVar("T")


@dataclass
class _Process:
    """The newest process of one member, or of the fork server."""

    name: str
    start: MemberStart
    output: OutputPipe
    restarts: int
    started_at: float
    oom_kills: int
    handle: ProcessHandle | None = None
    is_stopped: bool = False
    kill_at: float | None = None
    request: int | None = None
    start_gate: int | None = None
    wait_until: float = 0.0
    exit_code: int | None = None
    reason: ExitReason | None = None
    tail: str = ""

    @property
    def running(self) -> bool:
        return self.exit_code is None


_MASTER = ("master", 0)
_FORK_SERVER = ("fork-server", 0)
_Key = tuple[str, int]


class ProcessLauncher:
    """A `Launcher` of processes on this machine.

    Args:
        clock: Seconds, monotonic.
        spawn: Starts a process; see `spawning.spawn`.
        watch: Watches a process for its end.
        fork_seconds: A fork server that has not forked by then hangs.
        retry_seconds: Between attempts to restart a process while the system allows no more.
    """

    def __init__(
        self,
        context: LauncherContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[..., int] = spawn,
        watch: Callable[[int], ProcessHandle] = ProcessHandle,
        fork_seconds: float = 5.0,
        retry_seconds: float = 1.0,
    ) -> None:
        self._commands = context.commands
        self._logs_folder = context.logs_folder
        self._environment = {**os.environ, **context.environment}
        self._closing_seconds = context.closing_seconds
        self._start_process = spawn
        self._open_handle = watch
        self._fork_seconds = fork_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._processes: dict[_Key, _Process] = {}
        self._logs: dict[_Key, LogFile] = {}
        self._kept: dict[_Key, KeptRunning] = {}
        self._fork_server: ForkServer | None = None
        self._fork_server_ready = False
        self._num_requests = 0
        self._selector = selectors.DefaultSelector()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)
        self._calls = CallQueue(self._thread)
        self._thread.start()

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs; a master is kept running from then on.

        Raises:
            LauncherBusyError: The system allows no more processes, memory or open files.
            CannotLaunchError: The interpreter is not there, or may not be run.
        """
        try:
            self._calls.run(lambda: self._start((role, index)))
        except OSError as error:
            message = error.strerror or str(error)
            if _cannot_run(error):
                raise CannotLaunchError(message, place=sys.executable) from error
            raise LauncherBusyError(message) from error

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one process to end, kills it after the grace; 0 kills at once."""

        def stop() -> None:
            process = self._processes.get((role, index))
            if process is not None and process.start.incarnation == incarnation:
                self._stop((role, index), grace_seconds)

        self._calls.run(stop)

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started."""
        return self._calls.run(self._observe)

    def failure(self) -> str:
        """Why the master is not started again, with its last lines; empty while all is well."""
        return self._calls.run(lambda: self._kept[_MASTER].failure if _MASTER in self._kept else "")

    def publish(self, news: JobNews) -> None:
        """Nothing: a process of this machine has nobody to show itself to but its terminal."""

    def is_followed(self) -> bool:
        """No: whoever starts the run again starts new members."""
        return False

    def close(self) -> None:
        """Ends every member, by force after the closing seconds, and the thread."""
        if self._thread.is_alive():
            self._calls.run(lambda: self._stop_all(self._closing_seconds))
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # From here on: the launcher's thread alone.

    def _run(self) -> None:
        self._selector.register(self._calls, selectors.EVENT_READ, self._calls.run_waiting)
        if self._commands.fork_server() is not None:
            parent_death.adopt_orphans(wanted=True)
            self._kept[_FORK_SERVER] = KeptRunning("fork-server")
            self._start_fork_server()
        while not (self._ending and not any(one.running for one in self._processes.values())):
            for key, _ in self._selector.select(self._seconds_to_next_timer()):
                self._guarded(key.data)
            self._guarded(self._run_timers)
        self._calls.run_waiting()
        self._close_all()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            # The thread must live on: every member dies with it.
            _LOGGER.exception("the launcher continues after an error")

    def _close_all(self) -> None:
        for process in self._processes.values():
            process.output.close()
        for log in self._logs.values():
            log.close()
        if self._fork_server is not None:
            self._fork_server.close()
        if _FORK_SERVER in self._kept:
            parent_death.adopt_orphans(wanted=False)
        self._selector.close()
        self._calls.close()

    def _observe(self) -> tuple[ProcessState, ...]:
        return tuple(
            ProcessState(
                role=process.start.role,
                index=process.start.index,
                incarnation=process.start.incarnation,
                pid=process.handle.pid if process.handle is not None else 0,
                running=process.running,
                exit_code=process.exit_code,
                reason=process.reason,
                traceback=process.tail,
                restarts=process.restarts,
            )
            for key, process in self._processes.items()
            if key != _FORK_SERVER
        )

    def _start(self, key: _Key) -> None:
        earlier = self._processes.get(key)
        if self._ending or (earlier is not None and earlier.running):
            return
        process = self._new_process(key)
        if key[0] == "worker" and self._fork_server is not None:
            # It is asked for a worker once it is ready; until then the worker waits.
            process.wait_until = self._clock() + _FORK_SERVER_SECONDS
            if self._fork_server_ready:
                self._ask_fork_server(process)
        else:
            self._spawn(process, self._commands.member(process.start))
        self._processes[key] = process
        if key == _MASTER:
            self._kept.setdefault(key, KeptRunning(process.name)).start()

    def _new_process(self, key: _Key) -> _Process:
        role, index = key
        earlier = self._processes.get(key)
        name = role if key == _FORK_SERVER else f"{role}-{index}"
        if key not in self._logs:
            self._logs[key] = LogFile(self._logs_folder / f"{name}.log")
        if earlier is not None:
            earlier.output.close()
        start = MemberStart(
            role=role,  # type: ignore[arg-type]
            index=index,
            incarnation=secrets.token_hex(8),
        )
        self._logs[key].begin()
        return _Process(
            name=name,
            start=start,
            output=OutputPipe(self._logs[key], self._selector),
            restarts=0 if earlier is None else earlier.restarts + 1,
            started_at=self._clock(),
            oom_kills=count_oom_kills(),
        )

    def _spawn(
        self,
        process: _Process,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        standard_input: int | None = None,
    ) -> None:
        writing = process.output.open()
        try:
            pid = self._start_process(
                [sys.executable, *arguments],
                environment=environment or self._environment,
                output=writing,
                standard_input=standard_input,
            )
        except OSError:
            process.output.close()
            raise
        finally:
            os.close(writing)
        try:
            self._watch(process, pid)
        except OSError:
            # One that cannot be watched must not join the job.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            process.output.close()
            raise

    def _spawn_instead(self, process: _Process) -> None:
        """Starts a worker that the fork server did not fork."""
        self._end_request(process)
        try:
            self._spawn(process, self._commands.member(process.start))
        except OSError as error:
            process.output.log.write(f"cannot be started: {error.strerror or error}\n".encode())
            reason: ExitReason = "error" if _cannot_run(error) else "not_started"
            self._ended(process, _EXIT_NOT_STARTED, reason)

    def _watch(self, process: _Process, pid: int) -> None:
        handle = self._open_handle(pid)
        process.handle = handle
        self._selector.register(handle, selectors.EVENT_READ, lambda: self._reap(process, handle))

    def _reap(self, process: _Process, handle: ProcessHandle) -> None:
        exit_code = handle.reap()
        if exit_code is None or not process.running:
            return
        self._selector.unregister(handle)
        handle.close()
        process.output.drain()
        self._ended(process, exit_code)

    def _ended(self, process: _Process, exit_code: int, reason: ExitReason | None = None) -> None:
        """Notes an end; without a reason, it follows from the exit code."""
        process.exit_code = exit_code
        process.kill_at = None
        process.tail = process.output.log.tail()
        process.reason = reason or classify_exit(
            exit_code, stopped=process.is_stopped, oom_kills=count_oom_kills() - process.oom_kills
        )
        level = logging.INFO if process.is_stopped or exit_code == 0 else logging.WARNING
        _LOGGER.log(level, "%s has ended: %s", process.name, _format_end(process.reason, exit_code))
        key = (process.start.role, process.start.index)
        if key == _FORK_SERVER:
            self._lose_fork_server()
        kept = self._kept.get(key)
        if kept is not None and not self._ending:
            now = self._clock()
            kept.end(
                process.reason,
                exit_code,
                lived_seconds=now - process.started_at,
                now=now,
                tail=process.tail,
            )

    def _stop(self, key: _Key, grace_seconds: float) -> None:
        kept = self._kept.get(key)
        if kept is not None:
            kept.stop()
        process = self._processes.get(key)
        if process is None or not process.running:
            return
        process.is_stopped = True
        if process.handle is None:
            # It waits for the fork server.
            self._end_request(process)
            process.output.close()
            self._ended(process, -signal.SIGTERM)
        elif grace_seconds <= 0:
            process.handle.send(signal.SIGKILL)
        else:
            process.handle.send(signal.SIGTERM)
            kill_at = self._clock() + grace_seconds
            process.kill_at = min(kill_at, process.kill_at or kill_at)

    def _stop_all(self, grace_seconds: float) -> None:
        self._ending = True
        for key in list(self._processes):
            self._stop(key, 0.0 if key == _FORK_SERVER else grace_seconds)

    def _seconds_to_next_timer(self) -> float:
        now = self._clock()
        times = [one.kill_at for one in self._processes.values() if one.kill_at is not None]
        times += [one.wait_until for one in self._waiting()]
        times += [one.restart_at for one in self._kept.values() if one.restart_at is not None]
        return max(0.0, min([when - now for when in times], default=60.0))

    def _run_timers(self) -> None:
        now = self._clock()
        for process in self._processes.values():
            if process.kill_at is not None and process.kill_at <= now and process.handle:
                process.kill_at = None
                process.handle.send(signal.SIGKILL)
        for process in self._waiting():
            if process.wait_until <= now:
                self._give_up_on_fork_server(process)
        for key, kept in list(self._kept.items()):
            if kept.restart_at is not None and kept.restart_at <= now:
                kept.restart_at = None
                try:
                    if key == _FORK_SERVER:
                        self._start_fork_server()
                    else:
                        self._start(key)
                except OSError as error:
                    _LOGGER.warning("%s is started again later: %s", key[0], error)
                    kept.restart_at = now + self._retry_seconds

    def _waiting(self) -> list[_Process]:
        """Members that the fork server is to fork."""
        return [one for one in self._processes.values() if one.running and one.handle is None]

    def _start_fork_server(self) -> None:
        arguments = self._commands.fork_server()
        if self._ending or arguments is None:
            return
        process = self._new_process(_FORK_SERVER)
        fork_server = ForkServer()
        environment = {**self._environment, **SINGLE_THREADED}
        try:
            self._spawn(process, arguments, environment, fork_server.standard_input)
        except OSError:
            fork_server.close()
            raise
        finally:
            fork_server.started()
        self._processes[_FORK_SERVER] = process
        self._fork_server = fork_server
        self._fork_server_ready = False
        self._selector.register(
            fork_server, selectors.EVENT_READ, lambda: self._receive_from(fork_server)
        )

    def _receive_from(self, fork_server: ForkServer) -> None:
        if fork_server is not self._fork_server:
            return
        answer = fork_server.read()
        if answer is None:
            self._lose_fork_server()
        else:
            self._receive(answer)

    def _receive(self, answer: Ready | Spawned | Failed) -> None:
        if isinstance(answer, Ready):
            self._fork_server_ready = True
            for process in self._waiting():
                self._ask_fork_server(process)
            return
        worker = next((one for one in self._waiting() if one.request == answer.request), None)
        if isinstance(answer, Spawned):
            if worker is not None and worker.start_gate is not None:
                self._watch(worker, answer.pid)
                os.write(worker.start_gate, b"\0")
                self._end_request(worker)
            else:
                self._reap_unwanted(answer.pid)
        elif worker is not None:
            _LOGGER.warning("%s could not be forked: %s", worker.name, answer.why)
            self._spawn_instead(worker)

    def _reap_unwanted(self, pid: int) -> None:
        """Reaps a child whose request was cancelled; its start gate is closed, so that it ends."""
        handle = self._open_handle(pid)

        def reap() -> None:
            if handle.reap() is not None:
                self._selector.unregister(handle)
                handle.close()

        self._selector.register(handle, selectors.EVENT_READ, reap)

    def _ask_fork_server(self, process: _Process) -> None:
        self._num_requests += 1
        process.request = self._num_requests
        process.wait_until = self._clock() + self._fork_seconds
        writing = process.output.open()
        try:
            start_gate, process.start_gate = os.pipe()
        except OSError:
            os.close(writing)
            process.output.close()
            raise
        arguments = self._commands.from_fork_server(process.start)
        try:
            asked = self._fork_server is not None and self._fork_server.ask(
                process.request, arguments, writing, start_gate
            )
        finally:
            os.close(writing)
            os.close(start_gate)
        if not asked:
            self._spawn_instead(process)

    def _end_request(self, process: _Process) -> None:
        """Closes the start gate: a child that has not passed it ends."""
        process.request = None
        if process.start_gate is not None:
            os.close(process.start_gate)
            process.start_gate = None

    def _give_up_on_fork_server(self, process: _Process) -> None:
        """Replaces a fork server that does not answer, and starts the worker without it."""
        _LOGGER.warning("the fork server does not answer; %s starts without it", process.name)
        hung = self._processes.get(_FORK_SERVER)
        if hung is not None and hung.handle is not None and hung.running:
            hung.handle.send(signal.SIGKILL)
        self._spawn_instead(process)

    def _lose_fork_server(self) -> None:
        fork_server = self._fork_server
        if fork_server is None:
            return
        while (answer := fork_server.read()) is not None:
            self._receive(answer)
        self._selector.unregister(fork_server)
        fork_server.close()
        self._fork_server = None
        self._fork_server_ready = False
        for process in self._waiting():
            self._spawn_instead(process)


def _cannot_run(error: OSError) -> bool:
    """Whether the interpreter itself cannot be run; otherwise the system lacks resources now."""
    return error.filename == sys.executable and error.errno not in _RESOURCE_ERRORS


def _format_end(reason: ExitReason, exit_code: int) -> str:
    if reason == "completed":
        return "completed"
    if reason == "not_started":
        return "not started"
    ending = format_exit(exit_code)
    return f"out of memory, {ending}" if reason == "out_of_memory" else ending
