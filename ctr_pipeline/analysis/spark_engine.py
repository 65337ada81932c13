"""Statistics by Spark, from the files themselves: the plan of every engine in its dialect.

Rows of text are parsed once and kept by the cluster, typed; columns of Parquet files are read when
their turn comes. The value counts of a column are kept until all is asked of them.
"""

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.column_threads import map_columns
from ctr_pipeline.analysis.comparison import compare_column
from ctr_pipeline.analysis.engine_protocol import AcceptLabels, LabelCounts, Session
from ctr_pipeline.analysis.measure import MeasuredColumn
from ctr_pipeline.analysis.spark_connection import SparkConnection, render
from ctr_pipeline.analysis.spark_rows import find_views
from ctr_pipeline.analysis.sql import OTHER_COUNTS, TABLE, Query
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.table_sql import (
    CountedRows,
    column_counts,
    is_bad,
    label_counts,
    value_counts,
)
from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.statistics import ColumnDrift

QUERIES_AT_A_TIME = 4

_Result = TypeVar("_Result")


class SparkEngine:
    """Computes on files that Spark reads.

    Args:
        connection: An open connection.
        rows: The training rows.
        others: Other rows of the same columns, by name, which columns are compared with.
        accept: Is given the labels of all splits before anything else is computed.
    """

    def __init__(
        self,
        connection: SparkConnection,
        rows: CountedRows,
        others: Mapping[str, CountedRows] | None = None,
        accept: AcceptLabels | None = None,
    ) -> None:
        self.connection = connection
        self._rows = rows
        self.others = dict(others or {})
        self._accept = accept
        self._columns = {name: f"column{number}" for number, name in enumerate(rows.columns)}
        self._weighted = rows.weight is not None
        self._labels: LabelCounts | None = None
        self._numbers = itertools.count()

    def count_labels(self, plan: StatisticsPlan) -> LabelCounts:
        """As `Engine.count_labels`; the first call makes the views that all other queries read."""
        for table in (self._rows, *self.others.values()):
            table.check(plan)
        if self._labels is None:
            found = {
                split: self._offer(_view_of(split), table)
                for split, table in {"train": self._rows, **self.others}.items()
            }
            if self._accept is not None:
                self._accept(found)
            train = found["train"]
            self._labels = replace(train, num_rows=train.num_good, num_wrong=0)
        return self._labels

    def _offer(self, view: str, table: CountedRows) -> LabelCounts:
        table.check_types()
        files = find_views(table)
        for one in files:
            self.connection.offer_files(one)
        rows = exp.select(exp.Star()).from_(table.rows(self._columns))
        # Lines are cut once; of Parquet files a query reads the columns that it needs.
        self.connection.offer(view, rows, keep=any(one.is_text for one in files))
        query = label_counts(exp.to_table(view), weighted=self._weighted)
        ((num_rows, num_clicks, num_wrong, *weights),) = self.connection.rows(query)
        sums = WeightSums(total=weights[0], positive=weights[1]) if weights else None
        return LabelCounts(num_rows, num_clicks, num_wrong, sums)

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

    def counts_of(self, column: str, split: str) -> Iterator[ColumnCounts]:
        """As `Engine.counts_of`."""
        query = self.value_counts_of(column, None if split == "train" else split)
        return map(column_counts, self.connection.batches(query))

    def value_counts_of(self, column: str, other: str | None = None) -> exp.Select:
        """Value counts of a column of the training rows, or of the other rows of this name.

        What rows weigh is asked of the training rows alone: others are compared by their number.
        """
        weighted = self._weighted and other is None
        value = exp.alias_(exp.column(self._columns[column]), "value")
        kept = [exp.column("clicked"), *([exp.column("weight")] if weighted else [])]
        rows = exp.select(value, *kept).from_(exp.to_table(_view_of(other or "train")))
        good = rows.where(exp.Not(this=is_bad()))
        return value_counts(good.subquery("column_rows"), weighted=weighted)

    def new_view(self) -> str:
        """A name that no other view has."""
        return f"ctrpipe_counts_{next(self._numbers)}"


def _view_of(split: str) -> str:
    return f"ctrpipe_rows_of_{split}"


def counting_queries(rows: CountedRows) -> list[str]:
    """The SELECTs that read rows: their labels, and the values of each column."""
    labels = label_counts(rows.rows({}), weighted=rows.weight is not None)
    values = (rows.rows({name: "value"}) for name in rows.columns)
    return [render(one) for one in (labels, *map(value_counts, values))]


class _ColumnSession:
    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine
        self._tables: dict[str, exp.Table] = {}

    @contextmanager
    def value_counts(self, column: ColumnPlan) -> Iterator[None]:
        name = self._engine.new_view()
        connection = self._engine.connection
        connection.offer(name, self._engine.value_counts_of(column.column), keep=True)
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
        column = measured.statistics.column
        samples = [
            exp.select(
                exp.alias_(exp.Literal.number(number), "sample"),
                exp.column("value"),
                exp.column("num_rows"),
            ).from_(self._engine.value_counts_of(column, other).subquery("sample_counts"))
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
