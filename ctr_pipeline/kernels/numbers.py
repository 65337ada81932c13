"""float64 numbers to ids and to dense inputs."""

import numpy as np

from ctr_pipeline.kernels.compilation import kernel, read_only
from ctr_pipeline.kernels.float64 import (
    SMALLEST_NORMAL_FLOAT32,
    clip_values,
    fill,
    flush_subnormal,
)

NUMBER_LIMIT = 1e15
LARGEST_SCALED = 1e4
"""A dense input above it was not scaled, and may make the loss explode."""

"""Dense inputs are clamped to ± this: far above what a fitted chain gives, and small enough that
sums and squares of it are finite in float32, where an infinite value would make a NaN score."""


def finish_numbers(values: np.ndarray) -> np.ndarray:
    """The dense input of a chain's result: float32, missing is 0, clamped to ± NUMBER_LIMIT."""
    clamped = clip_values(fill(values, 0.0), -NUMBER_LIMIT, NUMBER_LIMIT)
    return flush_subnormal(clamped, SMALLEST_NORMAL_FLOAT32).astype(np.float32)


@kernel
def _interval_ids(
    values: np.ndarray, thresholds: np.ndarray, ids: np.ndarray, missing_id: int, out: np.ndarray
) -> None:
    num_thresholds = len(thresholds)
    for n in range(len(values)):
        value = values[n]
        # Number of thresholds <= value, halving the part in question. Without a branch that depends
        # on the value: random values would mispredict every one of them.
        low = 0
        remaining = num_thresholds
        while remaining > 1:
            half = remaining >> 1
            low += half * (thresholds[low + half - 1] <= value)
            remaining -= half
        if remaining == 1:
            low += 1 * (thresholds[low] <= value)
        out[n] = missing_id if np.isnan(value) else ids[low]


def interval_ids(
    values: np.ndarray,
    thresholds: np.ndarray,
    ids: np.ndarray,
    missing_id: int,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """`ids[k]` where k is the number of thresholds <= x.

    Args:
        values: float64 [N].
        thresholds: float64 [T], ascending; T may be 0.
        ids: int64 [T + 1].
        missing_id: Id of NaN.
        out: int32 or int64 [N] to write into, any stride; None makes an int64 one.

    Returns:
        `out`.
    """
    result = np.empty(len(values), np.int64) if out is None else out
    _interval_ids(read_only(values), read_only(thresholds), read_only(ids), missing_id, result)
    return result


@kernel
def _rounded_ids(
    values: np.ndarray, num_buckets: int, default_value: int, missing_id: int, out: np.ndarray
) -> None:
    for n in range(len(values)):
        value = values[n]
        if np.isnan(value):
            out[n] = missing_id
            continue
        rounded = np.rint(value)
        # The comparison comes first: a huge value does not fit an integer.
        out[n] = np.int64(rounded) if 0.0 <= rounded < num_buckets else default_value


def rounded_ids(
    values: np.ndarray,
    num_buckets: int,
    default_value: int,
    missing_id: int,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """`round(x)`, half to even, where it lies in [0, num_buckets), else `default_value`.

    Args:
        values: float64 [N].
        num_buckets: Number of ids.
        default_value: Id of values out of range.
        missing_id: Id of NaN.
        out: int32 or int64 [N] to write into, any stride; None makes an int64 one.

    Returns:
        `out`.
    """
    result = np.empty(len(values), np.int64) if out is None else out
    _rounded_ids(read_only(values), num_buckets, default_value, missing_id, result)
    return result
