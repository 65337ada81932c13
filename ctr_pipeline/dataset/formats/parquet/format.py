"""Parquet files as a source: recognised, inspected and read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.arrow_columns import plain_type
from ctr_pipeline.dataset.columns import parse_numbers
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.parquet.reading import (
    ParquetFile,
    read_batches,
    read_first_rows,
    read_schema,
)
from ctr_pipeline.dataset.inference import infer_type
from ctr_pipeline.dataset.partitions import partition_of, with_partition
from ctr_pipeline.dataset.schema_checks import check_names, check_same_names, unify_schemas
from ctr_pipeline.dataset.source import HEAD_ROWS, Place, Source, SourceFormat
from ctr_pipeline.dataset.typed_source import lists_of, refuse_columns, typed_source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType

_HEAD_FILES = 20
_BATCH_ROWS = 16_384
_MOST_NAMED = 5


class ParquetFormat(SourceFormat):
    """Parquet files, alone or in `key=value` folders; of each the footer is looked at."""

    name = "Parquet"
    endings = (".parquet", ".pq")
    magic = b"PAR1"

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        are_new: bool,
    ) -> Source:
        """As `SourceFormat.inspect`."""
        files = [file for group in places.values() for file in group if isinstance(file, DataFile)]
        first = files[0]
        # New rows to predict may come in another format than the rows of training.
        if not are_new:
            refuse_columns(data, "Parquet files", first)
        opened = {file: _open(file) for file in files}
        folders = [name for name, _ in opened[first].partition]
        for file, one in opened.items():
            check_same_names([name for name, _ in one.partition], file, folders, first)
        schema = unify_schemas({file: one.schema for file, one in opened.items()})
        lacking = _lacking(opened, schema)
        unlabelled = [] if are_new else lacking.get(data.label, [])
        for file in unlabelled:
            labelled = next(other for other in files if other not in unlabelled)
            names = opened[file].schema.names
            check_same_names(names, file, schema.names, labelled, label=data.label)
        opened = {file: _completed(one, schema) for file, one in opened.items()}
        with_rows = [file for file in opened.values() if file.num_rows]
        if not with_rows:
            raise DataError("has no rows", place=str(first), remedy="Give files with rows")
        of_folders = _types_of_folders(list(opened.values()))
        head = _head_of(with_rows, of_folders, schema)
        source = typed_source(
            self, "parquet", files=places, opened=opened.values(), schema=schema, head=head
        )
        return replace(
            source,
            inferred_types={**source.inferred_types, **of_folders},
            lists=lists_of(head),
            notes=_notes_on(lacking, len(files)),
            head_is_all=len(files) == 1 and opened[first].num_rows == head.num_rows,
        )

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`, with one type for each column of all files."""
        files = [file for file in source.opened.values() if isinstance(file, ParquetFile)]
        schema = pa.schema([(name, _type_of_all(name, files)) for name in source.column_names])
        with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
            for file in files:
                size, done = file.size_bytes(), 0
                for batch in read_batches(file, source.column_names, _BATCH_ROWS):
                    yield _cast(pa.Table.from_batches([batch]), file, schema)
                    before, done = done, done + batch.num_rows
                    task.advance(size * done // file.num_rows - size * before // file.num_rows)


def _type_of_all(name: str, files: Sequence[ParquetFile]) -> pa.DataType:
    """The narrowest type that the values of a column have in all files.

    Raises:
        DataError: There is none.
    """
    kinds = {
        plain_type(file.schema.field(name).type): file for file in files if name not in file.absent
    }
    try:
        schemas = [pa.schema([(name, kind)]) for kind in kinds]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError as error:
        raise DataError(
            f"has the types {' and '.join(map(str, kinds))}, which no type holds together",
            place=f"{list(kinds.values())[-1].path}, column '{name}'",
            remedy="Give all values of the column one type",
        ) from error


def _cast(table: pa.Table, file: ParquetFile, schema: pa.Schema) -> pa.Table:
    try:
        return _with_absent(table, file, schema).cast(schema)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"has a value that the type of other files cannot hold ({error})",
            place=str(file.path),
            remedy="Give all values of a column one type",
        ) from error


def _open(file: DataFile) -> ParquetFile:
    own, num_rows = read_schema(file)
    check_names(own.names, file)
    partition = partition_of(file)
    return ParquetFile(file, with_partition(own, partition, file), num_rows, partition)


def _lacking(
    opened: Mapping[DataFile, ParquetFile], schema: pa.Schema
) -> dict[str, list[DataFile]]:
    """The files that do not have a column of the others, by its name."""
    names = {file: set(one.schema.names) for file, one in opened.items()}
    return {
        name: lacking
        for name in schema.names
        if (lacking := [file for file, own in names.items() if name not in own])
    }


def _completed(file: ParquetFile, schema: pa.Schema) -> ParquetFile:
    """The file with all columns of a schema; those without a value in it are not read from it."""
    if file.schema.equals(schema):
        return file
    own = {field.name: field.type for field in file.schema}
    absent = tuple(
        field.name
        for field in schema
        if field.name not in own
        or (pa.types.is_null(own[field.name]) and not pa.types.is_null(field.type))
    )
    fields = own | dict.fromkeys(absent, pa.string())
    return replace(file, schema=pa.schema(list(fields.items())), absent=absent)


def _notes_on(lacking: Mapping[str, Sequence[DataFile]], num_files: int) -> tuple[str, ...]:
    if not lacking:
        return ()
    named = [f"'{name}' in {len(files)}, such as '{files[0]}'" for name, files in lacking.items()]
    more = f", and {len(named) - _MOST_NAMED} more columns" if len(named) > _MOST_NAMED else ""
    return (
        f"Columns are absent from some of the {num_files} files, and missing in their rows: "
        f"{'; '.join(named[:_MOST_NAMED])}{more}",
    )


def _types_of_folders(files: Sequence[ParquetFile]) -> dict[str, ColumnType]:
    """Types of the columns that folders give, by the values of all files, as those of texts."""
    return {
        name: infer_type(
            pa.chunked_array([[dict(file.partition)[name] for file in files]], pa.string())
        )
        for name, _ in files[0].partition
    }


def _head_of(
    files: Sequence[ParquetFile], types: Mapping[str, ColumnType], schema: pa.Schema
) -> pa.Table:
    """The first rows of the first file; of several folders, the first rows of some of each.

    What a folder says is the same for all rows of a file: one file would show constants.

    Args:
        files: Files that have rows.
        types: Types of the columns that folders give.
        schema: The columns of all files.
    """
    # The one that tells most.
    first = min(files, key=lambda file: len(file.absent))
    if not first.partition:
        return _with_absent(read_first_rows(first, HEAD_ROWS), first, schema)
    alike = [file for file in files if file.schema.equals(first.schema)]
    num_seen = min(len(alike), _HEAD_FILES)
    seen = [alike[index * len(alike) // num_seen] for index in range(num_seen)]
    head = pa.concat_tables([read_first_rows(file, HEAD_ROWS // num_seen) for file in seen])
    for name, _ in first.partition:
        if types[name] is ColumnType.NUMBER:
            numbers, _ = parse_numbers(head.column(name).combine_chunks(), ("",))
            head = head.set_column(head.schema.get_field_index(name), name, numbers)
    return _with_absent(head, first, schema)


def _with_absent(head: pa.Table, file: ParquetFile, schema: pa.Schema) -> pa.Table:
    """The first rows with the types of columns of which their file has no value."""
    for name in file.absent:
        nulls = pa.nulls(head.num_rows, schema.field(name).type)
        head = head.set_column(head.schema.get_field_index(name), name, nulls)
    return head
