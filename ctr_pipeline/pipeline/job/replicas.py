"""Training by replicas of the model, `runtime.strategy: allreduce`.

This process serves the rendezvous, has a launcher start the workers, starts those again that end,
and shows how far they are. What the first worker writes is what training in one process writes:
later stages, and a resumption in either way, find the same files.
"""

import json
import logging
import os
import queue
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.launching import (
    Launcher,
    LauncherBusyError,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.member_watch import (
    MemberWatch,
    Replacement,
    report_seconds,
)
from ctr_pipeline.distributed.coordination.messages import Member, MemberReport, MemberStats, Role
from ctr_pipeline.distributed.coordination.news import JobNews, NewsLine, Topic
from ctr_pipeline.distributed.coordination.rendezvous import CutOff, NodeRange, RendezvousTimes
from ctr_pipeline.distributed.coordination.timeouts import SteadyClock
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.launchers.restarts import KeptWorkers
from ctr_pipeline.distributed.master.speed import SpeedMeter
from ctr_pipeline.distributed.master.status import JobEvent
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import reachable_address
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable, Refusal
from ctr_pipeline.distributed.rpc.metrics_server import serve_metrics
from ctr_pipeline.errors import HandedOver, RunFolderError, TrainingError
from ctr_pipeline.machine import available_cores, measure_usage
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.following import LEFT_TO_NEXT
from ctr_pipeline.pipeline.job.launchers import launch
from ctr_pipeline.pipeline.job.replica_progress import (
    ReplicaCollector,
    ReplicaMembers,
    ReplicaProgress,
    collect_news,
    describe_world,
    discard_progress,
    load_progress,
    save_members,
    save_metrics_address,
    save_progress,
)
from ctr_pipeline.pipeline.logged_progress import LoggedProgress
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.run_places import find_rendezvous
from ctr_pipeline.pipeline.stages.resumption import claim_to_train, newest_step
from ctr_pipeline.progress import Progress, ProgressTask, SilentProgress
from ctr_pipeline.specs.course import WorkersConfig
from ctr_pipeline.specs.launchers import LAUNCHERS
from ctr_pipeline.training.checkpoint import require_to_go_on

if TYPE_CHECKING:
    from ctr_pipeline.distributed.replicas.served_rows import ServedRows
    from ctr_pipeline.pipeline.model.trained_model import TrainedModel
    from ctr_pipeline.training.replica_trainer import ReplicaTrainer

_LOGGER = logging.getLogger(__name__)
_GATHER_SECONDS = 0.1
_STRAGGLER_SECONDS = 600.0
"""A member that validates asks for no world; others wait for it while its lease lasts."""
_LOOK_SECONDS = 0.1
_BACK_TO_CHECKPOINT = "all go back to the last checkpoint"
_NEWS_SECONDS = 0.5
_MEMBERS_SECONDS = 1.0
_EVENTS_KEPT = 100
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
            require_to_go_on(run.checkpoint_storage)
        claim_to_train(context, partial(newest_step, run), resumes=context.resume)
        folder = run.replicas
        access = Access.create(folder, tls=runtime.needs_tls)
        discard_progress(run)
        host, scale = LAUNCHERS[runtime.mode].bind_host, _Scale(num_replicas(runtime))
        reports: _Reports = queue.SimpleQueue()
        with (
            launch(loaded.config, run, access) as launcher,
            RendezvousServer(
                f"{host}:0",
                Access.load(folder, "master"),
                RendezvousTimes(
                    gather_seconds=_GATHER_SECONDS,
                    lease_seconds=runtime.silence_seconds,
                    straggler_seconds=_STRAGGLER_SECONDS,
                ),
                # Workers may have outlived the process that served the one before.
                worlds=folder / "newest-world",
                on_scale=scale.ask,
                on_report=reports.put,
                on_cut_off=reports.put,
            ) as rendezvous,
            serve_metrics(ReplicaCollector(lambda: load_progress(run)), host) as metrics,
        ):
            address = reachable_address(rendezvous.address)
            durable.write_text(run.rendezvous, address)
            save_metrics_address(run, reachable_address(metrics))
            shown = _ShownProgress(
                progress,
                launcher.publish,
                epochs=loaded.config.train.epochs,
                num_rows=num_rows,
                resumes=context.resume,
            )
            _Host(
                run,
                launcher,
                rendezvous=address,
                scale=scale,
                num_servers=runtime.num_row_servers,
                reports=reports,
                watch=MemberWatch(
                    silence_seconds=runtime.silence_seconds,
                    startup_timeout_seconds=runtime.startup_timeout_seconds,
                ),
                clock=SteadyClock(time.monotonic(), runtime.silence_seconds / 3),
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


_Reports = queue.SimpleQueue[MemberReport | CutOff]


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


class _Scale:
    """How many workers are kept running, which a command may change at any time.

    Args:
        nodes: Bounds of the number, by the config; at first it is the larger one.
    """

    def __init__(self, nodes: NodeRange) -> None:
        self._nodes = nodes
        self.number = nodes.most

    def ask(self, number: int) -> None:
        """Changes the number; raises `Refusal` if the config does not allow it."""
        if not self._nodes.least <= number <= self._nodes.most:
            raise Refusal(
                "range",
                f"runtime.workers allows {self._nodes.least} to {self._nodes.most}; for {number}, "
                "change it in the config and resume the run",
            )
        self.number = number


class _Host:
    """Keeps the members of a training running, and follows them to its end.

    Args:
        rendezvous: Where it is served.
        scale: How many workers are kept running.
        num_servers: As many servers of embedding rows are.
        reports: What members say of themselves, and who is cut off from others.
        watch: What is known of them.
        clock: Its seconds are those of all waits here.
    """

    def __init__(
        self,
        run: RunFolder,
        launcher: Launcher,
        *,
        rendezvous: str,
        scale: "_Scale",
        num_servers: int,
        reports: _Reports,
        watch: MemberWatch,
        clock: SteadyClock,
        progress: Progress,
        shown: "_ShownProgress",
    ) -> None:
        self._run = run
        self._launcher = launcher
        self._num_servers = num_servers
        self._reports = reports
        self._watch = watch
        self._clock = clock
        self._members_due = 0.0
        self._rendezvous = rendezvous
        self._scale, self._num_workers = scale, scale.number
        self._workers = KeptWorkers(launcher, self._num_workers)
        self._servers = KeptWorkers(launcher, num_servers, role="ps")
        self._access = Access.load(run.replicas, "worker")
        self._shown = shown
        self._progress = progress
        self._has_finished = False

    def follow(self) -> None:
        """Returns when training has finished.

        Raises:
            HandedOver: A signal came, and another process goes on with the members.
            Interrupted: A signal came; the first worker has written a checkpoint.
        """
        with interruption.deferred(), self._shown:
            while not self._has_finished and not interruption.requested():
                self._look()
                time.sleep(_LOOK_SECONDS)
            if not self._has_finished:
                if self._launcher.is_followed():
                    self._progress.log(LEFT_TO_NEXT)
                    raise HandedOver(signal.SIGTERM)
                self._progress.log("Stopping after a checkpoint")
                self._workers.stop(grace_seconds=_GRACE_SECONDS)
            self._await_ends()
            self._shown.show(self._run)

    def _look(self) -> None:
        """Notices ends and members that hang, and starts again what is to be started again."""
        self._clock.advance(time.monotonic())
        now = self._clock.seconds
        self._take_reports(now)
        for process in self._workers.take_ended(now):
            if process.reason == "completed":
                self._has_finished = True
                continue
            self._forget_member(process.incarnation)
            self._tell_end(process, self._workers, "the others go on")
            self._require_running(self._workers, f"worker-{process.index}")
        if not self._has_finished:
            for process in self._servers.take_ended(now):
                self._tell_end(
                    process,
                    self._servers,
                    f"it is started again, and {_BACK_TO_CHECKPOINT}",
                )
                self._require_running(self._servers, f"ps-{process.index}")
            for chosen in self._watch.see(self._launcher.observe(), now):
                self._tell_replaced(chosen)
            for process in self._watch.take_stops(now):
                self._end(process)
            self._servers.start_missing(now)
            if self._scale.number != self._num_workers:
                self._num_workers = self._scale.number
                self._shown.scale(self._num_workers)
                self._workers.scale(self._num_workers, now, grace_seconds=_GRACE_SECONDS)
            self._workers.start_missing(now)
        self._shown.show(self._run)
        if now >= self._members_due or self._shown.has_new_events:
            self._members_due = now + _MEMBERS_SECONDS
            wanted: dict[Role, int] = {"ps": self._num_servers, "worker": self._num_workers}
            self._shown.save(self._run, self._watch.statuses(wanted, now))

    def _tell_end(self, process: ProcessState, members: KeptWorkers, done: str) -> None:
        why = self._watch.end(process, members.restart_at(process.index))
        if why:
            self._shown.tell("member", why, done)

    def _take_reports(self, now: float) -> None:
        """Takes in what members say, and who of them is cut off from others."""
        while not self._reports.empty():
            report = self._reports.get()
            if isinstance(report, MemberReport):
                self._watch.hear(report, now)
            elif chosen := self._watch.cut_off(report):
                self._tell_replaced(chosen)

    def _end(self, process: ProcessState) -> None:
        try:
            self._launcher.stop(process.role, process.index, process.incarnation, grace_seconds=0.0)
        except LauncherBusyError as error:
            _LOGGER.warning("%s-%d cannot be ended yet: %s", process.role, process.index, error)

    def _tell_replaced(self, member: Replacement) -> None:
        done = f"{member.name} is started again, and "
        done += "the others go on" if member.role == "worker" else _BACK_TO_CHECKPOINT
        self._shown.tell("member", member.why, "; ".join(filter(None, (done, member.remedy))))

    def _require_running(self, members: KeptWorkers, name: str) -> None:
        """Ends the training if a member that has ended is not started again."""
        if members.failure:
            _LOGGER.error("%s", members.failure)
            raise TrainingError(
                members.failure.rpartition("\n")[2],
                place=str(self._run.logs / f"{name}.log"),
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

    def _await_ends(self) -> None:
        seconds = _END_SECONDS if self._has_finished else _GRACE_SECONDS + _END_SECONDS
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self._workers.are_running():
                return
            time.sleep(_LOOK_SECONDS)


class _ShownProgress:
    """Shows what the first worker tells of its progress; a context manager.

    Args:
        publish: Shows it where the system of the launcher shows jobs.
        epochs: To train at most.
        num_rows: Rows of an epoch.
        resumes: Training goes on from a checkpoint.
    """

    def __init__(
        self,
        progress: Progress,
        publish: Callable[[JobNews], None],
        *,
        epochs: int,
        num_rows: int,
        resumes: bool,
    ) -> None:
        self._progress = progress
        self._publish = publish
        self._lines: list[NewsLine] = []
        self._events: deque[JobEvent] = deque(maxlen=_EVENTS_KEPT)
        self.has_new_events = False
        self._next_news = 0.0
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
        self._show_progress(told)
        if self._lines or time.monotonic() > self._next_news:
            self._next_news = time.monotonic() + _NEWS_SECONDS
            lines, self._lines = tuple(self._lines), []
            self._publish(
                collect_news(told, epochs=self._epochs, num_rows=self._num_rows, lines=lines)
            )

    def scale(self, num_workers: int) -> None:
        """Shows that another number of workers is kept running."""
        several = "s" if num_workers > 1 else ""
        self.tell("scaling", f"{num_workers} worker{several} from now on")

    def tell(self, topic: Topic, what: str, done: str = "") -> None:
        """Shows what has happened.

        Args:
            done: What is done about it.
        """
        event = JobEvent(time.time(), what, done, None, topic)
        self._progress.log(event.sentence)
        self._lines.append(NewsLine(event.time, topic, event.sentence))
        self._events.append(event)
        self.has_new_events = True

    def save(self, run: RunFolder, members: tuple[MemberStatus, ...]) -> None:
        """Keeps members and events for whoever asks how the run does."""
        self.has_new_events = False
        save_members(run, ReplicaMembers(members, tuple(self._events)))

    def _show_progress(self, told: ReplicaProgress) -> None:
        if self._resumes:
            # What an earlier start has shown.
            self._num_epochs, self._resumes = len(told.history), False
            self._num_worlds = len(told.worlds) - 1
        for world in told.worlds[self._num_worlds :]:
            self.tell("scaling", describe_world(world))
        self._num_worlds = max(self._num_worlds, len(told.worlds))
        for record in told.history[self._num_epochs :]:
            self.tell(
                "job",
                f"Epoch {record.epoch + 1}: train logloss {record.train_logloss:.4f}, "
                f"validation logloss {record.valid_logloss:.4f}, AUC {record.valid_auc:.4f}",
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


def run_replica(loaded: LoadedConfig, index: int, incarnation: str | None, *, host: str) -> int:
    """Runs one worker of a training until that has finished; returns the exit code.

    Args:
        host: Address of this machine to serve the other workers on.
        incarnation: Name of this start, drawn by the launcher; None: a person started it.

    Raises:
        CtrPipelineError: The model or the data is wrong, or nobody serves a rendezvous.
    """
    run, runtime = RunFolder(loaded.config.run_folder), loaded.config.runtime
    find_rendezvous(run)
    access = Access.load(run.replicas, "worker")

    from ctr_pipeline.distributed.replicas.reporting import MemberReporter
    from ctr_pipeline.distributed.replicas.world import ReplicaWorld
    from ctr_pipeline.pipeline.job.row_servers import served_rows
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
        parameters = initial_parameters(config, run, plan, counts, compiled)
        nodes = num_replicas(runtime)
        served: ServedRows | None = None
        if runtime.num_row_servers:
            served = served_rows(loaded, plan, access, is_stopping=interruption.requested)
            stack.enter_context(closing(served))
        world = ReplicaWorld(
            partial(find_rendezvous, run),
            access,
            host=host,
            nodes=nodes,
            num_dense=compiled.num_parameters,
            width=parameters.rows.width,
            rows=served,
            is_stopping=interruption.requested,
        )
        stack.enter_context(closing(world))
        incarnation = incarnation or secrets.token_hex(8)
        file = _members_folder(run) / incarnation
        file.parent.mkdir(exist_ok=True)
        durable.write_text(
            file, json.dumps(asdict(ReplicaMember(index, world.address, os.getpid())))
        )

        trainer = ReplicaTrainer(
            config=config.train,
            compiled=compiled,
            embeddings=served or parameters.rows,
            dense=parameters.dense,
            train=train,
            valid=valid,
            files=TrainerFiles(run.checkpoint_storage, run.history, run.events),
            progress=LoggedProgress(SilentProgress()),
            replicas=world,
            fixed_batches=nodes.most if config.train.global_batch == "fixed" else None,
            on_progress=partial(save_progress, run),
        )
        trainer.state = replace(
            trainer.state,
            rows_fingerprint=fingerprint,
            plan_fingerprint=plan.fingerprint(),
        )
        stack.enter_context(
            MemberReporter(
                partial(find_rendezvous, run),
                access,
                member=Member("worker", index, incarnation),
                address=world.address,
                stats=_WorkerFigures(trainer, share.threads or available_cores()),
                every_seconds=report_seconds(runtime.silence_seconds),
                unreachable=lambda: (
                    () if served is None else served.unreachable(runtime.silence_seconds)
                ),
            )
        )
        trainer.fit()
    return 0


class _WorkerFigures:
    """The figures of a worker, read when it reports.

    Args:
        cores: How many its threads may keep busy.
    """

    def __init__(self, trainer: "ReplicaTrainer", cores: int) -> None:
        self._trainer = trainer
        self._cores = cores
        self._speed = SpeedMeter()

    def __call__(self) -> MemberStats:
        self._speed.note(time.monotonic(), self._trainer.rows_trained_here)
        return MemberStats(
            **asdict(measure_usage()),
            cores=self._cores,
            samples_per_second=self._speed.per_second,
        )


def scale_replicas(run: RunFolder, num_workers: int) -> None:
    """Has another number of workers kept running, until the run ends or is resumed.

    Raises:
        CtrPipelineError: Nothing trains there, or its config does not allow that number.
    """
    access = Access.load(run.replicas, "client")
    client = RendezvousClient(find_rendezvous(run), "", access)
    try:
        client.scale(num_workers)
    except PeerUnavailable as error:
        raise RunFolderError(
            "no training with runtime.strategy: allreduce runs here",
            place=str(run.path),
            remedy="'ctrpipe run CONFIG --resume' goes on from its last checkpoint",
        ) from error
    finally:
        client.close()


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
