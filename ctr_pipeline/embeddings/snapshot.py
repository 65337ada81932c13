"""A consistent snapshot of rows at one instant, written while updates go on.

Copy-on-write by row. Beginning a snapshot copies nothing. A writer walks the rows in creation order
and copies them in chunks, each under the store's lock for about a millisecond; an update first
saves the old records of those of its rows that the writer has not come to. The marks of the rows
(see `log_kernels`) tell both what was saved and, for a delta, what is due at all.

Saved records go to a few buffers. The writer takes a buffer as soon as something is in it; when all
are full the update waits, so that memory is bounded however slow the disk is. When nothing at all
is written for a while, the update gives the snapshot up.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np

from ctr_pipeline.embeddings import log_kernels
from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.log_chain import CutFile, LogKind
from ctr_pipeline.embeddings.row_log import RowLogWriter, prepare_writing
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.kernels.ranges import RangeRunner

_SAVED_BYTES = 64 << 20
_NUM_BUFFERS = 8
_CHUNK_BYTES = 3 << 19
_ROWS_LOOKED_AT = 1 << 20
_TIMEOUT_SECONDS = 1.0


class SnapshotAbandonedError(RuntimeError):
    """A snapshot was given up by another thread while it was written."""


class _SavedRecords:
    """Records as they were at the instant, with their keys."""

    def __init__(self, capacity: int, record_floats: int) -> None:
        self.records_SR: Float32Array = np.empty((capacity, record_floats), np.float32)
        self.keys_S: Int64Array = np.empty(capacity, np.int64)
        self.size = 0


class RowSnapshot:
    """One snapshot: `begin`, then `write`, or `abandon` at any time.

    Memory beside the store: `saved_bytes` at most, of which only what is used is committed, and
    the buffers of `RowLogWriter`, 32 MiB; not a copy of the store.

    An update that waits for a buffer gives up the store's lock meanwhile. Whoever needs several
    updates and `begin` to exclude each other holds a lock of its own around them, and waits in
    `await_room` before it takes that.

    Args:
        cut: Number of the cut.
        saved_bytes: Memory of all buffers of saved records together.
        chunk_bytes: Bytes of records copied at a time, the lock held.
        timeout_seconds: An update that waits so long for a buffer gives the snapshot up.

    Attributes:
        cut: Number of the cut.
        kind: `base` or `delta`, once begun.
        dense: Copies of the dense values and slots at the instant, once begun with them.
        longest_pause_seconds: For how long the store's lock was held, or an update waited, at most.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        *,
        cut: int,
        saved_bytes: int = _SAVED_BYTES,
        chunk_bytes: int = _CHUNK_BYTES,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._store = store
        self._rows = store.rows
        self.cut = cut
        capacity = max(saved_bytes // (_NUM_BUFFERS * (store.row_bytes + 8)), 1)
        self._free = [
            _SavedRecords(capacity, store.layout.record_floats) for _ in range(_NUM_BUFFERS)
        ]
        self._filling = self._free.pop()
        self._filled: list[_SavedRecords] = []
        self._room = threading.Condition(self._rows.lock)
        self._chunk_rows = max(chunk_bytes // store.row_bytes, 1)
        self._timeout_seconds = timeout_seconds
        self._given_up = ""
        self._num_rows = 0
        self._first_unwritten = 0
        self.kind: LogKind = "base"
        self.dense: tuple[Float32Array, Float32Array] | None = None
        self._evicted: Int64Array = np.empty(0, np.int64)
        self.longest_pause_seconds = 0.0
        prepare_writing(store)
        self._save(np.empty(0, np.int32), 0)

    def begin(self, *, full: bool, dense: DenseParameters | None = None) -> None:
        """The instant: what is written later is the rows as they are now.

        Takes the store's lock for microseconds, and for as long as a copy of `dense` takes.

        Args:
            full: All rows; else those changed since the last cut, where that is known.
            dense: Copied.

        Raises:
            RuntimeError: Another snapshot is being written.
        """
        rows = self._rows
        with rows.lock:
            started = time.perf_counter()
            if rows.observer is not None:
                raise RuntimeError("another snapshot of the same rows is being written")
            if rows.delta_after is None:
                # Marks may be left of a snapshot that was given up.
                rows.marks_N[: rows.num_rows] = 0
                full = True
            self.kind = "base" if full else "delta"
            evicted = rows.take_evicted(RangeRunner(1))
            # A base has no need to say what it does not hold.
            self._evicted = evicted[:0] if full else evicted
            rows.delta_after = None
            rows.era = 3 - rows.era
            rows.observer = self
            self._num_rows = rows.num_rows
            if dense is not None:
                self.dense = dense.values.copy(), dense.slots.copy()
            self._note_pause(started)

    def has_room(self, num_rows: int) -> bool:
        """Whether an update of so many rows would find empty buffers; needs no lock.

        The writer may take the one that is being filled at any time, so that one does not count. Of
        more rows than the others hold: whether all others are empty.
        """
        if self._rows.observer is not self or self._first_unwritten == self._num_rows:
            return True
        capacity = len(self._filling.keys_S)
        return len(self._free) * capacity >= min(num_rows, (_NUM_BUFFERS - 1) * capacity)

    def await_room(self, num_rows: int) -> None:
        """Waits until `has_room`; gives the snapshot up once the disk has stalled for too long."""
        with self._rows.lock:
            started = time.perf_counter()
            while not self.has_room(num_rows):
                self._await_buffer()
            self._note_pause(started)

    def before_change(self, rows_U: Int32Array) -> None:
        """Saves records that are still to be written, then marks the rows as changed."""
        rows = self._rows
        place = 0
        while rows.observer is self and self._first_unwritten < self._num_rows:
            place = self._save(rows_U, place)
            if place == len(rows_U):
                return
            started = time.perf_counter()
            while rows.observer is self and not self._free:
                self._await_buffer()
            self._note_pause(started)
            if rows.observer is self and self._filling.size == len(self._filling.keys_S):
                self._filled.append(self._filling)
                self._filling = self._free.pop()
        log_kernels.mark_rows(rows_U[place:], rows.marks_N, rows.era)

    def _await_buffer(self) -> None:
        # Where the disk writes nothing meanwhile, training does not stand still for it.
        if not self._room.wait(self._timeout_seconds):
            self.abandon(f"the disk has stalled for {self._timeout_seconds:g} s")

    def _save(self, rows_U: Int32Array, begin: int) -> int:
        """Saves and marks rows from a place on; where to go on once there is room."""
        rows, saved = self._rows, self._filling
        place, saved.size = log_kernels.save_rows(
            rows_U,
            begin,
            rows.records_NR,
            rows.keys_N,
            rows.marks_N,
            rows.era,
            self._first_unwritten,
            self._num_rows,
            self.kind == "base",
            saved.records_SR,
            saved.keys_S,
            saved.size,
        )
        return int(place)

    def write(
        self, storage: CutStorage, *, num_partitions: int, partitions: Sequence[int]
    ) -> tuple[CutFile, ...]:
        """Writes the snapshot and makes it durable; updates may go on in other threads.

        Args:
            storage: Where the files go.
            partitions: All that the store has rows of.

        Raises:
            RunFolderError: The disk is full or the folder cannot be written; the snapshot is
                given up and the next one will be a base.
            SnapshotAbandonedError: Another thread gave it up; says why.
        """
        writer = RowLogWriter(
            storage,
            self._store,
            cut=self.cut,
            kind=self.kind,
            num_partitions=num_partitions,
            partitions=partitions,
        )
        try:
            while self.write_some(writer):
                pass
        except BaseException:
            self.abandon()
            writer.abandon()
            raise
        return self.finish(writer)

    def write_some(self, writer: RowLogWriter) -> bool:
        """Writes saved records, or else a chunk of rows; False when nothing is left."""
        with self._rows.lock:
            started = time.perf_counter()
            self._check_not_abandoned()
            saved = self._take_saved()
            if saved is None:
                if self._first_unwritten == self._num_rows:
                    return False
                self._first_unwritten = writer.put_rows(
                    self._rows,
                    full=self.kind == "base",
                    begin=self._first_unwritten,
                    end=min(self._num_rows, self._first_unwritten + _ROWS_LOOKED_AT),
                    most_rows=self._chunk_rows,
                )
            self._note_pause(started)
        if saved is not None:
            self._write_saved(saved, writer)
        writer.flush()
        return True

    def _take_saved(self) -> _SavedRecords | None:
        if self._filled:
            return self._filled.pop(0)
        if self._filling.size:
            saved, self._filling = self._filling, self._free.pop()
            return saved
        return None

    def _write_saved(self, saved: _SavedRecords, writer: RowLogWriter) -> None:
        records, keys = saved.records_SR[: saved.size], saved.keys_S[: saved.size]
        place = 0
        while (place := writer.put_records(records, keys, place)) < len(keys):
            writer.flush()
        saved.size = 0
        with self._rows.lock:
            self._free.append(saved)
            self._room.notify_all()

    def abandon(self, reason: str = "the snapshot was given up while it was written") -> None:
        """Gives the snapshot up, from any thread; updates go on, the next snapshot is a base."""
        with self._rows.lock:
            if self._rows.observer is self:
                self._rows.observer = None
                self._given_up = reason
                self._room.notify_all()

    def finish(self, writer: RowLogWriter) -> tuple[CutFile, ...]:
        """Makes what was written durable; from now on a delta may follow it."""
        try:
            if len(self._evicted):
                writer.put_deleted(self._evicted)
            files = writer.finish()
            with self._rows.lock:
                self._check_not_abandoned()
                self._rows.observer = None
                self._rows.delta_after = self.cut
        except BaseException:
            self.abandon()
            writer.abandon()
            raise
        return files

    def _check_not_abandoned(self) -> None:
        if self._rows.observer is not self:
            raise SnapshotAbandonedError(self._given_up)

    def _note_pause(self, started: float) -> None:
        seconds = time.perf_counter() - started
        self.longest_pause_seconds = max(self.longest_pause_seconds, seconds)
