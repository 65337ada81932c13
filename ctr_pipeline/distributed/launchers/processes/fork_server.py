"""A process that has imported what workers need, and forks one in milliseconds.

Importing TensorFlow costs seconds of processor time; a replacement for a lost worker should not pay
them again. The fork server imports once, computes nothing, starts no thread and waits on its stdin,
a socket. On a request it forks twice and the process between ends at once, so that the worker is
the launcher's own child: the launcher reaps it, it dies with the launcher, and it outlives the fork
server. (A child of `multiprocessing`'s fork server belongs to the fork server.) The worker waits at
its start gate until the launcher knows its process number.
"""

import gc
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ctr_pipeline.distributed.launchers.processes.parent_death import die_with_parent
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.tracebacks import render_traceback

_MAX_REQUEST_BYTES = 1 << 16
_EXIT_NOT_BEGUN = 70

SINGLE_THREADED = {
    # Libraries that otherwise start a thread when they are imported; a fork would lose it.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment of a fork server."""


@dataclass(frozen=True)
class Ready:
    """The fork server has imported everything."""


@dataclass(frozen=True)
class Spawned:
    """A request was met: the process runs, as a child of the launcher."""

    request: int
    pid: int


@dataclass(frozen=True)
class Failed:
    """A request was not met."""

    request: int
    why: str


class ForkServer:
    """The launcher's end of a fork server's socket.

    Attributes:
        standard_input: Descriptor to start the fork server with; closed by `started`.
    """

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.standard_input = theirs.detach()

    def started(self) -> None:
        """The fork server has its end of the socket; ours of it is closed."""
        os.close(self.standard_input)

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `read`."""
        return self._ours.fileno()

    def ask(self, request: int, arguments: Sequence[str], output: int, start_gate: int) -> bool:
        """Asks for a process.

        Args:
            request: Number that the answer names.
            arguments: For `serve_forks`'s `run`.
            output: Descriptor that becomes its stdout and stderr.
            start_gate: Descriptor from which it reads one byte before it begins; at the end of the
                file it ends instead.

        Returns:
            Whether the fork server can still be asked.
        """
        message = {"request": request, "arguments": list(arguments), "launcher": os.getpid()}
        try:
            socket.send_fds(self._ours, [json.dumps(message).encode()], [output, start_gate])
        except OSError:
            return False
        return True

    def read(self) -> Ready | Spawned | Failed | None:
        """What the fork server says; None: it has ended."""
        try:
            data = self._ours.recv(_MAX_REQUEST_BYTES)
        except OSError:
            data = b""
        if not data:
            return None
        answer = json.loads(data)
        if "pid" in answer:
            return Spawned(int(answer["request"]), int(answer["pid"]))
        if "why" in answer:
            return Failed(int(answer["request"]), str(answer["why"]))
        return Ready()

    def close(self) -> None:
        """Tells the fork server to end."""
        self._ours.close()


def serve_forks(preload: Callable[[], None], run: Callable[[Sequence[str]], int]) -> None:
    """Serves requests on stdin until the launcher closes it.

    Args:
        preload: Imports what the children need; must neither start threads nor compute.
        run: What a child does with the arguments of its request; returns its exit code.

    Raises:
        CtrPipelineError: `preload` started a thread, so that no fork is safe.
    """
    channel = socket.socket(fileno=os.dup(0))
    preload()
    threads = [entry.name for entry in Path("/proc/self/task").iterdir()]
    if len(threads) != 1:
        message = f"{len(threads)} threads run after the imports, so workers cannot be forked"
        raise CtrPipelineError(message)
    # What is here now stays: collections in children must not copy its pages.
    gc.collect()
    gc.freeze()
    channel.send(json.dumps({"ready": True}).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _MAX_REQUEST_BYTES, 2)
        if not data:
            return
        request = json.loads(data)
        answer: dict[str, Any] = {"request": request["request"]}
        try:
            answer["pid"] = _fork_child(request, descriptors, channel, run)
        except OSError as error:
            answer["why"] = error.strerror or str(error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        channel.send(json.dumps(answer).encode())


def _fork_child(
    request: dict[str, Any],
    descriptors: Sequence[int],
    channel: socket.socket,
    run: Callable[[Sequence[str]], int],
) -> int:
    """Forks a child that belongs to the launcher; returns its pid."""
    reading, writing = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            _fork_again(request, descriptors, channel, run, (reading, writing))
        os.close(writing)
        writing = -1
        # Once it is reaped its child has a new parent.
        os.waitpid(between, 0)
        found = os.read(reading, 8)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if len(found) != 8:
        raise OSError("there is no memory or no process number for another process")
    return int.from_bytes(found, "little")


def _fork_again(
    request: dict[str, Any],
    descriptors: Sequence[int],
    channel: socket.socket,
    run: Callable[[Sequence[str]], int],
    pipe: tuple[int, int],
) -> NoReturn:
    try:
        child = os.fork()
        if child == 0:
            channel.close()
            for descriptor in pipe:
                os.close(descriptor)
            output, start_gate = descriptors
            _run_child(request, output, start_gate, run)
        os.write(pipe[1], child.to_bytes(8, "little"))
    finally:
        os._exit(0)


def _run_child(
    request: dict[str, Any], output: int, start_gate: int, run: Callable[[Sequence[str]], int]
) -> NoReturn:
    """The life of a child; its exit ends the process, whatever stands on the stack below."""
    code = _EXIT_NOT_BEGUN
    try:
        may_start = os.read(start_gate, 1)
        os.close(start_gate)
        if may_start and die_with_parent(request["launcher"]):
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            os.close(nothing)
            os.close(output)
            # The siblings must not draw the same random numbers.
            random.seed()
            code = run(request["arguments"])
    except BaseException as error:  # noqa: BLE001  nothing may reach the fork server's frames below
        sys.stderr.write(render_traceback(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
