"""Calibration of predicted probabilities, overall and in bins."""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

Z_95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


class Interval(BaseModel):
    """A two-sided 95 % interval."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether `value` lies inside, ends included."""
        return self.low <= value <= self.high


class CalibrationBin(BaseModel):
    """Rows of neighbouring predictions: the mean prediction and the observed rate.

    Attributes:
        num_rows: Rows in the bin.
        mean_predicted: Mean probability, weighted if rows have weights, as all that follows.
        observed_rate: Mean label.
        interval: Wilson's 95 % interval of the observed rate.
        weight: Sum of the rows' weights; None without weights.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_rows: int
    mean_predicted: float
    observed_rate: float
    interval: Interval
    weight: float | None = None


def calibration_ratio(
    labels: npt.NDArray[Any],
    probabilities: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64] | None = None,
) -> tuple[float, Interval]:
    """Sum of predictions over sum of labels, with its 95 % interval; 1 is calibrated.

    The interval is that of the ratio estimator with rows drawn independently (Cochran 1977,
    "Sampling Techniques", section 2.11: the variance of sum(p)/sum(y) is that of
    sum(p - ratio * y) over sum(y)^2), put around the logarithm of the ratio by the delta method so
    that it stays positive. A row is one draw, whatever it weighs.

    Args:
        labels: [N] zeros and ones, at least one 1.
        probabilities: [N] float64.
        weights: [N] float64, some of label 1 above 0; None: all rows count alike.
    """
    if weights is not None:
        labels, probabilities = labels * weights, probabilities * weights
    observed = float(np.sum(labels, dtype=np.float64))
    ratio = float(np.sum(probabilities)) / observed
    if ratio == 0.0:
        # Every probability underflowed to 0; the ratio has no spread to speak of.
        return 0.0, Interval(low=0.0, high=0.0)
    residuals = probabilities - ratio * labels
    relative_error = float(np.sqrt(np.sum(residuals * residuals))) / (observed * ratio)
    # exp overflows beyond 709; an interval that wide says "unknown" just as well.
    factor = float(np.exp(min(Z_95 * relative_error, 700.0)))
    return ratio, Interval(low=ratio / factor, high=ratio * factor)


def wilson_interval(num_positive: float, num_rows: float) -> Interval:
    """Wilson's 95 % interval of a rate (Wilson 1927, "Probable inference", equation 7)."""
    rate = num_positive / num_rows
    z2 = Z_95 * Z_95 / num_rows
    centre = (rate + z2 / 2) / (1 + z2)
    half = Z_95 * float(np.sqrt(rate * (1 - rate) / num_rows + z2 / (4 * num_rows))) / (1 + z2)
    # Rounding must not push an end past the rate it belongs to when that is 0 or 1.
    return Interval(low=min(rate, max(0.0, centre - half)), high=max(rate, min(1.0, centre + half)))


def calibration_bins(
    labels: npt.NDArray[Any],
    probabilities: npt.NDArray[np.float64],
    bins: int,
    weights: npt.NDArray[np.float64] | None = None,
) -> tuple[CalibrationBin, ...]:
    """Bins of equal row count, or of equal weight, by ascending prediction.

    Equal predictions stay together: a cut inside a run of ties moves to the run's start, so the
    result does not depend on the order of rows and there may be fewer bins than asked. Rows of
    weight 0 are left out. With weights, the interval takes a bin for as many rows as say as much
    when they are alike (Kish 1965, "Survey Sampling", section 11.7): (sum of w)^2 / sum of w^2.

    Args:
        labels: [N] zeros and ones.
        probabilities: [N] float64.
        bins: Number of bins asked for.
        weights: [N] float64, some above 0; None: all rows count alike.
    """
    if weights is not None:
        kept = weights > 0
        labels, probabilities, weights = labels[kept], probabilities[kept], weights[kept]
    order = np.argsort(probabilities)
    predicted = probabilities[order]
    observed = (labels[order] == 1).astype(np.int64)
    if weights is None:
        cuts = np.arange(1, bins) * predicted.size // bins
    else:
        # The row in which that share of the weight is passed.
        upto = np.cumsum(weights[order])
        cuts = np.searchsorted(upto, np.arange(1, bins) * upto[-1] / bins, side="right")
    starts = np.unique(np.append(0, np.searchsorted(predicted, predicted[cuts], side="left")))
    rows = np.diff(starts, append=predicted.size)
    if weights is None:
        totals, enough = rows, rows
        positives, sums = np.add.reduceat(observed, starts), np.add.reduceat(predicted, starts)
    else:
        ordered = weights[order]
        totals = np.add.reduceat(ordered, starts)
        positives = np.add.reduceat(observed * ordered, starts)
        sums = np.add.reduceat(predicted * ordered, starts)
        enough = totals * totals / np.add.reduceat(ordered * ordered, starts)
    return tuple(
        CalibrationBin(
            num_rows=num_rows,
            mean_predicted=mean,
            observed_rate=rate,
            interval=wilson_interval(like_positive, like_rows),
            weight=None if weights is None else total,
        )
        for num_rows, total, like_rows, like_positive, mean, rate in zip(
            rows.tolist(),
            totals.tolist(),
            enough.tolist(),
            (positives * (enough / totals)).tolist(),
            (sums / totals).tolist(),
            (positives / totals).tolist(),
            strict=True,
        )
    )


def expected_calibration_error(bins: tuple[CalibrationBin, ...]) -> float:
    """Mean over rows of |mean predicted - observed rate| of their bin.

    Naeini et al. 2015, "Obtaining well calibrated probabilities using Bayesian binning", section 3,
    with bins of equal row count, or of equal weight where rows have weights.
    """
    shares = [one.num_rows if one.weight is None else one.weight for one in bins]
    distances = [abs(one.mean_predicted - one.observed_rate) for one in bins]
    return float(sum(map(operator.mul, shares, distances)) / sum(shares))
