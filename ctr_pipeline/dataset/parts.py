"""Parts: the Arrow files that ingested rows are kept in.

A part is one record batch. Its columns are dictionaries, but for label and weight: what is counted,
transformed or looked up later is so once for each distinct value of a part, and reading a part
costs next to nothing. Parts hold 64 Ki rows or 64 MiB, whichever comes first, so that a writer
needs little memory with few or many columns.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.dataset.dictionaries import (
    count_indices,
    encode_dictionary,
    merge_dictionaries,
    sum_indices,
)
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.durable import os_errors_explained
from ctr_pipeline.errors import DataError

PART_ROWS = 65_536
_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class Part:
    """One part: its file, its rows, how many of them have label 1, and what they weigh."""

    file: Path
    num_rows: int
    num_positive: int
    weights: WeightSums | None = None


@dataclass(frozen=True)
class ColumnCounts:
    """What one part says of one column.

    Attributes:
        values: Distinct values, NULL among them if it occurs.
        num_rows: int64, rows of each value.
        num_clicks: int64, those of label 1.
        weights: float64, what the rows of each value weigh; None without weights.
        click_weights: float64, what those of label 1 weigh; the same.
    """

    values: pa.Array
    num_rows: NDArray[np.int64]
    num_clicks: NDArray[np.int64]
    weights: NDArray[np.float64] | None = None
    click_weights: NDArray[np.float64] | None = None


def part_name(index: int) -> str:
    """The name of a split's part."""
    return f"part-{index:05d}.arrow"


def write_part(table: pa.Table, file: Path, label: str, weight: str | None = None) -> Part:
    """As `write_tables`, of one."""
    return write_tables([table], file, label, weight)


def write_tables(
    tables: Sequence[pa.Table], file: Path, label: str, weight: str | None = None
) -> Part:
    """Writes one part.

    Args:
        tables: Its rows, of the same columns; one of texts may be a dictionary in some.
        file: Where.
        label: The label's name.
        weight: The name of the column of weights; None without.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    columns = {
        name: [chunk for table in tables for chunk in table.column(name).chunks]
        for name in tables[0].column_names
    }
    plain = {name: pa.concat_arrays(columns[name]) for name in (label, weight) if name is not None}
    batch = pa.record_batch(
        {name: plain[name] if name in plain else _encode(columns[name]) for name in columns}
    )
    with (
        os_errors_explained(file),
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    is_positive = plain[label].to_numpy(zero_copy_only=False) == 1
    weights = None
    if weight is not None:
        weights = WeightSums.of(plain[weight].to_numpy(zero_copy_only=False), is_positive)
    return Part(file, batch.num_rows, int(np.count_nonzero(is_positive)), weights)


def _encode(chunks: Sequence[pa.Array]) -> pa.DictionaryArray:
    if not any(pa.types.is_dictionary(chunk.type) for chunk in chunks):
        return encode_dictionary(pa.concat_arrays(chunks))
    return merge_dictionaries(
        [
            chunk if pa.types.is_dictionary(chunk.type) else encode_dictionary(chunk)
            for chunk in chunks
        ]
    )


class PartsWriter:
    """Gathers the tables of one split in order and writes them as parts in other threads."""

    def __init__(
        self,
        folder: Path,
        label: str,
        pool: Executor,
        max_pending: int,
        *,
        weight: str | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._label = label
        self._weight = weight
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
        file = self._folder / part_name(self._num_parts)
        self._pending.append(
            self._pool.submit(write_tables, self._gathered, file, self._label, self._weight)
        )
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
    *,
    weight: str | None = None,
) -> dict[str, list[Part]]:
    """Moves parts into one folder for each range of rows; those across a border are cut in two.

    Args:
        parts: All rows in order.
        ranges: [first, after) by split, in order and without gaps.
        folder: Where the folders of the splits are made.
        label: The label's name.
        pool: Cuts parts.
        weight: The name of the column of weights; None without.
    """

    def cut(source: Path, first: int, num_rows: int, file: Path) -> Part:
        batch = plain_batch(_read_part(source).slice(first, num_rows))
        return write_part(pa.Table.from_batches([batch]), file, label, weight)

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
                divided[split].append(replace(part, file=file))
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
    files: Sequence[Path], columns: Sequence[str] | None, batch_rows: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of parts in order, a part or at most `batch_rows` at once, in bounded memory.

    Columns come as dictionaries of a whole part, NULL among their values; label and weight are
    plain.

    Args:
        files: Parts.
        columns: Which columns, in this order; None for all.
        batch_rows: Most rows in a batch, which never spans two parts; None: a part a batch.

    Raises:
        DataError: A part is damaged.
    """
    for file in files:
        batch = _read_part(file)
        if columns is not None:
            batch = batch.select(list(columns))
        step = batch_rows or max(batch.num_rows, 1)
        for first in range(0, batch.num_rows, step):
            yield batch.slice(first, step)


def read_columns(files: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    """Some columns of parts, all rows at once, plain.

    Raises:
        DataError: A part is damaged.
    """
    return pa.Table.from_batches([plain_batch(batch) for batch in read_batches(files, columns)])


def column_names(files: Sequence[Path]) -> list[str]:
    """The columns of parts, which are the same in all.

    Raises:
        DataError: A part is damaged.
    """
    with _explained(files[0]), pa.OSFile(str(files[0])) as source:
        return list(pa.ipc.open_file(source).schema.names)


def count_values(
    batch: pa.RecordBatch,
    column: str,
    is_click: NDArray[np.bool_],
    weights: NDArray[np.float64] | None = None,
) -> ColumnCounts:
    """The distinct values of a column with their rows and clicks.

    Args:
        batch: A part, as `read_batches` gives it.
        column: Not the label.
        is_click: bool, one a row.
        weights: float64, one a row; None without weights.
    """
    encoded = batch.column(column)
    num_rows, num_clicks = count_indices(
        np.asarray(encoded.indices), is_click, len(encoded.dictionary)
    )
    if weights is None:
        return ColumnCounts(encoded.dictionary, num_rows, num_clicks)
    weighed = sum_indices(np.asarray(encoded.indices), is_click, weights, len(encoded.dictionary))
    return ColumnCounts(encoded.dictionary, num_rows, num_clicks, *weighed)


def counts_in_parts(
    files: Sequence[Path], column: str, label: str | None = None, weight: str | None = None
) -> Iterator[ColumnCounts]:
    """What each part says of a column.

    Args:
        files: Parts.
        column: Neither label nor weight.
        label: The label's name; None: no row counts as a click.
        weight: The name of the column of weights; None without.

    Raises:
        DataError: A part is damaged.
    """
    names = [column, *(name for name in (label, weight) if name is not None)]
    for batch in read_batches(files, names):
        is_click = np.zeros(batch.num_rows, np.bool_)
        if label is not None:
            is_click = pc.fill_null(batch.column(label), -1).to_numpy() == 1
        weights = None if weight is None else batch.column(weight).to_numpy()
        yield count_values(batch, column, is_click, weights)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows without dictionaries."""
    columns = [
        column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, names=batch.schema.names)


def _read_part(file: Path) -> pa.RecordBatch:
    """All rows; what is wrong in them would otherwise be read beyond their memory."""
    with _explained(file), pa.OSFile(str(file)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        batch.validate(full=True)
        return batch


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
