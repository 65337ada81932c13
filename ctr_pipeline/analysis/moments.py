"""Moments in two passes: the mean, then the powers of the deviations from it.

Each value is scaled by a power of two into (-1, 1) first, and so are the deviations, so that no
power overflows or vanishes, however large or small the values are. What the rounded mean is off by
is known after the second pass and taken out of all moments. Engines add the float64 terms in orders
of their own, so their results differ in the last digits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.analysis.aggregates import Chain
from ctr_pipeline.analysis.sql import Query, central_query, mean_query
from ctr_pipeline.statistics import Moments

RowsOf = Callable[[Query, dict[str, float]], list[tuple[Any, ...]]]

# Powers of two beyond these would not be float64 numbers.
_LARGEST_EXPONENT = 1022


@dataclass(frozen=True)
class ValueRange:
    """The finite values after a chain, as `range_query` gives them.

    Attributes:
        count: Rows.
        minimum: None without rows, as the next.
        maximum: The largest.
        weight: What the rows weigh; None without weights.
    """

    count: int
    minimum: float | None
    maximum: float | None
    weight: float | None = None


def read_ranges(row: Sequence[Any], num_chains: int) -> list[ValueRange]:
    """One range a chain, from the columns of `range_query`."""
    width = len(row) // num_chains
    return [ValueRange(*row[first : first + width]) for first in range(0, len(row), width)]


def collect_moments(
    rows_of: RowsOf,
    ranges: Mapping[Chain, ValueRange],
    parameters_of: Callable[[Sequence[Chain]], dict[str, float]],
) -> dict[Chain, Moments]:
    """Moments of the finite values of the table of value counts, after each of some chains.

    Args:
        rows_of: Runs a query with its parameters.
        ranges: Ranges of each chain; all begin alike, as one query takes them.
        parameters_of: Gives the parameters of a query of some chains, such as `chain_parameters`.

    Returns:
        Where ranges have a weight, mean, deviation and skew weigh rows, unless all rows with a
            finite value weigh nothing.
    """
    found: dict[Chain, Moments] = {}
    for weighted in (False, True):
        chosen = {
            chain: one
            for chain, one in ranges.items()
            if one.count and bool(one.weight) is weighted
        }
        if chosen:
            found |= _collect(rows_of, chosen, parameters_of(tuple(chosen)), weighted=weighted)
    return {chain: found.get(chain) or _no_moments(one.weight) for chain, one in ranges.items()}


def _no_moments(weight: float | None) -> Moments:
    return Moments(
        count=0,
        mean=None,
        standard_deviation=None,
        minimum=None,
        maximum=None,
        skew=None,
        weight=weight,
    )


def _collect(
    rows_of: RowsOf,
    ranges: Mapping[Chain, ValueRange],
    parameters: dict[str, float],
    *,
    weighted: bool,
) -> dict[Chain, Moments]:
    """Of chains with values, weighed or not, by two queries."""
    chains = tuple(ranges)
    ends = [(one.minimum or 0.0, one.maximum or 0.0) for one in ranges.values()]
    totals = [(one.weight or 0.0) if weighted else one.count for one in ranges.values()]
    # x = value / 2^size lies in (-1, 1).
    sizes = [_exponent_above(max(abs(low), abs(high))) for low, high in ends]
    shrinks = [math.ldexp(1.0, -size) for size in sizes]
    parameters = parameters | {f"shrink{place}": shrink for place, shrink in enumerate(shrinks)}
    (sums,) = rows_of(mean_query(chains, weighted=weighted), parameters)
    # Rounding must not take the mean beyond the ends: where both are one value, that is the mean.
    centers = [
        min(max(one / total, low * shrink), high * shrink)
        for one, total, shrink, (low, high) in zip(sums, totals, shrinks, ends, strict=True)
    ]
    # y = (x - center) / 2^width lies in [-1, 1] as well.
    widths = [
        _exponent_above(max(abs(low * shrink - center), abs(high * shrink - center)))
        for (low, high), shrink, center in zip(ends, shrinks, centers, strict=True)
    ]
    for place, (center, width) in enumerate(zip(centers, widths, strict=True)):
        parameters |= {f"center{place}": center, f"stretch{place}": math.ldexp(1.0, -width)}
    (powers,) = rows_of(central_query(chains, weighted=weighted), parameters)
    found = {}
    for place, (chain, one) in enumerate(ranges.items()):
        size, width, total, (low, high) = sizes[place], widths[place], totals[place], ends[place]
        first, second, third = (power / total for power in powers[3 * place : 3 * place + 3])
        variance, third = _about_the_mean(first, second, third)
        mean = centers[place] + math.ldexp(first, width)
        found[chain] = Moments(
            count=one.count,
            # Adding 0 makes 0 of -0, which SQL does not tell apart.
            mean=math.ldexp(mean, size) + 0.0,
            standard_deviation=math.ldexp(math.sqrt(variance), size + width),
            minimum=low + 0.0,
            maximum=high + 0.0,
            skew=third / variance**1.5 if variance > 0 else None,
            weight=one.weight,
        )
    return found


def _about_the_mean(first: float, second: float, third: float) -> tuple[float, float]:
    """Second and third central moment, from moments about a number near the mean."""
    variance = second - first**2
    return max(variance, 0.0), third - 3 * first * second + 2 * first**3


def _exponent_above(bound: float) -> int:
    """The smallest usable e with bound < 2^e."""
    exponent = math.frexp(bound)[1] if bound > 0 else 0
    return max(exponent, -_LARGEST_EXPONENT)
