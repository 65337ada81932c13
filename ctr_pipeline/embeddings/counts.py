"""How often each id occurs in the training rows.

Axes: B rows, F fields, I ids of all tables.
"""

from collections.abc import Sequence

import numpy as np

from ctr_pipeline.embeddings.arrays import Int32Array, Int64Array
from ctr_pipeline.embeddings.compilation import kernel


@kernel
def _count(ids_BF: Int32Array, starts_F: Int64Array, counts_I: Int64Array) -> bool:
    """False if an id is outside its field: field f has those from starts_F[f] to the next."""
    num_rows, num_fields = ids_BF.shape
    for row in range(num_rows):
        for field in range(num_fields):
            place = starts_F[field] + ids_BF[row, field]
            if ids_BF[row, field] < 0 or place >= starts_F[field + 1]:
                return False
            counts_I[place] += 1
    return True


class IdCounts:
    """Occurrences of every id, one table a field.

    Args:
        num_ids: Ids of each field; memory is 8 bytes an id, committed where ids occur.
    """

    def __init__(self, num_ids: Sequence[int]) -> None:
        ends = np.cumsum([0, *num_ids], dtype=np.int64)
        self._starts_F = ends
        self._counts_I = np.zeros(int(ends[-1]), dtype=np.int64)
        self._num_ids = tuple(num_ids)

    def add(self, ids_BF: Int32Array) -> None:
        """Counts a batch.

        Args:
            ids_BF: int32 [B, F], local to their field, any strides.

        Raises:
            ValueError: An id is outside its field.
        """
        if not _count(ids_BF, self._starts_F, self._counts_I):
            raise ValueError("an id is outside its field")

    @property
    def flat(self) -> Int64Array:
        """All counts, field after field: int64 [I]."""
        return self._counts_I

    def per_field(self) -> list[Int64Array]:
        """Counts of each field, int64 [ids of the field], views."""
        return [
            self._counts_I[start : start + size]
            for start, size in zip(self._starts_F[:-1].tolist(), self._num_ids, strict=True)
        ]
