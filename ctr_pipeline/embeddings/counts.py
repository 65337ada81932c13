"""How often each id occurs in the training rows.

Axes: B rows, F fields, I ids of all tables.
"""

from collections.abc import Sequence

import numpy as np

from ctr_pipeline.embeddings.arrays import Int32Array, Int64Array
from ctr_pipeline.kernels.compilation import kernel


@kernel
def _count(
    ids_BF: Int32Array, starts_F: Int64Array, ends_F: Int64Array, counts_I: Int64Array
) -> bool:
    """False if an id is outside its table: that of field f has starts_F[f] up to ends_F[f]."""
    num_rows, num_fields = ids_BF.shape
    for row in range(num_rows):
        for field in range(num_fields):
            place = starts_F[field] + ids_BF[row, field]
            if ids_BF[row, field] < 0 or place >= ends_F[field]:
                return False
            counts_I[place] += 1
    return True


class IdCounts:
    """Occurrences of every id.

    Args:
        num_ids: Ids of each table; memory is 8 bytes an id, committed where ids occur.
        field_tables: Table of each field; None if field f has table f.
    """

    def __init__(self, num_ids: Sequence[int], field_tables: Sequence[int] | None = None) -> None:
        edges = np.cumsum([0, *num_ids], dtype=np.int64)
        tables = np.arange(len(num_ids)) if field_tables is None else np.array(field_tables, int)
        self._table_starts = edges[:-1]
        self._starts_F = edges[:-1][tables]
        self._ends_F = edges[1:][tables]
        self._counts_I = np.zeros(int(edges[-1]), dtype=np.int64)
        self._num_ids = tuple(num_ids)

    def add(self, ids_BF: Int32Array) -> None:
        """Counts a batch.

        Args:
            ids_BF: int32 [B, F], local to their table, any strides.

        Raises:
            ValueError: An id is outside its table.
        """
        if not _count(ids_BF, self._starts_F, self._ends_F, self._counts_I):
            raise ValueError("an id is outside its table")

    @property
    def flat(self) -> Int64Array:
        """All counts, table after table: int64 [I]."""
        return self._counts_I

    def per_table(self) -> list[Int64Array]:
        """Counts of each table, int64 [ids of the table], views."""
        return [
            self._counts_I[start : start + size]
            for start, size in zip(self._table_starts.tolist(), self._num_ids, strict=True)
        ]
