"""Exact ranking metrics: AUC with ties, AUC within groups, the ROC curve.

The AUC is the share of (positive, negative) pairs that the scores order rightly, a tie counting one
half: the Mann-Whitney statistic (Hanley & McNeil 1982, "The meaning and use of the area under a
receiver operating characteristic curve", equation 1). Pairs are counted in 64-bit integers, so the
only rounding is the last division. Where rows have weights, a pair weighs the product of its rows',
in float64: whole weights give the figures of repeated rows, as long as no sum reaches 2**53.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.evaluation.calibration import Z_95, Interval
from ctr_pipeline.evaluation.checks import (
    require_binary_labels,
    require_finite_scores,
    require_weights,
)

Groups: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[Any]
"""One group value per row; NULL (Arrow), None or NaN (NumPy) is no group."""


class RocPoint(NamedTuple):
    """One point of a ROC curve, both in [0, 1]."""

    false_positive_rate: float
    true_positive_rate: float


@dataclass(frozen=True)
class GroupAuc:
    """AUC within groups, and how much of the data it speaks of.

    Attributes:
        value: Mean AUC weighted by rows, over groups that hold both classes; None if none does.
        num_groups: Groups in the data.
        num_groups_counted: Groups that hold both classes.
        num_rows_counted: Rows of those groups.
    """

    value: float | None
    num_groups: int
    num_groups_counted: int
    num_rows_counted: int


def _run_starts(changed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
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
    starts = _run_starts(sorted_scores[1:] != sorted_scores[:-1])
    if weights is not None:
        return _weighted_auc(
            sorted_positive, require_weights(weights, positive, place=place)[order], starts
        )
    positives = np.add.reduceat(sorted_positive, starts, dtype=np.int64)
    rows = np.diff(starts, append=positive.size)
    negatives = rows - positives
    below = np.cumsum(negatives) - negatives
    # Twice the number of pairs ordered rightly; at most 2 * P * N, below 2**63 to 4 billion rows.
    twice_right = int(np.sum(positives * (2 * below + negatives)))
    num_positive = int(np.sum(positives))
    return twice_right / (2 * num_positive * (positive.size - num_positive))


def _weighted_auc(
    positive: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float64],
    starts: npt.NDArray[np.int64],
) -> float:
    """AUC of rows in the order of their scores; `starts` are those of runs of equal ones."""
    positives = np.add.reduceat(np.where(positive, weights, 0.0), starts)
    negatives = np.add.reduceat(np.where(positive, 0.0, weights), starts)
    below = np.cumsum(negatives) - negatives
    twice_right = float(np.sum(positives * (2 * below + negatives)))
    return twice_right / (2 * float(np.sum(positives)) * float(np.sum(negatives)))


def group_auc(
    labels: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    groups: Groups,
    *,
    weights: npt.NDArray[Any] | None = None,
    place: str = "predictions",
) -> GroupAuc:
    """GAUC: AUC inside each group, averaged with the groups' row counts as weights.

    Zhu et al. 2017, "Optimized cost per click in Taobao display advertising", equation 11, with
    impressions as weights. Groups of one class have no AUC and are left out, as are rows without
    a group; the result says how many remain. Where rows have weights, a group's is their sum, and
    rows of weight 0 are as good as absent.

    Args:
        labels: [N] zeros and ones.
        scores: [N] float.
        groups: [N] values of any type.
        weights: [N], 0 or more; None: all rows count alike.
        place: What the rows are, for error messages.

    Raises:
        DataError: Only one class in all.
        ValueError: No rows, labels other than 0 and 1, or lengths that differ.
        TrainingError: Scores that are not finite.
    """
    positive = require_binary_labels(labels, place=place)
    require_finite_scores(scores, positive.size, place=place)
    codes, _ = group_codes(groups)
    if codes.size != positive.size:
        raise ValueError(f"{codes.size} groups for {positive.size} rows")
    if weights is None:
        # Whole numbers, so that pairs are counted exactly.
        counts: npt.NDArray[Any] = np.ones(positive.size, np.int64)
    else:
        counts = require_weights(weights, positive, place=place)
    grouped = (codes >= 0) & (counts > 0)
    if not grouped.any():
        return GroupAuc(value=None, num_groups=0, num_groups_counted=0, num_rows_counted=0)
    chosen = np.flatnonzero(grouped)
    order = chosen[np.lexsort((scores[chosen], codes[chosen]))]
    codes, scores, positive, counts = codes[order], scores[order], positive[order], counts[order]

    group_changes = codes[1:] != codes[:-1]
    tie_starts = _run_starts(group_changes | (scores[1:] != scores[:-1]))
    tie_positives = np.add.reduceat(np.where(positive, counts, 0), tie_starts)
    tie_negatives = np.add.reduceat(np.where(positive, 0, counts), tie_starts)
    negatives_before = np.cumsum(tie_negatives) - tie_negatives

    group_starts = _run_starts(group_changes)
    # Every group starts a run of ties, so the search is exact.
    first_tie = np.searchsorted(tie_starts, group_starts)
    ties_per_group = np.diff(first_tie, append=tie_starts.size)
    below = negatives_before - np.repeat(negatives_before[first_tie], ties_per_group)
    twice_right = np.add.reduceat(tie_positives * (2 * below + tie_negatives), first_tie)
    num_positive = np.add.reduceat(tie_positives, first_tie)
    num_negative = np.add.reduceat(tie_negatives, first_tie)

    both = (num_positive > 0) & (num_negative > 0)
    rows = np.diff(group_starts, append=positive.size)[both]
    pairs = 2.0 * num_positive[both] * num_negative[both]
    share = (num_positive + num_negative)[both]
    value = float(np.average(twice_right[both] / pairs, weights=share)) if rows.size else None
    return GroupAuc(
        value=value,
        num_groups=int(group_starts.size),
        num_groups_counted=int(rows.size),
        num_rows_counted=int(rows.sum()),
    )


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


def group_codes(groups: Groups) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """One integer per row, -1 where the value is missing; and the value of each integer."""
    column = (
        groups
        if isinstance(groups, pa.Array | pa.ChunkedArray)
        else pa.array(groups, from_pandas=True)
    )
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.DictionaryArray):
        column = column.dictionary_encode()
    codes: npt.NDArray[np.int64] = (
        pc.fill_null(column.indices.cast(pa.int64()), -1)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64, copy=False)
    )
    return codes, column.dictionary


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
