"""The AUC: exact with ties, of a histogram, its interval; and the ROC curve.

The AUC is the share of (positive, negative) pairs that the scores order rightly, a tie counting one
half: the Mann-Whitney statistic (Hanley & McNeil 1982, "The meaning and use of the area under a
receiver operating characteristic curve", equation 1). Pairs are counted in 64-bit integers, so the
only rounding is the last division. Where rows have weights, a pair weighs the product of its rows',
in float64: whole weights give the figures of repeated rows, as long as no sum reaches 2**53.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ctr_pipeline.evaluation.calibration import Z_95, Interval
from ctr_pipeline.evaluation.checks import (
    require_binary_labels,
    require_finite_scores,
    require_weights,
)

_LARGEST_EXACT = 2**30
"""Rows whose pairs, four times, int64 can count."""


class RocPoint(NamedTuple):
    """One point of a ROC curve, both in [0, 1]."""

    false_positive_rate: float
    true_positive_rate: float


def run_starts(changed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Starts of runs of equal keys, given where neighbours differ (length N - 1)."""
    return np.concatenate(([0], np.flatnonzero(changed) + 1)).astype(np.int64)


def exact_auc(
    labels: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    *,
    weights: npt.NDArray[Any] | None = None,
    place: str = "predictions",
) -> float:
    """Area under the ROC curve, exact, ties counting one half; O(N log N), one sort.

    Args:
        labels: [N] zeros and ones.
        scores: [N] float; any increasing function of the probability.
        weights: [N], 0 or more; None: all rows count alike.
        place: What the rows are, for error messages.

    Raises:
        DataError: Only one class, or one whose rows all weigh 0.
        ValueError: No rows, labels other than 0 and 1, or lengths that differ.
        TrainingError: Scores that are not finite.
    """
    positive = require_binary_labels(labels, place=place)
    require_finite_scores(scores, positive.size, place=place)
    order = np.argsort(scores)
    sorted_scores = scores[order]
    sorted_positive = positive[order]
    starts = run_starts(sorted_scores[1:] != sorted_scores[:-1])
    if weights is not None:
        return _weighted_auc(
            sorted_positive, require_weights(weights, positive, place=place)[order], starts
        )
    positives = np.add.reduceat(sorted_positive, starts, dtype=np.int64)
    # Twice the pairs are at most 2 * P * N, below 2**63 to 4 billion rows.
    return auc_of_runs(positives, np.diff(starts, append=positive.size) - positives)


def auc_of_runs(positives: npt.NDArray[Any], negatives: npt.NDArray[Any]) -> float:
    """AUC of rows that are sorted into runs of equal scores; both classes have some.

    Args:
        positives: [T] rows of label 1 of each run, or their weights, by increasing scores.
        negatives: [T] the same of label 0. Whole numbers are added exactly, those of dtype object
            without bound.
    """
    below = np.cumsum(negatives) - negatives
    sums = (
        np.sum(of_runs) for of_runs in (positives * (2 * below + negatives), positives, negatives)
    )
    # As Python's own numbers, which do not overflow when they are multiplied.
    twice_right, positive, negative = (
        one.item() if isinstance(one, np.generic) else one for one in sums
    )
    return float(twice_right / (2 * positive * negative))


@dataclass(frozen=True)
class AucEstimate:
    """An AUC from a histogram.

    Attributes:
        value: Area under the ROC curve, rows of one bin counted as ties.
        error_bound: The exact AUC is no further away.
    """

    value: float
    error_bound: float


def estimate_auc(positives: npt.NDArray[np.int64], negatives: npt.NDArray[np.int64]) -> AucEstimate:
    """The AUC of a histogram.

    Only pairs within one bin can be counted wrongly, each by one half at most, so the exact AUC
    lies within `sum over bins of positives * negatives / 2 / (P * N)` of it.

    Args:
        positives: [B] rows of label 1 in each bin, by increasing scores; there are some.
        negatives: [B] rows of label 0; there are some.
    """
    num_positive, num_negative = int(positives.sum()), int(negatives.sum())
    if num_positive + num_negative > _LARGEST_EXACT:
        positives, negatives = positives.astype(object), negatives.astype(object)
    tied = int(np.sum(positives * negatives))
    return AucEstimate(auc_of_runs(positives, negatives), tied / (2 * num_positive * num_negative))


