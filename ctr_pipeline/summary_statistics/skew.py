"""Skew: the third standardized moment of the population; none where all values are equal."""

import math

from ctr_pipeline.summary_statistics.kinds import NumberStatistic


def _finish(mean: float, variance: float, cubes: float) -> float | None:
    if variance == 0.0:
        return None
    # A power of the variance may underflow where nearly all weight is on one value.
    return float((cubes - 3 * mean * variance - mean**3) / variance / math.sqrt(variance))


SKEW = NumberStatistic(name="skew", label="Skew", terms=(lambda y: y * y * y,), finish=_finish)
