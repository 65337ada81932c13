"""Rows, statistics and transforms of a job, by its workers: the side that has it done, and theirs.

Workers read the rows in units, and one computes the statistics and plans the transforms. Where all
rows must be known before they can be divided among the splits, one of them does so in between. Each
attempt at one of the two writes a folder of its own; the process that started the job moves what
counts into the run folder.
"""

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.analysis import ColumnDecision
from ctr_pipeline.analysis.value_files import VOCABULARY_FOLDER
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.resolved import pinned_yaml
from ctr_pipeline.dataset.ingest import RowsToRead, find_ingested, ingest
from ctr_pipeline.dataset.ingested import IngestedRows, load_ingested, save_ingested
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.preparation import UnitLease
from ctr_pipeline.errors import EXIT_TRY_AGAIN, CtrPipelineError, DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.job.stage_task import (
    StageTask,
    attempt_folder,
    begin_attempt,
    fingerprint_of_facts,
    load_facts,
    save_facts,
)
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import (
    Analysis,
    CheckedData,
    RowsOnDemand,
    analyze_checked,
    check_data,
    measure_columns,
    prepare_counting,
)
from ctr_pipeline.pipeline.stages.encode import plan_transforms
from ctr_pipeline.pipeline.stages.read import SplitReader, open_reader, read_by_workers
from ctr_pipeline.pipeline.stages.sharing import ShareUnits
from ctr_pipeline.pipeline.stages.warm_start import WarmStart, find_warm_start
from ctr_pipeline.preprocessing.encode import wake_kernels_meanwhile
from ctr_pipeline.preprocessing.plan import PreprocessingPlan, load_plan
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.statistics import load_statistics

_STAGES = ("check", "statistics", "transforms")
_ROWS = "rows"
_FOUND = "analysis.json"


@dataclass(frozen=True)
class _DivisionFacts:
    """What a worker divides.

    Attributes:
        parts: Names of what was read of each split's files, in the order of their rows.
    """

    parts: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _AnalysisFacts:
    """What a worker analyzes.

    Attributes:
        origin: Names the rows; see `RowsToRead.origin`.
        rows: Fingerprint of what is counted.
        config: The same of the config and of the earlier run that this one goes on from.
    """

    origin: str
    rows: str
    config: str


@dataclass(frozen=True)
class _Found:
    """What an analysis found beside the files of a run folder, and which these are.

    Attributes:
        facts: Fingerprint of the facts.
        statistics: The same of the statistics.
        plan: The same of the transforms.
        left_out: Columns without a feature, with the reason.
        notes: As of the statistics, whose file has none.
        seconds: Seconds of each stage.
    """

    facts: str
    statistics: str
    plan: str
    left_out: tuple[ColumnDecision, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]


def analyze_by_workers(
    context: RunContext,
    accept: Callable[[str], None] | None,
    warm_start: WarmStart | None,
    share_units: ShareUnits,
) -> tuple[Analysis, PreprocessingPlan | None]:
    """Has workers read rows, compute statistics and plan transforms, and follows them.

    Rows of a single reading task are read and analyzed by this process, before a worker would have
    started.

    Args:
        context: Context of the run.
        accept: As for `run_analysis`.
        warm_start: The same.
        share_units: Has units worked on.

    Returns:
        What is known of the rows, and the transforms; None if they are not planned yet.

    Raises:
        CtrPipelineError: What ends the stages in one process ends them here.
        Interrupted: By a signal; `--resume` goes on with the tasks that are left.
    """
    checked = check_data(context, warm_start)
    if not is_shared(context, checked):
        wake_kernels_meanwhile()
        return analyze_checked(context, checked, accept, warm_start), None
    rows = RowsOnDemand(context, checked, accept, partial(ingest_by_workers, context, share_units))
    if accept is not None:
        # It refuses them before anything is replaced.
        rows.read()
    prepared = prepare_counting(
        context.loaded,
        checked.source,
        checked.columns,
        origin=rows.origin,
        read=rows.read,
        progress=SilentProgress(),
    )
    earlier = "" if warm_start is None else warm_start.record.model_dump_json()
    facts = _AnalysisFacts(
        rows.origin,
        # An engine that counts rows on this machine has them read now.
        rows=prepared.fingerprint,
        config=hashlib.sha256((pinned_yaml(context.config, ()) + earlier).encode()).hexdigest(),
    )
    found = _find(context.run, fingerprint_of_facts(facts))
    if found is None:
        found = _analyze(context, facts, checked.source, share_units)
    else:
        context.progress.log("Using the existing statistics and transforms of the same rows")
    run = context.run
    statistics = load_statistics(run.statistics).model_copy(update={"notes": found.notes})
    analysis = Analysis(
        rows.read(), load_features(run.features), found.left_out, statistics, warm_start
    )
    rows.require_counted(statistics)
    return analysis, load_plan(run.preprocessing)


