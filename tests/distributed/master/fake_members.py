"""Members of a job that talk to a real master over gRPC and train nothing but a count.

The "model" of a fake parameter server counts how often each batch was applied to each of its
partitions, so a test can ask of it, exactly: was every batch of every epoch applied once, and does
the model hold whatever the ledger counts?
"""

import json
import threading
import time
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from job_specs import job_spec

from ctr_pipeline.config.models import Config
from ctr_pipeline.config.resolved import resolved_yaml
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    BitmapScope,
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    HeldLease,
    LeasedTask,
    LeaseReply,
    LeaseRequest,
    LoggedFile,
    Member,
    MemberStats,
    RegisterReply,
    RegisterRequest,
    RestoreReply,
    RestoreRequest,
    ScaleRequest,
    ScoreSummary,
    SnapshotReply,
    SnapshotRequest,
    TaskBitmap,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.spec import (
    EncodedSplit,
    JobSpec,
)
from ctr_pipeline.distributed.master.program import Master
from ctr_pipeline.distributed.master.settings import plan_epoch
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.distributed.rpc.spec_file import save_spec
from ctr_pipeline.embeddings.log_chain import dense_name, rows_name
from ctr_pipeline.embeddings.log_folder import create_folder
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.specs.optimizer import OptimizerSpec

NUM_PARTITIONS = 4


def prepare_job(
    run_folder: Path,
    *,
    num_rows: int = 1030,
    batch_size: int = 4,
    epochs: int = 2,
    servers: int = 2,
    workers: int = 2,
    checkpoint_seconds: float = 0.2,
    runtime: dict | None = None,
    train: dict | None = None,
) -> JobSpec:
    """Everything that a master finds when it starts."""
    config = Config.model_validate(
        {
            "data": {"train": "rows.csv", "label": "click"},
            "output": str(run_folder),
            "train": {
                "epochs": epochs,
                "batch_size": batch_size,
                "early_stopping": {"patience": 100, "tolerance": 100.0},
            }
            | (train or {}),
            "runtime": {
                "mode": "processes",
                "parameter_servers": servers,
                "workers": {"min": 1, "max": workers},
                "heartbeat_seconds": 0.03,
                "silence_seconds": 1.5,
            }
            | (runtime or {}),
        }
    )
    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "config.resolved.yaml").write_text(resolved_yaml(config))
    spec = job_spec(
        seed=5,
        dense_optimizer=OptimizerSpec(name="sgd", learning_rate=0.1),
        num_partitions=NUM_PARTITIONS,
        num_parameter_servers=servers,
        splits=(
            EncodedSplit("train", "", num_rows),
            EncodedSplit("valid", "", 20_000),
            EncodedSplit("test", "", 100),
        ),
        batch_size=batch_size,
        epochs=epochs,
        checkpoint_seconds=checkpoint_seconds,
    )
    Access.create(run_folder / "job", tls=False)
    create_folder(run_folder / spec.checkpoints_folder, spec.job)
    save_spec(run_folder / "job", spec)
    return spec


def all_batches(spec: JobSpec, epochs: int) -> set[tuple[int, int, int]]:
    """(epoch, task, batch) of everything that is trained."""
    return {
        (epoch, task, batch)
        for epoch in range(epochs)
        for task in range(plan_epoch(spec, epoch).num_tasks)
        for batch in range(plan_epoch(spec, epoch).batches_of(task))
    }


class RolledBackError(Exception):
    """A parameter server is of another generation."""


class ServerGoneError(Exception):
    """A parameter server is not there."""


def _secret_of(incarnation: str) -> str:
    return f"secret of {incarnation}".ljust(32, ".")


