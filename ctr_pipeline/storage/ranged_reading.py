"""An object as a file, in storages that have nothing better than ranges."""

import io
import os

from ctr_pipeline.storage.protocol import Storage

_READ_AHEAD_BYTES = 8 << 20


def open_ranges(storage: Storage, key: str) -> io.BufferedReader:
    """An object that is read by one request for each 8 MiB, and for each jump to another place.

    If it is replaced meanwhile, some ranges may be of the old one and some of the new one.

    Raises:
        ObjectMissingError: It is not there.
    """
    return io.BufferedReader(_Ranges(storage, key), _READ_AHEAD_BYTES)


class _Ranges(io.RawIOBase):
    def __init__(self, storage: Storage, key: str) -> None:
        self.name = f"{storage.address}/{key}"
        self._storage = storage
        self._key = key
        self._num_bytes = storage.stat(key).num_bytes
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
        num_bytes = max(min(len(buffer), self._num_bytes - self._place), 0)
        buffer[:num_bytes] = self._storage.read_range(self._key, self._place, num_bytes)
        self._place += num_bytes
        return num_bytes
