"""Runs a plan on the training rows and keeps what was found: `statistics.json` and vocabularies."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ctr_pipeline.analysis.engine_protocol import Engine, LabelCounts, Session
from ctr_pipeline.analysis.measure import MeasuredColumn, measure_column
from ctr_pipeline.analysis.part_engine import PartEngine
from ctr_pipeline.analysis.shared_vocabularies import collect_shared_vocabularies, counts_file
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.top_values import NUM_TOP_VALUES, frequent_values_query
from ctr_pipeline.analysis.value_counts import weights_query
from ctr_pipeline.analysis.value_files import VOCABULARY_FOLDER, vocabulary_files, write_new_values
from ctr_pipeline.durable import FileSyncs, os_errors_explained, sync_folder
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import (
    STATISTICS_VERSION,
    ColumnDrift,
    ColumnStatistics,
    RowsDrift,
    Statistics,
    ValueWeights,
    VocabularyStatistics,
    load_statistics,
    save_statistics,
)
from ctr_pipeline.transforms.base import VocabularyNeed

STATISTICS_FILE = "statistics.json"
_STAGING_FOLDER = ".statistics.tmp"


@dataclass(frozen=True)
class _Found:
    """What was found about one column."""

    measured: MeasuredColumn
    vocabulary: VocabularyStatistics | None
    table: VocabularyStatistics | None
    drift: Mapping[str, ColumnDrift]
    weights: ValueWeights | None


def collect_statistics(
    plan: StatisticsPlan,
    files: Sequence[Path],
    folder: Path,
    *,
    data_fingerprint: str,
    threads: int,
    memory_limit_gb: float,
    progress: Progress,
    others: Mapping[str, Sequence[Path]] | None = None,
) -> Statistics:
    """Computes the statistics, or reads them if data and plan are those of the last time.

    What stood in `folder` before is replaced only when everything has been computed.

    Args:
        files: Parts of the training rows.
        folder: The run folder; `statistics.json` and `vocabularies/` go there.
        data_fingerprint: Changes when the training rows do.
        threads: Threads of the database.
        memory_limit_gb: Memory of the database before it spills into `folder`, in 10^9 bytes.
        progress: Told of each column done.
        others: Parts of other rows with the same columns, by name: how far are they from the
            training rows? The plan needs the profile of every column then.

    Raises:
        DataError: There are no rows, a column is missing, a label is not 0 or 1, or the files
            cannot be read.
        StatisticsError: Memory and disk do not suffice.
        RunFolderError: The folder cannot be written.
    """

    def open_engine(spill_folder: Path) -> PartEngine:
        return PartEngine(
            files,
            spill_folder=spill_folder,
            threads=threads,
            memory_limit_gb=memory_limit_gb,
            others=others,
        )

    return collect_statistics_with(
        open_engine,
        plan,
        folder,
        data_fingerprint=data_fingerprint,
        progress=progress,
        memory_limit_gb=memory_limit_gb,
        compared=tuple(others or ()),
    )


def collect_statistics_with(
    open_engine: Callable[[Path], AbstractContextManager[Engine]],
    plan: StatisticsPlan,
    folder: Path,
    *,
    data_fingerprint: str,
    progress: Progress,
    memory_limit_gb: float = 1.0,
    compared: Sequence[str] = (),
) -> Statistics:
    """As `collect_statistics`, by any engine: all give the same statistics of the same rows.

    Args:
        open_engine: From a folder for intermediate results, gone afterwards, to the engine.
        folder: The run folder; `statistics.json` and `vocabularies/` go there.
        data_fingerprint: Changes when the training rows do.
        progress: Told of each column done.
        memory_limit_gb: Memory of what is computed here whatever the engine, in 10^9 bytes.
        compared: Names of the other rows that the engine compares them with.

    Raises:
        DataError: The rows cannot be read.
        StatisticsError: The engine refuses or fails.
        RunFolderError: The folder cannot be written.
    """
    fingerprint = fingerprint_of(plan, data_fingerprint, compared)
    known = _load_if_current(folder, fingerprint, progress)
    if known is not None:
        progress.log("Using the existing statistics of the same rows and plan")
        return known
    with _staging(folder) as staging, FileSyncs() as syncs:
        with open_engine(staging / "spill") as engine:
            labels = engine.count_labels(plan)
            _check_labels(plan, labels)
            statistics = _compute(
                plan,
                engine,
                labels,
                staging,
                syncs,
                fingerprint=fingerprint,
                compare=bool(compared),
                progress=progress,
            )
        shared = collect_shared_vocabularies(
            plan, statistics.columns, staging, memory_limit_gb=memory_limit_gb
        )
        vocabularies = statistics.vocabularies | shared
        statistics = statistics.model_copy(update={"vocabularies": vocabularies})
        statistics = statistics.concealing(
            column.column for column in plan.columns if column.is_sensitive
        )
        for file in sorted({one.file for one in shared.values()}):
            syncs.add(staging / file)
        syncs.finish()
        _publish(statistics, staging, folder)
    return statistics


def fingerprint_of(
    plan: StatisticsPlan, data_fingerprint: str, compared: Sequence[str] = ()
) -> str:
    """A name for the result of `plan` on data of this fingerprint, compared with rows so named."""
    parts = [STATISTICS_VERSION, plan.model_dump(mode="json"), data_fingerprint, *compared]
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _load_if_current(folder: Path, fingerprint: str, progress: Progress) -> Statistics | None:
    path = folder / STATISTICS_FILE
    if not path.exists():
        return None
    try:
        statistics = load_statistics(path)
    except StatisticsError as error:
        progress.log(f"{path}: {error.message}; the statistics are computed again")
        return None
    if statistics.fingerprint != fingerprint:
        return None
    for vocabulary in (*statistics.vocabularies.values(), *statistics.value_tables.values()):
        if not (folder / vocabulary.file).is_file():
            progress.log(f"{folder / vocabulary.file}: is gone; the statistics are computed again")
            return None
    return statistics


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder inside `folder` for unfinished work, gone afterwards."""
    staging = folder / _STAGING_FOLDER
    with os_errors_explained(folder):
        shutil.rmtree(staging, ignore_errors=True)
        (staging / VOCABULARY_FOLDER).mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(statistics: Statistics, staging: Path, folder: Path) -> None:
    """Replaces the last result; `statistics.json` never stands beside vocabularies of another."""
    with os_errors_explained(folder):
        sync_folder(staging / VOCABULARY_FOLDER)
        if (folder / STATISTICS_FILE).exists():
            (folder / STATISTICS_FILE).unlink()
            sync_folder(folder)
        shutil.rmtree(folder / VOCABULARY_FOLDER, ignore_errors=True)
        (staging / VOCABULARY_FOLDER).rename(folder / VOCABULARY_FOLDER)
    save_statistics(folder / STATISTICS_FILE, statistics)


