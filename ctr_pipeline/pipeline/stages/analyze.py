"""Check → ingest → statistics: from files to features with everything known about them."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from ctr_pipeline.analysis import (
    ColumnDecision,
    StatisticsPlan,
    collect_statistics_with,
    plan_statistics,
)
from ctr_pipeline.analysis.collect import STATISTICS_FILE
from ctr_pipeline.analysis.engine_protocol import AcceptLabels, Engine, LabelCounts
from ctr_pipeline.analysis.text_numbers import CountsOf, collect_text_numbers
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import DataConfig, RuntimeConfig
from ctr_pipeline.dataset.inference import time_patterns
from ctr_pipeline.dataset.ingest import RowsToRead, ingest, lacks_class
from ctr_pipeline.dataset.ingested import IngestedRows, load_ingested
from ctr_pipeline.dataset.near_numbers import find_near_numbers
from ctr_pipeline.dataset.parts import ColumnCounts, counts_in_parts
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.durable import os_errors_explained
from ctr_pipeline.errors import ConfigError, DataError
from ctr_pipeline.features import FeatureSpec, expression_key
from ctr_pipeline.kernels.numbers import LARGEST_SCALED
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.feature_file import save_features
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.stages.columns import (
    FeatureColumns,
    choose_columns,
    complete_features,
    describe_left_out,
    no_feature,
    sequences_in,
)
from ctr_pipeline.pipeline.stages.header import inspect_named
from ctr_pipeline.pipeline.stages.plan_view import describe_decisions
from ctr_pipeline.pipeline.stages.statistics_engines.choosing import (
    check_engine,
    prepare_engine,
)
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import PreparedRows, RowsToCount
from ctr_pipeline.pipeline.stages.time_drift import SplitCountsOf, times_read, with_time_drift
from ctr_pipeline.pipeline.stages.warm_start import WarmStart, freeze_features
from ctr_pipeline.pipeline.stages.whole_numbers import WholeNumberJudge
from ctr_pipeline.preprocessing.fit import ends_of_inputs
from ctr_pipeline.preprocessing.text_ages import ages_of, close_ages, newest_time, open_ages
from ctr_pipeline.preprocessing.unreadable import count_without_time, datetime_formats_of
from ctr_pipeline.progress import Progress
from ctr_pipeline.statistics import Statistics, save_statistics

_SPILL_FOLDER = ".counting.tmp"


@dataclass(frozen=True)
class CheckedData:
    """What the config and the head of the data say.

    Attributes:
        source: The files.
        columns: Which columns are read, and how.
        frozen: Features and columns without one, of a warm start.
    """

    source: Source
    columns: FeatureColumns
    frozen: tuple[tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]] | None


@dataclass(frozen=True)
class MeasuredColumns:
    """What becomes of the columns, and what is known of them.

    Attributes:
        features: What becomes of each column.
        left_out: Columns without a feature, with the reason.
        statistics: Statistics of the training rows.
    """

    features: tuple[FeatureSpec, ...]
    left_out: tuple[ColumnDecision, ...]
    statistics: Statistics


@dataclass(frozen=True)
class Analysis:
    """Results of the stages before training.

    Attributes:
        ingested: The rows by split.
        features: What becomes of each column.
        left_out: Columns without a feature, with the reason.
        statistics: Statistics of the training rows.
        warm_start: What the run takes over from an earlier one; None if nothing.
    """

    ingested: IngestedRows
    features: tuple[FeatureSpec, ...]
    left_out: tuple[ColumnDecision, ...]
    statistics: Statistics
    warm_start: WarmStart | None = None

    @property
    def num_rows(self) -> dict[str, int]:
        """Rows by split."""
        return {name: split.num_rows for name, split in self.ingested.splits.items()}


def run_analysis(
    context: RunContext,
    *,
    accept: Callable[[str], None] | None = None,
    warm_start: WarmStart | None = None,
) -> Analysis:
    """Computes statistics and reads the data once; both are reused if nothing changed.

    An engine where the rows are counts them before they are read here.

    Args:
        context: Context of the run.
        accept: Called with the fingerprint of the rows; raises if they must not replace those that
            a model was trained on.
        warm_start: What the run takes over; its features are then those of the earlier run.

    Raises:
        DataError: The rows changed after they were counted.
    """
    return analyze_checked(context, check_data(context, warm_start), accept, warm_start)


def analyze_checked(
    context: RunContext,
    checked: CheckedData,
    accept: Callable[[str], None] | None,
    warm_start: WarmStart | None,
) -> Analysis:
    """As `run_analysis`, of data whose head was looked at."""
    rows = RowsOnDemand(context, checked, accept)
    if accept is not None:
        # It refuses them before anything is replaced.
        rows.read()
    measured = measure_columns(context, checked, rows, warm_start)
    ingested = rows.read()
    rows.require_counted(measured.statistics)
    return Analysis(ingested, measured.features, measured.left_out, measured.statistics, warm_start)


def run_statistics(context: RunContext, *, warm_start: WarmStart | None = None) -> Statistics:
    """As `run_analysis`, without reading rows that an engine counts where they are.

    Raises:
        DataError: The rows changed while they were counted.
    """
    checked = check_data(context, warm_start)
    rows = RowsOnDemand(context, checked)
    measured = measure_columns(context, checked, rows, warm_start)
    rows.require_unchanged()
    return measured.statistics


def check_data(
    context: RunContext, warm_start: WarmStart | None, source: Source | None = None
) -> CheckedData:
    """Looks at the head of the data and decides which columns are read.

    Args:
        context: Context of the run.
        warm_start: What the run takes over from an earlier one.
        source: The files, inspected; None: they are inspected here.

    Raises:
        ConfigError: With every column that does not exist or whose chains do not fit.
        DataError: The data cannot be read.
        StatisticsError: The engine of the statistics cannot be used.
    """
    loaded = context.loaded
    with context.times.stage("check"):
        source = source or inspect_named(loaded)
        columns = choose_columns_of(loaded, source)
        for warning in (*source.notes, *columns.warnings) if warm_start is None else source.notes:
            context.progress.log(warning)
        frozen = None
        if warm_start is not None:
            columns, known, left_out = freeze_features(loaded, columns, warm_start)
            frozen = known, left_out
    return CheckedData(source, columns, frozen)


class RowsOnDemand:
    """The rows of a run, which are read when they are first asked for.

    Args:
        context: Context of the run.
        checked: Where they are, and how they are read.
        accept: As for `run_analysis`.
        ingest_apart: Has workers read and divide them; None: this process does.
    """

    def __init__(
        self,
        context: RunContext,
        checked: CheckedData,
        accept: Callable[[str], None] | None = None,
        ingest_apart: Callable[[RowsToRead], IngestedRows] | None = None,
    ) -> None:
        self._context = context
        self._source = checked.source
        self._columns = checked.columns
        self._accept = accept
        self._ingest = ingest_apart or self._ingest_here
        self._ingested: IngestedRows | None = None
        self._counted = self._rows()
        self.origin = self._counted.origin

    def read(self) -> IngestedRows:
        """All rows.

        Raises:
            DataError: As `ingest`.
        """
        if self._ingested is None:
            with self._context.times.stage("ingest"):
                self._ingested = self._ingest(self._rows())
            if self._accept is not None:
                self._accept(self._ingested.fingerprint)
            _log_times(self._ingested, self._context.progress)
        return self._ingested

    def counts_in(self, engine: Callable[[], Engine]) -> SplitCountsOf:
        """Returns the values of a column of a split: of rows that are read, else by an engine."""
        known = self._ingested or load_ingested(self._context.run.ingested)
        data = self._context.config.data
        if known is None or known.origin != self.origin:
            return lambda column, split: engine().counts_of(column, split)
        splits = known.splits
        return lambda column, split: counts_in_parts(
            splits[split].files, column, data.label, data.weight
        )

    def require_unchanged(self) -> None:
        """Raises DataError if the rows changed while they were counted."""
        self._counted.versions.require_same(self._source, "while its rows were counted")

    def require_counted(self, statistics: Statistics) -> None:
        """Raises DataError if other rows were read than were counted."""
        self._counted.versions.require_same(self._source, "after its rows were counted")
        train = self.read().splits["train"]
        num_clicks = round(statistics.label_rate * statistics.num_rows)
        if (statistics.num_rows, num_clicks) != (train.num_rows, train.num_positive):
            raise DataError(
                f"{statistics.num_rows} training rows with {num_clicks} clicks were counted there, "
                f"but {train.num_rows} with {train.num_positive} were read",
                place=str(self._source.files["train"][0]),
                remedy="Set analysis.engine to duckdb, which counts the rows that are read",
            )

    def _ingest_here(self, rows: RowsToRead) -> IngestedRows:
        context = self._context
        return ingest(
            rows,
            context.run.ingested,
            threads=num_threads(context.config.runtime),
            progress=context.progress,
        )

    def _rows(self) -> RowsToRead:
        """The rows in the versions that they have now."""
        config, columns = self._context.config, self._columns
        return RowsToRead(
            config.data,
            self._source,
            columns.types,
            config.train.seed,
            sensitive=columns.sensitive,
            lists=columns.lists,
            extra_columns=config.evaluation.columns,
        )


def measure_columns(
    context: RunContext, checked: CheckedData, rows: RowsOnDemand, warm_start: WarmStart | None
) -> MeasuredColumns:
    """Computes statistics and decides features; both are written into the run folder.

    Args:
        context: Context of the run.
        checked: The head of the data.
        rows: The rows, which are read here if the engine counts them on this machine.
        warm_start: What the run takes over.

    Raises:
        ConfigError: A vocabulary would have no value, or no text is a time.
        DataError: The rows cannot be read or used.
        StatisticsError: The engine refuses or fails.
    """
    loaded, run, progress = context.loaded, context.run, context.progress
    source, columns, config = checked.source, checked.columns, context.config
    prepared = prepare_counting(
        loaded, source, columns, origin=rows.origin, read=rows.read, progress=progress
    )
    fingerprint, others = prepared.fingerprint, prepared.others
    with (
        context.times.stage("statistics"),
        _OpenedOnce(
            prepared, run.path, lambda found: accept_labels(config.data, source, found)
        ) as engine,
    ):

        def collect(
            specs: Sequence[FeatureSpec], folder: Path, *, compare: bool = False
        ) -> Statistics:
            plan = plan_statistics(specs, config.data.label, weight=config.data.weight)
            found = collect_statistics_with(
                lambda _: nullcontext(engine()),
                plan,
                folder,
                data_fingerprint=fingerprint,
                progress=progress,
                memory_limit_gb=config.runtime.memory_limit_gb,
                compared=others if compare else (),
            )
            return add_text_numbers(found, plan, counts_of_train, folder, config.runtime)

        counts_of = rows.counts_in(engine)

        def counts_of_train(column: str) -> Iterable[ColumnCounts]:
            return counts_of(column, "train")

        features, left_out = checked.frozen or _decide(
            loaded, columns, source.head, lambda specs: collect(specs, run.profile), progress
        )
        features = with_newest_times(features, counts_of_train)
        statistics = collect(features, run.path, compare=True)
        found = with_time_drift(statistics, times_read(features), counts_of)
        if found.drift != statistics.drift:
            save_statistics(run.path / STATISTICS_FILE, found)
        notes = _notes_of_unreadable(loaded, features, counts_of_train, found)
        if warm_start is None:
            _refuse_empty_vocabularies(loaded, columns, found)
            notes += _notes_of_inputs(features, found)
        for note in notes:
            progress.log(note)
        found = found.model_copy(update={"notes": (*found.notes, *notes)})
    save_features(run.features, features)
    return MeasuredColumns(features, left_out, found)


def prepare_counting(
    loaded: LoadedConfig,
    source: Source,
    columns: FeatureColumns,
    *,
    origin: str,
    read: Callable[[], IngestedRows],
    progress: Progress,
) -> PreparedRows:
    """Prepares what computes the statistics; the arguments are those of `RowsToCount`."""
    lists = {*columns.lists, *sequences_in(loaded, source.head, columns.automatic)}
    types = {name: kind for name, kind in columns.types.items() if name != loaded.config.data.label}
    wanted = RowsToCount(loaded.config, source, types, sorted(lists), origin, read, progress)
    return prepare_engine(wanted)


def accept_labels(data: DataConfig, source: Source, found: Mapping[str, LabelCounts]) -> None:
    """Refuses rows that were counted and not read as `ingest` would.

    Raises:
        DataError: A row is bad and none may be skipped, too many are, or a split has no rows or
            only one class.
    """
    num_rows = sum(one.num_rows for one in found.values())
    num_bad = sum(one.num_wrong for one in found.values())
    most = data.max_bad_fraction * num_rows if data.bad_rows == "skip" else 0
    if num_bad > most:
        is_allowed = data.bad_rows == "skip"
        allowed = "raise data.max_bad_fraction" if is_allowed else "set data.bad_rows: skip"
        raise DataError(
            f"{num_bad} of {num_rows} rows are bad: a label is not 0 or 1, a weight is no number "
            "from 0 on, or a number or the number of fields is wrong",
            place=str(source.files["train"][0]),
            remedy="'ctrpipe analyze' with --set analysis.engine=duckdb names the first one; fix "
            f"it, or {allowed}"
            + (
                "; fields in quotes that hold line ends need Parquet ('ctrpipe convert')"
                if source.is_delimited
                else ""
            ),
        )
    for split, labels in found.items():
        if labels.num_clicks in {0, labels.num_good}:
            raise lacks_class(split, labels.num_good, labels.num_clicks, num_rows - num_bad, data)


class _OpenedOnce:
    """An engine that starts when it is first asked for.

    Args:
        prepared: Starts it.
        folder: Intermediate results go into a folder in it.
        accept: As for `PreparedRows.open`.
    """

    def __init__(self, prepared: PreparedRows, folder: Path, accept: AcceptLabels) -> None:
        self._prepared = prepared
        self._folder = folder
        self._accept = accept
        self._stack = ExitStack()
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        if self._engine is None:
            spill = self._folder / _SPILL_FOLDER
            with os_errors_explained(spill):
                # A run that was killed may have left it.
                shutil.rmtree(spill, ignore_errors=True)
                spill.mkdir(parents=True)
            self._stack.callback(shutil.rmtree, spill, ignore_errors=True)
            opened = self._prepared.open(spill, self._accept)
            self._engine = self._stack.enter_context(opened)
        return self._engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def choose_columns_of(loaded: LoadedConfig, source: Source) -> FeatureColumns:
    """Decides which columns of a source are read and how.

    Raises:
        ConfigError: With every column that does not exist or whose chains do not fit.
        DataError: The engine of the statistics would read or split the rows otherwise than this
            process.
        StatisticsError: The engine cannot be used.
    """
    columns = choose_columns(
        loaded,
        source.column_names,
        source.inferred_types,
        times=source.times,
        lists=source.lists,
        near_numbers=find_near_numbers(source.head, source.inferred_types)
        if source.is_delimited
        else {},
        judge=WholeNumberJudge(source, loaded.config.data),
    )
    check_engine(loaded.config, source)
    return columns


def with_newest_times(
    features: Sequence[FeatureSpec], counts_of: CountsOf
) -> tuple[FeatureSpec, ...]:
    """Completes ages that name no point in time: they count to the newest of the training rows.

    Args:
        features: All features.
        counts_of: Gives the values of a column of the training rows.
    """
    newest = {
        (column, format): newest_time(counts_of(column), format)
        for column, format in open_ages(features)
    }
    return close_ages(features, newest)


def add_text_numbers(
    statistics: Statistics,
    plan: StatisticsPlan,
    counts_of: CountsOf,
    folder: Path,
    runtime: RuntimeConfig,
) -> Statistics:
    """Adds the statistics of ages, which no database computes.

    Args:
        statistics: All others; returned unchanged if they hold those of ages already.
        plan: The statistics that the features need.
        counts_of: Gives the values of a column of the training rows.
        folder: Folder of `statistics.json`, which is rewritten.
        runtime: Gives the memory limit.
    """
    wanted = [
        expression_key(one.column, chain)
        for one in plan.text_numbers
        for chain in (*one.moments, *(cut.chain for cut in one.boundaries))
    ]
    known = statistics.derived_moments.keys() | statistics.boundaries.keys()
    if known.issuperset(wanted):
        return statistics
    with tempfile.TemporaryDirectory(prefix=".ages-", dir=folder) as name:
        found = collect_text_numbers(
            plan,
            counts_of,
            ages_of,
            spill_folder=Path(name),
            memory_limit_gb=runtime.memory_limit_gb,
        )
    added = statistics.model_copy(
        update={
            "derived_moments": statistics.derived_moments | found.moments,
            "boundaries": statistics.boundaries | found.boundaries,
        }
    )
    save_statistics(folder / STATISTICS_FILE, added)
    return added


def _log_times(ingested: IngestedRows, progress: Progress) -> None:
    """Logs the first and the last time of each split, for rows that are split by time."""
    ranges = [
        f"{split} {rows.times.first} to {rows.times.last}"
        for split, rows in ingested.splits.items()
        if rows.times is not None
    ]
    if ranges:
        progress.log(f"Split by time: {', '.join(ranges)}")


def _decide(
    loaded: LoadedConfig,
    columns: FeatureColumns,
    head: pa.Table,
    profile_of: Callable[[Sequence[FeatureSpec]], Statistics],
    progress: Progress,
) -> tuple[tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]]:
    profile = None
    if columns.automatic:
        # Sensitive columns as well: the values of a column decide its feature.
        plain = tuple(
            FeatureSpec(column=name, column_type=columns.types[name]) for name in columns.automatic
        )
        profile = profile_of(plain)
    features, left_out = complete_features(loaded, columns, head, profile)
    if not features:
        raise ConfigError([loaded.problem_at("features", no_feature(left_out))])
    decided = [feature for feature in features if feature.column in columns.automatic]
    if decided:
        progress.log(describe_decisions(decided))
    for line in describe_left_out(left_out):
        progress.log(line)
    return features, left_out


def _refuse_empty_vocabularies(
    loaded: LoadedConfig, columns: FeatureColumns, statistics: Statistics
) -> None:
    """Raises ConfigError if a `min_count` of the config leaves no value at all."""
    problems = []
    for column, spec in columns.explicit.items():
        vocabulary = statistics.vocabularies.get(column)
        if spec.id is None or vocabulary is None or vocabulary.size > 0:
            continue
        if statistics.column(column).is_missing:
            continue
        key = columns.entries[column].key_of("id")
        message = (
            f"no value of column '{column}' occurs {vocabulary.min_count} times in the training "
            f"rows, so its vocabulary is empty; lower min_count, or use hash"
        )
        problems.append(loaded.problem_at(key, message))
    if problems:
        raise ConfigError(problems)


def _notes_of_inputs(features: Sequence[FeatureSpec], statistics: Statistics) -> list[str]:
    """Columns of which the model makes nothing, as all training rows are alike, or too much."""
    columns = dict.fromkeys(part.column for spec in features for part in spec.parts)
    missing = [column for column in columns if statistics.column(column).is_missing]
    ends = ends_of_inputs(features, statistics)
    return [
        *(
            f"Column '{column}' is missing in all training rows, so the model makes nothing of it."
            for column in missing
        ),
        *(
            f"Column '{column}' gives the same number in all training rows, so the model makes "
            "nothing of what it holds in others."
            for column, (low, high) in ends.items()
            if low == high and column not in missing
        ),
        *(
            f"Column '{column}' has dense inputs above {LARGEST_SCALED:,.0f}, and the loss may "
            "explode: add log, clip or standardize to its `number`."
            for column, (low, high) in ends.items()
            if low != high and max(-low, high) > LARGEST_SCALED
        ),
    ]


def _notes_of_unreadable(
    loaded: LoadedConfig,
    features: tuple[FeatureSpec, ...],
    counts_of: CountsOf,
    statistics: Statistics,
) -> list[str]:
    """How many texts of time columns are no times and count as missing.

    Raises:
        ConfigError: A column has no text that is a time.
    """
    formats = datetime_formats_of(features)
    problems, notes = [], []
    for column, format in formats:
        num_unreadable = count_without_time(counts_of(column), format)
        known = statistics.column(column)
        num_present = known.count - known.num_missing
        if num_unreadable == num_present > 0:
            formats_read = time_patterns(next(iter(counts_of(column))).values.cast(pa.string()))
            another = ", ".join(formats_read) or "'%d.%m.%Y %H:%M' or epoch_seconds"
            message = (
                f"none of the texts of column '{column}' tells a time in the format '{format}'; "
                f"give another `format`, such as {another}"
            )
            problems.append(loaded.problem_at("features", message))
        elif num_unreadable:
            notes.append(
                f"Column '{column}': {num_unreadable:,} of {num_present:,} texts tell no time in "
                f"the format '{format}' and count as missing."
            )
    if problems:
        raise ConfigError(problems)
    return notes
