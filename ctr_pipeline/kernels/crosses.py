"""Several columns to one id: the columnar face of `HashedCrossing`.

Every part of a row becomes a text: a text column's value as it is, a number's id in decimal digits.
A part is written as its length in bytes, a colon and the text; a missing part as a hyphen. The
parts one after another are hashed: whatever bytes the texts hold, unlike parts never join to the
same text, and a missing part is a value of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.kernels.arrow_values import NumberColumn, binary_texts
from ctr_pipeline.kernels.text_ids import hash_ids

MISSING = "-"
"""A missing part; no other begins like this."""

_BINARY = pa.large_binary()


@dataclass(frozen=True)
class CrossValues:
    """One column of a cross.

    Attributes:
        written: large_binary, the distinct values as they are joined.
        indices: Integers [N] into `written`; None: row n is value n.
    """

    written: pa.Array
    indices: pa.Array | None

    @property
    def rows(self) -> pa.Array:
        """large_binary [N]."""
        return self.written if self.indices is None else self.written.take(self.indices)


def text_part(array: pa.Array, *, column: str) -> CrossValues:
    """A text column as a part: plain or a dictionary; NULL and '' are missing.

    Raises:
        ValueError: The array holds something else than text or integers.
    """
    texts, indices = binary_texts(array, column=column)
    return CrossValues(_write(texts), indices)


def number_part(
    column: NumberColumn, kernel: Callable[[np.ndarray, np.ndarray], object]
) -> CrossValues:
    """A number column as a part: by its id; NaN is missing.

    Args:
        column: The column.
        kernel: Writes the ids of float64 [N] into int64 [N].
    """
    ids = np.empty(len(column.values), np.int64)
    kernel(column.values, ids)
    texts = pa.array(ids, mask=np.isnan(column.values)).cast(pa.string())
    indices = None if column.indices is None else pa.array(column.indices)
    return CrossValues(_write(texts.cast(_BINARY)), indices)


def cross_ids(
    parts: Sequence[CrossValues], num_bins: int, missing_id: int, out: np.ndarray
) -> np.ndarray:
    """Fingerprint64 of the joined parts modulo `num_bins`; `missing_id` where all are missing.

    Args:
        parts: Columns of N rows.
        num_bins: Number of buckets.
        missing_id: Id of rows without any part.
        out: int32 or int64 [N] to write into, any stride.

    Returns:
        `out`.
    """
    joined = pc.binary_join_element_wise(*(part.rows for part in parts), pa.scalar(b"", _BINARY))
    hash_ids(joined, num_bins, out=out)
    nothing = (MISSING * len(parts)).encode()
    is_missing = pc.equal(joined, pa.scalar(nothing, _BINARY)).to_numpy(zero_copy_only=False)
    out[is_missing] = missing_id
    return out


def _write(texts: pa.Array) -> pa.Array:
    """Values as they are joined."""
    lengths = pc.binary_length(texts).cast(pa.string()).cast(_BINARY)
    written = pc.binary_join_element_wise(lengths, texts, pa.scalar(b":", _BINARY))
    is_missing = pc.fill_null(pc.equal(texts, pa.scalar(b"", _BINARY)), True)
    return pc.if_else(is_missing, pa.scalar(MISSING.encode(), _BINARY), written)
