"""The whole pipeline, and each of its stages on its own: same config, same run folder."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.errors import (
    ConfigError,
)
from ctr_pipeline.pipeline.environment import peak_memory_bytes
from ctr_pipeline.pipeline.logged_progress import LoggedProgress
from ctr_pipeline.pipeline.model.precision import check_precision
from ctr_pipeline.pipeline.resources import bound_libraries, refuse_huge_layers
from ctr_pipeline.pipeline.results import RunResult
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.sessions import (
    Session,
    SessionLog,
    load_sessions,
    total_seconds,
)
from ctr_pipeline.pipeline.stages.analyze import Analysis, run_analysis
from ctr_pipeline.pipeline.stages.encode import Encoding, encoded_fingerprint, run_encoding
from ctr_pipeline.pipeline.stages.planted import planted_figures
from ctr_pipeline.pipeline.stages.resumption import same_rows_as_before
from ctr_pipeline.pipeline.stages.warm_start import Beginning, find_beginning
from ctr_pipeline.pipeline.timing import FIRST_STEP, StageTimes
from ctr_pipeline.pipeline.trained_run import (
    logged,
    opened_trained,
)
from ctr_pipeline.preprocessing.encode import wake_kernels
from ctr_pipeline.progress import Progress
from ctr_pipeline.statistics import Statistics

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.model.trained_model import TrainedModel
    from ctr_pipeline.preprocessing.fitted import PreprocessingPlan
    from ctr_pipeline.training.trainer import TrainingState

_LOGGER = logging.getLogger("ctr_pipeline")


@dataclass(frozen=True)
class _Prepared:
    """A run up to training."""

    run: RunFolder
    analysis: Analysis
    encoding: Encoding
    times: StageTimes
    sessions: tuple[Session, ...]

    def result(self, metrics: dict[str, Any]) -> RunResult:
        run, num_rows = self.run, _num_rows(self.analysis)
        return RunResult(run.path, metrics, self.times.of_all_sessions(), run.paths(), num_rows)


@dataclass(frozen=True)
class _Trained(_Prepared):
    """A run up to and with training; the model may be used only while the run is open."""

    model: "TrainedModel"


def run_pipeline(
    loaded: LoadedConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    seconds_before: float = 0.0,
    progress: Progress,
) -> RunResult:
    """Check → analyze → train → evaluate → export → report.

    Args:
        loaded: The config.
        resume: Go on from what an earlier, interrupted run of this folder reached.
        overwrite: Replace results of another config in this folder.
        profile: See where the time of training goes; say it, and show it in the report.
        seconds_before: Spent since the command was given, for the time of the first step.
        progress: Who is told.

    Raises:
        CtrPipelineError: Something the user can mend; what was done before is kept.
        Interrupted: By Ctrl-C or SIGTERM; `resume` goes on.
    """
    progress = LoggedProgress(progress)
    with _training(
        loaded,
        command="run",
        resume=resume,
        overwrite=overwrite,
        profile=profile,
        seconds_before=seconds_before,
        progress=progress,
    ) as trained:
        return _finish(loaded, trained, progress)


def analyze(loaded: LoadedConfig, *, progress: Progress) -> Statistics:
    """Reads the data and computes `statistics.json` and the vocabularies."""
    check_splits(loaded)
    progress = LoggedProgress(progress)
    run = RunFolder(loaded.config.run_folder)
    with run.locked(), logged(run), interruption.handle_signals():
        bound_libraries(loaded.config.runtime)
        beginning = find_beginning(loaded, run, keep=False, progress=progress)
        return run_analysis(loaded, run, progress, StageTimes(), beginning=beginning).statistics


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
    with _training(
        loaded,
        command="train",
        resume=resume,
        overwrite=overwrite,
        profile=profile,
        seconds_before=seconds_before,
        progress=LoggedProgress(progress),
    ) as trained:
        return trained.result({})


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
    progress = LoggedProgress(progress)
    with _prepared(
        loaded,
        command="prepare",
        resume=resume,
        overwrite=overwrite,
        profile=profile,
        seconds_before=0.0,
        progress=progress,
    ) as prepared:
        progress.log("Starting TensorFlow")
        from ctr_pipeline.pipeline.job.training import prepare_for_members

        prepare_for_members(
            loaded,
            prepared.run,
            prepared.encoding,
            resume=resume,
            beginning=prepared.analysis.beginning,
            insecure=insecure,
            progress=progress,
            times=prepared.times,
        )
        servers = loaded.config.runtime.parameter_servers
        progress.log(
            "The job is prepared. On hosts that see the run folder: 'ctrpipe master --config "
            f"{prepared.run.config} --bind HOST:PORT', 'ctrpipe ps' with --index 0 … {servers - 1},"
            " and any number of 'ctrpipe worker'. Once 'ctrpipe status' says 'finished', 'ctrpipe "
            "run CONFIG --resume' evaluates, exports and reports"
        )
        return prepared.result({})


def held_out(encoding: Encoding) -> list[str]:
    """Splits that no step of the training saw."""
    return [name for name in ("valid", "test") if name in encoding.folders]


def not_trained_on(loaded: LoadedConfig, encoding: Encoding) -> dict[str, Path]:
    """Folders of the splits that tell how good the model is."""
    splits = ["test"] if loaded.config.train.refit else held_out(encoding)
    return {name: encoding.folders[name] for name in splits}


def export_model(loaded: LoadedConfig, *, progress: Progress) -> RunResult:
    """Evaluates, exports and reports on what was trained before, however large the model is."""
    progress = LoggedProgress(progress)
    with opened_trained(loaded) as run:
        from ctr_pipeline.pipeline.model.loading import streamed_trained

        with streamed_trained(loaded, run, progress) as model:
            times, sessions = StageTimes(), load_sessions(run.sessions)
            times.earlier = total_seconds(sessions)
            analysis, encoding = prepare_as_trained(
                loaded, run, model.plan, model.state, progress=progress, times=times
            )
            trained = _Trained(run, analysis, encoding, times, sessions, model)
            return _finish(loaded, trained, progress)


@contextmanager
def _prepared(
    loaded: LoadedConfig,
    *,
    command: str,
    resume: bool,
    overwrite: bool,
    profile: bool,
    seconds_before: float,
    progress: Progress,
) -> Iterator[_Prepared]:
    """Check → analyze → encode, in a locked folder whose log is open, with signals handled."""
    times = StageTimes(seconds_before)
    times.reach("command and config")
    _check_profile(loaded, profile=profile)
    check_splits(loaded)
    refuse_huge_layers(loaded)
    run = RunFolder(loaded.config.run_folder)
    with run.locked(), logged(run), interruption.handle_signals():
        run.claim(loaded, resume=resume, overwrite=overwrite)
        with SessionLog(run.sessions, times, command=command, resumes=resume) as sessions:
            check_precision(loaded, progress)
            accept = same_rows_as_before(loaded.config, run) if resume else None
            beginning = find_beginning(loaded, run, keep=resume, progress=progress)
            analysis, encoding = prepare_rows(
                loaded, run, progress, times, accept=accept, beginning=beginning
            )
            yield _Prepared(run, analysis, encoding, times, sessions)


@contextmanager
def _training(
    loaded: LoadedConfig,
    *,
    command: str,
    resume: bool,
    overwrite: bool,
    profile: bool,
    seconds_before: float,
    progress: Progress,
) -> Iterator[_Trained]:
    """As `_prepared`, and trained."""
    with (
        _prepared(
            loaded,
            command=command,
            resume=resume,
            overwrite=overwrite,
            profile=profile,
            seconds_before=seconds_before,
            progress=progress,
        ) as prepared,
        _trained_model(
            loaded,
            prepared.run,
            prepared.encoding,
            resume=resume,
            profile=profile,
            beginning=prepared.analysis.beginning,
            progress=progress,
            times=prepared.times,
        ) as model,
    ):
        yield _Trained(**vars(prepared), model=model)


@contextmanager
def _trained_model(
    loaded: LoadedConfig,
    run: RunFolder,
    encoding: Encoding,
    *,
    resume: bool,
    profile: bool,
    beginning: Beginning | None,
    progress: Progress,
    times: StageTimes,
) -> "Iterator[TrainedModel]":
    """Trains in the mode that the config asks for; the model may be used only inside."""
    times.reach("rows")
    progress.log("Starting TensorFlow")
    # It is imported by the stages from here on and by no earlier one.
    if loaded.config.runtime.mode == "processes":
        from ctr_pipeline.pipeline.job.training import trained_in_processes

        with trained_in_processes(
            loaded,
            run,
            encoding,
            resume=resume,
            beginning=beginning,
            progress=progress,
            times=times,
        ) as model:
            yield model
        return
    from ctr_pipeline.pipeline.stages.train import run_training

    times.reach("TensorFlow")
    yield run_training(
        loaded,
        run,
        encoding,
        resume=resume,
        profile=profile,
        beginning=beginning,
        progress=progress,
        times=times,
    )


def prepare_rows(
    loaded: LoadedConfig,
    run: RunFolder,
    progress: Progress,
    times: StageTimes,
    *,
    accept: Callable[[str], None] | None = None,
    beginning: Beginning | None = None,
) -> tuple[Analysis, Encoding]:
    """Analyzes and encodes, within the threads that the config allows."""
    bound_libraries(loaded.config.runtime)
    # Numba takes half a second to wake up, which it can do while the files are read.
    threading.Thread(target=wake_kernels, name="wake-kernels", daemon=True).start()
    analysis = run_analysis(loaded, run, progress, times, accept=accept, beginning=beginning)
    return analysis, run_encoding(loaded, run, analysis, progress, times)


def prepare_as_trained(
    loaded: LoadedConfig,
    run: RunFolder,
    plan: "PreprocessingPlan",
    state: "TrainingState",
    *,
    progress: Progress,
    times: StageTimes,
) -> tuple[Analysis, Encoding]:
    """As `prepare_rows`, for rows that the model was trained on and for no others."""
    from ctr_pipeline.pipeline.model.trained_model import require_same_rows

    analysis, encoding = prepare_rows(
        loaded,
        run,
        progress,
        times,
        # Before anything is replaced that the model needs.
        accept=lambda rows: require_same_rows(
            state, encoded_fingerprint(plan, rows, loaded.config), run
        ),
        beginning=find_beginning(loaded, run, keep=True, progress=progress),
    )
    require_same_rows(state, encoding.fingerprint, run)
    return analysis, encoding


def _finish(loaded: LoadedConfig, trained: _Trained, progress: Progress) -> RunResult:
    """The stages after training."""
    from ctr_pipeline.pipeline.model.ensemble import num_rows_made
    from ctr_pipeline.pipeline.model.trained_model import training_figures
    from ctr_pipeline.pipeline.stages.evaluate import (
        run_evaluation,
        run_importance,
        split_scorer,
    )
    from ctr_pipeline.pipeline.stages.export import run_export
    from ctr_pipeline.pipeline.stages.report import run_report

    run, analysis, encoding = trained.run, trained.analysis, trained.encoding
    model, times = trained.model, trained.times
    results = run_evaluation(
        loaded,
        analysis.ingested,
        not_trained_on(loaded, encoding),
        split_scorer(model, progress),
        predictions=run.predictions,
        times=times,
    )
    importance = run_importance(
        loaded,
        encoding,
        model,
        split="test" if "test" in results else "valid",
        progress=progress,
        times=times,
    )
    metrics: dict[str, Any] = {split: result.to_metrics() for split, result in results.items()}
    # Before the export, which releases them.
    num_rows = num_rows_made(model.rows) if model.rows is not None else 0
    num_row_bytes = model.rows.memory_bytes() if model.rows is not None else 0
    num_spilled_bytes = model.rows.spilled_bytes() if model.rows is not None else 0
    export_folder, proof = run_export(
        loaded,
        run,
        model,
        ingested=analysis.ingested,
        features=analysis.features,
        statistics=analysis.statistics,
        metrics=metrics,
        progress=progress,
        times=times,
    )
    progress.log("Writing the report")
    findings = run_report(
        loaded,
        run,
        analysis,
        model,
        results=results,
        importance=importance,
        export_folder=export_folder,
        proof=proof,
        num_embedding_rows=num_rows,
        embedding_bytes=num_row_bytes,
        spilled_bytes=num_spilled_bytes,
        times=times,
        sessions=trained.sessions,
    )
    metrics |= {
        "findings": [asdict(finding) for finding in findings],
        "training": {
            **training_figures(model),
            "embedding_rows": num_rows,
            "embedding_bytes": num_row_bytes,
            "embedding_spilled_bytes": num_spilled_bytes,
            "dense_parameters": model.compiled.num_parameters,
            **_origin(analysis),
        },
        "importance": [row.model_dump() for row in importance],
        "drift": {name: rows.to_metrics() for name, rows in analysis.statistics.drift.items()},
        "planted": planted_figures(loaded.config),
        "bad_rows": analysis.ingested.bad_rows.model_dump(mode="json"),
        "num_rows": _num_rows(analysis),
        "timings_seconds": times.of_all_sessions(),
        "num_sessions": len(trained.sessions),
        "start_up_seconds": dict(times.start_up) if FIRST_STEP in times.start_up else None,
        "peak_memory_bytes": peak_memory_bytes(),
    }
    if model.runtime is not None:
        metrics["runtime"] = model.runtime
    durable.write_text(run.metrics, json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    return trained.result(metrics)


def _origin(analysis: Analysis) -> dict[str, Any]:
    """What the run began from, if from an earlier one."""
    if analysis.beginning is None:
        return {}
    return {"init_from": analysis.beginning.record.model_dump(mode="json")}


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
    if loaded.config.runtime.mode != "processes":
        raise ConfigError(
            [
                loaded.problem_at(
                    "runtime.mode",
                    "--prepare-only leaves it to people to start the members of a job, and only "
                    "'processes' has members",
                )
            ]
        )