def _compute(
    plan: StatisticsPlan,
    engine: Engine,
    labels: LabelCounts,
    staging: Path,
    syncs: FileSyncs,
    *,
    fingerprint: str,
    compare: bool,
    progress: Progress,
) -> Statistics:
    files = vocabulary_files(plan)
    tables = [column.column for column in plan.columns if column.table_min_count is not None]
    table_files = {
        column: f"{VOCABULARY_FOLDER}/{number:04d}-counts.parquet"
        for number, column in enumerate(tables)
    }

    weight = plan.weight
    all_values = frequent_values_query(ColumnType.TEXT, 1, None)

    def measure(session: Session, column: ColumnPlan) -> _Found:
        # Elements of lists are no rows, and are not compared with those of other rows.
        is_list = column.sequence is not None or column.vector is not None
        with session.value_counts(column):
            written = top_values = None
            if column.vocabulary is not None and column.table is None and not is_list:
                file = files[column.column]
                written = _write_values(session, column.vocabulary, staging, file, syncs)
                top_values = written.top_values(column.vocabulary)
            measured = measure_column(
                session.rows, column, labels.num_rows, top_values, weighted=weight is not None
            )
            vocabulary = None
            if column.vocabulary is not None and column.table is not None:
                write_new_values(counts_file(staging, plan, column), session.batches(all_values))
            elif column.vocabulary is not None:
                if written is None:
                    file = files[column.column]
                    written = _write_values(session, column.vocabulary, staging, file, syncs)
                vocabulary = written.statistics(column.vocabulary, measured.statistics)
            table = weights = None
            if column.table_min_count is not None:
                wanted = VocabularyNeed(min_count=column.table_min_count, max_size=None)
                file = table_files[column.column]
                table = _write_values(
                    session, wanted, staging, file, syncs, weighted=weight is not None
                ).statistics(wanted, measured.statistics)
                weights = None if weight is None else _value_weights(session, weight)
            drift = session.compare(measured) if compare and not is_list else {}
        shown = measured.statistics.with_short_values()
        return _Found(
            replace(measured, statistics=shown),
            vocabulary,
            table,
            {name: one.with_short_values() for name, one in drift.items()},
            weights,
        )

    found: list[_Found] = []
    with (
        progress.task("Statistics", total=len(plan.columns), unit="columns") as task,
        closing(engine.map(measure, plan.columns)) as results,
    ):
        for result in results:
            found.append(result)
            task.advance(1)
    measured = [result.measured for result in found]
    return Statistics(
        fingerprint=fingerprint,
        num_rows=labels.num_rows,
        label_rate=labels.num_clicks / labels.num_rows,
        # Rows that all weigh nothing have no rate.
        weighted_label_rate=None
        if labels.weights is None or not labels.weights.total
        else labels.weights.positive / labels.weights.total,
        columns={one.statistics.column: one.statistics for one in measured},
        derived_moments={key: value for one in measured for key, value in one.moments.items()},
        boundaries={key: value for one in measured for key, value in one.boundaries.items()},
        vocabularies={
            result.vocabulary.column: result.vocabulary
            for result in found
            if result.vocabulary is not None
        },
        value_tables={
            result.table.column: result.table for result in found if result.table is not None
        },
        value_weights=None
        if weight is None
        else {
            result.measured.statistics.column: result.weights
            for result in found
            if result.weights is not None
        },
        drift=_drift_of_rows([result.drift for result in found]),
        notes=(
            "All statistics are exact; quantile i/n is the smallest value with that share below "
            "or at it.",
            *([] if plan.weight is None else [_weighing_note(plan.weight)]),
        ),
    )


