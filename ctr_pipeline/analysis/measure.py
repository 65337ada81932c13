"""The statistics of one column, from its table of value counts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ctr_pipeline.analysis.aggregates import Chain, ColumnPlan, WeightPlan
from ctr_pipeline.analysis.chains import apply_chain, chain_parameters
from ctr_pipeline.analysis.histogram import plan_edges
from ctr_pipeline.analysis.information import Groups, label_information
from ctr_pipeline.analysis.moments import RowsOf, collect_moments
from ctr_pipeline.analysis.sql import (
    Query,
    drop_query,
    element_counts_query,
    frequent_values_query,
    group_sizes_query,
    histogram_query,
    interval_query,
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
from ctr_pipeline.features import ColumnType, SequenceSpec, VectorSpec, expression_key
from ctr_pipeline.statistics import (
    ColumnDrift,
    ColumnStatistics,
    HistogramBin,
    LabelInformation,
    LengthStatistics,
    Moments,
    ValueCount,
)

NUM_TOP_VALUES = 20
PROFILE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PROFILE_PARTS = 20


RowsOfSamples = Callable[[Query, Mapping[str, float | str]], list[tuple[Any, ...]]]
"""As `RowsOf`, for queries that may have a text among their parameters."""


@dataclass(frozen=True)
class ColumnGroups:
    """The groups that the rows of a column fall into.

    Attributes:
        information: What they say about the click.
        cuts: Ends of the intervals of a number column.
        num_rows: Rows by number of the interval, None for missing ones, of a number column.
        num_singletons: Values of a text column that occur once.
    """

    information: LabelInformation | None
    cuts: tuple[float, ...] = ()
    num_rows: dict[int | None, int] = field(default_factory=dict)
    num_singletons: int = 0


@dataclass(frozen=True)
class MeasuredColumn:
    """What was found about one column; vocabularies are apart, for their size.

    Attributes:
        statistics: Of the column itself.
        moments: By expression key.
        boundaries: By expression key, then by the number of quantiles as text.
        groups: With a profile: what other rows of the column can be compared with.
    """

    statistics: ColumnStatistics
    moments: dict[str, Moments] = field(default_factory=dict)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    groups: ColumnGroups | None = None


def measure_column(
    rows_of: RowsOf, plan: ColumnPlan, num_rows: int, weight: WeightPlan | None = None
) -> MeasuredColumn:
    """Derives everything that `plan` asks for.

    Args:
        rows_of: Runs a query on the table of value counts of the column.
        plan: What to derive.
        num_rows: Training rows.
        weight: How rows are weighed; None: all alike.
    """
    weighted = weight is not None
    lengths = vectors = None
    if plan.sequence is not None:
        lengths = _use_elements(rows_of, plan.sequence, weighted=weighted)
    if plan.vector is not None:
        vectors = _use_numbers(rows_of, plan.vector, weighted=weighted)
    moments: dict[str, Moments] = {}
    # Shorter chains come first, so that the moments a longer one needs are known.
    for chain in plan.moments:
        parameters = chain_parameters(plan.column, chain, moments)
        key = expression_key(plan.column, chain)
        moments[key] = collect_moments(rows_of, chain, parameters, weight)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = {}
    for wanted in plan.boundaries:
        key = expression_key(plan.column, wanted.chain)
        cuts = _boundaries(rows_of, plan, wanted.chain, wanted.num_quantiles, moments)
        boundaries.setdefault(key, {})[str(wanted.num_quantiles)] = cuts
    statistics = _summary(rows_of, plan, num_rows)
    if lengths is not None or vectors is not None:
        statistics = statistics.model_copy(update=lengths or vectors)
    if not plan.profile:
        return MeasuredColumn(statistics, moments, boundaries)
    if lengths is not None:
        # Elements are no rows: neither their clicks nor their shares are compared as such.
        statistics = statistics.model_copy(update={"top_values": _top_values(rows_of, plan)})
        return MeasuredColumn(statistics, moments, boundaries)
    if vectors is not None:
        # Numbers of vectors are no rows either.
        profiled, _ = _profile_number(rows_of, plan, statistics, moments[plan.column])
        statistics = profiled.model_copy(update={"top_values": (), "label_information": None})
        return MeasuredColumn(statistics, moments, boundaries)
    if plan.value_type is ColumnType.TEXT:
        groups = _group_values(rows_of, statistics)
        top_values = _top_values(rows_of, plan)
        statistics = statistics.model_copy(
            update={"top_values": top_values, "label_information": groups.information}
        )
    else:
        statistics, groups = _profile_number(rows_of, plan, statistics, moments[plan.column])
    return MeasuredColumn(statistics, moments, boundaries, groups)


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


def _summary(rows_of: RowsOf, plan: ColumnPlan, num_rows: int) -> ColumnStatistics:
    ((num_missing, missing_clicks, num_infinite, num_distinct),) = rows_of(
        summary_query(plan.value_type), {}
    )
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
    rows_of: RowsOf, plan: ColumnPlan, statistics: ColumnStatistics, moments: Moments
) -> tuple[ColumnStatistics, ColumnGroups]:
    quantiles: dict[str, float] = {}
    cuts: list[float] = []
    if moments.count:
        by_part = _quantiles(rows_of, plan, moments.count)
        # The last one is the maximum, above which there is nothing.
        cuts = sorted({value for part, value in by_part.items() if part < _PROFILE_PARTS})
        quantiles = {str(q): by_part[round(q * _PROFILE_PARTS)] for q in PROFILE_QUANTILES}
    top_values = _top_values(rows_of, plan)
    few_values = None
    if statistics.num_distinct <= NUM_TOP_VALUES:
        numbers = (float(top.value) for top in top_values)
        few_values = sorted(number for number in numbers if math.isfinite(number))
    edges = plan_edges(moments, few_values)
    groups = _group_numbers(rows_of, few_values or cuts)
    profiled = statistics.model_copy(
        update={
            "moments": moments,
            "quantiles": quantiles,
            "top_values": top_values,
            "histogram": _histogram(rows_of, edges),
            "label_information": groups.information,
        }
    )
    return profiled, groups


def _quantiles(rows_of: RowsOf, plan: ColumnPlan, count: int) -> dict[int, float]:
    rows = rows_of(quantile_query(()), {"num_quantiles": _PROFILE_PARTS, "total": count})
    return {part: value + 0.0 for value, _, first, last in rows for part in range(first, last + 1)}


def _boundaries(
    rows_of: RowsOf,
    plan: ColumnPlan,
    chain: Chain,
    num_quantiles: int,
    moments: dict[str, Moments],
) -> tuple[float, ...]:
    parameters = chain_parameters(plan.column, chain, moments)
    ((count, _, _),) = rows_of(range_query(chain), parameters)
    if count == 0:
        return ()
    rows = rows_of(
        quantile_query(chain), parameters | {"num_quantiles": num_quantiles, "total": count}
    )
    # The value that only the last quantile reaches is the maximum, not a cut point.
    sources = [source for _, source, first, _ in rows if first < num_quantiles]
    values = np.array([math.nan if source is None else source for source in sources], np.float64)
    return tuple((np.unique(apply_chain(values, plan.column, chain, moments)) + 0.0).tolist())


def _top_values(rows_of: RowsOf, plan: ColumnPlan) -> tuple[ValueCount, ...]:
    rows = rows_of(frequent_values_query(plan.value_type, 1, NUM_TOP_VALUES), {})
    return tuple(
        ValueCount(
            value=value if isinstance(value, str) else number_text(value),
            count=count,
            label_rate=clicks / count,
        )
        for value, count, clicks in rows
    )


def _group_values(rows_of: RowsOf, statistics: ColumnStatistics) -> ColumnGroups:
    """Every value is a group of rows, the missing ones are one more."""
    sizes = [tuple(row) for row in rows_of(group_sizes_query(), {})]
    num_singletons = sum(num_values for num_rows, _, num_values in sizes if num_rows == 1)
    if statistics.num_missing:
        rate = statistics.missing_label_rate or 0.0
        num_clicks = round(rate * statistics.num_missing)
        sizes.append((statistics.num_missing, num_clicks, 1))
    rows_G, clicks_G, times_G = np.array(sizes, np.int64).reshape(-1, 3).T
    information = label_information(Groups(rows_G, clicks_G, times_G))
    return ColumnGroups(information, num_singletons=num_singletons)


def _group_numbers(rows_of: RowsOf, cuts: Sequence[float]) -> ColumnGroups:
    """Every interval is a group of rows, the missing ones are one more."""
    parameters = {f"edge{index}": cut for index, cut in enumerate(cuts)}
    rows = rows_of(interval_query(len(cuts)), parameters)
    sizes = np.array([row[1:] for row in rows], np.int64).reshape(-1, 2)
    information = label_information(Groups(sizes[:, 0], sizes[:, 1], np.ones(len(sizes), np.int64)))
    return ColumnGroups(information, tuple(cuts), {place: count for place, count, _ in rows})


def compare_column(
    rows_of: RowsOfSamples, measured: MeasuredColumn, num_samples: int
) -> tuple[ColumnDrift, ...]:
    """How far the column of each sample of other rows is from what was measured.

    Args:
        rows_of: Runs a query on the tables of the training rows and of the samples.
        measured: Of the training rows, with a profile.
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
    return tuple(drift_of_values(statistics, groups.num_singletons, rows) for rows in found)


def _histogram(rows_of: RowsOf, edges: tuple[float, ...]) -> tuple[HistogramBin, ...]:
    if not edges:
        return ()
    inner = edges[1:-1]
    parameters = {f"edge{index}": edge for index, edge in enumerate(inner)}
    found = {
        index: (count, clicks)
        for index, count, clicks in rows_of(histogram_query(len(inner)), parameters)
    }
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
