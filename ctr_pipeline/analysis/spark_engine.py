"""Statistics by Spark, from the files themselves: the plan of every engine in its dialect.

Rows of text are parsed once and kept by the cluster, typed; columns of Parquet files are read when
their turn comes. The value counts of a column are kept until all is asked of them.
"""

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.column_threads import map_columns
from ctr_pipeline.analysis.comparison import compare_column
from ctr_pipeline.analysis.engine_protocol import LabelCounts, Session
from ctr_pipeline.analysis.measure import MeasuredColumn
from ctr_pipeline.analysis.spark_connection import SparkConnection
from ctr_pipeline.analysis.spark_rows import find_views
from ctr_pipeline.analysis.sql import OTHER_COUNTS, TABLE, Query
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.table_sql import (
    TrainingTable,
    label_counts,
    require_same_rows,
    value_counts,
)
from ctr_pipeline.statistics import ColumnDrift

QUERIES_AT_A_TIME = 4
_REMEDY = (
    "Let nothing write into data files meanwhile; where fields in quotes hold line ends, convert "
    "the files to Parquet with 'ctrpipe convert': Spark reads lines"
)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class CountedRows:
    """Rows of one split.

    Attributes:
        table: Where they are.
        expected: How many there must be.
    """

    table: TrainingTable
    expected: LabelCounts


class SparkEngine:
    """Computes on files that Spark reads.

    Args:
        connection: An open connection.
        rows: The training rows.
        others: Other rows, by name, which columns are compared with.
    """

    def __init__(
        self,
        connection: SparkConnection,
        rows: CountedRows,
        others: Mapping[str, CountedRows] | None = None,
    ) -> None:
        self.connection = connection
        self._rows = rows
        self.others = dict(others or {})
        self._columns: dict[str, str] = {}
        self._weighted = False
        self._numbers = itertools.count()

    def count_labels(self, plan: StatisticsPlan) -> LabelCounts:
        """As `Engine.count_labels`; makes the views that all other queries read."""
        self._columns = {
            column.column: f"column{number}" for number, column in enumerate(plan.columns)
        }
        self._weighted = plan.weight is not None
        for name, counted in self.others.items():
            self._offer(_view_of(name), counted, plan)
        return self._offer(_view_of(None), self._rows, plan)

    def _offer(self, view: str, counted: CountedRows, plan: StatisticsPlan) -> LabelCounts:
        table = counted.table
        table.check(plan)
        files = find_views(table)
        for one in files:
            self.connection.offer_files(one)
        columns = [
            (column.column, column.column_type, self._columns[column.column])
            for column in plan.columns
        ]
        rows = exp.select(exp.Star()).from_(table.rows(columns))
        # Lines are cut once; of Parquet files a query reads the columns that it needs.
        self.connection.offer(view, rows, keep=any(one.is_text for one in files))
        (counts,) = self.connection.rows(label_counts(exp.to_table(view)))
        found = LabelCounts(*counts)
        require_same_rows(found, counted.expected, table.place, _REMEDY)
        return found

    def map(
        self, work: Callable[[Session, ColumnPlan], _Result], columns: Sequence[ColumnPlan]
    ) -> Generator[_Result, None, None]:
        """As `Engine.map`, several columns at a time."""
        return map_columns(
            work,
            columns,
            open_session=lambda: _ColumnSession(self),
            stop=self.connection.cancel,
            at_a_time=QUERIES_AT_A_TIME,
            name="spark",
        )

    def counts_of(self, column: str, other: str | None = None) -> exp.Select:
        """Value counts of a column of the training rows, or of the other rows of this name.

        What rows weigh is asked of the training rows alone: others are compared by their number.
        """
        weighted = self._weighted and other is None
        value = exp.alias_(exp.column(self._columns[column]), "value")
        kept = [exp.column("clicked"), *([exp.column("weight")] if weighted else [])]
        rows = exp.select(value, *kept).from_(exp.to_table(_view_of(other)))
        return value_counts(rows.subquery("column_rows"), weighted=weighted)

    def new_view(self) -> str:
        """A name that no other view has."""
        return f"ctrpipe_counts_{next(self._numbers)}"


def _view_of(other: str | None) -> str:
    return "ctrpipe_rows" if other is None else f"ctrpipe_rows_of_{other}"


class _ColumnSession:
    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine
        self._tables: dict[str, exp.Table] = {}

    @contextmanager
    def value_counts(self, column: ColumnPlan) -> Iterator[None]:
        name = self._engine.new_view()
        connection = self._engine.connection
        connection.offer(name, self._engine.counts_of(column.column), keep=True)
        self._tables = {TABLE: exp.to_table(name)}
        yield
        connection.drop(name)

    def rows(
        self, query: Query, parameters: Mapping[str, float | str] | None = None
    ) -> list[tuple[Any, ...]]:
        return self._engine.connection.rows(query.bind(parameters or {}, self._tables))

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        return self._engine.connection.batches(query.bind({}, self._tables))

    def compare(self, measured: MeasuredColumn) -> Mapping[str, ColumnDrift]:
        others = list(self._engine.others)
        if not others:
            return {}
        samples = [
            exp.select(
                exp.alias_(exp.Literal.number(number), "sample"),
                exp.column("value"),
                exp.column("num_rows"),
            ).from_(
                self._engine.counts_of(measured.statistics.column, other).subquery("sample_counts")
            )
            for number, other in enumerate(others)
        ]
        union: exp.Query = samples[0]
        for sample in samples[1:]:
            union = exp.union(union, sample, distinct=False)
        name = self._engine.new_view()
        self._engine.connection.offer(name, union)
        self._tables = {**self._tables, OTHER_COUNTS: exp.to_table(name)}
        found = compare_column(self.rows, measured, len(others))
        self._engine.connection.drop(name)
        return dict(zip(others, found, strict=True))
