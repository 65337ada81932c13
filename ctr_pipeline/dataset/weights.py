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
_UNIT_BITS = 60
_LARGEST_EXPONENT = 1000


def unit_exponent(total: float) -> int:
    """The e for which weights in units of 2^-e, as whole numbers, sum to less than 2^61.

    Sums of whole numbers are exact in any order and by any database.

    Args:
        total: What all rows weigh together.
    """
    exponent = _UNIT_BITS - math.frexp(total)[1]
    return max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT)) if total > 0 else 0


def weight_units(weights: npt.NDArray[Any], exponent: int) -> npt.NDArray[np.int64]:
    """Weights in units of 2^-exponent, halves away from zero, as ROUND of SQL has it."""
    scaled = np.ldexp(np.asarray(weights, np.float64), exponent)
    whole = np.floor(scaled)
    units: npt.NDArray[np.int64] = (whole + (scaled - whole >= 0.5)).astype(np.int64)
    return units


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
