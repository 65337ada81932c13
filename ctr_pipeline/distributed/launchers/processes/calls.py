"""Calls from any thread that one thread runs."""

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class CallQueue:
    """Functions that other threads have `thread` run, and wait for.

    Args:
        thread: Selects on `fileno` and calls `run_waiting` whenever it is readable, and once more
            before it ends.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)

    def fileno(self) -> int:
        """A descriptor that is readable when calls wait."""
        return self._reading.fileno()

    def run(self, function: Callable[[], T]) -> T:
        """Has the thread run a function; once the thread has ended, runs it here."""
        result: Future[T] = Future()

        def settle() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001  it is the caller's
                result.set_exception(error)

        self._calls.put(settle)
        with suppress(OSError):
            # A full socket wakes the thread as well; a closed one means that it has ended.
            self._writing.send(b"\0")
        while True:
            try:
                return result.result(timeout=0.2)
            except TimeoutError:
                if not self._thread.is_alive() and not result.done():
                    settle()

    def run_waiting(self) -> None:
        """Runs the calls that wait."""
        with suppress(BlockingIOError):
            self._reading.recv(4096)
        while True:
            try:
                settle = self._calls.get_nowait()
            except queue.Empty:
                return
            settle()

    def close(self) -> None:
        """The thread ends: later calls run where they are made."""
        self._reading.close()
        self._writing.close()
