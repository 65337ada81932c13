"""Moments in two passes: the mean, then what is made of the deviations from it.

Each value is scaled by a power of two into (-1, 1) first, and so are the deviations, so that no
power overflows or vanishes, however large or small the values are. What the rounded mean is off by
is known after the second pass and taken out of all moments. Engines add the float64 terms in orders
of their own, so their results differ in the last digits.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlglot import exp

from ctr_pipeline.analysis.chains import (
    chain_parameters,
    is_measurable,
)
from ctr_pipeline.analysis.ranges import (
    NUM_COUNTS,
    ValueRange,
    counts_query,
    range_query,
    read_ranges,
)
from ctr_pipeline.analysis.small_counts import (
    Answer,
    Parameters,
    Rows,
    SmallCounts,
    sum_small,
    values_after_chains,
)
from ctr_pipeline.analysis.sql import (
    Chains,
    Query,
    RowsOf,
    named,
    number_parameter,
    size_column,
    sum_over,
)
from ctr_pipeline.analysis.statistics_plan import Chain, ColumnPlan
from ctr_pipeline.analysis.value_counts import finite_values, has_small_answer
from ctr_pipeline.features import expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import (
    Moments,
)
from ctr_pipeline.summary_statistics.registry import NUMBER_STATISTICS

# Powers of two beyond these would not be float64 numbers.
_LARGEST_EXPONENT = 1022


class CollectedMoments(NamedTuple):
    """What is found about the values after some chains.

    Attributes:
        by_chain: Moments.
        summary: Summary statistics of the values themselves, by name.
    """

    by_chain: dict[Chain, Moments]
    summary: dict[str, float | int]


@cache
def mean_query(chains: Chains, *, weighted: bool = False) -> Query:
    """Sum of value times $shrink after each chain, over rows or what they weigh.

    Placeholders end in the chain's place: $shrink0 and so on.
    """
    totals = []
    for place in range(len(chains)):
        value = exp.column(f"value{place}")
        term = exp.Mul(this=value, expression=number_parameter(f"shrink{place}"))
        totals.append(named(sum_over(term, size_column(weighted)), f"total{place}"))
    return Query(
        exp.select(*totals).from_(finite_values(chains, weighted=weighted)),
        add_values(chains) if has_small_answer(chains, weighted=weighted) else None,
    )


@cache
def central_query(
    chains: Chains, *, weighted: bool = False, summarized: int | None = None
) -> Query:
    """Sums of y and y^2 after each chain, over rows or what they weigh.

    y = (value * $shrink - $center) * $stretch. Placeholders end in the chain's place: $shrink0 and
    so on.

    Args:
        summarized: The place of the chain whose y the terms of `NUMBER_STATISTICS` are of, which
            come after all others; None: of none.
    """
    size = size_column(weighted)
    terms, sums = [], []
    for place in range(len(chains)):
        value = exp.column(f"value{place}")
        centered = exp.Sub(
            this=exp.Mul(this=value, expression=number_parameter(f"shrink{place}")),
            expression=number_parameter(f"center{place}"),
        )
        y = exp.Mul(this=exp.Paren(this=centered), expression=number_parameter(f"stretch{place}"))
        terms.append(named(y, f"y{place}"))
        deviation = exp.column(f"y{place}")
        sums.append(named(sum_over(deviation, size), f"sum{place}"))
        sums.append(named(sum_over(deviation * deviation, size), f"squares{place}"))
    if summarized is not None:
        deviation = exp.column(f"y{summarized}")
        sums += [
            named(sum_over(term(deviation), size), f"{one.name}{number}")
            for one in NUMBER_STATISTICS
            for number, term in enumerate(one.terms)
        ]
    rows = exp.select(*terms, exp.column(size)).from_(finite_values(chains, weighted=weighted))
    return Query(
        exp.select(*sums).from_(rows.subquery("terms")),
        add_powers(chains, summarized) if has_small_answer(chains, weighted=weighted) else None,
    )


def add_values(chains: Sequence[Chain]) -> Answer:
    """As `mean_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        return [
            tuple(
                sum_small(values * float(parameters[f"shrink{place}"]), counts.num_rows)
                for place, values in enumerate(values_after_chains(counts, chains, parameters))
            )
        ]

    return answer


def add_powers(chains: Sequence[Chain], summarized: int | None) -> Answer:
    """As `central_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        row, terms = [], []
        for place, values in enumerate(values_after_chains(counts, chains, parameters)):
            shrink, center, stretch = (
                float(parameters[f"{name}{place}"]) for name in ("shrink", "center", "stretch")
            )
            y = (values * shrink - center) * stretch
            row += [sum_small(one, counts.num_rows) for one in (y, y * y)]
            if place == summarized:
                terms = [term(y) for one in NUMBER_STATISTICS for term in one.terms]
        return [(*row, *(sum_small(term, counts.num_rows) for term in terms))]

    return answer


class MeasuredMoments(NamedTuple):
    """What is found about a column and its chains.

    Attributes:
        by_key: Moments by expression key.
        summary: Summary statistics of a number column, by name.
        counts: The row of `counts_query`, which comes with the first ranges of a number column;
            None if it has not been asked for.
    """

    by_key: dict[str, Moments]
    summary: dict[str, float | int]
    counts: Sequence[Any] | None


def measure_moments(rows_of: RowsOf, plan: ColumnPlan, *, weighted: bool) -> MeasuredMoments:
    """The moments after all chains of the plan."""
    moments: dict[str, Moments] = {}
    summary: dict[str, float | int] = {}
    counts: Sequence[Any] | None = None
    pending = list(plan.moments)

    def parameters_of(chains: Sequence[Chain]) -> dict[str, float]:
        return chain_parameters(plan.column, chains, moments)

    while pending:
        # Shorter chains come first, so that the moments a longer one needs are known: all that can
        # be measured by now are, in the same queries.
        start = _text_start(pending[0])
        chains = tuple(
            chain
            for chain in pending
            if _text_start(chain) == start
            and (chain is pending[0] or is_measurable(plan.column, chain, moments))
        )
        row: Sequence[Any]
        if counts is None and plan.value_type is ColumnType.NUMBER:
            query = counts_query(ColumnType.NUMBER, chains, weighted=weighted)
            (row,) = rows_of(query, parameters_of(chains))
            counts, row = row[:NUM_COUNTS], row[NUM_COUNTS:]
        else:
            (row,) = rows_of(range_query(chains, weighted=weighted), parameters_of(chains))
        ranges = dict(zip(chains, read_ranges(row, len(chains)), strict=True))
        found = collect_moments(
            rows_of, ranges, parameters_of, summarized=() if plan.profile else None
        )
        summary |= found.summary
        for chain, one in found.by_chain.items():
            moments[expression_key(plan.column, chain)] = one
        pending = [chain for chain in pending if chain not in ranges]
    return MeasuredMoments(moments, summary, counts)


def _text_start(chain: Chain) -> Chain:
    """The step that makes a number of a text, if the chain begins with one."""
    return chain[:1] if chain and chain[0].kind.takes_text else ()


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
    """Moments of chains with values, weighed or not, by two queries."""
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