class FakeServer:
    """A parameter server whose rows count how often each batch was applied."""

    def __init__(self, world: "World", index: int, incarnation: str) -> None:
        self._world = world
        self.member = Member("ps", index, incarnation, _secret_of(incarnation))
        self.generation = -1
        self.counts: dict[int, Counter] = {}
        # By partition: after a restore under another number of servers they may differ.
        self.marks: dict[int, dict[tuple[int, int], int]] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.changed: dict[int, set] = {}
        self.delta_after = 0
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.leaving = threading.Event()
        self.fail_snapshots = 0
        self.server = RpcServer(
            "PsService",
            [
                Method("Snapshot", SnapshotRequest, SnapshotReply, self.snapshot),
                Method("Restore", RestoreRequest, RestoreReply, self.restore),
            ],
            address="127.0.0.1:0",
            access=world.access,
            num_threads=4,
        )
        self.address = self.server.start()
        self.talk = threading.Thread(target=self._talk, daemon=True)
        self.talk.start()

    def push(self, generation: int, epoch: int, task: int, attempt: int, batch: int) -> bool:
        """Applies a batch once; whether it had been applied before."""
        with self.lock:
            if self.stopped.is_set():
                raise ServerGoneError
            if generation != self.generation:
                raise RolledBackError
            key = (epoch, task)
            if attempt < self.attempts.get(key, 0):
                raise RolledBackError
            self.attempts[key] = attempt
            repeated = False
            for partition, counts in self.counts.items():
                marks = self.marks[partition]
                if marks.get(key, 0) >> batch & 1:
                    repeated = True
                    continue
                marks[key] = marks.get(key, 0) | 1 << batch
                counts[(epoch, task, batch)] += 1
                self.changed[partition].add((epoch, task, batch))
            return repeated

    def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        def refused(why):
            return SnapshotReply(why, (), (), 0, 0.0)

        if self.fail_snapshots:
            self.fail_snapshots -= 1
            self.delta_after = 0
            return refused("the disk is full")
        with self.lock:
            if request.generation != self.generation:
                return refused("another generation")
            full = request.full or not request.parent or self.delta_after != request.parent
            rows = {
                partition: {
                    key: count
                    for key, count in counts.items()
                    if full or key in self.changed[partition]
                }
                for partition, counts in self.counts.items()
            }
            marks = tuple(
                TaskBitmap(epoch, task, mask, BitmapScope((partition,), ()))
                for partition, of_partition in self.marks.items()
                for (epoch, task), mask in of_partition.items()
            )
            self.changed = {partition: set() for partition in self.counts}
            self.delta_after = request.cut
        kind = "base" if full else "delta"
        files = [
            self._write(rows_name(partition, kind, request.cut), held, partition, kind, 0)
            for partition, held in rows.items()
            if held or full
        ]
        first = 5 * self.member.index
        files.append(self._write(dense_name(first, request.cut), {}, -1, "dense", first))
        self._world.on_snapshot(self, request)
        return SnapshotReply("", tuple(files), marks, 0, 0.001)

    def _write(self, name, rows, partition, kind, first) -> LoggedFile:
        content = json.dumps([[*key, count] for key, count in rows.items()]).encode()
        (self._world.checkpoints / name).write_bytes(content)
        return LoggedFile(
            name, len(content), zlib.crc32(content), len(rows), partition, kind, first
        )

    def restore(self, request: RestoreRequest) -> RestoreReply:
        with self.lock:
            servers = self._world.spec.num_parameter_servers
            owned = range(self.member.index, NUM_PARTITIONS, servers)
            counts = {partition: Counter() for partition in owned}
            marks = {partition: {} for partition in owned}
            for entry in request.partitions:
                if entry.partition not in counts:
                    continue
                for file in entry.files:
                    content = (self._world.checkpoints / file.name).read_bytes()
                    if zlib.crc32(content) != file.crc32:
                        return RestoreReply(f"{file.name} is damaged", 0, damaged=True)
                    for epoch, task, batch, count in json.loads(content):
                        counts[entry.partition][(epoch, task, batch)] = count
                for bitmap in request.bitmaps[entry.bitmaps_of]:
                    if entry.partition in bitmap.scope.partitions:
                        marks[entry.partition][(bitmap.epoch, bitmap.task)] = bitmap.mask
            self.counts, self.marks, self.attempts = counts, marks, {}
            self.changed = {partition: set() for partition in counts}
            self.delta_after = request.cut
            self.generation = request.generation
            return RestoreReply("", sum(len(c) for c in counts.values()))

    def kill(self) -> None:
        """Ends it at once."""
        with self.lock:
            self.stopped.set()
        self.server.stop(0.0)
        self.talk.join()

    def _talk(self) -> None:
        talk = MasterTalk(self._world, self.member, self.address)
        while not self.stopped.wait(0.03):
            reply = talk.heartbeat(self.generation, (), ())
            told = reply is not None and reply.directive == "leave"
            if told or self.leaving.is_set():
                self.stopped.set()
                self.server.stop(0.0)
                self._world.launcher.completed(self.member)
        talk.close()


