"""Parts: the Parquet files that ingested rows are kept in.

Columns are dictionary-encoded; LZ4 because reading is the common case. Parts hold 64 Ki rows
or 64 MiB, whichever comes first, so that a writer needs little memory with few or many columns.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr_pipeline.durable import explain_os_error
from ctr_pipeline.errors import DataError

PART_ROWS = 65_536
_PART_BYTES = 64 << 20
# A dictionary is that of a row group: 32 Ki values stay in a core's cache while it is made.
_ROW_GROUP_ROWS = 32_768


@dataclass(frozen=True)
class Part:
    """One part: its file, its rows, and how many of them have label 1."""

    file: Path
    num_rows: int
    num_positive: int


def part_name(index: int) -> str:
    """The name of a split's part."""
    return f"part-{index:05d}.parquet"


def write_part(table: pa.Table, file: Path, label: str) -> Part:
    """Writes one part.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    try:
        pq.write_table(
            table,
            file,
            row_group_size=_ROW_GROUP_ROWS,
            compression="lz4",
            use_dictionary=True,
            write_statistics=False,
        )
    except OSError as error:
        raise explain_os_error(error, file) from error
    return Part(file, table.num_rows, int(pc.sum(table.column(label)).as_py() or 0))


class PartsWriter:
    """Gathers the tables of one split in order and writes them as parts in other threads."""

    def __init__(self, folder: Path, label: str, pool: Executor, max_pending: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._label = label
        self._pool = pool
        self._max_pending = max_pending
        self._gathered: list[pa.Table] = []
        self._num_rows = 0
        self._num_bytes = 0
        self._num_parts = 0
        self._pending: deque[Future[Part]] = deque()
        self._parts: list[Part] = []

    def add(self, table: pa.Table) -> None:
        """Appends rows; waits while too many parts are being written."""
        if not table.num_rows:
            return
        self._gathered.append(table)
        self._num_rows += table.num_rows
        self._num_bytes += table.nbytes
        if self._num_rows >= PART_ROWS or self._num_bytes >= _PART_BYTES:
            self._write()

    def finish(self) -> list[Part]:
        """Writes what is left; all parts in order."""
        if self._gathered:
            self._write()
        while self._pending:
            self._parts.append(self._pending.popleft().result())
        return self._parts

    def _write(self) -> None:
        table = pa.concat_tables(self._gathered)
        file = self._folder / part_name(self._num_parts)
        self._pending.append(self._pool.submit(write_part, table, file, self._label))
        self._num_parts += 1
        self._gathered, self._num_rows, self._num_bytes = [], 0, 0
        while len(self._pending) > self._max_pending:
            self._parts.append(self._pending.popleft().result())


def divide_parts(
    parts: Sequence[Part],
    ranges: Mapping[str, tuple[int, int]],
    folder: Path,
    label: str,
    pool: Executor,
) -> dict[str, list[Part]]:
    """Moves parts into one folder for each range of rows; those across a border are cut in two.

    Args:
        parts: All rows in order.
        ranges: [first, after) by split, in order and without gaps.
        folder: Where the folders of the splits are made.
        label: The label's name.
        pool: Cuts parts.
    """

    def cut(source: Path, first: int, num_rows: int, file: Path) -> Part:
        return write_part(pq.read_table(source).slice(first, num_rows), file, label)

    divided: dict[str, list[Part | Future[Part]]] = {}
    for split, (first, after) in ranges.items():
        (folder / split).mkdir()
        divided[split] = []
        for part, start in _with_starts(parts):
            low, high = max(first, start), min(after, start + part.num_rows)
            if low >= high:
                continue
            file = folder / split / part_name(len(divided[split]))
            if high - low == part.num_rows:
                part.file.rename(file)
                divided[split].append(Part(file, part.num_rows, part.num_positive))
            else:
                divided[split].append(pool.submit(cut, part.file, low - start, high - low, file))
    return {
        split: [part if isinstance(part, Part) else part.result() for part in found]
        for split, found in divided.items()
    }


def _with_starts(parts: Sequence[Part]) -> Iterator[tuple[Part, int]]:
    start = 0
    for part in parts:
        yield part, start
        start += part.num_rows


def read_batches(
    files: Sequence[Path], columns: Sequence[str] | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of parts in order, at most `batch_rows` at once, in bounded memory.

    Text columns come as dictionary arrays, so that work on values is done once for each distinct
    one; a dictionary is that of a whole row group however small the batch, so batches of at least
    32,768 rows are best.

    Args:
        files: Parts.
        columns: Which columns, in this order; None for all.
        batch_rows: Most rows in a batch; a batch never spans two row groups.

    Raises:
        DataError: A part is damaged.
    """
    for file in files:
        with _explained(file):
            with pq.ParquetFile(file, pre_buffer=False) as reader:
                schema = reader.schema_arrow
            names = list(columns) if columns is not None else schema.names
            texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
            with pq.ParquetFile(file, read_dictionary=texts) as reader:
                for row_group in range(reader.num_row_groups):
                    for batch in reader.iter_batches(
                        batch_size=batch_rows, row_groups=[row_group], columns=names
                    ):
                        yield batch.select(names)


def read_columns(files: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    """Some columns of parts, all rows at once.

    Raises:
        DataError: A part is damaged.
    """
    tables = []
    for file in files:
        with _explained(file):
            tables.append(pq.read_table(file, columns=list(columns)))
    return pa.concat_tables(tables)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            "is damaged or cannot be read",
            place=str(file),
            remedy="Delete the folder 'cache' of the run folder and run again",
        ) from error
