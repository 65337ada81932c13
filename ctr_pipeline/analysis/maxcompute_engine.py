"""Statistics by MaxCompute, where the rows are: the plan of every engine in its dialect.

One query counts the values of a column into a table of the project that queries run in, with a
lifecycle of one day; the others read that table, which is dropped when the column is done. So rows
are read once a column, and what comes over the network are results.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.column_threads import map_columns
from ctr_pipeline.analysis.engine_protocol import LabelCounts, Session
from ctr_pipeline.analysis.measure import MeasuredColumn
from ctr_pipeline.analysis.sql import TABLE, Query
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.table_sql import (
    TrainingTable,
    label_counts,
    require_same_rows,
    typed_value,
    value_counts,
)
from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient, RangeReader, ranges
from ctr_pipeline.dataset.formats.maxcompute.dialect import create_table_as, drop_table, render
from ctr_pipeline.dataset.formats.maxcompute.selection import group_partitions, select_rows
from ctr_pipeline.dataset.formats.maxcompute.source import MaxComputeTable
from ctr_pipeline.dataset.formats.maxcompute.table import TableRows
from ctr_pipeline.errors import CtrPipelineError, StatisticsError
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnDrift

MOST_SELECTS = 256
"""UNION ALL combines so many:
https://www.alibabacloud.com/help/en/maxcompute/user-guide/maxcompute-sql-limits"""
QUERIES_AT_A_TIME = 8
"""A query waits for the service most of its time."""
_RANGE_ROWS = 65_536

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class MaxComputeRows:
    """Rows of a table of the service, or of partitions of it that one SELECT gives.

    Attributes:
        rows: Which; one of the groups of `group_partitions`.
        missing_values: Texts that mean missing, the empty one among them.
    """

    rows: tuple[TableRows, ...]
    schema: pa.Schema
    missing_values: tuple[str, ...]

    @property
    def place(self) -> str:
        """For messages."""
        return str(self.rows[0])

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """As `RowsInSql.select`."""
        return select_rows(self.rows, columns)

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.value`."""
        kind = self.schema.field(name).type
        return typed_value(name, kind, column_type, self.missing_values)


def plan_sources(
    sources: Sequence[MaxComputeTable], missing_values: tuple[str, ...]
) -> tuple[MaxComputeRows, ...]:
    """What a query selects from: as few tables and groups of partitions as there can be.

    Args:
        sources: Tables and partitions with the same columns, none twice.
        missing_values: Texts that mean missing, the empty one among them.

    Raises:
        StatisticsError: They are more than a query combines.
    """
    groups = group_partitions([source.path for source in sources])
    if len(groups) > MOST_SELECTS:
        raise StatisticsError(
            f"the rows are in {len(groups)} tables and groups of partitions that differ in their "
            f"last column alone, and MaxCompute's UNION ALL combines {MOST_SELECTS}",
            place=str(sources[0].path),
            remedy="Name fewer, or copy the rows into partitions of one table",
        )
    schema = sources[0].schema
    return tuple(MaxComputeRows(group, schema, missing_values) for group in groups)


class MaxComputeEngine:
    """Computes on tables of MaxCompute; a context manager.

    Args:
        client: A client of the project that queries run in.
        table: The training rows.
        expected: How many there must be; None if that is not known.
    """

    def __init__(
        self, client: MaxComputeClient, table: TrainingTable, expected: LabelCounts | None = None
    ) -> None:
        self._client = client
        self._table = table
        self._expected = expected
        self._weighted = False
        self._name = f"ctrpipe_{uuid.uuid4().hex[:12]}"
        self._made: set[str] = set()
        self._lock = threading.Lock()

    def count_labels(self, plan: StatisticsPlan) -> LabelCounts:
        """As `Engine.count_labels`, in one query."""
        self._table.check(plan)
        self._weighted = plan.weight is not None
        found = LabelCounts(*self.fetch(label_counts(self._table.rows([])))[0])
        if self._expected is not None:
            require_same_rows(found, self._expected, self._table.place)
        return found

    def map(
        self, work: Callable[[Session, ColumnPlan], _Result], columns: Sequence[ColumnPlan]
    ) -> Generator[_Result, None, None]:
        """As `Engine.map`, several columns at a time."""
        return map_columns(
            work,
            columns,
            open_session=lambda: _ColumnSession(self),
            stop=self._client.stopping.set,
            at_a_time=QUERIES_AT_A_TIME,
            name="maxcompute",
        )

    def make_value_counts(self, column: ColumnPlan) -> exp.Table:
        """Makes the table of value counts of a column."""
        with self._lock:
            name = f"{self._name}_{len(self._made)}"
            self._made.add(name)
        table = exp.table_(name, db=self._client.entry.project)
        rows = self._table.rows([(column.column, column.column_type, "value")])
        counts = value_counts(rows, weighted=self._weighted)
        self._client.execute(render(create_table_as(table, counts)))
        return table

    def drop(self, table: exp.Table) -> None:
        """Drops a table that was made here."""
        self._client.execute(render(drop_table(table.copy())))
        with self._lock:
            self._made.discard(table.name)

    def fetch(self, tree: exp.Expr) -> list[tuple[Any, ...]]:
        """All rows of a small result."""
        return [
            tuple(row.values()) for batch in self.fetch_batches(tree) for row in batch.to_pylist()
        ]

    def fetch_batches(self, tree: exp.Expr) -> Iterator[pa.RecordBatch]:
        """The rows of a result, a range at a time."""
        instance = self._client.execute(render(tree))
        reader = RangeReader(
            self._client, lambda: self._client.open_result(instance), self._table.place, None
        )
        for first, num_rows in ranges(reader.num_rows, _RANGE_ROWS):
            yield from reader.read(first, num_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drops what is left; a table that cannot be dropped now goes after a day by itself."""
        self._client.stopping.clear()
        for name in sorted(self._made):
            try:
                self.drop(exp.table_(name, db=self._client.entry.project))
            except CtrPipelineError as failure:
                logging.getLogger(__name__).info("table %s stays for a day: %s", name, failure)


class _ColumnSession:
    def __init__(self, engine: MaxComputeEngine) -> None:
        self._engine = engine
        self._tables: dict[str, exp.Table] = {}

    @contextmanager
    def value_counts(self, column: ColumnPlan) -> Iterator[None]:
        table = self._engine.make_value_counts(column)
        self._tables = {TABLE: table}
        yield
        self._engine.drop(table)

    def rows(
        self, query: Query, parameters: Mapping[str, float | str] | None = None
    ) -> list[tuple[Any, ...]]:
        return self._engine.fetch(query.bind(parameters or {}, self._tables))

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        return self._engine.fetch_batches(query.bind({}, self._tables))

    def compare(self, measured: MeasuredColumn) -> Mapping[str, ColumnDrift]:
        """Nothing: other splits are not counted there."""
        del measured
        return {}