def is_shared(context: RunContext, checked: CheckedData) -> bool:
    """Whether workers read and analyze the rows: these are more than one reading task."""
    return checked.source.size_bytes > context.config.runtime.bytes_per_reading_task


def open_division(loaded: LoadedConfig, source: Source) -> StageTask:
    """What a worker divides rows with.

    Args:
        loaded: The config.
        source: The files, inspected.

    Raises:
        DataError: The process that started the job has left nothing of it.
    """
    run = RunFolder.of(loaded.config)
    reader = open_reader(loaded.config, run, source, num_threads(loaded.config.runtime))
    return _division(loaded, reader, load_facts(_DivisionFacts, run.dividing))


def open_analysis(loaded: LoadedConfig, source: Source) -> StageTask:
    """What a worker analyzes rows with.

    Args:
        loaded: The config.
        source: The files, inspected.

    Raises:
        DataError: As of `open_division`.
    """
    run = RunFolder.of(loaded.config)
    facts = load_facts(_AnalysisFacts, run.analyzing)
    return StageTask(
        "analyze",
        loaded,
        run.analyzing,
        fingerprint_of_facts(facts),
        num_stages=len(_STAGES),
        run_stages=lambda context, lease: _analyze_here(context, lease, facts, source),
        is_made=lambda lease: (attempt_folder(run.analyzing, lease.part) / _FOUND).is_file(),
        fails_always=_fails_always,
    )


def _fails_always(error: CtrPipelineError) -> bool:
    """Whether all attempts would find the same: of the same rows they do, unless it may pass."""
    return error.exit_code != EXIT_TRY_AGAIN


def _division(loaded: LoadedConfig, reader: SplitReader, facts: _DivisionFacts) -> StageTask:
    rows, folder = reader.rows, reader.run.dividing

    def made_by(part: str) -> Path:
        return attempt_folder(folder, part) / _ROWS

    def divide(context: RunContext, lease: UnitLease) -> None:
        begin_attempt(folder, lease)
        ingest(
            rows,
            made_by(lease.part),
            threads=num_threads(context.config.runtime),
            progress=context.progress,
            join_read=lambda ledger: reader.join(facts.parts, ledger),
        )

    return StageTask(
        "divide",
        loaded,
        folder,
        hashlib.sha256((rows.origin + fingerprint_of_facts(facts)).encode()).hexdigest(),
        num_stages=1,
        run_stages=divide,
        is_made=lambda lease: load_ingested(made_by(lease.part)) is not None,
        fails_always=_fails_always,
    )


def ingest_by_workers(
    context: RunContext, share_units: ShareUnits, rows: RowsToRead
) -> IngestedRows:
    """Has workers read rows, and one of them divide these where that writes them again.

    Nothing is done if all of it is there.

    Args:
        context: Context of the run.
        share_units: Has units worked on.
        rows: What is read.

    Raises:
        CtrPipelineError: As `ingest`, or a worker failed too often.
    """
    run, started = context.run, time.monotonic()
    found = find_ingested(rows, run.ingested)
    if found is not None:
        return found
    rows.require_columns()
    read = read_by_workers(rows, context.config, run, share_units)
    if not rows.is_written_twice:
        joined = ingest(
            rows,
            run.ingested,
            threads=num_threads(context.config.runtime),
            progress=context.progress,
            join_read=lambda ledger: SplitReader(run, rows, {}, threads=1).join(read, ledger),
        )
        shutil.rmtree(run.reading, ignore_errors=True)
        return joined
    facts = _DivisionFacts({split: tuple(names) for split, names in read.items()})
    save_facts(run.dividing, facts)
    task = _division(context.loaded, SplitReader(run, rows, {}, threads=1), facts)
    made = _made_by(task, share_units) / _ROWS
    divided = load_ingested(made)
    if divided is None:
        raise _gone(made)
    rows.versions.require_same(rows.source, "while it was read")
    seconds = time.monotonic() - started
    save_ingested(made, divided.model_copy(update={"seconds": seconds}))
    with durable.os_errors_explained(run.ingested):
        durable.replace_folder(made, run.ingested)
    # Nothing is left of which they have to tell.
    shutil.rmtree(run.reading, ignore_errors=True)
    shutil.rmtree(run.dividing, ignore_errors=True)
    ingested = load_ingested(run.ingested)
    if ingested is None:
        raise _gone(run.ingested)
    return ingested


