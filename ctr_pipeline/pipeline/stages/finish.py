"""Evaluate → importance → export → parity proof → report: the last stages of a run, in order."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.export.proving_process import ProvingProcess
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.environment import peak_memory_bytes
from ctr_pipeline.pipeline.model.trained_model import TrainedModel, training_figures
from ctr_pipeline.pipeline.sessions import load_sessions
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
    metrics: dict[str, Any] = {name: result.to_metrics() for name, result in results.items()}
    row_counts = model.count_rows()
    # It starts before the export, as it loads TensorFlow meanwhile.
    with (
        ProvingProcess() as process,
        written_export(context, model, analysis, metrics=metrics) as written,
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
    metrics |= {
        "findings": [asdict(finding) for finding in findings],
        "training": {
            **training_figures(model),
            "embedding_rows": row_counts.num_rows,
            "embedding_bytes": row_counts.num_bytes,
            "embedding_spilled_bytes": row_counts.num_spilled_bytes,
            "dense_parameters": model.compiled.num_parameters,
            "changes": [
                change.model_dump(mode="json") for one in sessions for change in one.changes
            ],
            **_origin(analysis),
        },
        "importance": [row.model_dump() for row in importance],
        **held_out_unknown(model.plan, folders[split]),
        "drift": {name: rows.to_metrics() for name, rows in analysis.statistics.drift.items()},
        "planted": planted_figures(context.config),
        "bad_rows": analysis.ingested.bad_rows.model_dump(mode="json"),
        "num_rows": analysis.num_rows,
        "timings_seconds": times.of_all_sessions(),
        "num_sessions": len(sessions),
        "start_up_seconds": dict(times.start_up) if FIRST_STEP in times.start_up else None,
        "peak_memory_bytes": max(peak_memory, peak_memory_bytes()),
    }
    if model.job is not None:
        metrics["runtime"] = {"mode": context.config.runtime.mode} | model.job.to_metrics()
    durable.write_text(run.metrics, json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    return metrics


def _origin(analysis: Analysis) -> dict[str, Any]:
    """The earlier run that this one began from, for `metrics.json`; empty if there is none."""
    if analysis.warm_start is None:
        return {}
    return {"init_from": analysis.warm_start.record.model_dump(mode="json")}
