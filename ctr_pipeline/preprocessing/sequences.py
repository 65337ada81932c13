"""Texts that are lists: to ids and pooling coefficients; the columnar face of `SequenceElements`.

An element that is empty, or whose weight is no number of at least 0, is left out; the reader has
refused bad weights before. A text is worked on once, however many rows have it.

Axes: N rows, V distinct texts, E elements of all texts, L positions of a row.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.features import WEIGHT_NUMBER, SequenceSpec
from ctr_pipeline.kernels.arrow_values import TextColumn, binary_texts, text_column
from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL_FLOAT32, flush_subnormal
from ctr_pipeline.kernels.numbers import NUMBER_LIMIT

_BINARY = pa.large_binary()
_PLACES_AT_ONCE = 1 << 20


def encode_sequence(
    array: pa.Array,
    sequence: SequenceSpec,
    kernel: Callable[[TextColumn, np.ndarray], Any],
    *,
    padding_id: int,
    ids_NL: np.ndarray,
    coefficients_NL: np.ndarray,
    column: str,
) -> None:
    """Writes the positions of a column.

    Args:
        array: Text [N], plain or a dictionary; NULL and '' have no elements.
        sequence: How texts are cut.
        kernel: From elements to ids.
        padding_id: In positions without an element.
        ids_NL: int32, where ids go, any strides; the first elements of a row first.
        coefficients_NL: float32, where coefficients go, any strides; 0 without an element.
        column: Name for errors.

    Raises:
        ValueError: The array holds something else than text.
    """
    values, indices = distinct_texts(array, column)
    texts_E, weights_E, ends_V1 = _elements(values, sequence)
    ids_E = np.empty(len(texts_E), np.int32)
    kernel(text_column(texts_E, column=column), ids_E)
    most = sequence.max_length
    step = max(1, _PLACES_AT_ONCE // most)
    for first in range(0, len(ids_NL), step):
        rows = slice(first, min(first + step, len(ids_NL)))
        texts = np.arange(rows.start, rows.stop) if indices is None else indices[rows]
        begins, ends = ends_V1[texts], ends_V1[texts + 1]
        counts = np.minimum(ends - begins, most)
        if sequence.keep == "last":
            begins = ends - counts
        places = begins[:, None] + np.arange(most)
        is_there = np.arange(most) < counts[:, None]
        places = np.where(is_there, places, 0)
        # A place that is always there, for batches without any element.
        padded_ids = ids_E if len(ids_E) else np.zeros(1, np.int32)
        ids_NL[rows] = np.where(is_there, padded_ids[places], padding_id)
        padded_weights = weights_E if len(weights_E) else np.zeros(1)
        weights = np.where(is_there, padded_weights[places], 0.0)
        coefficients_NL[rows] = pooling_coefficients(weights, sequence.pooling)


def pooling_coefficients(weights_NL: np.ndarray, pooling: str) -> np.ndarray:
    """What each position's embedding is multiplied by, float32 [N, L]; for max, 1 where it counts.

    Args:
        weights_NL: float64, 0 in empty positions; others from the smallest normal float32 up to
            NUMBER_LIMIT.
        pooling: "sum", "mean", "sqrtn" or "max".
    """
    if pooling == "sum":
        return weights_NL.astype(np.float32)
    if pooling == "max":
        return (weights_NL > 0).astype(np.float32)
    squares = weights_NL if pooling == "mean" else np.square(weights_NL)
    divisors = squares.sum(axis=1, keepdims=True)
    if pooling == "sqrtn":
        divisors = np.sqrt(divisors)
    shares = weights_NL / np.where(divisors > 0, divisors, 1.0)
    return flush_subnormal(shares, SMALLEST_NORMAL_FLOAT32).astype(np.float32)


def distinct_texts(array: pa.Array, column: str) -> tuple[pa.Array, np.ndarray | None]:
    """The texts, large_binary [V], and int64 [N] into them; None: row n has text n."""
    texts, indices = binary_texts(array, column=column)
    if indices is None:
        return texts, None
    return texts, indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _elements(texts: pa.Array, sequence: SequenceSpec) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Elements that count, large_binary [E]; weights, float64 [E]; where each text's are, [V + 1].

    Text v has the elements from place `ends[v]` to `ends[v + 1]`.
    """
    lists = pc.split_pattern(texts, pattern=sequence.delimiter)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    elements = pc.list_flatten(lists)
    weights = np.ones(len(elements))
    if sequence.weights:
        weights = _weights(elements, sequence)
        elements = pc.replace_substring_regex(
            elements, pattern=value_pattern(sequence), replacement=r"\1"
        )
    is_empty = pc.equal(pc.binary_length(elements), 0).to_numpy(zero_copy_only=False)
    counts = ~is_empty & ~np.isnan(weights)
    before = np.concatenate([[0], np.cumsum(counts)])
    ends = before[np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])]
    kept = np.clip(weights[counts], 0.0, NUMBER_LIMIT)
    return elements.filter(pa.array(counts)), flush_subnormal(kept, SMALLEST_NORMAL_FLOAT32), ends


def value_pattern(sequence: SequenceSpec) -> str:
    """A whole element with its value as group 1; no match where it has no weight. Of any bytes."""
    return rf"(?s)^(\C*){sequence.weight_mark}\C*$"


def before_weight_pattern(sequence: SequenceSpec) -> str:
    """What stands before the weight of an element."""
    return rf"(?s)^\C*{sequence.weight_mark}"


def _weights(elements: pa.Array, sequence: SequenceSpec) -> np.ndarray:
    """The weight of each element, float64 [E]: 1 where none is given, NaN where it is bad."""
    is_given = pc.match_substring(elements, pattern=sequence.weight_delimiter)
    written = pc.replace_substring_regex(
        elements, pattern=before_weight_pattern(sequence), replacement=""
    )
    is_number = pc.match_substring_regex(written, pattern=f"^({WEIGHT_NUMBER})$")
    numbers = pc.if_else(is_number, written, pa.scalar(b"nan", _BINARY)).cast(pa.large_string())
    weights = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
    weights = np.where(np.isinf(weights), np.nan, weights)
    return np.where(is_given.to_numpy(zero_copy_only=False), weights, 1.0)
