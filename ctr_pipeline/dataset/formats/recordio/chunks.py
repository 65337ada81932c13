"""RecordIO files, byte for byte as the Go library of that name writes them.

A file is a sequence of chunks and nothing else. A chunk is a header of five little-endian uint32,
the magic number, the CRC-32 of the payload as stored, the compressor, the payload's bytes as stored
and the number of records, and then the payload, compressed as a whole: of each record its length as
a little-endian uint32 and its bytes. There is no index on disk; one is made from the headers.

Empty records are records. What a format without an end mark cannot show is a file cut exactly
between two chunks; anything else that is missing or changed is found, and is an error.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import IO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.dataset.data_files import DataFile, open_bytes
from ctr_pipeline.dataset.formats.recordio.compression import (
    DamagedStreamError,
    compress_gzip,
    compress_snappy,
    decompress_gzip,
    decompress_snappy,
)
from ctr_pipeline.dataset.limits import LONGEST_VALUE_BYTES, UNFOLDED_BYTES
from ctr_pipeline.dataset.source import WHOLE, Range, ranges_between
from ctr_pipeline.errors import DataError
from ctr_pipeline.kernels.compilation import kernel, read_only

MAGIC = 0x01020304
MAGIC_BYTES = struct.pack("<I", MAGIC)
CHUNK_BYTES = 4 << 20
"""Records of one chunk, where nobody asks for another size: one chunk is then parsed in caches."""

MAX_CHUNK_BYTES = UNFOLDED_BYTES
"""A chunk is held in memory as a whole, with the positions of its records; a larger one is
refused."""

_HEADER = struct.Struct("<5I")
_LENGTH_BYTES = 4
_POSITION_BYTES = 16
"""Bytes in memory of where a record starts and ends."""
_REMEDY = "Copy the file again, or write it again"

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


class Compressor(IntEnum):
    """How the payload of a chunk is compressed, by the number in its header."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2


@dataclass(frozen=True)
class Records:
    """Some consecutive records, as slices of one buffer.

    Attributes:
        data: The buffer, uint8.
        starts: Position of each record's first byte [N].
        ends: Position after its last byte [N].
    """

    data: Bytes
    starts: Positions
    ends: Positions

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> memoryview:
        """One record, not copied."""
        return self.data.data[self.starts[index] : self.ends[index]]

    def __iter__(self) -> Iterator[memoryview]:
        """Every record, not copied."""
        view = self.data.data
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield view[start:end]

    @property
    def num_bytes(self) -> int:
        """Bytes of the records together."""
        return int((self.ends - self.starts).sum())

    def between(self, start: int, stop: int) -> "Records":
        """The records of a range, as of a Python slice."""
        return Records(self.data, self.starts[start:stop], self.ends[start:stop])


class _Header(NamedTuple):
    crc: int
    compressor: Compressor
    stored_bytes: int
    num_records: int


