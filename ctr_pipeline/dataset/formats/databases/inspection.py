"""What tables of database files hold, and their rows as blocks of records."""

from collections.abc import Iterator, Mapping
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.arrow_columns import RecordBlock, check_type
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.formats.databases.table import (
    DatabaseAddress,
    DatabaseTable,
    Engine,
)
from ctr_pipeline.errors import DataError

_BATCH_ROWS = 32_768


def describe(table: DatabaseAddress) -> DatabaseTable:
    """What a table is.

    Raises:
        DataError: It is not there or cannot be read.
    """
    found: DatabaseTable = _module(table.engine).describe(table)
    return found


def head_of(opened: Mapping[DatabaseAddress, DatabaseTable], num_rows: int) -> pa.Table:
    """The first rows of the first table that has any, with the columns of the first one.

    Raises:
        DataError: None has a row.
    """
    names = next(iter(opened.values())).column_names
    for source in opened.values():
        batches = _module(source.path.engine).read_batches(source, names, num_rows)
        batch = next(batches, None)
        batches.close()
        if batch is not None and batch.num_rows:
            return pa.Table.from_batches([_readable(batch)])
    raise DataError("has no rows", place=str(next(iter(opened))), remedy="Give a table with rows")


def read_database_blocks(source: DatabaseTable, plan: ReadingPlan) -> Iterator[RecordBlock]:
    """The rows of a table, the wanted columns only.

    Raises:
        DataError: A column's type does not fit its use, or the rows cannot be read.
    """
    for name in plan.names:
        check_type(source.path, source.schema.field(name).type, name, plan)
    module = _module(source.path.engine)
    num_rows = module.count_rows(source)
    done, size_bytes = 0, source.size_bytes()
    for batch in module.read_batches(source, plan.names, _BATCH_ROWS):
        done += batch.num_rows
        yield RecordBlock(source.path, batch, size_bytes * done // max(num_rows, 1))


def read_rows(source: DatabaseTable) -> Iterator[pa.RecordBatch]:
    """All rows of a table, every column as its type is.

    Raises:
        DataError: The rows cannot be read.
    """
    module = _module(source.path.engine)
    for batch in module.read_batches(source, list(source.column_names), _BATCH_ROWS):
        yield _readable(batch)


def _module(engine: Engine) -> ModuleType:
    if engine == "sqlite":
        from ctr_pipeline.dataset.formats.databases import sqlite_file

        return sqlite_file
    from ctr_pipeline.dataset.formats.databases import duckdb_file

    return duckdb_file


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with texts for bytes; those that are not UTF-8 are found when all rows are read."""
    columns = [_texts(one) if pa.types.is_binary(one.type) else one for one in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _texts(column: pa.Array) -> pa.Array:
    try:
        return pc.cast(column, pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in values]
    return pa.array(texts, pa.string())
