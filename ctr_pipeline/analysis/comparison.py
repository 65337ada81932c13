"""How far a column of other rows is from that of the training rows."""

from collections import Counter
from functools import cache

import numpy as np
from sqlglot import exp

from ctr_pipeline.analysis.groups import interval_of
from ctr_pipeline.analysis.measure import MeasuredColumn
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
    OTHER_COUNTS,
    TABLE,
    Query,
    RowsOf,
    named,
    sums_by,
    whole_parameter,
)
from ctr_pipeline.analysis.stability import REST, UNSEEN, drift_of_intervals, drift_of_values
from ctr_pipeline.analysis.value_counts import cleaned_counts
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnDrift


def compare_column(
    rows_of: RowsOf, measured: MeasuredColumn, num_samples: int
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


@cache
def other_intervals_query(num_edges: int) -> Query:
    """Rows of each sample of `other_counts` by interval, as `bins_query` has them."""
    rows = exp.select(
        exp.column("sample"), named(interval_of(num_edges, "edge"), "place"), exp.column("num_rows")
    ).from_(cleaned_counts(ColumnType.NUMBER, OTHER_COUNTS))
    return Query(
        sums_by(["sample", "place"], rows, ["num_rows"]),
        count_other_intervals(num_edges),
    )


@cache
def other_values_query() -> Query:
    """Rows of each sample of `other_counts` by what training knows of their value.

    `is_known` tells whether training has the value, NULL if it is missing; `value` is given where
    training has it in more than $least_rows rows, or in as many and it is not after $last_value.
    """
    value, known_rows = exp.column("value", "cleaned"), exp.column("num_rows", "known")
    is_known = (
        exp.Case()
        .when(exp.Is(this=value, expression=exp.null()), exp.null())
        .else_(exp.Not(this=exp.Is(this=known_rows, expression=exp.null())))
    )
    last_value = exp.Placeholder(this="last_value")
    tied = exp.And(
        this=exp.EQ(this=known_rows, expression=whole_parameter("least_rows")),
        expression=exp.LTE(this=value, expression=last_value),
    )
    more = exp.GT(this=known_rows, expression=whole_parameter("least_rows"))
    frequent = exp.Or(this=more, expression=exp.Paren(this=tied))
    same_value = exp.EQ(this=value, expression=exp.column("value", "known"))
    known = exp.alias_(exp.to_table(TABLE), "known", table=True)
    rows = (
        exp.select(
            exp.column("sample", "cleaned"),
            named(is_known, "is_known"),
            named(exp.Case().when(frequent, value), "value"),
            exp.column("num_rows", "cleaned"),
        )
        .from_(cleaned_counts(ColumnType.TEXT, OTHER_COUNTS))
        .join(known, on=same_value, join_type="left")
    )
    return Query(
        sums_by(["sample", "is_known", "value"], rows, ["num_rows"]),
        count_other_values,
    )


def count_other_intervals(num_edges: int) -> Answer:
    """As `other_intervals_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        edges = listed_parameters("edge", num_edges, parameters)
        rows: Rows = []
        for sample, other in enumerate(counts.others):
            places, inverse = np.unique(positions_among(other.numbers, edges), return_inverse=True)
            sums = sum_groups(inverse, other.num_rows).tolist()
            shown = none_at_end(places, num_edges + 1)
            rows += [(sample, place, count) for place, count in zip(shown, sums, strict=True)]
        return rows

    return answer


def count_other_values(counts: SmallCounts, parameters: Parameters) -> Rows:
    """As `other_values_query`."""
    known = dict(zip(counts.texts, counts.num_rows.tolist(), strict=True))
    least, last = int(parameters["least_rows"]), str(parameters["last_value"])
    rows: Rows = []
    for sample, other in enumerate(counts.others):
        found = Counter[tuple[bool | None, str | None]]()
        for value, num_rows in zip(other.texts, other.num_rows.tolist(), strict=True):
            if not value:
                found[None, None] += num_rows
                continue
            before = known.get(value)
            is_frequent = before is not None and (
                before > least or (before == least and value <= last)
            )
            found[before is not None, value if is_frequent else None] += num_rows
        # NULL comes after all others.
        ordered = sorted(
            found, key=lambda key: (key[0] is None, bool(key[0]), key[1] is None, key[1] or "")
        )
        rows += [(sample, *key, found[key]) for key in ordered]
    return rows