class RecordIOReader:
    """Reads a file chunk by chunk, in order or by ranges of records; a context manager.

    One chunk is in memory at a time.

    Args:
        path: The file.

    Raises:
        DataError: The file cannot be opened.
    """

    def __init__(self, path: DataFile) -> None:
        self._path = path
        try:
            self._file = open_bytes(path)
            self._size_bytes = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise DataError(
                f"cannot be read ({error.strerror})",
                place=str(path),
                remedy="Check the file and its permissions",
            ) from error
        self._offsets: Positions | None = None
        self._firsts: Positions = np.empty(0, np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def num_chunks(self) -> int:
        """Chunks of the file; makes the index if there is none yet."""
        return len(self._index()[0])

    @property
    def num_records(self) -> int:
        """Records of the file; makes the index if there is none yet."""
        return int(self._index()[1][-1])

    @property
    def first_records(self) -> Positions:
        """Number of the first record of each chunk, and of all records, int64 [C + 1]."""
        return self._index()[1]

    def ranges(self, unit_bytes: int) -> list[Range]:
        """Ranges of the file's bytes, about `unit_bytes` each, cut between chunks.

        Raises:
            DataError: The file is truncated or damaged.
        """
        offsets, _ = self._index()
        cuts = [0]
        for offset in offsets.tolist():
            if offset - cuts[-1] >= unit_bytes:
                cuts.append(offset)
        return ranges_between(cuts)

    def chunks(self, part: Range = WHOLE) -> Iterator[tuple[Records, int]]:
        """The records of every chunk, each with the position in the file after its chunk.

        Args:
            part: One of `ranges`: only its chunks are read.

        Raises:
            DataError: The file is truncated or damaged.
        """
        offset, after = part.first, self._size_bytes if part.after is None else part.after
        number = None if offset else 1
        while offset < after:
            records, offset = self._read_chunk(number, offset)
            yield records, offset
            if number is not None:
                number += 1

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Records]:
        """The records [start, stop), as a Python slice without negative numbers takes them.

        Only the chunks that hold them are read.

        Raises:
            ValueError: A bound is negative.
            DataError: The file is truncated or damaged.
        """
        offsets, firsts = self._index()
        stop = int(firsts[-1]) if stop is None else min(stop, int(firsts[-1]))
        if start < 0 or stop < 0:
            raise ValueError(f"a range of records from {start} to {stop}")
        if start >= stop:
            return
        chunk = int(np.searchsorted(firsts, start, side="right")) - 1
        while chunk < len(offsets) and firsts[chunk] < stop:
            first = int(firsts[chunk])
            if firsts[chunk + 1] > first:
                records, _ = self._read_chunk(chunk + 1, int(offsets[chunk]))
                yield records.between(max(start - first, 0), stop - first)
            chunk += 1

    def _index(self) -> tuple[Positions, Positions]:
        """Where each chunk begins [C], and the number of records before it, and in all [C + 1]."""
        if self._offsets is None:
            offsets, firsts, offset = list[int](), [0], 0
            while offset < self._size_bytes:
                header = self._read_header(len(offsets) + 1, offset)
                offsets.append(offset)
                firsts.append(firsts[-1] + header.num_records)
                offset += _HEADER.size + header.stored_bytes
            self._offsets = np.array(offsets, np.int64)
            self._firsts = np.array(firsts, np.int64)
        return self._offsets, self._firsts

    def _read_header(self, number: int | None, offset: int) -> _Header:
        """Header of the chunk at `offset`, after which the file stands at its payload."""
        self._file.seek(offset)
        head = self._file.read(_HEADER.size)
        if head[:4] != MAGIC_BYTES[: len(head)]:
            raise self._damaged(
                number,
                offset,
                f"does not begin with RecordIO's magic number {MAGIC_BYTES.hex(' ')}, but with "
                f"{head[:4].hex(' ')}",
            )
        if len(head) < _HEADER.size:
            raise self._damaged(
                number, offset, f"is truncated: {len(head)} of its header's {_HEADER.size} bytes"
            )
        _, crc, compressor, stored_bytes, num_records = _HEADER.unpack(head)
        if compressor not in Compressor.__members__.values():
            raise self._damaged(
                number,
                offset,
                f"names the unknown compressor {compressor}; known are 0 none, 1 snappy, 2 gzip",
                "Write the file again with one of these",
            )
        left_bytes = self._size_bytes - offset - _HEADER.size
        if stored_bytes > left_bytes:
            raise self._damaged(
                number,
                offset,
                f"is truncated: {left_bytes:,} of its {stored_bytes:,} bytes are there",
            )
        if stored_bytes > MAX_CHUNK_BYTES:
            raise self._too_large(number, offset)
        return _Header(crc, Compressor(compressor), stored_bytes, num_records)

    def _read_chunk(self, number: int | None, offset: int) -> tuple[Records, int]:
        """The records of the chunk at `offset`, and the position after it."""
        header = self._read_header(number, offset)
        stored = np.empty(header.stored_bytes, np.uint8)
        if self._file.readinto(stored.data) != header.stored_bytes:
            raise self._damaged(number, offset, "is truncated: the file became shorter")
        crc = zlib.crc32(stored.data)
        if crc != header.crc:
            raise self._damaged(
                number,
                offset,
                f"is damaged: its checksum is {crc:08x}, but {header.crc:08x} in its header",
            )
        try:
            plain = _decompress(stored, header.compressor)
        except DamagedStreamError as error:
            name = header.compressor.name.lower()
            raise self._damaged(number, offset, f"is damaged: as {name}, {error}") from error
        except OverflowError as error:
            raise self._too_large(number, offset) from error
        # Before memory is asked for: a damaged header may promise billions of records.
        fits = header.num_records * _LENGTH_BYTES <= len(plain)
        if fits and len(plain) + header.num_records * _POSITION_BYTES > MAX_CHUNK_BYTES:
            raise self._too_large(number, offset)
        if fits:
            starts = np.empty(header.num_records, np.int64)
            ends = np.empty(header.num_records, np.int64)
        if not fits or not _find_records(plain, starts, ends):
            raise self._damaged(
                number,
                offset,
                f"is damaged: its {len(plain):,} bytes are not the {header.num_records:,} records "
                "that its header promises",
            )
        longest = int((ends - starts).max(initial=0))
        if longest > LONGEST_VALUE_BYTES:
            raise self._damaged(
                number,
                offset,
                f"holds a record of {longest:,} bytes, and at most {LONGEST_VALUE_BYTES:,} are "
                "read",
                "Write the file again without the column of long values",
            )
        return Records(plain, starts, ends), offset + _HEADER.size + header.stored_bytes

    def _damaged(
        self, number: int | None, offset: int, what: str, remedy: str = _REMEDY
    ) -> DataError:
        chunk = "chunk" if number is None else f"chunk {number}"
        return DataError(what, place=f"{self._path}, {chunk} at byte {offset}", remedy=remedy)

    def _too_large(self, number: int | None, offset: int) -> DataError:
        return self._damaged(
            number,
            offset,
            f"holds more than {MAX_CHUNK_BYTES >> 20:,} MiB, and a chunk is read as a whole",
            "Write the file again in smaller chunks",
        )


