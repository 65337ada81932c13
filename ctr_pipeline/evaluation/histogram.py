"""Metrics from parts: what scores of some rows are worth, merged without keeping the scores.

Rows are counted by label in fixed bins of their logit; sums are kept in whole units. So parts merge
exactly, in any order and however the rows were divided, and nothing of a row is kept.

Where rows have weights, a row of weight w is counted w * 2**20 times, rounded: all metrics are
ratios, so they are the weighted ones, and what is sent and merged is what it always is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctr_pipeline.evaluation.auc import AucEstimate, estimate_auc
from ctr_pipeline.evaluation.checks import require_both_classes, require_finite_scores
from ctr_pipeline.evaluation.likelihood import probabilities_of, row_losses

NUM_BINS = 1 << 14
_HALF = NUM_BINS // 2
_SCALE = 8.0
"""Half of the bins lie between ± this logit: near 0 a bin is 0.001 wide, at ± 8 0.004."""

_UNIT = 2.0**-36
"""Unit of sums: losses and probabilities are rounded to it row by row, so their order is no matter.

A part whose sum stays below 2**17 is exact; beyond, it is rounded as floats are.
"""

_WEIGHT_UNITS = 2**20
"""Times that a row of weight 1 is counted where rows have weights; theirs have a mean of 1."""

SparseCounts: TypeAlias = tuple[tuple[int, int], ...]
"""(bin, count) pairs of the bins that are not empty, ascending."""


@dataclass(frozen=True)
class ScoreHistogram:
    """What some rows' scores are worth, mergeable by `+`.

    Attributes:
        positives: int64 [NUM_BINS], rows of label 1 by bin of their logit, each as often as it
            counts.
        negatives: The same of label 0.
        loss_units: Sum of the rows' logloss, in units of 2**-36 nats.
        probability_units: Sum of the predictions, in the same units.
    """

    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]
    loss_units: int
    probability_units: int

    @classmethod
    def empty(cls) -> "ScoreHistogram":
        """No rows."""
        return cls(np.zeros(NUM_BINS, np.int64), np.zeros(NUM_BINS, np.int64), 0, 0)

    @classmethod
    def of(
        cls,
        labels: npt.NDArray[Any],
        logits: npt.NDArray[Any],
        *,
        weights: npt.NDArray[Any] | None = None,
        place: str = "predictions",
    ) -> "ScoreHistogram":
        """Counts rows.

        Args:
            labels: [N] zeros and ones.
            logits: [N] float32 or float64; counted as float32.
            weights: [N], with a mean of about 1 over all parts; None: rows count once. Parts with
                weights are merged with such parts only.
            place: What the rows are, for error messages.

        Raises:
            TrainingError: Logits that are not finite.
            ValueError: A label is neither 0 nor 1, or lengths differ.
        """
        positive = labels == 1
        if labels.ndim != 1 or np.any(positive == (labels == 0)):
            raise ValueError(f"{place}: a label is neither 0 nor 1")
        require_finite_scores(logits, len(labels), place=place)
        bins = bins_of(logits)
        losses, probabilities = row_losses(labels, logits), probabilities_of(logits)
        if weights is None:
            return cls(
                np.bincount(bins[positive], minlength=NUM_BINS),
                np.bincount(bins[~positive], minlength=NUM_BINS),
                _to_units(losses),
                _to_units(probabilities),
            )
        times = np.rint(weights.astype(np.float64) * _WEIGHT_UNITS)
        return cls(
            _sums_by_bin(bins[positive], times[positive]),
            _sums_by_bin(bins[~positive], times[~positive]),
            _to_units(losses, times),
            _to_units(probabilities, times),
        )

    @classmethod
    def from_sparse(
        cls,
        positives: Iterable[tuple[int, int]],
        negatives: Iterable[tuple[int, int]],
        *,
        loss_sum: float,
        probability_sum: float,
    ) -> "ScoreHistogram":
        """What `sparse_positives`, `sparse_negatives` and the two sums describe.

        Raises:
            ValueError: A bin that does not exist, a bin twice, or a count below 1.
        """
        return cls(
            _dense(positives),
            _dense(negatives),
            round(loss_sum / _UNIT),
            round(probability_sum / _UNIT),
        )

    def __add__(self, other: "ScoreHistogram") -> "ScoreHistogram":
        return ScoreHistogram(
            self.positives + other.positives,
            self.negatives + other.negatives,
            self.loss_units + other.loss_units,
            self.probability_units + other.probability_units,
        )

    @property
    def sparse_positives(self) -> SparseCounts:
        """Rows of label 1."""
        return _sparse(self.positives)

    @property
    def sparse_negatives(self) -> SparseCounts:
        """Rows of label 0."""
        return _sparse(self.negatives)

    @property
    def loss_sum(self) -> float:
        """Sum of the rows' logloss, nats."""
        return self.loss_units * _UNIT

    @property
    def probability_sum(self) -> float:
        """Sum of the predictions."""
        return self.probability_units * _UNIT

    @property
    def num_rows(self) -> int:
        """Rows, each as often as it counts."""
        return int(self.positives.sum() + self.negatives.sum())

    @property
    def num_positive(self) -> int:
        """Rows of label 1 among these."""
        return int(self.positives.sum())

    def logloss(self) -> float:
        """Mean negative log likelihood, nats a row; there must be rows."""
        return self.loss_units / self.num_rows * _UNIT

    def calibration(self) -> float:
        """Sum of predictions over sum of labels; there must be a row of label 1."""
        return self.probability_units / self.num_positive * _UNIT

    def auc(self, *, place: str = "predictions") -> AucEstimate:
        """The AUC with its error bound.

        Args:
            place: What the rows are, for error messages.

        Raises:
            DataError: No rows, or only one class.
        """
        require_both_classes(self.num_positive, self.num_rows, place=place)
        return estimate_auc(self.positives, self.negatives)


def bins_of(logits: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The bin of each finite logit; a greater logit has no lower bin.

    `x / (|x| + 8)` maps all logits into (-1, 1), most finely near 0. It is made of operations that
    are the same bits on every machine, and it is cut into bins of equal width.
    """
    wide = logits.astype(np.float32).astype(np.float64)
    squeezed = wide / (np.abs(wide) + _SCALE)
    bins = np.floor(squeezed * _HALF).astype(np.int64) + _HALF
    return np.minimum(bins, NUM_BINS - 1)


def _sums_by_bin(
    bins: npt.NDArray[np.int64], times: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    # Sums of whole numbers below 2**53 are exact in float64.
    return np.bincount(bins, times, NUM_BINS).astype(np.int64)


def _to_units(values: npt.NDArray[np.float64], times: npt.NDArray[np.float64] | int = 1) -> int:
    return int(np.sum(np.rint(values / _UNIT) * times))


def _sparse(counts: npt.NDArray[np.int64]) -> SparseCounts:
    bins = np.flatnonzero(counts)
    return tuple(zip(bins.tolist(), counts[bins].tolist(), strict=True))


def _dense(pairs: Iterable[tuple[int, int]]) -> npt.NDArray[np.int64]:
    counts = np.zeros(NUM_BINS, np.int64)
    for place, count in pairs:
        if not 0 <= place < NUM_BINS or count < 1 or counts[place]:
            raise ValueError(f"{count} rows in bin {place} are no part of a histogram")
        counts[place] = count
    return counts
