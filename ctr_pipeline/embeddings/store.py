"""The embedding store: a batch's ids in, the values of their rows out, gradients back in.

Axes: B examples, F fields, P = B · F places, U distinct keys of a batch, W values of a row,
N rows, R float32 places of a record, T tables.

A step is `prepare` (any thread) → `locate` → `gather` → gradients by the caller → `update`. One
thread steps; `prepare` of the next batch and a snapshot may run beside it.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ctr_pipeline.embeddings import row_kernels, update_kernels
from ctr_pipeline.embeddings.arrays import (
    Float32Array,
    IdArray,
    Int32Array,
    Int64Array,
    empty_aligned,
)
from ctr_pipeline.embeddings.counts import Admission, IdCounts
from ctr_pipeline.embeddings.layout import plan_layout
from ctr_pipeline.embeddings.row_file import describe_rows, load_rows, save_rows
from ctr_pipeline.embeddings.row_update import RowUpdate
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.embeddings.unique import BatchPreparer, PreparedBatch
from ctr_pipeline.kernels.ranges import RangeRunner
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import ID_BITS, MAX_TABLES, TableSpec

# A unique row costs about as much as this many further occurrences.
_OCCURRENCES_A_ROW = 6


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a store.

    Attributes:
        keys: int64 [n], table << 44 | id, ascending.
        values: float32 [n, W].
    """

    keys: Int64Array
    values: Float32Array


