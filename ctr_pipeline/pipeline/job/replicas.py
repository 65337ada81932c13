"""Training by replicas of the model, `runtime.strategy: allreduce`.

This process serves the rendezvous, has a launcher start the workers, starts those again that end,
and shows how far they are. What the first worker writes is what training in one process writes:
later stages, and a resumption in either way, find the same files.
"""

import json
import logging
import os
import secrets
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import RuntimeConfig, WorkersConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.coordination.launching import Launcher, ProcessState
from ctr_pipeline.distributed.coordination.rendezvous import NodeRange, RendezvousTimes
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.launchers.restarts import KeptRunning
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import RunFolderError, TrainingError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.launchers import launch, needs_tls
from ctr_pipeline.pipeline.job.replica_progress import (
    discard_progress,
    load_progress,
    save_progress,
)
from ctr_pipeline.pipeline.logged_progress import LoggedProgress
from ctr_pipeline.pipeline.run_folder import RunFolder, require_mode
from ctr_pipeline.progress import Progress, ProgressTask, SilentProgress

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.model.trained_model import TrainedModel

_LOGGER = logging.getLogger(__name__)
_RENDEZVOUS = "rendezvous"
_TIMES = RendezvousTimes(gather_seconds=0.1, lease_seconds=5.0, straggler_seconds=600.0)
"""A member that validates asks for no world; others wait for it while its lease lasts."""
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 60.0
_END_SECONDS = 30.0


def trained_by_replicas(context: RunContext, *, num_rows: int) -> "TrainedModel":
    """Trains, from the start or from the newest checkpoint; the caller releases the model's rows.

    Args:
        num_rows: Training rows.

    Raises:
        TrainingError: A worker ended with an error that starting again does not mend.
        Interrupted: A signal ended it; a checkpoint is written before.
    """
    loaded, run, progress = context.loaded, context.run, context.progress
    runtime = loaded.config.runtime
    with context.times.stage("training"):
        if context.resume:
            require_mode(run, has_members=False)
        else:
            run.discard_results()
        run.keep_config(loaded)
        folder = run.replicas
        access = Access.create(folder, tls=needs_tls(runtime))
        discard_progress(run)
        with (
            launch(loaded.config, run, access) as launcher,
            RendezvousServer("127.0.0.1:0", Access.load(folder, "master"), _TIMES) as rendezvous,
        ):
            durable.write_text(folder / _RENDEZVOUS, rendezvous.address)
            shown = _ShownProgress(
                progress,
                epochs=loaded.config.train.epochs,
                num_rows=num_rows,
                resumes=context.resume,
            )
            _Host(
                run,
                launcher,
                rendezvous=rendezvous.address,
                num_workers=num_replicas(runtime).most,
                progress=progress,
                shown=shown,
            ).follow()
    from ctr_pipeline.pipeline.model.loading import open_trained

    model = open_trained(loaded, run, progress)
    progress.log(f"Training ended: {model.state.finished}")
    return model


def num_replicas(runtime: RuntimeConfig) -> NodeRange:
    """How many replicas may train together."""
    workers = runtime.workers
    if not isinstance(workers, WorkersConfig):
        raise TypeError("the config was checked to name the number of workers")
    return NodeRange(workers.min, workers.max)


@dataclass
class _Kept:
    """A worker that is kept running.

    Attributes:
        seen: Start of it whose end was seen, by incarnation.
        started_at: When it was started last.
    """

    keeper: KeptRunning
    started_at: float
    seen: str = ""


@dataclass(frozen=True)
class ReplicaMember:
    """A worker as it announced itself; it may be gone since.

    Attributes:
        address: `host:port`, by which the others know it.
        pid: Its process.
    """

    index: int
    address: str
    pid: int


