"""Ingestion: all files once, from text or Parquet to typed parts of each split.

The parts are written into a temporary folder that takes its name at the end: an ingestion is whole
or absent, and one that failed leaves the one before untouched.
"""

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger, FileRows, RowRecorder
from ctr_pipeline.dataset.columns import ReadingPlan, plan_columns
from ctr_pipeline.dataset.ingested import (
    IngestedRows,
    SplitRows,
    TimeRange,
    fingerprint_of,
    load_ingested,
    moved,
    save_ingested,
)
from ctr_pipeline.dataset.parts import (
    Part,
    PartsWriter,
    column_names,
    divide_parts,
    part_name,
    plain_batch,
    read_batches,
)
from ctr_pipeline.dataset.rows import BLOCK_BYTES, read_good_rows
from ctr_pipeline.dataset.source import Source, Unit
from ctr_pipeline.dataset.splits import (
    SPLITS,
    Shares,
    divide,
    hash_fractions,
    plan_order_ranges,
    plan_time_ranges,
    random_fractions,
    shares_of,
)
from ctr_pipeline.dataset.times import (
    TimeColumn,
    TimeCounts,
    find_time_column,
    points_in_time,
    show_time,
)
from ctr_pipeline.dataset.versions import SourceVersions
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.durable import link_or_copy, os_errors_explained, replace_folder, write_text
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.progress import Progress, ProgressTask
from ctr_pipeline.specs.columns import ColumnType


@dataclass(frozen=True)
class RowsToRead:
    """Which rows are read, and as what.

    Attributes:
        data: How the files are read and divided.
        source: The files, inspected.
        column_types: The columns to keep.
        seed: Seed of the random split.
        sensitive: Columns whose values are kept out of messages and examples.
        lists: Text columns that are lists, and how they are cut.
        extra_columns: Carried along for metrics.
    """

    data: DataConfig
    source: Source
    column_types: Mapping[str, ColumnType]
    seed: int
    sensitive: Collection[str] = ()
    lists: Mapping[str, ListSpec] = field(default_factory=dict)
    extra_columns: Sequence[str] = ()

    @cached_property
    def versions(self) -> SourceVersions:
        """Versions of the files when they are first asked for.

        Raises:
            DataError: A file is gone.
        """
        return SourceVersions.of(self.source)

    @cached_property
    def origin(self) -> str:
        """Names the rows of these versions; see `fingerprint_of`."""
        return fingerprint_of(
            self.data,
            self.source,
            self.column_types,
            seed=self.seed,
            sensitive=self.sensitive,
            lists=self.lists,
            versions=self.versions,
        )

    def require_columns(self) -> None:
        """Raises DataError if the source lacks a column that is kept."""
        self.source.require(
            [name for name in self.column_types if name != self.data.label], "features"
        )

    @property
    def carried(self) -> list[str]:
        """Columns that are written as they are beside those of features."""
        return list(dict.fromkeys([*self.data.key_columns, *self.extra_columns]))

    @cached_property
    def plan(self) -> ReadingPlan:
        """What is read of each file."""
        by = self.data.split.column
        divided_by = [by] if by is not None else []
        plan = plan_columns(
            self.data,
            self.column_types,
            label_required=True,
            carried=[*self.carried, *divided_by],
            sensitive=self.sensitive,
            lists=self.lists,
            time=find_time_column(self.data, self.source.head, self.column_types)
            if len(shares_of(self.data.split, self.source.files).splits) > 1
            else None,
        )
        return replace(plan, as_dictionaries=_taken_as_dictionaries(plan, divided_by))

    @cached_property
    def dropped(self) -> list[str]:
        """Columns that rows are divided by and that are not written."""
        weight = [self.data.weight] if self.data.weight is not None else []
        kept = {*self.column_types, *self.carried, *weight}
        return [name for name in self.plan.types if name not in kept]

    def shares_of(self, split: str) -> Shares:
        """How the rows of a split's files are divided."""
        if split != "train":
            return Shares(0.0, 0.0)
        return shares_of(self.data.split, self.source.files)

    def divided_by(self, split: str) -> str | None:
        """What divides the rows of a split's files, as `data.split.by` names it."""
        return self.data.split.by if self.shares_of(split).splits != ("train",) else None

    @property
    def is_written_twice(self) -> bool:
        """Whether rows that are read in units are written again when all of them are read.

        Times are compared with all others, and the draw at random is by the number among all rows.
        A hash is of the row alone, and by order, no more than two parts are cut.
        """
        return self.divided_by("train") in {"time", "random"}

    def dropped_at_once(self, split: str) -> list[str]:
        """Columns among `dropped` that no later division of a split's rows needs."""
        return [] if self.divided_by(split) == "time" else self.dropped

    def divide(self, table: pa.Table, first_row: int) -> Iterator[tuple[str, pa.Table]]:
        """Divides neighbouring rows of `data.train` by hash or at random, as they are written.

        Args:
            table: The rows.
            first_row: Number of the first one; a hash does not depend on it.
        """
        column = self.data.split.column
        if column is not None:
            fractions = hash_fractions(table.column(column))
        else:
            fractions = random_fractions(first_row, table.num_rows, self.seed)
        return divide(table.drop_columns(self.dropped), fractions, self.shares_of("train"))


