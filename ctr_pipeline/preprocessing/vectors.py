"""Texts that are vectors: to numbers; the columnar face of `VectorNumbers`.

A text of another number of elements than the vector has, or with one that is no finite decimal
number, counts as missing: the reader has refused it before. A text is worked on once, however many
rows have it.

Axes: V distinct texts, L numbers of a vector.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.features import VECTOR_NUMBER, VectorSpec
from ctr_pipeline.kernels.float64 import flush_subnormal
from ctr_pipeline.preprocessing.sequences import distinct_texts


def vector_numbers(
    array: pa.Array, vector: VectorSpec, *, column: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of a column of vectors.

    Args:
        array: Text [N], plain or a dictionary.
        vector: How texts are cut.
        column: Name for errors.

    Returns:
        float64 [V, L], NaN throughout where a text is no vector; and int64 [N] into them, None if
        row n has vector n.

    Raises:
        ValueError: The array holds something else than text.
    """
    texts, indices = distinct_texts(array, column)
    lists = pc.split_pattern(texts, pattern=vector.delimiter)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    has_length = lengths == vector.length
    # Of no other lists, so that elements have L to a row.
    elements = pc.list_flatten(lists.filter(pa.array(has_length)))
    is_number = pc.match_substring_regex(elements, pattern=f"^({VECTOR_NUMBER})$")
    written = pc.if_else(is_number, elements, pa.scalar(b"nan", elements.type))
    numbers = written.cast(pa.large_string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    numbers_VL = numbers.reshape(-1, vector.length)
    is_vector = np.isfinite(numbers_VL).all(axis=1, keepdims=True)
    result_VL = np.full((len(texts), vector.length), np.nan)
    result_VL[has_length] = flush_subnormal(np.where(is_vector, numbers_VL, np.nan))
    return result_VL, indices
