"""Whether one model is ahead of another on the same rows: the paired bootstrap.

Rows are drawn again with replacement, the same ones for both models (Efron & Tibshirani 1993, "An
Introduction to the Bootstrap", chapter 13: percentile interval). Drawing rows only reweights them,
so each model is sorted once and a repeat costs O(N).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ctr_pipeline.evaluation.auc import auc_of_runs, run_starts
from ctr_pipeline.evaluation.calibration import Interval
from ctr_pipeline.evaluation.checks import (
    require_binary_labels,
    require_finite_scores,
    require_weights,
)
from ctr_pipeline.evaluation.likelihood import mean_of, row_losses


@dataclass(frozen=True)
class PairedDifference:
    """Metric of model a minus metric of model b, on the same rows.

    Attributes:
        metric: Which one; a greater AUC is better, a smaller logloss is.
        difference: On the rows as they are.
        interval: 95 % percentile interval over the repeats.
        share_above_zero: Share of repeats whose difference is above 0.
    """

    metric: Literal["auc", "logloss"]
    difference: float
    interval: Interval
    share_above_zero: float

    @property
    def verdict(self) -> Literal["ahead", "behind", "open"]:
        """Whether model a is better; `open`: the choice of rows may explain all of it."""
        low, high = self.interval.low, self.interval.high
        if self.metric == "logloss":
            low, high = -high, -low
        return "ahead" if low > 0 else "behind" if high < 0 else "open"


class _WeightedAuc:
    """AUC of fixed scores under row weights that change; sorts once."""

    def __init__(self, positive: npt.NDArray[np.bool_], scores: npt.NDArray[Any]) -> None:
        self._order = np.argsort(scores)
        ordered = scores[self._order]
        self._starts = run_starts(ordered[1:] != ordered[:-1])
        self._positive = positive[self._order].astype(np.int64)

    def measure(self, weights: npt.NDArray[Any]) -> float:
        """AUC with each row counted `weights` times, whole or not; both classes have some."""
        ordered = weights[self._order]
        rows = np.add.reduceat(ordered, self._starts)
        positives = np.add.reduceat(ordered * self._positive, self._starts)
        return auc_of_runs(positives, rows - positives)


def paired_bootstrap(
    labels: npt.NDArray[Any],
    logits_a: npt.NDArray[Any],
    logits_b: npt.NDArray[Any],
    metric: Literal["auc", "logloss"],
    *,
    weights: npt.NDArray[Any] | None = None,
    repeats: int = 1000,
    seed: int = 0,
) -> PairedDifference:
    """The difference a - b of a metric, with its 95 % interval over rows.

    A repeat that draws only one class, or no weight of one, is drawn again: it has no AUC.

    Args:
        labels: [N] zeros and ones.
        logits_a: [N] logits of model a.
        logits_b: [N] logits of model b, of the same rows in the same order.
        metric: `auc`, where above 0 means that a ranks better, or `logloss`, where below 0 means
            that a fits better.
        weights: [N], 0 or more; None: all rows count alike. A row is one draw, whatever it weighs.
        repeats: Times the rows are drawn.

    Raises:
        DataError: Only one class, or one whose rows all weigh 0.
        ValueError: Labels other than 0 and 1, or lengths that differ.
        TrainingError: Logits that are not finite.
    """
    positive = require_binary_labels(labels, place="paired bootstrap")
    for logits in (logits_a, logits_b):
        require_finite_scores(logits, positive.size, place="paired bootstrap")
    random = np.random.default_rng(seed)
    if weights is None:
        counts: npt.NDArray[Any] = np.ones(positive.size, dtype=np.int64)
    else:
        counts = require_weights(weights, positive, place="paired bootstrap")
    differences = np.empty(repeats, dtype=np.float64)
    if metric == "auc":
        auc_a, auc_b = _WeightedAuc(positive, logits_a), _WeightedAuc(positive, logits_b)
        observed = auc_a.measure(counts) - auc_b.measure(counts)
        for repeat in range(repeats):
            drawn = _draw_both_classes(random, positive, counts)
            differences[repeat] = auc_a.measure(drawn) - auc_b.measure(drawn)
    else:
        gaps = row_losses(labels, logits_a) - row_losses(labels, logits_b)
        observed = mean_of(gaps, weights)
        for repeat in range(repeats):
            drawn = _draw_both_classes(random, positive, counts)
            differences[repeat] = (drawn @ gaps) / drawn.sum()
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return PairedDifference(
        metric=metric,
        difference=observed,
        interval=Interval(low=low, high=high),
        share_above_zero=float(np.mean(differences > 0)),
    )


def _draw_both_classes(
    random: np.random.Generator, positive: npt.NDArray[np.bool_], counts: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Draws N rows with replacement until both classes occur; returns the count of each row."""
    while True:
        drawn = random.integers(0, positive.size, positive.size, dtype=np.int64)
        drawn_counts = np.bincount(drawn, minlength=positive.size) * counts
        if drawn_counts[positive].any() and drawn_counts[~positive].any():
            return np.asarray(drawn_counts)
