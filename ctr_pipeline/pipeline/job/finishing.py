"""The last stages of a job, by one of its workers: the side that has it done, and the worker's.

The worker opens the best cut on the disk, so that its memory does not depend on the number of
embedding rows. An attempt that ends early leaves artefacts that are whole or absent, and the next
one makes all of them again from the same cut.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ctr_pipeline.analysis import ColumnDecision
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.errors import DataError, ExportError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.environment import peak_memory_bytes
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.job.preparing import OpenLauncher, PhaseWorkers
from ctr_pipeline.pipeline.job.stage_task import (
    StageTask,
    fingerprint_of_facts,
    load_facts,
    save_facts,
)
from ctr_pipeline.pipeline.model.score_files import ScoreFiles
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import Analysis
from ctr_pipeline.pipeline.stages.warm_start import find_warm_start
from ctr_pipeline.statistics import load_statistics

_STAGE = "finish"
_STAGES = ("evaluation", "importance", "export", "parity", "report")


@dataclass(frozen=True)
class _Facts:
    """What the worker needs beyond what lies in the run folder.

    Attributes:
        job: The job as its master told of it last.
        splits: Splits that are encoded.
        left_out: Columns without a feature, with the reason.
        notes: As of the statistics.
        seconds: Seconds of each stage, all sessions.
        start_up: As of `StageTimes`.
        peak_memory_bytes: Peak of the process that started the job.
    """

    job: JobView
    splits: tuple[str, ...]
    left_out: tuple[ColumnDecision, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]
    start_up: dict[str, float]
    peak_memory_bytes: int


def finish_by_worker(
    context: RunContext,
    analysis: Analysis,
    splits: Sequence[str],
    job: JobView,
    opened: OpenLauncher,
) -> dict[str, Any]:
    """Has a worker do the last stages of a run, and follows it.

    Args:
        context: Context of the run.
        analysis: The rows, and what is known of them.
        splits: Splits that are encoded.
        job: The job that trained the model.
        opened: The job's launcher.

    Returns:
        What `metrics.json` holds.

    Raises:
        TrainingError: The stages, or the worker, failed too often.
        Interrupted: By a signal; `--resume` finishes the run.
    """
    run, times = context.run, context.times
    before = times.of_all_sessions()
    facts = _Facts(
        job=job,
        splits=tuple(splits),
        left_out=analysis.left_out,
        notes=analysis.statistics.notes,
        seconds=before,
        start_up=dict(times.start_up),
        peak_memory_bytes=peak_memory_bytes(),
    )
    save_facts(run.finishing, facts)
    task = open_finisher(context.loaded)
    with times.stage(_STAGE), PhaseWorkers(context, task.folder, opened) as workers:
        workers.share(task, [task.unit])
    metrics: dict[str, Any] = json.loads(run.metrics.read_text(encoding="utf-8"))
    times.take_over(_spent_since(before, metrics["timings_seconds"]), within=_STAGE)
    return metrics


def open_finisher(loaded: LoadedConfig) -> StageTask:
    """What a worker finishes a run with.

    Raises:
        DataError: The process that started the job has left nothing of it.
    """
    run = RunFolder.of(loaded.config)
    facts = load_facts(_Facts, run.finishing)
    return StageTask(
        "finish",
        loaded,
        run.finishing,
        fingerprint_of_facts(facts),
        num_stages=len(_STAGES),
        run_stages=lambda context, _: _finish(context, facts),
        # They are written last.
        is_made=lambda _: run.metrics.is_file(),
        # Of the same model the same export is made again.
        fails_always=lambda error: isinstance(error, ExportError),
    )


def _finish(context: RunContext, facts: _Facts) -> None:
    # It loads TensorFlow, which the process that has it done never needs for this.
    from ctr_pipeline.pipeline.model.loading import open_trained
    from ctr_pipeline.pipeline.stages.finish import run_finish

    run = context.run
    context.times.earlier, context.times.start_up = facts.seconds, facts.start_up
    analysis = _load_analysis(context, facts)
    with ExitStack() as stack:
        model = open_trained(context.loaded, run, context.progress, on_disk=stack)
        context.progress.log(f"Training ended: {model.state.finished}")
        run_finish(
            context,
            analysis,
            {split: run.encoded / split for split in facts.splits},
            replace(model, scores=ScoreFiles(run.scores), job=facts.job),
            peak_memory=facts.peak_memory_bytes,
        )


def _load_analysis(context: RunContext, facts: _Facts) -> Analysis:
    run = context.run
    ingested = load_ingested(run.ingested)
    if ingested is None:
        raise DataError("holds no rows", place=str(run.ingested), remedy="Start the run again")
    statistics = load_statistics(run.statistics).model_copy(update={"notes": facts.notes})
    warm_start = find_warm_start(context.loaded, run, keep=True, progress=context.progress)
    features = load_features(run.features)
    return Analysis(ingested, features, facts.left_out, statistics, warm_start)


def _spent_since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    spent = {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
    return {stage: seconds for stage, seconds in spent.items() if seconds > 0}