def _weighing_note(column: str) -> str:
    return (
        f"Means, deviations, skews and target_encode weigh rows by '{column}'; all other "
        "statistics of columns count rows alike."
    )


def _value_weights(session: Session, weight: str) -> ValueWeights:
    ((total, clicks, missing, missing_clicks),) = session.rows(weights_query())
    return ValueWeights(
        column=weight,
        total=total,
        clicks=clicks,
        missing=missing,
        missing_clicks=missing_clicks,
    )


def _drift_of_rows(found: Sequence[Mapping[str, ColumnDrift]]) -> dict[str, RowsDrift]:
    """The drift of other rows, by their name, from what was found of each compared column."""
    found = [drift for drift in found if drift]
    names = found[0] if found else ()
    return {
        name: RowsDrift(
            num_rows=sum(cell.new_count for cell in found[0][name].cells),
            columns={
                one.column: one
                for one in sorted((drift[name] for drift in found), key=lambda one: -one.psi)
            },
        )
        for name in names
    }


def _check_labels(plan: StatisticsPlan, labels: LabelCounts) -> None:
    if labels.num_rows == 0:
        raise ValueError("there are no training rows")
    if labels.num_wrong:
        raise ValueError(
            f"column '{plan.label}': {labels.num_wrong} of {labels.num_rows} rows have a label "
            f"other than 0 and 1"
        )


@dataclass(frozen=True)
class _WrittenValues:
    """A file of frequent values.

    Attributes:
        file: Below the run folder.
        size: Values.
        num_rows: Rows that have one of them.
        first: Value, rows and clicks of the first values.
    """

    file: str
    size: int
    num_rows: int
    first: Sequence[tuple[str, int, int]]

    def top_values(self, wanted: VocabularyNeed) -> Sequence[tuple[str, int, int]] | None:
        """The most frequent values for the report; None if more are needed than were written."""
        has_all = wanted.min_count <= 1 and wanted.max_size is None
        return self.first if has_all or len(self.first) == NUM_TOP_VALUES else None

    def statistics(self, wanted: VocabularyNeed, column: ColumnStatistics) -> VocabularyStatistics:
        """What was written, beside what the column has."""
        return VocabularyStatistics(
            column=column.column,
            min_count=wanted.min_count,
            max_size=wanted.max_size,
            file=self.file,
            size=self.size,
            num_excluded_values=column.num_distinct - self.size,
            num_excluded_rows=column.num_values - self.num_rows,
        )


def _write_values(
    session: Session,
    wanted: VocabularyNeed,
    staging: Path,
    file: str,
    syncs: FileSyncs,
    *,
    weighted: bool = False,
) -> _WrittenValues:
    query = frequent_values_query(
        ColumnType.TEXT, wanted.min_count, wanted.max_size, weighted=weighted
    )
    first: list[tuple[str, int, int]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in session.batches(query):
            for values in batch.slice(0, NUM_TOP_VALUES - len(first)).to_pylist():
                value, num_rows, num_clicks, *_ = values.values()
                first.append((value, num_rows, num_clicks))
            yield batch

    size, num_rows = write_new_values(staging / file, batches(), weighted=weighted)
    syncs.add(staging / file)
    return _WrittenValues(file, size, num_rows, tuple(first))
