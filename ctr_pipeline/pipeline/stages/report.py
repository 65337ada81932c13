"""Writes `report.html` from the results of a run."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.encoded import load_meta
from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.evaluation.metrics import EvaluationResult
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.environment import describe_environment
from ctr_pipeline.pipeline.model.trained_model import RowCounts, TrainedModel
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.sessions import RunSession
from ctr_pipeline.pipeline.stages.analyze import Analysis
from ctr_pipeline.pipeline.stages.plan_view import describe_plan
from ctr_pipeline.pipeline.stages.report_facts import (
    save_facts,
    session_notes,
)
from ctr_pipeline.pipeline.stages.vocabulary_extension import num_new_values
from ctr_pipeline.pipeline.timing import start_up_sentence
from ctr_pipeline.reporting import data as page
from ctr_pipeline.reporting.findings import Finding, decide_findings
from ctr_pipeline.reporting.render import render_report
from ctr_pipeline.specs.parity import ParityProof
from ctr_pipeline.training.profile import load_profile


def run_report(
    context: RunContext,
    analysis: Analysis,
    model: TrainedModel,
    *,
    results: Mapping[str, EvaluationResult],
    importance: tuple[ImportanceRow, ...],
    export_folder: Path,
    proof: ParityProof,
    row_counts: RowCounts,
    sessions: Sequence[RunSession],
) -> tuple[Finding, ...]:
    """Writes the report, and the data that `ctrpipe report` renders it from.

    Returns:
        The findings, which the report begins with.
    """
    loaded, run, times = context.loaded, context.run, context.times
    with times.stage("report"):
        config = loaded.config
        split = "test" if "test" in results else "valid"
        shown = page.ReportData(
            name=config.name,
            model=config.model.name,
            created=datetime.now(UTC),
            run_folder=str(run.path),
            config_yaml=run.config.read_text(encoding="utf-8"),
            test=results.get("test"),
            valid=results.get("valid"),
            splits=analysis.ingested.splits,
            history=tuple(model.state.history),
            learning_rate=config.train.optimizer.learning_rate,
            best_step=model.state.best_step,
            statistics=analysis.statistics,
            plan=describe_plan(
                config,
                analysis.features,
                model.plan,
                analysis.statistics,
                num_rows=None if model.state.refit is None else model.state.refit.num_rows,
            ),
            left_out={one.column: one.reason for one in analysis.left_out},
            bad_rows=analysis.ingested.bad_rows,
            timings=times.of_all_sessions(),
            start_up=start_up_sentence(times.start_up),
            training_profile=load_profile(run.training_profile),
            environment=describe_environment(),
            importance=importance,
            importance_num_rows=(
                min(config.report.importance_rows, results[split].num_rows) if importance else None
            ),
            parity=proof,
            num_dense_parameters=model.compiled.num_parameters,
            num_embedding_rows=row_counts.num_rows,
            embedding_bytes=row_counts.num_bytes,
            spilled_bytes=row_counts.num_spilled_bytes,
            export_path=str(export_folder),
            job=model.job,
            worlds=tuple(model.state.worlds),
            ensemble=tuple(member.summary() for member in model.members),
            num_refit_rows=None if model.state.refit is None else model.state.refit.num_rows,
            notes=(*_notes(loaded, run, analysis, model), *session_notes(sessions)),
        )
        save_facts(run, shown)
        durable.write_text(run.report, render_report(shown))
    return decide_findings(shown)


def _notes(
    loaded: LoadedConfig, run: RunFolder, analysis: Analysis, model: TrainedModel
) -> tuple[str, ...]:
    """Sentences about the training that no table of the report shows."""
    data, notes = loaded.config.data, list[str]()
    refit = model.state.refit
    if refit is not None:
        times = (
            "for as many epochs as were best for it"
            if model.members
            else f"for the {refit.epochs} epochs that were best, in {refit.seconds:.0f} s"
        )
        which = "Each model" if model.members else "The model"
        notes.append(
            f"{which} was trained once more, from the start, on training and validation rows "
            f"together ({refit.num_rows:,}), {times}. Test metrics and the export are of that "
            "training; the curves are of the one before it."
        )
    if analysis.warm_start is not None:
        num_new = sum(num_new_values(analysis.warm_start.plan, model.plan).values())
        notes.append(
            f"Training began from {analysis.warm_start.record.describe()}. Transforms are as that "
            f"run fitted them; {num_new:,} values are new in its vocabularies. Statistics are of "
            "the rows of this run."
        )
    if data.weight is not None:
        notes.append(
            f"Rows count by their weight, column '{data.weight}', in the loss, in metrics and in "
            "click rates of splits; statistics of columns count rows alike."
        )
    negatives = data.sample.negatives
    meta = load_meta(run.encoded / "train")
    if negatives == 1.0 or meta is None:
        return tuple(notes)
    notes.append(
        f"{meta.num_rows:,} of the training rows were trained on: those with a click and "
        f"{100 * negatives:g} % of the others. Predictions and their metrics are corrected for "
        "that; the training logloss is of these rows, so it is not comparable with validation."
    )
    return tuple(notes)
