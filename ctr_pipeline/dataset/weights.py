"""Weights of rows: how much each counts in loss and metrics.

A row of weight 2 counts as two such rows would, one of weight 0 not at all. A weight is a number
from 0 to `LARGEST_WEIGHT`; only its ratio to others matters.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

LARGEST_WEIGHT = 1e30
"""Sums and squares of weights stay finite."""


class WeightSums(BaseModel):
    """What rows weigh.

    Attributes:
        total: Sum of their weights.
        positive: Sum of the weights of those with label 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    total: float
    positive: float

    @classmethod
    def of(cls, weights: npt.NDArray[Any], is_positive: npt.NDArray[np.bool_]) -> "WeightSums":
        """The sums of some rows."""
        return cls(total=float(np.sum(weights)), positive=float(np.sum(weights[is_positive])))

    @classmethod
    def of_all(cls, parts: Iterable["WeightSums | None"]) -> "WeightSums | None":
        """The sums of several parts, exact; None if rows have no weights."""
        found = [part for part in parts if part is not None]
        if not found:
            return None
        return cls(
            total=math.fsum(part.total for part in found),
            positive=math.fsum(part.positive for part in found),
        )
