"""What a process writes, from its pipe into its log."""

import os
import selectors
import time
from contextlib import suppress

from ctr_pipeline.distributed.launchers.processes.log_file import LogFile

_READ_BYTES = 1 << 16
_DRAIN_SECONDS = 1.0
"""Time for what an ended process wrote; whoever holds its output open longer is left behind."""


class OutputPipe:
    """A pipe from a process to its log; read when the selector says that there is something.

    Args:
        selector: Its callbacks are the data of its keys.
    """

    def __init__(self, log: LogFile, selector: selectors.BaseSelector) -> None:
        self.log = log
        self._selector = selector
        self._reading: int | None = None

    def open(self) -> int:
        """Opens the pipe anew; returns the end that the process writes to."""
        self.close()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._reading = reading
        self._selector.register(reading, selectors.EVENT_READ, lambda: self._read_from(reading))
        return writing

    def drain(self) -> None:
        """Reads what an ended process has left in the pipe."""
        until = time.monotonic() + _DRAIN_SECONDS
        with suppress(BlockingIOError):
            while self._reading is not None and time.monotonic() < until:
                self._read(self._reading)

    def close(self) -> None:
        """Reads no more."""
        if self._reading is not None:
            self._selector.unregister(self._reading)
            os.close(self._reading)
            self._reading = None

    def _read_from(self, reading: int) -> None:
        # Another event of the same moment may have closed it, or opened another one.
        if self._reading == reading:
            with suppress(BlockingIOError):
                self._read(reading)

    def _read(self, reading: int) -> None:
        data = os.read(reading, _READ_BYTES)
        if data:
            self.log.write(data)
        else:
            self.close()
