"""Workers that a fork server forks, which has what they need in memory."""

import logging
import os
import selectors
import signal
from collections.abc import Callable, Mapping

from ctr_pipeline.distributed.coordination.launching import LauncherContext
from ctr_pipeline.distributed.launchers.processes.fork_server import (
    SINGLE_THREADED,
    Failed,
    ForkServer,
    Ready,
    Spawned,
)
from ctr_pipeline.distributed.launchers.processes.table import (
    FORK_SERVER,
    MemberProcess,
    ProcessTable,
)

_LOGGER = logging.getLogger(__name__)
_READY_SECONDS = 60.0
"""Longest that a start waits for the fork server to be ready."""


class ForkedWorkers:
    """Asks the fork server for workers; whoever it does not fork is spawned instead.

    Args:
        context: Has the command lines.
        environment: Variables that all processes get.
        processes: The processes.
        selector: Told of what the fork server answers.
        spawn_instead: Starts a worker without the fork server.
        fork_seconds: A fork server that has not forked by then hangs.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        context: LauncherContext,
        environment: Mapping[str, str],
        processes: ProcessTable,
        selector: selectors.BaseSelector,
        *,
        spawn_instead: Callable[[MemberProcess], None],
        fork_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._commands = context.commands
        self._environment = environment
        self._processes = processes
        self._selector = selector
        self._spawn_instead = spawn_instead
        self._fork_seconds = fork_seconds
        self._clock = clock
        self._fork_server: ForkServer | None = None
        self._is_ready = False
        self._num_requests = 0

    @property
    def is_there(self) -> bool:
        """Whether there is a fork server, which may have to become ready."""
        return self._fork_server is not None

    def start_worker(self, process: MemberProcess) -> None:
        """Has a worker forked; one that the fork server is not ready for waits."""
        process.wait_until = self._clock() + _READY_SECONDS
        if self._is_ready:
            self._ask(process)

    def close(self) -> None:
        """Closes the connection."""
        if self._fork_server is not None:
            self._fork_server.close()

    def start_server(self) -> None:
        """Starts a fork server, if members have one.

        Raises:
            OSError: There is no process for it now.
        """
        arguments = self._commands.fork_server()
        if arguments is None:
            return
        process = self._processes.new(FORK_SERVER)
        fork_server = ForkServer()
        environment = {**self._environment, **SINGLE_THREADED}
        try:
            self._processes.spawn(process, arguments, environment, fork_server.standard_input)
        except OSError:
            fork_server.close()
            raise
        finally:
            fork_server.started()
        self._processes.newest[FORK_SERVER] = process
        self._fork_server = fork_server
        self._is_ready = False
        self._selector.register(
            fork_server, selectors.EVENT_READ, lambda: self._receive_from(fork_server)
        )

    def _receive_from(self, fork_server: ForkServer) -> None:
        if fork_server is not self._fork_server:
            return
        answer = fork_server.read()
        if answer is None:
            self.lose_server()
        else:
            self._receive(answer)

    def _receive(self, answer: Ready | Spawned | Failed) -> None:
        if isinstance(answer, Ready):
            self._is_ready = True
            for process in self._processes.waiting():
                self._ask(process)
            return
        worker = next(
            (one for one in self._processes.waiting() if one.request == answer.request), None
        )
        if isinstance(answer, Spawned):
            if worker is not None and worker.start_gate is not None:
                self._processes.watch(worker, answer.pid)
                os.write(worker.start_gate, b"\0")
                worker.end_request()
            else:
                self._processes.reap_unwanted(answer.pid)
        elif worker is not None:
            _LOGGER.warning("%s could not be forked: %s", worker.name, answer.why)
            self._spawn_instead(worker)

    def _ask(self, process: MemberProcess) -> None:
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

    def give_up(self, process: MemberProcess) -> None:
        """Replaces a fork server that does not answer, and starts the worker without it."""
        _LOGGER.warning("the fork server does not answer; %s starts without it", process.name)
        hung = self._processes.newest.get(FORK_SERVER)
        if hung is not None and hung.handle is not None and hung.running:
            hung.handle.send(signal.SIGKILL)
        self._spawn_instead(process)

    def lose_server(self) -> None:
        """The fork server has ended; whoever waits for it is spawned instead."""
        fork_server = self._fork_server
        if fork_server is None:
            return
        while (answer := fork_server.read()) is not None:
            self._receive(answer)
        self._selector.unregister(fork_server)
        fork_server.close()
        self._fork_server = None
        self._is_ready = False
        for process in self._processes.waiting():
            self._spawn_instead(process)