class _Host:
    """Keeps the workers of a training running, and follows them to its end."""

    def __init__(
        self,
        run: RunFolder,
        launcher: Launcher,
        *,
        rendezvous: str,
        num_workers: int,
        progress: Progress,
        shown: "_ShownProgress",
    ) -> None:
        self._run = run
        self._launcher = launcher
        self._rendezvous = rendezvous
        self._workers = {
            index: _Kept(KeptRunning(f"worker-{index}"), time.monotonic())
            for index in range(num_workers)
        }
        self._access = Access.load(run.replicas, "worker")
        self._shown = shown
        self._progress = progress
        self._has_finished = False

    def follow(self) -> None:
        """Returns when training has finished."""
        with interruption.deferred(), self._shown:
            for index in self._workers:
                self._launcher.start("worker", index)
            while not self._has_finished and not interruption.requested():
                self._look()
                time.sleep(_LOOK_SECONDS)
            if not self._has_finished:
                self._progress.log("Stopping after a checkpoint")
                self._stop_all()
            self._await_ends()
            self._shown.show(self._run)

    def _look(self) -> None:
        """Notices ends, and starts again what is to be started again."""
        now = time.monotonic()
        for process in self._launcher.observe():
            kept = self._workers[process.index]
            if not process.running and kept.seen != process.incarnation:
                kept.seen = process.incarnation
                self._note_end(process, kept, now)
            if kept.keeper.restart_at is not None and kept.keeper.restart_at <= now:
                kept.keeper.restart_at = None
                kept.started_at = now
                self._launcher.start("worker", process.index)
        self._shown.show(self._run)

    def _note_end(self, process: ProcessState, kept: _Kept, now: float) -> None:
        if process.reason == "completed":
            self._has_finished = True
            return
        self._forget_member(process.incarnation)
        exit_code = 0 if process.exit_code is None else process.exit_code
        self._progress.log(f"worker-{process.index} has ended; the others go on")
        kept.keeper.end(
            process.reason or "error",
            exit_code,
            lived_seconds=now - kept.started_at,
            now=now,
            tail=process.traceback,
        )
        if kept.keeper.failure:
            _LOGGER.error("%s", kept.keeper.failure)
            raise TrainingError(
                kept.keeper.failure.strip().rpartition("\n")[2],
                place=str(self._run.logs / f"worker-{process.index}.log"),
                remedy="--resume goes on from the last checkpoint",
            )

    def _forget_member(self, incarnation: str) -> None:
        """Tells the rendezvous that a member is lost, which it would notice later by its lease."""
        member = _member_of(self._run, incarnation)
        if member is None:
            # It ended before it had an address.
            return
        client = RendezvousClient(self._rendezvous, member.address, self._access)
        with closing(client), suppress(PeerUnavailable, CallRefused):
            client.leave()

    def _stop_all(self) -> None:
        for process in self._launcher.observe():
            self._launcher.stop(
                "worker", process.index, process.incarnation, grace_seconds=_GRACE_SECONDS
            )

    def _await_ends(self) -> None:
        seconds = _END_SECONDS if self._has_finished else _GRACE_SECONDS + _END_SECONDS
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not any(process.running for process in self._launcher.observe()):
                return
            time.sleep(_LOOK_SECONDS)


class _ShownProgress:
    """Shows what the first worker tells of its progress; a context manager.

    Args:
        epochs: To train at most.
        num_rows: Rows of an epoch.
        resumes: Training goes on from a checkpoint.
    """

    def __init__(self, progress: Progress, *, epochs: int, num_rows: int, resumes: bool) -> None:
        self._progress = progress
        self._epochs = epochs
        self._num_rows = num_rows
        self._tasks = ExitStack()
        self._task: ProgressTask | None = None
        self._epoch: int | None = None
        self._rows = self._num_epochs = self._num_worlds = 0
        self._resumes = resumes

    def __enter__(self) -> "_ShownProgress":
        return self

    def __exit__(self, *_error: object) -> None:
        self._tasks.close()

    def show(self, run: RunFolder) -> None:
        """Shows what has changed."""
        told = load_progress(run)
        if told is None:
            return
        if self._resumes:
            # What an earlier start has shown.
            self._num_epochs, self._resumes = len(told.history), False
            self._num_worlds = len(told.worlds) - 1
        for world in told.worlds[self._num_worlds :]:
            several = "s" if world.size > 1 else ""
            again = " (one step is repeated)" if world.steps_repeated else ""
            self._progress.log(
                f"World {world.version}: {world.size} worker{several} from step "
                f"{world.step:,}, after {world.seconds:.1f} s{again}"
            )
        self._num_worlds = max(self._num_worlds, len(told.worlds))
        for record in told.history[self._num_epochs :]:
            self._progress.log(
                f"Epoch {record.epoch + 1}: train logloss {record.train_logloss:.4f}, "
                f"validation logloss {record.valid_logloss:.4f}, AUC {record.valid_auc:.4f}"
            )
        self._num_epochs = max(self._num_epochs, len(told.history))
        if told.epoch != self._epoch and told.epoch < self._epochs:
            self._tasks.close()
            self._epoch, self._rows = told.epoch, 0
            title = f"Training, epoch {told.epoch + 1} of {self._epochs}"
            self._task = self._tasks.enter_context(self._progress.task(title, total=self._num_rows))
        if self._task is not None and told.epoch == self._epoch:
            self._task.advance(max(0, told.rows - self._rows))
            self._rows = max(self._rows, told.rows)


