"""Check → ingest → statistics: from files to features with everything known about them."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.analysis import (
    ColumnDecision,
    StatisticsPlan,
    plan_statistics,
)
from ctr_pipeline.analysis.collect import STATISTICS_FILE
from ctr_pipeline.analysis.text_numbers import collect_text_numbers
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.dataset.ingest import ingest
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.near_numbers import find_near_numbers
from ctr_pipeline.dataset.parts import read_batches
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.features import FeatureSpec, expression_key
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.columns import (
    FeatureColumns,
    choose_columns,
    complete_features,
    describe_left_out,
    no_feature,
)
from ctr_pipeline.pipeline.stages.feature_file import save_features
from ctr_pipeline.pipeline.stages.header import inspect_named
from ctr_pipeline.pipeline.stages.plan_view import describe_decisions
from ctr_pipeline.pipeline.stages.statistics_engines.choosing import (
    check_engine,
    compute_statistics,
)
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import StatisticsRequest
from ctr_pipeline.pipeline.stages.time_drift import times_read, with_time_drift
from ctr_pipeline.pipeline.stages.warm_start import WarmStart, freeze_features
from ctr_pipeline.pipeline.stages.whole_numbers import WholeNumberJudge
from ctr_pipeline.preprocessing.text_ages import ages_of, close_ages, newest_time, open_ages
from ctr_pipeline.preprocessing.unreadable import count_without_time, datetime_formats_of
from ctr_pipeline.progress import Progress
from ctr_pipeline.statistics import Statistics, save_statistics


@dataclass(frozen=True)
class Analysis:
    """Results of the stages before training.

    Attributes:
        source: The files.
        columns: Which columns are read, and how.
        ingested: The rows by split.
        features: What becomes of each column.
        left_out: Columns without a feature, with the reason.
        statistics: Statistics of the training rows.
        warm_start: What the run takes over from an earlier one; None if nothing.
    """

    source: Source
    columns: FeatureColumns
    ingested: IngestedRows
    features: tuple[FeatureSpec, ...]
    left_out: tuple[ColumnDecision, ...]
    statistics: Statistics
    warm_start: WarmStart | None = None


def run_analysis(
    context: RunContext,
    *,
    accept: Callable[[str], None] | None = None,
    warm_start: WarmStart | None = None,
) -> Analysis:
    """Reads the data once and computes its statistics; both are reused if nothing changed.

    Args:
        context: Context of the run.
        accept: Called with the fingerprint of the rows; raises if they must not replace those that
            a model was trained on.
        warm_start: What the run takes over; its features are then those of the earlier run.
    """
    loaded, run, progress, times = context.loaded, context.run, context.progress, context.times
    config = loaded.config
    with times.stage("check"):
        source = inspect_named(loaded)
        columns = choose_columns_of(loaded, source)
        for warning in columns.warnings if warm_start is None else ():
            progress.log(warning)
        frozen = None
        if warm_start is not None:
            columns, known, left_out = freeze_features(loaded, columns, warm_start)
            frozen = known, left_out
    with times.stage("ingest"):
        ingested = ingest(
            config.data,
            source,
            columns.types,
            run.ingested,
            seed=config.train.seed,
            threads=num_threads(config.runtime),
            sensitive=columns.sensitive,
            lists=columns.lists,
            extra_columns=config.evaluation.columns,
            progress=progress,
        )
    if accept is not None:
        accept(ingested.fingerprint)
    _log_times(ingested, progress)
    with times.stage("statistics"):
        features, left_out = frozen or _decide(
            loaded, run, columns, source, ingested, progress=progress
        )
        features = with_newest_times(features, ingested.splits["train"].files)
        statistics = _collect(
            loaded, run.path, features, source, ingested, progress=progress, compare=True
        )
        statistics = _compare_times(run, features, ingested, statistics)
        if warm_start is None:
            _refuse_empty_columns(loaded, columns, statistics)
            _refuse_empty_vocabularies(loaded, columns, statistics)
        statistics = _count_unreadable(loaded, features, ingested, statistics, progress)
    save_features(run.features, features)
    return Analysis(source, columns, ingested, features, left_out, statistics, warm_start)


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
    features: Sequence[FeatureSpec], files: Sequence[Path]
) -> tuple[FeatureSpec, ...]:
    """Completes ages that name no point in time: they count to the newest of the training rows.

    Args:
        features: All features.
        files: Parts of the training rows.
    """
    newest = {
        (column, format): newest_time(
            (batch.column(0) for batch in read_batches(files, [column])), format
        )
        for column, format in open_ages(features)
    }
    return close_ages(features, newest)


def add_text_numbers(
    statistics: Statistics,
    plan: StatisticsPlan,
    files: Sequence[Path],
    folder: Path,
    runtime: RuntimeConfig,
) -> Statistics:
    """Adds the statistics of ages, which no database computes.

    Args:
        statistics: All others; returned unchanged if they hold those of ages already.
        plan: The statistics that the features need.
        files: Parts of the training rows.
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
            files,
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


