"""The whole pipeline, and each of its stages on its own: same config, same run folder."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.environment import peak_memory_bytes
from ctr_pipeline.pipeline.job.launchers import has_members, has_replicas
from ctr_pipeline.pipeline.model.precision import check_precision
from ctr_pipeline.pipeline.resources import bound_libraries, refuse_huge_layers
from ctr_pipeline.pipeline.results import RunResult
from ctr_pipeline.pipeline.sessions import (
    RunSession,
    SessionLog,
    load_sessions,
    total_seconds,
)
from ctr_pipeline.pipeline.stages.analyze import Analysis, run_analysis
from ctr_pipeline.pipeline.stages.encode import (
    Encoding,
    ShareUnits,
    encoded_fingerprint,
    run_encoding,
)
from ctr_pipeline.pipeline.stages.planted import planted_figures
from ctr_pipeline.pipeline.stages.resumption import same_rows_as_before
from ctr_pipeline.pipeline.stages.warm_start import WarmStart, find_warm_start
from ctr_pipeline.pipeline.timing import FIRST_STEP
from ctr_pipeline.pipeline.trained_run import logged, opened_trained
from ctr_pipeline.preprocessing.encode import wake_kernels
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.launchers import MODES_WITH_MEMBERS
from ctr_pipeline.statistics import Statistics

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.model.trained_model import TrainedModel
    from ctr_pipeline.preprocessing.plan import PreprocessingPlan
    from ctr_pipeline.training.trainer import TrainingState


@dataclass(frozen=True)
class PreparedRows:
    """What the stages before training find.

    Attributes:
        analysis: What is known of the rows.
        encoding: The rows as a model takes them.
    """

    analysis: Analysis
    encoding: Encoding

    def result(self, context: RunContext, metrics: dict[str, Any]) -> RunResult:
        """What a command returns of the run."""
        return RunResult(
            context.run.path,
            metrics,
            context.times.of_all_sessions(),
            context.run.paths(),
            _num_rows(self.analysis),
        )


def run_pipeline(
    loaded: LoadedConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    seconds_before: float = 0.0,
    progress: Progress,
) -> RunResult:
    """Check → analyze → encode → train → evaluate → export → report.

    Args:
        loaded: The config.
        resume: Go on from what an earlier, interrupted run of this folder reached.
        overwrite: Replace results of another config in this folder.
        profile: Measure where the time of training goes; log it and show it in the report.
        seconds_before: Spent since the command was given, for the time of the first step.
        progress: Shows what goes on.

    Raises:
        CtrPipelineError: Something the user can mend; what was done before is kept.
        Interrupted: By Ctrl-C or SIGTERM; `resume` goes on.
    """
    context = RunContext.create(loaded, progress, seconds_before, resume=resume, profile=profile)
    with _opened_session(context, command="run", overwrite=overwrite) as sessions:
        prepared = _prepare_to_train(context, by_members=has_members(context.config.runtime))
        with _trained_model(context, prepared) as model:
            return _finish(context, prepared, model, sessions)


def analyze(loaded: LoadedConfig, *, progress: Progress) -> Statistics:
    """Reads the data and computes `statistics.json` and the vocabularies."""
    check_splits(loaded)
    context = RunContext.create(loaded, progress)
    run = context.run
    with run.locked(), logged(run), interruption.handle_signals():
        bound_libraries(loaded.config.runtime)
        warm_start = find_warm_start(loaded, run, keep=False, progress=context.progress)
        return run_analysis(context, warm_start=warm_start).statistics


def train(
    loaded: LoadedConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    seconds_before: float = 0.0,
    progress: Progress,
) -> RunResult:
    """Everything up to and with training; the arguments are those of `run_pipeline`."""
    context = RunContext.create(loaded, progress, seconds_before, resume=resume, profile=profile)
    with _opened_session(context, command="train", overwrite=overwrite):
        prepared = _prepare_to_train(context, by_members=has_members(context.config.runtime))
        with _trained_model(context, prepared):
            return prepared.result(context, {})


def prepare_job(
    loaded: LoadedConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    insecure: bool = False,
    progress: Progress,
) -> RunResult:
    """Everything up to and without the members of a job, which people start then.

    They may do so on any hosts that see the run folder. The arguments are those of `run_pipeline`;
    a job in several processes cannot be profiled. With `insecure`, members talk across hosts
    without TLS.
    """
    _check_has_members(loaded)
    context = RunContext.create(loaded, progress, resume=resume, profile=profile)
    with _opened_session(context, command="prepare", overwrite=overwrite):
        prepared = _prepare_to_train(context, by_members=False)
        context.progress.log("Starting TensorFlow")
        from ctr_pipeline.pipeline.job.training import prepare_for_members

        prepare_for_members(
            context, prepared.encoding, warm_start=prepared.analysis.warm_start, insecure=insecure
        )
        servers = loaded.config.runtime.parameter_servers
        context.progress.log(
            "The job is prepared. On hosts that see the run folder: 'ctrpipe master --config "
            f"{context.run.config} --bind HOST:PORT', 'ctrpipe ps' with --index 0 … {servers - 1},"
            " and any number of 'ctrpipe worker'. Once 'ctrpipe status' says 'finished', 'ctrpipe "
            "run CONFIG --resume' evaluates, exports and reports"
        )
        return prepared.result(context, {})


def held_out(encoding: Encoding) -> list[str]:
    """Splits that no training step reads."""
    return [name for name in ("valid", "test") if name in encoding.folders]


def not_trained_on(loaded: LoadedConfig, encoding: Encoding) -> dict[str, Path]:
    """Folders of the splits that the model is evaluated on."""
    splits = ["test"] if loaded.config.train.refit else held_out(encoding)
    return {name: encoding.folders[name] for name in splits}


def export_model(loaded: LoadedConfig, *, progress: Progress) -> RunResult:
    """Evaluates, exports and reports on a trained run; the embedding rows stay on disk."""
    context = RunContext.create(loaded, progress)
    run = context.run
    with opened_trained(context):
        from ctr_pipeline.pipeline.model.loading import open_trained

        with ExitStack() as stack:
            model = open_trained(loaded, run, context.progress, on_disk=stack)
            sessions = load_sessions(run.sessions)
            context.times.earlier = total_seconds(sessions)
            prepared = prepare_as_trained(context, model.plan, model.state)
            return _finish(context, prepared, model, sessions)


@contextmanager
def _opened_session(
    context: RunContext, *, command: str, overwrite: bool
) -> Iterator[tuple[RunSession, ...]]:
    """Locks and claims the run folder, opens its log and its sessions, and handles signals."""
    loaded, run, times = context.loaded, context.run, context.times
    times.reach("command and config")
    _check_profile(loaded, profile=context.profile)
    check_splits(loaded)
    refuse_huge_layers(loaded)
    with run.locked(), logged(run), interruption.handle_signals():
        run.claim(loaded, resume=context.resume, overwrite=overwrite)
        with SessionLog(run.sessions, times, command=command, resumes=context.resume) as sessions:
            check_precision(loaded, context.progress)
            yield sessions


@contextmanager
def _trained_model(context: RunContext, prepared: PreparedRows) -> "Iterator[TrainedModel]":
    """Trains in the mode that the config asks for; the model may be used only inside."""
    encoding, warm_start = prepared.encoding, prepared.analysis.warm_start
    context.times.reach("rows")
    context.progress.log("Starting TensorFlow")
    # It is imported by the stages from here on and by no earlier one.
    if has_members(context.config.runtime):
        from ctr_pipeline.pipeline.job.training import trained_in_processes

        with trained_in_processes(context, encoding, warm_start=warm_start) as model:
            yield model
        return
    if has_replicas(context.config.runtime):
        from ctr_pipeline.pipeline.job.replicas import trained_by_replicas

        num_rows = prepared.analysis.ingested.splits["train"].num_rows
        yield trained_by_replicas(context, num_rows=num_rows)
        return
    from ctr_pipeline.pipeline.stages.train import run_training

    context.times.reach("TensorFlow")
    yield run_training(context, encoding, warm_start=warm_start)


def _prepare_to_train(context: RunContext, *, by_members: bool) -> PreparedRows:
    """Prepares rows, from a warm start if any; refuses those that a resumed model did not see.

    Args:
        context: Context of the run.
        by_members: A launcher starts workers, which encode the rows where these are many.
    """
    loaded, run, resume = context.loaded, context.run, context.resume
    accept = same_rows_as_before(loaded.config, run) if resume else None
    warm_start = find_warm_start(loaded, run, keep=resume, progress=context.progress)
    share_units: ShareUnits | None = None
    if by_members:
        from ctr_pipeline.pipeline.job.encoding import encode_by_workers

        share_units = partial(encode_by_workers, context)
    return prepare_rows(context, accept=accept, warm_start=warm_start, share_units=share_units)


def prepare_rows(
    context: RunContext,
    *,
    accept: Callable[[str], None] | None = None,
    warm_start: WarmStart | None = None,
    share_units: ShareUnits | None = None,
) -> PreparedRows:
    """Analyzes and encodes, within the threads that the config allows.

    Args:
        context: Context of the run.
        accept: Called with the fingerprint of the rows; raises if they must not replace those that
            a model was trained on.
        warm_start: What the run takes over from an earlier one.
        share_units: Has rows encoded by workers; None: this process encodes them.
    """
    bound_libraries(context.config.runtime)
    # Numba takes half a second to wake up, which it can do while the files are read.
    threading.Thread(target=wake_kernels, name="wake-kernels", daemon=True).start()
    analysis = run_analysis(context, accept=accept, warm_start=warm_start)
    return PreparedRows(analysis, run_encoding(context, analysis, share_units))


def prepare_as_trained(
    context: RunContext, plan: "PreprocessingPlan", state: "TrainingState"
) -> PreparedRows:
    """As `prepare_rows`, for rows that the model was trained on and for no others."""
    from ctr_pipeline.pipeline.model.trained_model import require_same_rows

    loaded, run = context.loaded, context.run
    prepared = prepare_rows(
        context,
        # Before anything is replaced that the model needs.
        accept=lambda rows: require_same_rows(
            state, encoded_fingerprint(plan, rows, loaded.config), run
        ),
        warm_start=find_warm_start(loaded, run, keep=True, progress=context.progress),
    )
    require_same_rows(state, prepared.encoding.fingerprint, run)
    return prepared


def _finish(
    context: RunContext,
    prepared: PreparedRows,
    model: "TrainedModel",
    sessions: tuple[RunSession, ...],
) -> RunResult:
    """Evaluate → importance → export → report; releases the rows of the model on the way."""
    from ctr_pipeline.export.parity import ProvingProcess
    from ctr_pipeline.pipeline.model.trained_model import training_figures
    from ctr_pipeline.pipeline.stages.evaluate import (
        run_evaluation,
        run_importance,
        split_scorer,
    )
    from ctr_pipeline.pipeline.stages.export import prove_export, written_export
    from ctr_pipeline.pipeline.stages.report import run_report

    run, progress, times = context.run, context.progress, context.times
    analysis, encoding = prepared.analysis, prepared.encoding
    results = run_evaluation(
        context,
        analysis.ingested,
        not_trained_on(context.loaded, encoding),
        split_scorer(model, progress),
        predictions=run.predictions,
    )
    split = "test" if "test" in results else "valid"
    importance = run_importance(context, encoding, model, split=split)
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
            **_origin(analysis),
        },
        "importance": [row.model_dump() for row in importance],
        "drift": {name: rows.to_metrics() for name, rows in analysis.statistics.drift.items()},
        "planted": planted_figures(context.config),
        "bad_rows": analysis.ingested.bad_rows.model_dump(mode="json"),
        "num_rows": _num_rows(analysis),
        "timings_seconds": times.of_all_sessions(),
        "num_sessions": len(sessions),
        "start_up_seconds": dict(times.start_up) if FIRST_STEP in times.start_up else None,
        "peak_memory_bytes": peak_memory_bytes(),
    }
    if model.runtime is not None:
        metrics["runtime"] = model.runtime
    durable.write_text(run.metrics, json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    return prepared.result(context, metrics)


def _origin(analysis: Analysis) -> dict[str, Any]:
    """The earlier run that this one began from, for `metrics.json`; empty if there is none."""
    if analysis.warm_start is None:
        return {}
    return {"init_from": analysis.warm_start.record.model_dump(mode="json")}


def _num_rows(analysis: Analysis) -> dict[str, int]:
    return {name: split.num_rows for name, split in analysis.ingested.splits.items()}


def check_splits(loaded: LoadedConfig) -> None:
    """Raises ConfigError if the config leaves no validation rows."""
    data = loaded.config.data
    if data.valid is None and data.split.valid == 0:
        raise ConfigError(
            [
                loaded.problem_at(
                    "data.split.valid", "training needs validation rows, and this leaves none"
                )
            ]
        )


def _check_profile(loaded: LoadedConfig, *, profile: bool) -> None:
    if profile and loaded.config.runtime.mode != "local":
        raise ConfigError(
            [
                loaded.problem_at(
                    "runtime.mode",
                    "--profile watches the threads of one process; use it with 'local'. The log "
                    "of each worker ends with where its time went: 'ctrpipe logs RUN worker-0'",
                )
            ]
        )


def _check_has_members(loaded: LoadedConfig) -> None:
    if not has_members(loaded.config.runtime):
        raise ConfigError(
            [
                loaded.problem_at(
                    "runtime.mode",
                    "--prepare-only leaves it to people to start the members of a job, and 'local' "
                    f"has none; set runtime.mode: {MODES_WITH_MEMBERS}",
                )
            ]
        )
