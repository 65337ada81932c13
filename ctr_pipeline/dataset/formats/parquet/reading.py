"""Parquet files as blocks of records."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.dataset.arrow_columns import RecordBlock, check_type
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.data_files import DataFile, open_bytes, size_of
from ctr_pipeline.dataset.formats.parquet.chunks import ChunkReader
from ctr_pipeline.dataset.formats.parquet.layout import DamagedLayoutError, Int64s
from ctr_pipeline.dataset.limits import check_values
from ctr_pipeline.dataset.partitions import Partition, add_partition
from ctr_pipeline.dataset.source import WHOLE, Block, OneFile, Range, ranges_between
from ctr_pipeline.errors import DataError

_BATCH_ROWS = 65_536
# A column that takes more bytes a value has a dictionary that is not worth its while.
_DICTIONARY_BYTES = 3


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
        """Of all its columns, in its order."""
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
        cuts = [runs[0] for runs in _runs(rows_G, unit_rows)] or [0]
        return ranges_between(cuts)

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        return read_parquet_blocks(self, plan, part)


def read_schema(path: DataFile) -> tuple[pa.Schema, int]:
    """A file's columns and how many rows it has.

    Raises:
        DataError: The file is no Parquet, truncated, or has too many columns.
    """
    with _errors_explained(path), open_bytes(path) as stream:
        chunks = ChunkReader(path, stream)
        with pa.PythonFile(chunks, "r") as native, pq.ParquetFile(native) as file:
            # What a writer says beside the columns is of no use here, and may be of any length.
            return file.schema_arrow.remove_metadata(), int(chunks.layout.num_rows_G.sum())


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
    with _errors_explained(file.path), open_bytes(file.path) as stream:
        chunks = ChunkReader(file.path, stream)
        coded = [
            name for name in chunks.layout.few_texts(_DICTIONARY_BYTES) if name in as_dictionaries
        ]
        with (
            pa.PythonFile(chunks, "r") as native,
            # Not ahead of what is asked for, which is checked before Arrow sees it.
            pq.ParquetFile(native, read_dictionary=coded, pre_buffer=False) as rows,
        ):
            for groups in _runs(chunks.layout.num_rows_G, num_rows, part):
                step = chunks.hold(groups, own, num_rows)
                for batch in rows.iter_batches(batch_size=step, row_groups=groups, columns=own):
                    check_values(batch, file.path)
                    yield add_partition(batch, file.constants, names)


def rows_of_groups(path: DataFile) -> Int64s:
    """Rows of each row group of a file, int64 [G].

    Raises:
        DataError: The file is damaged.
    """
    with _errors_explained(path), open_bytes(path) as stream:
        return ChunkReader(path, stream).layout.num_rows_G


def _runs(rows_G: Int64s, num_rows: int, part: Range = WHOLE) -> Iterator[list[int]]:
    """Row groups to read together, so that small ones make whole batches."""
    run, rows_of_run = list[int](), 0
    for group, rows in enumerate(rows_G[part.first : part.after].tolist(), part.first):
        run.append(group)
        rows_of_run += rows
        if rows_of_run >= num_rows:
            yield run
            run, rows_of_run = [], 0
    if run:
        yield run


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
def _errors_explained(path: DataFile) -> Iterator[None]:
    """Errors of Arrow, and of what is no Parquet, as what they mean to the user.

    Raises:
        DataError: In their place.
    """
    try:
        yield
    except (OSError, pa.ArrowException, DamagedLayoutError, UnicodeDecodeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"cannot be read as Parquet: truncated or damaged ({first_line})",
            place=str(path),
            remedy=getattr(error, "remedy", "Copy or write the file again"),
        ) from error
