"""Columns as dictionaries: each distinct value once, and a number for each row.

Values are told apart by their bits: `0.0` and `-0.0` are two, texts are compared byte by byte. NULL
is a value of the dictionary like any other, so that no row number has a NULL of its own.

Axes: N rows, D distinct values.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_NUM_UINT16 = 1 << 16


def encode_dictionary(column: pa.Array) -> pa.DictionaryArray:
    """The column as a dictionary, its values in the order in which they first occur.

    Args:
        column: string or float64 [N].

    Returns:
        Row numbers are uint16 where they fit, else int32; none is NULL.
    """
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode(null_encoding="encode")
        return _dictionary(encoded.indices.to_numpy(), encoded.dictionary)
    encoded = column.view(pa.uint64()).dictionary_encode(null_encoding="encode")
    return _dictionary(encoded.indices.to_numpy(), encoded.dictionary.view(pa.float64()))


def merge_dictionaries(chunks: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Dictionaries, one behind the other, as one; as `encode_dictionary` of all rows.

    Args:
        chunks: Values are strings or float64; they and row numbers may be NULL, values may repeat
            or belong to no row.
    """
    found, rows = zip(*map(_needed, chunks), strict=True)
    # NULL behind all others, for rows without a number.
    values = pa.concat_arrays([*found, pa.nulls(1, found[0].type)])
    coded = encode_dictionary(values)
    codes, places, first = coded.indices.to_numpy(), [], 0
    for own, numbers in zip(found, rows, strict=True):
        numbered = numbers.cast(pa.int32()).fill_null(len(values) - 1 - first)
        places.append(numbered.to_numpy() + np.int32(first))
        first += len(own)
    in_order = pa.array(codes[np.concatenate(places)]).dictionary_encode()
    return _dictionary(in_order.indices.to_numpy(), coded.dictionary.take(in_order.dictionary))


def _needed(chunk: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Values that hold all of its rows, and the number of each row among them.

    A few rows that were taken out of many have the dictionary of all, most of which is not theirs.
    """
    if len(chunk) >= len(chunk.dictionary):
        return chunk.dictionary, chunk.indices
    return chunk.dictionary.take(chunk.indices), pa.array(np.arange(len(chunk), dtype=np.int32))


def _dictionary(indices: NDArray[np.int32], values: pa.Array) -> pa.DictionaryArray:
    narrow = indices.astype(np.uint16) if len(values) <= _NUM_UINT16 else indices
    return pa.DictionaryArray.from_arrays(pa.array(narrow), values, safe=False)


def count_indices(
    indices: NDArray[np.uint16] | NDArray[np.int32], is_click: NDArray[np.bool_], num_values: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many rows each value of a dictionary has, and how many of them are clicks.

    Args:
        indices: [N], below `num_values`.
        is_click: bool [N].
        num_values: D.

    Returns:
        int64 [D] each.
    """
    return (
        np.bincount(indices, minlength=num_values),
        np.bincount(indices[is_click], minlength=num_values),
    )


def sum_indices(
    indices: NDArray[np.uint16] | NDArray[np.int32],
    is_click: NDArray[np.bool_],
    weights: NDArray[np.float64],
    num_values: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the rows of each value of a dictionary weigh, and what those of them that are clicks do.

    Args:
        indices: [N], below `num_values`.
        is_click: bool [N].
        weights: float64 [N].
        num_values: D.

    Returns:
        float64 [D] each.
    """
    weights_D = np.bincount(indices, weights, minlength=num_values)
    click_weights_D = np.bincount(indices[is_click], weights[is_click], minlength=num_values)
    return weights_D.astype(np.float64), click_weights_D.astype(np.float64)
