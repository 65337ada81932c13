"""How often each id occurs in the training rows.

Axes: B rows, F fields, T tables, N ids that occur, U ids that are asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ctr_pipeline.embeddings.arrays import Int32Array, Int64Array
from ctr_pipeline.embeddings.key_index import KeyIndex
from ctr_pipeline.embeddings.reserved import reserve_array
from ctr_pipeline.embeddings.rows import MOST_ROWS
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.kernels.ranges import RangeRunner
from ctr_pipeline.specs.table import ID_BITS

_MOST_SMALL = 1 << 22
"""Ids of a table that is counted in an array of all its ids, 32 MB at most."""


@dataclass(frozen=True, eq=False)
class IdCounts:
    """Occurrences of the ids of one table.

    Attributes:
        counts: int64, of every id, or of those that `ids` names.
        ids: int64, ascending, ids that occur; None: `counts` has every id.
        num_ids: Ids of the table.
    """

    counts: Int64Array
    ids: Int64Array | None
    num_ids: int

    @classmethod
    def of_all(cls, counts: Int64Array) -> "IdCounts":
        """Counts of every id, int64 [num_ids]; kept as they are, if that is smaller."""
        ids = np.flatnonzero(counts)
        if 2 * len(ids) >= len(counts):
            return cls(counts, None, len(counts))
        return cls(counts[ids], ids, len(counts))

    @classmethod
    def of_some(cls, ids: Int64Array, counts: Int64Array, num_ids: int) -> "IdCounts":
        """Counts of the ids that occur, ascending int64 [N], in whichever form is smaller."""
        if 2 * len(ids) < num_ids:
            return cls(counts, ids, num_ids)
        counts_of_all = np.zeros(num_ids, np.int64)
        counts_of_all[ids] = counts
        return cls(counts_of_all, None, num_ids)

    def occurring(self) -> tuple[Int64Array, Int64Array]:
        """The ids that occur, ascending, and how often: int64 [N] each."""
        if self.ids is not None:
            return self.ids, self.counts
        ids = np.flatnonzero(self.counts)
        return ids, self.counts[ids]

    def look_up(self, ids_U: Int64Array) -> Int64Array:
        """How often each id occurs, int64 [U].

        Args:
            ids_U: int64 [U], 0 … num_ids - 1.
        """
        if self.ids is None:
            return self.counts[ids_U]
        if not len(self.ids):
            return np.zeros(len(ids_U), np.int64)
        places = np.minimum(np.searchsorted(self.ids, ids_U), len(self.ids) - 1)
        return np.where(self.ids[places] == ids_U, self.counts[places], 0)


def counts_of_keys(tables: Sequence[IdCounts] | None, keys: Int64Array) -> Int64Array:
    """Training counts of keys, int64 [n]; 0 where none were given.

    Args:
        tables: Counts of each table.
        keys: int64 [n], table << 44 | id.
    """
    counts = np.zeros(len(keys), np.int64)
    if tables is None:
        return counts
    numbers, ids = keys >> ID_BITS, keys & ((1 << ID_BITS) - 1)
    # Keys of fresh rows come table by table, so that a table is one run or a few.
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(keys)]
    for first, last in pairwise(edges):
        if first < last:
            counts[first:last] = tables[int(numbers[first])].look_up(ids[first:last])
    return counts


class Admission:
    """Which ids have rows: those that occur often enough in the training rows.

    Args:
        num_ids: Number of ids of each table.
        admit_after: An id has a row only if it occurs at least so often.

    Attributes:
        counts: How often ids occur, of each table; None: nobody said.
    """

    def __init__(self, num_ids: Sequence[int], admit_after: int) -> None:
        self._num_ids = list(num_ids)
        self.admit_after = admit_after
        self.counts: tuple[IdCounts, ...] | None = None

    def set_counts(self, counts: Sequence[IdCounts]) -> None:
        """Says how often ids occur; raises ValueError if that is of other tables."""
        sizes = [one.num_ids for one in counts]
        if sizes != self._num_ids:
            raise ValueError(f"counts of tables of {sizes} ids do not fit the tables")
        self.counts = tuple(counts)

    def require_known(self) -> None:
        """Raises ValueError if rows cannot be made before the counts are known."""
        if self.admit_after > 1 and self.counts is None:
            raise ValueError("which ids have rows cannot be known without training counts")

    def counts_of(self, keys: Int64Array) -> Int64Array:
        """See `counts_of_keys`."""
        return counts_of_keys(self.counts, keys)


def pack_counts(tables: Sequence[IdCounts]) -> Int64Array:
    """Counts of all tables as one array, for a file that can be mapped.

    For each table: ids of the table, how many of them have counts. Then for each table: those ids,
    unless all have counts; the counts.
    """
    parts = [np.array([(one.num_ids, len(one.counts)) for one in tables], np.int64).reshape(-1)]
    for one in tables:
        parts += [one.counts] if one.ids is None else [one.ids, one.counts]
    return np.concatenate(parts)


def unpack_counts(packed: Int64Array, num_ids: Sequence[int]) -> list[IdCounts]:
    """The counts of each table, as views.

    Args:
        packed: As of `pack_counts`.
        num_ids: Ids of each table.

    Raises:
        ValueError: The array is of other tables.
    """
    sizes_T2 = np.array(packed[: 2 * len(num_ids)]).reshape(-1, 2)
    if sizes_T2[:, 0].tolist() != list(num_ids):
        raise ValueError(f"counts of tables of {sizes_T2[:, 0].tolist()} ids, not {list(num_ids)}")
    tables, place = [], sizes_T2.size
    for size, length in sizes_T2.tolist():
        ids = None
        if length < size:
            ids = packed[place : place + length]
            place += length
        tables.append(IdCounts(packed[place : place + length], ids, size))
        place += length
    if place != len(packed):
        raise ValueError(f"{len(packed)} numbers, not {place}")
    return tables


@kernel
def _count(
    ids_BF: Int32Array, starts_F: Int64Array, sizes_F: Int64Array, counts_I: Int64Array
) -> bool:
    """Counts the ids of field f from starts_F[f] on, none if that is -1.

    Returns:
        False if an id is outside its table, which has sizes_F[f] ids.
    """
    num_rows, num_fields = ids_BF.shape
    for row in range(num_rows):
        for field in range(num_fields):
            number = ids_BF[row, field]
            if number < 0 or number >= sizes_F[field]:
                return False
            if starts_F[field] >= 0:
                counts_I[starts_F[field] + number] += 1
    return True


class IdCounter:
    """Counts ids, batch by batch.

    Small tables have a count for every id. Larger ones, as hash buckets can be, have counts for the
    ids that occur, some 40 bytes each, which is less than the embedding rows that these get.

    Args:
        num_ids: Ids of each table.
        field_tables: Table of each field; None if field f has table f.
        threads: Threads that look up ids of large tables.
    """

    def __init__(
        self,
        num_ids: Sequence[int],
        field_tables: Sequence[int] | None = None,
        *,
        threads: int = 1,
    ) -> None:
        sizes_T = np.array(num_ids, np.int64)
        tables_F = np.arange(len(num_ids)) if field_tables is None else np.array(field_tables, int)
        is_small_T = sizes_T <= _MOST_SMALL
        ends_T = np.cumsum(np.where(is_small_T, sizes_T, 0))
        self._starts_T = np.where(is_small_T, ends_T - sizes_T, -1)
        self._sizes_T = sizes_T
        self._starts_F = self._starts_T[tables_F]
        self._sizes_F = sizes_T[tables_F]
        self._small_I = np.zeros(int(ends_T[-1]) if len(ends_T) else 0, np.int64)
        self._large_F = np.flatnonzero(self._starts_F < 0)
        self._first_keys_F = tables_F[self._large_F].astype(np.int64) << ID_BITS
        most = min(int(sizes_T[~is_small_T].sum()), MOST_ROWS)
        if most:
            self._keys_N = reserve_array((most,), np.int64, purpose="ids that occur")
            self._counts_N = reserve_array((most,), np.int64, purpose="counts of ids")
        else:
            self._keys_N = self._counts_N = np.empty(0, np.int64)
        self._index = KeyIndex(self._keys_N)
        self._num_large = 0
        self._runner = RangeRunner(threads)

    def add(self, ids_BF: Int32Array) -> None:
        """Counts a batch.

        Args:
            ids_BF: int32 [B, F], local to their table, any strides.

        Raises:
            ValueError: An id is outside its table.
            TrainingError: More ids occur than can be counted.
        """
        if not _count(ids_BF, self._starts_F, self._sizes_F, self._small_I):
            raise ValueError("an id is outside its table")
        if len(self._large_F):
            keys = (ids_BF[:, self._large_F] + self._first_keys_F).reshape(-1)
            np.add.at(self._counts_N, self._places(keys), 1)

    def add_counted(self, tables: Sequence[IdCounts]) -> None:
        """Adds what others counted in other rows, of the same tables.

        Raises:
            TrainingError: More ids occur than can be counted.
        """
        for table, (start, one) in enumerate(zip(self._starts_T.tolist(), tables, strict=True)):
            ids, counts = one.occurring()
            if start >= 0:
                self._small_I[start + ids] += counts
            else:
                self._counts_N[self._places(ids + (table << ID_BITS))] += counts

    def _places(self, keys: Int64Array) -> Int32Array:
        """Where keys of large tables are counted."""
        places, num_missing = self._index.find(keys, self._runner)
        if num_missing:
            if self._num_large + num_missing > MOST_ROWS:
                raise TrainingError(
                    f"more than {MOST_ROWS:,} distinct ids occur in the training rows",
                    remedy="Lower the buckets of hashed features",
                )
            self._index.make_room(self._num_large, num_missing)
            self._num_large = self._index.add_missing(keys, places, self._num_large)
        return places

    def per_table(self) -> list[IdCounts]:
        """What was counted so far, of each table."""
        order = np.argsort(self._keys_N[: self._num_large])
        keys, counts = self._keys_N[order], self._counts_N[order]
        bounds = np.searchsorted(keys, np.arange(len(self._sizes_T) + 1) << ID_BITS).tolist()
        tables = []
        for table, (first, last) in enumerate(pairwise(bounds)):
            size, start = int(self._sizes_T[table]), int(self._starts_T[table])
            if start >= 0:
                tables.append(IdCounts.of_all(self._small_I[start : start + size]))
            else:
                ids = keys[first:last] - (table << ID_BITS)
                tables.append(IdCounts.of_some(ids, counts[first:last], size))
        return tables
