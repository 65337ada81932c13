"""Making the ids of a batch unique, and where each of them occurs."""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr_pipeline.embeddings.arrays import IdArray, Int32Array, Int64Array
from ctr_pipeline.kernels.compilation import kernel, read_only
from ctr_pipeline.specs.table import ID_BITS, TableSpec
from ctr_pipeline.splitmix import GOLDEN

_MARK_SHIFT = 32
_MARK_MASK = (1 << _MARK_SHIFT) - 1
_MAX_STAMP = (1 << 31) - 1
_INT32_MAX = (1 << 31) - 1


@dataclass
class PreparedBatch:
    """The ids of a batch, made unique: U distinct keys in P = B · F places, N of them occupied.

    Attributes:
        shape: (B, F).
        num_valid: Rows that count; ids of later ones are padding and were not looked at.
        keys_U: int64, table << 44 | id; tables ascending, then by first occurrence, field by field.
        inverse_P: int32, index into keys_U of each place; -1 in padding.
        offsets: int32 [U + 1]; key u occurs at `occurrences[offsets[u] : offsets[u + 1]]`.
        occurrences: int32 [N], places.
        rows_U: int32, rows of the keys once `EmbeddingStore.locate` has found them, -1: none.
    """

    shape: tuple[int, int]
    num_valid: int
    keys_U: Int64Array
    inverse_P: Int32Array
    offsets: Int32Array
    occurrences: Int32Array
    rows_U: Int32Array | None = None

    @property
    def num_unique(self) -> int:
        """Distinct keys."""
        return len(self.keys_U)

    @property
    def num_occurrences(self) -> Int32Array:
        """How often each key occurs in the batch, int32."""
        return np.diff(self.offsets)


@kernel
def _make_unique(  # noqa: PLR0915 -- one pass over the cached scratch table, not worth cutting
    ids_BF: IdArray,
    num_valid: int,
    fields: Int64Array,
    field_tables: Int64Array,
    table_sizes: Int64Array,
    scratch_ids: Int64Array,
    scratch_marks: Int64Array,
    stamp: int,
    column_uniques: Int32Array,
    keys: Int64Array,
    inverse_P: Int32Array,
    counts: Int32Array,
    offsets: Int32Array,
    occurrences: Int32Array,
) -> int:
    """Fills keys, inverse, offsets and occurrences; returns U, or -1 - place of an invalid id.

    One table after another, each with all its fields, so that the scratch table needs room for the
    ids of one table alone and stays in the cache. An entry counts only if it bears the stamp of
    its table and call, so that the scratch is never cleared.
    """
    num_fields = ids_BF.shape[1]
    mask = scratch_ids.shape[0] - 1
    shift = np.uint64(64)
    size = scratch_ids.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    num_unique = 0
    num_placed = 0
    offsets[0] = 0
    begin = 0
    while begin < fields.shape[0]:
        table = field_tables[begin]
        end = begin
        while end < fields.shape[0] and field_tables[end] == table:
            end += 1
        stamp += 1
        stamped = stamp << _MARK_SHIFT
        table_size = table_sizes[table]
        table_key = table << ID_BITS
        first_unique = num_unique
        for group in range(begin, end):
            field = fields[group]
            uniques = column_uniques[group - begin]
            for b in range(num_valid):
                row_id = np.int64(ids_BF[b, field])
                if row_id < 0 or row_id >= table_size:
                    return -1 - int(b * num_fields + field)
                slot = np.int64((np.uint64(row_id) * GOLDEN) >> shift)
                while True:
                    mark = scratch_marks[slot]
                    if mark < stamped:
                        scratch_ids[slot] = row_id
                        scratch_marks[slot] = stamped | num_unique
                        keys[num_unique] = table_key | row_id
                        counts[num_unique] = 1
                        unique = num_unique
                        num_unique += 1
                        break
                    if scratch_ids[slot] == row_id:
                        unique = mark & _MARK_MASK
                        counts[unique] += 1
                        break
                    slot = (slot + 1) & mask
                uniques[b] = unique
                inverse_P[b * num_fields + field] = unique
        # Counting sort of the table's places by unique key; counts become write positions.
        for u in range(first_unique, num_unique):
            count = counts[u]
            counts[u] = num_placed
            num_placed += count
            offsets[u + 1] = num_placed
        for group in range(begin, end):
            field = fields[group]
            uniques = column_uniques[group - begin]
            for b in range(num_valid):
                unique = uniques[b]
                occurrences[counts[unique]] = b * num_fields + field
                counts[unique] += 1
        begin = end
    for p in range(num_valid * num_fields, inverse_P.shape[0]):
        inverse_P[p] = -1
    return num_unique


@kernel
def _number_keys(keys: Int64Array, slots: Int32Array, numbers: Int32Array) -> int:
    """Writes the number of each key; returns how many distinct ones there are."""
    mask = slots.shape[0] - 1
    shift = np.uint64(64)
    size = slots.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    num_distinct = 0
    for k in range(keys.shape[0]):
        slot = np.int64((np.uint64(keys[k]) * GOLDEN) >> shift)
        # A slot holds the place of a key's first occurrence + 1; 0: empty.
        while slots[slot] != 0 and keys[slots[slot] - 1] != keys[k]:
            slot = (slot + 1) & mask
        if slots[slot] == 0:
            slots[slot] = k + 1
            numbers[k] = num_distinct
            num_distinct += 1
        else:
            numbers[k] = numbers[slots[slot] - 1]
    return num_distinct


