"""Members of a job that talk to a real master over gRPC and train nothing but a count.

Parameter servers are real ones. Each batch adds 1 to a row of its own in every partition, and to
every dense value, so a test can ask of the model, exactly: was every batch of every epoch applied
once, and does the model hold whatever the ledger counts?
"""

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ctr_pipeline.config.models import Config
from ctr_pipeline.config.resolved import resolved_yaml
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    HeldLease,
    LeasedTask,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterReply,
    RegisterRequest,
    ScoreSummary,
    SnapshotReply,
    SnapshotRequest,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import EncodedSplit, JobSpec
from ctr_pipeline.distributed.master.program import Master
from ctr_pipeline.distributed.master.reading import read_status
from ctr_pipeline.distributed.master.settings import plan_epoch
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.program import warm_up
from ctr_pipeline.distributed.ps.service import SERVICE, ps_methods
from ctr_pipeline.distributed.ps.session import PsSession
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.distributed.rpc.spec_file import save_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.specs.course import Supervision
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from tests.distributed.job_specs import job_spec
from tests.distributed.ps_requests import Caller

NUM_PARTITIONS = 4
COUNTING = OptimizerSpec(name="sgd", learning_rate=1.0)


def prepare_job(
    run_folder: Path,
    *,
    num_rows: int = 518,
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
                # They are threads of a busy process, and may be late.
                "silence_seconds": 5.0,
            }
            | (runtime or {}),
        }
    )
    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "config.resolved.yaml").write_text(resolved_yaml(config))
    spec = job_spec(
        seed=5,
        tables=(TableSpec("batches", 1 << 16),),
        segments=(SegmentSpec("count", 1, COUNTING, "sum"),),
        dense_optimizer=COUNTING,
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
        supervision=config.runtime.part(Supervision),
        checkpoints_folder=str(run_folder / "checkpoints"),
    )
    Access.create(run_folder / "job", tls=False)
    CutStorage.at(spec.checkpoints_folder).begin(spec.job)
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


def rows_of_batches(spec: JobSpec, epochs: int) -> dict[tuple[int, int, int], np.ndarray]:
    """The keys of each batch, all different: as many as there are partitions, one in each."""
    keys = np.arange(spec.tables[0].num_ids)
    owners = partitions_of(keys, NUM_PARTITIONS)
    of_partitions = [keys[owners == partition].tolist() for partition in range(NUM_PARTITIONS)]
    batches = sorted(all_batches(spec, epochs))
    assert len(batches) <= min(map(len, of_partitions))
    return {
        batch: np.array(of_batch) for batch, *of_batch in zip(batches, *of_partitions, strict=False)
    }


class NotAppliedError(Exception):
    """A parameter server is gone, or of another generation, or knows a later attempt."""


def _secret_of(incarnation: str) -> str:
    return f"secret of {incarnation}".ljust(32, ".")


class CountingServer:
    """A parameter server as threads of this process.

    Attributes:
        fail_snapshots: So many cuts to come are refused, as of a full disk.
        grace_seconds: For which it stays after SIGTERM; None: none came.
    """

    def __init__(self, world: "World", index: int, incarnation: str) -> None:
        self._world = world
        self.member = Member("ps", index, incarnation, _secret_of(incarnation))
        self.core = PsCore(world.spec, index)
        self.fail_snapshots = 0
        self.grace_seconds: float | None = None
        self.stopped = threading.Event()
        self.leaving = threading.Event()
        snapshot = Method("Snapshot", SnapshotRequest, SnapshotReply, self._snapshot)
        self._server = RpcServer(
            SERVICE,
            [
                snapshot if method.name == snapshot.name else method
                for method in ps_methods(self.core, self.leaving.set, world.connect_server)
            ],
            address="127.0.0.1:0",
            access=world.access,
            num_threads=4,
        )
        self.address = self._server.start()
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def push(self, generation: int, batch: BatchId, worker: str) -> bool:
        """Applies a batch once; whether it had been applied before.

        Raises:
            NotAppliedError: It is not.
        """
        if self.stopped.is_set():
            raise NotAppliedError
        caller = Caller(self.core, worker)
        keys = self._world.rows[batch.epoch, batch.task, batch.batch]
        keys = keys[list(self.core.state.placement.partitions_of(self.core.index))]
        pulled = caller.pull(keys, batch=batch, generation=generation)
        if pulled.status is Status.NOT_READY:
            caller.init(generation=generation)
            pulled = caller.pull(keys, batch=batch, generation=generation)
        if pulled.status is not Status.DONE:
            raise NotAppliedError
        pushed = caller.push(keys, batch, version=pulled.version, generation=generation)
        if pushed.status not in {Status.DONE, Status.REPEATED}:
            raise NotAppliedError
        return pushed.status is Status.REPEATED

    def _snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        if self.fail_snapshots:
            self.fail_snapshots -= 1
            return SnapshotReply("the disk is full", (), (), 0, 0.0)
        reply = self.core.checkpoints.snapshot(request)
        self._world.on_snapshot(self, request)
        return reply

    def kill(self) -> None:
        """Ends it at once."""
        self.stopped.set()
        self._server.stop(0.0)
        self._thread.join()

    def _talk(self) -> None:
        session = PsSession(
            self.core,
            member=self.member,
            address=self.address,
            metrics_address="",
            connect=self._world.connect_master,
            stats=MemberStats,
        )
        while not self.stopped.is_set():
            if self.grace_seconds is not None and not session.is_leaving:
                session.leave_within(self.grace_seconds)
            pause = session.turn()
            if session.must_leave or self.leaving.is_set():
                self.stopped.set()
                self._server.stop(0.0)
                if session.is_leaving:
                    self._world.launcher.terminated(self.member)
                else:
                    self._world.launcher.completed(self.member)
            self.stopped.wait(min(pause, 0.03))
        session.close()


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

    def heartbeat(self, generation, reports, held, *, paused) -> HeartbeatReply | None:
        if not self._registered and self.register() is None:
            return None
        if not self._registered:
            return None
        reply = self.call(
            "Heartbeat",
            HeartbeatRequest(self.member, generation, reports, MemberStats(), held, paused=paused),
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
        self.pauses = False
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
                if self.pauses or (not self.holdings and not self._lease(talk)):
                    self.stopped.wait(0.02)
                    continue
                self._work(talk)
        finally:
            talk.close()

    def _beat(self, talk: MasterTalk) -> bool:
        """Reports; false when it is to leave."""
        held = tuple(HeldLease(h.task.key, h.task.attempt) for h in self.holdings)
        reports, paused = tuple(h.report() for h in self.holdings), self.pauses
        reply = talk.heartbeat(self.generation, reports, held, paused=paused)
        if reply is None:
            return True
        self.pauses = reply.directive == "pause"
        if paused:
            self.holdings = []
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
                        self.generation,
                        BatchId(key.epoch, key.task, holding.task.attempt, batch),
                        self.member.incarnation,
                    )
                    for address in self.addresses
                    if self.member.incarnation not in self._world.liars
                ]
            except NotAppliedError:
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
                if holding not in self.holdings or self.pauses:
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
            (self._world.run_folder / task.scores_file).write_bytes(logits.tobytes())
        holding.finished = True


