"""An object as a file, in storages that have nothing better than ranges."""

import io
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from ctr_pipeline.storage.protocol import Storage

READ_AHEAD_BYTES = 8 << 20
JUMP_BYTES = 256 << 10
"""Bytes of a read that does not go on from the one before, such as that of a head or footer."""

BUFFER_BYTES = 64 << 10
_RANGES_AHEAD = 2
_RANGES_KEPT = 2
"""Columns of Parquet are not always asked for in their order."""


def open_ranges(storage: Storage, key: str) -> io.BufferedReader:
    """An object that is read by requests for ranges.

    One of at most 8 MiB is read by one request, and kept while it is open. Of a larger one, what is
    read in order comes in ranges of 8 MiB, of which two are on their way while one is used.

    Reading raises `ObjectChangedError` if it is written again meanwhile.

    Raises:
        ObjectMissingError: It is not there.
    """
    return io.BufferedReader(_Ranges(storage, key), BUFFER_BYTES)


class _Ranges(io.RawIOBase):
    def __init__(self, storage: Storage, key: str) -> None:
        self.name = f"{storage.address}/{key}"
        self._storage = storage
        self._key = key
        found = storage.stat(key)
        self._num_bytes, self._version = found.num_bytes, found.version
        self._place = 0
        self._kept = deque[tuple[int, bytes]](maxlen=_RANGES_KEPT)
        self._ahead = deque[tuple[int, int, Future[bytes]]]()
        self._num_in_order = 0
        self._pool: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._num_bytes}[whence]
        self._place = origin + offset
        return self._place

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """As many bytes as are there at once."""
        view = memoryview(buffer).cast("B")
        if not len(view) or self._place >= self._num_bytes:
            return 0
        start, data = self._range_at(self._place, min(len(view), READ_AHEAD_BYTES))
        part = memoryview(data)[self._place - start :][: len(view)]
        view[: len(part)] = part
        self._place += len(part)
        return len(part)

    def readall(self) -> bytes:
        """The rest in one request, where the standard library asks for 8 KiB each time."""
        place, self._place = self._place, max(self._place, self._num_bytes)
        if place >= self._num_bytes:
            return b""
        if self._num_bytes > READ_AHEAD_BYTES:
            # It may be of any size, and is not kept.
            return self._read(place, self._num_bytes - place)
        return self._range_at(place, self._num_bytes - place)[1][place:]

    def close(self) -> None:
        """Waits for no range that is on its way."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _range_at(self, place: int, wanted: int) -> tuple[int, bytes]:
        """A range that holds the byte at `place`."""
        for start, data in self._kept:
            if start <= place < start + len(data):
                return start, data
        follows = bool(self._kept) and place == self._kept[-1][0] + len(self._kept[-1][1])
        self._num_in_order = self._num_in_order + 1 if follows else 0
        # A head is asked for in two pieces, of which the second one is short.
        is_long = self._num_in_order > 1
        while self._ahead:
            start, length, future = self._ahead.popleft()
            if start <= place < start + length:
                self._kept.append((start, future.result()))
                break
            future.cancel()
        else:
            # Arrow asks for the end of a file several times before it reads the rest.
            is_small = self._num_bytes <= READ_AHEAD_BYTES
            start = 0 if is_small else place
            least = READ_AHEAD_BYTES if is_small or is_long else JUMP_BYTES
            length = min(max(wanted, least), self._num_bytes - start)
            self._kept.append((start, self._read(start, length)))
        if is_long:
            self._read_ahead()
        return self._kept[-1]

    def _read_ahead(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_RANGES_AHEAD, thread_name_prefix="object-ranges")
        last = self._ahead[-1][:2] if self._ahead else (self._kept[-1][0], len(self._kept[-1][1]))
        end = sum(last)
        while len(self._ahead) < _RANGES_AHEAD and end < self._num_bytes:
            length = min(READ_AHEAD_BYTES, self._num_bytes - end)
            self._ahead.append((end, length, self._pool.submit(self._read, end, length)))
            end += length

    def _read(self, start: int, num_bytes: int) -> bytes:
        return self._storage.read_range(self._key, start, num_bytes, version=self._version)
