"""Training by a master, parameter servers and workers, which a launcher starts.

This process prepares what members agree on, opens the launcher, and waits until the model is
trained, its best epoch is scored and all members have left. A worker that the launcher starts then
finishes the run with the best cut on the disk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ctr_pipeline.distributed.master.ledger.opening import locate_ledger
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access, end_launch
from ctr_pipeline.distributed.rpc.spec_file import save_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import HandedOver
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.following import follow_job
from ctr_pipeline.pipeline.job.launchers import WorkerPhase, launch
from ctr_pipeline.pipeline.job.preparing import OpenLauncher
from ctr_pipeline.pipeline.job.server_memory import warning_of_memory
from ctr_pipeline.pipeline.job.spec_file import continue_spec, prepare_spec, require_same_partitions
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.stages.encode import Encoding
from ctr_pipeline.pipeline.stages.resumption import claim_to_train, newest_step
from ctr_pipeline.pipeline.stages.warm_start import WarmStart
from ctr_pipeline.training.checkpoint import Checkpoints, newest_number

if TYPE_CHECKING:
    from ctr_pipeline.distributed.coordination.spec import JobSpec

_LEDGER_SECONDS = 60.0
"""Longest wait for the ledger's store before members are started; it may be starting, too."""


@contextmanager
def trained_in_processes(
    context: RunContext, encoding: Encoding, *, warm_start: WarmStart | None = None
) -> Iterator[tuple[JobView, OpenLauncher]]:
    """Trains, from the start or from where a run ended.

    Gives the job as its master told of it last, and its launcher, which starts workers until this
    is left.

    Args:
        context: If it resumes and there is a job, training goes on from the newest whole cut.

    Raises:
        CtrPipelineError: The job failed; what the failed member wrote stands in the log.
        Interrupted: A signal or 'ctrpipe stop' ended it; a cut is taken before.
    """
    run, progress = context.run, context.progress
    access, resume = _claim_job(context, tls=context.config.runtime.needs_tls)
    phase = WorkerPhase()
    with launch(context.config, run, access, phase=phase) as launcher:
        with context.times.stage("training"):
            _prepare(context, encoding, resume=resume, warm_start=warm_start)
            launcher.start("master", 0)
            try:
                view = follow_job(run, launcher, progress, resumable=True)
            except HandedOver:
                # For the members, the next driver goes on with this start of the job.
                raise
            except BaseException:
                end_launch(run.job)
                raise
            end_launch(run.job)
        yield view, OpenLauncher(launcher, phase)


def require_trained(context: RunContext) -> None:
    """Logs why training ended.

    Raises:
        CheckpointError: The model of the best epoch is damaged.
    """
    from ctr_pipeline.pipeline.model.loading import find_trained

    run = context.run
    _, state = find_trained(context.config, run, run, context.progress)
    context.progress.log(f"Training ended: {state.finished}")


def prepare_for_members(
    context: RunContext,
    encoding: Encoding,
    *,
    warm_start: WarmStart | None = None,
    insecure: bool = False,
) -> None:
    """Writes everything that members agree on, for people who start them.

    Members may then be on several hosts: they talk by TLS unless `insecure` or `runtime.tls: off`.

    Raises:
        CtrPipelineError: Something the user can mend.
    """
    tls = context.config.runtime.tls != "off" and not insecure
    _, resume = _claim_job(context, tls=tls, insecure=insecure)
    with context.times.stage("job"):
        _prepare(context, encoding, resume=resume, warm_start=warm_start)


def _claim_job(context: RunContext, *, tls: bool, insecure: bool = False) -> tuple[Access, bool]:
    """Readies the folder for a job; returns new secrets, and whether there is a job to resume."""
    loaded, run = context.loaded, context.run
    has_spec = (run.job / "spec.json").exists()
    resume = context.resume and (has_spec or newest_number(run.checkpoint_storage) > 0)
    if resume and has_spec:
        # Before the config in the folder is replaced.
        require_same_partitions(loaded.config, run)
    # A master would wait where nobody sees it.
    locate_ledger(loaded.config.runtime, run.job).await_ready(
        wait_seconds=_LEDGER_SECONDS, on_wait=context.progress.log
    )
    claim_to_train(context, partial(newest_step, run), resumes=resume)
    run.begin_training()
    access = Access.create(run.job, tls=tls, insecure=insecure)
    # Of a master that is gone.
    (run.job / "endpoint.json").unlink(missing_ok=True)
    return access, resume


def _prepare(
    context: RunContext, encoding: Encoding, *, resume: bool, warm_start: WarmStart | None
) -> None:
    """Compiles the model, whose number of dense parameters is in the spec, and writes the spec.

    The parameters of a warm start become the first cut of the job before the spec is written: a job
    with a spec can be resumed.
    """
    # The fork server of workers imports TensorFlow at the same time.
    from ctr_pipeline.pipeline.model.dense_model import compile_model

    loaded, run = context.loaded, context.run
    compiled = compile_model(
        loaded.config, run, encoding.plan, threads=num_threads(loaded.config.runtime), trains=False
    )
    spec = prepare_spec(
        loaded,
        run,
        encoding,
        num_dense=compiled.num_parameters,
        earlier_steps=0 if warm_start is None else warm_start.record.all_steps,
    )
    if resume:
        spec = continue_spec(spec, run)
    CutStorage(run.checkpoint_storage).begin(spec.job)
    if warm_start is not None and not resume:
        _write_warm_start(context, encoding, spec, warm_start)
    save_spec(run.job, spec)
    if warning := warning_of_memory(loaded.config, encoding):
        context.progress.log(f"warning: {warning}")


def _write_warm_start(
    context: RunContext, encoding: Encoding, spec: "JobSpec", warm_start: WarmStart
) -> None:
    from ctr_pipeline.pipeline.stages.warm_start_parameters import build_from_earlier
    from ctr_pipeline.training.trainer import TrainingState

    progress = context.progress
    parameters = build_from_earlier(
        context.config,
        encoding.plan,
        encoding.counts,
        warm_start,
        num_dense=spec.num_dense,
        folder=context.run.path,
        progress=progress,
    )
    state = TrainingState(
        rows_fingerprint=spec.rows_fingerprint,
        plan_fingerprint=spec.plan_fingerprint,
        earlier_steps=spec.earlier_steps,
    )
    Checkpoints(context.run.checkpoint_storage).save(
        state.to_json(),
        rows=parameters.rows.save,
        dense=parameters.dense.save,
        num_dense=spec.num_dense,
    )
    parameters.rows.release()
    progress.log(f"Training begins from {warm_start.record.describe()}")