class FakeLauncher:
    """Members as threads of this process; they can be killed, and can crash when they start."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._lock = threading.RLock()
        self.members: dict[tuple[str, int], CountingServer | FakeWorker] = {}
        self.states: dict[tuple[str, int], ProcessState] = {}
        self.starts: Counter = Counter()

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
            kind = CountingServer if role == "ps" else FakeWorker
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
            self._end((role, index), -9, "killed")

    def completed(self, member: Member) -> None:
        with self._lock:
            self._end((member.role, member.index), 0, "completed")

    def terminated(self, member: Member) -> None:
        with self._lock:
            self._end((member.role, member.index), 143, "killed")

    def _end(self, place, exit_code, reason) -> None:
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
            "",
            state.restarts,
        )

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
        # Otherwise the servers would compile while the master waits for them.
        warm_up(spec)
        self.rows = rows_of_batches(spec, spec.course.epochs)
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

    def start_master(self, master: Master | None = None) -> None:
        """Lets a master work; a new one if None."""
        self.master = master or Master(self.run_folder, "127.0.0.1:0", self.launcher)
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
        self.master.executor.die(KilledError())
        self.master.store._waiting.clear()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert isinstance(self.outcome, KilledError)

    def has_ended(self, seconds: float) -> bool:
        """Whether the master ends within that time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def join_master(self, seconds: float = 60) -> object:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.status()
        return self.outcome

    def status(self) -> JobView:
        client = RpcClient(
            "MasterService", load_endpoint(self.run_folder / "job").address, self.access
        )
        try:
            return client.call("Status", Empty(), JobView, deadline_seconds=60.0)
        finally:
            client.close()

    def ask(self, method: str, message: object = Empty()) -> None:
        client = RpcClient(
            "MasterService", load_endpoint(self.run_folder / "job").address, self.access
        )
        try:
            client.call(method, message, Empty, deadline_seconds=60.0)
        finally:
            client.close()

    def wait_for(self, condition, seconds: float = 60) -> JobView:
        """The first status that fulfils a condition; after the master's end, the last one."""
        give_up = time.monotonic() + seconds
        view = None
        while time.monotonic() < give_up:
            if not self._thread.is_alive():
                view = read_status(self.run_folder)
                if condition(view):
                    return view
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

    def connect_master(self) -> RpcClient:
        endpoint = load_endpoint(self.run_folder / "job")
        if endpoint is None:
            raise PeerUnavailable("no master has announced itself")
        return RpcClient("MasterService", endpoint.address, self.access)

    def connect_server(self, address: str) -> RpcClient:
        return RpcClient(SERVICE, address, self.access)

    def server_at(self, address: str) -> CountingServer:
        for (role, _), member in list(self.launcher.members.items()):
            if role == "ps" and member.address == address:
                return member
        raise NotAppliedError

    def model(self) -> dict[tuple[int, int, int], float]:
        """How often each batch was applied; the same in all partitions."""
        keys = np.concatenate(list(self.rows.values()))
        counts = np.zeros(len(keys))
        num_held = 0
        for index in range(self.spec.num_parameter_servers):
            core = self.launcher.members[("ps", index)].core
            owned = np.isin(
                partitions_of(keys, NUM_PARTITIONS), core.state.placement.partitions_of(index)
            )
            rows, dense = Caller(core).values(keys[owned], core.serving.generation)
            counts[owned] = rows
            num_held += core.state.num_rows
            # A batch counts once in each of the dense values, too.
            assert dense == [sum(rows) / len(core.state.placement.partitions_of(index))] * len(
                dense
            )
        of_batches = counts.reshape(-1, NUM_PARTITIONS)
        assert (of_batches == of_batches[:, :1]).all()
        assert num_held == np.count_nonzero(counts)
        return {
            batch: count
            for batch, count in zip(self.rows, of_batches[:, 0].tolist(), strict=True)
            if count
        }

    def close(self) -> None:
        self.is_over = True
        if self._thread is not None and self._thread.is_alive():
            self.master.executor.die(KilledError())
            self._thread.join(60)
        self.launcher.kill_all()
