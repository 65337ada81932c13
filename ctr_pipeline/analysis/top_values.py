"""The most frequent values of a column."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from sqlglot import exp

from ctr_pipeline.analysis.small_counts import Answer, Parameters, Rows, SmallCounts
from ctr_pipeline.analysis.sql import (
    PART_COUNTS,
    Query,
    count_columns,
    integer,
    named,
    value_column,
    whole_sum,
)
from ctr_pipeline.analysis.value_counts import cleaned_counts
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ValueCount

NUM_TOP_VALUES = 20
"""Values that the report shows; a column of no more has an interval and a bin for each."""


def as_top_values(rows: Sequence[tuple[Any, ...]]) -> tuple[ValueCount, ...]:
    """The values for the report, from the rows of `frequent_values_query`."""
    return tuple(
        ValueCount(
            value=value if isinstance(value, str) else number_text(value),
            count=count,
            label_rate=clicks / count,
        )
        for value, count, clicks in rows
    )


def number_text(value: float) -> str:
    """A number as a person writes it: `3`, not `3.0`; otherwise all digits that matter."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e16:
        return str(int(value))
    return repr(value)


@cache
def frequent_values_query(
    column_type: ColumnType, min_count: int, max_size: int | None, *, weighted: bool = False
) -> Query:
    """Values present, most frequent first, ties by the value; with rows, clicks and weights."""
    query = (
        exp.select(value_column(), *count_columns(weighted))
        .from_(cleaned_counts(column_type, weighted=weighted))
        .where(
            exp.Not(this=exp.Is(this=value_column(), expression=exp.null())),
            exp.GTE(this=exp.column("num_rows"), expression=integer(min_count)),
        )
        .order_by(*_most_frequent_first())
    )
    return Query(
        query if max_size is None else query.limit(max_size),
        None if weighted else find_frequent_values(column_type, min_count, max_size),
    )


@cache
def kept_values_query(min_count: int, max_size: int | None) -> Query:
    """How many texts of `part_counts` are among the frequent values, and their rows."""
    part, kept = exp.to_identifier("part"), exp.to_identifier("kept")
    frequent = frequent_values_query(ColumnType.TEXT, min_count, max_size).tree
    if not isinstance(frequent, exp.Select):
        raise TypeError("the query of frequent values is a selection")
    return Query(
        exp.select(
            named(exp.Count(this=exp.Star()), "num_values"),
            named(whole_sum(exp.column("num_rows", table=part)), "num_rows"),
        )
        .from_(exp.alias_(exp.to_table(PART_COUNTS), "part", table=True))
        .join(
            frequent.select(value_column(), append=False).subquery(kept),
            on=exp.EQ(
                this=exp.column("value", table=part), expression=exp.column("value", table=kept)
            ),
        )
    )


def _most_frequent_first() -> tuple[exp.Expr, exp.Expr]:
    return exp.Ordered(this=exp.column("num_rows"), desc=True), value_column()


def find_frequent_values(column_type: ColumnType, min_count: int, max_size: int | None) -> Answer:
    """As `frequent_values_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        del parameters
        values: Sequence[Any]
        if column_type is ColumnType.TEXT:
            values, is_present = counts.texts, [bool(text) for text in counts.texts]
        else:
            values, is_present = counts.numbers.tolist(), (~np.isnan(counts.numbers)).tolist()
        rows = zip(
            values, counts.num_rows.tolist(), counts.num_clicks.tolist(), is_present, strict=True
        )
        kept = [row[:3] for row in rows if row[3] and row[1] >= min_count]
        return sorted(kept, key=lambda row: (-row[1], row[0]))[:max_size]

    return answer
