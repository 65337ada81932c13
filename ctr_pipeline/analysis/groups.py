"""Groups of the rows of a column: those of each text, intervals of numbers, bins of a histogram."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
from sqlglot import exp

from ctr_pipeline.analysis.information import Groups, label_information
from ctr_pipeline.analysis.small_counts import (
    Answer,
    Parameters,
    Rows,
    SmallCounts,
    listed_parameters,
    none_at_end,
    positions_among,
    sum_groups,
)
from ctr_pipeline.analysis.sql import (
    Query,
    RowsOf,
    case_of,
    integer,
    largest_float,
    named,
    number_parameter,
    sums_by,
    value_column,
)
from ctr_pipeline.analysis.top_values import NUM_TOP_VALUES
from ctr_pipeline.analysis.value_counts import cleaned_counts
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import HistogramBin, LabelInformation, Moments
from ctr_pipeline.summary_statistics.registry import TEXT_STATISTICS

MAX_BINS = 20
HEAVY_SKEW = 2.0
"""Beyond this skew, equal widths would put nearly all rows into one bin."""


@dataclass(frozen=True)
class ColumnGroups:
    """The groups that the rows of a column fall into.

    Attributes:
        information: What they say about the click.
        cuts: Ends of the intervals of a number column.
        num_rows: Rows by number of the interval, None for missing ones, of a number column.
    """

    information: LabelInformation | None
    cuts: tuple[float, ...] = ()
    num_rows: dict[int | None, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TextGroups:
    """The groups of a text column.

    Attributes:
        summary: Summary statistics, by name.
        counts: As `counts_query` would give it.
    """

    groups: ColumnGroups
    summary: dict[str, float | int]
    counts: tuple[int, int, int, int]


def group_values(rows_of: RowsOf) -> TextGroups:
    """Every value is a group of rows, the missing ones are one more."""
    found = rows_of(group_sizes_query(), {})
    sizes = [tuple(sizes) for is_missing, *sizes in found if not is_missing]
    missing = [tuple(sizes) for is_missing, *sizes in found if is_missing]
    values = np.array(sizes, np.int64).reshape(-1, 3)
    summary = {one.name: one.finish(values[:, 0], values[:, 2]) for one in TEXT_STATISTICS}
    num_distinct = sum(num_values for _, _, num_values in sizes)
    # NULL and '' are one group, of rows that lack a value.
    num_missing = sum(rows * num_values for rows, _, num_values in missing)
    missing_clicks = sum(clicks * num_values for _, clicks, num_values in missing)
    if num_missing:
        sizes.append((num_missing, missing_clicks, 1))
    rows_G, clicks_G, times_G = np.array(sizes, np.int64).reshape(-1, 3).T
    information = label_information(Groups(rows_G, clicks_G, times_G))
    return TextGroups(
        ColumnGroups(information),
        {name: value for name, value in summary.items() if value is not None},
        (num_missing, missing_clicks, 0, num_distinct),
    )


def group_numbers(
    rows_of: RowsOf, cuts: Sequence[float], edges: tuple[float, ...]
) -> tuple[ColumnGroups, tuple[HistogramBin, ...]]:
    """Every interval is a group of rows, the missing ones are one more; and the histogram."""
    inner = edges[1:-1]
    # Of one length for all columns, so that all have one query: no value is above a cut and not
    # above an equal one before it.
    parameters = _padded("cut", cuts, NUM_TOP_VALUES) | _padded("edge", inner, MAX_BINS - 1)
    of_places: dict[int | None, list[int]] = {}
    of_bins: dict[int | None, list[int]] = {}
    for place, bin_, *counts in rows_of(bins_query(NUM_TOP_VALUES, MAX_BINS - 1), parameters):
        for found, key in (
            (of_places, place if place is None else min(place, len(cuts))),
            (of_bins, bin_ if bin_ is None else min(bin_, len(inner))),
        ):
            sums = found.setdefault(key, [0, 0])
            sums[:] = [one + other for one, other in zip(sums, counts, strict=True)]
    sizes = np.array(list(of_places.values()), np.int64).reshape(-1, 2)
    information = label_information(Groups(sizes[:, 0], sizes[:, 1], np.ones(len(sizes), np.int64)))
    num_rows = {place: rows for place, (rows, _) in of_places.items()}
    return ColumnGroups(information, tuple(cuts), num_rows), histogram_bins(of_bins, edges)


def _padded(name: str, numbers: Sequence[float], length: int) -> dict[str, float]:
    last = numbers[-1] if numbers else 0.0
    padded = [*numbers, *[last] * (length - len(numbers))]
    return {f"{name}{index}": number for index, number in enumerate(padded)}


def histogram_bins(
    found: Mapping[int | None, Sequence[int]], edges: tuple[float, ...]
) -> tuple[HistogramBin, ...]:
    """Bins between edges, from rows and clicks by number of the bin."""
    bins = []
    for index, (left, right) in enumerate(pairwise(edges)):
        count, clicks = found.get(index, (0, 0))
        rate = clicks / count if count else None
        bins.append(HistogramBin(left=left, right=right, count=count, label_rate=rate))
    return tuple(bins)


@cache
def group_sizes_query() -> Query:
    """How many values of a text column have so many rows and clicks, missing ones apart.

    `is_missing` is 1 for NULL and '', which may be two values.
    """
    missing = exp.Is(this=value_column(), expression=exp.null())
    kept = [exp.column(name) for name in ("num_rows", "num_clicks")]
    rows = exp.select(
        named(exp.Case().when(missing, integer(1)).else_(integer(0)), "is_missing"), *kept
    ).from_(cleaned_counts(ColumnType.TEXT))
    keys = [exp.column("is_missing"), *(one.copy() for one in kept)]
    return Query(
        exp.select(*keys, named(exp.Count(this=exp.Star()), "num_values"))
        .from_(rows.subquery("groups"))
        .group_by(*keys)
        .order_by(*keys),
        count_group_sizes,
    )


@cache
def bins_query(num_cuts: int, num_inner_edges: int) -> Query:
    """Rows and clicks by interval and bin: two histograms of a column in one scan.

    Interval i, `place`, holds the values above i cuts, $cut0 and so on: it is open on the left and
    closed on the right, the first and last have no end; infinite values are in those. Missing ones
    have the interval NULL. Bin i holds finite values at or above i of the inner edges, $edge0 and
    so on; others have the bin NULL. Cuts and edges ascend; of equal ones the first is meant.
    """
    is_missing = exp.Is(this=value_column(), expression=exp.null())
    is_infinite = exp.GT(this=exp.Abs(this=value_column()), expression=largest_float())
    branches: list[tuple[exp.Expr, exp.Expr]] = [
        (exp.Or(this=is_missing, expression=is_infinite), exp.null())
    ]
    for index in range(num_inner_edges):
        below = exp.LT(this=value_column(), expression=number_parameter(f"edge{index}"))
        branches.append((below, integer(index)))
    bins = case_of(branches, integer(num_inner_edges))
    rows = exp.select(
        named(interval_of(num_cuts, "cut"), "place"),
        named(bins, "bin"),
        exp.column("num_rows"),
        exp.column("num_clicks"),
    ).from_(cleaned_counts(ColumnType.NUMBER))
    return Query(
        sums_by(["place", "bin"], rows, ["num_rows", "num_clicks"]),
        count_bins(num_cuts, num_inner_edges),
    )


def interval_of(num_edges: int, name: str) -> exp.Expr:
    """The number of edges below the value, which placeholders of this name hold."""
    branches: list[tuple[exp.Expr, exp.Expr]] = [
        (exp.Is(this=value_column(), expression=exp.null()), exp.null())
    ]
    for index in range(num_edges):
        upto = exp.LTE(this=value_column(), expression=number_parameter(f"{name}{index}"))
        branches.append((upto, integer(index)))
    return case_of(branches, integer(num_edges))


def count_group_sizes(counts: SmallCounts, parameters: Parameters) -> Rows:
    """As `group_sizes_query`."""
    del parameters
    is_missing = [0 if text else 1 for text in counts.texts]
    groups = zip(is_missing, counts.num_rows.tolist(), counts.num_clicks.tolist(), strict=True)
    return [(*group, times) for group, times in sorted(Counter(groups).items())]


def count_bins(num_cuts: int, num_inner_edges: int) -> Answer:
    """As `bins_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        places = positions_among(counts.numbers, listed_parameters("cut", num_cuts, parameters))
        edges = listed_parameters("edge", num_inner_edges, parameters)
        bins = np.searchsorted(edges, counts.numbers, side="right")
        # After all others, as NULL is.
        bins[~np.isfinite(counts.numbers)] = none = num_inner_edges + 1
        keys = places * (none + 1) + bins
        found, inverse = np.unique(keys, return_inverse=True)
        sums = (sum_groups(inverse, one).tolist() for one in (counts.num_rows, counts.num_clicks))
        found_places, found_bins = np.divmod(found, none + 1)
        return list(
            zip(
                none_at_end(found_places, num_cuts + 1),
                none_at_end(found_bins, none),
                *sums,
                strict=True,
            )
        )

    return answer


def plan_edges(
    moments: Moments, skew: float, few_values: Sequence[float] | None
) -> tuple[float, ...]:
    """Edges of at most 20 bins, ascending; empty if there is no finite value.

    Args:
        moments: Moments of the finite values.
        few_values: All distinct finite values, ascending, where there are no more than 20: each
            gets a bin of its own. None where there are more: bins have equal widths, or, of a
            skewed column, equal widths of asinh(x), which is a logarithm on either side of 0.
    """
    if moments.minimum is None or moments.maximum is None:
        return ()
    if few_values is not None:
        return (*few_values, few_values[-1])
    low, high = moments.minimum, moments.maximum
    if abs(skew) > HEAVY_SKEW:
        inner = np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(high), MAX_BINS + 1)[1:-1])
    else:
        # Not low + share * (high - low), whose difference may overflow.
        shares = np.linspace(0.0, 1.0, MAX_BINS + 1)[1:-1]
        inner = low * (1.0 - shares) + high * shares
    # Rounding must not move an edge beyond the ends, nor make two of one.
    distinct = np.unique(inner[(inner > low) & (inner < high)])
    return (low, *distinct.tolist(), high)
