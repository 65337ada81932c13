"""Value counts of the columns of tables, as syntax trees: a plan's first step in a database."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.statistics_plan import StatisticsPlan
from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.dataset.value_sql import number_of
from ctr_pipeline.dataset.weights import LARGEST_WEIGHT
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.specs.columns import ColumnType


class RowsInSql(Protocol):
    """Rows of one table, or of files alike, that a database reads."""

    @property
    def place(self) -> str:
        """The rows' name in messages."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    @property
    def sample(self) -> exp.Expr:
        """Which rows a row belongs to: 0 of the training rows, 1 and so on of others."""

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """The rows with these expressions over their columns."""

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """A column as the reader of rows makes it; None if SQL has no way to say the same."""

    def is_readable(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """Whether a value of a column can be read so, or is missing; None: every value can."""


@dataclass(frozen=True)
class CountedRows:
    """Rows in a database, and the columns that are counted.

    Attributes:
        label: The label column.
        columns: Counted columns and how they are read.
        sources: Where they are; one or more.
        weight: The column of weights; None: rows have none.
    """

    label: str
    columns: Mapping[str, ColumnType]
    sources: tuple[RowsInSql, ...]
    weight: str | None = None

    @property
    def place(self) -> str:
        """The rows' name in messages."""
        return self.sources[0].place

    def check(self, plan: StatisticsPlan) -> None:
        """Raises StatisticsError for a column of lists."""
        if plan.weight is not None and plan.weight != self.weight:
            # Whoever makes the table knows of its weights; a mistake of the program.
            raise ValueError(f"rows are weighed by '{plan.weight}', not '{self.weight}'")
        self.refuse_lists(
            column.column
            for column in plan.columns
            if column.sequence is not None or column.vector is not None
        )

    def refuse_lists(self, columns: Iterable[str]) -> None:
        """Raises StatisticsError if there is a column that holds lists."""
        for name in columns:
            raise StatisticsError(
                "holds lists, whose elements are counted on the rows that are read",
                place=f"{self.place}, column '{name}'",
                remedy="Leave the column out, or have the statistics computed here",
            )

    def check_types(self) -> None:
        """Raises StatisticsError for a column that SQL would not read as the rows are read."""
        for source in self.sources:
            for name in (self.label, self.weight):
                if name is not None:
                    _value(source, name, ColumnType.NUMBER)
            for name, kind in self.columns.items():
                _value(source, name, kind)

    def rows(self, names: Mapping[str, str]) -> exp.Subquery:
        """All rows: `sample`, `clicked`, `weight` if they have weights, and the counted columns.

        `clicked` is the label as a number, NULL in a row that is bad: its label is not 0 or 1, its
        weight is no good one, or a counted column holds what cannot be read.

        Args:
            names: What each column is called in the result.
        """
        queries = []
        for source in self.sources:
            values = [
                exp.alias_(source.sample, "sample"),
                exp.alias_(self._clicked(source), "clicked"),
            ]
            if self.weight is not None:
                weight = _value(source, self.weight, ColumnType.NUMBER)
                values.append(exp.alias_(weight, "weight"))
            values += [
                exp.alias_(_value(source, name, self.columns[name]), alias)
                for name, alias in names.items()
            ]
            queries.append(source.select(values))
        query: exp.Query = queries[0]
        for other in queries[1:]:
            query = exp.union(query, other, distinct=False, copy=False)
        return query.subquery("all_rows", copy=False)

    def _clicked(self, source: RowsInSql) -> exp.Expr:
        label = _value(source, self.label, ColumnType.NUMBER)
        conditions: list[exp.Expr] = [exp.In(this=label, expressions=[_integer(0), _integer(1)])]
        if self.weight is not None:
            conditions += _is_weight(_value(source, self.weight, ColumnType.NUMBER))
        readable = (source.is_readable(name, kind) for name, kind in self.columns.items())
        conditions += [one for one in readable if one is not None]
        return exp.Case().when(exp.and_(*conditions), label.copy()).else_(exp.null())


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


def is_bad() -> exp.Expr:
    """Whether a row of `CountedRows.rows` is a bad one."""
    return exp.Is(this=exp.column("clicked"), expression=exp.null())


def label_counts(rows: exp.Expr, *, weighted: bool = False) -> exp.Select:
    """Rows, those of label 1, those that are bad, and with weights what the first two weigh.

    Args:
        rows: Rows of `CountedRows.rows`.
        weighted: Whether they have weights.
    """
    return exp.select(
        exp.alias_(exp.Count(this=exp.Star()), "num_rows"),
        exp.alias_(_count_if(_is_click()), "num_clicks"),
        exp.alias_(_count_if(is_bad()), "num_wrong"),
        *(_sums_of_weights() if weighted else []),
    ).from_(rows)


def value_counts(
    rows: exp.Expr, keys: Sequence[str] = ("value",), *, weighted: bool = False
) -> exp.Select:
    """Keys, rows and clicks of each combination of the keys; NULL and NaN are values.

    With weights it has `weight` and `click_weight` as well: what all of these rows weigh, and those
    of label 1.

    Args:
        rows: Rows with the keys and `clicked`, and `weight` if they are weighed.
        keys: Columns to count by.
    """
    columns = [exp.column(key) for key in keys]
    return (
        exp.select(
            *columns,
            exp.alias_(exp.Count(this=exp.Star()), "num_rows"),
            exp.alias_(_count_if(_is_click()), "num_clicks"),
            *(_sums_of_weights() if weighted else []),
        )
        .from_(rows)
        .group_by(*(column.copy() for column in columns))
    )


def column_counts(batch: pa.RecordBatch) -> ColumnCounts:
    """A portion of value counts, weights among them if it has them."""
    values, num_rows, num_clicks, *weights = batch.columns
    return ColumnCounts(
        values, num_rows.to_numpy(), num_clicks.to_numpy(), *(one.to_numpy() for one in weights)
    )


def _is_click() -> exp.Expr:
    return exp.EQ(this=exp.column("clicked"), expression=_integer(1))


def _is_weight(weight: exp.Expr) -> list[exp.Expr]:
    """As `dataset.columns.is_weight`: NULL and NaN are none."""
    return [
        exp.GTE(this=weight, expression=_integer(0)),
        exp.LTE(this=weight.copy(), expression=number_of(LARGEST_WEIGHT)),
    ]


def _sums_of_weights() -> list[exp.Expr]:
    weight = exp.column("weight")
    of_clicks = exp.Case().when(_is_click(), weight.copy()).else_(number_of(0.0))
    of_good = exp.Case().when(is_bad(), number_of(0.0)).else_(weight)
    return [
        exp.alias_(exp.Sum(this=of_good), "weight"),
        exp.alias_(exp.Sum(this=of_clicks), "click_weight"),
    ]


def _count_if(condition: exp.Expr) -> exp.Expr:
    return _whole_sum(exp.Case().when(condition, _integer(1)).else_(_integer(0)))


def _whole_sum(term: exp.Expr) -> exp.Expr:
    total = exp.Sum(this=exp.cast(term, "bigint"))
    return exp.cast(exp.Coalesce(this=total, expressions=[_integer(0)]), "bigint")


def _integer(number: int) -> exp.Expr:
    return exp.Literal.number(number)
