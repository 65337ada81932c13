"""Chains that end in an id, as thresholds on the raw value.

Every number transform is monotone, so a chain of them followed by one that gives ids is a step
function of the raw value. Its steps are found once, exactly, by bisection over the float64 numbers;
afterwards both faces compare the raw value with them and never compute a logarithm, whose last bit
differs between libraries.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL, flush_subnormal
from ctr_pipeline.transforms.base import IdKernel, IdStep, NumberFunction

MAX_THRESHOLDS = 1_000_000
"""More steps than this are refused: they would have to be stored and searched."""

LN2_SMALL_IDS = 5
"""Ids of x <= 2 in `bucketize: {ln2: true}`."""

LN2_TOP = int(np.floor(np.log(2.0**63) ** 2))
"""Largest floor(ln(x)^2) with an id of its own: that of the largest 64-bit integer, 1906."""

# Sorts as float64 numbers do: the bits of a negative number, its sign excepted, are inverted.
_SIGN_EXCEPTED = np.int64(2**63 - 1)


class IntervalsStep(IdStep):
    """A whole chain from the raw number to an id: `ids[number of thresholds <= x]`."""

    name: Literal["intervals"] = "intervals"
    thresholds: tuple[float, ...]
    ids: tuple[int, ...]

    @classmethod
    def of(cls, steps: "StepFunction", *, missing_id: int) -> "IntervalsStep":
        """Makes the step of a step function."""
        return cls(
            thresholds=tuple(steps.thresholds.tolist()),
            ids=tuple(steps.ids.tolist()),
            missing_id=missing_id,
        )

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns a kernel of float64 [N]."""
        from ctr_pipeline.kernels.numbers import interval_ids

        del folder
        thresholds = np.array(self.thresholds, np.float64)
        ids = np.array(self.ids, np.int64)
        return lambda values, out: interval_ids(values, thresholds, ids, self.missing_id, out)


@dataclass(frozen=True)
class StepFunction:
    """A step function of a number.

    Attributes:
        thresholds: float64 [T], ascending, none subnormal; may be infinite.
        ids: int64 [T + 1]; x has ids[number of thresholds <= x].
    """

    thresholds: np.ndarray
    ids: np.ndarray


def bisect_steps(level: NumberFunction, id_of: NumberFunction) -> StepFunction:
    """The steps of a nondecreasing integer function of a float64.

    Args:
        level: float64 [N] to integers as float64 [N], nondecreasing over [-inf, inf].
        id_of: float64 [N] to ids [N], constant where `level` is.

    Raises:
        PreprocessingError: There are more than MAX_THRESHOLDS steps.
    """
    ends = np.array([-np.inf, np.finfo(np.float64).max, np.inf])
    bottom, top, infinite = level(ends)
    if top - bottom > MAX_THRESHOLDS:
        raise PreprocessingError(
            f"needs more than {MAX_THRESHOLDS:,} cut points",
            remedy="Use fewer bins or buckets, or a larger base",
        )
    wanted = np.arange(bottom + 1, top + 1)
    thresholds = _smallest_reaching(level, wanted)
    if infinite > top:
        thresholds = np.append(thresholds, np.inf)
    starts = np.concatenate([[-np.inf], thresholds])
    return StepFunction(
        thresholds=_without_subnormal(thresholds), ids=id_of(starts).astype(np.int64)
    )


def log_round_level(num_bins: int, base: float | None) -> NumberFunction:
    """`round(log(x))`, half to even, within [-1, num_bins]; -1 for x <= 0."""
    scale = 1.0 if base is None else np.log(base)

    def level(values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            logarithms = np.log(np.maximum(values, 0.0)) / scale
        levels: np.ndarray = np.clip(np.rint(logarithms), -1, num_bins)
        return levels

    return level


def round_level(num_buckets: int) -> NumberFunction:
    """`round(x)`, half to even, within [-1, num_buckets]."""

    def level(values: np.ndarray) -> np.ndarray:
        levels: np.ndarray = np.clip(np.rint(values), -1, num_buckets)
        return levels

    return level


def in_range_ids(level: NumberFunction, num_ids: int, default_value: int) -> NumberFunction:
    """Levels as ids, those outside [0, num_ids) replaced by the default."""

    def id_of(values: np.ndarray) -> np.ndarray:
        levels = level(values)
        return np.where((levels >= 0) & (levels < num_ids), levels, default_value)

    return id_of


def boundary_level(boundaries: np.ndarray) -> NumberFunction:
    """The number of boundaries <= x."""

    def level(values: np.ndarray) -> np.ndarray:
        return np.searchsorted(boundaries, values, side="right").astype(np.float64)

    return level


def ln2_level(values: np.ndarray) -> np.ndarray:
    """Small numbers by themselves, others by floor(ln(x)^2).

    Follows the winners of the 2014 Criteo contest ("3 Idiots' Approach for Display Advertising
    Challenge", Juan, Zhuang, Chin), who gave x > 2 the token int(log(x)^2) and every other integer
    a token of its own. Here x < -1 is 0, [-1, 0) is 1, [0, 1) is 2, [1, 2) is 3, 2 is 4, and x > 2
    is 5 + floor(ln(x)^2), at most 5 + 1906, which 64-bit integers never exceed.
    """
    small = np.searchsorted(np.array([-1.0, 0.0, 1.0, 2.0]), values, side="right")
    squares = np.floor(np.log(np.maximum(values, 2.0)) ** 2)
    return np.where(values > 2, LN2_SMALL_IDS + np.minimum(squares, LN2_TOP), small)


def log_round_steps(num_bins: int, default_value: int, base: float | None) -> StepFunction:
    """`LogRound` as thresholds."""
    level = log_round_level(num_bins, base)
    return bisect_steps(level, in_range_ids(level, num_bins, default_value))


def boundary_steps(boundaries: np.ndarray) -> StepFunction:
    """`Discretization` as thresholds."""
    return StepFunction(
        thresholds=_without_subnormal(np.asarray(boundaries, np.float64)),
        ids=np.arange(len(boundaries) + 1),
    )


def _smallest_reaching(level: NumberFunction, wanted: np.ndarray) -> np.ndarray:
    """The smallest float64 that has each wanted level or a higher one."""
    low = np.full(len(wanted), _order_of(np.array([-np.inf]))[0])
    high = np.full(len(wanted), _order_of(np.array([np.inf]))[0])
    while np.any(low < high):
        # The floor of the mean, without overflow.
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        reached = level(_value_at(middle)) >= wanted
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    return _value_at(high)


def _order_of(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _SIGN_EXCEPTED, bits)


def _value_at(order: np.ndarray) -> np.ndarray:
    return np.where(order < 0, order ^ _SIGN_EXCEPTED, order).view(np.float64)


def _without_subnormal(thresholds: np.ndarray) -> np.ndarray:
    """The same comparisons for values that are not subnormal, by thresholds that are not either."""
    positive = (thresholds > 0) & (thresholds < SMALLEST_NORMAL)
    return flush_subnormal(np.where(positive, SMALLEST_NORMAL, thresholds))