def _analyze(
    context: RunContext, facts: _AnalysisFacts, source: Source, share_units: ShareUnits
) -> _Found:
    run, times = context.run, context.times
    save_facts(run.analyzing, facts)
    with times.stage("statistics"):
        made = RunFolder(_made_by(open_analysis(context.loaded, source), share_units))
        _publish(made, run)
    shutil.rmtree(run.analyzing, ignore_errors=True)
    found = _find(run, fingerprint_of_facts(facts))
    if found is None:
        raise _gone(run.analysis)
    spent = {stage: seconds for stage, seconds in found.seconds.items() if stage == "transforms"}
    times.take_over(spent, within="statistics")
    return found


def _analyze_here(
    context: RunContext, lease: UnitLease, facts: _AnalysisFacts, source: Source
) -> None:
    """Analyzes the rows of a run in a worker; what it finds goes into the folder of the attempt."""
    run, loaded = context.run, context.loaded
    # The process that started the job has told all of this.
    silent = replace(context, progress=SilentProgress())
    warm_start = find_warm_start(loaded, run, keep=True, progress=silent.progress)
    checked = check_data(silent, warm_start, source)
    rows = RowsOnDemand(silent, checked)
    if rows.origin != facts.origin:
        raise DataError(
            "changed since the job was started",
            place=str(checked.source.files["train"][0]),
            remedy="Run again with --resume",
        )
    made = replace(context, run=RunFolder(begin_attempt(run.analyzing, lease)))
    _take_along(run, made.run)
    measured = measure_columns(made, checked, rows, warm_start)
    plan = plan_transforms(made, measured.features, measured.statistics, warm_start)
    found = _Found(
        facts=fingerprint_of_facts(facts),
        statistics=measured.statistics.fingerprint,
        plan=plan.fingerprint(),
        left_out=measured.left_out,
        notes=measured.statistics.notes,
        seconds=context.times.seconds,
    )
    durable.write_text(made.run.path / _FOUND, encode(found).decode())


def _take_along(run: RunFolder, made: RunFolder) -> None:
    """Links what the run has already: statistics of the same rows are kept, transforms grow."""
    kept = (run.statistics, run.path / VOCABULARY_FOLDER, run.profile, run.warm_start)
    files = [
        file
        for place in kept
        for file in ([place] if place.is_file() else place.rglob("*"))
        if file.is_file()
    ]
    for file in files:
        target = made.path / file.relative_to(run.path)
        with durable.os_errors_explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            durable.link_or_copy(file, target)


def _publish(made: RunFolder, run: RunFolder) -> None:
    """Moves what an attempt found into the run folder; statistics never stand beside others' files.

    Whatever a kill leaves of it is analyzed again.
    """
    told = made.path / _FOUND
    with durable.os_errors_explained(run.path):
        text = told.read_text(encoding="utf-8")
        # Without it, the attempt does not count any more.
        told.unlink()
        durable.sync_folder(made.path)
        for path in (run.analysis, run.statistics):
            path.unlink(missing_ok=True)
        for name in (VOCABULARY_FOLDER, str(run.profile.relative_to(run.path))):
            if (made.path / name).is_dir():
                durable.replace_folder(made.path / name, run.path / name)
        # Only some of them are new, and what was taken over must not be lost by a kill.
        for file in sorted(made.warm_start.glob("*")):
            file.replace(run.warm_start / file.name)
        made.features.replace(run.features)
        made.preprocessing.replace(run.preprocessing)
        made.statistics.replace(run.statistics)
        durable.sync_folder(run.path)
    durable.write_text(run.analysis, text)


def _find(run: RunFolder, facts: str) -> _Found | None:
    """What an analysis of these facts found, if all that it made is in the run folder still."""
    try:
        found = decode(_Found, run.analysis.read_bytes())
        if found.facts != facts:
            return None
        statistics, plan = load_statistics(run.statistics), load_plan(run.preprocessing)
        load_features(run.features)
    except (OSError, MalformedMessage, CtrPipelineError):
        return None
    values = (*statistics.vocabularies.values(), *statistics.value_tables.values())
    is_whole = all((run.path / one.file).is_file() for one in values)
    is_same = (statistics.fingerprint, plan.fingerprint()) == (found.statistics, found.plan)
    return found if is_whole and is_same else None


def _made_by(task: StageTask, share_units: ShareUnits) -> Path:
    """Has a task done; returns the folder of the attempt that counts."""
    (name,) = share_units(task, [task.unit])[task.unit.split]
    return attempt_folder(task.folder, name)


def _gone(place: Path) -> DataError:
    return DataError("is missing or damaged", place=str(place), remedy="Run again with --resume")
