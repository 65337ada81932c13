"""Singletons: the number of values that occur once.

Their share of the rows estimates the share of further rows with a value not seen before (I. J.
Good, "The population frequencies of species and the estimation of population parameters",
Biometrika 40 (1953), equation 9).
"""

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.summary_statistics.kinds import TextStatistic


def _finish(rows_G: NDArray[np.int64], times_G: NDArray[np.int64]) -> int:
    return int(times_G[rows_G == 1].sum())


SINGLETONS = TextStatistic(name="singletons", label="Values that occur once", finish=_finish)
