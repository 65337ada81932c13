"""The statistics of one column, from its table of value counts."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ctr_pipeline.analysis.aggregates import Chain, ColumnPlan
from ctr_pipeline.analysis.chains import apply_chain, chain_parameters
from ctr_pipeline.analysis.histogram import plan_edges
from ctr_pipeline.analysis.moments import RowsOf, collect_moments
from ctr_pipeline.analysis.sql import (
    frequent_values_query,
    histogram_query,
    quantile_query,
    range_query,
    summary_query,
)
from ctr_pipeline.features import ColumnType, expression_key
from ctr_pipeline.statistics import ColumnStatistics, HistogramBin, Moments, ValueCount

NUM_TOP_VALUES = 20
PROFILE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PROFILE_PARTS = 20


@dataclass(frozen=True)
class MeasuredColumn:
    """What was found about one column; vocabularies are apart, for their size.

    Attributes:
        statistics: Of the column itself.
        moments: By expression key.
        boundaries: By expression key, then by the number of quantiles as text.
    """

    statistics: ColumnStatistics
    moments: dict[str, Moments] = field(default_factory=dict)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)


def measure_column(rows_of: RowsOf, plan: ColumnPlan, num_rows: int) -> MeasuredColumn:
    """Derives everything that `plan` asks for.

    Args:
        rows_of: Runs a query on the table of value counts of the column.
        plan: What to derive.
        num_rows: Training rows.
    """
    moments: dict[str, Moments] = {}
    # Shorter chains come first, so that the moments a longer one needs are known.
    for chain in plan.moments:
        parameters = chain_parameters(plan.column, chain, moments)
        moments[expression_key(plan.column, chain)] = collect_moments(rows_of, chain, parameters)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = {}
    for wanted in plan.boundaries:
        key = expression_key(plan.column, wanted.chain)
        cuts = _boundaries(rows_of, plan, wanted.chain, wanted.num_quantiles, moments)
        boundaries.setdefault(key, {})[str(wanted.num_quantiles)] = cuts
    statistics = _summary(rows_of, plan, num_rows)
    if plan.profile and plan.column_type is ColumnType.TEXT:
        statistics = statistics.model_copy(update={"top_values": _top_values(rows_of, plan)})
    elif plan.profile:
        statistics = _profile_number(rows_of, plan, statistics, moments[plan.column])
    return MeasuredColumn(statistics, moments, boundaries)


def _summary(rows_of: RowsOf, plan: ColumnPlan, num_rows: int) -> ColumnStatistics:
    ((num_missing, missing_clicks, num_infinite, num_distinct),) = rows_of(
        summary_query(plan.column_type), {}
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
) -> ColumnStatistics:
    quantiles: dict[str, float] = {}
    if moments.count:
        by_part = _quantiles(rows_of, plan, moments.count)
        quantiles = {str(q): by_part[round(q * _PROFILE_PARTS)] for q in PROFILE_QUANTILES}
    top_values = _top_values(rows_of, plan)
    few_values = None
    if statistics.num_distinct <= NUM_TOP_VALUES:
        numbers = (float(top.value) for top in top_values)
        few_values = sorted(number for number in numbers if math.isfinite(number))
    edges = plan_edges(moments, few_values)
    return statistics.model_copy(
        update={
            "moments": moments,
            "quantiles": quantiles,
            "top_values": top_values,
            "histogram": _histogram(rows_of, edges),
        }
    )


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
    rows = rows_of(frequent_values_query(plan.column_type, 1, NUM_TOP_VALUES), {})
    return tuple(
        ValueCount(
            value=value if isinstance(value, str) else number_text(value),
            count=count,
            label_rate=clicks / count,
        )
        for value, count, clicks in rows
    )


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
