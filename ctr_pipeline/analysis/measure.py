"""The statistics of one column, from its table of value counts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ctr_pipeline.analysis.chains import apply_chain, chain_parameters, is_measurable
from ctr_pipeline.analysis.histogram import MAX_BINS, plan_edges
from ctr_pipeline.analysis.information import Groups, label_information
from ctr_pipeline.analysis.moments import RowsOf, ValueRange, collect_moments, read_ranges
from ctr_pipeline.analysis.sql import (
    Query,
    bins_query,
    drop_query,
    element_counts_query,
    frequent_values_query,
    group_sizes_query,
    largest_counts_query,
    lengths_query,
    number_counts_query,
    other_intervals_query,
    other_values_query,
    quantile_query,
    range_query,
    rename_elements_query,
    rows_without_query,
    summary_query,
)
from ctr_pipeline.analysis.stability import (
    REST,
    UNSEEN,
    drift_of_intervals,
    drift_of_values,
)
from ctr_pipeline.analysis.statistics_plan import Chain, ColumnPlan
from ctr_pipeline.features import SequenceSpec, VectorSpec, expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import (
    ColumnDrift,
    ColumnStatistics,
    HistogramBin,
    LabelInformation,
    LengthStatistics,
    Moments,
    ValueCount,
)
from ctr_pipeline.summary_statistics.registry import TEXT_STATISTICS

NUM_TOP_VALUES = 20
PROFILE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PROFILE_PARTS = 20
_SUMMARY_COLUMNS = 4


RowsOfSamples = Callable[[Query, Mapping[str, float | str]], list[tuple[Any, ...]]]
"""As `RowsOf`, for queries that may have a text among their parameters."""


_NONE_HEAVY = 2**63 - 1
"""No value has so many rows."""


@dataclass(frozen=True)
class _Share:
    """How the rows of a column are divided into equal shares.

    Attributes:
        num_quantiles: Shares of the rows that are left when heavy values are taken out.
        heavy: Values of at least so many rows are heavy.
    """

    num_quantiles: int
    total: int
    heavy: int = _NONE_HEAVY


@dataclass(frozen=True)
class _Quantiles:
    """The quantiles of a column after a chain.

    Attributes:
        share: The rows that they describe.
        minimum: The smallest value; None without values.
        rows: As `quantile_query` gives them: value, value before the chain, first and last quantile
            that it is, and whether it is the start of a heavy value's interval or its end.
    """

    share: _Share
    minimum: float | None
    rows: Sequence[tuple[float, float | None, int, int, int]]


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
class MeasuredColumn:
    """What was found about one column; vocabularies are apart, for their size.

    Attributes:
        statistics: Statistics of the column itself.
        moments: By expression key.
        boundaries: By expression key, then by the number of quantiles as text.
        groups: With a profile: what other rows of the column can be compared with.
    """

    statistics: ColumnStatistics
    moments: dict[str, Moments] = field(default_factory=dict)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    groups: ColumnGroups | None = None


def measure_column(
    rows_of: RowsOf,
    plan: ColumnPlan,
    num_rows: int,
    top_values: Sequence[tuple[Any, ...]] | None = None,
    *,
    weighted: bool = False,
) -> MeasuredColumn:
    """Derives everything that `plan` asks for.

    Args:
        rows_of: Runs a query on the table of value counts of the column.
        num_rows: Training rows.
        top_values: The most frequent values with their rows and clicks, where they are known.
        weighted: Whether value counts say what rows weigh.
    """
    lengths = vectors = None
    if plan.sequence is not None:
        lengths = _use_elements(rows_of, plan.sequence, weighted=weighted)
    if plan.vector is not None:
        vectors = _use_numbers(rows_of, plan.vector, weighted=weighted)
    is_plain_text = plan.column_type is ColumnType.TEXT and lengths is None and vectors is None
    moments, described, summary = _measure_moments(rows_of, plan, weighted=weighted)
    quantiles = _measure_quantiles(rows_of, plan, moments)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = {}
    for wanted in plan.boundaries:
        key = expression_key(plan.column, wanted.chain)
        found = quantiles[wanted.chain, wanted.num_quantiles]
        cuts = _boundaries(found, plan.column, wanted.chain, moments)
        boundaries.setdefault(key, {})[str(wanted.num_quantiles)] = cuts
    groups = _group_values(rows_of, num_rows) if plan.profile and is_plain_text else None
    if groups is not None:
        summary = groups.summary
    elif summary is None:
        ((*summary,),) = rows_of(summary_query(plan.value_type), {})
    statistics = _summary(plan, num_rows, summary)
    if lengths is not None or vectors is not None:
        statistics = statistics.model_copy(update=lengths or vectors)
    if not plan.profile:
        return MeasuredColumn(statistics, moments, boundaries)
    if top_values is None:
        top_values = rows_of(frequent_values_query(plan.value_type, 1, NUM_TOP_VALUES), {})
    top = _top_values(top_values)
    if groups is not None:
        statistics = statistics.model_copy(
            update={
                "top_values": top,
                "label_information": groups.groups.information,
                "summary": groups.described,
            }
        )
        return MeasuredColumn(statistics, moments, boundaries, groups.groups)
    if lengths is not None:
        # Elements are no rows: neither their clicks nor their shares are compared as such.
        statistics = statistics.model_copy(update={"top_values": top})
        return MeasuredColumn(statistics, moments, boundaries)
    of_parts = quantiles[(), None].rows
    statistics, of_rows = _profile_number(
        rows_of,
        statistics.model_copy(update={"top_values": top, "summary": described}),
        moments[plan.column],
        of_parts,
    )
    if vectors is not None:
        # Numbers of vectors are no rows either.
        statistics = statistics.model_copy(update={"top_values": (), "label_information": None})
        return MeasuredColumn(statistics, moments, boundaries)
    return MeasuredColumn(statistics, moments, boundaries, of_rows)


def _measure_moments(
    rows_of: RowsOf, plan: ColumnPlan, *, weighted: bool
) -> tuple[dict[str, Moments], dict[str, float | int], Sequence[Any] | None]:
    """Moments by expression key; of numbers the row of `summary_query` comes with the first."""
    moments: dict[str, Moments] = {}
    described: dict[str, float | int] = {}
    summary: Sequence[Any] | None = None
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
        if summary is None and plan.value_type is ColumnType.NUMBER:
            query = summary_query(ColumnType.NUMBER, chains, weighted=weighted)
            (row,) = rows_of(query, parameters_of(chains))
            summary, row = row[:_SUMMARY_COLUMNS], row[_SUMMARY_COLUMNS:]
        else:
            (row,) = rows_of(range_query(chains, weighted=weighted), parameters_of(chains))
        ranges = dict(zip(chains, read_ranges(row, len(chains)), strict=True))
        found = collect_moments(
            rows_of, ranges, parameters_of, summarized=() if plan.profile else None
        )
        described |= found.summary
        for chain, one in found.by_chain.items():
            moments[expression_key(plan.column, chain)] = one
        pending = [chain for chain in pending if chain not in ranges]
    return moments, described, summary


def _text_start(chain: Chain) -> Chain:
    """The step that makes a number of a text, if the chain begins with one."""
    return chain[:1] if chain and chain[0].kind.takes_text else ()


def _measure_quantiles(
    rows_of: RowsOf, plan: ColumnPlan, moments: Mapping[str, Moments]
) -> dict[tuple[Chain, int | None], _Quantiles]:
    """By chain and n; those of the profile, which take no heavy value out, by None."""
    wanted: dict[Chain, dict[int | None, None]] = {}
    for one in plan.boundaries:
        wanted.setdefault(one.chain, {})[one.num_quantiles] = None
    if plan.profile and plan.value_type is ColumnType.NUMBER:
        wanted.setdefault((), {})[None] = None
    found: dict[tuple[Chain, int | None], _Quantiles] = {}
    for chain, sets in wanted.items():
        parameters = chain_parameters(plan.column, (chain,), moments)
        known: Moments | ValueRange | None = moments.get(expression_key(plan.column, chain))
        if known is None:
            (row,) = rows_of(range_query((chain,)), parameters)
            known = read_ranges(row, 1)[0]
        most = max((n for n in sets if n is not None), default=0)
        counts: list[int] = []
        if known.count and most:
            largest = rows_of(largest_counts_query(chain, most), parameters)
            counts = [count for (count,) in largest]
        shares = {
            n: _Share(_PROFILE_PARTS, known.count)
            if n is None
            else take_heavy_out(counts, n, known.count)
            for n in sets
        }
        rows = []
        if known.count:
            numbers = {
                f"{name}{place}": value
                for place, share in enumerate(shares.values())
                for name, value in asdict(share).items()
            }
            rows = rows_of(quantile_query(chain, len(sets)), parameters | numbers)
        for place, (n, share) in enumerate(shares.items()):
            found[chain, n] = _Quantiles(
                share,
                known.minimum,
                [
                    (value, source, *of_set[3 * place : 3 * place + 3])
                    for value, source, *of_set in rows
                ],
            )
    return found


def take_heavy_out(counts: Sequence[int], num_quantiles: int, total: int) -> _Share:
    """Takes out values that at least half of the rows that are left have, one after the other.

    Where there are no more values than shares, each is taken out. To take out whatever fills a
    share makes more intervals of small counts than clicks can tell apart: 0.001 of AUC on Criteo.

    Args:
        counts: Rows of the `num_quantiles` most frequent values, descending.
        num_quantiles: Shares of all rows.
        total: All rows.
    """
    heavy = _NONE_HEAVY
    frequent = counts[:num_quantiles]
    has_share_each = sum(frequent) == total
    for count in frequent:
        if not has_share_each and (2 * count < total or num_quantiles == 1):
            break
        num_quantiles, total, heavy = num_quantiles - 1, total - count, count
    # No row may be left, and there is nothing to divide then.
    return _Share(max(num_quantiles, 1), max(total, 1), heavy)


def _use_elements(rows_of: RowsOf, sequence: SequenceSpec, *, weighted: bool) -> dict[str, Any]:
    """Puts the elements of texts in the place of texts; what is known of rows by their length."""
    lengths = rows_of(lengths_query(sequence), {})
    made = element_counts_query(sequence, weighted=weighted)
    for query in (made, drop_query(), rename_elements_query()):
        rows_of(query, {})
    without = [(rows, clicks) for length, rows, clicks in lengths if length == 0]
    num_missing, missing_clicks = without[0] if without else (0, 0)
    return {
        "num_missing": num_missing,
        "missing_label_rate": missing_clicks / num_missing if num_missing else None,
        "lengths": LengthStatistics.of(
            {int(length): rows for length, rows, _ in lengths},
            sum(rows for length, rows, _ in lengths if length > sequence.max_length),
        ),
    }


def _use_numbers(rows_of: RowsOf, vector: VectorSpec, *, weighted: bool) -> dict[str, Any]:
    """Puts the numbers of vectors in the place of texts; what is known of rows without any."""
    ((num_missing, missing_clicks),) = rows_of(rows_without_query(), {})
    made = number_counts_query(vector, weighted=weighted)
    for query in (made, drop_query(), rename_elements_query()):
        rows_of(query, {})
    return {
        "num_missing": num_missing,
        "missing_label_rate": missing_clicks / num_missing if num_missing else None,
        "vector_length": vector.length,
    }


def _summary(plan: ColumnPlan, num_rows: int, row: Sequence[Any]) -> ColumnStatistics:
    num_missing, missing_clicks, num_infinite, num_distinct = row
    return ColumnStatistics(
        column=plan.column,
        column_type=plan.column_type,
        count=num_rows,
        num_missing=num_missing,
        num_infinite=num_infinite,
        num_distinct=num_distinct,
        missing_label_rate=missing_clicks / num_missing if num_missing else None,
    )


def _profile_number(
    rows_of: RowsOf,
    statistics: ColumnStatistics,
    moments: Moments,
    parts: Sequence[tuple[float, float | None, int, int, int]],
) -> tuple[ColumnStatistics, ColumnGroups]:
    quantiles: dict[str, float] = {}
    cuts: list[float] = []
    if moments.count:
        by_part = {
            part: value + 0.0
            for value, _, first, last, _ in parts
            for part in range(first, last + 1)
        }
        # The last one is the maximum, above which there is nothing.
        cuts = sorted({value for part, value in by_part.items() if part < _PROFILE_PARTS})
        quantiles = {str(q): by_part[round(q * _PROFILE_PARTS)] for q in PROFILE_QUANTILES}
    few_values = None
    if statistics.num_distinct <= NUM_TOP_VALUES:
        numbers = (float(top.value) for top in statistics.top_values)
        few_values = sorted(number for number in numbers if math.isfinite(number))
    edges = plan_edges(moments, statistics.summary.get("skew", 0.0), few_values)
    groups, histogram = _group_numbers(rows_of, few_values or cuts, edges)
    profiled = statistics.model_copy(
        update={
            "moments": moments,
            "quantiles": quantiles,
            "histogram": histogram,
            "label_information": groups.information,
        }
    )
    return profiled, groups


def _boundaries(
    quantiles: _Quantiles, column: str, chain: Chain, moments: Mapping[str, Moments]
) -> tuple[float, ...]:
    # Only the last quantile reaches the largest value, which then is no cut point; neither is the
    # smallest one, below which there is nothing.
    sources = [
        source
        for value, source, first, last, is_edge in quantiles.rows
        if value != quantiles.minimum
        and (is_edge or first <= min(last, quantiles.share.num_quantiles - 1))
    ]
    values = np.array([math.nan if source is None else source for source in sources], np.float64)
    return tuple((np.unique(apply_chain(values, column, chain, moments)) + 0.0).tolist())


def _top_values(rows: Sequence[tuple[Any, ...]]) -> tuple[ValueCount, ...]:
    return tuple(
        ValueCount(
            value=value if isinstance(value, str) else number_text(value),
            count=count,
            label_rate=clicks / count,
        )
        for value, count, clicks in rows
    )


@dataclass(frozen=True)
class _TextGroups:
    """The groups of a text column.

    Attributes:
        described: Summary statistics, by name.
        summary: As `summary_query` would give it.
    """

    groups: ColumnGroups
    described: dict[str, float | int]
    summary: tuple[int, int, int, int]


def _group_values(rows_of: RowsOf, num_rows: int) -> _TextGroups:
    """Every value is a group of rows, the missing ones are one more."""
    found = rows_of(group_sizes_query(), {})
    sizes = [tuple(sizes) for is_missing, *sizes in found if not is_missing]
    missing = [tuple(sizes) for is_missing, *sizes in found if is_missing]
    values = np.array(sizes, np.int64).reshape(-1, 3)
    described = {one.name: one.finish(values[:, 0], values[:, 2]) for one in TEXT_STATISTICS}
    num_distinct = sum(num_values for _, _, num_values in sizes)
    # NULL and '' are one group, of rows that lack a value.
    num_missing = sum(rows * num_values for rows, _, num_values in missing)
    missing_clicks = sum(clicks * num_values for _, clicks, num_values in missing)
    if num_missing:
        sizes.append((num_missing, missing_clicks, 1))
    rows_G, clicks_G, times_G = np.array(sizes, np.int64).reshape(-1, 3).T
    information = label_information(Groups(rows_G, clicks_G, times_G))
    return _TextGroups(
        ColumnGroups(information),
        {name: value for name, value in described.items() if value is not None},
        (num_missing, missing_clicks, 0, num_distinct),
    )


def _group_numbers(
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
    return ColumnGroups(information, tuple(cuts), num_rows), _histogram(of_bins, edges)


def _padded(name: str, numbers: Sequence[float], length: int) -> dict[str, float]:
    last = numbers[-1] if numbers else 0.0
    padded = [*numbers, *[last] * (length - len(numbers))]
    return {f"{name}{index}": number for index, number in enumerate(padded)}


def compare_column(
    rows_of: RowsOfSamples, measured: MeasuredColumn, num_samples: int
) -> tuple[ColumnDrift, ...]:
    """How far the column of each sample of other rows is from what was measured.

    Args:
        rows_of: Runs a query on the tables of the training rows and of the samples.
        measured: Statistics of the training rows, with a profile.
        num_samples: How many there are; each has rows.
    """
    statistics, groups = measured.statistics, measured.groups
    if groups is None:
        raise ValueError(f"column '{statistics.column}' was measured without a profile")
    if statistics.column_type is ColumnType.NUMBER:
        parameters = {f"edge{index}": cut for index, cut in enumerate(groups.cuts)}
        found: list[dict[int | None, int]] = [{} for _ in range(num_samples)]
        for sample, place, count in rows_of(other_intervals_query(len(groups.cuts)), parameters):
            found[sample][place] = count
        return tuple(
            drift_of_intervals(statistics, groups.cuts, groups.num_rows, rows) for rows in found
        )
    places = {top.value: place for place, top in enumerate(statistics.top_values, start=1)}
    last = statistics.top_values[-1:]
    limits: dict[str, float | str] = {
        "least_rows": last[0].count if last else 0,
        "last_value": last[0].value if last else "",
    }
    found = [{} for _ in range(num_samples)]
    for sample, is_known, value, count in rows_of(other_values_query(), limits):
        place = None
        if is_known is not None:
            known_place = REST if value is None else places[value]
            place = known_place if is_known else UNSEEN
        found[sample][place] = count
    return tuple(drift_of_values(statistics, rows) for rows in found)


def _histogram(
    found: Mapping[int | None, Sequence[int]], edges: tuple[float, ...]
) -> tuple[HistogramBin, ...]:
    """Bins between edges, from rows and clicks by number of the bin."""
    bins = []
    for index, (left, right) in enumerate(pairwise(edges)):
        count, clicks = found.get(index, (0, 0))
        rate = clicks / count if count else None
        bins.append(HistogramBin(left=left, right=right, count=count, label_rate=rate))
    return tuple(bins)


def number_text(value: float) -> str:
    """A number as a person writes it: `3`, not `3.0`; otherwise all digits that matter."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e16:
        return str(int(value))
    return repr(value)
