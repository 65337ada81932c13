"""The statistics of one column, from its table of value counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ctr_pipeline.analysis.groups import ColumnGroups, group_numbers, group_values, plan_edges
from ctr_pipeline.analysis.lists import use_elements, use_numbers
from ctr_pipeline.analysis.moments import measure_moments
from ctr_pipeline.analysis.quantiles import (
    PROFILE_PARTS,
    PROFILE_QUANTILES,
    boundaries_of,
    measure_quantiles,
)
from ctr_pipeline.analysis.ranges import count_statistics, counts_query
from ctr_pipeline.analysis.sql import RowsOf
from ctr_pipeline.analysis.statistics_plan import ColumnPlan
from ctr_pipeline.analysis.top_values import NUM_TOP_VALUES, as_top_values, frequent_values_query
from ctr_pipeline.features import expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, Moments


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
        lengths = use_elements(rows_of, plan.sequence, weighted=weighted)
    if plan.vector is not None:
        vectors = use_numbers(rows_of, plan.vector, weighted=weighted)
    is_plain_text = plan.column_type is ColumnType.TEXT and lengths is None and vectors is None
    moments, summary, counts = measure_moments(rows_of, plan, weighted=weighted)
    quantiles = measure_quantiles(rows_of, plan, moments)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = {}
    for wanted in plan.boundaries:
        key = expression_key(plan.column, wanted.chain)
        found = quantiles[wanted.chain, wanted.num_quantiles]
        cuts = boundaries_of(found, plan.column, wanted.chain, moments)
        boundaries.setdefault(key, {})[str(wanted.num_quantiles)] = cuts
    groups = group_values(rows_of) if plan.profile and is_plain_text else None
    if groups is not None:
        counts = groups.counts
    elif counts is None:
        ((*counts,),) = rows_of(counts_query(plan.value_type), {})
    statistics = count_statistics(plan, num_rows, counts)
    if lengths is not None or vectors is not None:
        statistics = statistics.model_copy(update=lengths or vectors)
    if not plan.profile:
        return MeasuredColumn(statistics, moments, boundaries)
    if top_values is None:
        top_values = rows_of(frequent_values_query(plan.value_type, 1, NUM_TOP_VALUES), {})
    top = as_top_values(top_values)
    if groups is not None:
        statistics = statistics.model_copy(
            update={
                "top_values": top,
                "label_information": groups.groups.information,
                "summary": groups.summary,
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
        statistics.model_copy(update={"top_values": top, "summary": summary}),
        moments[plan.column],
        of_parts,
    )
    if vectors is not None:
        # Numbers of vectors are no rows either.
        statistics = statistics.model_copy(update={"top_values": (), "label_information": None})
        return MeasuredColumn(statistics, moments, boundaries)
    return MeasuredColumn(statistics, moments, boundaries, of_rows)


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
        cuts = sorted({value for part, value in by_part.items() if part < PROFILE_PARTS})
        quantiles = {str(q): by_part[round(q * PROFILE_PARTS)] for q in PROFILE_QUANTILES}
    few_values = None
    if statistics.num_distinct <= NUM_TOP_VALUES:
        numbers = (float(top.value) for top in statistics.top_values)
        few_values = sorted(number for number in numbers if math.isfinite(number))
    edges = plan_edges(moments, statistics.summary.get("skew", 0.0), few_values)
    groups, histogram = group_numbers(rows_of, few_values or cuts, edges)
    profiled = statistics.model_copy(
        update={
            "moments": moments,
            "quantiles": quantiles,
            "histogram": histogram,
            "label_information": groups.information,
        }
    )
    return profiled, groups
