"""Statistics by MaxCompute, where the rows are: the plan of every engine in its dialect.

A scan counts the values of many columns, in the rows of all splits, into a table of the project
that queries run in: a partition for each column, with a lifecycle of one day. All other queries
read such a partition; the tables are dropped at the end. What comes over the network are results.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.column_threads import map_columns
from ctr_pipeline.analysis.comparison import compare_column
from ctr_pipeline.analysis.engine_protocol import AcceptLabels, LabelCounts, Session
from ctr_pipeline.analysis.measure import MeasuredColumn
from ctr_pipeline.analysis.sql import OTHER_COUNTS, TABLE, WEIGHTS, Query
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.table_sql import CountedRows, column_counts, is_bad, value_counts
from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient, RangeReader, ranges
from ctr_pipeline.dataset.formats.maxcompute.dialect import (
    create_table,
    drop_table,
    insert_partitions,
    render,
)
from ctr_pipeline.dataset.formats.maxcompute.reading import MaxComputeTable
from ctr_pipeline.dataset.formats.maxcompute.selection import (
    group_partitions,
    sample_of,
    select_rows,
)
from ctr_pipeline.dataset.formats.maxcompute.table import HashRange, TableRows
from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.dataset.value_sql import typed_value
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.errors import CtrPipelineError, StatisticsError
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnDrift

MOST_SELECTS = 256
"""UNION ALL combines so many:
https://www.alibabacloud.com/help/en/maxcompute/user-guide/maxcompute-sql-limits"""
COLUMNS_A_SCAN = 256
"""A process writes at most 512 partitions:
https://www.alibabacloud.com/help/en/maxcompute/user-guide/insert-or-overwrite-data-into-dynamic-partitions"""
QUERIES_AT_A_TIME = 8
"""A query waits for the service most of its time."""
_RANGE_ROWS = 65_536
_FEATURE = "feature"
_LABELS = "c0"
"""The partition of the labels; -1 stands for rows that are bad."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class MaxComputeRows:
    """Rows of a table of the service, or of partitions of it that one SELECT gives.

    Attributes:
        rows: Which; one of the groups of `group_partitions`, whatever their share.
        samples: Which samples have rows of it, by number, and their shares; None: all rows.
        missing_values: Texts that mean missing, the empty one among them.
    """

    rows: tuple[TableRows, ...]
    schema: pa.Schema
    samples: tuple[tuple[int, HashRange | None], ...]
    missing_values: tuple[str, ...]

    @property
    def place(self) -> str:
        """The rows' name in messages."""
        return str(self.rows[0])

    @property
    def sample(self) -> exp.Expr:
        """As `RowsInSql.sample`."""
        return sample_of(self.samples)

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        """As `RowsInSql.select`."""
        return select_rows(self.rows, columns)

    def is_readable(self, name: str, column_type: ColumnType) -> None:
        """As `RowsInSql.is_readable`: columns have types."""

    def value(self, name: str, column_type: ColumnType) -> exp.Expr | None:
        """As `RowsInSql.value`."""
        kind = self.schema.field(name).type
        return typed_value(name, kind, column_type, self.missing_values)


def plan_sources(
    splits: Sequence[Sequence[MaxComputeTable]], missing_values: tuple[str, ...]
) -> tuple[MaxComputeRows, ...]:
    """What a query selects from: as few tables and groups of partitions as there can be.

    Splits that divide the rows of a table by their hash are one SELECT together.

    Args:
        splits: Tables and partitions of each sample, with the same columns, none twice in one.
        missing_values: Texts that mean missing, the empty one among them.

    Raises:
        StatisticsError: They are more than a query combines.
    """
    schema = splits[0][0].schema
    found: list[tuple[tuple[TableRows, ...], list[tuple[int, HashRange | None]]]] = []
    divided: dict[tuple[TableRows, ...], list[tuple[int, HashRange | None]]] = {}
    for number, sources in enumerate(splits):
        for group in group_partitions([source.path for source in sources]):
            share = (number, group[0].chosen)
            whole = tuple(TableRows(one.address) for one in group)
            if whole in divided and share[1] is not None:
                divided[whole].append(share)
                continue
            samples = [share]
            found.append((whole, samples))
            if share[1] is not None:
                divided[whole] = samples
    if len(found) > MOST_SELECTS:
        raise StatisticsError(
            f"the rows are in {len(found)} tables and groups of partitions that differ in their "
            f"last column alone, and MaxCompute's UNION ALL combines {MOST_SELECTS}",
            place=str(splits[0][0].path),
            remedy="Name fewer, or copy the rows into partitions of one table",
        )
    return tuple(
        MaxComputeRows(group, schema, tuple(samples), missing_values) for group, samples in found
    )


@dataclass
class CountingScan:
    """A scan of the rows: which columns it counts, and into which table.

    Attributes:
        table: The table.
        columns: Partition of each column.
    """

    table: exp.Table
    columns: Mapping[str, str]
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    is_done: bool = False

    @property
    def has_labels(self) -> bool:
        """Whether it counts labels as well: the first scan does."""
        return _LABELS not in self.columns.values()


