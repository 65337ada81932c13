"""Value counts of the columns of tables, as syntax trees: a plan's first step in a database."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.aggregates import ColumnPlan, StatisticsPlan
from ctr_pipeline.dataset.maxcompute.selection import typed_value
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.features import ColumnType

Select = Callable[[Sequence[exp.Expr]], exp.Select]


@dataclass(frozen=True)
class TrainingTable:
    """Training rows in a database.

    Attributes:
        label: The label column.
        sources: One query for each table, from the expressions wanted of its columns.
        schema: Of the tables' columns.
        missing_values: Texts that mean missing, the empty one among them.
        skip_bad_labels: Whether rows without a label of 0 or 1 are left out.
        place: For messages.
    """

    label: str
    sources: tuple[Select, ...]
    schema: pa.Schema
    missing_values: tuple[str, ...]
    skip_bad_labels: bool
    place: str

    def check(self, plan: StatisticsPlan) -> None:
        """Raises StatisticsError for a column that SQL would not read as the rows are read."""
        if plan.weight is not None:
            raise StatisticsError(
                "weighs rows, which are then counted where they are read",
                place=f"{self.place}, column '{plan.weight.column}'",
                remedy="Leave data.weight out, or have the statistics computed here",
            )
        self._value(self.label, ColumnType.NUMBER)
        for column in plan.columns:
            self._value(column.column, column.column_type)
            if column.sequence is not None or column.vector is not None:
                raise StatisticsError(
                    "holds lists, whose elements are counted on the rows that are read",
                    place=f"{self.place}, column '{column.column}'",
                )

    def rows(self, columns: Sequence[tuple[str, ColumnType, str]]) -> exp.Subquery:
        """The training rows with columns under other names; `clicked` is the label as a number.

        Args:
            columns: Name in the table, type, name in the result.
        """
        wanted = [exp.alias_(self._value(self.label, ColumnType.NUMBER), "clicked")]
        wanted += [exp.alias_(self._value(name, kind), alias) for name, kind, alias in columns]
        queries = [source([one.copy() for one in wanted]) for source in self.sources]
        query: exp.Query = queries[0]
        for other in queries[1:]:
            query = exp.union(query, other, distinct=False)
        if self.skip_bad_labels:
            names = [exp.column("clicked"), *(exp.column(alias) for _, _, alias in columns)]
            good = exp.In(this=exp.column("clicked"), expressions=[_integer(0), _integer(1)])
            query = exp.select(*names).from_(query.subquery("all_rows")).where(good)
        return query.subquery("training_rows")

    def _value(self, name: str, column_type: ColumnType) -> exp.Expr:
        kind = self.schema.field(name).type
        value = typed_value(name, kind, column_type, self.missing_values)
        if value is None:
            raise StatisticsError(
                f"has the type {kind} but is used as a {column_type.value}, which SQL reads "
                "otherwise than the rows are read",
                place=f"{self.place}, column '{name}'",
                remedy="Use it as its type says, or give a table in which it has the other type",
            )
        return value


def label_counts(table: TrainingTable) -> exp.Select:
    """Rows, rows of label 1, and rows of a label that is neither 0 nor 1."""
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
    ).from_(table.rows([]))


def value_counts(table: TrainingTable, column: ColumnPlan) -> exp.Select:
    """Value, rows and clicks of each value of a column; NULL and NaN are values."""
    return (
        exp.select(
            exp.column("value"),
            exp.alias_(exp.Count(this=exp.Star()), "num_rows"),
            exp.alias_(_count_if(_is_click()), "num_clicks"),
        )
        .from_(table.rows([(column.column, column.column_type, "value")]))
        .group_by(exp.column("value"))
    )


def _is_click() -> exp.Expr:
    return exp.EQ(this=exp.column("clicked"), expression=_integer(1))


def _count_if(condition: exp.Expr) -> exp.Expr:
    counted = exp.Case().when(condition, _integer(1)).else_(_integer(0))
    total = exp.Sum(this=exp.cast(counted, "bigint"))
    return exp.cast(exp.Coalesce(this=total, expressions=[_integer(0)]), "bigint")


def _integer(number: int) -> exp.Expr:
    return exp.Literal.number(number)
