"""A world around `Job`, without network or clock: what the properties of the machine are tested in.

It holds its own idea of everything: parameter servers that count how often each batch is in them,
workers, a launcher, a disk for the ledger that loses what was not durable, a checkpoints folder.
After each call of the machine it compares. Nothing of the machine's code computes an expectation.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from ctr_pipeline.distributed.coordination.events import (
    Action,
    Announce,
    AnswerLease,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    End,
    EpochDecided,
    Event,
    Fail,
    Persist,
    ProcessesSeen,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    StartMember,
    StopAsked,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.launching import ExitReason, ProcessState
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    HeartbeatReply,
    HeartbeatRequest,
    HeldLease,
    LeasedTask,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterRequest,
    ScoreSummary,
    TaskKey,
    TaskReport,
    checksum_of,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId, Round, worker_number
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit
from ctr_pipeline.specs.course import Supervision, TrainingCourse, UpdateRule

NUM_SERVERS = 2
NUM_WORKERS = 2
NUM_EPOCHS = 2
BATCH_SIZE = 2
BATCHES_OF_TASKS = (4, 4, 4, 3)
"""The very last one has a single record."""
NUM_ROWS = 29
SCORE_ROWS = {"valid": 5, "test": 2}
SCORE_ROWS_PER_TASK = 3

Batch = tuple[int, int, int]
"""Epoch, task, batch."""


def plan_epoch(epoch: int) -> EpochPlan:
    """Three tasks of eight records and one of five."""
    return EpochPlan(epoch, 4, 8, BATCH_SIZE, ((3, 5),))


def make_settings(**changes: Any) -> JobSettings:
    """Short of patience, so that few steps show what it is for."""
    settings = JobSettings(
        num_parameter_servers=NUM_SERVERS,
        min_workers=1,
        max_workers=NUM_WORKERS,
        course=TrainingCourse(epochs=NUM_EPOCHS, checkpoint_seconds=2.0, keep_checkpoints=1),
        plan_epoch=plan_epoch,
        valid=ScoredSplit("valid", SCORE_ROWS["valid"], SCORE_ROWS_PER_TASK),
        final_splits=(
            ScoredSplit("valid", SCORE_ROWS["valid"], SCORE_ROWS_PER_TASK),
            ScoredSplit("test", SCORE_ROWS["test"], SCORE_ROWS_PER_TASK),
        ),
        scores_folder="scores",
        full_every=3,
        supervision=Supervision(
            silence_seconds=3.0, startup_timeout_seconds=20.0, max_task_failures=1000
        ),
        task_timeout_floor_seconds=6.0,
        max_start_failures=1000,
        leave_seconds=2.0,
    )
    return replace(settings, **changes)


def rows_of_batch(batch: Batch) -> int:
    """Records of a batch, by hand."""
    _, task, number = batch
    return 1 if (task, number) == (3, 2) else 2


@cache
def batches_of_epoch(epoch: int) -> frozenset[Batch]:
    """All batches of an epoch, by hand."""
    return frozenset(
        (epoch, task, batch)
        for task, count in enumerate(BATCHES_OF_TASKS)
        for batch in range(count)
    )


def loss_of(batch: Batch) -> float:
    """Any function of a batch whose sums round."""
    epoch, task, number = batch
    return 0.1 + epoch / 3 + task / 7 + number / 11


def count_batches(job: Job) -> frozenset[Batch]:
    """The batches that the machine counts; closed epochs count as whole."""
    # The one look inside: the status tells records, not batches.
    ledger, masks = job.state.ledger, ()
    if ledger.board is not None:
        keys = (TaskKey("train", ledger.epoch, task, "train") for task in range(4))
        masks = tuple((key, ledger.board.task(key).done_mask) for key in keys)
    return spell_out(len(ledger.closed), masks)


@lru_cache(1 << 12)
def spell_out(num_closed: int, masks: tuple[tuple[TaskKey, int], ...]) -> frozenset[Batch]:
    """Masks as batches."""
    whole = frozenset[Batch]().union(*map(batches_of_epoch, range(num_closed)))
    return whole | {
        (key.epoch, key.task, batch)
        for key, mask in masks
        for batch in range(4)
        if mask >> batch & 1
    }


@dataclass
class Snapshot:
    """A part of a cut: what changed since its parent."""

    applied: Counter[Batch]
    marks: set[Batch]
    full: bool


@dataclass
class Server:
    """A parameter server that adds one to a counter for every batch.

    Attributes:
        incarnation: Empty: it is not running.
        generation: That it serves; -1 before the first restore.
        applied: Its model: how often each batch is in it.
        marks: Batches that it would not apply again.
        touched: What changed since its last snapshot.
        attempts: The newest seen, by epoch and task.
        epoch: Older ones are refused.
        paused: It runs and does nothing.
        registered: The master knows it.
        leaves_at: When it ends, as it was asked to; None: it was not.
        round: Of synchronous mode.
        told: Names of the active workers, as the master said last.
        active: Workers whose pushes a round waits for.
        waiting: Pushes of the round, and the answers to those of rounds before.
    """

    incarnation: str = ""
    generation: int = -1
    applied: Counter[Batch] = field(default_factory=Counter)
    marks: set[Batch] = field(default_factory=set)
    touched: Counter[Batch] = field(default_factory=Counter)
    attempts: dict[tuple[int, int], int] = field(default_factory=dict)
    epoch: int = 0
    paused: bool = False
    registered: bool = False
    leaves_at: float | None = None
    round: Round = field(default_factory=Round)
    told: tuple[str, ...] | None = None
    active: frozenset[int] | None = None
    waiting: dict[BatchId, str] = field(default_factory=dict)
    # Seeded bugs switch these off.
    applies_once = True
    fences_generations = True
    restores_marks = True
    withdraws_superseded = True

    def push(self, generation: int, batch: BatchId, worker: str, rule: UpdateRule) -> str:
        """`applied`, `repeated`, `waits`, or why it is refused."""
        if self.fences_generations and generation != self.generation:
            return "generation"
        if self.generation < 0:
            return "generation"
        if batch.epoch > self.epoch:
            self.epoch = batch.epoch
            self.marks = {mark for mark in self.marks if mark[0] >= self.epoch}
        place = (batch.epoch, batch.task)
        if batch.epoch < self.epoch or batch.attempt < self.attempts.get(place, 0):
            return "attempt"
        self.attempts[place] = batch.attempt
        for other in [other for other in self.waiting if self.withdraws_superseded]:
            if (other.epoch, other.task) == place and other.attempt < batch.attempt:
                self.waiting[other] = "attempt"
                self.round = self.round.left_by(other)
        name = (batch.epoch, batch.task, batch.batch)
        if self.applies_once and name in self.marks:
            return "repeated"
        if rule.update == "sync":
            known = self.waiting.pop(batch, "waits")
            if known != "waits":
                return known
            self.round = self.round.joined_by(worker_number(worker), batch)
            self.waiting[batch] = "waits"
            self.close_round(rule)
            if self.waiting[batch] == "waits":
                return "waits"
            return self.waiting.pop(batch)
        self.apply(name)
        return "applied"

    def close_round(self, rule: UpdateRule) -> None:
        if rule.update == "sync" and self.round.is_complete(rule, self.active):
            for _, batch in self.round.members:
                self.apply((batch.epoch, batch.task, batch.batch))
                self.waiting[batch] = "applied"
            self.round = Round()

    def summary(self) -> tuple[str, int, int]:
        """Changes whenever what it holds does."""
        return self.incarnation, self.generation, len(self.applied)

    def apply(self, name: Batch) -> None:
        assert not self.applied[name], "applied twice"
        self.applied[name] += 1
        self.touched[name] += 1
        self.marks.add(name)

    def snapshot(self, *, full: bool) -> Snapshot:
        part = Counter(self.applied if full else self.touched)
        self.touched = Counter()
        return Snapshot(part, set(self.marks), full)

    def restore(self, generation: int, chain: list[Snapshot]) -> None:
        self.generation = generation
        self.applied = Counter()
        for part in chain:
            self.applied = Counter(part.applied) if part.full else self.applied + part.applied
        self.marks = set(chain[-1].marks) if chain and self.restores_marks else set()
        self.touched, self.attempts, self.round, self.waiting = Counter(), {}, Round(), {}
        self.epoch = max((epoch for epoch, _, _ in self.marks), default=0)


@dataclass
class Lease:
    """A task in a worker's hands."""

    task: LeasedTask
    done_mask: int
    repeated_mask: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = False
    failure: str = ""