def plan_scans(columns: Sequence[str], project: str, name: str) -> list[CountingScan]:
    """As few scans as count all columns.

    Args:
        columns: Their names.
        project: Where the tables go.
        name: How the names of tables begin.
    """
    first_columns = range(0, max(len(columns), 1), COLUMNS_A_SCAN)
    return [
        CountingScan(
            exp.table_(f"{name}_{number}", db=project),
            {
                column: f"c{place + (number == 0)}"
                for place, column in enumerate(columns[start : start + COLUMNS_A_SCAN])
            },
        )
        for number, start in enumerate(first_columns)
    ]


def counting_queries(rows: CountedRows) -> list[str]:
    """The SELECT of each scan."""
    scans = plan_scans(list(rows.columns), "", "")
    return [render(count_values_query(rows, scan)) for scan in scans]


def count_values_query(rows: CountedRows, scan: CountingScan) -> exp.Select:
    """Counts the values of all columns of a scan, in one reading of the rows.

    A row of the table becomes one for each column, with its place among them.
    """
    columns = list(scan.columns)
    aliases = {column: f"value{place}" for place, column in enumerate(columns)}
    cells = [_cell(exp.column(aliases[one]), rows.columns[one]) for one in columns]
    if scan.has_labels:
        label = exp.Coalesce(this=exp.column("clicked"), expressions=[exp.Literal.number(-1)])
        cells.insert(0, _cell(exp.cast(label, "double"), ColumnType.NUMBER))
    weight = [exp.column("weight")] if rows.weight is not None else []
    feature = exp.func("CONCAT", exp.Literal.string("c"), exp.cast(exp.column("place"), "text"))
    cut = exp.select(
        exp.alias_(feature, _FEATURE),
        exp.column("sample"),
        exp.column("clicked"),
        *weight,
        exp.alias_(_of_cell("number"), "number"),
        exp.alias_(_of_cell("text"), "text"),
    ).from_(rows.rows(aliases))
    names = exp.TableAlias(
        this=exp.to_identifier("cells"),
        columns=[exp.to_identifier("place"), exp.to_identifier("cell")],
    )
    cut.append(
        "laterals",
        exp.Lateral(this=exp.Posexplode(this=exp.Array(expressions=cells)), view=True, alias=names),
    )
    counted: exp.Expr = exp.Not(this=is_bad())
    if scan.has_labels:
        is_label = exp.EQ(this=exp.column(_FEATURE), expression=exp.Literal.string(_LABELS))
        counted = exp.or_(is_label, counted)
    good = exp.select(exp.Star()).from_(cut.subquery("cells")).where(counted)
    keys = ("number", "text", "sample", _FEATURE)
    counts = value_counts(good.subquery("good_cells"), keys, weighted=rows.weight is not None)
    # What a table is partitioned by comes last.
    return exp.select(*map(exp.column, [*_counted(rows), _FEATURE])).from_(
        counts.subquery("counted")
    )


def _counted(rows: CountedRows) -> dict[str, str]:
    """The columns of a table of counts."""
    weights = WEIGHTS if rows.weight is not None else ()
    return {
        "number": "double",
        "text": "text",
        "sample": "bigint",
        "num_rows": "bigint",
        "num_clicks": "bigint",
        **dict.fromkeys(weights, "double"),
    }


def _cell(value: exp.Expr, kind: ColumnType) -> exp.Expr:
    """A value of any column: elements of an array have one type."""
    is_number = kind is ColumnType.NUMBER
    named = [
        exp.Literal.string("number"),
        value if is_number else exp.cast(exp.null(), "double"),
        exp.Literal.string("text"),
        exp.cast(exp.null(), "text") if is_number else value,
    ]
    return exp.Anonymous(this="NAMED_STRUCT", expressions=named)


def _of_cell(name: str) -> exp.Expr:
    return exp.Dot(this=exp.column("cell"), expression=exp.to_identifier(name))