def _compare_times(
    run: RunFolder,
    features: tuple[FeatureSpec, ...],
    ingested: IngestedRows,
    statistics: Statistics,
) -> Statistics:
    """Adds the drift of points in time, as features read them, also to `statistics.json`."""
    others = {name: split.files for name, split in ingested.splits.items() if name != "train"}
    found = with_time_drift(
        statistics, times_read(features), ingested.splits["train"].files, others
    )
    if found.drift != statistics.drift:
        save_statistics(run.path / STATISTICS_FILE, found)
    return found


def _decide(
    loaded: LoadedConfig,
    run: RunFolder,
    columns: FeatureColumns,
    source: Source,
    ingested: IngestedRows,
    *,
    progress: Progress,
) -> tuple[tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]]:
    profile = None
    if columns.automatic:
        # Sensitive columns as well: the values of a column decide its feature.
        plain = tuple(
            FeatureSpec(column=name, column_type=columns.types[name]) for name in columns.automatic
        )
        profile = _collect(loaded, run.profile, plain, source, ingested, progress=progress)
    features, left_out = complete_features(loaded, columns, source.head, profile)
    if not features:
        raise ConfigError([loaded.problem_at("features", no_feature(left_out))])
    decided = [feature for feature in features if feature.column in columns.automatic]
    if decided:
        progress.log(describe_decisions(decided))
    for line in describe_left_out(left_out):
        progress.log(line)
    return features, left_out


def _refuse_empty_columns(
    loaded: LoadedConfig, columns: FeatureColumns, statistics: Statistics
) -> None:
    """Raises ConfigError if the config asks for features of columns without any value."""
    problems = []
    for name, spec in columns.explicit.items():
        key = columns.entries[name].key + (".columns" if spec.cross is None else ".cross")
        for part in spec.parts:
            known = statistics.column(part.column)
            if known.num_missing == known.count:
                message = (
                    f"all values of column '{part.column}' are missing in the training rows; leave "
                    "it out"
                )
                problems.append(loaded.problem_at(key, message))
    if problems:
        raise ConfigError(problems)


def _refuse_empty_vocabularies(
    loaded: LoadedConfig, columns: FeatureColumns, statistics: Statistics
) -> None:
    """Raises ConfigError if a `min_count` of the config leaves no value at all."""
    problems = []
    for column, spec in columns.explicit.items():
        vocabulary = statistics.vocabularies.get(column)
        if spec.id is None or vocabulary is None or vocabulary.size > 0:
            continue
        key = columns.entries[column].key_of("id")
        message = (
            f"no value of column '{column}' occurs {vocabulary.min_count} times in the training "
            f"rows, so its vocabulary is empty; lower min_count, or use hash"
        )
        problems.append(loaded.problem_at(key, message))
    if problems:
        raise ConfigError(problems)


def _count_unreadable(
    loaded: LoadedConfig,
    features: tuple[FeatureSpec, ...],
    ingested: IngestedRows,
    statistics: Statistics,
    progress: Progress,
) -> Statistics:
    """Logs and notes how many texts of time columns are no times and count as missing.

    Raises:
        ConfigError: A column has no text that is a time.
    """
    formats = datetime_formats_of(features)
    problems, notes = [], []
    for column, format in formats:
        num_unreadable = count_without_time(
            (batch.column(0) for batch in read_batches(ingested.splits["train"].files, [column])),
            format,
        )
        known = statistics.column(column)
        num_present = known.count - known.num_missing
        if num_unreadable == num_present > 0:
            message = (
                f"none of the texts of column '{column}' tells a time in the format '{format}'; "
                f"give another `format`, such as '%d.%m.%Y %H:%M' or epoch_seconds"
            )
            problems.append(loaded.problem_at("features", message))
        elif num_unreadable:
            notes.append(
                f"Column '{column}': {num_unreadable:,} of {num_present:,} texts tell no time in "
                f"the format '{format}' and count as missing."
            )
    if problems:
        raise ConfigError(problems)
    for note in notes:
        progress.log(note)
    return statistics.model_copy(update={"notes": (*statistics.notes, *notes)})


def _collect(
    loaded: LoadedConfig,
    folder: Path,
    features: tuple[FeatureSpec, ...],
    source: Source,
    ingested: IngestedRows,
    *,
    progress: Progress,
    compare: bool = False,
) -> Statistics:
    """Computes the statistics of the training rows, and the drift of other splits to `compare`."""
    config, train = loaded.config, ingested.splits["train"].files
    plan = plan_statistics(features, config.data.label, weight=config.data.weight)
    found = compute_statistics(
        StatisticsRequest(plan, config, source, ingested, folder, compare, progress)
    )
    found = _with_weighted_rate(found, ingested, folder)
    return add_text_numbers(found, plan, train, folder, config.runtime)


def _with_weighted_rate(statistics: Statistics, ingested: IngestedRows, folder: Path) -> Statistics:
    """Adds the weighted click rate, also to `statistics.json`.

    Ingest has summed the weights, so no engine has to.
    """
    train = ingested.splits["train"]
    if train.weights is None or statistics.weighted_label_rate is not None:
        return statistics
    weighted = statistics.model_copy(update={"weighted_label_rate": train.label_rate})
    save_statistics(folder / STATISTICS_FILE, weighted)
    return weighted
