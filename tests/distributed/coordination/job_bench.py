"""A job whose actions are performed at once, for tests of its single decisions."""

import json

from ctr_pipeline.distributed.coordination.events import (
    Announce,
    AnswerLease,
    CutTaken,
    DecideEpoch,
    EpochDecided,
    Persist,
    ProcessesSeen,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    HeartbeatRequest,
    HeldLease,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterRequest,
    ScoreSummary,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit
from ctr_pipeline.specs.course import Supervision, TrainingCourse

SCORES = ScoreSummary(((3, 4),), ((1, 6),), 2.0, 1.0)


def plan_epoch(epoch):
    """Six tasks of four batches of 8 records."""
    return EpochPlan(epoch, num_tasks=6, rows_per_task=32, batch_size=8, other_rows=())


class Call:
    """Where an answer goes that is not there yet."""

    def __init__(self):
        self.replies = []

    def give(self, reply):
        self.replies.append(reply)

    @property
    def verdicts(self):
        return [reply.verdict for reply in self.replies]


class Bench:
    """A job with its actions performed at once, its members made of words, and a clock in hand."""

    def __init__(self, *, records=None, resume=False, **changes):
        values = {
            "num_parameter_servers": 1,
            "min_workers": 1,
            "max_workers": 2,
            "plan_epoch": plan_epoch,
            "valid": ScoredSplit("valid", 10, 10),
            "final_splits": (ScoredSplit("test", 10, 10),),
            "scores_folder": "scores",
            "most_clock_step_seconds": 1e9,
        }
        given = {key: changes.pop(key) for key in TrainingCourse.model_fields if key in changes}
        values["course"] = TrainingCourse(**{"epochs": 2, **given})
        given = {key: changes.pop(key) for key in Supervision.model_fields if key in changes}
        # Unchecked: some tests know no silence at all.
        values["supervision"] = Supervision.model_construct(**{"silence_seconds": 10.0, **given})
        self.settings = JobSettings(**{**values, **changes})
        self.now = 0.0
        self.disk = {}
        self.cuts = {}
        self.log = []
        self.holds = set()
        self.best_epoch, self.stops = 0, False
        if records is None:
            self.job = Job.begin(self.settings, self.now)
        else:
            self.job = Job.from_ledger(self.settings, records, self.now, resume=resume)

    def do(self, actions):
        for action in actions:
            self.log.append(action)
            if isinstance(action, Persist):
                for name, record in action.records.items():
                    self.disk.pop(name, None)
                    if record is not None:
                        self.disk[name] = json.loads(json.dumps(record))
        for action in actions:
            if type(action) in self.holds:
                continue
            if isinstance(action, AnswerLease):
                action.call.give(action.reply)
            elif isinstance(action, RestoreCut):
                self.restore(action)
            elif isinstance(action, TakeCut):
                self.cuts[action.cut] = json.loads(json.dumps(action.frozen))
                self.tell(CutTaken(action.cut))
            elif isinstance(action, DecideEpoch):
                epoch = action.totals.epoch
                record = {"epoch": epoch}
                self.tell(EpochDecided(epoch, record, self.stops, self.best_epoch, "the end"))

    def restore(self, action):
        frozen = self.cuts[action.cut] if action.cut else {}
        self.tell(RestoreDone(action.generation, action.cut, frozen))

    def tell(self, event, *, after=0.0):
        self.now += after
        self.do(self.job.handle(event, self.now))

    def register(self, role, index, incarnation):
        address = f"127.0.0.1:{index}" if role == "ps" else ""
        request = RegisterRequest(
            Member(role, index, incarnation), 1, "host", address, "", 1, "config"
        )
        refused, actions = self.job.register(request, self.now)
        self.do(actions)
        return refused

    def replace_server(self, incarnation):
        """The launcher's new process comes before anybody told of the end of the old one."""
        self.see("ps", 0, incarnation)
        assert self.register("ps", 0, incarnation) == ""

    def heartbeat(
        self,
        role,
        index,
        incarnation,
        *reports,
        held=(),
        generation=None,
        rss=0,
        active=-1,
        stats=None,
        paused=False,
        leaves_in=None,
    ):
        request = HeartbeatRequest(
            Member(role, index, incarnation),
            self.job.generation if generation is None else generation,
            reports,
            stats or MemberStats(rss_bytes=rss),
            held,
            active_workers=active,
            paused=paused,
            leaves_in_seconds=leaves_in,
        )
        reply, actions = self.job.heartbeat(request, self.now)
        self.do(actions)
        return reply

    def wait_for_tasks(self, index, incarnation, *, seconds=2.0):
        """A request for tasks that the job keeps; its answers are what it is given."""
        request = LeaseRequest(
            Member("worker", index, incarnation), self.job.generation, 1, wait_seconds=seconds
        )
        call = Call()
        reply, actions = self.job.lease(request, self.now, call)
        self.do(actions)
        assert reply is None
        return call

    def lease(self, index, incarnation, most=9, held=()):
        request = LeaseRequest(
            Member("worker", index, incarnation), self.job.generation, most, held
        )
        reply, actions = self.job.lease(request, self.now)
        self.do(actions)
        return reply

    def begin_training(self, *workers):
        self.tell(Tick())
        self.register("ps", 0, "p")
        for index, name in enumerate(workers):
            self.register("worker", index, name)
        assert self.job.phase == "training"

    def report(self, task, mask, *, seconds=1.0, repeated=0, failure="", finished=None):
        losses = tuple(BatchLoss(batch, 1.0) for batch in range(4) if mask >> batch & 1)
        return TaskReport(
            task.key,
            task.attempt,
            mask,
            repeated,
            losses,
            mask == 15 if finished is None else finished,
            failure,
            seconds,
            SCORES if task.key.kind == "score" else None,
        )

    def train_all(self, index=0, name="w", most_tasks=99):
        """A worker takes and finishes tasks, as long as there are any."""
        for _ in range(most_tasks):
            reply = self.lease(index, name, most=1)
            if reply.verdict != "tasks":
                return
            self.heartbeat("worker", index, name, self.report(reply.tasks[0], 15, finished=True))

    def see(
        self,
        role,
        index,
        incarnation,
        reason=None,
        *,
        traceback="",
        code=-9,
        waits_for="",
        remedy="",
    ):
        state = ProcessState(
            *(role, index, incarnation, 1, reason is None, code, reason, traceback, 0, waits_for),
            remedy=remedy,
        )
        self.tell(ProcessesSeen((state,)))

    def all_of(self, kind):
        return [action for action in self.log if isinstance(action, kind)]

    def told(self):
        return "\n".join(f"{one.what}: {one.done}" for one in self.all_of(Announce))


def held_by(bench, name):
    board = bench.job.state.open_board()
    return tuple(HeldLease(key, task.attempt) for key, task in board.held_by(name))


def fail_task(bench, times, index=0, name="a"):
    for _ in range(times):
        (task,) = bench.lease(index, name, most=1).tasks
        failure = "Traceback\n  in step\nValueError: bad row"
        bench.heartbeat("worker", index, name, bench.report(task, 1, failure=failure))


def fail_restore(bench, cause, *, after=0.0, announced=0):
    wanted = bench.all_of(RestoreCut)[-1]
    bench.now += after
    bench.tell(RestoreFailed(wanted.generation, wanted.cut, "why", cause, announced))


def restored_cuts(bench):
    return [action.cut for action in bench.log if isinstance(action, RestoreCut)]