def number_keys(keys: Int64Array) -> tuple[Int32Array, int]:
    """Numbers keys from 0 in the order in which they first stand there, equal keys alike.

    Args:
        keys: int64 [n].

    Returns:
        int32 [n], and how many distinct keys there are.
    """
    num_slots = 16
    while num_slots < 2 * len(keys):
        num_slots *= 2
    numbers = np.empty(len(keys), np.int32)
    num_distinct = _number_keys(keys, np.zeros(num_slots, np.int32), numbers)
    return numbers, int(num_distinct)


def sorted_distinct(keys: Int64Array) -> Int64Array:
    """The keys ascending, each once, int64.

    NumPy's own `unique` puts them into a hash table first: that takes a hundred times as long.
    """
    keys = np.sort(keys)
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys[is_first]


class _Scratch:
    """The working memory of one call; kept for the next."""

    def __init__(self, num_rows: int, fields_a_table: int, stamp: int) -> None:
        num_slots = 16
        while num_slots < 2 * num_rows * fields_a_table:
            num_slots *= 2
        self.num_rows = num_rows
        self.stamp = stamp
        self.ids = np.empty(num_slots, np.int64)
        self.marks = np.zeros(num_slots, np.int64)
        self.column_uniques = np.empty((fields_a_table, num_rows), np.int32)

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return int(self.ids.nbytes + self.marks.nbytes + self.column_uniques.nbytes)


class BatchPreparer:
    """Makes ids unique; safe to call from several threads at once.

    Args:
        tables: The tables.
        field_tables: Index into `tables` of each field; fields may share a table.
        first_stamp: Stamp of the first batch; batches count on and start over before it overflows.
    """

    def __init__(
        self, tables: Sequence[TableSpec], field_tables: Sequence[int], *, first_stamp: int = 0
    ) -> None:
        self._tables = tuple(tables)
        self._first_stamp = first_stamp
        by_table = np.argsort(np.asarray(field_tables, np.int64), kind="stable")
        self._fields = by_table.astype(np.int64)
        self._sorted_tables = np.asarray(field_tables, np.int64)[by_table]
        self._field_tables = tuple(field_tables)
        self._table_sizes = np.array([table.num_ids for table in tables], np.int64)
        self._fields_a_table = int(np.bincount(self._sorted_tables).max(initial=0))
        # Appending to and popping from a deque are atomic: each call has a scratch to itself.
        self._idle: deque[_Scratch] = deque()

    @property
    def num_fields(self) -> int:
        """Columns of a batch of ids."""
        return len(self._field_tables)

    @property
    def num_bytes(self) -> int:
        """Memory kept between calls."""
        return sum(scratch.num_bytes for scratch in tuple(self._idle))

    def prepare(self, ids_BF: IdArray, num_valid: int) -> PreparedBatch:
        """See `EmbeddingStore.prepare`."""
        num_rows, num_fields = self._checked_shape(ids_BF, num_valid)
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch(num_rows, self._fields_a_table, self._first_stamp)
        if scratch.num_rows < num_rows:
            scratch = _Scratch(num_rows, self._fields_a_table, self._first_stamp)
        if scratch.stamp + len(self._tables) >= _MAX_STAMP:
            scratch.marks[:] = 0
            scratch.stamp = 0
        num_places = num_valid * num_fields
        keys = np.empty(num_places, np.int64)
        inverse_P = np.empty(num_rows * num_fields, np.int32)
        counts = np.empty(num_places, np.int32)
        offsets = np.empty(num_places + 1, np.int32)
        occurrences = np.empty(num_places, np.int32)
        num_unique = _make_unique(
            read_only(np.ascontiguousarray(ids_BF)),
            num_valid,
            self._fields,
            self._sorted_tables,
            self._table_sizes,
            scratch.ids,
            scratch.marks,
            scratch.stamp,
            scratch.column_uniques,
            keys,
            inverse_P,
            counts,
            offsets,
            occurrences,
        )
        scratch.stamp += len(self._tables)
        self._idle.append(scratch)
        if num_unique < 0:
            row, field = divmod(-1 - num_unique, num_fields)
            table = self._tables[self._field_tables[field]]
            raise ValueError(
                f"id {ids_BF[row, field]} in row {row}, field {field} is not in table "
                f"{table.name!r} of {table.num_ids} ids"
            )
        return PreparedBatch(
            shape=(num_rows, num_fields),
            num_valid=num_valid,
            keys_U=keys[:num_unique].copy(),
            inverse_P=inverse_P,
            offsets=offsets[: num_unique + 1].copy(),
            occurrences=occurrences,
        )

    def _checked_shape(self, ids_BF: IdArray, num_valid: int) -> tuple[int, int]:
        if ids_BF.ndim != 2 or ids_BF.shape[1] != self.num_fields:
            raise ValueError(f"ids of shape {ids_BF.shape}, not [B, {self.num_fields}]")
        if ids_BF.dtype not in (np.int32, np.int64):
            raise ValueError(f"ids of type {ids_BF.dtype}, not int32 or int64")
        if ids_BF.size > _INT32_MAX:
            raise ValueError(f"a batch of {ids_BF.size} ids is above {_INT32_MAX}")
        if not 0 <= num_valid <= ids_BF.shape[0]:
            raise ValueError(f"num_valid {num_valid} not in 0 … {ids_BF.shape[0]}")
        return ids_BF.shape[0], ids_BF.shape[1]