class RecordIOWriter:
    """Writes records into chunks; a context manager that writes the last chunk at its good end.

    A chunk ends before the record with which its records would be longer than `chunk_bytes`, as in
    the Go library; a single longer record has a chunk of its own.

    Args:
        file: Where to; not closed.
        chunk_bytes: Most bytes of a chunk's records, their lengths not counted.
    """

    def __init__(
        self,
        file: IO[bytes],
        *,
        compressor: Compressor = Compressor.NONE,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._file = file
        self._compressor = compressor
        self._chunk_bytes = chunk_bytes
        self._payload = bytearray()
        self._num_records = 0
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()

    def write(self, record: bytes | memoryview) -> None:
        """Adds one record.

        Raises:
            DataError: It is longer than a record may be.
        """
        size = len(record)
        self._check_size(size)
        if self._num_bytes + size > self._chunk_bytes:
            self.flush()
        self._payload += size.to_bytes(_LENGTH_BYTES, "little")
        self._payload += record
        self._num_records += 1
        self._num_bytes += size

    def write_all(self, records: Records) -> None:
        """Adds many records; the chunks are those that adding them one by one gives.

        Raises:
            DataError: One is longer than a record may be.
        """
        if not len(records):
            return
        sizes = records.ends - records.starts
        self._check_size(int(sizes.max()))
        totals = np.cumsum(sizes)
        start, before = 0, 0
        while start < len(records):
            room = self._chunk_bytes - self._num_bytes
            stop = int(np.searchsorted(totals, before + room, side="right"))
            if stop <= start:
                if self._num_records:
                    self.flush()
                    continue
                stop = start + 1
            part = records.between(start, stop)
            num_bytes = int(totals[stop - 1]) - before
            packed = np.empty(num_bytes + _LENGTH_BYTES * len(part), np.uint8)
            _pack_records(read_only(part.data), part.starts, part.ends, packed)
            self._payload += packed.data
            self._num_records += len(part)
            self._num_bytes += num_bytes
            start, before = stop, int(totals[stop - 1])

    def flush(self) -> None:
        """Ends the chunk, if it has records."""
        if not self._num_records:
            return
        stored = _compress(self._payload, self._compressor)
        self._file.write(
            _HEADER.pack(
                MAGIC, zlib.crc32(stored), self._compressor, len(stored), self._num_records
            )
        )
        self._file.write(stored)
        self._payload = bytearray()
        self._num_records = self._num_bytes = 0

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > LONGEST_VALUE_BYTES:
            raise DataError(
                f"a record has {num_bytes:,} bytes, and at most {LONGEST_VALUE_BYTES:,} are read",
                remedy="Leave out the column with the long values",
            )


def _decompress(stored: Bytes, compressor: Compressor) -> Bytes:
    """The payload, plain.

    Raises:
        DamagedStreamError: It cannot be decompressed.
        OverflowError: It would be longer than `MAX_CHUNK_BYTES`.
    """
    if compressor is Compressor.SNAPPY:
        return decompress_snappy(stored, MAX_CHUNK_BYTES)
    if compressor is Compressor.GZIP:
        return decompress_gzip(stored, MAX_CHUNK_BYTES)
    return stored


def _compress(payload: bytearray, compressor: Compressor) -> bytes | bytearray:
    if compressor is Compressor.SNAPPY:
        return compress_snappy(payload)
    if compressor is Compressor.GZIP:
        return compress_gzip(payload)
    return payload


@kernel
def _find_records(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bool:
    """Where the records are; False if their number and lengths are not those of the payload."""
    position, size = np.int64(0), np.int64(len(data))
    for record in range(len(starts)):
        if size - position < 4:
            return False
        length = (
            np.int64(data[position])
            | np.int64(data[position + 1]) << 8
            | np.int64(data[position + 2]) << 16
            | np.int64(data[position + 3]) << 24
        )
        position += 4
        if length > size - position:
            return False
        starts[record] = position
        position += length
        ends[record] = position
    return bool(position == size)


@kernel
def _pack_records(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, packed: np.ndarray
) -> None:
    """Writes the length and the bytes of each record."""
    position = 0
    for record in range(len(starts)):
        length = ends[record] - starts[record]
        for byte in range(4):
            packed[position + byte] = (length >> (8 * byte)) & 0xFF
        position += 4
        packed[position : position + length] = data[starts[record] : ends[record]]
        position += length
