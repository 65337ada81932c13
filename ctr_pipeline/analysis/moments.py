"""Moments in two passes: the mean, then what is made of the deviations from it.

Each value is scaled by a power of two into (-1, 1) first, and so are the deviations, so that no
power overflows or vanishes, however large or small the values are. What the rounded mean is off by
is known after the second pass and taken out of all moments. Engines add the float64 terms in orders
of their own, so their results differ in the last digits.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ctr_pipeline.analysis.sql import Query, central_query, mean_query
from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.statistics import Moments
from ctr_pipeline.summary_statistics.registry import NUMBER_STATISTICS

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


class CollectedMoments(NamedTuple):
    """What is found about the values after some chains.

    Attributes:
        by_chain: Moments.
        summary: Summary statistics of the values themselves, by name.
    """

    by_chain: dict[Chain, Moments]
    summary: dict[str, float | int]


def read_ranges(row: Sequence[Any], num_chains: int) -> list[ValueRange]:
    """One range a chain, from the columns of `range_query`."""
    width = len(row) // num_chains
    return [ValueRange(*row[first : first + width]) for first in range(0, len(row), width)]


def collect_moments(
    rows_of: RowsOf,
    ranges: Mapping[Chain, ValueRange],
    parameters_of: Callable[[Sequence[Chain]], dict[str, float]],
    *,
    summarized: Chain | None = None,
) -> CollectedMoments:
    """Moments of the finite values of the table of value counts, after each of some chains.

    Args:
        rows_of: Runs a query with its parameters.
        ranges: Ranges of each chain; all begin alike, as one query takes them.
        parameters_of: Gives the parameters of a query of some chains, such as `chain_parameters`.
        summarized: The chain that summary statistics are of; None: of none.

    Returns:
        Where ranges have a weight, rows are weighed, unless all with a finite value weigh nothing.
    """
    found = CollectedMoments({}, {})
    for weighted in (False, True):
        chosen = {
            chain: one
            for chain, one in ranges.items()
            if one.count and bool(one.weight) is weighted
        }
        if chosen:
            parameters = parameters_of(tuple(chosen))
            some = _collect(rows_of, chosen, parameters, weighted=weighted, summarized=summarized)
            found = CollectedMoments(found.by_chain | some.by_chain, found.summary | some.summary)
    moments = {
        chain: found.by_chain.get(chain) or _no_moments(one.weight) for chain, one in ranges.items()
    }
    return found._replace(by_chain=moments)


def _no_moments(weight: float | None) -> Moments:
    return Moments(
        count=0,
        mean=None,
        standard_deviation=None,
        minimum=None,
        maximum=None,
        weight=weight,
    )


def _collect(
    rows_of: RowsOf,
    ranges: Mapping[Chain, ValueRange],
    parameters: dict[str, float],
    *,
    weighted: bool,
    summarized: Chain | None,
) -> CollectedMoments:
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
    of_place = chains.index(summarized) if summarized in ranges else None
    query = central_query(chains, weighted=weighted, summarized=of_place)
    (powers,) = rows_of(query, parameters)
    found, summary = {}, {}
    for place, (chain, one) in enumerate(ranges.items()):
        size, width, total, (low, high) = sizes[place], widths[place], totals[place], ends[place]
        first, second = (power / total for power in powers[2 * place : 2 * place + 2])
        variance = max(second - first**2, 0.0)
        mean = centers[place] + math.ldexp(first, width)
        if place == of_place:
            terms = [power / total for power in powers[2 * len(chains) :]]
            summary = _summarize(first, variance, terms)
        found[chain] = Moments(
            count=one.count,
            # Adding 0 makes 0 of -0, which SQL does not tell apart.
            mean=math.ldexp(mean, size) + 0.0,
            standard_deviation=math.ldexp(math.sqrt(variance), size + width),
            minimum=low + 0.0,
            maximum=high + 0.0,
            weight=one.weight,
        )
    return CollectedMoments(found, summary)


def _summarize(mean: float, variance: float, terms: Sequence[float]) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    rest = iter(terms)
    for one in NUMBER_STATISTICS:
        value = one.finish(mean, variance, *itertools.islice(rest, len(one.terms)))
        if value is not None:
            found[one.name] = value
    return found


def _exponent_above(bound: float) -> int:
    """The smallest usable e with bound < 2^e."""
    exponent = math.frexp(bound)[1] if bound > 0 else 0
    return max(exponent, -_LARGEST_EXPONENT)