class EmbeddingStore:
    """Rows of all tables, fused: one layout, one index, values and optimizer slots side by side.

    A row appears when training first asks for it; its initial values are a function of
    (seed, table name, id, position), whatever the order of batches and the number of threads. A row
    that was never trained reads as zeros.

    Args:
        tables: The tables; ids of table t are 0 … num_ids - 1. A store of no tables takes batches
            of no fields.
        segments: What rows are made of; a table may have segments of its own.
        seed: Seed of initial values.
        threads: Threads that `locate`, `gather` and `update` use; results do not depend on it.
        field_tables: Table of each field; None if field f has table f.
        admit_after: An id has a row only if it occurs at least so often in the training rows, which
            `set_training_counts` then has to tell before rows are made; a rarer one reads as zeros
            and learns nothing.
        memory_limit: Bytes of rows in memory; further rows lie in a file, with the same results.
            None: all lie in memory.

    Raises:
        ValueError: Tables or segments that cannot be.
        TrainingError: No address space for the rows.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        segments: Sequence[SegmentSpec],
        *,
        seed: int,
        threads: int,
        field_tables: Sequence[int] | None = None,
        admit_after: int = 1,
        memory_limit: MemoryLimit | None = None,
    ) -> None:
        names = [table.name for table in tables]
        if len(tables) > MAX_TABLES or len(set(names)) < len(names):
            raise ValueError(f"a store has at most {MAX_TABLES} tables, of distinct names")
        if field_tables is None:
            field_tables = range(len(tables))
        if not all(0 <= table < len(tables) for table in field_tables):
            raise ValueError(f"field_tables {list(field_tables)} name a table that is not there")
        self.tables = tuple(tables)
        self.layout = plan_layout(segments, self.tables)
        self.seed = seed
        self._preparer = BatchPreparer(self.tables, field_tables)
        self._runner = RangeRunner(threads)
        self._admission = Admission([table.num_ids for table in tables], admit_after)
        self._rows = RowStorage(
            self.layout,
            sum(table.num_ids for table in tables),
            np.array([_table_seed(seed, name) for name in names], np.uint64),
            memory_limit=memory_limit,
        )

    @property
    def width(self) -> int:
        """Values in a row, W."""
        return self.layout.width

    @property
    def num_rows(self) -> int:
        """Rows that training made."""
        return self._rows.num_rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's record: header, values, slots, padding."""
        return self.layout.record_bytes

    def memory_bytes(self) -> int:
        """Bytes in memory: records, keys, index and the working memory kept between calls."""
        return self._rows.num_bytes - self._rows.spilled_bytes + self._preparer.num_bytes

    def spilled_bytes(self) -> int:
        """Bytes of records that lie in a file, beyond the memory limit."""
        return self._rows.spilled_bytes

    @property
    def rows(self) -> RowStorage:
        """The rows themselves, for snapshots of them and for the row log."""
        return self._rows

    @property
    def training_counts(self) -> tuple[IdCounts, ...] | None:
        """How often ids occur in the training rows, of each table; None: nobody said."""
        return self._admission.counts

    def set_training_counts(self, counts: Sequence[IdCounts]) -> None:
        """Says how often ids occur in the training rows; for rows made from now on.

        Args:
            counts: Counts of each table; kept, not copied.

        Raises:
            ValueError: They are of other tables.
        """
        self._admission.set_counts(counts)

    def prepare(self, ids_BF: IdArray, num_valid: int) -> PreparedBatch:
        """Makes the ids of a batch unique; reads no rows, so it may run beside a step.

        Args:
            ids_BF: int32 or int64 [B, F].
            num_valid: The first so many rows count; the others are padding of any content.

        Raises:
            ValueError: An id is not in its table, or the array does not fit.
        """
        return self._preparer.prepare(ids_BF, num_valid)

    def locate(self, prepared: PreparedBatch, *, create: bool) -> None:
        """Finds the rows of a batch and notes them in it.

        Args:
            prepared: The batch.
            create: Make the missing rows, as training does; else they read as zeros.

        Raises:
            TrainingError, RunFolderError: There is no room for the new rows, in memory or on disk.
        """
        prepared.rows_U = self._locate(prepared.keys_U, create=create)

    def gather(self, prepared: PreparedBatch, out: Float32Array | None = None) -> Float32Array:
        """Values of every place of a located batch.

        Args:
            prepared: The batch.
            out: Written and returned if given, float32 [B, F, W], contiguous.

        Returns:
            float32 [B, F, W]; zeros where there is no row and in padding.
        """
        shape = (*prepared.shape, self.width)
        if out is None:
            out = np.empty(shape, np.float32)
        _check_values(out, shape, "out")
        self._gather(prepared, np.empty((*prepared.shape, 0), np.float32), out)
        return out

    def gather_parts(
        self, prepared: PreparedBatch, num_leading: int
    ) -> tuple[Float32Array, Float32Array]:
        """As `gather`, the first values of a row apart from the others.

        A consumer that uses them apart need not take a wide array to pieces.

        Args:
            prepared: The batch.
            num_leading: A, how many values come first, 0 … W.

        Returns:
            float32 [B, F, A] and [B, F, W - A].
        """
        leading = empty_aligned((*prepared.shape, num_leading))
        trailing = empty_aligned((*prepared.shape, self.width - num_leading))
        self._gather(prepared, leading, trailing)
        return leading, trailing

    def update(
        self,
        prepared: PreparedBatch,
        gradients: Float32Array | tuple[Float32Array, Float32Array],
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
    ) -> None:
        """Sums the gradients of each row and applies each segment's L2 and optimizer to it.

        Rows that the batch does not hold stay as they are, moments included.

        Args:
            prepared: A located batch.
            gradients: float32 [B, F, W] with respect to what `gather` returned, or a pair with
                respect to what `gather_parts` returned; padding is not read.
            step: Global step, from 1; corrects Adam's bias and becomes the rows' last-seen step.
            learning_rate_factor: The schedule's factor on every learning rate.
            num_examples: Divisor of segments whose reduction is `mean`.
        """
        rows_U = _located(prepared)
        leading_PA, trailing_PB = _split_gradients(prepared, gradients, self.width)
        update = RowUpdate(
            self._rows,
            step=step,
            learning_rate_factor=learning_rate_factor,
            num_examples=num_examples,
        )
        work = update.by_occurrence(prepared, rows_U, leading_PA, trailing_PB)
        bounds = _balanced_bounds(prepared, self._runner.threads)
        with self._rows.lock:
            self._rows.before_change(rows_U)
            self._runner.run(work, len(rows_U), bounds)

    def read_rows(self, keys_U: Int64Array, *, create: bool = False) -> Float32Array:
        """Values by key, float32 [U, W]; zeros for a key without a row.

        Args:
            keys_U: int64 [U], table << 44 | id.
            create: Make the missing rows.
        """
        rows_U = self._locate(_checked_keys(keys_U, len(self.tables)), create=create)
        out_UW = np.empty((len(rows_U), self.width), np.float32)

        def work(first: int, last: int) -> None:
            row_kernels.gather_rows(self._rows.records_NR, rows_U, out_UW, first, last)

        self._runner.run(work, len(rows_U))
        return out_UW

    def apply_gradients(
        self,
        keys_U: Int64Array,
        sums_UW: Float32Array,
        num_occurrences_U: Int32Array,
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
    ) -> int:
        """Applies gradients that are summed by key, as `update` does after its own summing.

        Args:
            keys_U: int64 [U], each once; the caller sees to it, without a lock that others want.
            sums_UW: float32 [U, W].
            num_occurrences_U: int32 [U], how often each key occurs in the batch.
            step: As for `update`.
            learning_rate_factor: As for `update`.
            num_examples: As for `update`.

        Returns:
            How many keys have no row; their gradients are dropped and move no other row.

        Raises:
            ValueError: Shapes do not fit.
        """
        keys_U = _checked_keys(keys_U, len(self.tables))
        sums_UW = np.ascontiguousarray(sums_UW)
        _check_values(sums_UW, (len(keys_U), self.width), "gradients")
        if num_occurrences_U.shape != keys_U.shape:
            raise ValueError(f"{num_occurrences_U.shape} occurrences of {keys_U.shape} keys")
        num_occurrences_U = np.ascontiguousarray(num_occurrences_U, np.int32)
        update = RowUpdate(
            self._rows,
            step=step,
            learning_rate_factor=learning_rate_factor,
            num_examples=num_examples,
        )
        with self._rows.lock:
            rows_U, num_missing = self._rows.find(keys_U, self._runner)
            self._rows.before_change(rows_U)
            work = update.by_sum(keys_U, rows_U, num_occurrences_U, sums_UW)
            self._runner.run(work, len(rows_U))
        return num_missing

    def row_headers(self, keys_U: Int64Array) -> tuple[Int32Array, Int32Array]:
        """Training count and last-seen step by key, int32 [U] each; -1 for a key without a row."""
        rows_U = self._locate(_checked_keys(keys_U, len(self.tables)), create=False)
        headers = self._rows.headers_NR[:, : update_kernels.HEADER_WORDS][np.maximum(rows_U, 0)]
        headers[rows_U < 0] = -1
        return headers[:, update_kernels.HEADER_COUNT], headers[:, update_kernels.HEADER_LAST_SEEN]

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """All rows by ascending key, in blocks of at most `block_rows`.

        Memory beside a block: 16 bytes a row, for the order.
        """
        if block_rows < 1:
            raise ValueError(f"block_rows {block_rows} is below 1")
        start = update_kernels.HEADER_WORDS
        keys = self._rows.keys_N[: self.num_rows]
        order = np.argsort(keys)
        for first in range(0, len(order), block_rows):
            rows = order[first : first + block_rows]
            values = self._rows.records_NR[rows, start : start + self.width]
            yield RowBlock(keys=keys[rows], values=values)

    def evict(self, oldest_step: int) -> int:
        """Removes the rows whose last update was before a step; how many there were.

        Batches that are located must be located anew. An id that comes back gets a fresh row.

        Raises:
            RuntimeError: A snapshot of the rows is being written.
        """
        with self._rows.lock:
            return self._rows.evict(oldest_step)

    def release(self) -> None:
        """Forgets all rows and returns their memory to the system."""
        with self._rows.lock:
            self._rows.release()

    def save(self, file: IO[bytes]) -> None:
        """Writes keys and whole records, slots included, to an open binary file."""
        save_rows(file, self._rows, describe_rows(self.layout, self.tables, self.seed))

    def load(self, file: IO[bytes]) -> None:
        """Replaces all rows by those that `save` wrote.

        Raises:
            CheckpointError: The file is damaged (the store is empty then), or of other tables,
                segments or seed (the store is as it was).
        """
        name = getattr(file, "name", None)
        place = Path(name).name if isinstance(name, str) else "embedding rows"
        with self._rows.lock:
            load_rows(file, self._rows, describe_rows(self.layout, self.tables, self.seed), place)

    def _gather(
        self, prepared: PreparedBatch, leading: Float32Array, trailing: Float32Array
    ) -> None:
        rows_U = _located(prepared)
        num_places = len(prepared.inverse_P)
        leading_PA = leading.reshape(num_places, leading.shape[-1])
        trailing_PB = trailing.reshape(num_places, trailing.shape[-1])

        def work(first: int, last: int) -> None:
            row_kernels.gather_occurrences(
                self._rows.records_NR,
                rows_U,
                prepared.inverse_P,
                leading_PA,
                trailing_PB,
                first,
                last,
            )

        self._runner.run(work, num_places)

    def _locate(self, keys_U: Int64Array, *, create: bool) -> Int32Array:
        if create:
            self._admission.require_known()
        # Looking up waits, too: making rows may replace the index.
        with self._rows.lock:
            if not create:
                return self._rows.find(keys_U, self._runner)[0]
            return self._rows.find_or_create(
                keys_U,
                self._runner,
                self._admission.counts_of,
                admit_after=self._admission.admit_after,
            )


