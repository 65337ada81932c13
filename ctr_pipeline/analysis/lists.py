"""Columns of lists: the counts of their elements or numbers take the place of those of texts."""

from functools import cache
from typing import Any

from sqlglot import exp, parse_one

from ctr_pipeline.analysis.sql import (
    TABLE,
    Query,
    RowsOf,
    count_columns,
    count_sums,
    integer,
    named,
    sum_if,
    value_column,
    whole_sum,
)
from ctr_pipeline.analysis.value_counts import drop_query
from ctr_pipeline.features import SequenceSpec, VectorSpec
from ctr_pipeline.statistics import LengthStatistics


@cache
def lengths_query(sequence: SequenceSpec) -> Query:
    """Rows and clicks by number of elements, from the value counts of whole texts."""
    element = exp.to_identifier("element")
    is_element = exp.NEQ(
        this=_element_value(exp.column("element"), sequence), expression=exp.Literal.string("")
    )
    elements = exp.ArrayFilter(
        this=_split(sequence), expression=exp.Lambda(this=is_element, expressions=[element])
    )
    length = exp.Coalesce(this=exp.ArraySize(this=elements), expressions=[integer(0)])
    lengths = exp.select(
        named(length, "length"), exp.column("num_rows"), exp.column("num_clicks")
    ).from_(TABLE)
    return Query(
        exp.select(
            exp.column("length"),
            named(whole_sum(exp.column("num_rows")), "num_rows"),
            named(whole_sum(exp.column("num_clicks")), "num_clicks"),
        )
        .from_(lengths.subquery("lengths"))
        .group_by(exp.column("length"))
        .order_by(exp.column("length"))
    )


@cache
def element_counts_query(sequence: SequenceSpec, *, weighted: bool = False) -> Query:
    """Makes the table `element_counts`: as `value_counts`, for the elements of texts."""
    split = exp.select(
        named(exp.Explode(this=_split(sequence)), "element"), *count_columns(weighted)
    ).from_(TABLE)
    values = exp.select(
        named(_element_value(exp.column("element"), sequence), "value"), *count_columns(weighted)
    ).from_(split.subquery("split_texts"))
    counts = (
        exp.select(value_column(), *count_sums(weighted))
        .from_(values.subquery("elements"))
        .where(exp.NEQ(this=value_column(), expression=exp.Literal.string("")))
        .group_by(value_column())
    )
    return _create_element_counts(counts)


@cache
def rows_without_query() -> Query:
    """Rows without a text and their clicks, from the value counts of whole texts."""
    is_empty = exp.Or(
        this=exp.Is(this=value_column(), expression=exp.null()),
        expression=exp.EQ(this=value_column(), expression=exp.Literal.string("")),
    )
    return Query(
        exp.select(
            named(sum_if("num_rows", exp.Paren(this=is_empty)), "num_missing"),
            named(sum_if("num_clicks", exp.Paren(this=is_empty)), "missing_clicks"),
        ).from_(TABLE)
    )


@cache
def number_counts_query(vector: VectorSpec, *, weighted: bool = False) -> Query:
    """Makes the table `element_counts`: as `value_counts`, for the numbers of vectors, float64."""
    split = exp.Split(this=value_column(), expression=exp.Literal.string(vector.delimiter))
    texts = exp.select(named(exp.Explode(this=split), "element"), *count_columns(weighted)).from_(
        TABLE
    )
    number = exp.TryCast(this=exp.column("element"), to=exp.DataType.build("double"))
    numbers = exp.select(named(number, "value"), *count_columns(weighted)).from_(
        texts.subquery("split_texts")
    )
    counts = (
        exp.select(value_column(), *count_sums(weighted))
        .from_(numbers.subquery("numbers"))
        .where(exp.Not(this=exp.Is(this=value_column(), expression=exp.null())))
        .group_by(value_column())
        .order_by(value_column())
    )
    return _create_element_counts(counts)


def _create_element_counts(counts: exp.Select) -> Query:
    temporary = exp.Properties(expressions=[exp.TemporaryProperty()])
    return Query(
        exp.Create(
            this=exp.to_table("element_counts"),
            kind="TABLE",
            properties=temporary,
            expression=counts,
        )
    )


@cache
def rename_elements_query() -> Query:
    """Puts `element_counts` in the place of `value_counts`, which is gone."""
    return Query(parse_one("ALTER TABLE element_counts RENAME TO value_counts", read="duckdb"))


def _split(sequence: SequenceSpec) -> exp.Expr:
    return exp.Split(this=value_column(), expression=exp.Literal.string(sequence.delimiter))


def _element_value(element: exp.Expr, sequence: SequenceSpec) -> exp.Expr:
    """An element without its weight."""
    if not sequence.weights:
        return element
    mark = sequence.weight_mark
    return exp.RegexpReplace(
        this=element,
        expression=exp.Literal.string(f"{mark}[^{mark}]*$"),
        replacement=exp.Literal.string(""),
    )


def use_elements(rows_of: RowsOf, sequence: SequenceSpec, *, weighted: bool) -> dict[str, Any]:
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


def use_numbers(rows_of: RowsOf, vector: VectorSpec, *, weighted: bool) -> dict[str, Any]:
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
