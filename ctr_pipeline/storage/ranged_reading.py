"""An object as a file, in storages that have nothing better than ranges."""

import io
import os

from ctr_pipeline.storage.protocol import Storage

READ_AHEAD_BYTES = 8 << 20


def open_ranges(storage: Storage, key: str) -> io.BufferedReader:
    """An object that is read by one request for each 8 MiB, and for each jump to another place.

    One of at most 8 MiB is read by one request, and kept while it is open.

    Reading raises `ObjectChangedError` if it is written again meanwhile.

    Raises:
        ObjectMissingError: It is not there.
    """
    return io.BufferedReader(_Ranges(storage, key), READ_AHEAD_BYTES)


class _Ranges(io.RawIOBase):
    def __init__(self, storage: Storage, key: str) -> None:
        self.name = f"{storage.address}/{key}"
        self._storage = storage
        self._key = key
        found = storage.stat(key)
        self._num_bytes, self._version = found.num_bytes, found.version
        self._whole: bytes | None = None
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._num_bytes}[whence]
        self._place = origin + offset
        return self._place

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """The rest in one request, where the standard library asks for 8 KiB each time."""
        return self._next(self._num_bytes)

    def _next(self, most_bytes: int) -> bytes:
        start = self._place
        num_bytes = max(min(most_bytes, self._num_bytes - start), 0)
        self._place += num_bytes
        if self._num_bytes > READ_AHEAD_BYTES:
            return self._read(start, num_bytes)
        if self._whole is None:
            # Arrow asks for the end of a file several times before it reads the rest.
            self._whole = self._read(0, self._num_bytes)
        return self._whole[start : start + num_bytes]

    def _read(self, start: int, num_bytes: int) -> bytes:
        return self._storage.read_range(self._key, start, num_bytes, version=self._version)
