"""Summing the gradients of equal keys, of one push or of several.

Axes: U keys, W values of a row.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr_pipeline.embeddings.arrays import BoolArray, Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.unique import number_keys
from ctr_pipeline.kernels.compilation import kernel, read_only


@dataclass(frozen=True)
class RowGradients:
    """Gradients by key.

    Attributes:
        keys: int64 [U].
        num_occurrences: int32 [U], in the batch.
        sums: float32 [U, W].
    """

    keys: Int64Array
    num_occurrences: Int32Array
    sums: Float32Array

    @classmethod
    def none(cls, width: int) -> "RowGradients":
        """Gradients of no key, with so many values a row."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int32), np.empty((0, width), np.float32))

    def only(self, chosen: BoolArray) -> "RowGradients":
        """Gradients of the chosen keys, bool [U]."""
        return RowGradients(self.keys[chosen], self.num_occurrences[chosen], self.sums[chosen])


@kernel
def _add_by_number(
    numbers_U: Int32Array,
    keys: Int64Array,
    num_occurrences: Int32Array,
    sums: Float32Array,
    out_keys: Int64Array,
    out_occurrences: Int32Array,
    out_sums: Float32Array,
) -> None:
    """Adds gradients of equal number, in their order; outputs begin as zeros."""
    for u in range(keys.shape[0]):
        number = numbers_U[u]
        out_keys[number] = keys[u]
        out_occurrences[number] += num_occurrences[u]
        for i in range(sums.shape[1]):
            out_sums[number, i] += sums[u, i]


def without_repeats(gradients: RowGradients) -> RowGradients:
    """The gradients with each key once; the same object if that is so already."""
    keys = gradients.keys
    numbers_U, num_distinct = number_keys(keys)
    if num_distinct == len(keys):
        return gradients
    summed = RowGradients(
        np.empty(num_distinct, np.int64),
        np.zeros(num_distinct, np.int32),
        np.zeros((num_distinct, gradients.sums.shape[1]), np.float32),
    )
    _add_by_number(
        numbers_U,
        keys,
        gradients.num_occurrences,
        read_only(gradients.sums),
        summed.keys,
        summed.num_occurrences,
        summed.sums,
    )
    return summed


def merge_rows(pushes: Sequence[RowGradients]) -> RowGradients:
    """The sums of several pushes by key, added in their order."""
    if len(pushes) == 1:
        return pushes[0]
    return without_repeats(
        RowGradients(
            np.concatenate([push.keys for push in pushes]),
            np.concatenate([push.num_occurrences for push in pushes]),
            np.concatenate([push.sums for push in pushes]),
        )
    )


def merge_dense(gradients: Sequence[Float32Array], num_examples: Sequence[int]) -> Float32Array:
    """The mean of dense gradients, weighted by the examples of each."""
    if len(gradients) == 1:
        return gradients[0]
    total = sum(num_examples)
    mean = np.zeros_like(gradients[0])
    for gradient, examples in zip(gradients, num_examples, strict=True):
        mean += gradient * np.float32(examples / total)
    return mean