@dataclass
class Worker:
    """A worker.

    Attributes:
        incarnation: Empty: it is not running.
        registered: The master knows it.
        generation: The newest that it heard of.
        leases: In the order of their arrival.
        paused: It runs and does nothing.
        stalled: It lives and trains nothing.
        pauses: It trains nothing, as it was told to, and holds nothing.
        pushed: Servers that have acknowledged the batch that is being pushed, and how.
        asked: Its request for work that is not answered yet.
    """

    incarnation: str = ""
    registered: bool = False
    generation: int = 0
    leases: dict[HeldLease, Lease] = field(default_factory=dict)
    paused: bool = False
    stalled: bool = False
    pauses: bool = False
    pushed: dict[int, str] = field(default_factory=dict)
    pushing: tuple[HeldLease, int] | None = None
    asked: "Call | None" = None


@dataclass(eq=False)
class Call:
    """A worker's request for work, whose answer may come later.

    Attributes:
        world: Of the worker.
        index: Of the worker.
        worker: That asked.
        again: Leases that it named.
        loses_reply: It never hears the answer.
    """

    world: "World"
    index: int
    worker: Worker
    again: set[HeldLease]
    loses_reply: bool

    def give(self, reply: LeaseReply) -> None:
        """The answer."""
        self.world.take_leases(self, reply)


