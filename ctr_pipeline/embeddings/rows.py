"""The rows themselves: records in creation order, their keys, and the index from key to row."""

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ctr_pipeline.embeddings import log_kernels, row_kernels
from ctr_pipeline.embeddings.arrays import (
    BoolArray,
    Float32Array,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt64Array,
)
from ctr_pipeline.embeddings.key_index import KeyIndex
from ctr_pipeline.embeddings.layout import RowLayout
from ctr_pipeline.embeddings.reserved import give_back, reserve_array
from ctr_pipeline.embeddings.spilling import MemoryLimit, SpilledPart
from ctr_pipeline.embeddings.unique import sorted_distinct
from ctr_pipeline.embeddings.update_kernels import HEADER_COUNT, HEADER_LAST_SEEN
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.kernels.ranges import RangeRunner

# Rows are numbered by int32.
MOST_ROWS = (1 << 31) - 2
_SMALLEST_RESERVATION = 1 << 16
_INT32_MAX = (1 << 31) - 1


class RowObserver(Protocol):
    """An observer that has to know of rows before they change."""

    def before_change(self, rows_U: Int32Array) -> None:
        """Marks rows that are about to change, -1 for none; called with the writer lock held."""


class RowStorage:
    """Records of one layout, found by key.

    Rows are numbered in order of creation and move in `evict` and `take_out` only: address space
    for all of them is reserved at the start, so growth copies nothing. The index grows a part at a
    time.

    A byte a row marks the rows made or changed since the last snapshot; see `snapshot`.

    Args:
        max_rows: Rows that there can be.
        table_seeds_T: uint64, the seed of each table's initial values.
        memory_limit: Bytes of records in memory; None: no limit. Rows made first are those in
            memory: an id that occurs often occurs early.

    Attributes:
        lock: Held by whoever changes rows; a snapshot copies rows under it.
        observer: The snapshot that is being written, if there is one.
        era: The mark of rows now, 1 or 2.
        delta_after: The cut since which the marks, and what was evicted, tell all changes; None if
            they tell none.
    """

    def __init__(
        self,
        layout: RowLayout,
        max_rows: int,
        table_seeds_T: UInt64Array,
        *,
        memory_limit: MemoryLimit | None = None,
    ) -> None:
        self.layout = layout
        self._table_seeds_T = table_seeds_T
        self.records_NR, self.keys_N, self.marks_N = self._reserve(min(max_rows, MOST_ROWS))
        self.headers_NR: Int32Array = self.records_NR.view(np.int32)
        self._spilled = None if memory_limit is None else SpilledPart(self.records_NR, memory_limit)
        self._index = KeyIndex(self.keys_N)
        self.num_rows = 0
        self.lock = threading.RLock()
        self.observer: RowObserver | None = None
        self.era = 1
        self.delta_after: int | None = None
        self._evicted: Int64Array = np.empty(0, np.int64)
        self._num_rows_evicted_to = 0

    def _reserve(self, capacity: int) -> tuple[Float32Array, Int64Array, UInt8Array]:
        """Reserves for the bound; where the system refuses, for the most that it gives."""
        while True:
            try:
                records = reserve_array(
                    (capacity, self.layout.record_floats), np.float32, purpose="embedding rows"
                )
                keys = reserve_array((capacity,), np.int64, purpose="embedding keys")
                marks = reserve_array((capacity,), np.uint8, purpose="marks of embedding rows")
            except TrainingError:
                if capacity <= _SMALLEST_RESERVATION:
                    raise
                capacity //= 2
            else:
                return records, keys, marks

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        return len(self.keys_N)

    @property
    def bytes_a_row(self) -> int:
        """Bytes of a row's record, key and mark; its share of the index, 16 to 48, comes on top."""
        return self.layout.record_bytes + self.keys_N.itemsize + self.marks_N.itemsize

    @property
    def index_bytes(self) -> int:
        """Bytes of what finds rows."""
        return self._index.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of records, keys, marks and index, wherever they lie."""
        return self.num_rows * self.bytes_a_row + self.index_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of records, among `num_bytes`, that lie in a file, beyond the memory limit."""
        return self.spilled_bytes_of(self.num_rows)

    def spilled_bytes_of(self, num_rows: int) -> int:
        """Bytes of records that lie in a file if there are so many rows."""
        num_bytes = num_rows * self.layout.record_bytes
        return 0 if self._spilled is None else self._spilled.limit.spilled_bytes(num_bytes)

    def find(self, keys_U: Int64Array, runner: RangeRunner) -> tuple[Int32Array, int]:
        """Rows of keys, int32 [U], -1 for none, and how many there are none of."""
        return self._index.find(keys_U, runner)

    def find_or_create(
        self,
        keys_U: Int64Array,
        runner: RangeRunner,
        counts_of: Callable[[Int64Array], Int64Array],
        *,
        admit_after: int = 1,
    ) -> Int32Array:
        """Rows of keys, int32 [U]; a key without a row gets a fresh one.

        Args:
            keys_U: int64.
            runner: Threads.
            counts_of: Training counts of keys, for the headers of fresh rows.
            admit_after: A key whose training count is below this gets none, and -1 is returned; 1
                admits every key, also where no counts are known.

        Raises:
            TrainingError, RunFolderError: There is no room for so many rows, in memory or on disk.
        """
        rows_U, num_missing = self.find(keys_U, runner)
        if num_missing and admit_after > 1:
            missing = np.flatnonzero(rows_U < 0)
            admitted = missing[counts_of(keys_U[missing]) >= admit_after]
            if len(admitted):
                # Among these alone all are made.
                rows_U[admitted] = self.find_or_create(keys_U[admitted], runner, counts_of)
        elif num_missing:
            self._make_room(num_missing)
            before = self.num_rows
            self.num_rows = self._index.add_missing(keys_U, rows_U, before)

            def work(first: int, last: int) -> None:
                row_kernels.write_fresh_rows(
                    self.records_NR,
                    self.keys_N,
                    self.layout.fresh_GR,
                    self.layout.plan_GSP,
                    self.layout.draws_GSD,
                    self.layout.groups_T,
                    self._table_seeds_T,
                    before + first,
                    before + last,
                )

            runner.run(work, self.num_rows - before)
            counts = counts_of(self.keys_N[before : self.num_rows])
            self.headers_NR[before : self.num_rows, HEADER_COUNT] = np.minimum(counts, _INT32_MAX)
            self.marks_N[before : self.num_rows] = self.era
        return rows_U

    def append(self, keys: Int64Array) -> int:
        """Gives keys that have no row the next rows, records yet to be written, unmarked.

        Returns:
            The first of the new rows.

        Raises:
            TrainingError, RunFolderError: There is no room for so many rows, in memory or on disk.
            ValueError: A key stands twice.
        """
        before = self.num_rows
        rows_U, num_missing = self.find(keys, RangeRunner(1))
        self._make_room(num_missing)
        self.num_rows = self._index.add_missing(keys, rows_U, before)
        if self.num_rows != before + len(keys):
            raise ValueError("a key stands twice")
        self.marks_N[before : self.num_rows] = 0
        return before

    def put(self, keys_U: Int64Array, records_UR: Float32Array, runner: RangeRunner) -> None:
        """Makes rows what another storage of the same layout has under these distinct keys.

        Raises:
            TrainingError, RunFolderError: There is no room for so many rows, in memory or on disk.
            ValueError: A key stands twice, or a record is not of this layout.
        """
        rows_U, _ = self.find(keys_U, runner)
        is_new = rows_U < 0
        first = self.append(keys_U[is_new])
        rows_U[is_new] = np.arange(first, self.num_rows, dtype=np.int32)
        self.before_change(rows_U)
        self.records_NR[rows_U] = records_UR

    def before_change(self, rows_U: Int32Array) -> None:
        """Notes that rows are about to change, -1 for none; the writer lock is held.

        May wait, the lock given up meanwhile, for a snapshot to write the records it still needs.
        """
        if self.observer is not None:
            self.observer.before_change(rows_U)
        else:
            log_kernels.mark_rows(rows_U, self.marks_N, self.era)

    def _make_room(self, num_missing: int) -> None:
        self.require_room(self.num_rows + num_missing)
        self._index.make_room(self.num_rows, num_missing)

    def require_room(self, needed: int) -> None:
        """Makes sure that so many rows can be written.

        Raises:
            TrainingError: The system gave less address space than they need.
            RunFolderError: They pass the memory limit, and the disk is full or cannot be written.
        """
        if needed > self.capacity:
            raise TrainingError(
                f"{needed} embedding rows are needed, there is room for {self.capacity}",
                remedy="Lower vocabulary sizes, hash buckets or embedding_dim, add parameter "
                "servers, or allow the system to overcommit memory",
            )
        if self._spilled is not None:
            self._spilled.require(needed * self.layout.record_bytes)

    def evict(self, oldest_step: int) -> int:
        """Removes the rows whose last update was before a step; the others keep their order.

        Whoever holds numbers of rows must find them anew. A row that no update has reached yet
        stays: the update is on its way. The memory stays for new rows.

        Returns:
            How many are gone.

        Raises:
            RuntimeError: A snapshot of the rows is being written.
        """
        if self.observer is not None:
            raise RuntimeError("rows cannot be removed while a snapshot of them is written")
        if oldest_step <= 0:
            # As most cuts ask: looking at the headers of all rows would hold up updates.
            return 0
        last_seen = self.headers_NR[: self.num_rows, HEADER_LAST_SEEN]
        goes = (last_seen > 0) & (last_seen < oldest_step)
        num_evicted = int(np.count_nonzero(goes))
        if not num_evicted:
            return 0
        evicted = self.keys_N[: self.num_rows][goes]
        self._remove(goes)
        if self.delta_after is not None:
            # Some that were evicted before have a row again.
            earlier = self._evicted[self.find(self._evicted, RangeRunner(1))[0] < 0]
            # Sorted here, where nobody waits, and not at the instant of a cut.
            self._evicted = sorted_distinct(np.concatenate([earlier, evicted]))
            self._num_rows_evicted_to = self.num_rows
        return num_evicted

    def take_out(self, rows_U: Int32Array) -> bool:
        """Removes rows as if they had never been here: no delta tells of it.

        They are those of partitions that are another storage's to write. The last rows take their
        places; whoever holds numbers of rows must find them anew.

        Args:
            rows_U: int32, distinct, ascending.

        Returns:
            Whether it was done: not while the index grows, of which this call then does a part.

        Raises:
            RuntimeError: A snapshot of the rows is being written.
        """
        if self.observer is not None:
            raise RuntimeError("rows cannot be removed while a snapshot of them is written")
        table = self._index.whole_table()
        if table is None:
            return False
        self.num_rows = row_kernels.take_rows_out(
            rows_U, table, self.records_NR, self.keys_N, self.marks_N, self.num_rows
        )
        return True

    def _remove(self, goes: BoolArray) -> None:
        """Removes the rows that are named, one at least; the others keep their order."""
        place = row_kernels.keep_rows(
            self.records_NR, self.keys_N, self.marks_N, goes, int(goes.argmax())
        )
        self.marks_N[place : self.num_rows] = 0
        self.num_rows = place
        self._index.rebuild(place)

    def take_evicted(self, runner: RangeRunner) -> Int64Array:
        """Keys that lost their row since this was last asked, and have none again.

        Complete only where changes since a cut are known at all; see `delta_after`.
        """
        keys, self._evicted = self._evicted, self._evicted[:0]
        if self.num_rows == self._num_rows_evicted_to:
            return keys
        return keys[self.find(keys, runner)[0] < 0]

    def clear(self) -> None:
        """Forgets all rows; their memory stays for new ones.

        Raises:
            RuntimeError: A snapshot of them is being written.
        """
        if self.observer is not None:
            raise RuntimeError("rows cannot be replaced while a snapshot of them is written")
        self.marks_N[: self.num_rows] = 0
        self.delta_after = None
        self._evicted = self._evicted[:0]
        self.num_rows = 0
        self._index.clear()

    def release(self) -> None:
        """Forgets all rows and returns their memory to the system."""
        self.clear()
        for array in (self.records_NR, self.keys_N, self.marks_N):
            give_back(array)
        if self._spilled is not None:
            self._spilled.release()

    def adopt(self, num_rows: int) -> None:
        """Takes over the first `num_rows` keys and records, written from outside; unmarked.

        Raises:
            ValueError: Two of them have the same key; no row is left then.
        """
        self.clear()
        self.num_rows = num_rows
        try:
            self._index.rebuild(num_rows)
        except ValueError:
            self.clear()
            raise