class ReadRows(BaseModel):
    """Rows that another process has read: some neighbouring units of a source.

    Attributes:
        parts: Their parts by split; undivided, under that of their files, unless they are divided
            by hash. Files are relative to the folder that holds them.
        files: What there was of each file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    parts: dict[str, tuple[Part, ...]]
    files: tuple[FileRows, ...]

    def parts_in(self, folder: Path) -> dict[str, list[Part]]:
        """The parts, where they are in this folder."""
        return {
            split: [replace(one, file=folder / one.file) for one in parts]
            for split, parts in self.parts.items()
        }


JoinRead = Callable[[BadRowLedger], Mapping[str, Mapping[str, Sequence[Part]]]]
"""Gives the parts of each split's files in order, as `ReadRows` has them, which other processes
have read. Their bad rows go to the ledger."""

_READ = "read.json"


def read_units(
    rows: RowsToRead,
    units: Sequence[Unit],
    folder: Path,
    *,
    threads: int,
    on_bytes: Callable[[int], None],
    name_of: Callable[[object], str] = str,
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """Reads neighbouring units of one split, for a process that joins them in `ingest`.

    Where no row may be bad, it ends at the first one.

    Args:
        rows: What is read.
        units: Some of `Source.units`.
        folder: Where the parts go; made, and emptied before. `load_read` reads what it holds.
        threads: Threads that parse and write.
        on_bytes: Told of bytes that are read.
        name_of: What the other process calls a file.
        block_bytes: As for `ingest`.

    Raises:
        DataError: A file is damaged.
        RunFolderError: `folder` cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    recorder = RowRecorder(name_of)
    split = units[0].split
    is_divided = rows.divided_by(split) == "hash"
    names = rows.shares_of(split).splits if is_divided else (split,)
    dropped = rows.dropped_at_once(split)
    with (
        os_errors_explained(folder),
        ThreadPoolExecutor(threads, thread_name_prefix="read") as pool,
    ):
        writers = {
            name: PartsWriter(
                folder / name, rows.data.label, pool, threads + 1, weight=rows.data.weight
            )
            for name in names
        }
        tables = read_good_rows(
            rows.source,
            units,
            rows.plan,
            recorder,
            pool,
            max_ahead=threads + 1,
            on_bytes=on_bytes,
            block_bytes=block_bytes,
        )
        with closing(tables):
            for table in tables:
                pieces = (
                    rows.divide(table, 0) if is_divided else [(split, table.drop_columns(dropped))]
                )
                for name, piece in pieces:
                    writers[name].add(piece)
                if rows.data.bad_rows == "fail" and any(one.counts for one in recorder.files):
                    break
        written = {name: writer.finish() for name, writer in writers.items()}
    found = ReadRows(
        parts={
            name: tuple(replace(part, file=part.file.relative_to(folder)) for part in parts)
            for name, parts in written.items()
        },
        files=tuple(recorder.files),
    )
    write_text(folder / _READ, found.model_dump_json())


def load_read(folder: Path) -> ReadRows | None:
    """What `read_units` wrote; None unless all of it is there."""
    try:
        found = ReadRows.model_validate_json((folder / _READ).read_bytes())
    except (OSError, ValueError):
        return None
    parts = [part for group in found.parts_in(folder).values() for part in group]
    return found if all(part.file.is_file() for part in parts) else None