def _table_seed(seed: int, name: str) -> int:
    """64 bits of a table's initial values."""
    text = f"{seed}\0{name}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _located(prepared: PreparedBatch) -> Int32Array:
    if prepared.rows_U is None:
        raise ValueError("the batch was not located")
    return prepared.rows_U


def _split_gradients(
    prepared: PreparedBatch,
    gradients: Float32Array | tuple[Float32Array, Float32Array],
    width: int,
) -> tuple[Float32Array, Float32Array]:
    """Gradients of the leading values of each place, and of the others: float32 [P, A], [P, B]."""
    if isinstance(gradients, tuple):
        leading, trailing = (np.ascontiguousarray(part) for part in gradients)
    else:
        trailing = np.ascontiguousarray(gradients)
        leading = np.empty((*prepared.shape, 0), np.float32)
    num_leading, num_places = leading.shape[-1], len(prepared.inverse_P)
    _check_values(leading, (*prepared.shape, num_leading), "gradients")
    _check_values(trailing, (*prepared.shape, width - num_leading), "gradients")
    return (
        leading.reshape(num_places, num_leading),
        trailing.reshape(num_places, width - num_leading),
    )


def _check_values(array: Float32Array, shape: tuple[int, ...], name: str) -> None:
    if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} of shape {array.shape}, type {array.dtype}; float32 {list(shape)} is expected"
        )


def _checked_keys(keys_U: Int64Array, num_tables: int) -> Int64Array:
    if keys_U.ndim != 1 or keys_U.dtype != np.int64:
        raise ValueError(f"keys of shape {keys_U.shape}, type {keys_U.dtype}, not int64 [U]")
    keys_U = np.ascontiguousarray(keys_U)
    tables = keys_U >> ID_BITS
    if len(keys_U) and (tables.min() < 0 or tables.max() >= num_tables):
        raise ValueError("a key names a table that is not there")
    return keys_U


def _balanced_bounds(prepared: PreparedBatch, threads: int) -> list[int]:
    """Bounds that divide rows and occurrences evenly among the threads."""
    offsets, num_unique = prepared.offsets, prepared.num_unique

    def cost(u: int) -> int:
        return int(offsets[u]) + _OCCURRENCES_A_ROW * u

    total = cost(num_unique)
    return [
        bisect_left(range(num_unique), total * i // threads, key=cost) for i in range(1, threads)
    ]
