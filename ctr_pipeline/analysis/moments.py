"""Moments from sums in fixed point: the same bits whatever the order in which rows are added.

Threads add in any order, and floating-point sums depend on the order. So each term is scaled by a
power of two into (-1, 1) and rounded to a whole multiple of 2^-62; sums of whole numbers are exact.
A term is off by at most 2^-63, which is less than the rounding of a float64 near 1, and nothing
overflows, however large the values are.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ctr_pipeline.analysis.aggregates import Chain, WeightPlan
from ctr_pipeline.analysis.sql import (
    FIXED_POINT_BITS,
    Query,
    central_query,
    mean_query,
    range_query,
)
from ctr_pipeline.statistics import Moments

RowsOf = Callable[[Query, dict[str, float]], list[tuple[Any, ...]]]

# Powers of two beyond these would not be float64 numbers.
_LARGEST_EXPONENT = 1022


def collect_moments(
    rows_of: RowsOf,
    chain: Chain,
    parameters: dict[str, float],
    weight: WeightPlan | None = None,
) -> Moments:
    """Moments of the finite values of the table of value counts, after a chain.

    Args:
        rows_of: Runs a query with its parameters.
        chain: Transforms before.
        parameters: Of the chain, from `chain_parameters`.
        weight: How rows are weighed in mean, deviation and skew; None: all alike, as they are where
            all rows with a finite value weigh nothing.
    """
    ((count, minimum, maximum, *units),) = rows_of(
        range_query(chain, weighted=weight is not None), parameters
    )
    num_units = units[0] if units else 0
    weighted, total_size = (True, num_units) if num_units else (False, count)
    if count == 0:
        return Moments(
            count=0,
            mean=None,
            standard_deviation=None,
            minimum=None,
            maximum=None,
            skew=None,
            weight=None if weight is None else 0.0,
        )
    # x = value / 2^size lies in (-1, 1).
    size = _exponent_above(max(abs(minimum), abs(maximum)))
    shrink = math.ldexp(1.0, -size)
    ((total,),) = rows_of(mean_query(chain, weighted=weighted), parameters | {"shrink": shrink})
    mean_x = _per_row(total, total_size)
    center = float(mean_x)
    # y = (x - center) / 2^width lies in [-1, 1] as well.
    width = _exponent_above(max(abs(minimum * shrink - center), abs(maximum * shrink - center)))
    stretch = math.ldexp(1.0, -width)
    (sums,) = rows_of(
        central_query(chain, weighted=weighted),
        parameters | {"shrink": shrink, "center": center, "stretch": stretch},
    )
    variance, third = _about_the_mean(*(_per_row(power, total_size) for power in sums))
    deviation = math.ldexp(math.sqrt(variance), size + width)
    return Moments(
        count=count,
        mean=math.ldexp(center, size),
        standard_deviation=deviation,
        # Adding 0 makes 0 of -0, which SQL does not tell apart.
        minimum=minimum + 0.0,
        maximum=maximum + 0.0,
        skew=float(third) / math.sqrt(variance) ** 3 if variance > 0 else None,
        weight=None if weight is None else math.ldexp(float(num_units), -weight.exponent),
    )


def _about_the_mean(
    first: Fraction, second: Fraction, third: Fraction
) -> tuple[Fraction, Fraction]:
    """Second and third central moment, from moments about the rounded mean."""
    variance = second - first**2
    return max(variance, Fraction(0)), third - 3 * first * second + 2 * first**3


def _per_row(fixed_point_sum: str, count: int) -> Fraction:
    return Fraction(int(Decimal(fixed_point_sum)), count << FIXED_POINT_BITS)


def _exponent_above(bound: float) -> int:
    """The smallest usable e with bound < 2^e."""
    exponent = math.frexp(bound)[1] if bound > 0 else 0
    return max(exponent, -_LARGEST_EXPONENT)
