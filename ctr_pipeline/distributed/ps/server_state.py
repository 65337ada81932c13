"""What one parameter server holds: rows, its range of the dense parameters, bitmaps of both.

Not safe to call from several threads: `core` sees to that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ctr_pipeline.distributed.coordination.messages import (
    MoveRequest,
    PartitionLoads,
    RestoreRequest,
    SnapshotRequest,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.placement import Placement, balanced_placement
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.ps.applied_batches import AppliedBatches, Units
from ctr_pipeline.distributed.ps.dense import (
    DenseCopy,
    DenseRange,
    save_copy,
)
from ctr_pipeline.distributed.ps.merging import (
    RowGradients,
    merge_dense,
    merge_rows,
)
from ctr_pipeline.distributed.ps.moving import Arrived, Outgoing
from ctr_pipeline.distributed.ps.ownership import are_owned
from ctr_pipeline.distributed.ps.partition_counts import PartitionCounts
from ctr_pipeline.distributed.rpc.packed import MovedRows
from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.counts import unpack_counts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.kernels.ranges import RangeRunner

_SAME_VALUES = 1e-5
"""Initial values that differ by less, absolutely or relatively, are of one model: processors round
differently."""

InitialDense = Literal["taken", "had", "close", "other"]
"""What became of initial dense values: they were taken; they were there before, or those of a cut;
values close to them were there before; others were."""
ROWS_CLEANED = 1 << 13
"""Rows that are looked at while others wait."""


@dataclass(frozen=True)
class ServerGradients:
    """Gradients of one batch, as far as one server is concerned.

    Attributes:
        step: Step of the batch, from 1.
        learning_rate_factor: On every learning rate.
        rows: Numbers of the server's rows, each key once.
        dense: float32, of the server's range.
    """

    batch: BatchId
    step: int
    learning_rate_factor: float
    num_examples: int
    rows: RowGradients
    dense: Float32Array


class Cut:
    """A server's part of a cut at its instant; its files are written later.

    Args:
        snapshot: Snapshot of the rows, begun; None if there are no tables.
        dense: The range.
    """

    def __init__(
        self, snapshot: RowSnapshot | None, dense: DenseCopy, applied: AppliedBatches
    ) -> None:
        self.snapshot = snapshot
        self.dense = dense
        self._applied = applied

    @property
    def bitmaps(self) -> tuple[TaskBitmap, ...]:
        """Batches that it holds."""
        return self._applied.to_messages()


class ServerState:
    """Rows, dense range and bitmaps of one server.

    Args:
        threads: Threads that work on rows.

    Attributes:
        store: The rows; None: the job has no tables.
        width: Values in a row.
        range: First place of the dense range and the one after its last.
        outgoing: The move by which partitions leave; None: there is none.
        applied: Bitmaps.
        num_evicted: Rows removed because nothing has updated them for long.
        counts: What its partitions serve.
    """

    def __init__(self, spec: JobSpec, index: int, *, threads: int) -> None:
        self._spec = spec
        self._index = index
        self._storage = CutStorage.at(spec.checkpoints_folder)
        self._optimizer = spec.dense_optimizer
        self.store = _build_store(spec, threads)
        self._table_sizes = np.array([table.num_ids for table in spec.tables], np.int64)
        self._dense: DenseRange | None = None
        self._initial_dense: Float32Array | None = None
        self.width = sum(segment.dim for segment in spec.segments)
        self._take_place(balanced_placement(spec))
        self.applied = AppliedBatches(Units(self._partitions, (self.range,)))
        self.outgoing: Outgoing | None = None
        self._has_foreign_rows = False
        self.num_evicted = 0
        self.counts = PartitionCounts(spec.num_partitions, len(spec.tables))

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return 0 if self.store is None else self.store.num_rows

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory of the rows and of what finds them."""
        return 0 if self.store is None else self.store.memory_bytes()

    @property
    def spilled_bytes(self) -> int:
        """Bytes of rows that lie in a file, beyond the memory limit."""
        return 0 if self.store is None else self.store.spilled_bytes()

    @property
    def has_dense(self) -> bool:
        """Whether dense values were given or restored."""
        return self._dense is not None

    def owns(self, keys: Int64Array, partitions_U: Int32Array) -> bool:
        """Whether all keys are ids of their tables, in partitions of this server."""
        return are_owned(
            keys,
            partitions_U,
            self._table_sizes,
            self._is_owned_P,
        )

    def partitions_of(self, keys: Int64Array) -> Int32Array:
        """Partition of each key, int32 [U]."""
        return partitions_of(keys, self._spec.num_partitions)

    def partition_loads(self) -> PartitionLoads:
        """What each partition holds and serves; needs no lock."""
        rows = None if self.store is None else self.store.rows
        return self.counts.loads(rows, self._partitions)

    def read_rows(self, keys: Int64Array, *, create: bool) -> Float32Array:
        """Values by key, float32 [U, W]; zeros for a key without a row.

        Raises:
            TrainingError, RunFolderError: There is no room for the new rows, in memory or on disk.
        """
        if self.store is None:
            return np.empty((0, self.width), np.float32)
        if create and self.outgoing is not None:
            self.outgoing.note(keys, self.partitions_of(keys))
        return self.store.read_rows(keys, create=create)

    def dense_values(self) -> Float32Array:
        """The dense range, float32; later updates leave it as it is."""
        return self._given_dense().copy_values()

    def initialise_dense(self, values: Float32Array) -> InitialDense:
        """Takes the initial dense values of the first caller."""
        if self._dense is None:
            self._dense = DenseRange(self.applied.units.pieces, self._optimizer, values)
            self._initial_dense = values.copy()
            return "taken"
        initial = self._initial_dense
        if initial is None or np.array_equal(initial, values):
            return "had"
        is_close = np.allclose(initial, values, rtol=_SAME_VALUES, atol=_SAME_VALUES)
        return "close" if is_close else "other"

    def apply(self, batches: Sequence[ServerGradients]) -> int:
        """Makes one update of batches, where they were not applied yet, and marks them.

        Of several, gradients of rows and examples add up, dense gradients become their mean by
        examples, and step and learning rate are those of the latest.

        Returns:
            Keys whose gradients were dropped, because they have no row.
        """
        # The result of a round must not depend on the order in which its pushes arrived.
        batches = sorted(batches, key=lambda item: (item.batch.epoch, item.step, item.batch.batch))
        missing = [self.applied.missing_units(item.batch) for item in batches]
        latest = batches[-1]
        num_vanished = 0
        if self.store is not None:
            rows = merge_rows(
                [
                    item.rows
                    if flags.all()
                    else item.rows.only(
                        self.applied.missing_keys(flags, self.partitions_of(item.rows.keys))
                    )
                    for item, flags in zip(batches, missing, strict=True)
                ]
            )
            if self.outgoing is not None:
                self.outgoing.note(rows.keys, self.partitions_of(rows.keys))
            num_examples = sum(item.num_examples for item in batches)
            num_vanished = self._update_rows(self.store, rows, latest, num_examples)
        dense = self._given_dense()
        for piece, (low, high) in enumerate(dense.bounds):
            moving = [
                item
                for item, flags in zip(batches, missing, strict=True)
                if self.applied.missing_pieces(flags)[piece]
            ]
            if moving:
                dense.update(
                    piece,
                    merge_dense(
                        [item.dense[low:high] for item in moving],
                        [item.num_examples for item in moving],
                    ),
                    step=self._spec.earlier_steps + latest.step,
                    learning_rate_factor=latest.learning_rate_factor,
                )
        for item in batches:
            self.applied.mark(item.batch)
        return num_vanished

    def prepare_cut(self, cut: int) -> RowSnapshot | None:
        """What a cut needs before its instant: memory, compiled kernels."""
        return None if self.store is None else RowSnapshot(self.store, cut=cut)

    def evict(self, oldest_step: int) -> None:
        """Removes rows last updated before a step; takes seconds, and nobody else may look on."""
        if self.store is not None:
            num_evicted = self.store.evict(oldest_step)
            if num_evicted:
                self.num_evicted += num_evicted
                self.counts.rows_moved()

    def begin_cut(self, request: SnapshotRequest, snapshot: RowSnapshot | None) -> Cut:
        """The instant of a cut."""
        if snapshot is not None and self.store is not None:
            knows_changes = request.parent > 0 and self.store.rows.delta_after == request.parent
            snapshot.begin(full=request.full or not knows_changes)
        return Cut(snapshot, self._given_dense().copy(), self.applied.copy())

    def write_cut(self, request: SnapshotRequest, cut: Cut) -> tuple[CutFile, ...]:
        """Writes the files of a cut, durably; updates may go on.

        Raises:
            RunFolderError: The disk is full or the folder cannot be written.
            StorageError: The folder is not there.
            TrainingError: A value is not finite.
            SnapshotAbandonedError: A restore gave it up.
        """
        self._storage.require_there()
        storage = self._storage.writing(request.prefix)
        files: tuple[CutFile, ...] = ()
        if cut.snapshot is not None:
            files = cut.snapshot.write(
                storage,
                num_partitions=self._spec.num_partitions,
                partitions=self._partitions,
            )
        return files + save_copy(
            storage,
            cut.dense,
            self._optimizer,
            cut=request.cut,
            first=self.range[0],
            num_dense=self._spec.num_dense,
        )

    def restore(self, request: RestoreRequest) -> None:
        """Replaces everything by what a cut has of this server's partitions and range.

        Raises:
            CheckpointError: A file is proven missing, damaged or of another job.
            StorageError: A file cannot be read at this moment.
            TrainingError, RunFolderError: There is no room for the rows, in memory or on disk.
        """
        self._take_place(request.placement or balanced_placement(self._spec))
        self.outgoing = None
        self._has_foreign_rows = False
        applied = AppliedBatches.restored(self._spec, self.placement, self._index, request)
        if self.store is not None:
            owned = frozenset(self._partitions)
            restore_rows(
                self.store,
                self._storage,
                [chain.files for chain in request.partitions if chain.partition in owned],
                num_partitions=self._spec.num_partitions,
                cut=request.cut,
            )
        self.counts.rows_moved()
        self._dense = self._initial_dense = None
        if request.cut > 0:
            self._dense = DenseRange.restored(
                applied.units.pieces,
                self._optimizer,
                self._storage,
                request.dense,
                self._spec.num_dense,
            )
        elif self.range[0] == self.range[1]:
            # There is nothing that a worker could give it.
            self._dense = DenseRange((self.range,), self._optimizer, np.empty(0, np.float32))
        self.applied = applied

    def begin_empty(self, placement: Placement) -> None:
        """Holds nothing, as a server that the placement gives nothing."""
        self.restore(RestoreRequest(0, 0, (), (), (), placement=placement))

    def begin_outgoing(self, move: MoveRequest) -> None:
        """Notes from now on what changes in partitions that are to move away."""
        self.outgoing = Outgoing(move, self._spec.num_partitions)

    def dense_records(self) -> Float32Array:
        """See `DenseRange.records`."""
        return self._given_dense().records()

    def put_rows(self, moved: MovedRows) -> None:
        """Takes rows in that another server shows; nobody is served them yet.

        Raises:
            TrainingError, RunFolderError: There is no room for them.
            ValueError: They are not of this job.
        """
        if self.store is None or not len(moved.keys):
            return
        self._has_foreign_rows = True
        self.store.rows.put(moved.keys.copy(), moved.records, RangeRunner(1))

    def adopt(self, placement: Placement, arrived: Arrived | None) -> bool:
        """Holds what another placement says.

        Args:
            placement: The new one.
            arrived: What came with the partitions that it gives this server; None if none.

        Returns:
            Whether it holds something else than before.
        """
        before = self._partitions, self.range
        self._take_place(placement)
        self.outgoing = None
        if before == (self._partitions, self.range):
            return False
        pieces = self.applied.units.pieces
        if arrived is not None and arrived.dense is not None:
            self._dense = self._given_dense().joined(arrived.state.pieces, arrived.dense)
            pieces = self._dense.pieces
        elif before[1] != self.range:
            self._dense = DenseRange((self.range,), self._optimizer, np.empty(0, np.float32))
            pieces = (self.range,)
        units = Units(self._partitions, pieces)
        self.applied = self.applied.regrouped(units, None if arrived is None else arrived.state)
        # Those that came are its own now; those that went are not any more.
        self._has_foreign_rows = not set(before[0]) <= set(self._partitions)
        return True

    def find_foreign_rows(self, end: int | None) -> tuple[int, Int32Array]:
        """The last rows before one that this server does not hold; rows may be made meanwhile.

        Args:
            end: The row to stop before; None: after the last one.

        Returns:
            The first row that was looked at, and the foreign ones from there on, ascending.
        """
        if self.store is None:
            return 0, np.empty(0, np.int32)
        rows = self.store.rows
        end = rows.num_rows if end is None else end
        first = max(0, end - ROWS_CLEANED)
        is_foreign = ~self._is_owned_P[self.partitions_of(rows.keys_N[first:end].copy())]
        return first, (first + np.flatnonzero(is_foreign)).astype(np.int32)

    def take_rows_out(self, rows_U: Int32Array) -> bool:
        """Removes rows; see `RowStorage.take_out`."""
        if self.store is None:
            return True
        with self.store.rows.lock:
            return self.store.rows.take_out(rows_U)

    def forget_foreign_rows(self) -> None:
        """All that were there are gone."""
        self._has_foreign_rows = False
        self.counts.rows_moved()

    @property
    def has_foreign_rows(self) -> bool:
        """Whether there are rows that this server does not hold, of a move that is over or void."""
        return self._has_foreign_rows

    def _take_place(self, placement: Placement) -> None:
        self.placement = placement
        self._partitions = placement.partitions_of(self._index)
        self.range = placement.range_of(self._index)
        self._is_owned_P = np.array(placement.owners, np.int64) == self._index

    def _update_rows(
        self, store: EmbeddingStore, rows: RowGradients, latest: ServerGradients, num_examples: int
    ) -> int:
        return store.apply_gradients(
            rows.keys,
            rows.sums,
            rows.num_occurrences,
            step=self._spec.earlier_steps + latest.step,
            learning_rate_factor=latest.learning_rate_factor,
            num_examples=num_examples,
        )

    def _given_dense(self) -> DenseRange:
        if self._dense is None:
            raise ValueError("there are no dense values yet")
        return self._dense


def _build_store(spec: JobSpec, threads: int) -> EmbeddingStore | None:
    """An empty store for any rows of the job; None if it has no tables."""
    if not spec.tables:
        return None
    store = EmbeddingStore(
        spec.tables,
        spec.segments,
        seed=spec.course.seed,
        threads=threads,
        admit_after=spec.rows.admit_after,
        memory_limit=None
        if spec.rows.memory_limit_bytes is None
        else MemoryLimit(
            spec.rows.memory_limit_bytes, Path(spec.spill_folder or spec.checkpoints_folder)
        ),
    )
    if spec.counts_file:
        # Mapped, and looked up only for rows made here: no server reads all counts into memory.
        counts = np.load(spec.counts_file, mmap_mode="r")
        sizes = [table.num_ids for table in spec.tables]
        store.set_training_counts(unpack_counts(counts, sizes))
    return store