class MaxComputeEngine:
    """Computes on tables of MaxCompute; a context manager.

    Args:
        client: A client of the project that queries run in.
        rows: The rows; sample 0 are the training rows.
        others: Names of the other samples, in order.
        accept: Is given the labels of all splits before anything else is computed.
    """

    def __init__(
        self,
        client: MaxComputeClient,
        rows: CountedRows,
        others: Sequence[str] = (),
        accept: AcceptLabels | None = None,
    ) -> None:
        self._client = client
        self._rows = rows
        self._splits = ("train", *others)
        self._accept = accept
        self.is_weighted = rows.weight is not None
        name = f"ctrpipe_{uuid.uuid4().hex[:12]}"
        self._scans = plan_scans(list(rows.columns), client.entry.project, name)
        self._labels: LabelCounts | None = None

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the rows that columns are compared with."""
        return self._splits[1:]

    def count_labels(self, plan: StatisticsPlan) -> LabelCounts:
        """As `Engine.count_labels`; from the first scan."""
        self._rows.check(plan)
        if self._labels is None:
            table = self._scans[0].table
            self._make(self._scans[0])
            found = self._read_labels(table)
            if self._accept is not None:
                self._accept(found)
            train = found["train"]
            self._labels = replace(train, num_rows=train.num_good, num_wrong=0)
        return self._labels

    def _read_labels(self, table: exp.Table) -> dict[str, LabelCounts]:
        names = ["sample", "number", "num_rows", *(WEIGHTS[:1] if self.is_weighted else ())]
        query = _partition_of(table, _LABELS, list(map(exp.column, names)))
        found = {split: LabelCounts() for split in self._splits}
        for sample, label, num_rows, *weight in self.fetch(query):
            is_click, is_wrong = label == 1, label == -1
            sums = None
            if weight:
                total = 0.0 if is_wrong else weight[0]
                sums = WeightSums(total=total, positive=total if is_click else 0.0)
            found[self._splits[sample]] += LabelCounts(
                num_rows, num_rows * is_click, num_rows * is_wrong, sums
            )
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

    def counts_of(self, column: str, split: str) -> Iterator[ColumnCounts]:
        """As `Engine.counts_of`."""
        weighted = self.is_weighted and split == "train"
        counts = self.counted(column, self._splits.index(split), weighted=weighted)
        return map(column_counts, self.fetch_batches(counts))

    def counted(self, column: str, sample: int | None, *, weighted: bool = False) -> exp.Select:
        """The value counts of a column, scanned if need be.

        Args:
            column: Its name.
            sample: Rows that are counted; None: all but the training rows, with `sample` from 0.
            weighted: With what rows weigh.
        """
        scan = next(scan for scan in self._scans if column in scan.columns)
        self._make(scan)
        kind = "number" if self._rows.columns[column] is ColumnType.NUMBER else "text"
        names = ["num_rows", "num_clicks", *(WEIGHTS if weighted else ())]
        columns = [exp.alias_(exp.column(kind), "value"), *map(exp.column, names)]
        number = exp.column("sample")
        if sample is None:
            place = exp.Sub(this=number, expression=exp.Literal.number(1))
            columns.insert(0, exp.alias_(place, "sample"))
            chosen: exp.Expr = exp.GT(this=number.copy(), expression=exp.Literal.number(0))
        else:
            chosen = exp.EQ(this=number, expression=exp.Literal.number(sample))
        return _partition_of(scan.table, scan.columns[column], columns).where(chosen)

    def _make(self, scan: CountingScan) -> None:
        with scan.lock:
            if scan.is_done:
                return
            created = create_table(scan.table, _counted(self._rows), _FEATURE)
            self._client.execute(render(created))
            query = count_values_query(self._rows, scan)
            self._client.execute(render(insert_partitions(scan.table, _FEATURE, query)))
            scan.is_done = True

    def fetch(self, tree: exp.Expr) -> list[tuple[Any, ...]]:
        """All rows of a small result."""
        return [
            tuple(row.values()) for batch in self.fetch_batches(tree) for row in batch.to_pylist()
        ]

    def fetch_batches(self, tree: exp.Expr) -> Iterator[pa.RecordBatch]:
        """The rows of a result, a range at a time."""
        instance = self._client.execute(render(tree))
        reader = RangeReader(
            self._client, lambda: self._client.open_result(instance), self._rows.place, None
        )
        for first, num_rows in ranges(reader.num_rows, _RANGE_ROWS):
            yield from reader.read(first, num_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Drops the tables; one that cannot be dropped now goes after a day by itself."""
        self._client.stopping.clear()
        for scan in self._scans:
            try:
                self._client.execute(render(drop_table(scan.table.copy())))
            except CtrPipelineError as failure:
                logger = logging.getLogger(__name__)
                logger.info("table %s stays for a day: %s", scan.table.name, failure)


def _partition_of(table: exp.Table, feature: str, columns: Sequence[exp.Expr]) -> exp.Select:
    chosen = exp.EQ(this=exp.column(_FEATURE), expression=exp.Literal.string(feature))
    return exp.select(*columns).from_(table.copy()).where(chosen)


class _ColumnSession:
    def __init__(self, engine: MaxComputeEngine) -> None:
        self._engine = engine
        self._tables: dict[str, exp.Expr] = {}

    @contextmanager
    def value_counts(self, column: ColumnPlan) -> Iterator[None]:
        name, weighted = column.column, self._engine.is_weighted
        self._tables = {
            TABLE: self._engine.counted(name, 0, weighted=weighted).subquery(),
            OTHER_COUNTS: self._engine.counted(name, None).subquery(),
        }
        yield

    def rows(
        self, query: Query, parameters: Mapping[str, float | str] | None = None
    ) -> list[tuple[Any, ...]]:
        return self._engine.fetch(query.bind(parameters or {}, self._tables))

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        return self._engine.fetch_batches(query.bind({}, self._tables))

    def compare(self, measured: MeasuredColumn) -> Mapping[str, ColumnDrift]:
        others = self._engine.others
        if not others:
            return {}
        return dict(zip(others, compare_column(self.rows, measured, len(others)), strict=True))
