"""Sources whose columns have names and types of their own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.arrow_columns import column_type_of, is_time
from ctr_pipeline.dataset.inference import holds_beyond_floats, infer_list, infer_time
from ctr_pipeline.dataset.lists import is_list
from ctr_pipeline.dataset.source import Place, Source, SourceFile, SourceFormat
from ctr_pipeline.datetime_formats import ISO
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType


def refuse_columns(data: DataConfig, what: str, place: object) -> None:
    """Raises DataError if the config names the columns of files that have names."""
    if data.columns is not None:
        raise DataError(
            f"data.columns is for files without a header, and {what} have names",
            place=str(place),
            remedy="Leave out data.columns",
        )


def typed_source(
    format: SourceFormat,
    format_name: str,
    *,
    files: Mapping[str, tuple[Place, ...]],
    opened: Iterable[SourceFile],
    schema: pa.Schema,
    head: pa.Table,
) -> Source:
    """A source by its schema and first rows.

    Args:
        format: As of `Source`.
        format_name: As of `Source`.
        files: As of `Source`.
        opened: Each of the files.
        schema: Schema of all columns.
        head: The first rows, with the columns of the schema.
    """
    return Source(
        files=files,
        format=format,
        format_name=format_name,
        column_names=tuple(schema.names),
        inferred_types=_types_of(schema, head),
        head=head.select(schema.names),
        opened={file.path: file for file in opened},
        times=_times_of(schema, head),
    )


def read_typed_tables(
    source: Source, progress: Progress, read: Callable[[Any], Iterator[pa.RecordBatch]]
) -> Iterator[pa.Table]:
    """All rows of a source of tables, with the types of the first rows.

    Args:
        source: The tables.
        progress: Has a task of the bytes of all tables.
        read: Gives the rows of one of `source.opened`.

    Raises:
        DataError: The rows cannot be read, or a value does not have its column's type.
    """
    kinds: pa.Schema | None = None
    with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
        for place, opened in source.opened.items():
            for batch in read(opened):
                table = pa.Table.from_batches([batch]).select(list(source.column_names))
                kinds = table.schema if kinds is None else kinds
                _check_types(table, kinds, place)
                yield table
            task.advance(opened.size_bytes())


def _check_types(table: pa.Table, kinds: pa.Schema, place: Place) -> None:
    for name in kinds.names:
        found, expected = table.schema.field(name).type, kinds.field(name).type
        if found != expected:
            raise DataError(
                f"has values of the type {found}, and others of the type {expected}",
                place=f"{place}, column '{name}'",
                remedy="Give all values of the column one type",
            )


def _types_of(schema: pa.Schema, head: pa.Table) -> dict[str, ColumnType]:
    """Types by the schema; whole numbers beyond 2^53 are texts, as in a CSV.

    Bytes that are no text have no type.
    """
    types = {}
    for name in schema.names:
        kind = schema.field(name).type
        own = column_type_of(kind)
        if own is not None and not _holds_bytes(head.column(name)):
            is_text = own is ColumnType.NUMBER and holds_beyond_floats(head.column(name))
            types[name] = ColumnType.TEXT if is_text else own
    return types


def _holds_bytes(values: pa.ChunkedArray) -> bool:
    if not pa.types.is_binary(values.type) and not pa.types.is_large_binary(values.type):
        return False
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return True
    return False


def _times_of(schema: pa.Schema, head: pa.Table) -> dict[str, str]:
    """Points in time by their type, and numbers and texts that look like it."""
    found = {}
    for name in schema.names:
        kind = schema.field(name).type
        format = None
        if is_time(kind):
            format = ISO
        elif column_type_of(kind) is not None:
            format = infer_time(head.column(name))
        if format is not None:
            found[name] = format
    return found


def lists_of(head: pa.Table) -> dict[str, ListSpec]:
    """Columns of lists that fit a feature."""
    lists = {
        name: infer_list(head.column(name).combine_chunks())
        for name in head.schema.names
        if is_list(head.schema.field(name).type)
    }
    return {name: cut for name, cut in lists.items() if cut is not None}