def ingest(
    rows: RowsToRead,
    folder: Path,
    *,
    threads: int,
    progress: Progress,
    block_bytes: int = BLOCK_BYTES,
    join_read: JoinRead | None = None,
) -> IngestedRows:
    """Reads all rows once and writes `folder/{train,valid,test}/part-00000.arrow` and so on.

    A part has the label (int8), the weight (float64) if rows have one, the columns of
    `column_types` (float64 or string, missing values NULL), the key columns and the extra ones, as
    text unless they have a type already. An ingestion of the same files, config and types that is
    there already is taken as it is, if it has these columns.

    Args:
        rows: What is read.
        folder: Where the parts go; replaced as a whole.
        threads: Threads that parse and write.
        progress: Counts the bytes read.
        block_bytes: Size of the blocks of text that are parsed at once; no result depends on it.
        join_read: Gives what others have read; None: this process reads all rows.

    Raises:
        DataError: A file is damaged, a row is bad and none may be skipped, too many are, or a split
            has no rows or only one class.
        RunFolderError: `folder` cannot be written.
    """
    started = time.monotonic()
    data, source = rows.data, rows.source
    rows.require_columns()
    origin = rows.origin
    present = find_ingested(rows, folder)
    if present is not None:
        return present
    ledger = BadRowLedger(data.bad_rows, data.max_bad_fraction)
    apart = {} if join_read is None else join_read(ledger)
    with (
        _whole_or_absent(folder) as temporary,
        nullcontext()
        if apart
        else progress.task("read data", total=source.size_bytes, unit="bytes") as task,
        ThreadPoolExecutor(threads, thread_name_prefix="ingest") as pool,
    ):
        try:
            parts, times = _Ingestion(
                rows, temporary, apart, ledger, pool, task, threads, block_bytes
            ).run()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        bad_rows = ledger.close()
        _check_splits(parts, ledger, data)
        rows.versions.require_same(source, "while it was read")
        ingested = IngestedRows(
            splits={
                split: SplitRows(
                    files=tuple(part.file for part in parts[split]),
                    part_rows=tuple(part.num_rows for part in parts[split]),
                    num_rows=sum(part.num_rows for part in parts[split]),
                    num_positive=sum(part.num_positive for part in parts[split]),
                    weights=WeightSums.of_all(part.weights for part in parts[split]),
                    times=times.get(split),
                )
                for split in parts
            },
            bad_rows=bad_rows,
            origin=origin,
            seconds=time.monotonic() - started,
        )
        save_ingested(temporary, ingested)
    return moved(ingested, temporary, folder)


def find_ingested(rows: RowsToRead, folder: Path) -> IngestedRows | None:
    """The rows, if a folder has all of them with all their columns; None if it does not."""
    found = load_ingested(folder)
    if found is None or found.origin != rows.origin:
        return None
    has_columns = set(rows.carried) <= set(column_names(found.splits["train"].files))
    return found if has_columns else None


