"""Ingestion: all files once, from text or Parquet to typed parts of each split.

The parts are written into a temporary folder that takes its name at the end: an ingestion is whole
or absent, and one that failed leaves the one before untouched.
"""

import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
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
    plain_batch,
    read_batches,
)
from ctr_pipeline.dataset.rows import BLOCK_BYTES, read_good_rows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.splits import (
    SPLITS,
    Shares,
    divide,
    hash_places,
    plan_order_ranges,
    plan_time_ranges,
    random_places,
)
from ctr_pipeline.dataset.times import (
    TimeColumn,
    TimeCounts,
    find_time_column,
    points_in_time,
    show_time,
)
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.durable import os_errors_explained, sync_folder
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.progress import Progress, ProgressTask
from ctr_pipeline.specs.columns import ColumnType


def ingest(
    data: DataConfig,
    source: Source,
    column_types: Mapping[str, ColumnType],
    folder: Path,
    *,
    seed: int,
    threads: int,
    progress: Progress,
    sensitive: Collection[str] = (),
    lists: Mapping[str, ListSpec] | None = None,
    extra_columns: Sequence[str] = (),
    block_bytes: int = BLOCK_BYTES,
) -> IngestedRows:
    """Reads all rows once and writes `folder/{train,valid,test}/part-00000.arrow` and so on.

    A part has the label (int8), the weight (float64) if rows have one, the columns of
    `column_types` (float64 or string, missing values NULL), the key columns and the extra ones, as
    text unless they have a type already. An ingestion of the same files, config and types that is
    there already is taken as it is, if it has these columns.

    Args:
        data: How the files are read and divided.
        source: The files, inspected.
        column_types: The columns to keep.
        folder: Where the parts go; replaced as a whole.
        seed: Seed of the random split.
        threads: Threads that parse and write.
        progress: Counts the bytes read.
        sensitive: Columns whose values are kept out of messages and examples.
        lists: Text columns that are lists, and how they are cut.
        extra_columns: Carried along for metrics.
        block_bytes: Size of the blocks of text that are parsed at once; no result depends on it.

    Raises:
        DataError: A file is damaged, a row is bad and none may be skipped, too many are, or a split
            has no rows or only one class.
        RunFolderError: `folder` cannot be written.
    """
    started = time.monotonic()
    source.require([name for name in column_types if name != data.label], "features")

    def origin_now() -> str:
        return fingerprint_of(
            data, source, column_types, seed=seed, sensitive=sensitive, lists=lists
        )

    origin = origin_now()
    carried = list(dict.fromkeys([*data.key_columns, *extra_columns]))
    present = load_ingested(folder)
    if present is not None and present.origin == origin and _has_columns(present, carried):
        return present
    divided_by = [data.split.column] if data.split.column is not None else []
    plan = plan_columns(
        data,
        column_types,
        label_required=True,
        carried=[*carried, *divided_by],
        sensitive=sensitive,
        lists=lists,
        time=find_time_column(data, source.head, column_types)
        if len(_shares_of(data, source).splits) > 1
        else None,
    )
    plan = replace(plan, as_dictionaries=_taken_as_dictionaries(plan, divided_by))
    ledger = BadRowLedger(data.bad_rows, data.max_bad_fraction)
    with (
        _whole_or_absent(folder) as temporary,
        progress.task("read data", total=source.size_bytes, unit="bytes") as task,
        ThreadPoolExecutor(threads, thread_name_prefix="ingest") as pool,
    ):
        try:
            ingestion = _Ingestion(
                data, source, plan, temporary, ledger, pool, task, seed, threads, block_bytes
            )
            weight = [data.weight] if data.weight is not None else []
            parts, times = ingestion.run(kept=[*column_types, *carried, *weight])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        bad_rows = ledger.close()
        _check_splits(parts, ledger)
        if origin_now() != origin:
            raise DataError(
                "a data file changed while it was read",
                place="data",
                remedy="Let nothing write into data files meanwhile, and run again",
            )
        rows = IngestedRows(
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
        save_ingested(temporary, rows)
    return moved(rows, temporary, folder)


def _has_columns(rows: IngestedRows, names: Sequence[str]) -> bool:
    return set(names) <= set(column_names(rows.splits["train"].files))


@dataclass(frozen=True)
class _Ingestion:
    data: DataConfig
    source: Source
    plan: ReadingPlan
    folder: Path
    ledger: BadRowLedger
    pool: Executor
    task: ProgressTask
    seed: int
    threads: int
    block_bytes: int

    def run(
        self, kept: Collection[str]
    ) -> tuple[dict[str, list[Part]], dict[str, TimeRange | None]]:
        """The parts of every split, and the times of those that are divided by time.

        Args:
            kept: The columns to write beside the label.
        """
        dropped = [name for name in self.plan.types if name not in kept]
        shares = _shares_of(self.data, self.source)
        parts: dict[str, list[Part]] = {}
        times: dict[str, TimeRange | None] = {}
        for split in self.source.files:
            tables = read_good_rows(
                self.source,
                self.source.units(split),
                self.plan,
                self.ledger,
                self.pool,
                max_ahead=self.threads + 1,
                on_bytes=self.task.advance,
                block_bytes=self.block_bytes,
            )
            own = shares if split == "train" else Shares(0.0, 0.0)
            if own.splits == ("train",):
                writer = self._writer(self.folder / split)
                for table in tables:
                    writer.add(table.drop_columns(dropped))
                parts[split] = writer.finish()
            elif self.data.split.by == "order":
                writer = self._writer(self.folder / "all")
                for table in tables:
                    writer.add(table.drop_columns(dropped))
                rows = writer.finish()
                ranges = plan_order_ranges(sum(part.num_rows for part in rows), own)
                parts |= divide_parts(
                    rows,
                    ranges,
                    self.folder,
                    self.data.label,
                    self.pool,
                    weight=self.data.weight,
                )
                shutil.rmtree(self.folder / "all")
            elif self.plan.time is not None:
                divided, times = self._divide_by_time(tables, self.plan.time, own, dropped)
                parts |= divided
            else:
                writers = {name: self._writer(self.folder / name) for name in own.splits}
                first_row = 0
                for table in tables:
                    if self.data.split.column is not None:
                        places = hash_places(table.column(self.data.split.column))
                    else:
                        places = random_places(first_row, table.num_rows, self.seed)
                    first_row += table.num_rows
                    for name, chosen in divide(table.drop_columns(dropped), places, own):
                        writers[name].add(chosen)
                parts |= {name: writer.finish() for name, writer in writers.items()}
        return {split: parts[split] for split in SPLITS if split in parts}, times

    def _divide_by_time(
        self,
        tables: Iterable[pa.Table],
        time: TimeColumn,
        shares: Shares,
        dropped: Sequence[str],
    ) -> tuple[dict[str, list[Part]], dict[str, TimeRange | None]]:
        """Writes all rows and counts those of each time, then divides what was written.

        Rows of a split keep their order.
        """
        writer, counts = self._writer(self.folder / "all"), TimeCounts()
        for table in tables:
            counts.add(_points_of(table.column(time.name), time))
            writer.add(table.drop_columns([name for name in dropped if name != time.name]))
        rows = writer.finish()
        points_D, counts_D = counts.totals()
        if len(points_D) < len(shares.splits):
            raise _too_few_times(len(points_D), shares, time.name)
        ranges = plan_time_ranges(counts_D, shares)
        borders = points_D[[first for first, _ in list(ranges.values())[1:]]]
        writers = {split: self._writer(self.folder / split) for split in ranges}
        for batch in read_batches([part.file for part in rows], None):
            table = pa.Table.from_batches([plain_batch(batch)])
            # A row of a border's time is of the later split.
            places = np.searchsorted(
                borders, _points_of(table.column(time.name), time), side="right"
            )
            table = table.drop_columns([name for name in dropped if name == time.name])
            for place, split in enumerate(ranges):
                is_chosen = places == place
                if is_chosen.any():
                    writers[split].add(table.filter(pa.array(is_chosen)))
        parts = {split: writer.finish() for split, writer in writers.items()}
        shutil.rmtree(self.folder / "all")
        is_shown = time.name not in self.plan.sensitive
        return parts, {
            split: TimeRange(
                first=show_time(points_D[first], time.format),
                last=show_time(points_D[after - 1], time.format),
            )
            if is_shown
            else None
            for split, (first, after) in ranges.items()
        }

    def _writer(self, folder: Path) -> PartsWriter:
        return PartsWriter(
            folder, self.data.label, self.pool, self.threads + 1, weight=self.data.weight
        )


def _taken_as_dictionaries(plan: ReadingPlan, divided_by: Sequence[str]) -> frozenset[str]:
    """The columns of texts whose rows nobody looks at before they are written."""
    looked_at = {*plan.lists, *divided_by, *([plan.time.name] if plan.time is not None else [])}
    return frozenset(
        name
        for name, kind in plan.types.items()
        if kind is ColumnType.TEXT and name not in looked_at
    )


def _shares_of(data: DataConfig, source: Source) -> Shares:
    """How the rows of data.train are divided: splits with files of their own get none of them."""
    return Shares(
        valid=0.0 if "valid" in source.files else data.split.valid,
        test=0.0 if "test" in source.files else data.split.test,
    )


def _points_of(column: pa.ChunkedArray, time: TimeColumn) -> NDArray[np.float64]:
    """The times of all rows, which have one each."""
    found = [points_in_time(chunk, time.format) for chunk in column.chunks]
    return np.concatenate(found) if found else np.empty(0, np.float64)


def _check_splits(parts: Mapping[str, list[Part]], ledger: BadRowLedger) -> None:
    """Raises DataError for a split without rows, or where one class only has any or weighs."""
    for split, files in parts.items():
        num_rows = sum(part.num_rows for part in files)
        num_positive = sum(part.num_positive for part in files)
        if num_positive in {0, num_rows}:
            raise lacks_class(split, num_rows, num_positive, ledger.num_good)
        weights = WeightSums.of_all(part.weights for part in files)
        if weights is not None and not 0 < weights.positive < weights.total:
            of = "" if not weights.total else f" of label {0 if weights.positive else 1}"
            raise DataError(
                f"all weights of the {split} rows{of} are 0; both classes need weight",
                place=f"{split} rows",
                remedy="Check data.weight",
            )


def lacks_class(split: str, num_rows: int, num_positive: int, num_good: int) -> DataError:
    """The error of a split without rows, or without rows of one class.

    Args:
        split: Its name.
        num_rows: Rows of the split.
        num_positive: Rows of label 1: none or all.
        num_good: Good rows of all splits.
    """
    if not num_rows:
        return DataError(
            f"the {split} split has no rows ({num_good} good rows in all)",
            place=f"{split} rows",
            remedy=f"Give more rows, or change data.{split} or data.split",
        )
    only = 1 if num_positive else 0
    return DataError(
        f"all {num_rows} labels of the {split} split are {only}; both classes are needed",
        place=f"{split} rows",
        remedy="Check data.label; if the rows are sorted by it, set data.split.by: random",
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
    shares = _shares_of(data, source)
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
        places = (
            random_places(0, num_rows, seed) if column is None else hash_places(rows.column(column))
        )
        tables = divide(pa.table({"label": labels}), places, shares)
        divided = {split: table.column(0).to_numpy() for split, table in tables}
    for split, chosen in divided.items():
        num_positive = int(np.count_nonzero(chosen))
        if num_positive in {0, len(chosen)}:
            raise lacks_class(split, len(chosen), num_positive, num_rows)


def _is_float(rows: pa.Table, column: str) -> bool:
    return bool(pa.types.is_floating(rows.schema.field(column).type))


def _too_few_times(num_times: int, shares: Shares, column: str) -> DataError:
    return DataError(
        f"the rows have {num_times} different times, too few to divide them into "
        f"{', '.join(shares.splits)}: rows of one time stay together",
        place=f"data.split.column '{column}'",
        remedy="Give rows of more times, name files in data.valid and data.test, or set "
        "data.split.by: random",
    )


@contextmanager
def _whole_or_absent(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces `folder` if the block ends well and vanishes if not."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    replaced = folder.with_name(f".{folder.name}.{os.getpid()}.old.tmp")
    with os_errors_explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        temporary.mkdir()
    try:
        with os_errors_explained(folder):
            yield temporary
            if folder.exists():
                folder.rename(replaced)
            temporary.rename(folder)
            sync_folder(folder.parent)
    finally:
        for path in (temporary, replaced):
            shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Removes what a killed ingestion left: one process at a time holds the run folder."""
    prefix = f".{folder.name}."
    for path in list(folder.parent.iterdir()):
        if path.name.startswith(prefix) and path.name.endswith(".tmp") and path.is_dir():
            shutil.rmtree(path)