class MasterTalk:
    """How a fake member talks to the master, whoever that is just now."""

    def __init__(self, world: "World", member: Member, address: str) -> None:
        self._world = world
        self.member = member
        self._address = address
        self._client: RpcClient | None = None
        self._registered = False

    def call(self, method, message, reply):
        """The answer, or None if there is none."""
        endpoint = load_endpoint(self._world.run_folder / "job")
        if endpoint is None:
            return None
        if self._client is None or self._client.address != endpoint.address:
            self.close()
            self._client = RpcClient("MasterService", endpoint.address, self._world.access)
        with suppress(PeerUnavailable):
            return self._client.call(method, message, reply, deadline_seconds=2.0)
        return None

    def register(self) -> RegisterReply | None:
        reply = self.call(
            "Register",
            RegisterRequest(self.member, 1, "here", self._address, "", 1, "config"),
            RegisterReply,
        )
        if reply is not None and not reply.refused:
            self._registered = True
        return reply

    def heartbeat(self, generation, reports, held) -> HeartbeatReply | None:
        if not self._registered and self.register() is None:
            return None
        if not self._registered:
            return None
        reply = self.call(
            "Heartbeat",
            HeartbeatRequest(self.member, generation, reports, MemberStats(), held),
            HeartbeatReply,
        )
        if reply is not None and reply.directive == "register_again":
            self._registered = False
        return reply

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


@dataclass
class Holding:
    """A task that a fake worker holds."""

    task: LeasedTask
    done: int
    repeated: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    finished: bool = False
    failure: str = ""
    scores: ScoreSummary | None = None

    def report(self) -> TaskReport:
        return TaskReport(
            self.task.key,
            self.task.attempt,
            self.done,
            self.repeated,
            tuple(BatchLoss(batch, loss) for batch, loss in self.losses.items()),
            self.finished,
            self.failure,
            0.01,
            self.scores,
        )