@dataclass(frozen=True)
class _Ingestion:
    rows: RowsToRead
    folder: Path
    apart: Mapping[str, Mapping[str, Sequence[Part]]]
    ledger: BadRowLedger
    pool: Executor
    task: ProgressTask | None
    threads: int
    block_bytes: int

    @property
    def data(self) -> DataConfig:
        return self.rows.data

    def run(self) -> tuple[dict[str, list[Part]], dict[str, TimeRange | None]]:
        """The parts of every split, and the times of those that are divided by time."""
        parts: dict[str, list[Part]] = {}
        times: dict[str, TimeRange | None] = {}
        for split in self.rows.source.files:
            shares, by = self.rows.shares_of(split), self.rows.divided_by(split)
            if by is None:
                parts[split] = self._undivided(split, split)
            elif by == "order":
                rows = self._undivided(split, "all")
                parts |= divide_parts(
                    rows,
                    plan_order_ranges(sum(part.num_rows for part in rows), shares),
                    self.folder,
                    self.data.label,
                    self.pool,
                    weight=self.data.weight,
                )
                shutil.rmtree(self.folder / "all")
            elif self.rows.plan.time is not None:
                divided, times = self._divide_by_time(split, self.rows.plan.time, shares)
                parts |= divided
            elif by == "hash" and split in self.apart:
                written = self.apart[split]
                parts |= {name: self._taken(written[name], name) for name in shares.splits}
            else:
                writers = {name: self._writer(name) for name in shares.splits}
                first_row = 0
                for table in self._tables(split):
                    for name, chosen in self.rows.divide(table, first_row):
                        writers[name].add(chosen)
                    first_row += table.num_rows
                parts |= {name: writer.finish() for name, writer in writers.items()}
        return {split: parts[split] for split in SPLITS if split in parts}, times

    def _tables(self, split: str) -> Iterator[pa.Table]:
        """The good rows of a split's files."""
        if split in self.apart:
            for batch in read_batches([part.file for part in self.apart[split][split]], None):
                yield pa.Table.from_batches([batch])
            return
        self.ledger.end_file()
        yield from read_good_rows(
            self.rows.source,
            self.rows.source.units(split),
            self.rows.plan,
            self.ledger,
            self.pool,
            max_ahead=self.threads + 1,
            on_bytes=(lambda _: None) if self.task is None else self.task.advance,
            block_bytes=self.block_bytes,
        )

    def _undivided(self, split: str, name: str) -> list[Part]:
        """The parts of a split's files, in a folder of that name."""
        if split in self.apart:
            return self._taken(self.apart[split][split], name)
        writer, dropped = self._writer(name), self.rows.dropped_at_once(split)
        for table in self._tables(split):
            writer.add(table.drop_columns(dropped))
        return writer.finish()

    def _taken(self, parts: Sequence[Part], name: str) -> list[Part]:
        """Parts that another process wrote, in a folder of that name."""
        (self.folder / name).mkdir()
        taken = []
        for number, part in enumerate(parts):
            file = self.folder / name / part_name(number)
            # Whoever repeats this after a kill needs all of them where they are.
            link_or_copy(part.file, file)
            taken.append(replace(part, file=file))
        return taken

    def _divide_by_time(
        self, split: str, time: TimeColumn, shares: Shares
    ) -> tuple[dict[str, list[Part]], dict[str, TimeRange | None]]:
        """Writes all rows and counts those of each time, then divides what was written.

        Rows of a split keep their order.
        """
        rows, counts = self._undivided(split, "all"), TimeCounts()
        for batch in read_batches([part.file for part in rows], [time.name]):
            counts.add(points_in_time(plain_batch(batch).column(0), time.format))
        points_D, counts_D = counts.totals()
        if len(points_D) < len(shares.splits):
            # Where too many rows are bad, that is why.
            self.ledger.close()
            raise _too_few_times(len(points_D), shares, time.name)
        ranges = plan_time_ranges(counts_D, shares)
        borders = points_D[[first for first, _ in list(ranges.values())[1:]]]
        writers = {name: self._writer(name) for name in ranges}
        for batch in read_batches([part.file for part in rows], None):
            times_N = plain_batch(batch.select([time.name])).column(0)
            # A row of a border's time is of the later split.
            places = np.searchsorted(borders, points_in_time(times_N, time.format), side="right")
            kept = pa.Table.from_batches([batch]).drop_columns(self.rows.dropped)
            for place, name in enumerate(ranges):
                is_chosen = places == place
                if is_chosen.any():
                    writers[name].add(kept.filter(pa.array(is_chosen)))
        parts = {name: writer.finish() for name, writer in writers.items()}
        shutil.rmtree(self.folder / "all")
        is_shown = time.name not in self.rows.plan.sensitive
        return parts, {
            name: TimeRange(
                first=show_time(points_D[first], time.format),
                last=show_time(points_D[after - 1], time.format),
            )
            if is_shown
            else None
            for name, (first, after) in ranges.items()
        }

    def _writer(self, name: str) -> PartsWriter:
        return PartsWriter(
            self.folder / name,
            self.data.label,
            self.pool,
            self.threads + 1,
            weight=self.data.weight,
        )


def _taken_as_dictionaries(plan: ReadingPlan, divided_by: Sequence[str]) -> frozenset[str]:
    """The columns of texts whose rows nobody looks at before they are written."""
    looked_at = {*plan.lists, *divided_by, *([plan.time.name] if plan.time is not None else [])}
    return frozenset(
        name
        for name, kind in plan.types.items()
        if kind is ColumnType.TEXT and name not in looked_at
    )


def _points_of(column: pa.ChunkedArray, time: TimeColumn) -> NDArray[np.float64]:
    """The times of all rows, which have one each."""
    found = [points_in_time(chunk, time.format) for chunk in column.chunks]
    return np.concatenate(found) if found else np.empty(0, np.float64)


