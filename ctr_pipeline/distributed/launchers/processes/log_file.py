"""What a member writes: a file of bounded size, and its last lines in memory."""

import os
from pathlib import Path
from typing import IO

from ctr_pipeline.durable import not_through_links

MAX_BYTES = 16 << 20
NUM_OLD_FILES = 2
_TAIL_BYTES = 16 << 10
_TAIL_LINES = 60


class LogFile:
    """Appends to `path`; a full file moves to `path.1`, that to `path.2`, the last is dropped.

    What the disk does not take is lost and never stops the member; the last lines stay in memory.

    Args:
        path: The newest file.
        max_bytes: A file that would grow beyond it is moved away first.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._num_bytes = 0
        self._tail = b""

    def write(self, data: bytes) -> None:
        """Appends bytes as they come."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        try:
            if self._file is None:
                self._open()
            if self._num_bytes and self._num_bytes + len(data) > self._max_bytes:
                self._rotate()
            if self._file is not None:
                self._file.write(data)
                self._num_bytes += len(data)
        except OSError:
            # A full disk must not take the member with it; it is tried again with the next bytes.
            self._forget()

    def begin(self) -> None:
        """Forgets the last lines: another process writes from now on."""
        self._tail = b""

    def tail(self) -> str:
        """The last lines that the process wrote."""
        lines = self._tail.decode("utf-8", "replace").splitlines()
        if len(self._tail) == _TAIL_BYTES:
            # The first of them is cut.
            lines = lines[1:]
        return "\n".join(lines[-_TAIL_LINES:])

    def close(self) -> None:
        """Closes the file."""
        self._forget()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = not_through_links(str(self._path), flags)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._num_bytes = self._file.tell()

    def _rotate(self) -> None:
        self._forget()
        for number in range(NUM_OLD_FILES, 0, -1):
            newer = self._path if number == 1 else self._old(number - 1)
            if newer.exists():
                newer.replace(self._old(number))
        self._open()

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                # Nothing is buffered; what it says was said by the write.
                return
