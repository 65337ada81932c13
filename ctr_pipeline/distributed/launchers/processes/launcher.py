"""The launcher whose members are processes of this machine, and its children.

One thread owns all processes: it starts them, so that they die when it does; it reads what they
write, notices their ends, and restarts the master. Other threads have it run their calls.
"""

import logging
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ctr_pipeline.distributed.coordination.exit_codes import format_exit
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    ExitReason,
    LauncherBusyError,
    LauncherContext,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.coordination.news import JobNews
from ctr_pipeline.distributed.launchers.exits import classify_exit, count_oom_kills
from ctr_pipeline.distributed.launchers.processes import parent_death
from ctr_pipeline.distributed.launchers.processes.calls import CallQueue
from ctr_pipeline.distributed.launchers.processes.forked_workers import ForkedWorkers
from ctr_pipeline.distributed.launchers.processes.spawning import ProcessHandle, spawn
from ctr_pipeline.distributed.launchers.processes.table import (
    FORK_SERVER,
    Key,
    MemberProcess,
    ProcessTable,
    cannot_run,
)
from ctr_pipeline.distributed.launchers.restarts import KeptRunning

_LOGGER = logging.getLogger(__name__)
_EXIT_NOT_STARTED = 70
_MASTER = ("master", 0)


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
        self._closing_seconds = context.closing_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._kept: dict[Key, KeptRunning] = {}
        self._selector = selectors.DefaultSelector()
        environment = {**os.environ, **context.environment}
        self._processes = ProcessTable(
            context.logs_folder,
            environment,
            self._selector,
            spawn=spawn,
            watch=watch,
            clock=clock,
            on_end=self._ended,
        )
        self._forked = ForkedWorkers(
            context,
            environment,
            self._processes,
            self._selector,
            spawn_instead=self._spawn_instead,
            fork_seconds=fork_seconds,
            clock=clock,
        )
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
            if cannot_run(error):
                raise CannotLaunchError(message, place=sys.executable) from error
            raise LauncherBusyError(message) from error

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one process to end, kills it after the grace; 0 kills at once."""

        def stop() -> None:
            process = self._processes.newest.get((role, index))
            if process is not None and process.start.incarnation == incarnation:
                self._stop((role, index), grace_seconds)

        self._calls.run(stop)

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started."""
        return self._calls.run(self._processes.observe)

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
            self._kept[FORK_SERVER] = KeptRunning("fork-server")
            self._start_fork_server()
        while not self._ending or self._processes.is_any_running:
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
        self._processes.close()
        self._forked.close()
        if FORK_SERVER in self._kept:
            parent_death.adopt_orphans(wanted=False)
        self._selector.close()
        self._calls.close()

    def _start(self, key: Key) -> None:
        earlier = self._processes.newest.get(key)
        if self._ending or (earlier is not None and earlier.running):
            return
        process = self._processes.new(key)
        if key[0] == "worker" and self._forked.is_there:
            self._forked.start_worker(process)
        else:
            self._processes.spawn(process, self._commands.member(process.start))
        self._processes.newest[key] = process
        if key == _MASTER:
            self._kept.setdefault(key, KeptRunning(process.name)).start()

    def _spawn_instead(self, process: MemberProcess) -> None:
        """Starts a worker that the fork server did not fork."""
        process.end_request()
        try:
            self._processes.spawn(process, self._commands.member(process.start))
        except OSError as error:
            process.output.log.write(f"cannot be started: {error.strerror or error}\n".encode())
            reason: ExitReason = "error" if cannot_run(error) else "not_started"
            self._ended(process, _EXIT_NOT_STARTED, reason)

    def _ended(
        self, process: MemberProcess, exit_code: int, reason: ExitReason | None = None
    ) -> None:
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
        if key == FORK_SERVER:
            self._forked.lose_server()
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

    def _stop(self, key: Key, grace_seconds: float) -> None:
        kept = self._kept.get(key)
        if kept is not None:
            kept.stop()
        process = self._processes.newest.get(key)
        if process is None or not process.running:
            return
        process.is_stopped = True
        if process.handle is None:
            # It waits for the fork server.
            process.end_request()
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
        for key in list(self._processes.newest):
            self._stop(key, 0.0 if key == FORK_SERVER else grace_seconds)

    def _start_fork_server(self) -> None:
        if not self._ending:
            self._forked.start_server()

    def _seconds_to_next_timer(self) -> float:
        now = self._clock()
        times = [one.kill_at for one in self._processes.newest.values() if one.kill_at is not None]
        times += [one.wait_until for one in self._processes.waiting()]
        times += [one.restart_at for one in self._kept.values() if one.restart_at is not None]
        return max(0.0, min([when - now for when in times], default=60.0))

    def _run_timers(self) -> None:
        now = self._clock()
        for process in self._processes.newest.values():
            if process.kill_at is not None and process.kill_at <= now and process.handle:
                process.kill_at = None
                process.handle.send(signal.SIGKILL)
        for process in self._processes.waiting():
            if process.wait_until <= now:
                self._forked.give_up(process)
        for key, kept in list(self._kept.items()):
            if kept.restart_at is not None and kept.restart_at <= now:
                kept.restart_at = None
                try:
                    if key == FORK_SERVER:
                        self._start_fork_server()
                    else:
                        self._start(key)
                except OSError as error:
                    _LOGGER.warning("%s is started again later: %s", key[0], error)
                    kept.restart_at = now + self._retry_seconds


def _format_end(reason: ExitReason, exit_code: int) -> str:
    if reason == "completed":
        return "completed"
    if reason == "not_started":
        return "not started"
    ending = format_exit(exit_code)
    return f"out of memory, {ending}" if reason == "out_of_memory" else ending
