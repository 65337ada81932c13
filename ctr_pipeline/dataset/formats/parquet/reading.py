"""Parquet files as blocks of records."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ctr_pipeline.dataset.arrow_columns import RecordBlock, check_type
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.data_files import DataFile, open_arrow, size_of
from ctr_pipeline.dataset.limits import BATCH_BYTES, check_num_columns, check_values
from ctr_pipeline.dataset.partitions import Partition, add_partition
from ctr_pipeline.dataset.source import WHOLE, Block, OneFile, Range, ranges_between
from ctr_pipeline.errors import DataError

_BATCH_ROWS = 65_536
_FEWEST_ROWS = 16
# A column that takes more bytes a value has a dictionary that is not worth its while.
_DICTIONARY_BYTES = 3

_TEXT_BYTES = 64 << 20
_LIST_ITEMS = 1 << 20
"""The longest text in a footer, a writer's notes above all, and the most items of a list in it."""


@dataclass(frozen=True)
class ParquetFile(OneFile):
    """One Parquet file, as inspection found it.

    Attributes:
        path: The file.
        schema: Schema of its columns, those of its folders behind its own.
        partition: What its `key=value` folders say of all of its rows.
        absent: Columns that other files have, and of which it has no value.
    """

    path: DataFile
    schema: pa.Schema
    num_rows: int
    partition: Partition = ()
    absent: tuple[str, ...] = ()

    @property
    def constants(self) -> Partition:
        """Columns that have one value in all rows, which does not stand in the file."""
        return (*self.partition, *((name, None) for name in self.absent))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all its columns, in its order."""
        return tuple(self.schema.names)

    def known_rows(self) -> int:
        """As the footer says."""
        return self.num_rows

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`, in row groups."""
        if unit_bytes is None:
            return [WHOLE]
        rows_G = rows_of_groups(self.path)
        unit_rows = max(1, self.num_rows * unit_bytes // self.size_bytes())
        return ranges_between(list(_first_groups(rows_G, unit_rows)) or [0])

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        return read_parquet_blocks(self, plan, part)


def read_schema(path: DataFile) -> tuple[pa.Schema, int]:
    """A file's columns and how many rows it has.

    Raises:
        DataError: The file is no Parquet, truncated, or has too many columns.
    """
    with _open(path) as (_, footer):
        # What a writer says beside the columns is of no use here, and may be of any length.
        return footer.schema.to_arrow_schema().remove_metadata(), int(_rows_of_groups(footer).sum())


def read_first_rows(file: ParquetFile, num_rows: int) -> pa.Table:
    """The first rows of a file, all columns.

    Raises:
        DataError: The file is damaged.
    """
    batch = next(read_batches(file, file.column_names, num_rows), None)
    return file.schema.empty_table() if batch is None else pa.Table.from_batches([batch])


def read_batches(
    file: ParquetFile,
    names: Sequence[str],
    num_rows: int,
    as_dictionaries: Collection[str] = (),
    part: Range = WHOLE,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, `num_rows` at most in a batch, with the columns `names` in this order.

    Those of `as_dictionaries` come as dictionaries where the file repeats few texts.

    Raises:
        DataError: The file is damaged.
    """
    constants = {name for name, _ in file.constants}
    own = [name for name in names if name not in constants]
    with _open(file.path) as (native, footer):
        sizes = _sizes(footer, own)
        coded = [size.name for size in sizes if size.name in as_dictionaries and size.has_few_texts]
        bytes_of_row = sum(size.bytes_of_value for size in sizes)
        step = min(num_rows, max(int(BATCH_BYTES / max(bytes_of_row, 1)), _FEWEST_ROWS))
        rows = pq.ParquetFile(
            native,
            metadata=footer,
            read_dictionary=coded,
            # A row group at a time is in memory, not all of them.
            pre_buffer=False,
            page_checksum_verification=True,
        )
        groups = range(footer.num_row_groups)[part.first : part.after]
        for batch in rows.iter_batches(batch_size=step, row_groups=groups, columns=own):
            check_values(batch, file.path)
            yield add_partition(batch, file.constants, names)


def rows_of_groups(path: DataFile) -> NDArray[np.int64]:
    """Rows of each row group of a file, int64 [G].

    Raises:
        DataError: The file is damaged.
    """
    with _open(path) as (_, footer):
        return _rows_of_groups(footer)


def _rows_of_groups(footer: pq.FileMetaData) -> NDArray[np.int64]:
    groups = range(footer.num_row_groups)
    return np.array([footer.row_group(group).num_rows for group in groups], np.int64)


@dataclass(frozen=True)
class _Size:
    """How many bytes the values of a column take in a file, without compression."""

    name: str
    bytes_of_value: float
    is_dictionary_of_texts: bool

    @property
    def has_few_texts(self) -> bool:
        return self.is_dictionary_of_texts and self.bytes_of_value <= _DICTIONARY_BYTES


def _sizes(footer: pq.FileMetaData, names: Sequence[str]) -> list[_Size]:
    """Sizes of the columns `names`; one with fields has a size of each of these."""
    found = list[_Size]()
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    for number in range(footer.num_columns):
        path = footer.schema.column(number).path
        if path not in names and not any(path.startswith(f"{name}.") for name in names):
            continue
        parts = [group.column(number) for group in groups]
        num_bytes = sum(part.total_uncompressed_size for part in parts)
        is_coded = all(
            part.has_dictionary_page and part.physical_type == "BYTE_ARRAY" for part in parts
        )
        found.append(_Size(path, num_bytes / max(footer.num_rows, 1), is_coded))
    return found


def _first_groups(rows_G: NDArray[np.int64], num_rows: int) -> Iterator[int]:
    """The first row group of each run of row groups that have `num_rows` rows together."""
    rows = num_rows
    for group, rows_of_group in enumerate(rows_G.tolist()):
        if rows >= num_rows:
            yield group
            rows = 0
        rows += rows_of_group


def read_parquet_blocks(
    file: ParquetFile, plan: ReadingPlan, part: Range = WHOLE
) -> Iterator[RecordBlock]:
    """The records of a file or some of its row groups, the wanted columns only.

    Raises:
        DataError: The file is damaged, or a column's type does not fit its use.
    """
    for name in plan.names:
        check_type(file.path, file.schema.field(name).type, name, plan)
    size_bytes = size_of(file.path)
    done = int(rows_of_groups(file.path)[: part.first].sum()) if part.first else 0
    for batch in read_batches(file, plan.names, _BATCH_ROWS, plan.as_dictionaries, part):
        done += batch.num_rows
        yield RecordBlock(file.path, batch, size_bytes * done // max(file.num_rows, 1))


@contextmanager
def _open(path: DataFile) -> Iterator[tuple[pa.NativeFile, pq.FileMetaData]]:
    """A file, open, and its footer; what Arrow cannot read becomes a message to the user.

    Raises:
        DataError: The file is damaged, or has too many columns.
    """
    try:
        with open_arrow(path) as native:
            footer = pq.ParquetFile(
                native,
                thrift_string_size_limit=_TEXT_BYTES,
                thrift_container_size_limit=_LIST_ITEMS,
            ).metadata
            check_num_columns(footer.num_columns, path)
            yield native, footer
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"cannot be read as Parquet: truncated or damaged ({first_line})",
            place=str(path),
            remedy="Copy or write the file again",
        ) from error
