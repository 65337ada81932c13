"""Rows of tables by the Arrow tunnel: ranges read ahead by several threads, given out in order.

All rows of a table come straight from its download session; rows of a part of it are selected by a
query first and come from the session of its result.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.arrow_columns import RecordBlock, check_type
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient, RangeReader, ranges
from ctr_pipeline.dataset.formats.maxcompute.dialect import render
from ctr_pipeline.dataset.formats.maxcompute.selection import select_rows
from ctr_pipeline.dataset.formats.maxcompute.table import TableFacts, TableRows
from ctr_pipeline.dataset.source import WHOLE, Block, Range, ranges_between
from ctr_pipeline.ordered_map import map_in_order

RANGE_ROWS = 32_768
READ_AHEAD = 4


@dataclass(frozen=True)
class MaxComputeTable:
    """Rows of one table, as inspection found it.

    Attributes:
        path: The rows.
        facts: What the service says of the table.
        client: Reads them.
    """

    path: TableRows
    facts: TableFacts
    client: MaxComputeClient = field(repr=False, compare=False)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self.facts.schema

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all its columns, in its order."""
        return tuple(self.facts.schema.names)

    def size_bytes(self) -> int:
        """As the service says."""
        return self.facts.size_bytes

    def known_rows(self) -> int | None:
        """None: a table does not tell how many of its rows a split has."""
        return None

    def state(self) -> tuple[str | int, ...]:
        """Asks the service; changes when the rows do.

        Raises:
            DataError: The table is gone, or the service does not answer.
        """
        facts = self.client.describe(self.path.address)
        columns = ", ".join(f"{field.name} {field.type}" for field in facts.schema)
        # Made again from the same rows, a table of a SELECT is another one of the same rows.
        version = facts.version if self.path.key is None else ""
        return str(self.path), repr(self.path.chosen), version, columns

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`, in rows.

        Rows that a query selects have another order each time, so that they are not cut.
        """
        size = self.facts.size_bytes
        if unit_bytes is None or self.path.chosen is not None or size <= unit_bytes:
            return [WHOLE]
        num_rows = open_rows(self, list(self.column_names)).num_rows
        step = max(1, num_rows * unit_bytes // size)
        return ranges_between(range(0, num_rows, step))

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        return read_table_blocks(self, plan, part)


def read_table_blocks(
    source: MaxComputeTable, plan: ReadingPlan, part: Range = WHOLE
) -> Iterator[RecordBlock]:
    """The rows of a table or a range of them, the wanted columns only, in memory for a few ranges.

    Raises:
        DataError: A column's type does not fit its use, or the rows cannot be read.
    """
    for name in plan.names:
        check_type(source.path, source.schema.field(name).type, name, plan)
    reader = open_rows(source, plan.names)
    num_rows = reader.num_rows
    done, after = part.first, num_rows if part.after is None else part.after

    def read(place: tuple[int, int]) -> list[pa.RecordBatch]:
        return reader.read(*place)

    pool = ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="tunnel")
    try:
        places = [
            (part.first + first, count) for first, count in ranges(after - part.first, RANGE_ROWS)
        ]
        for batches in map_in_order(pool, read, places, ahead=READ_AHEAD - 1):
            for batch in batches:
                done += batch.num_rows
                position = source.facts.size_bytes * done // max(num_rows, 1)
                yield RecordBlock(source.path, batch, position)
    except BaseException:
        source.client.stopping.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        source.client.stopping.clear()


def read_rows(source: MaxComputeTable) -> Iterator[pa.RecordBatch]:
    """All rows of a table, every column as its type is, a range at a time.

    Raises:
        DataError: The rows cannot be read.
    """
    reader = open_rows(source, list(source.column_names))
    for first, count in ranges(reader.num_rows, RANGE_ROWS):
        yield from reader.read(first, count)


def read_head(source: MaxComputeTable, num_rows: int) -> pa.Table:
    """The first rows of a table, all columns, whatever its split.

    Raises:
        DataError: The rows cannot be read.
    """
    names = list(source.column_names)
    reader = open_rows(replace(source, path=TableRows(source.path.address)), names)
    batches = reader.read(0, min(reader.num_rows, num_rows))
    return pa.Table.from_batches(batches) if batches else source.schema.empty_table()


def open_rows(source: MaxComputeTable, names: list[str]) -> RangeReader:
    """A reader of columns of a table.

    Args:
        source: The table.
        names: The columns, in this order.

    Raises:
        DataError: The table may not be read, or the query that selects its rows fails.
    """
    client, place = source.client, str(source.path)
    if source.path.chosen is None:
        return RangeReader(client, lambda: client.open_table(source.path.address), place, names)
    query = select_rows([source.path], [exp.column(name) for name in names])
    instance = client.execute(render(query))
    return RangeReader(client, lambda: client.open_result(instance), place, names)