def _check_splits(parts: Mapping[str, list[Part]], ledger: BadRowLedger, data: DataConfig) -> None:
    """Raises DataError for a split without rows, or where one class only has any or weighs."""
    for split, files in parts.items():
        num_rows = sum(part.num_rows for part in files)
        num_positive = sum(part.num_positive for part in files)
        if num_positive in {0, num_rows}:
            raise lacks_class(split, num_rows, num_positive, ledger.num_good, data)
        weights = WeightSums.of_all(part.weights for part in files)
        if weights is not None and not 0 < weights.positive < weights.total:
            of = "" if not weights.total else f" of label {0 if weights.positive else 1}"
            raise DataError(
                f"all weights of the {split} rows{of} are 0; both classes need weight",
                place=f"{split} rows",
                remedy="Check data.weight",
            )


def lacks_class(
    split: str, num_rows: int, num_positive: int, num_good: int, data: DataConfig
) -> DataError:
    """The error of a split without rows, or without rows of one class.

    Args:
        split: Its name.
        num_rows: Rows of the split.
        num_positive: Rows of label 1: none or all.
        num_good: Good rows of all splits.
        data: How they are divided.
    """
    if not num_rows:
        return DataError(
            f"the {split} split has no rows ({num_good} good rows in all)",
            place=f"{split} rows",
            remedy=f"Give more rows, or change data.{split} or data.split",
        )
    only = 1 if num_positive else 0
    is_by_order = data.split.by == "order"
    otherwise = "; if the rows are sorted by it, set data.split.by: random" if is_by_order else ""
    return DataError(
        f"all {num_rows} labels of the {split} split are {only}; both classes are needed",
        place=f"{split} rows",
        remedy=f"Check data.label{otherwise}",
    )


def check_division(rows: pa.Table, data: DataConfig, source: Source, *, seed: int) -> None:
    """Divides rows as `ingest` does and refuses what it would refuse.

    Args:
        rows: All good rows of `data.train`, with the label and the column of `data.split`.
        data: How they are divided.
        source: The files.
        seed: Seed of the random split.

    Raises:
        DataError: A split has no rows, or rows of one class alone.
    """
    shares = shares_of(data.split, source.files)
    labels = rows.column(data.label).to_numpy() == 1
    num_rows, column = len(labels), data.split.column
    if data.split.by == "order" or shares.splits == ("train",):
        ranges = plan_order_ranges(num_rows, shares)
        divided = {split: labels[first:after] for split, (first, after) in ranges.items()}
    elif data.split.by == "time" and column is not None:
        types = {column: ColumnType.NUMBER} if _is_float(rows, column) else {}
        time = find_time_column(data, rows, types)
        points = _points_of(rows.column(column), time) if time is not None else np.empty(0)
        different, counts = np.unique(points, return_counts=True)
        if len(different) < len(shares.splits):
            raise _too_few_times(len(different), shares, column)
        divided = {}
        for split, (first, after) in plan_time_ranges(counts, shares).items():
            is_inside = (points >= different[first]) & (points <= different[after - 1])
            divided[split] = labels[is_inside]
    else:
        fractions = (
            random_fractions(0, num_rows, seed)
            if column is None
            else hash_fractions(rows.column(column))
        )
        tables = divide(pa.table({"label": labels}), fractions, shares)
        divided = {split: table.column(0).to_numpy() for split, table in tables}
    for split, chosen in divided.items():
        num_positive = int(np.count_nonzero(chosen))
        if num_positive in {0, len(chosen)}:
            raise lacks_class(split, len(chosen), num_positive, num_rows, data)


def _is_float(rows: pa.Table, column: str) -> bool:
    return bool(pa.types.is_floating(rows.schema.field(column).type))


def _too_few_times(num_times: int, shares: Shares, column: str) -> DataError:
    return DataError(
        f"the rows have {num_times} different times, too few to divide them into "
        f"{', '.join(shares.splits)}: rows of one time stay together",
        place=f"data.split.column '{column}'",
        remedy="Give rows of more times, name files in data.valid and data.test, or leave out "
        "data.split.column and set data.split.by: random",
    )


@contextmanager
def _whole_or_absent(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces `folder` if the block ends well and vanishes if not."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with os_errors_explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        temporary.mkdir()
    try:
        with os_errors_explained(folder):
            yield temporary
            replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Removes what a killed ingestion left: one process at a time holds the run folder."""
    prefix = f".{folder.name}."
    for path in list(folder.parent.iterdir()):
        if path.name.startswith(prefix) and path.name.endswith(".tmp") and path.is_dir():
            shutil.rmtree(path)
