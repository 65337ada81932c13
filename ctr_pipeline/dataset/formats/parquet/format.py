"""Parquet files as a source: recognised, inspected and read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
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
from ctr_pipeline.dataset.schema_checks import check_names, check_same_types
from ctr_pipeline.dataset.source import HEAD_ROWS, Place, Source, SourceFormat
from ctr_pipeline.dataset.typed_source import lists_of, refuse_columns, typed_source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType

_HEAD_FILES = 20
_BATCH_ROWS = 16_384


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
        schema = opened[first].schema
        for file in files:
            check_same_types(opened[file].schema, file, schema, first)
        with_rows = [file for file in opened.values() if file.num_rows]
        if not with_rows:
            raise DataError("has no rows", place=str(first), remedy="Give files with rows")
        of_folders = _types_of_folders(list(opened.values()))
        head = _head_of(with_rows, of_folders)
        source = typed_source(
            self, "parquet", files=places, opened=opened.values(), schema=schema, head=head
        )
        return replace(
            source,
            inferred_types={**source.inferred_types, **of_folders},
            lists=lists_of(head),
            head_is_all=len(files) == 1 and opened[first].num_rows == head.num_rows,
        )

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`, with the columns of the first file in its order."""
        with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
            for file in source.opened.values():
                if not isinstance(file, ParquetFile):
                    raise TypeError(f"{file.path} is no Parquet file")
                size, done = file.size_bytes(), 0
                for batch in read_batches(file, source.column_names, _BATCH_ROWS):
                    yield pa.Table.from_batches([batch])
                    before, done = done, done + batch.num_rows
                    task.advance(size * done // file.num_rows - size * before // file.num_rows)


def _open(file: DataFile) -> ParquetFile:
    own, num_rows = read_schema(file)
    check_names(own.names, file)
    partition = partition_of(file)
    return ParquetFile(file, with_partition(own, partition, file), num_rows, partition)


def _types_of_folders(files: Sequence[ParquetFile]) -> dict[str, ColumnType]:
    """Types of the columns that folders give, by the values of all files, as those of texts."""
    return {
        name: infer_type(
            pa.chunked_array([[dict(file.partition)[name] for file in files]], pa.string())
        )
        for name, _ in files[0].partition
    }


def _head_of(files: Sequence[ParquetFile], types: Mapping[str, ColumnType]) -> pa.Table:
    """The first rows of the first file; of several folders, the first rows of some of each.

    What a folder says is the same for all rows of a file: one file would show constants.

    Args:
        files: Files that have rows.
        types: Types of the columns that folders give.
    """
    first = files[0]
    if not first.partition:
        return read_first_rows(first, HEAD_ROWS)
    alike = [file for file in files if file.schema.equals(first.schema)]
    num_seen = min(len(alike), _HEAD_FILES)
    seen = [alike[index * len(alike) // num_seen] for index in range(num_seen)]
    head = pa.concat_tables([read_first_rows(file, HEAD_ROWS // num_seen) for file in seen])
    for name, _ in first.partition:
        if types[name] is ColumnType.NUMBER:
            numbers, _ = parse_numbers(head.column(name).combine_chunks(), ("",))
            head = head.set_column(head.schema.get_field_index(name), name, numbers)
    return head