def run_replica(loaded: LoadedConfig, index: int, incarnation: str | None) -> int:
    """Runs one worker of a training until that has finished; returns the exit code.

    Args:
        incarnation: Name of this start, drawn by the launcher; None: a person started it.

    Raises:
        CtrPipelineError: The model or the data is wrong, or nobody serves a rendezvous.
    """
    run, runtime = RunFolder(loaded.config.run_folder), loaded.config.runtime
    try:
        rendezvous = (run.replicas / _RENDEZVOUS).read_text("utf-8")
    except OSError as error:
        raise RunFolderError(
            "nobody has started a training with runtime.strategy: allreduce here",
            place=str(run.path),
            remedy="Start it with 'ctrpipe run', which starts its workers too",
        ) from error
    access = Access.load(run.replicas, "worker")

    from ctr_pipeline.distributed.replicas.world import ReplicaWorld
    from ctr_pipeline.pipeline.job.worker_model import build_worker_model
    from ctr_pipeline.pipeline.model.trained_model import initial_parameters
    from ctr_pipeline.pipeline.resources import threads_of_worker
    from ctr_pipeline.pipeline.stages.encode import load_counts
    from ctr_pipeline.preprocessing.plan import load_plan
    from ctr_pipeline.training.replica_trainer import ReplicaTrainer
    from ctr_pipeline.training.trainer import TrainerFiles

    compiled = build_worker_model(loaded).compiled
    share = runtime.model_copy(update={"threads": threads_of_worker(runtime)})
    config = loaded.config.model_copy(update={"runtime": share})
    plan = load_plan(run.preprocessing)
    with ExitStack() as stack:
        stack.enter_context(interruption.handle_signals())
        train, valid = (
            stack.enter_context(EncodedReader(run.encoded / split)) for split in ("train", "valid")
        )
        fingerprint = train.meta.fingerprint
        counts = load_counts(run, plan, fingerprint)
        if counts is None:
            raise RunFolderError("holds no counts of these rows", place=str(run.encoded))
        parameters = initial_parameters(config, run, plan, counts.per_table(), compiled)
        world = ReplicaWorld(
            rendezvous,
            access,
            nodes=num_replicas(runtime),
            num_dense=compiled.num_parameters,
            width=parameters.rows.width,
            is_stopping=interruption.requested,
        )
        stack.enter_context(closing(world))
        file = _members_folder(run) / (incarnation or secrets.token_hex(8))
        file.parent.mkdir(exist_ok=True)
        durable.write_text(
            file, json.dumps(asdict(ReplicaMember(index, world.address, os.getpid())))
        )

        trainer = ReplicaTrainer(
            config=config.train,
            compiled=compiled,
            embeddings=parameters.rows,
            dense=parameters.dense,
            train=train,
            valid=valid,
            files=TrainerFiles(run.checkpoint_storage, run.history, run.events),
            progress=LoggedProgress(SilentProgress()),
            replicas=world,
            on_progress=partial(save_progress, run),
        )
        trainer.state = replace(
            trainer.state,
            rows_fingerprint=fingerprint,
            plan_fingerprint=plan.fingerprint(),
        )
        trainer.fit()
    return 0


def load_members(run: RunFolder) -> tuple[ReplicaMember, ...]:
    """All that were ever started since training began, the newest last."""
    files = sorted(_members_folder(run).glob("*"), key=lambda file: file.stat().st_mtime_ns)
    found = (_member_of(run, file.name) for file in files)
    return tuple(member for member in found if member is not None)


def _member_of(run: RunFolder, incarnation: str) -> ReplicaMember | None:
    try:
        return ReplicaMember(**json.loads((_members_folder(run) / incarnation).read_text("utf-8")))
    except OSError:
        return None


def _members_folder(run: RunFolder) -> Path:
    return run.replicas / "members"
