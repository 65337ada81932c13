"""What the tables of a config hold, and their rows as blocks of records."""

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.formats.databases.table import (
    DatabaseAddress,
    DatabaseTable,
    Engine,
    is_database_address,
    parse_database_address,
)
from ctr_pipeline.dataset.formats.parquet.reading import RecordBlock, check_type, column_type_of
from ctr_pipeline.dataset.schema_checks import check_names, check_same_names
from ctr_pipeline.errors import DataError

_BATCH_ROWS = 32_768


def find_tables(
    data: DataConfig,
    groups: Mapping[str, tuple[Sequence[str], str]],
    *,
    may_lack_label: bool = False,
) -> tuple[dict[str, tuple[DatabaseAddress, ...]], dict[Any, DatabaseTable]]:
    """The tables of each split, and what each holds.

    Args:
        data: The config's section.
        groups: Addresses and config key by split.
        may_lack_label: The rows are new ones, and `data.columns` may be of those of training.

    Raises:
        DataError: An address is wrong, a table is not there or cannot be read, or tables have other
            columns than the first.
    """
    if data.columns is not None and not may_lack_label:
        raise DataError(
            "data.columns is for files without a header, and tables have names",
            place="data.columns",
            remedy="Remove data.columns",
        )
    tables: dict[str, tuple[DatabaseAddress, ...]] = {}
    for split, (texts, key) in groups.items():
        for text in texts:
            if not is_database_address(text):
                raise DataError(
                    f"'{text}' is no table of a database, but other rows are in one",
                    place=key,
                    remedy="Give tables only, or files only",
                )
        tables[split] = tuple(parse_database_address(text, key) for text in texts)
        if len(set(tables[split])) < len(tables[split]):
            raise DataError(
                "a table is named twice, its rows would count twice",
                place=key,
                remedy="Name it once",
            )
    opened = {
        table: _module(table.engine).describe(table) for group in tables.values() for table in group
    }
    first, *others = opened
    schema = opened[first].schema
    check_names(schema.names, first)
    for other in others:
        found = opened[other].schema
        check_same_names(found.names, other, schema.names, first)
        for name in schema.names:
            kinds = schema.field(name).type, found.field(name).type
            if column_type_of(kinds[0]) is not column_type_of(kinds[1]):
                raise DataError(
                    f"column '{name}' has the type {kinds[1]}, but {kinds[0]} in '{first}'",
                    place=str(other),
                    remedy="Give tables with the same types",
                )
    return tables, opened


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
    done, size_bytes = 0, source.size_bytes
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
