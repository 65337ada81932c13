"""Bootstrap over rows of AUC and logloss, and of differences between models on the same rows.

All quantities of a repeat share one draw of rows (Efron and Tibshirani 1993, "An Introduction to
the Bootstrap", chapter 13, percentile interval). A draw is held as the number of times each row
occurs, so nothing is sorted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Predictions of one model, or of one of its seeds, ready for any weights of the rows."""

    labels: Float64s
    probabilities: Float64s
    losses: Float64s
    order: NDArray[np.int64]
    group_starts: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Float64s, probabilities: Float64s) -> "Scored":
        """Sorts once; equal probabilities form one group, whose pairs count half."""
        clipped = np.clip(probabilities, 1e-15, 1 - 1e-15)
        order = np.argsort(probabilities, kind="stable")
        ordered = probabilities[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        losses = -(labels * np.log(clipped) + (1 - labels) * np.log1p(-clipped))
        return cls(labels, probabilities, losses, order, starts)

    def auc(self, weights: Float64s) -> float:
        """Area under the ROC curve with each row counted `weights` times."""
        ordered_weights = weights[self.order]
        clicks = np.add.reduceat(ordered_weights * self.labels[self.order], self.group_starts)
        others = np.add.reduceat(ordered_weights, self.group_starts) - clicks
        below = np.cumsum(others) - others
        return float(clicks @ (below + 0.5 * others) / (clicks.sum() * others.sum()))

    def logloss(self, weights: Float64s) -> float:
        """Mean logloss with each row counted `weights` times, nats."""
        return float(weights @ self.losses / weights.sum())

    def predicted_over_observed(self, weights: Float64s) -> float:
        """Sum of probabilities over number of clicks; 1 is calibrated."""
        return float(weights @ self.probabilities / (weights @ self.labels))


@dataclass(frozen=True)
class Interval:
    """A figure on the rows as they are, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def show(self, digits: int = 4) -> str:
        """A text such as `0.9931 [0.9712, 1.0150]`."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def as_dict(self) -> dict[str, float]:
        """The interval for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Comparison:
    """One model over its seeds: each figure is the seeds' mean within a draw of rows."""

    predicted_over_observed: Interval
    auc_ahead: Interval
    logloss_ahead: Interval


def compare(
    model: list[Scored], baseline: list[Scored], *, repeats: int = 1000, seed: int = 0
) -> Comparison:
    """The model's calibration, and how far it is ahead of the baseline (positive is better).

    Args:
        model: Its seeds.
        baseline: Its seeds; any number of them.
        repeats: Draws of rows.
        seed: Of the draws.
    """
    random = np.random.default_rng(seed)
    num_rows = baseline[0].labels.size

    def measure(weights: Float64s) -> tuple[float, float, float]:
        base_auc = np.mean([one.auc(weights) for one in baseline])
        base_loss = np.mean([one.logloss(weights) for one in baseline])
        return (
            float(np.mean([one.predicted_over_observed(weights) for one in model])),
            float(np.mean([one.auc(weights) for one in model]) - base_auc),
            float(base_loss - np.mean([one.logloss(weights) for one in model])),
        )

    observed = measure(np.ones(num_rows))
    draws = np.array([measure(_draw(random, num_rows)) for _ in range(repeats)])
    return Comparison(*_intervals(observed, draws))


@dataclass(frozen=True)
class Lead:
    """How far one side is ahead of another, mean over sets of rows (positive is better)."""

    auc: Interval
    logloss: Interval


def compare_pairs(
    model: list[Scored], baseline: list[Scored], *, repeats: int = 1000, seed: int = 0
) -> Lead:
    """How far the model is ahead of the baseline, where each entry has test rows of its own.

    Args:
        model: One entry a set of rows.
        baseline: The same sets in the same order.
        repeats: Draws of rows, from each set.
        seed: Of the draws.
    """
    random = np.random.default_rng(seed)
    pairs = list(zip(model, baseline, strict=True))

    def measure(weights: list[Float64s]) -> Float64s:
        leads = [
            (one.auc(drawn) - other.auc(drawn), other.logloss(drawn) - one.logloss(drawn))
            for (one, other), drawn in zip(pairs, weights, strict=True)
        ]
        return np.mean(leads, axis=0)

    sizes = [one.labels.size for one in model]
    observed = measure([np.ones(size) for size in sizes])
    draws = np.array([measure([_draw(random, size) for size in sizes]) for _ in range(repeats)])
    return Lead(*_intervals(observed, draws))


def _draw(random: np.random.Generator, num_rows: int) -> Float64s:
    """How often each row is drawn."""
    drawn = random.integers(0, num_rows, num_rows)
    return np.bincount(drawn, minlength=num_rows).astype(np.float64)


def _intervals(observed: Sequence[float] | Float64s, draws: Float64s) -> list[Interval]:
    lows, highs = np.quantile(draws, [0.025, 0.975], axis=0)
    return [
        Interval(float(value), float(low), float(high))
        for value, low, high in zip(observed, lows, highs, strict=True)
    ]