@dataclass(frozen=True)
class Oracle:
    """What the machine ought to count, kept as its calls come and go.

    Attributes:
        counted: Batches counted now.
        repeated_of: Of those of the open epoch: records executed beyond that.
        repeated_before: Records of earlier times executed beyond that.
    """

    counted: frozenset[Batch] = frozenset()
    repeated_of: Mapping[Batch, int] = field(default_factory=dict)
    repeated_before: int = 0

    @property
    def repeated(self) -> int:
        """Records executed beyond those counted."""
        return self.repeated_before + sum(self.repeated_of.values())

    def written(self, disk: "Oracle", names: Iterable[str]) -> "Oracle":
        """What the disk tells once it holds these records of the ledger as it is here."""
        if "base" in names:
            return self
        tasks = {int(name.removeprefix("task/")) for name in names if name.startswith("task/")}
        epoch = max((batch[0] for batch in self.counted), default=0)
        new = {batch for batch in self.counted if batch[0] == epoch and batch[1] in tasks}
        of_task = {batch: rows for batch, rows in self.repeated_of.items() if batch in new}
        return Oracle(disk.counted | new, {**disk.repeated_of, **of_task}, disk.repeated_before)


@dataclass
class Cut:
    """A cut on disk.

    Attributes:
        frozen: As JSON text.
        counted: What the machine counted when it asked for the cut.
        parts: By server.
        parent: Whose parts the deltas build on.
    """

    action: TakeCut
    frozen: str
    counted: frozenset[Batch]
    parts: dict[int, Snapshot] = field(default_factory=dict)


