"""Missing, infinite and distinct values of a column, and the range of its numbers after chains."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sqlglot import exp

from ctr_pipeline.analysis.small_counts import (
    Answer,
    Parameters,
    Rows,
    SmallCounts,
    values_after_chains,
)
from ctr_pipeline.analysis.sql import (
    Chains,
    Query,
    largest_float,
    named,
    sum_if,
    value_column,
    weight_if,
)
from ctr_pipeline.analysis.statistics_plan import Chain, ColumnPlan
from ctr_pipeline.analysis.value_counts import cleaned_counts, finite_values, has_small_answer
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics

NUM_COUNTS = 4
"""Columns of `counts_query` before the ranges."""


@cache
def counts_query(column_type: ColumnType, chains: Chains = (), *, weighted: bool = False) -> Query:
    """Missing rows and their clicks, infinite rows, distinct values; of numbers, ranges as well.

    Args:
        chains: Chains of numbers for which `range_query` is needed too. One scan gives both.
        weighted: As in `range_query`.
    """
    missing = exp.Is(this=value_column(), expression=exp.null())
    infinite: exp.Expr = exp.false()
    if column_type is ColumnType.NUMBER:
        infinite = exp.GT(this=exp.Abs(this=value_column()), expression=largest_float())
    rows = finite_values(chains, weighted=weighted) if chains else cleaned_counts(column_type)
    return Query(
        exp.select(
            named(sum_if("num_rows", missing), "num_missing"),
            named(sum_if("num_clicks", missing), "missing_clicks"),
            named(sum_if("num_rows", infinite), "num_infinite"),
            named(exp.Count(this=value_column()), "num_distinct"),
            *_ranges(len(chains), weighted=weighted),
        ).from_(rows),
        answer_counts(chains)
        if column_type is ColumnType.NUMBER and has_small_answer(chains, weighted=weighted)
        else None,
    )


@cache
def range_query(chains: Chains, *, weighted: bool = False) -> Query:
    """Finite rows after each chain, smallest and largest value; with weights, what they weigh."""
    ranges = _ranges(len(chains), weighted=weighted)
    return Query(
        exp.select(*ranges).from_(finite_values(chains, weighted=weighted)),
        answer_ranges(chains) if has_small_answer(chains, weighted=weighted) else None,
    )


def _ranges(num_chains: int, *, weighted: bool) -> list[exp.Expr]:
    columns: list[exp.Expr] = []
    for place in range(num_chains):
        value = exp.column(f"value{place}")
        finite = exp.Not(this=exp.Is(this=value, expression=exp.null()))
        columns += [
            named(sum_if("num_rows", finite), f"num_rows{place}"),
            named(exp.Min(this=value.copy()), f"minimum{place}"),
            named(exp.Max(this=value.copy()), f"maximum{place}"),
        ]
        if weighted:
            columns.append(named(weight_if("weight", finite), f"weight{place}"))
    return columns


def answer_counts(chains: Sequence[Chain]) -> Answer:
    """As `counts_query` of numbers."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        is_missing = np.isnan(counts.numbers)
        row: list[Any] = [
            int(counts.num_rows[is_missing].sum()),
            int(counts.num_clicks[is_missing].sum()),
            int(counts.num_rows[np.isinf(counts.numbers)].sum()),
            int(len(is_missing) - np.count_nonzero(is_missing)),
        ]
        if chains:
            row += answer_ranges(chains)(counts, parameters)[0]
        return [tuple(row)]

    return answer


def answer_ranges(chains: Sequence[Chain]) -> Answer:
    """As `range_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        row: list[Any] = []
        for values in values_after_chains(counts, chains, parameters):
            is_finite = ~np.isnan(values)
            finite = values[is_finite]
            ends = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
            row += [int(counts.num_rows[is_finite].sum()), *ends]
        return [tuple(row)]

    return answer


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


def count_statistics(plan: ColumnPlan, num_rows: int, row: Sequence[Any]) -> ColumnStatistics:
    """The statistics of a column that `counts_query` gives alone.

    Args:
        num_rows: Training rows.
        row: The first columns of the query.
    """
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
