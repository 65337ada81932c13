"""Rows of a checkpoint sorted by key on disk, however many there are.

Rows come in any order, a key perhaps several times: in a base and in deltas after it. They are
sorted in runs that fit into memory, and the runs are merged; of each key the newest row stays, none
where that one is a tombstone. All files are temporary ones without a name, which are gone with the
process, however it ends.

Axes: B rows of a run, W values of a row. A row of a run has a word more than W: its tag.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from ctr_pipeline.durable import os_errors_explained
from ctr_pipeline.embeddings.arrays import BoolArray, Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.row_merge import merge_blocks
from ctr_pipeline.embeddings.store import RowBlock

Item = TypeVar("Item", bound=np.generic)

_RUN_BYTES = 128 << 20
_MERGED_BYTES = 32 << 20
BLOCK_ROWS = 65_536
KEYS_SOUGHT = 4096
_LEAST_STRIDE = 64
MOST_INDEXED = 1 << 20
_GAP_BYTES = 4096
_KEY_BYTES = 8


class SortedRows:
    """Rows by ascending key in two files, one of keys and one of values.

    Memory: every 64th key, or a million keys if that is less.

    Args:
        folder: On whose disk they are.
        width: Values of a row, W.
        most_rows: How many there can be.

    Attributes:
        num_rows: How many.
        width: Values of a row, W.
        index: Some of the keys, at equal distances; none before `finish`.
    """

    def __init__(self, folder: Path, width: int, *, most_rows: int) -> None:
        self.width = width
        self.num_rows = 0
        self._keys = _temporary_file(folder)
        self._values = _temporary_file(folder)
        self._stride = max(_LEAST_STRIDE, -(-most_rows // MOST_INDEXED))
        self._index_parts: list[Int64Array] = []
        self.index: Int64Array = np.empty(0, np.int64)

    def append(self, block: RowBlock) -> None:
        """Adds rows whose keys are above all before."""
        self._index_parts.append(block.keys[-self.num_rows % self._stride :: self._stride].copy())
        _write(self._keys, block.keys)
        _write(self._values, block.values)
        self.num_rows += len(block.keys)

    def finish(self) -> None:
        """No more rows come; from now on they can be read."""
        self._keys.flush()
        self._values.flush()
        self.index = np.concatenate([self.index, *self._index_parts])
        self._index_parts = []

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """All rows by ascending key, in blocks of at most `block_rows`."""
        if block_rows < 1:
            raise ValueError(f"block_rows {block_rows} is below 1")
        for first in range(0, self.num_rows, block_rows):
            last = min(first + block_rows, self.num_rows)
            yield RowBlock(self._read_keys(first, last), self._read_values(first, last))

    def find(self, keys: Int64Array) -> RowBlock:
        """The rows of the given keys that there are, by ascending key.

        Args:
            keys: int64, distinct.
        """
        parts = [RowBlock(np.empty(0, np.int64), np.empty((0, self.width), np.float32))]
        keys = np.sort(keys)
        for first in range(0, len(keys), KEYS_SOUGHT):
            wanted = keys[first : first + KEYS_SOUGHT]
            places = self._places_of(wanted)
            present = places >= 0
            parts.append(RowBlock(wanted[present], self._values_at(places[present])))
        return RowBlock(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def _places_of(self, keys: Int64Array) -> Int64Array:
        """Where ascending keys stand, int64; -1 for a key without a row."""
        places = np.full(len(keys), -1, np.int64)
        blocks = np.searchsorted(self.index, keys, side="right") - 1
        before_all = int(np.searchsorted(blocks, 0))
        gap = max(1, _GAP_BYTES // (_KEY_BYTES * self._stride))
        for begin, end in _spans(blocks[before_all:], gap):
            chosen = slice(before_all + begin, before_all + end)
            first = int(blocks[chosen][0]) * self._stride
            last = min((int(blocks[chosen][-1]) + 1) * self._stride, self.num_rows)
            present = self._read_keys(first, last)
            at = np.minimum(np.searchsorted(present, keys[chosen]), len(present) - 1)
            places[chosen] = np.where(present[at] == keys[chosen], first + at, -1)
        return places

    def _values_at(self, places: Int64Array) -> Float32Array:
        """Values of rows at ascending places, float32 [n, W]."""
        values = np.empty((len(places), self.width), np.float32)
        gap = max(1, _GAP_BYTES // (4 * self.width))
        for begin, end in _spans(places, gap):
            first, last = int(places[begin]), int(places[end - 1]) + 1
            values[begin:end] = self._read_values(first, last)[places[begin:end] - first]
        return values

    def _read_keys(self, first: int, last: int) -> Int64Array:
        return _read(self._keys, np.int64, last - first, _KEY_BYTES * first)

    def _read_values(self, first: int, last: int) -> Float32Array:
        row_bytes = 4 * self.width
        values = _read(self._values, np.float32, (last - first) * self.width, first * row_bytes)
        return values.reshape(last - first, self.width)

    def close(self) -> None:
        """Gives the room on the disk back."""
        self._keys.close()
        self._values.close()


class RowSorter:
    """Takes rows in any order, gives them out sorted; a context manager that leaves no file.

    Memory: one run, or a few blocks of each run while they are merged, whatever the number of
    rows. Disk: what the rows take, twice while they are merged.

    Args:
        folder: On whose disk they are sorted.
        width: Values of a row, W.
        run_bytes: Memory of a run.
        open_file: Opens a file without a name in the folder.
    """

    def __init__(
        self,
        folder: Path,
        width: int,
        *,
        run_bytes: int = _RUN_BYTES,
        open_file: Callable[[Path], IO[bytes]] | None = None,
    ) -> None:
        self._folder = folder
        self._width = width
        row_bytes = _KEY_BYTES + 4 * (1 + width)
        size = max(run_bytes // row_bytes, 1)
        self._merged_rows = max(min(_MERGED_BYTES, run_bytes) // row_bytes, 1)
        self._hold(size)
        self._runs: list[tuple[int, int]] = []
        with os_errors_explained(folder):
            self._file = (open_file or _temporary_file)(folder)

    def _hold(self, size: int) -> None:
        """Makes room for the rows of a run."""
        self._num_held = 0
        self._keys_B: Int64Array = np.empty(size, np.int64)
        self._records_BV: Float32Array = np.empty((size, 1 + self._width), np.float32)
        self._tags_B: Int32Array = self._records_BV.view(np.int32)[:, 0]

    def __enter__(self) -> "RowSorter":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def add(
        self,
        keys: Int64Array,
        values_NW: Float32Array,
        *,
        age: int = 0,
        deleted_N: BoolArray | None = None,
    ) -> None:
        """Adds rows.

        Args:
            keys: int64 [N].
            values_NW: float32.
            age: Age of their file; of several rows of a key, the one of the least age stays.
            deleted_N: Which are tombstones; None: no one.

        Raises:
            RunFolderError: The disk is full or the folder cannot be written.
        """
        first = 0
        while first < len(keys):
            room = len(self._keys_B) - self._num_held
            last = min(first + room, len(keys))
            held = slice(self._num_held, self._num_held + last - first)
            self._keys_B[held] = keys[first:last]
            self._records_BV[held, 1:] = values_NW[first:last]
            # A row stands before a tombstone of the same file.
            self._tags_B[held] = 2 * age
            if deleted_N is not None:
                self._tags_B[held] += deleted_N[first:last]
            self._num_held += last - first
            if self._num_held == len(self._keys_B):
                self._write_run()
            first = last

    def _write_run(self) -> None:
        num_rows = self._num_held
        # Rows of one key may stand in any order: `_newest_of` looks at the tags.
        order = np.argsort(self._keys_B[:num_rows])
        with os_errors_explained(self._folder):
            self._runs.append((self._file.tell(), num_rows))
            for column in (self._keys_B, self._records_BV):
                for first in range(0, num_rows, BLOCK_ROWS):
                    _write(self._file, column[order[first : first + BLOCK_ROWS]])
        self._num_held = 0

    def finish(self) -> SortedRows:
        """The rows of all keys; no more can be added.

        Raises:
            RunFolderError: The disk is full or the folder cannot be written.
            ValueError: A key stands twice in rows of one age.
        """
        if self._num_held:
            self._write_run()
        self._hold(0)
        most_rows = sum(num_rows for _, num_rows in self._runs)
        block_rows = max(self._merged_rows // max(len(self._runs), 1), 1)
        with os_errors_explained(self._folder):
            self._file.flush()
            found = SortedRows(self._folder, self._width, most_rows=most_rows)
            try:
                runs = [self._read_run(offset, size, block_rows) for offset, size in self._runs]
                for block in _newest_rows(merge_blocks(runs, BLOCK_ROWS)):
                    found.append(block)
                found.finish()
            except BaseException:
                found.close()
                raise
        return found

    def _read_run(self, offset: int, num_rows: int, block_rows: int) -> Iterator[RowBlock]:
        size = 1 + self._width
        records = offset + _KEY_BYTES * num_rows
        for first in range(0, num_rows, block_rows):
            count = min(block_rows, num_rows - first)
            keys = _read(self._file, np.int64, count, offset + _KEY_BYTES * first)
            words = _read(self._file, np.float32, count * size, records + 4 * size * first)
            yield RowBlock(keys, words.reshape(count, size))


def _newest_rows(blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
    """The row of each key with the least tag, without it; none if that is a tombstone."""
    held: RowBlock | None = None
    for block in blocks:
        keys, records = block.keys, block.values
        if held is not None:
            keys = np.concatenate([held.keys, keys])
            records = np.concatenate([held.values, records])
        # Rows of the last key may go on in the next block.
        end = int(np.searchsorted(keys, keys[-1]))
        held = RowBlock(keys[end:].copy(), records[end:].copy())
        yield _newest_of(keys[:end], records[:end])
    if held is not None:
        yield _newest_of(held.keys, held.values)


def _newest_of(keys: Int64Array, records: Float32Array) -> RowBlock:
    tags: Int32Array = records.view(np.int32)[:, 0]
    order = np.lexsort((tags, keys))
    keys, tags = keys[order], tags[order]
    same = keys[1:] == keys[:-1]
    twice = np.flatnonzero(same & (tags[1:] == tags[:-1]))
    if len(twice):
        raise ValueError(f"key {keys[twice[0]]} stands twice")
    chosen = (tags & 1) == 0
    chosen[1:] &= ~same
    return RowBlock(keys[chosen], records[order[chosen], 1:])


def _spans(ascending: Int64Array, gap: int) -> Iterator[tuple[int, int]]:
    """Bounds of stretches within which no number is more than `gap` above the one before."""
    if len(ascending):
        cuts = (np.flatnonzero(np.diff(ascending) > gap) + 1).tolist()
        yield from zip([0, *cuts], [*cuts, len(ascending)], strict=True)


def _temporary_file(folder: Path) -> IO[bytes]:
    """A file without a name."""
    return tempfile.TemporaryFile(dir=folder)


def _write(file: IO[bytes], array: npt.NDArray[Any]) -> None:
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _read(file: IO[bytes], dtype: type[Item], count: int, offset: int) -> npt.NDArray[Item]:
    """Numbers from a place of a file; does not move it."""
    num_bytes = count * np.dtype(dtype).itemsize
    content = os.pread(file.fileno(), num_bytes, offset)
    if len(content) != num_bytes:
        raise OSError(f"{len(content)} of {num_bytes} bytes could be read")
    return np.frombuffer(content, dtype)
