"""`ctrpipe convert`: rows from one file format to another, in bounded memory."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import pyarrow as pa

from ctr_pipeline import durable
from ctr_pipeline.apps.outputs import require_output
from ctr_pipeline.apps.tables import inspect_table, named_by_options, table_config
from ctr_pipeline.dataset.formats.recordio.chunks import Compressor
from ctr_pipeline.dataset.formats.writers import (
    ExampleWriter,
    LineWriter,
    ParquetRowWriter,
    RowWriter,
    TextWriter,
    example_columns,
    text_columns,
)
from ctr_pipeline.dataset.rows import read_texts
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress

Format = Literal["csv", "tsv", "parquet", "recordio"]
_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".recordio": "recordio",
    ".rio": "recordio",
}
_TEXT_COMPRESSION = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class Target:
    """What is written.

    Attributes:
        output: The file.
        record: What a record of RecordIO holds.
        compression: Compression of the chunks of RecordIO.
        header: Whether text and lines begin with the names.
    """

    output: Path
    format: Format
    record: Literal["line", "example"] = "line"
    compression: Literal["none", "snappy", "gzip"] = "none"
    header: bool = True

    @property
    def is_text(self) -> bool:
        """Whether every value is written as its text."""
        return self.format in {"csv", "tsv"} or (
            self.format == "recordio" and self.record == "line"
        )


@dataclass(frozen=True)
class ConvertResult:
    """A file that was written.

    Attributes:
        output: The file.
        num_rows: Rows in it.
        num_columns: Columns of each.
        num_bytes: Its size.
        num_rounded: Numbers that a float32 of an Example holds with fewer digits.
        seconds: What it took.
    """

    output: Path
    format: str
    num_rows: int
    num_columns: int
    num_bytes: int
    num_rounded: int
    seconds: float


def format_of(output: Path) -> Format:
    """The format that a file's ending names.

    Raises:
        DataError: It names none.
    """
    endings = [suffix.lower() for suffix in output.suffixes]
    if endings and endings[-1] in _TEXT_COMPRESSION:
        endings.pop()
    found = _SUFFIXES.get(endings[-1]) if endings else None
    if found is None:
        raise DataError(
            "its ending names no format",
            place=str(output),
            remedy="End it in .csv, .tsv, .parquet or .recordio, or give --to",
        )
    return found


@named_by_options()
def convert_rows(
    rows: str,
    target: Target,
    *,
    columns: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress,
) -> ConvertResult:
    """Writes all rows of a file or glob to another file, which is whole or absent.

    Texts that all read as numbers become numbers where the target has types, which is found by a
    first reading of all rows.

    Args:
        rows: A file or a glob, of any format; or the address of a table.
        target: What is written.
        columns: Names of files without a header; ranges such as I1..I13 are fine.
        settings: More of how files are read, as KEY=VALUE each.
        overwrite: Replace a file that stands there.
        progress: Counts the bytes read.

    Raises:
        DataError: The rows cannot be read, or do not fit the target.
        RunFolderError: The output exists, or cannot be written.
    """
    started = time.perf_counter()
    output = target.output
    require_output(output, overwrite=overwrite, reads=[rows], makes_folder=True)
    _check_compression(target)
    data = table_config(rows, None, columns, settings, whole=True)
    progress.log(f"Examining {rows}")
    source, _ = inspect_table(data, rows, "INPUT")
    with durable.os_errors_explained(output.parent):
        output.parent.mkdir(parents=True, exist_ok=True)
    num_rows = num_rounded = 0
    place = str(next(iter(source.opened)))
    tables = _tables(source, target, progress)
    first = next(tables, None)
    if first is None:
        raise DataError("has no rows", place=place, remedy="Give files with rows")
    with durable.durable_write(output) as file, _writer(file, target, first) as writer:
        for table in _chain(first, tables):
            fit = table
            if target.is_text:
                fit = text_columns(table, place)
            elif target.format == "recordio":
                fit, rounded = example_columns(table, place)
                num_rounded += rounded
            writer.write(fit)
            num_rows += table.num_rows
    return ConvertResult(
        output=output,
        format=target.format,
        num_rows=num_rows,
        num_columns=first.num_columns,
        num_bytes=output.stat().st_size,
        num_rounded=num_rounded,
        seconds=time.perf_counter() - started,
    )


def _chain(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from others


def _check_compression(target: Target) -> None:
    """Raises DataError for an ending or option that the format does not have."""
    ending = target.output.suffix.lower()
    if target.format != "recordio" and target.compression != "none":
        raise DataError(
            f"is an option of RecordIO, and the output is {target.format}",
            place="--compression",
            remedy="Leave it out; end text files in .gz or .zst to compress them",
        )
    if target.format in {"parquet", "recordio"} and ending in _TEXT_COMPRESSION:
        raise DataError(
            f"ends in {ending}, but {target.format} is compressed within",
            place=str(target.output),
            remedy=f"Leave {ending} out",
        )


def _tables(source: Source, target: Target, progress: Progress) -> Iterator[pa.Table]:
    """All rows; where types matter, by those of all rows."""
    if not (source.is_delimited and target.is_text):
        yield from source.format.read_typed(source, progress)
        return
    with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
        yield from read_texts(source, task.advance)


def _writer(file: IO[bytes], target: Target, first: pa.Table) -> RowWriter:
    names = list(first.column_names) if target.header else None
    compressor = Compressor[target.compression.upper()]
    if target.format == "parquet":
        return ParquetRowWriter(file, first.schema)
    if target.format == "recordio":
        if target.record == "example":
            return ExampleWriter(file, compressor)
        return LineWriter(file, names, "\t", compressor)
    compression = _TEXT_COMPRESSION.get(target.output.suffix.lower())
    return TextWriter(file, names, "," if target.format == "csv" else "\t", compression)
