"""Value counts of the columns of tables, as syntax trees: a plan's first step in a database."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.engine_protocol import LabelCounts
from ctr_pipeline.analysis.statistics_plan import StatisticsPlan
from ctr_pipeline.dataset.weights import LARGEST_WEIGHT
from ctr_pipeline.errors import DataError, StatisticsError
from ctr_pipeline.specs.columns import ColumnType


class RowsInSql(Protocol):
    """Rows of one table, or of files alike, that a database reads."""

    @property
    def place(self) -> str:
        """For messages."""

    @property
    def schema(self) -> pa.Schema:
        """Of the columns."""

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """The rows with these expressions over their columns."""

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """A column as the reader of rows makes it; None if SQL has no way to say the same."""


@dataclass(frozen=True)
class TrainingTable:
    """Training rows in a database.

    Attributes:
        label: The label column.
        sources: Where they are; one or more.
        skip_bad_labels: Whether rows without a label of 0 or 1, or without a good weight where rows
            have weights, are left out.
        weight: The column of weights; None: rows have none, or they do not matter.
    """

    label: str
    sources: tuple[RowsInSql, ...]
    skip_bad_labels: bool = False
    weight: str | None = None

    @property
    def place(self) -> str:
        """For messages."""
        return self.sources[0].place

    def check(self, plan: StatisticsPlan) -> None:
        """Raises StatisticsError for a column that SQL would not read as the rows are read."""
        if plan.weight is not None and plan.weight != self.weight:
            # Whoever makes the table knows of its weights; a mistake of the program.
            raise ValueError(f"rows are weighed by '{plan.weight}', not '{self.weight}'")
        for source in self.sources:
            for name in (self.label, self.weight):
                if name is not None:
                    _value(source, name, ColumnType.NUMBER)
            for column in plan.columns:
                _value(source, column.column, column.column_type)
                if column.sequence is not None or column.vector is not None:
                    raise StatisticsError(
                        "holds lists, whose elements are counted on the rows that are read",
                        place=f"{source.place}, column '{column.column}'",
                        remedy="Leave the column out, or have the statistics computed here",
                    )

    def rows(self, columns: Sequence[tuple[str, ColumnType, str]]) -> exp.Subquery:
        """The training rows with columns under other names; `clicked` is the label as a number.

        `weight` is what the row weighs, float64, if rows have weights.

        Args:
            columns: Name in the table, type, name in the result.
        """
        if self.weight is not None:
            columns = [(self.weight, ColumnType.NUMBER, "weight"), *columns]
        queries = []
        for source in self.sources:
            wanted = [(self.label, ColumnType.NUMBER, "clicked"), *columns]
            values = [exp.alias_(_value(source, name, kind), alias) for name, kind, alias in wanted]
            queries.append(source.select(values))
        query: exp.Query = queries[0]
        for other in queries[1:]:
            query = exp.union(query, other, distinct=False)
        if self.skip_bad_labels:
            names = [exp.column("clicked"), *(exp.column(alias) for _, _, alias in columns)]
            good = exp.In(this=exp.column("clicked"), expressions=[_integer(0), _integer(1)])
            query = exp.select(*names).from_(query.subquery("all_rows")).where(good)
            if self.weight is not None:
                query = query.where(*_is_weight(exp.column("weight")))
        return query.subquery("training_rows")


def _value(source: RowsInSql, name: str, column_type: ColumnType) -> exp.Expr:
    value = source.value(name, column_type)
    if value is None:
        raise StatisticsError(
            f"has the type {source.schema.field(name).type} but is used as a {column_type.value}, "
            "which SQL reads otherwise than the rows are read",
            place=f"{source.place}, column '{name}'",
            remedy="Use it as its type says, write it with the other type, or have the statistics "
            "computed here",
        )
    return value


def typed_value(
    name: str, kind: pa.DataType, column_type: ColumnType, missing_values: Sequence[str]
) -> exp.Expr | None:
    """A column as the reader of rows makes it; None if SQL has no way to say the same.

    Args:
        name: The column.
        kind: Its type in the table.
        column_type: The type that it is read as.
        missing_values: Texts that mean missing, the empty one among them.
    """
    column: exp.Expr = exp.column(name)
    if pa.types.is_boolean(kind):
        yes, no = ("1.0", "0.0") if column_type is ColumnType.NUMBER else ("true", "false")
        target = "double" if column_type is ColumnType.NUMBER else "text"
        case = exp.Case().when(column, exp.Literal.string(yes))
        return exp.cast(case.when(exp.Not(this=column), exp.Literal.string(no)), target)
    if column_type is ColumnType.NUMBER:
        is_number = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        number: exp.Expr = exp.cast(column, "double")
        if pa.types.is_floating(kind):
            number = without_minus_zero(number)
        return number if is_number else None
    if column_type is not ColumnType.TEXT:
        return None
    if pa.types.is_integer(kind):
        column = exp.cast(column, "text")
    elif not pa.types.is_string(kind):
        return None
    return present_text(column, missing_values)


def present_text(text: exp.Expr, missing_values: Sequence[str]) -> exp.Expr:
    """The text, NULL if it means missing."""
    return exp.Case().when(is_listed(text, missing_values), exp.null()).else_(text.copy())


def is_listed(text: exp.Expr, texts: Sequence[str]) -> exp.Expr:
    """Whether a text is one of several."""
    return exp.In(this=text, expressions=[exp.Literal.string(one) for one in texts])


def without_minus_zero(number: exp.Expr) -> exp.Expr:
    """The same number, 0 for -0, which some engines count apart."""
    return exp.Add(this=number, expression=exp.cast(exp.Literal.string("0.0"), "double"))


def label_counts(rows: exp.Expr) -> exp.Select:
    """Rows, rows of label 1, and rows of a label that is neither 0 nor 1.

    Args:
        rows: Rows with the column `clicked`.
    """
    clicked = exp.column("clicked")
    wrong = exp.Or(
        this=exp.Is(this=clicked, expression=exp.null()),
        expression=exp.Not(
            this=exp.In(this=clicked.copy(), expressions=[_integer(0), _integer(1)])
        ),
    )
    return exp.select(
        exp.alias_(exp.Count(this=exp.Star()), "num_rows"),
        exp.alias_(_count_if(_is_click()), "num_clicks"),
        exp.alias_(_count_if(wrong), "num_wrong"),
    ).from_(rows)


def value_counts(rows: exp.Expr, *, weighted: bool = False) -> exp.Select:
    """Value, rows and clicks of each value; NULL and NaN are values.

    With weights it has `weight` and `click_weight` as well: what all rows of a value weigh, and
    those of label 1.

    Args:
        rows: Rows with the columns `value` and `clicked`, and `weight` if they are weighed.
    """
    return (
        exp.select(
            exp.column("value"),
            exp.alias_(exp.Count(this=exp.Star()), "num_rows"),
            exp.alias_(_count_if(_is_click()), "num_clicks"),
            *(_sums_of_weights() if weighted else []),
        )
        .from_(rows)
        .group_by(exp.column("value"))
    )


def require_same_rows(
    found: LabelCounts, expected: LabelCounts, place: str, remedy: str = ""
) -> None:
    """Raises DataError unless the database has found as many rows and clicks as were read."""
    if found != expected:
        raise DataError(
            f"has {found.num_rows} rows with {found.num_clicks} clicks there, but "
            f"{expected.num_rows} with {expected.num_clicks} were read",
            place=place,
            remedy=remedy or "Let nothing write into it meanwhile, and run again",
        )


def _is_click() -> exp.Expr:
    return exp.EQ(this=exp.column("clicked"), expression=_integer(1))


def _is_weight(weight: exp.Expr) -> list[exp.Expr]:
    """As `dataset.columns.is_weight`: NULL and NaN are none."""
    return [
        exp.GTE(this=weight, expression=_integer(0)),
        exp.LTE(this=weight.copy(), expression=_number(LARGEST_WEIGHT)),
    ]


def _sums_of_weights() -> list[exp.Expr]:
    weight = exp.column("weight")
    of_clicks = exp.Case().when(_is_click(), weight.copy()).else_(_number(0.0))
    return [
        exp.alias_(exp.Sum(this=weight), "weight"),
        exp.alias_(exp.Sum(this=of_clicks), "click_weight"),
    ]


def _count_if(condition: exp.Expr) -> exp.Expr:
    return _whole_sum(exp.Case().when(condition, _integer(1)).else_(_integer(0)))


def _whole_sum(term: exp.Expr) -> exp.Expr:
    total = exp.Sum(this=exp.cast(term, "bigint"))
    return exp.cast(exp.Coalesce(this=total, expressions=[_integer(0)]), "bigint")


def _integer(number: int) -> exp.Expr:
    return exp.Literal.number(number)


def _number(number: float) -> exp.Expr:
    """A float64, by its shortest exact text."""
    return exp.cast(exp.Literal.string(repr(number)), "double")
