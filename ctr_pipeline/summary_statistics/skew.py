"""Skew: the third standardized moment of the population; none where all values are equal."""

from ctr_pipeline.summary_statistics.kinds import NumberStatistic


def _finish(mean: float, variance: float, cubes: float) -> float | None:
    if variance == 0.0:
        return None
    return float((cubes - 3 * mean * variance - mean**3) / variance**1.5)


SKEW = NumberStatistic(name="skew", label="Skew", terms=(lambda y: y * y * y,), finish=_finish)