def _weighted_auc(
    positive: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float64],
    starts: npt.NDArray[np.int64],
) -> float:
    """AUC of rows in the order of their scores; `starts` are those of runs of equal ones."""
    positives = np.add.reduceat(np.where(positive, weights, 0.0), starts)
    negatives = np.add.reduceat(np.where(positive, 0.0, weights), starts)
    return auc_of_runs(positives, negatives)


def auc_interval(
    auc: float, positive: npt.NDArray[np.bool_], weights: npt.NDArray[np.float64] | None = None
) -> Interval:
    """The 95 % interval of an AUC over rows drawn independently.

    Hanley & McNeil 1982, equation 2 with the exponential model of their Table II, which needs the
    AUC and the number of rows of each class alone. With few rows, or an AUC of 1, it is too narrow.

    Args:
        positive: [N] which rows have label 1; both classes are there.
        weights: [N] float64, both classes with some; a class then counts as so many rows as say as
            much when they are alike (Kish 1965): (sum of w)^2 / sum of w^2.
    """
    sizes = []
    for rows in (positive, ~positive):
        own = np.ones(np.count_nonzero(rows)) if weights is None else weights[rows]
        sizes.append(float(np.sum(own) ** 2 / np.sum(own * own)))
    num_positive, num_negative = sizes
    # Two of one class against one of the other.
    two_positive, two_negative = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = (
        auc * (1 - auc)
        + (num_positive - 1) * (two_positive - auc * auc)
        + (num_negative - 1) * (two_negative - auc * auc)
    ) / (num_positive * num_negative)
    half = Z_95 * float(np.sqrt(max(variance, 0.0)))
    return Interval(low=max(0.0, auc - half), high=min(1.0, auc + half))


def roc_points(
    labels: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    *,
    weights: npt.NDArray[Any] | None = None,
    max_points: int = 400,
    place: str = "predictions",
) -> tuple[RocPoint, ...]:
    """The ROC curve from (0, 0) to (1, 1), thinned evenly along its length.

    Kept points lie on the exact curve; ties make one slanted step.

    Args:
        labels: [N] zeros and ones.
        scores: [N] float.
        weights: [N], 0 or more; None: all rows count alike.
        max_points: Points kept at most, both ends included.
        place: What the rows are, for error messages.

    Raises:
        DataError: Only one class.
        ValueError: No rows, labels other than 0 and 1, or lengths that differ.
        TrainingError: Scores that are not finite.
    """
    positive = require_binary_labels(labels, place=place)
    require_finite_scores(scores, positive.size, place=place)
    if weights is None:
        counts: npt.NDArray[Any] = np.ones(positive.size, np.int64)
    else:
        counts = require_weights(weights, positive, place=place)
        kept = counts > 0
        scores, positive, counts = scores[kept], positive[kept], counts[kept]
    order = np.argsort(scores)[::-1]
    sorted_scores = scores[order]
    last_of_run = np.append(
        np.flatnonzero(sorted_scores[1:] != sorted_scores[:-1]), positive.size - 1
    )
    is_true, counts = positive[order], counts[order]
    true_positives = np.concatenate(([0], np.cumsum(np.where(is_true, counts, 0))[last_of_run]))
    false_positives = np.concatenate(([0], np.cumsum(np.where(is_true, 0, counts))[last_of_run]))
    true_rate = true_positives / true_positives[-1]
    false_rate = false_positives / false_positives[-1]
    if true_rate.size > max_points:
        # Both rates only grow, so their sum measures length along the curve.
        length = true_rate + false_rate
        kept = np.unique(np.searchsorted(length, np.linspace(0.0, 2.0, max_points)))
        kept = kept[kept < length.size]
        kept[-1] = length.size - 1
        true_rate, false_rate = true_rate[kept], false_rate[kept]
    return tuple(
        RocPoint(x, y) for x, y in zip(false_rate.tolist(), true_rate.tolist(), strict=True)
    )
