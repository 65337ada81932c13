"""The newest process of each member, as the launcher's thread starts and watches them."""

import errno
import os
import secrets
import selectors
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.distributed.coordination.launching import ExitReason, MemberStart, ProcessState
from ctr_pipeline.distributed.launchers.exits import count_oom_kills
from ctr_pipeline.distributed.launchers.processes.log_file import LogFile
from ctr_pipeline.distributed.launchers.processes.output import OutputPipe
from ctr_pipeline.distributed.launchers.processes.spawning import ProcessHandle

_RESOURCE_ERRORS = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

Key = tuple[str, int]
FORK_SERVER: Key = ("fork-server", 0)


@dataclass
class MemberProcess:
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
        """Whether its end has not been seen."""
        return self.exit_code is None

    def end_request(self) -> None:
        """Closes the start gate: a child that has not passed it ends."""
        self.request = None
        if self.start_gate is not None:
            os.close(self.start_gate)
            self.start_gate = None


class ProcessTable:
    """Processes by member; the fork server is one of them.

    Args:
        logs_folder: Where what they write goes.
        environment: Variables that all of them get.
        selector: Told of what they write, and of their ends.
        spawn: Starts a process; see `spawning.spawn`.
        watch: Watches a process for its end.
        clock: Seconds, monotonic.
        on_end: Told of a process that has ended, with its exit code.
    """

    def __init__(
        self,
        logs_folder: Path,
        environment: Mapping[str, str],
        selector: selectors.BaseSelector,
        *,
        spawn: Callable[..., int],
        watch: Callable[[int], ProcessHandle],
        clock: Callable[[], float],
        on_end: Callable[[MemberProcess, int], None],
    ) -> None:
        self._logs_folder = logs_folder
        self._environment = environment
        self._selector = selector
        self._start_process = spawn
        self._open_handle = watch
        self._clock = clock
        self._on_end = on_end
        self._logs: dict[Key, LogFile] = {}
        self.newest: dict[Key, MemberProcess] = {}

    @property
    def is_any_running(self) -> bool:
        """Whether one has not ended."""
        return any(one.running for one in self.newest.values())

    def waiting(self) -> list[MemberProcess]:
        """Members that the fork server is to fork."""
        return [one for one in self.newest.values() if one.running and one.handle is None]

    def close(self) -> None:
        """Closes pipes and logs."""
        for process in self.newest.values():
            process.output.close()
        for log in self._logs.values():
            log.close()

    def observe(self) -> tuple[ProcessState, ...]:
        """All members that were ever started."""
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
            for key, process in self.newest.items()
            if key != FORK_SERVER
        )

    def new(self, key: Key) -> MemberProcess:
        """One that is to be started in place of the last one; not in the table yet."""
        role, index = key
        earlier = self.newest.get(key)
        name = role if key == FORK_SERVER else f"{role}-{index}"
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
        return MemberProcess(
            name=name,
            start=start,
            output=OutputPipe(self._logs[key], self._selector),
            restarts=0 if earlier is None else earlier.restarts + 1,
            started_at=self._clock(),
            oom_kills=count_oom_kills(),
        )

    def spawn(
        self,
        process: MemberProcess,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        standard_input: int | None = None,
    ) -> None:
        """Starts a process of its own.

        Raises:
            OSError: There is none now.
        """
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
            self.watch(process, pid)
        except OSError:
            # One that cannot be watched must not join the job.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            process.output.close()
            raise

    def watch(self, process: MemberProcess, pid: int) -> None:
        """Waits for the end of one that somebody has started."""
        handle = self._open_handle(pid)
        process.handle = handle
        self._selector.register(handle, selectors.EVENT_READ, lambda: self._reap(process, handle))

    def _reap(self, process: MemberProcess, handle: ProcessHandle) -> None:
        exit_code = handle.reap()
        if exit_code is None or not process.running:
            return
        self._selector.unregister(handle)
        handle.close()
        process.output.drain()
        self._on_end(process, exit_code)

    def reap_unwanted(self, pid: int) -> None:
        """Reaps a child whose request was cancelled; its start gate is closed, so that it ends."""
        handle = self._open_handle(pid)

        def reap() -> None:
            if handle.reap() is not None:
                self._selector.unregister(handle)
                handle.close()

        self._selector.register(handle, selectors.EVENT_READ, reap)


def cannot_run(error: OSError) -> bool:
    """Whether the interpreter itself cannot be run; otherwise the system lacks resources now."""
    return error.filename == sys.executable and error.errno not in _RESOURCE_ERRORS
