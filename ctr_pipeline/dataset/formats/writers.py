"""Tables written as CSV, TSV, Parquet or RecordIO, block by block.

In text a missing value is an empty field, a boolean is 0 or 1, and a value with a delimiter, a
quote or a line end in it stands in quotes. What is written is read back as it was.
"""

import gzip
from types import TracebackType
from typing import IO, Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from ctr_pipeline.dataset.formats.recordio.chunks import Compressor, RecordIOWriter, Records
from ctr_pipeline.dataset.formats.recordio.examples import write_examples
from ctr_pipeline.errors import DataError

_GROUP_BYTES = 64 << 20
"""Bytes in memory of a row group of Parquet."""


class RowWriter(Protocol):
    """Takes tables of one schema; a context manager that finishes the file at its good end."""

    def write(self, table: pa.Table) -> None:
        """Adds rows."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def text_columns(table: pa.Table, place: str) -> pa.Table:
    """All columns as texts.

    Raises:
        DataError: A column has no text: a list, a struct, bytes that are not UTF-8.
    """
    return pa.table(
        {name: _as_text(table.column(name), name, place) for name in table.column_names}
    )


def example_columns(table: pa.Table, place: str) -> tuple[pa.Table, int]:
    """All columns as an Example holds them: int64, float32, texts or bytes.

    Returns:
        The columns, and how many numbers a float32 holds with fewer digits only.

    Raises:
        DataError: A column fits none of them.
    """
    columns: dict[str, Any] = {}
    num_rounded = 0
    for name in table.column_names:
        column = _decoded(table.column(name))
        kind = column.type
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            try:
                columns[name] = pc.cast(column, pa.int64())
            except pa.ArrowInvalid as error:
                raise DataError(
                    "holds numbers beyond int64, which an Example cannot",
                    place=f"{place}, column '{name}'",
                    remedy="Convert to another format, or with --record line",
                ) from error
        elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            wide = pc.cast(column, pa.float64(), safe=False)
            columns[name] = pc.cast(wide, pa.float32(), safe=False)
            back = pc.cast(columns[name], pa.float64())
            is_other = pc.and_(pc.not_equal(back, wide), pc.invert(pc.is_nan(wide)))
            num_rounded += pc.sum(is_other).as_py() or 0
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            columns[name] = column
        else:
            columns[name] = _as_text(column, name, place)
    return pa.table(columns), num_rounded


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return (
        pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    )


def _as_text(column: pa.ChunkedArray, name: str, place: str) -> pa.ChunkedArray:
    column = _decoded(column)
    kind = column.type
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    try:
        # A list would have a text in Arrow, but none that is read back.
        if pa.types.is_nested(kind):
            raise pa.ArrowInvalid(f"{kind} has no text")
        return pc.cast(column, pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        raise DataError(
            "holds bytes that are not UTF-8"
            if is_bytes
            else f"has the type {kind}, without a text",
            place=f"{place}, column '{name}'",
            remedy="Convert to Parquet, or leave the column out",
        ) from error


def lines_of(table: pa.Table, delimiter: str) -> pa.LargeStringArray:
    """A delimited line of each row, without line end; all columns are texts."""
    columns = [
        _quoted(table.column(name).combine_chunks(), delimiter) for name in table.column_names
    ]
    if len(columns) == 1:
        # An empty line would be no row.
        (only,) = columns
        return pc.if_else(pc.equal(pc.fill_null(only, ""), ""), '""', only)
    return pc.binary_join_element_wise(
        *columns, _large(delimiter), null_handling="replace", null_replacement=""
    )


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _quoted(texts: Any, delimiter: str) -> Any:
    texts = pc.cast(texts, pa.large_string())
    needs = None
    for character in (delimiter, '"', "\n", "\r"):
        has = pc.match_substring(texts, character)
        needs = has if needs is None else pc.or_(needs, has)
    if not pc.any(needs).as_py():
        return texts
    doubled = pc.replace_substring(texts, '"', '""')
    inside = pc.binary_join_element_wise(_large('"'), doubled, _large('"'), _large(""))
    return pc.if_else(pc.fill_null(needs, False), inside, texts)


def _names_of(names: list[str], delimiter: str) -> pa.LargeStringArray:
    return lines_of(pa.table({str(i): [name] for i, name in enumerate(names)}), delimiter)


def _records_of(lines: pa.LargeStringArray) -> Records:
    """The texts as records, not copied."""
    _, offset_buffer, data_buffer = lines.buffers()
    first, last = lines.offset, lines.offset + len(lines)
    offsets = np.frombuffer(offset_buffer, np.int64)[first : last + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return Records(data, offsets[:-1], offsets[1:])


def _compressed(file: IO[bytes], compression: str | None) -> Any:
    """What writes compressed bytes to a file and does not close it."""
    if compression == "gzip":
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0)
    if compression == "zstd":
        return zstandard.ZstdCompressor().stream_writer(file, closefd=False)
    return file


class TextWriter:
    """Writes delimited text.

    Args:
        file: Where to.
        names: Names of the columns; None writes no header.
        delimiter: Between fields.
        compression: `gzip`, `zstd` or None.
    """

    def __init__(
        self, file: IO[bytes], names: list[str] | None, delimiter: str, compression: str | None
    ) -> None:
        self._delimiter = delimiter
        self._file: Any = _compressed(file, compression)
        self._is_own = compression is not None
        if names is not None:
            self._write_lines(_names_of(names, delimiter))

    def write(self, table: pa.Table) -> None:
        """Adds rows of texts."""
        self._write_lines(lines_of(table, self._delimiter))

    def _write_lines(self, lines: pa.LargeStringArray) -> None:
        # Joined by a line feed with nothing after it, each line ends in one.
        ended = _records_of(pc.binary_join_element_wise(lines, _large(""), _large("\n")))
        if len(ended):
            self._file.write(ended.data[ended.starts[0] : ended.ends[-1]].data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            self._file.close()


class _RecordWriter:
    """Holds the RecordIO writer of its rows, and is finished as that is."""

    def __init__(self, file: IO[bytes], compressor: Compressor) -> None:
        self._writer = RecordIOWriter(file, compressor=compressor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, trace)


class LineWriter(_RecordWriter):
    """Writes RecordIO with a delimited line a record; arguments as of `TextWriter`."""

    def __init__(
        self, file: IO[bytes], names: list[str] | None, delimiter: str, compressor: Compressor
    ) -> None:
        super().__init__(file, compressor)
        self._delimiter = delimiter
        if names is not None:
            self._writer.write_all(_records_of(_names_of(names, delimiter)))

    def write(self, table: pa.Table) -> None:
        """Adds rows of texts."""
        self._writer.write_all(_records_of(lines_of(table, self._delimiter)))


class ExampleWriter(_RecordWriter):
    """Writes RecordIO with a `tf.train.Example` a record.

    Args:
        file: Where to.
    """

    def write(self, table: pa.Table) -> None:
        """Adds rows of columns as `example_columns` gives them."""
        for batch in table.combine_chunks().to_batches():
            self._writer.write_all(write_examples(batch))


class ParquetRowWriter:
    """Writes Parquet, in row groups of bounded size.

    Args:
        file: Where to.
    """

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema)
        self._pending = list[pa.Table]()
        self._num_bytes = 0

    def write(self, table: pa.Table) -> None:
        """Adds rows."""
        self._pending.append(table)
        self._num_bytes += table.nbytes
        if self._num_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending))
        self._pending, self._num_bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