class FakeWorker:
    """A worker that leases, pushes to all servers, and reports."""

    def __init__(self, world: "World", index: int, incarnation: str) -> None:
        self._world = world
        self.member = Member("worker", index, incarnation, _secret_of(incarnation))
        self.stopped = threading.Event()
        self.leaving = threading.Event()
        self.generation = 0
        self.addresses: tuple[str, ...] = ()
        self.holdings: list[Holding] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def kill(self) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        talk = MasterTalk(self._world, self.member, "")
        try:
            while not self.stopped.is_set():
                if not self._beat(talk) or self.leaving.is_set():
                    self.stopped.set()
                    self._world.launcher.completed(self.member)
                    break
                if not self.holdings and not self._lease(talk):
                    self.stopped.wait(0.02)
                    continue
                self._work(talk)
        finally:
            talk.close()

    def _beat(self, talk: MasterTalk) -> bool:
        """Reports; false when it is to leave."""
        held = tuple(HeldLease(h.task.key, h.task.attempt) for h in self.holdings)
        reply = talk.heartbeat(self.generation, tuple(h.report() for h in self.holdings), held)
        if reply is None:
            return True
        if reply.directive == "leave":
            return False
        if reply.generation != self.generation or reply.directive == "register_again":
            self.holdings = []
        self.generation, self.addresses = reply.generation, reply.ps_addresses
        gone = {(lease.key, lease.attempt) for lease in reply.revoked}
        self.holdings = [
            h
            for h in self.holdings
            if (h.task.key, h.task.attempt) not in gone and not h.finished and not h.failure
        ]
        return True

    def _lease(self, talk: MasterTalk) -> bool:
        reply = talk.call("Lease", LeaseRequest(self.member, self.generation, 2), LeaseReply)
        if reply is None or reply.generation != self.generation:
            return False
        self.holdings = [Holding(task, task.done_mask) for task in reply.tasks]
        return bool(self.holdings)

    def _work(self, talk: MasterTalk) -> None:
        holding = self.holdings[0]
        key = holding.task.key
        if key.kind == "score":
            self._score(holding)
            return
        plan = plan_epoch(self._world.spec, key.epoch)
        num_batches = plan.batches_of(key.task)
        for batch in range(num_batches):
            if self.stopped.is_set():
                return
            if holding.done >> batch & 1:
                continue
            if self._world.poisoned == (key.epoch, key.task):
                holding.failure = "Traceback …\nValueError: a bad row"
                return
            self._world.on_batch(self, key, batch)
            if self.stopped.is_set():
                return
            try:
                repeated = [
                    self._world.server_at(address).push(
                        self.generation, key.epoch, key.task, holding.task.attempt, batch
                    )
                    for address in self.addresses
                    if self.member.incarnation not in self._world.liars
                ]
            except (RolledBackError, ServerGoneError):
                self.holdings = []
                self.stopped.wait(0.02)
                return
            holding.done |= 1 << batch
            if any(repeated):
                holding.repeated |= 1 << batch
            rows = self._world.spec.course.batch_size
            if batch == num_batches - 1:
                rows = plan.rows_of(key.task) - batch * rows
            holding.losses[batch] = 0.5 * rows
            if batch % 8 == 7:
                self._beat(talk)
                if holding not in self.holdings:
                    return
            time.sleep(self._world.batch_seconds)
        holding.finished = True

    def _score(self, holding: Holding) -> None:
        task = holding.task
        rows = np.arange(task.first_row, task.first_row + task.num_rows)
        labels = rows % 2
        # Better with every epoch, so that the last one is the best.
        logits = ((labels - 0.5) * (1 + 0.2 * task.key.epoch) + 0.001 * (rows % 7)).astype(
            np.float32
        )
        logits[rows % 5 == 0] *= -1
        counted = ScoreHistogram.of(labels, logits)
        holding.scores = ScoreSummary(
            counted.sparse_positives,
            counted.sparse_negatives,
            counted.loss_sum,
            counted.probability_sum,
        )
        if task.scores_file:
            Path(task.scores_file).write_bytes(logits.tobytes())
        holding.finished = True