class World:
    """One job and everything around it.

    Args:
        sync: Parameter servers wait for rounds of two.
        settings: Of the job.
    """

    def __init__(self, *, sync: bool = False, settings: JobSettings | None = None) -> None:
        self.settings = settings or make_settings()
        self.rule = UpdateRule(update="sync" if sync else "async", grads_to_wait=2 if sync else 1)
        self.now = 1000.0
        self.disk: dict[str, str] = {}
        self.unflushed: list[tuple[dict[str, str | None], Oracle]] = []
        self.disk_oracle = Oracle()
        self.oracle = Oracle()
        self.servers = [Server() for _ in range(NUM_SERVERS)]
        self.workers = [Worker() for _ in range(NUM_WORKERS)]
        self.processes: dict[tuple[str, int], ProcessState] = {}
        self.cuts: dict[int, Cut] = {}
        self.pending_cut: Cut | None = None
        self.pending_restore: RestoreCut | None = None
        self.pending_decision: DecideEpoch | None = None
        self.late: list[HeartbeatRequest] = []
        self.late_pushes: list[tuple[int, BatchId, str]] = []
        self.attempts: dict[TaskKey, int] = {}
        self.highest_attempt = 0
        self.highest_generation = 0
        self.highest_cut = 0
        self.failed_restores = 0
        self.failed = ""
        self.ended = ""
        self.num_incarnations = 0
        self.best_of_epochs = 0
        self.announced: list[Announce] = []
        self.freeze_late = self.damages = False
        self.compared: object = None
        self.job = Job.begin(self.settings, self.now)
        self.tell(Tick())

    # Calls of the machine, each followed by the comparison.

    def tell(self, event: Event) -> None:
        """Hands an event to the machine."""
        before, failures = self.oracle.counted, self.count_failures()
        actions = self.job.handle(event, self.now)
        # A tick may find one that stands still; nothing else tells of a failure of a task.
        failures += isinstance(event, Tick) and any(
            isinstance(action, Announce) and "no batch of it was done" in action.what
            for action in actions
        )
        assert self.count_failures() <= failures, "a death counts as a failure of a task"
        self.settle(before, actions, rolls_back=isinstance(event, RestoreDone))

    def settle(
        self,
        before: frozenset[Batch],
        actions: list[Action],
        *,
        rolls_back: bool = False,
        may_count: Mapping[Batch, bool] = MappingProxyType({}),
    ) -> None:
        """Compares what is counted now with what may be, then performs the actions.

        Args:
            before: Counted before the call.
            actions: That it returned.
            rolls_back: It was the end of a restore.
            may_count: Batches that the call reported under a valid lease, and whether each was
                reported as repeated.
        """
        after = count_batches(self.job)
        lost, new = before - after, after - before
        if rolls_back:
            # What a new master had not heard of is counted again if the cut counts it.
            self.oracle = Oracle(after, {}, self.oracle.repeated + sum(map(rows_of_batch, lost)))
        else:
            assert not lost, f"{lost} are no longer counted"
            repeated = dict(self.oracle.repeated_of)
            for batch in new:
                assert batch in may_count, f"{batch} counted by itself"
                repeated[batch] = rows_of_batch(batch) if may_count[batch] else 0
            self.oracle = Oracle(after, repeated, self.oracle.repeated_before)
        self.perform(actions)
        if lost or new or rolls_back:
            self.compare_status()
        self.compare()

    def compare_status(self) -> None:
        """What is told of the records agrees with what is counted."""
        status, counted = self.job.status(), self.oracle.counted
        assert status.trained == sum(map(rows_of_batch, counted))
        assert status.repeated == self.oracle.repeated, "repeated records are miscounted"
        for totals in status.epochs:
            batches = {batch for batch in counted if batch[0] == totals.epoch}
            assert totals.trained == sum(map(rows_of_batch, batches))
            expected = sum(map(loss_of, sorted(batches)))
            assert abs(totals.loss_sum - expected) < 1e-9

    def compare(self) -> None:
        """What holds at all times."""
        assert not self.failed, f"the job failed: {self.failed}"
        job = self.job
        now = (job.phase, job.generation, self.oracle.counted, *map(Server.summary, self.servers))
        if now == self.compared:
            return
        self.compared = now
        for server in self.servers:
            if self.holds_counted() and server.generation == job.generation:
                missing = self.oracle.counted - set(server.applied)
                assert not missing, f"counted, and not in the model: {missing}"
        if job.phase in {"validating", "scoring"}:
            self.check_scored_model()

    def holds_counted(self) -> bool:
        """Whether servers are meant to hold all that is counted."""
        return self.job.phase in {"training", "cutting", "validating"}

    def check_scored_model(self) -> None:
        """Scores are of exactly the epochs that they stand for."""
        is_final = self.job.phase == "scoring"
        num_epochs = self.best_of_epochs + 1 if is_final else len(self.job.status().epochs)
        expected = set().union(*(batches_of_epoch(epoch) for epoch in range(num_epochs)))
        for server in self.servers:
            if server.incarnation and server.generation == self.job.generation:
                assert set(server.applied) == expected, "scores of another model"

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Persist():
                    records = {
                        name: None if record is None else json.dumps(record)
                        for name, record in action.records.items()
                    }
                    self.unflushed.append((records, self.oracle))
                    if action.durable:
                        self.flush(len(self.unflushed))
                case StartMember():
                    self.start(action.role, action.index)
                case StopMember():
                    state = self.processes.get((action.role, action.index))
                    if state is None or state.incarnation != action.incarnation:
                        continue
                    if action.grace_seconds == 0:
                        self.end_process(action.role, action.index, "killed")
                    else:
                        self.end_process(action.role, action.index, "completed")
                case TakeCut():
                    assert action.cut > self.highest_cut, "a number of a cut is used twice"
                    assert action.generation == self.job.generation
                    self.highest_cut = action.cut
                    # Servers remove old rows then, so nothing may be on its way to them.
                    no_task_open = action.frozen["board"] is None and bool(action.frozen["closed"])
                    assert action.ends_epoch == no_task_open
                    self.pending_cut = Cut(action, json.dumps(action.frozen), self.oracle.counted)
                case RestoreCut():
                    assert action.generation > self.highest_generation, "generation goes back"
                    assert action.cut == 0 or action.cut in self.cuts, "cut is not there any more"
                    self.highest_generation = action.generation
                    self.pending_restore = action
                    self.pending_cut = None
                case DropCuts():
                    assert action.keep
                    self.drop_cuts(action.keep)
                case DecideEpoch():
                    self.pending_decision = action
                case Fail():
                    self.failed = action.reason
                case End():
                    self.ended = action.phase
                case AnswerLease():
                    action.call.give(action.reply)
                case Announce():
                    self.announced.append(action)

    def flush(self, count: int) -> None:
        """Writes the oldest transactions to disk."""
        for records, oracle in self.unflushed[:count]:
            for name, record in records.items():
                if record is None:
                    self.disk.pop(name, None)
                else:
                    self.disk[name] = record
            self.disk_oracle = oracle.written(self.disk_oracle, records)
        del self.unflushed[:count]

    def drop_cuts(self, keep: tuple[int, ...]) -> None:
        needed: set[int] = set()
        for kept in keep:
            assert kept in self.cuts, "a cut is kept that is not there"
            number = kept
            while number:
                needed.add(number)
                number = self.cuts[number].action.parent
        newest = max(keep)
        self.cuts = {
            number: cut for number, cut in self.cuts.items() if number in needed or number > newest
        }

    # The launcher.

    def start(self, role: str, index: int) -> None:
        process = self.processes.get((role, index))
        if process is not None and process.running:
            return
        self.num_incarnations += 1
        incarnation = f"{role}-{index}-{self.num_incarnations}"
        restarts = 0 if process is None else process.restarts + 1
        self.processes[role, index] = ProcessState(
            role,
            index,
            incarnation,
            100,
            True,
            None,
            None,
            "",
            restarts,  # type: ignore[arg-type]
        )
        if role == "ps":
            self.servers[index] = Server(incarnation)
        else:
            self.workers[index] = Worker(incarnation)

    def end_process(self, role: str, index: int, reason: ExitReason) -> None:
        process = self.processes.get((role, index))
        if process is None or not process.running:
            return
        self.processes[role, index] = replace(
            process,
            running=False,
            exit_code=0 if reason == "completed" else -9,
            reason=reason,
            traceback="Traceback" if reason == "error" else "",
        )
        if role == "ps":
            self.servers[index] = Server()
        else:
            self.workers[index] = Worker()

    def observe(self) -> None:
        self.tell(ProcessesSeen(tuple(self.processes.values())))

    def count_failures(self) -> int:
        """Failures that tasks are blamed for."""
        boards = self.job.state.boards()
        return sum(task.failures for board in boards for _, task in board.touched())

    # Members.

    def register(self, role: str, index: int) -> None:
        member: Server | Worker
        member = self.servers[index] if role == "ps" else self.workers[index]
        if not member.incarnation or member.paused:
            return
        before = self.oracle.counted
        who = Member(role, index, member.incarnation)  # type: ignore[arg-type]
        address = f"127.0.0.1:{index}" if role == "ps" else ""
        refused, actions = self.job.register(
            RegisterRequest(who, 100, "host", address, "", 1, ""), self.now
        )
        self.settle(before, actions)
        if refused:
            return
        member.registered = True
        if isinstance(member, Worker):
            member.generation = self.job.generation
            member.leases.clear()
            if member.asked is not None:
                self.job.hang_up(member.asked)
                member.asked = None

    def heartbeat_of(self, index: int) -> HeartbeatRequest | None:
        """What a worker would say now."""
        worker = self.workers[index]
        if not worker.incarnation or worker.paused or not worker.registered:
            return None
        reports = tuple(
            TaskReport(
                held.key,
                held.attempt,
                lease.done_mask,
                lease.repeated_mask,
                tuple(BatchLoss(batch, loss) for batch, loss in lease.losses.items()),
                lease.finished,
                lease.failure,
                lease.seconds,
                self.scores_of(lease.task) if held.key.kind == "score" and lease.finished else None,
            )
            for held, lease in worker.leases.items()
            if lease.seconds or lease.failure or lease.finished
        )
        return HeartbeatRequest(
            Member("worker", index, worker.incarnation),
            worker.generation,
            reports,
            MemberStats(),
            tuple(worker.leases),
            paused=worker.pauses,
        )

    @staticmethod
    def scores_of(task: LeasedTask) -> ScoreSummary:
        """One positive row each, in the bin of its first row."""
        return ScoreSummary(((task.first_row, task.num_rows),), (), 1.0, 0.5)

    def deliver(self, request: HeartbeatRequest) -> HeartbeatReply:
        """The machine gets a worker's heartbeat, perhaps late or twice."""
        before = self.oracle.counted
        may_count: dict[Batch, bool] = {}
        ends: list[TaskKey] = []
        for report in request.reports:
            is_newest = report.attempt == self.attempts.get(report.key)
            if report.key.kind != "train" or request.generation != self.job.generation:
                continue
            if is_newest:
                for batch in range(4):
                    if report.done_mask >> batch & 1:
                        name = (report.key.epoch, report.key.task, batch)
                        may_count[name] = bool(report.repeated_mask >> batch & 1)
        reply, actions = self.job.heartbeat(request, self.now)
        ends = [report.key for report in request.reports if report.finished]
        self.settle(before, actions, may_count=may_count)
        for key in ends:
            # What a worker was told is over stays over, even if the master dies now.
            if not any(lease.key == key for lease in reply.revoked):
                self.check_durable(key, request, reply)
        return reply

    def check_durable(self, key: TaskKey, request: HeartbeatRequest, reply: HeartbeatReply) -> None:
        if key.kind != "train" or request.generation != reply.generation:
            return
        on_disk = self.disk_oracle.counted
        own = {batch for batch in self.oracle.counted if batch[:2] == (key.epoch, key.task)}
        assert own <= on_disk, f"the end of {key} was acknowledged and can be forgotten"

    def take_reply(self, index: int, request: HeartbeatRequest, reply: HeartbeatReply) -> None:
        """A worker hears the answer to its heartbeat."""
        worker = self.workers[index]
        if worker.incarnation != request.member.incarnation or worker.paused:
            return
        if reply.directive == "leave":
            self.end_process("worker", index, "completed")
            return
        if reply.directive == "register_again":
            worker.registered = worker.pauses = False
            worker.leases.clear()
            return
        for report in request.reports:
            lease = worker.leases.get(HeldLease(report.key, report.attempt))
            ends = report.finished or report.failure
            if ends and lease is not None:
                del worker.leases[HeldLease(report.key, report.attempt)]
        for held in reply.revoked:
            worker.leases.pop(held, None)
        if request.paused:
            worker.leases.clear()
        # A batch that was begun is finished first.
        is_at_rest = worker.pushing is None or worker.pushing[0] not in worker.leases
        worker.pauses = reply.directive == "pause" and (is_at_rest or worker.pauses)
        if worker.pauses and worker.asked is not None:
            self.job.hang_up(worker.asked)
            worker.asked = None
        if reply.generation != worker.generation:
            worker.generation = reply.generation
            worker.leases.clear()

    def heartbeat(self, index: int, *, loses_reply: bool = False, is_late: bool = False) -> None:
        """A worker's heartbeat, whose reply or arrival may be lost for now."""
        request = self.heartbeat_of(index)
        if request is None:
            return
        if is_late:
            self.late.append(request)
            return
        reply = self.deliver(request)
        if not loses_reply:
            self.take_reply(index, request, reply)

    def heartbeat_server(self, index: int) -> None:
        server = self.servers[index]
        if not server.incarnation or server.paused:
            return
        before = self.oracle.counted
        if not server.registered:
            return
        reply, actions = self.job.heartbeat(
            HeartbeatRequest(
                Member("ps", index, server.incarnation),
                server.generation,
                (),
                MemberStats(),
                active_workers=-1 if server.told is None else checksum_of(server.told),
                leaves_in_seconds=(
                    None if server.leaves_at is None else max(0.0, server.leaves_at - self.now)
                ),
            ),
            self.now,
        )
        self.settle(before, actions)
        if server is not self.servers[index]:
            return
        is_late = server.leaves_at is not None and server.leaves_at <= self.now
        if reply.directive == "leave" or is_late:
            self.end_process("ps", index, "completed" if server.leaves_at is None else "killed")
        elif reply.directive == "register_again":
            server.registered = False
        else:
            server.told = server.told if reply.active_workers is None else reply.active_workers
            server.active = frozenset(map(worker_number, server.told or ()))
            server.close_round(self.rule)

    def lease(self, index: int, *, most: int = 2, loses_reply: bool = False) -> None:
        """A worker asks for work, and for a while waits for it; it forgets what it asked before."""
        worker = self.workers[index]
        if not worker.incarnation or worker.paused or worker.pauses or not worker.registered:
            return
        if worker.asked is not None and not loses_reply:
            self.job.hang_up(worker.asked)
        before = self.oracle.counted
        call = Call(self, index, worker, set(worker.leases), loses_reply)
        worker.asked = call
        request = LeaseRequest(
            Member("worker", index, worker.incarnation),
            worker.generation,
            most,
            tuple(worker.leases),
            wait_seconds=2.0,
        )
        reply, actions = self.job.lease(request, self.now, call)
        self.settle(before, actions)
        if reply is not None:
            self.take_leases(call, reply)

    def take_leases(self, call: Call, reply: LeaseReply) -> None:
        """A worker hears the answer to its request, if it still is the one it waits for."""
        worker = call.worker
        if reply.verdict == "end":
            assert self.job.phase in {"finished", "stopped", "failed"}, "END is not the end"
        for task in reply.tasks:
            self.check_lease(task, worker, call.again)
        if worker.asked is not call or worker is not self.workers[call.index]:
            return
        worker.asked = None
        if call.loses_reply or reply.generation < worker.generation:
            return
        if reply.verdict == "end":
            self.end_process("worker", call.index, "completed")
        if reply.generation > worker.generation:
            worker.generation = reply.generation
            worker.leases.clear()
        for task in reply.tasks:
            held = HeldLease(task.key, task.attempt)
            worker.leases.setdefault(held, Lease(task, task.done_mask))

    def check_lease(self, task: LeasedTask, worker: Worker, again: set[HeldLease]) -> None:
        key, known = task.key, self.attempts.get(task.key, 0)
        is_lost = task.attempt == known and HeldLease(key, known) not in again
        assert task.attempt > known or is_lost, "a lease is given twice"
        if task.attempt > known:
            assert task.attempt > self.highest_attempt, "an attempt number is used twice"
            self.attempts[key] = task.attempt
            self.highest_attempt = task.attempt
        assert task.attempt in {
            attempt for attempt, name in self.owners().items() if name == worker.incarnation
        }, "a lease belongs to nobody on disk"
        if key.kind == "score":
            return
        own = {batch for batch in batches_of_epoch(key.epoch) if batch[1] == key.task}
        assert not own <= self.oracle.counted, f"{key} is done and leased again"
        for epoch in range(key.epoch):
            assert batches_of_epoch(epoch) <= self.oracle.counted, "epochs overlap"
        for epoch, number, batch in own:
            is_counted = (epoch, number, batch) in self.oracle.counted
            assert bool(task.done_mask >> batch & 1) == is_counted

    def owners(self) -> dict[int, str]:
        """Attempt → holder, as a new master would read it from the disk."""
        found = {}
        for name, text in self.disk.items():
            if name.startswith(("task/", "score/")):
                record = json.loads(text)["task"]
                found[record["attempt"]] = record["holder"]
        return found

    def keys_held(self, index: int) -> set[TaskKey]:
        """Tasks that a worker believes to be its own."""
        return {held.key for held in self.workers[index].leases}

    def work(self, index: int, *, num_servers: int = NUM_SERVERS) -> None:
        """A worker goes on with its first task: pushes one batch to so many servers."""
        worker = self.workers[index]
        if not worker.incarnation or worker.paused or worker.stalled or worker.pauses:
            return
        for held, lease in list(worker.leases.items()):
            if lease.finished or lease.failure:
                continue
            if held.key.kind == "score":
                lease.finished, lease.seconds = True, 0.5
            else:
                self.push_next(worker, held, lease, num_servers)
            return

    def push_next(self, worker: Worker, held: HeldLease, lease: Lease, num_servers: int) -> None:
        key = held.key
        own = sorted(batch for batch in batches_of_epoch(key.epoch) if batch[1] == key.task)
        todo = [batch for batch in own if not lease.done_mask >> batch[2] & 1]
        if not todo:
            lease.finished = True
            return
        number = todo[0][2]
        if worker.pushing != (held, number):
            worker.pushing, worker.pushed = (held, number), {}
        batch = BatchId(key.epoch, key.task, held.attempt, number)
        for place, server in enumerate(self.servers[:num_servers]):
            if worker.pushed.get(place) in {"applied", "repeated"}:
                continue
            if not server.incarnation or server.paused:
                return
            answer = server.push(worker.generation, batch, worker.incarnation, self.rule)
            if answer in {"generation", "attempt"}:
                if answer == "attempt":
                    worker.leases.pop(held, None)
                return
            worker.pushed[place] = answer
        if all(worker.pushed.get(place) in {"applied", "repeated"} for place in range(NUM_SERVERS)):
            lease.done_mask |= 1 << number
            if "repeated" in worker.pushed.values():
                lease.repeated_mask |= 1 << number
            lease.losses[number] = loss_of(todo[0])
            lease.seconds += 0.25
            lease.finished = len(todo) == 1
            worker.pushing = None

    def fail_task(self, index: int) -> None:
        """A worker cannot do its first task."""
        for lease in self.workers[index].leases.values():
            if not lease.finished and not lease.failure:
                lease.failure = "ValueError: bad row"
                return

    def push_late(self, index: int) -> None:
        """Remembers a worker's next push, to arrive long after."""
        worker = self.workers[index]
        for held, lease in worker.leases.items():
            if held.key.kind == "train" and not lease.finished:
                own = [
                    batch for batch in batches_of_epoch(held.key.epoch) if batch[1] == held.key.task
                ]
                number = max(batch[2] for batch in own)
                batch = BatchId(held.key.epoch, held.key.task, held.attempt, number)
                self.late_pushes.append((worker.generation, batch, worker.incarnation))
                return

    def deliver_late_push(self, place: int, *, keeps: bool = False) -> None:
        """A push arrives of which its sender never heard again."""
        if self.late_pushes and self.rule.update == "async":
            generation, batch, worker = self.late_pushes[0]
            if not keeps:
                self.late_pushes.pop(0)
            server = self.servers[place]
            if server.incarnation and not server.paused:
                server.push(generation, batch, worker, self.rule)
                self.compare()

    def deliver_late(self, place: int, *, keeps: bool) -> None:
        """A heartbeat arrives late; if it `keeps`, it will arrive once more."""
        if self.late:
            place %= len(self.late)
            request = self.late[place] if keeps else self.late.pop(place)
            self.deliver(request)

    def deliver_all_late(self) -> None:
        """Whatever is still under way arrives."""
        while self.late:
            self.deliver(self.late.pop())
        while self.late_pushes:
            for place in range(NUM_SERVERS):
                self.deliver_late_push(place, keeps=True)
            self.late_pushes.pop(0)

    # The executor.

    def snapshot(self, index: int) -> None:
        """One server answers the cut that is being taken."""
        cut, server = self.pending_cut, self.servers[index]
        if cut is None or index in cut.parts or server.paused:
            return
        if not server.incarnation or server.generation != cut.action.generation:
            self.fail_cut()
            return
        cut.parts[index] = server.snapshot(full=cut.action.full)
        if len(cut.parts) == NUM_SERVERS:
            self.commit_cut(cut)

    def commit_cut(self, cut: Cut) -> None:
        if self.freeze_late:
            cut.frozen = json.dumps({**json.loads(cut.frozen), **self.job.state.ledger.freeze()})
            cut.counted = self.oracle.counted
        for part_of, server in enumerate(self.servers):
            model: Counter[Batch] = Counter()
            for part in self.chain_of(cut, part_of):
                model = Counter(part.applied) if part.full else model + part.applied
            missing = cut.counted - set(model)
            assert not missing, f"a cut counts what server {part_of} does not hold: {missing}"
            del server
        self.pending_cut = None
        self.cuts[cut.action.cut] = cut
        before = self.job.phase
        self.tell(CutTaken(cut.action.cut))
        if before == "cutting" and self.job.phase == "validating":
            assert cut.counted == self.oracle.counted, "the cut is not of the end of the epoch"

    def chain_of(self, cut: Cut, server: int) -> list[Snapshot]:
        chain = [cut.parts[server]]
        while cut.action.parent:
            cut = self.cuts[cut.action.parent]
            chain.insert(0, cut.parts[server])
        return chain

    def fail_cut(self) -> None:
        cut = self.pending_cut
        if cut is not None:
            self.pending_cut = None
            self.tell(CutFailed(cut.action.cut, "disk full"))

    def finish_restore(self, *, fails: bool = False) -> None:
        """All servers restore, or one of them is not there."""
        action = self.pending_restore
        if action is None:
            return
        if any(server.paused for server in self.servers):
            return
        self.pending_restore = None
        self.failed_restores = self.failed_restores + 1 if fails else 0
        if self.damages and action.cut and not self.job.state.head.training_over:
            self.damages = False
            self.failed_restores = 0
            # Where no other is left the job would fail; so its volume is only away for a moment.
            cause = "damage" if len(self.job.cuts) > 1 else "storage"
            self.tell(RestoreFailed(action.generation, action.cut, "a bad checksum", cause))
            if cause == "storage":
                return
            assert action.cut not in self.job.cuts or action.generation != self.job.generation
            return
        is_alone = not all(server.incarnation for server in self.servers)
        if is_alone or 0 < self.failed_restores < 3:
            self.tell(RestoreFailed(action.generation, action.cut, "unreachable", "server"))
            return
        cut = self.cuts[action.cut] if action.cut else None
        for place, server in enumerate(self.servers):
            server.restore(action.generation, self.chain_of(cut, place) if cut else [])
        frozen = json.loads(cut.frozen) if cut else {}
        rolls_back = (
            action.generation == self.job.generation and not self.job.state.head.training_over
        )
        self.tell(RestoreDone(action.generation, action.cut, frozen))
        if rolls_back:
            expected = cut.counted if cut else set()
            assert self.oracle.counted == expected, "the ledger is not that of the cut"

    def decide(self) -> None:
        """The best epoch is always the first, so that the end goes back to it."""
        action = self.pending_decision
        if action is None:
            return
        self.pending_decision = None
        epoch = action.totals.epoch
        assert action.totals.trained == NUM_ROWS
        expected = sum(map(loss_of, sorted(batches_of_epoch(epoch))))
        assert abs(action.totals.loss_sum - expected) < 1e-9
        assert action.valid is not None
        assert action.valid.scores.positives == ((0, 3), (3, 2))
        is_last = epoch + 1 == NUM_EPOCHS
        self.tell(EpochDecided(epoch, {"epoch": epoch}, is_last, self.best_of_epochs, "the end"))

    def crash_master(self, *, surviving: int, resume: bool = False) -> None:
        """The master dies; of what was not durable only the first transactions survive.

        Args:
            surviving: So many.
            resume: The next one begins with new members.
        """
        self.flush(min(surviving, len(self.unflushed)))
        self.unflushed.clear()
        self.pending_cut = self.pending_restore = self.pending_decision = None
        for worker in self.workers:
            worker.asked = None
        records = {name: json.loads(text) for name, text in self.disk.items()}
        self.job = Job.from_ledger(self.settings, records, self.now, resume=resume)
        self.oracle = self.disk_oracle
        assert count_batches(self.job) == self.oracle.counted, "the ledger was not read whole"
        self.compare_status()
        self.compare()

    # Peace.

    def ask_to_end(self, index: int, *, within_seconds: float) -> None:
        """A server gets SIGTERM, and SIGKILL later."""
        if self.servers[index].incarnation:
            self.servers[index].leaves_at = self.now + within_seconds

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    def live(self, rounds: int, *, slow_disk: bool = False, undecided: bool = False) -> None:
        """Everyone does what they should, for so many half seconds.

        Args:
            rounds: Half seconds.
            slow_disk: No snapshot is done meanwhile.
            undecided: No epoch is decided meanwhile.
        """
        for _ in range(rounds):
            self.pass_time(0.5)
            for index in range(NUM_SERVERS):
                self.register_if_needed("ps", index)
                self.heartbeat_server(index)
                if not slow_disk:
                    self.snapshot(index)
            self.finish_restore()
            if not undecided:
                self.decide()
            for index in range(NUM_WORKERS):
                self.register_if_needed("worker", index)
                self.heartbeat(index)
                if self.workers[index].asked is None:
                    self.lease(index)
                self.work(index)
                self.heartbeat(index)
            self.observe()

    def stop_and_go_on(self) -> None:
        """A person stops the job, and starts it again: all members are new."""
        if self.job.phase == "finished":
            return
        self.tell(StopAsked())
        for _ in range(60):
            if self.job.phase == "stopped":
                break
            self.live(1)
        assert self.job.phase == "stopped", "the job does not stop"
        # What was asked for before the stop is still answered.
        self.decide()
        self.finish_restore()
        assert self.job.phase == "stopped", "a job that was stopped begins again"
        self.processes.clear()
        self.servers = [Server() for _ in range(NUM_SERVERS)]
        self.workers = [Worker() for _ in range(NUM_WORKERS)]
        self.ended = ""
        self.crash_master(surviving=len(self.unflushed), resume=True)
        self.tell(Tick())

    def recover(self) -> None:
        """Whoever hangs goes on, until there is training to do or nothing more happens."""
        for member in (*self.servers, *self.workers):
            member.paused = False
        for worker in self.workers:
            worker.stalled = False
        for _ in range(12):
            if self.job.phase in {"training", "finished"}:
                break
            self.live(1)

    def register_if_needed(self, role: str, index: int) -> None:
        member = self.workers[index] if role == "worker" else self.servers[index]
        if member.incarnation and not member.registered:
            self.register(role, index)

    def finish(self) -> None:
        """Members stay alive from now on: the job must come to its end."""
        for _ in range(400):
            if self.job.phase == "finished":
                break
            if self.job.phase == "scoring":
                self.deliver_all_late()
            elif self.job.phase == "training" and self.job.status().epoch == NUM_EPOCHS - 1:
                self.push_late(0)
            self.live(1)
        assert self.job.phase == "finished", f"the job hangs in {self.job.phase}"
        status = self.job.status()
        assert [totals.trained for totals in status.epochs] == [NUM_ROWS] * NUM_EPOCHS
        assert [totals.split for totals in status.final_scores] == ["valid", "test"]
        assert status.final_scores[0].scores.positives == ((0, 3), (3, 2))
        assert status.final_scores[1].scores.positives == ((0, 2),)
        for server in self.servers:
            if server.incarnation:
                assert set(server.applied) == batches_of_epoch(0), "not the best model is left"
        for _ in range(40):
            if self.ended:
                break
            self.live(1)
        assert self.ended == "finished", "members are not let go"
