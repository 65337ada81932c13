"""The whole pipeline, and each of its stages on its own: same config, same run folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ctr_pipeline import interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.launchers import series_of_drivers
from ctr_pipeline.pipeline.model.precision import check_precision
from ctr_pipeline.pipeline.resources import bound_libraries, refuse_huge_layers
from ctr_pipeline.pipeline.results import RunResult
from ctr_pipeline.pipeline.sessions import (
    SessionLog,
    load_sessions,
    total_seconds,
)
from ctr_pipeline.pipeline.stages.analyze import Analysis, run_analysis, run_statistics
from ctr_pipeline.pipeline.stages.encode import (
    Encoding,
    encoded_fingerprint,
    run_encoding,
)
from ctr_pipeline.pipeline.stages.resumption import same_rows_as_before
from ctr_pipeline.pipeline.stages.sharing import ShareUnits
from ctr_pipeline.pipeline.stages.warm_start import WarmStart, find_warm_start
from ctr_pipeline.pipeline.trained_run import logged, opened_trained
from ctr_pipeline.preprocessing.encode import wake_kernels_meanwhile
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
            self.analysis.num_rows,
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
    with _opened_session(context, command="run", overwrite=overwrite):
        prepared = _prepare_to_train(context, by_members=context.config.runtime.has_members)
        if context.config.runtime.has_members:
            return prepared.result(context, _run_job(context, prepared, finishes=True))
        with _trained_model(context, prepared) as model:
            from ctr_pipeline.pipeline.stages.finish import run_finish

            metrics = run_finish(context, prepared.analysis, prepared.encoding.folders, model)
            return prepared.result(context, metrics)


def analyze(loaded: LoadedConfig, *, progress: Progress) -> Statistics:
    """Reads the data and computes `statistics.json` and the vocabularies."""
    check_splits(loaded)
    context = RunContext.create(loaded, progress)
    run = context.run
    with run.locked(), logged(run), interruption.handle_signals():
        bound_libraries(loaded.config.runtime)
        warm_start = find_warm_start(loaded, run, keep=False, progress=context.progress)
        return run_statistics(context, warm_start=warm_start)


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
        prepared = _prepare_to_train(context, by_members=context.config.runtime.has_members)
        if context.config.runtime.has_members:
            return prepared.result(context, _run_job(context, prepared, finishes=False))
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


def export_model(loaded: LoadedConfig, *, progress: Progress) -> RunResult:
    """Evaluates, exports and reports on a trained run; the embedding rows stay on disk."""
    context = RunContext.create(loaded, progress)
    run = context.run
    with opened_trained(context):
        from ctr_pipeline.pipeline.model.loading import open_trained
        from ctr_pipeline.pipeline.stages.finish import run_finish

        with ExitStack() as stack:
            model = open_trained(loaded, run, context.progress, on_disk=stack)
            context.times.earlier = total_seconds(load_sessions(run.sessions))
            prepared = prepare_as_trained(context, model.plan, model.state)
            metrics = run_finish(context, prepared.analysis, prepared.encoding.folders, model)
            return prepared.result(context, metrics)


@contextmanager
def _opened_session(context: RunContext, *, command: str, overwrite: bool) -> Iterator[None]:
    """Locks and claims the run folder, opens its log and its sessions, and handles signals."""
    loaded, run, times = context.loaded, context.run, context.times
    times.reach("command and config")
    _check_profile(loaded, profile=context.profile)
    check_splits(loaded)
    refuse_huge_layers(loaded)
    series = series_of_drivers(loaded.config.runtime)
    with (
        run.locked(series=series, on_wait=context.progress.log),
        logged(run),
        interruption.handle_signals(),
    ):
        run.claim(loaded, resume=context.resume, overwrite=overwrite)
        with SessionLog(
            run.sessions,
            times,
            command=command,
            resumes=context.resume,
            trouble=run.trouble,
            changes=context.changes,
        ):
            check_precision(loaded, context.progress)
            yield


def _start_tensorflow(context: RunContext) -> None:
    """Imports TensorFlow, which the stages from here on need and no earlier one does."""
    context.times.reach("rows")
    context.progress.log("Starting TensorFlow")


def _run_job(context: RunContext, prepared: PreparedRows, *, finishes: bool) -> dict[str, Any]:
    """Has members train, and one of them finish the run; returns what `metrics.json` holds."""
    _start_tensorflow(context)
    from ctr_pipeline.pipeline.job.finishing import finish_by_worker
    from ctr_pipeline.pipeline.job.training import require_trained, trained_in_processes

    encoding, warm_start = prepared.encoding, prepared.analysis.warm_start
    with trained_in_processes(context, encoding, warm_start=warm_start) as (view, opened):
        if finishes:
            return finish_by_worker(
                context, prepared.analysis, tuple(encoding.folders), view, opened
            )
        require_trained(context)
        return {}


@contextmanager
def _trained_model(context: RunContext, prepared: PreparedRows) -> "Iterator[TrainedModel]":
    """Trains without members, as the config asks for; the model may be used only inside."""
    encoding, warm_start = prepared.encoding, prepared.analysis.warm_start
    _start_tensorflow(context)
    if context.config.runtime.has_replicas:
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
        by_members: A launcher starts workers, which do all of it where the rows are many.
    """
    loaded, run, resume = context.loaded, context.run, context.resume
    accept = same_rows_as_before(loaded.config, run) if resume else None
    warm_start = find_warm_start(loaded, run, keep=resume, progress=context.progress)
    prepare = partial(prepare_rows, context, accept=accept, warm_start=warm_start)
    if not by_members:
        return prepare()
    from ctr_pipeline.pipeline.job.preparing import PhaseWorkers

    with PhaseWorkers(context, run.preparing) as workers:
        return prepare(share_units=workers.share)


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
        share_units: Has workers do all of it; None: this process does.
    """
    bound_libraries(context.config.runtime)
    plan: PreprocessingPlan | None = None
    if share_units is None:
        wake_kernels_meanwhile()
        analysis = run_analysis(context, accept=accept, warm_start=warm_start)
    else:
        from ctr_pipeline.pipeline.job.analyzing import analyze_by_workers

        analysis, plan = analyze_by_workers(context, accept, warm_start, share_units)
    return PreparedRows(analysis, run_encoding(context, analysis, share_units, plan=plan))


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
    if loaded.config.runtime.has_replicas:
        raise ConfigError(
            [
                loaded.problem_at(
                    "runtime.strategy",
                    "--prepare-only leaves it to people to start the members of a job, and workers "
                    "of allreduce find each other through the 'ctrpipe run' that starts them; "
                    "leave --prepare-only out, or set strategy: parameter_servers",
                )
            ]
        )
    if not loaded.config.runtime.has_members:
        raise ConfigError(
            [
                loaded.problem_at(
                    "runtime.mode",
                    "--prepare-only leaves it to people to start the members of a job, and 'local' "
                    f"has none; set runtime.mode: {MODES_WITH_MEMBERS}",
                )
            ]
        )