class FakeLauncher:
    """Members as threads of this process; they can be killed, and can crash when they start."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._lock = threading.RLock()
        self.members: dict[tuple[str, int], FakeServer | FakeWorker] = {}
        self.states: dict[tuple[str, int], ProcessState] = {}
        self.starts: Counter = Counter()
        self.crashing: set[str] = set()

    def start(self, role, index) -> None:
        with self._lock:
            place = (role, index)
            state = self.states.get(place)
            if (state is not None and state.running) or self._world.is_over:
                return
            self.starts[place] += 1
            name = f"{role}-{index}-{self.starts[place]}"
            restarts = self.starts[place] - 1
            self.states[place] = ProcessState(
                role, index, name, 1000 + index, True, None, None, "", restarts
            )
            if role in self.crashing:
                self._end(place, 1, "error", "Traceback …\nImportError: no module named layers")
                return
            kind = FakeServer if role == "ps" else FakeWorker
            self.members[place] = kind(self._world, index, name)

    def stop(self, role, index, incarnation, *, grace_seconds) -> None:
        with self._lock:
            member = self.members.get((role, index))
            if member is None or self.states[(role, index)].incarnation != incarnation:
                return
            if not self.states[(role, index)].running:
                return
        if grace_seconds:
            member.leaving.set()
        else:
            self.kill(role, index)

    def observe(self) -> tuple[ProcessState, ...]:
        with self._lock:
            return tuple(self.states.values())

    def kill(self, role, index) -> None:
        """As `kill -9` would."""
        member = self.members[(role, index)]
        member.kill()
        with self._lock:
            self._end((role, index), -9, "killed", "")

    def completed(self, member: Member) -> None:
        with self._lock:
            self._end((member.role, member.index), 0, "completed", "")

    def _end(self, place, exit_code, reason, traceback) -> None:
        state = self.states[place]
        if not state.running:
            return
        self.states[place] = ProcessState(
            state.role,
            state.index,
            state.incarnation,
            state.pid,
            False,
            exit_code,
            reason,
            traceback,
            state.restarts,
        )

    def num_running(self, role) -> int:
        with self._lock:
            return sum(s.running for s in self.states.values() if s.role == role)

    def kill_all(self) -> None:
        for place, state in list(self.states.items()):
            if state.running:
                self.kill(*place)


class KilledError(Exception):
    """What a killed master dies of."""


class World:
    """A job with its run folder, its fake members, and a master that can be killed."""

    def __init__(self, run_folder: Path, spec: JobSpec) -> None:
        self.run_folder = run_folder
        self.checkpoints = run_folder / "checkpoints"
        self.spec = spec
        self.access = Access.load(run_folder / "job", "launcher")
        self.launcher = FakeLauncher(self)
        self.batch_seconds = 0.0005
        self.poisoned: tuple[int, int] | None = None
        self.liars: set[str] = set()
        """Incarnations of workers that report batches without having pushed them."""
        self.is_over = False
        self.master: Master | None = None
        self._thread: threading.Thread | None = None
        self.outcome: object = None
        self.on_batch = lambda worker, key, batch: None
        self.on_snapshot = lambda server, request: None

    def start_master(self) -> None:
        self.master = Master(self.run_folder, "127.0.0.1:0", self.launcher)
        self._thread = threading.Thread(target=self._run_master, args=(self.master,), daemon=True)
        self._thread.start()

    def _run_master(self, master: Master) -> None:
        try:
            with master:
                self.outcome = master.run()
        except Exception as error:  # noqa: BLE001
            self.outcome = error

    def kill_master(self) -> None:
        """What it had not yet written is lost."""
        self.master.executor._die(KilledError())
        self.master.store._waiting.clear()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert isinstance(self.outcome, KilledError)

    def join_master(self, seconds: float = 60) -> object:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.status()
        return self.outcome

    def status(self) -> JobView:
        client = RpcClient(
            "MasterService", load_endpoint(self.run_folder / "job").address, self.access
        )
        try:
            return client.call("Status", Empty(), JobView, deadline_seconds=5.0)
        finally:
            client.close()

    def ask(self, method: str, message: object = Empty()) -> None:
        client = RpcClient(
            "MasterService", load_endpoint(self.run_folder / "job").address, self.access
        )
        try:
            client.call(method, message, Empty, deadline_seconds=5.0)
        finally:
            client.close()

    def scale(self, target: int) -> None:
        self.ask("Scale", ScaleRequest(None, max(target, 1), target))

    def wait_for(self, condition, seconds: float = 60) -> JobView:
        """The first status that fulfils a condition."""
        give_up = time.monotonic() + seconds
        view = None
        while time.monotonic() < give_up:
            if not self._thread.is_alive():
                raise AssertionError(f"the master has ended: {self.outcome!r}")
            with suppress(PeerUnavailable, CallRefused, AttributeError):
                view = self.status()
                if condition(view):
                    return view
            time.sleep(0.01)
        raise AssertionError(f"it did not come to that: {view}")

    def wait_until_trained(self) -> JobView:
        view = self.wait_for(lambda view: view.state in {"finished", "failed", "stopped"})
        assert view.state == "finished", view
        return view

    def server_at(self, address: str) -> FakeServer:
        for (role, _), member in list(self.launcher.members.items()):
            if role == "ps" and member.address == address:
                return member
        raise ServerGoneError

    def model(self) -> Counter:
        """How often each batch was applied; the same in all partitions."""
        parts = [
            counts
            for index in range(self.spec.num_parameter_servers)
            for counts in self.launcher.members[("ps", index)].counts.values()
        ]
        assert len(parts) == NUM_PARTITIONS
        assert all(part == parts[0] for part in parts)
        return parts[0]

    def close(self) -> None:
        self.is_over = True
        if self._thread is not None and self._thread.is_alive():
            self.master.executor._die(KilledError())
            self._thread.join(30)
        self.launcher.kill_all()
