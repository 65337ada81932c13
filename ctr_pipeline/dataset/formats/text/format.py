"""Delimited text files as a source: recognised, inspected and read."""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.columns import missing_to_null
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.text.blocks import TextFile
from ctr_pipeline.dataset.formats.text.head import (
    TextHead,
    check_dialect,
    find_names,
    read_text_head,
)
from ctr_pipeline.dataset.formats.text.parsing import DelimitedText, TextBlock, texts_of_block
from ctr_pipeline.dataset.formats.text.records import count_lines
from ctr_pipeline.dataset.formats.text.typed_rows import read_typed_texts
from ctr_pipeline.dataset.schema_checks import check_names, check_same_kinds, check_same_names
from ctr_pipeline.dataset.source import (
    HEAD_BYTES,
    OTHER_HEAD_BYTES,
    Place,
    Source,
    SourceFormat,
)
from ctr_pipeline.dataset.text_columns import read_text_columns
from ctr_pipeline.dataset.value_texts import missing_texts
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType


class TextFormat(SourceFormat):
    """CSV, TSV and other delimited text, plain, gzip or zstd."""

    name = "delimited text"

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        are_new: bool,
    ) -> Source:
        """As `SourceFormat.inspect`."""

        def look(file: DataFile, num_bytes: int, delimiter: str | None) -> TextHead:
            return read_text_head(file, data, num_bytes, delimiter, are_new=are_new)

        return inspect_lines(self, data, places, look, TextFile, are_new=are_new)

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`."""
        return read_typed_texts(source, progress)


def inspect_lines(
    format: SourceFormat,
    data: DataConfig,
    places: Mapping[str, tuple[Place, ...]],
    look: Callable[[DataFile, int, str | None], TextHead],
    kind: type[TextFile],
    *,
    are_new: bool,
) -> Source:
    """What files of delimited lines hold, whatever the lines are kept in.

    Args:
        format: The format of the files.
        data: How they are read.
        places: The files, by split.
        look: Reads the head of a file, about so many bytes, with this delimiter or the one found.
        kind: Reads a file.
        are_new: As of `SourceFormat.inspect`.

    Raises:
        DataError: As `SourceFormat.inspect`.
    """
    check_dialect(data)
    files = [file for group in places.values() for file in group if isinstance(file, DataFile)]
    first = files[0]
    opened: dict[DataFile, TextFile] = {}
    blocks: dict[DataFile, TextBlock] = {}
    heads: dict[DataFile, pa.Table] = {}
    delimiter: str | None = None
    for file in files:
        head = look(file, HEAD_BYTES if file == first else OTHER_HEAD_BYTES, delimiter)
        delimiter = head.dialect.delimiter
        names, has_header = find_names(head, data, are_new=are_new)
        check_names(names, file)
        if file != first:
            expected = opened[first].column_names
            needed = None if are_new else data.label
            check_same_names(names, file, expected, first, label=needed)
        opened[file] = kind(
            file, head.compression, head.dialect, names, has_header, head.num_skipped
        )
        blocks[file] = _head_block(opened[file], head)
        heads[file] = _read_texts(blocks[file], data)
    missing = missing_texts(data.missing_values)
    read = read_text_columns(heads[first], missing)
    numbers = [name for name, kind in read.types.items() if kind is ColumnType.NUMBER]
    for file in files[1:]:
        check_same_kinds(heads[file], file, numbers, first)
    head_file = next((file for file, table in heads.items() if table.num_rows), None)
    if head_file is None:
        raise _no_rows(opened[first])
    names = opened[first].column_names
    if head_file != first:
        read = read_text_columns(heads[head_file].select(names), missing)
    return Source(
        files=places,
        format=format,
        format_name="tsv" if delimiter == "\t" else "csv",
        delimiter=delimiter,
        has_header=opened[first].has_header,
        column_names=names,
        inferred_types=read.types,
        head=read.typed,
        opened={file.path: file for file in opened.values()},
        head_block=blocks[head_file],
        head_is_all=head.is_whole and len(files) == 1,
        times=read.times,
    )


def _no_rows(file: DelimitedText) -> DataError:
    if file.has_header:
        return DataError(
            "has a header but no rows",
            place=str(file.path),
            remedy="Give a file with rows; if its first line is a row, list the columns in "
            "data.columns",
        )
    return DataError(
        "has no rows that can be read",
        place=str(file.path),
        remedy="Check data.columns and data.delimiter",
    )


def _head_block(file: DelimitedText, head: TextHead) -> TextBlock:
    """The head's rows as they are read."""
    skipped = count_lines(head.data[: head.first_end]) if file.has_header else 0
    body = head.records(has_header=file.has_header)
    return TextBlock(file, body, 0, head.num_lines_before + skipped)


def _read_texts(block: TextBlock, data: DataConfig) -> pa.Table:
    """The head's rows as texts, missing values NULL."""
    table = texts_of_block(block).combine_chunks()
    missing = missing_texts(data.missing_values)
    return pa.table(
        {name: missing_to_null(table.column(name), missing) for name in table.column_names}
    )
