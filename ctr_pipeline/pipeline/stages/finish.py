"""Evaluate → importance → export → parity proof → report: the last stages of a run, in order."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr_pipeline.export.proving_process import ProvingProcess
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.environment import peak_memory_bytes
from ctr_pipeline.pipeline.model.ensemble import TrainedMember
from ctr_pipeline.pipeline.model.trained_model import RowCounts, TrainedModel
from ctr_pipeline.pipeline.sessions import RunSession, load_sessions
from ctr_pipeline.pipeline.stages.analyze import Analysis
from ctr_pipeline.pipeline.stages.evaluate import (
    held_out_unknown,
    not_trained_on,
    run_evaluation,
    run_importance,
    split_scorer,
)
from ctr_pipeline.pipeline.stages.export import prove_export, written_export
from ctr_pipeline.pipeline.stages.planted import planted_figures
from ctr_pipeline.pipeline.stages.report import run_report
from ctr_pipeline.pipeline.stages.run_metrics import RunMetrics, TrainingMetrics
from ctr_pipeline.pipeline.timing import FIRST_STEP


def run_finish(
    context: RunContext,
    analysis: Analysis,
    folders: Mapping[str, Path],
    model: TrainedModel,
    *,
    peak_memory: int = 0,
) -> dict[str, Any]:
    """Makes everything that a trained model is followed by; `metrics.json` is written last.

    The rows of the model are released on the way. A run that is finished again replaces each
    artefact as a whole.

    Args:
        context: Context of the run.
        analysis: The rows, and what is known of them.
        folders: Encoded rows by split.
        model: The trained model.
        peak_memory: Bytes that another process of the run took, at most.

    Returns:
        What `metrics.json` holds.
    """
    run, progress, times = context.run, context.progress, context.times
    results = run_evaluation(
        context,
        analysis.ingested,
        not_trained_on(context.config, folders),
        split_scorer(model, progress),
        predictions=run.predictions,
    )
    # A stage has begun since training, so what that noted is among them.
    sessions = load_sessions(run.sessions)
    split = "test" if "test" in results else "valid"
    importance = run_importance(context, folders[split], model, split=split)
    row_counts = model.count_rows()
    # It starts before the export, as it loads TensorFlow meanwhile.
    with (
        ProvingProcess() as process,
        written_export(
            context,
            model,
            analysis,
            metrics={name: result.to_metrics() for name, result in results.items()},
        ) as written,
    ):
        # The process that proves holds the exported rows; these are needed no more.
        model.release_rows()
        export_folder, proof = prove_export(context, written, analysis, process)
    progress.log("Writing the report")
    findings = run_report(
        context,
        analysis,
        model,
        results=results,
        importance=importance,
        export_folder=export_folder,
        proof=proof,
        row_counts=row_counts,
        sessions=sessions,
    )
    metrics = RunMetrics(
        valid=results.get("valid"),
        test=results.get("test"),
        findings=findings,
        training=_training_metrics(analysis, model, row_counts, sessions),
        importance=importance,
        **held_out_unknown(model.plan, folders[split]),
        drift={name: rows.to_metrics() for name, rows in analysis.statistics.drift.items()},
        planted=planted_figures(context.config),
        bad_rows=analysis.ingested.bad_rows,
        num_rows=analysis.num_rows,
        timings_seconds=times.of_all_sessions(),
        num_sessions=len(sessions),
        start_up_seconds=dict(times.start_up) if FIRST_STEP in times.start_up else None,
        peak_memory_bytes=max(peak_memory, peak_memory_bytes()),
        runtime=None
        if model.job is None
        else {"mode": context.config.runtime.mode} | model.job.to_metrics(),
    )
    metrics.save(run)
    return metrics.to_json()


def _training_metrics(
    analysis: Analysis, model: TrainedModel, row_counts: RowCounts, sessions: Sequence[RunSession]
) -> TrainingMetrics:
    members = tuple(one.summary() for one in model.members)
    if members:
        course: dict[str, Any] = {
            "epochs": sum(one.epochs for one in members),
            "steps": sum(one.steps for one in members),
            "stopped_because": f"all {len(members)} models are trained",
        }
    else:
        alone = TrainedMember("", 0, model.state).summary()
        course = {
            "epochs": alone.epochs,
            "best_epoch": alone.best_epoch,
            "steps": alone.steps,
            "stopped_because": alone.stopped_because,
            "worlds": tuple(model.state.worlds),
            "refit": alone.refit,
        }
    return TrainingMetrics(
        **course,
        members=members,
        embedding_rows=row_counts.num_rows,
        embedding_bytes=row_counts.num_bytes,
        embedding_spilled_bytes=row_counts.num_spilled_bytes,
        dense_parameters=model.compiled.num_parameters,
        changes=tuple(change for one in sessions for change in one.changes),
        init_from=None if analysis.warm_start is None else analysis.warm_start.record,
    )
