"""What a summary statistic declares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Term = Callable[[Any], Any]
"""Term of a deviation from the mean, by `+`, `-`, `*` and `/` alone: SQL and NumPy share it."""


@dataclass(frozen=True)
class NumberStatistic:
    """Describes how the finite values of a number column deviate from their mean.

    Where rows have weights, means are weighted.

    Attributes:
        name: The key in `ColumnStatistics.summary`.
        label: In the report.
        terms: Their means are computed. Deviations are y = (x - c) / s, where c is the mean but for
            rounding, and s makes the largest |y| about 1.
        finish: The statistic, from the mean of y, its variance, and the means of the terms; None
            if the column has none. Without any finite value it is not asked.
    """

    name: str
    label: str
    terms: tuple[Term, ...]
    finish: Callable[..., float | None]


@dataclass(frozen=True)
class TextStatistic:
    """Describes how the rows of a text column are spread over its values.

    Attributes:
        name: The key in `ColumnStatistics.summary`.
        label: In the report.
        finish: The statistic, from rows_G, int64: rows of a value; and times_G, int64: how many
            values have so many rows. Missing values are left out.
    """

    name: str
    label: str
    finish: Callable[[NDArray[np.int64], NDArray[np.int64]], float | int | None]
