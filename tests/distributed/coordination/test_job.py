"""Single decisions of the machine; `test_job_properties` mixes them all."""

import json
from dataclasses import replace

import pytest

from ctr_pipeline.distributed.coordination.events import (
    Announce,
    AnswerLease,
    CannotGoOn,
    CutContradicted,
    CutDamaged,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    End,
    EpochDecided,
    Fail,
    Persist,
    ProcessesSeen,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    ScaleAsked,
    StartMember,
    StartRefused,
    StopAsked,
    StopMember,
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
    checksum_of,
)
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.tasks import EpochPlan, ScoredSplit

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
            "num_epochs": 2,
            "plan_epoch": plan_epoch,
            "valid": ScoredSplit("valid", 10, 10),
            "final_splits": (ScoredSplit("test", 10, 10),),
            "scores_folder": "scores",
            "checkpoint_seconds": 30.0,
            "most_clock_step_seconds": 1e9,
        }
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
    ):
        request = HeartbeatRequest(
            Member(role, index, incarnation),
            self.job.generation if generation is None else generation,
            reports,
            stats or MemberStats(rss_bytes=rss),
            held,
            active_workers=active,
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

    def see(self, role, index, incarnation, reason=None, *, traceback="", code=-9):
        state = ProcessState(
            role, index, incarnation, 1, reason is None, code, reason, traceback, 0
        )
        self.tell(ProcessesSeen((state,)))

    def all_of(self, kind):
        return [action for action in self.log if isinstance(action, kind)]

    def told(self):
        return "\n".join(f"{one.what}: {one.done}" for one in self.all_of(Announce))


# Beginning.


def test_a_job_starts_all_its_members_at_once_and_asks_again_in_vain_only_later():
    bench = Bench(num_parameter_servers=2, max_workers=2, standby_workers=1)
    wanted = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2)]
    bench.tell(Tick())
    assert [(one.role, one.index) for one in bench.all_of(StartMember)] == wanted
    bench.tell(Tick(), after=1.0)
    assert len(bench.all_of(StartMember)) == 5
    bench.tell(Tick(), after=5.0)
    assert len(bench.all_of(StartMember)) == 10


def test_training_begins_with_the_first_workers_and_all_servers():
    bench = Bench(num_parameter_servers=2, min_workers=2, max_workers=4)
    bench.register("ps", 0, "p0")
    bench.register("worker", 0, "a")
    assert bench.job.phase == "waiting"
    bench.register("ps", 1, "p1")
    assert bench.all_of(RestoreCut) == [RestoreCut(0, 1)]
    assert bench.job.phase == "waiting"
    bench.register("worker", 3, "d")
    assert bench.job.phase == "training"
    assert bench.job.ps_addresses == ("127.0.0.1:0", "127.0.0.1:1")


def test_who_joins_later_works_at_once():
    bench = Bench()
    bench.begin_training("a")
    bench.register("worker", 1, "b")
    assert bench.lease(1, "b").verdict == "tasks"


# Waiting for tasks.


@pytest.fixture
def waiting():
    """Worker a is at work on the only task, and b waits for two seconds."""
    bench = Bench(max_workers=3, plan_epoch=lambda epoch: EpochPlan(epoch, 1, 32, 8, ()))
    bench.begin_training("a", "b")
    (task,) = bench.lease(0, "a").tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 1))
    return bench, bench.wait_for_tasks(1, "b")


def held_by(bench, name):
    board = bench.job._state.open_board()
    return tuple(HeldLease(key, task.attempt) for key, task in board.held_by(name))


def test_who_waits_gets_what_a_lost_worker_held(waiting):
    bench, call = waiting
    bench.tell(Tick(), after=1.0)
    assert call.replies == []
    bench.see("worker", 0, "a", "killed")
    (reply,) = call.replies
    assert [task.key.task for task in reply.tasks] == [0]
    # It is on disk before the answer, as any lease is.
    assert bench.disk["task/0"]["holder"] == "b"


def test_who_waits_gets_what_another_could_not_do(waiting):
    bench, call = waiting
    (lease, *_) = held_by(bench, "a")
    bench.heartbeat(
        "worker", 0, "a", TaskReport(lease.key, lease.attempt, 1, 0, (), False, "bug", 1.0, None)
    )
    assert [task.key for task in call.replies[0].tasks] == [lease.key]


def test_who_waits_is_answered_when_its_time_is_over(waiting):
    bench, call = waiting
    bench.tell(Tick(), after=1.9)
    assert call.replies == []
    bench.tell(Tick(), after=0.1)
    assert call.verdicts == ["wait"]
    assert call.replies[0].wait_seconds == 0.0


def test_who_waits_hears_at_once_that_it_is_to_leave(waiting):
    bench, call = waiting
    bench.tell(ScaleAsked(target_workers=1))
    assert call.verdicts == ["leave"]


def test_who_waits_hears_of_a_rollback_and_of_the_end(waiting):
    bench, call = waiting
    bench.see("ps", 0, "p", "killed")
    assert call.verdicts == ["wait"]
    assert call.replies[0].generation == bench.job.generation
    again = bench.wait_for_tasks(1, "b")
    bench.tell(CannotGoOn("no rows"))
    assert again.verdicts == ["end"]


def test_who_waits_takes_over_what_another_has_not_begun_once_that_is_quicker():
    bench = Bench()
    bench.begin_training("a", "b")
    bench.train_all(0, "a", 2)
    (first, _) = bench.lease(0, "a", most=2).tasks
    for seconds in (1.0, 3.0):
        (task,) = bench.lease(1, "b", most=1).tasks
        bench.heartbeat("worker", 1, "b", bench.report(task, 15, seconds=seconds))
    call = bench.wait_for_tasks(1, "b")
    bench.tell(Tick())
    assert call.replies == []
    for mask, seconds in ((1, 100.0), (3, 200.0)):
        bench.heartbeat("worker", 0, "a", bench.report(first, mask, seconds=seconds))
    bench.tell(Tick())
    assert call.verdicts == ["tasks"]


def test_who_waits_gets_tasks_when_an_epoch_begins():
    bench = Bench(valid=None, min_workers=2)
    bench.tell(Tick())
    bench.register("ps", 0, "p")
    bench.register("worker", 0, "a")
    first = bench.wait_for_tasks(0, "a")
    bench.register("worker", 1, "b")
    assert first.verdicts == ["tasks"]
    bench.holds.add(TakeCut)
    bench.train_all(1, "b")
    (task,) = first.replies[0].tasks
    call = bench.wait_for_tasks(1, "b")
    bench.heartbeat("worker", 0, "a", bench.report(task, 15, finished=True))
    assert bench.job.phase == "cutting"
    assert call.replies == []
    bench.tell(CutTaken(bench.all_of(TakeCut)[-1].cut))
    assert [task.key.epoch for task in call.replies[0].tasks] == [1]


def test_a_dead_worker_that_waits_holds_nothing(waiting):
    bench, call = waiting
    bench.register("worker", 2, "c")
    alive = bench.wait_for_tasks(2, "c")
    bench.see("worker", 1, "b", "killed")
    bench.see("worker", 0, "a", "killed")
    assert all(not reply.tasks for reply in call.replies)
    assert alive.verdicts == ["tasks"]
    assert held_by(bench, "b") == ()


def test_a_call_that_has_ended_is_given_nothing(waiting):
    bench, call = waiting
    bench.job.hang_up(call)
    bench.job.hang_up(call)
    bench.see("worker", 0, "a", "killed")
    assert call.replies == []
    assert held_by(bench, "b") == ()


def test_who_asks_again_waits_once(waiting):
    bench, call = waiting
    again = bench.wait_for_tasks(1, "b")
    assert call.verdicts == ["wait"]
    # The end of the first, of which the master hears late, is none of the second.
    bench.job.hang_up(call)
    bench.see("worker", 0, "a", "killed")
    assert again.verdicts == ["tasks"]


def test_a_stranger_does_not_wait():
    bench = Bench()
    bench.begin_training("a")
    request = LeaseRequest(Member("worker", 1, "x"), bench.job.generation, 1, wait_seconds=2.0)
    reply, _ = bench.job.lease(request, bench.now, Call())
    assert reply.verdict == "wait"


@pytest.mark.parametrize(
    ("role", "index", "why"),
    [("master", 0, "does not register"), ("ps", 1, "has 1 parameter servers")],
)
def test_who_has_no_place_is_refused(role, index, why):
    assert why in Bench().register(role, index, "x")


def test_an_unknown_process_is_asked_to_register():
    bench = Bench()
    bench.begin_training("a")
    assert bench.heartbeat("worker", 1, "b").directive == "register_again"
    assert bench.lease(1, "b").verdict == "wait"


def test_a_worker_of_another_generation_waits():
    bench = Bench()
    bench.begin_training("a")
    request = LeaseRequest(Member("worker", 0, "a"), bench.job.generation - 1, 1)
    assert bench.job.lease(request, 0.0)[0].verdict == "wait"


# Leases.


def test_a_fast_worker_gets_work_for_some_seconds_and_a_slow_one_a_task():
    bench = Bench(work_ahead_seconds=5.0)
    bench.begin_training("fast", "slow")
    for index, name, seconds in ((0, "fast", 2.0), (1, "slow", 64.0)):
        (task,) = bench.lease(index, name).tasks
        bench.heartbeat("worker", index, name, bench.report(task, 1, seconds=seconds / 4))
        bench.heartbeat("worker", index, name, bench.report(task, 15, seconds=seconds))
    # 16 records/s: 80 records, so 3 tasks of 32, but its share of the 4 left is 2.
    assert len(bench.lease(0, "fast").tasks) == 2
    assert len(bench.lease(1, "slow").tasks) == 1


def test_a_lease_whose_reply_was_lost_is_given_again():
    bench = Bench()
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    assert bench.lease(0, "a", held=()).tasks == (task,)
    held = (HeldLease(task.key, task.attempt),)
    assert bench.lease(0, "a", held=held).verdict == "wait"


def test_an_idle_worker_takes_over_what_a_busy_one_has_not_begun():
    bench = Bench(work_ahead_seconds=1e6)
    bench.begin_training("a", "b")
    (first,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(first, 15))
    own = bench.lease(0, "a").tasks
    bench.train_all(1, "b")
    stolen = bench.job.status().epochs[0]
    assert stolen.trained == (6 - 1) * 32
    # What it has begun stays with it.
    revoked = bench.heartbeat(
        "worker", 0, "a", held=tuple(HeldLease(task.key, task.attempt) for task in own)
    ).revoked
    assert [lease.key for lease in revoked] == [task.key for task in own[1:]]


def test_the_end_of_a_task_is_no_revocation():
    bench = Bench()
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    held = (HeldLease(task.key, task.attempt),)
    assert bench.heartbeat("worker", 0, "a", bench.report(task, 15), held=held).revoked == ()


def test_rounds_wait_for_workers_with_leases_only():
    bench = Bench()
    bench.begin_training("a", "b")
    assert bench.heartbeat("ps", 0, "p").active_workers == ()
    bench.lease(1, "b")
    assert bench.heartbeat("ps", 0, "p").active_workers == ("b",)
    assert bench.heartbeat("ps", 0, "p", active=checksum_of(["b"])).active_workers is None
    bench.lease(0, "a")
    assert bench.heartbeat("ps", 0, "p", active=checksum_of(["b"])).active_workers == ("a", "b")
    assert bench.heartbeat("worker", 1, "b").active_workers is None


def test_progress_is_not_written_but_leases_and_ends_are_durable():
    bench = Bench()
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    assert bench.all_of(Persist)[-1].durable
    written = len(bench.all_of(Persist))
    bench.heartbeat("worker", 0, "a", bench.report(task, 3, repeated=1))
    assert len(bench.all_of(Persist)) == written
    bench.heartbeat("worker", 0, "a", bench.report(task, 15, repeated=1))
    assert bench.all_of(Persist)[-1].durable


# Failures of tasks.


def fail_task(bench, times, index=0, name="a"):
    for _ in range(times):
        (task,) = bench.lease(index, name, most=1).tasks
        failure = "Traceback\n  in step\nValueError: bad row"
        bench.heartbeat("worker", index, name, bench.report(task, 1, failure=failure))


def test_a_task_beyond_its_budget_fails_the_job_with_its_traceback():
    bench = Bench(max_task_failures=3)
    bench.begin_training("a")
    fail_task(bench, 2)
    assert bench.job.phase == "training"
    fail_task(bench, 1)
    (failure,) = bench.all_of(Fail)
    assert failure.reason == (
        "task 0 of epoch 1 (32 records) failed 3 times, the last time: ValueError: bad row"
    )
    assert failure.traceback.startswith("Traceback")
    assert bench.job.status().reason == failure.reason


def test_a_task_may_be_dropped_by_name():
    bench = Bench(max_task_failures=2, max_dropped_tasks=1)
    bench.begin_training("a")
    fail_task(bench, 2)
    status = bench.job.status()
    assert status.dropped_tasks == ("task 0 of epoch 1 (32 records): ValueError: bad row",)
    # One batch of it was done.
    assert (status.trained, status.dropped) == (8, 24)
    bench.train_all(0, "a")
    epoch = bench.job.status().epochs[0]
    assert (epoch.trained, epoch.dropped) == (6 * 32 - 24, 24)


def test_one_drop_too_many_fails_the_job():
    bench = Bench(max_task_failures=1, max_dropped_tasks=1)
    bench.begin_training("a")
    fail_task(bench, 1)
    fail_task(bench, 1)
    assert bench.job.phase == "failed"


def test_deaths_of_workers_use_up_no_budget():
    bench = Bench(max_task_failures=1)
    bench.begin_training("w0")
    for number in range(20):
        assert bench.lease(0, f"w{number}").tasks[0].key.task == 0
        bench.see("worker", 0, f"w{number}", "killed")
        bench.register("worker", 0, f"w{number + 1}")
    assert bench.job.phase == "training"


def test_a_failure_that_is_reported_twice_counts_once():
    bench = Bench(max_task_failures=2)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    report = bench.report(task, 0, failure="ValueError")
    bench.heartbeat("worker", 0, "a", report)
    bench.heartbeat("worker", 0, "a", report)
    assert bench.job.phase == "training"


def test_a_task_that_is_said_to_be_finished_and_is_not_goes_out_again():
    bench = Bench()
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 7, finished=True))
    (again,) = bench.lease(0, "a", most=1).tasks
    assert (again.key, again.done_mask) == (task.key, 7)
    assert again.attempt > task.attempt


# Silence, stalls, slowness.


def keep_alive(bench, seconds, *names):
    for _ in range(int(seconds)):
        bench.heartbeat("ps", 0, "p")
        for index, name in enumerate(names):
            bench.heartbeat("worker", index, name)
        bench.tell(Tick(), after=1.0)


def test_a_silent_worker_is_ended_and_started_again_and_its_work_goes_to_others():
    bench = Bench(worker_silence_seconds=10.0, server_silence_seconds=100.0)
    bench.begin_training("a", "b")
    bench.see("worker", 0, "a")
    (task,) = bench.lease(0, "a").tasks
    bench.tell(Tick(), after=10.0)
    bench.heartbeat("worker", 1, "b")
    assert not bench.all_of(StopMember)
    bench.tell(Tick(), after=0.5)
    assert bench.all_of(StopMember) == [StopMember("worker", 0, "a", 0.0)]
    assert bench.lease(1, "b").tasks[0].key == task.key
    # It wakes before it dies: it has no place here any more.
    assert bench.heartbeat("worker", 0, "a", bench.report(task, 15)).directive == "leave"
    assert "given up" in bench.register("worker", 0, "a")
    assert bench.job.status().trained == 0
    bench.log.clear()
    bench.see("worker", 0, "a", "killed")
    assert bench.all_of(StartMember) == [StartMember("worker", 0)]


def test_a_leap_of_the_clock_is_nobodys_silence():
    bench = Bench(worker_silence_seconds=10.0, most_clock_step_seconds=2.0)
    bench.begin_training("a")
    for leap in (1e9, -1e9, 1e9):
        bench.tell(Tick(), after=leap)
    assert not bench.all_of(StopMember)


def test_a_silent_server_is_ended_and_the_job_goes_back():
    bench = Bench(server_silence_seconds=10.0)
    bench.begin_training("a")
    generation = bench.job.generation
    bench.tell(Tick(), after=10.5)
    assert StopMember("ps", 0, "p", 0.0) in bench.all_of(StopMember)
    assert bench.job.phase == "restoring"
    assert bench.job.generation > generation
    assert bench.heartbeat("ps", 0, "p").directive == "leave"


def test_a_start_that_never_registers_is_ended_and_counts_as_an_error():
    bench = Bench(start_seconds=60.0, max_start_failures=2)
    bench.tell(Tick())
    for number in range(2):
        bench.see("worker", 0, f"w{number}")
        bench.tell(Tick(), after=61.0)
        bench.see("worker", 0, f"w{number}", "killed")
    assert "worker 0 did not register within 60 s" in bench.all_of(Fail)[0].reason


def test_a_refused_start_is_told_once_and_asked_for_again_ever_more_seldom():
    bench = Bench()
    bench.tell(Tick())
    asked = []
    for _ in range(6):
        bench.log.clear()
        bench.tell(StartRefused("worker", 0, "no room", is_final=False))
        bench.tell(StartRefused("worker", 1, "no room", is_final=False))
        begun = bench.now
        while StartMember("worker", 0) not in bench.log:
            bench.tell(Tick(), after=0.5)
        asked.append(bench.now - begun)
        assert bench.told().count("cannot be started: no room") == (1 if len(asked) == 1 else 0)
    assert asked == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert bench.job.phase == "waiting"
    # Once one was started, the next refusal is another trouble.
    for index, name in enumerate("ab"):
        bench.see("worker", index, name)
        bench.see("worker", index, name, "killed")
    bench.log.clear()
    bench.tell(StartRefused("worker", 0, "no room", is_final=False))
    assert "worker 0 cannot be started: no room" in bench.told()


def test_a_start_that_can_never_be_fails_the_job_in_the_launchers_words():
    bench = Bench()
    bench.tell(Tick())
    bench.tell(StartRefused("ps", 0, "/usr/bin/python: No such file", is_final=True))
    (failure,) = bench.all_of(Fail)
    assert failure.reason == ("parameter server 0 cannot be started: /usr/bin/python: No such file")


def test_a_refusal_that_comes_after_the_member_did_changes_nothing():
    bench = Bench()
    bench.begin_training("a")
    bench.log.clear()
    bench.tell(StartRefused("worker", 0, "no room", is_final=True))
    assert bench.job.phase == "training"
    assert bench.log == []


def test_starts_that_the_system_refuses_are_no_errors_of_the_program():
    bench = Bench(max_start_failures=2)
    bench.begin_training("a")
    for number in range(5):
        bench.see("worker", 1, f"b{number}", "not_started", code=70)
    assert bench.job.phase == "training"
    assert "worker 1 could not be started" in bench.told()


def test_what_is_stopped_is_a_process_and_not_a_place():
    bench = Bench(worker_silence_seconds=10.0, server_silence_seconds=100.0)
    bench.begin_training("registered-by-hand")
    bench.see("worker", 1, "other")
    bench.tell(Tick(), after=10.5)
    assert bench.all_of(StopMember) == [StopMember("worker", 0, "registered-by-hand", 0.0)]


def test_a_task_that_stands_still_counts_as_failed_and_its_worker_is_ended():
    bench = Bench(task_timeout_floor_seconds=60.0, max_task_failures=2)
    bench.begin_training("a")
    bench.lease(0, "a")
    keep_alive(bench, 60, "a")
    assert not bench.all_of(StopMember)
    keep_alive(bench, 2, "a")
    assert bench.all_of(StopMember) == [StopMember("worker", 0, "a", 0.0)]
    assert "no batch of it was done within 60 s" in bench.told()


def test_a_worker_that_hangs_in_the_middle_of_a_task_is_no_failure_of_the_task():
    bench = Bench(task_timeout_floor_seconds=60.0, max_task_failures=1)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 1))
    keep_alive(bench, 62, "a")
    assert bench.job.phase == "training"
    assert "worker 0 stands still" in bench.told()


def test_of_workers_that_stand_still_together_the_first_is_ended():
    bench = Bench(task_timeout_floor_seconds=60.0, worker_silence_seconds=1e9)
    bench.begin_training("a", "b")
    bench.lease(0, "a")
    keep_alive(bench, 5, "a", "b")
    bench.lease(1, "b")
    keep_alive(bench, 60, "a", "b")
    assert [one.index for one in bench.all_of(StopMember)] == [0]
    keep_alive(bench, 30, "a", "b")
    assert [one.index for one in bench.all_of(StopMember)] == [0]


def stall(bench, seconds):
    """Workers that are replaced as often as need be hold work, and nothing of it is done."""
    for _ in range(int(seconds)):
        bench.heartbeat("ps", 0, "p")
        for index in range(2):
            if not bench.job._state.member("worker", index).incarnation:
                bench.register("worker", index, f"w{index}-{bench.now}")
            name = bench.job._state.member("worker", index).incarnation
            bench.heartbeat("worker", index, name)
            bench.lease(index, name, most=1)
        bench.tell(Tick(), after=1.0)


def stalling_bench():
    bench = Bench(max_task_failures=99, worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.tell(Tick(), after=31.0)
    assert bench.job.cuts == (1,)
    # No other cut comes about, so that what follows is taken back each time.
    bench.holds.add(TakeCut)
    bench.train_all(0, "a", most_tasks=1)
    return bench


def test_a_job_in_which_nothing_is_counted_goes_back_to_its_last_cut():
    bench = stalling_bench()
    generation = bench.job.generation
    stall(bench, 110)
    assert bench.job.generation == generation
    stall(bench, 15)
    assert bench.job.generation > generation
    assert restored_cuts(bench)[-1] == 1
    told = (
        "nothing was counted for 120 s though workers hold work: the job goes back to checkpoint 1"
    )
    assert told in bench.told()
    # What was wrong is over.
    bench.holds.clear()
    bench.register("worker", 1, "y")
    bench.register("worker", 0, "z")
    bench.train_all(0, "z")
    assert bench.job.phase == "finished"


def test_a_job_that_stalls_again_and_again_fails_and_says_why():
    bench = stalling_bench()
    stall(bench, 600)
    (failure,) = bench.all_of(Fail)
    assert failure.reason == (
        "nothing was counted for 120 s though workers hold work; this happened 4 times in a row "
        "without any progress"
    )


def test_what_is_only_repeated_is_no_progress_out_of_a_stall():
    bench = stalling_bench()
    for number in range(4):
        assert bench.job.phase == "training"
        stall(bench, 150)
        if bench.job.phase == "failed":
            break
        # Up to where it stalled, and no further.
        bench.register("worker", 0, f"again-{number}")
        (task,) = bench.lease(0, f"again-{number}", most=1).tasks
        bench.heartbeat("worker", 0, f"again-{number}", bench.report(task, 1))
    assert bench.job.phase == "failed"


def test_nobody_holds_work_in_a_job_that_waits_so_that_it_does_not_stall():
    bench = Bench(server_silence_seconds=1e9, worker_silence_seconds=1e9)
    bench.begin_training("a")
    generation = bench.job.generation
    for _ in range(500):
        bench.tell(Tick(), after=1.0)
    assert bench.job.generation == generation


def as_member(bench, name, secret, *, role="worker", index=0, held=()):
    """A heartbeat and a call for work in the name of a member."""
    member = Member(role, index, name, secret)
    beat = HeartbeatRequest(member, bench.job.generation, (), MemberStats(), held)
    reply, actions = bench.job.heartbeat(beat, bench.now)
    bench.do(actions)
    leased, actions = bench.job.lease(LeaseRequest(member, bench.job.generation, 9), bench.now)
    bench.do(actions)
    return reply, leased


def register_with_secret(bench, role, index, name, secret):
    request = RegisterRequest(
        Member(role, index, name, secret), 1, "host", "a:1" if role == "ps" else "", "", 1, ""
    )
    refused, actions = bench.job.register(request, bench.now)
    bench.do(actions)
    return refused


def test_who_only_knows_the_name_of_a_member_is_not_taken_for_it():
    bench = Bench()
    bench.tell(Tick())
    assert register_with_secret(bench, "ps", 0, "p", "of p") == ""
    assert register_with_secret(bench, "worker", 0, "w", "of w") == ""
    assert register_with_secret(bench, "worker", 0, "w", "guessed") == (
        "another process has registered under its name"
    )
    for secret in ("guessed", ""):
        reply, leased = as_member(bench, "w", secret)
        assert (reply.directive, reply.ps_addresses, reply.active_workers) == ("leave", (), None)
        assert leased.tasks == ()
    # The member itself, whose reply to its registration may have been lost, goes on.
    assert register_with_secret(bench, "worker", 0, "w", "of w") == ""
    reply, leased = as_member(bench, "w", "of w")
    assert (reply.directive, reply.ps_addresses) == ("go_on", ("a:1",))
    assert leased.tasks


def test_members_prove_themselves_to_the_next_master_whose_ledger_has_no_secret():
    bench = Bench()
    bench.tell(Tick())
    register_with_secret(bench, "ps", 0, "p", "the secret of p")
    register_with_secret(bench, "worker", 0, "w", "the secret of w")
    assert "the secret" not in json.dumps(bench.disk)
    assert "the secret" not in repr(bench.job.status())
    assert "the secret" not in repr(Member("worker", 0, "w", "the secret of w"))
    again = Bench(records=bench.disk)
    assert as_member(again, "w", "the secret of p")[0].directive == "leave"
    assert as_member(again, "w", "the secret of w")[0].directive == "go_on"


def test_a_process_that_nobody_knows_is_told_nothing_of_others():
    bench = Bench()
    bench.begin_training("a")
    reply, _ = as_member(bench, "nobody", "x", index=7)
    assert (reply.directive, reply.ps_addresses, reply.active_workers) == (
        "register_again", (), None,
    )  # fmt: skip


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"losses": (BatchLoss(-1, 1.0),)}, "a loss of batch -1 of 4"),
        ({"losses": (BatchLoss(4, 1.0),)}, "a loss of batch 4 of 4"),
        ({"losses": (BatchLoss(0, INFINITE), BatchLoss(1, -INFINITE))}, "a loss of inf"),
        ({"losses": (BatchLoss(0, 1e308), BatchLoss(1, 1e308))}, "a loss of 1e+308"),
        ({"losses": (BatchLoss(0, float("nan")),)}, "a loss of nan"),
        ({"done_mask": -1}, "batches beyond the 4 of its task"),
        ({"done_mask": 1 << 5000}, "batches beyond the 4 of its task"),
        ({"repeated_mask": 16}, "batches beyond the 4 of its task"),
        ({"seconds": float("nan")}, "nan seconds"),
        ({"seconds": -1.0}, "-1.0 seconds"),
    ],
)
def test_a_report_of_what_cannot_be_is_refused_and_told_before_and_after_a_restart(changes, words):
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    poison = replace(bench.report(task, 15), **changes)
    bench.heartbeat("worker", 0, "a", poison)
    assert f"its report is refused: {words}" in bench.told()
    status = bench.job.status()
    assert (status.trained, status.refused_reports) == (0, 1)
    # A member that was not answered says it again to the next master.
    again = Bench(records=bench.disk)
    again.heartbeat("worker", 0, "a", poison)
    again.register("ps", 0, "p")
    again.register("worker", 0, "a")
    again.heartbeat("worker", 0, "a", poison)
    again.train_all(0, "a")
    assert again.job.phase == "finished"


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (replace(SCORES, positives=((-1, 4),)), "4 rows in bin -1"),
        (replace(SCORES, positives=((10**30, 4),)), "4 rows in bin 1000"),
        (replace(SCORES, negatives=((3, 0),)), "0 rows in bin 3"),
        (replace(SCORES, negatives=((3, 10**30),)), "rows in bin 3"),
        (replace(SCORES, negatives=((3, 1), (3, 1))), "a bin of its histogram twice"),
        (replace(SCORES, loss_sum=INFINITE), "a sum of inf"),
    ],
)
def test_scores_of_what_cannot_be_are_refused(scores, words):
    bench = Bench(num_epochs=1)
    bench.begin_training("w")
    bench.train_all(most_tasks=6)
    (task,) = bench.lease(0, "w").tasks
    bench.heartbeat("worker", 0, "w", replace(bench.report(task, 1, finished=True), scores=scores))
    assert bench.job.phase == "validating"
    assert words in bench.told()


def test_the_words_of_a_failure_are_bounded():
    bench = Bench(max_task_failures=1)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    failure = "x" * 5_000_000 + "\nValueError: " + "y" * 5_000_000
    bench.heartbeat("worker", 0, "a", bench.report(task, 1, failure=failure))
    (failed,) = bench.all_of(Fail)
    assert len(failed.traceback) == 16_384
    assert len(failed.reason) < 1000
    assert len(json.dumps(bench.disk)) < 50_000


@pytest.mark.parametrize(
    ("role", "index", "name", "words"),
    [
        ("worker", -1, "w", "no job has a worker -1"),
        ("worker", 10**9, "w", "no job has a worker 1000000000"),
        ("worker", 0, "", "it has no name"),
        ("worker", 0, "w" * 301, "longer than 300 characters"),
        ("worker", 0, "w\x1b]0;", "cannot be printed"),
    ],
)
def test_a_member_that_cannot_be_is_refused(role, index, name, words):
    bench = Bench()
    bench.tell(Tick())
    assert words in bench.register(role, index, name)


def test_what_takes_a_worker_too_long_is_given_to_another():
    bench = Bench(
        task_timeout_floor_seconds=10.0, task_timeout_factor=3.0, worker_silence_seconds=1e9
    )
    bench.begin_training("a", "b")
    (slow,) = bench.lease(0, "a", most=1).tasks
    (task,) = bench.lease(1, "b", most=1).tasks
    bench.heartbeat("worker", 1, "b", bench.report(task, 15, seconds=6.0))
    for second, mask in ((9, 1), (9, 3), (9, 7)):
        keep_alive(bench, second, "a", "b")
        bench.heartbeat("worker", 0, "a", bench.report(slow, mask, seconds=9.0))
    # It makes progress, so it is not ended; but 3 times the usual 6 s are over.
    assert "takes worker 0 longer than 18 s" in bench.told()
    (rest,) = bench.lease(1, "b", most=1).tasks
    assert (rest.key, rest.done_mask & 3) == (slow.key, 3)
    assert not bench.all_of(StopMember)


def test_a_straggler_is_announced_once_and_again_if_it_falls_behind_again():
    bench = Bench(max_workers=3)
    bench.begin_training("a", "b", "c")
    for index, name, seconds in ((0, "a", 1.0), (1, "b", 1.0), (2, "c", 8.0)):
        (task,) = bench.lease(index, name, most=1).tasks
        bench.heartbeat("worker", index, name, bench.report(task, 1, seconds=seconds / 4))
        bench.heartbeat("worker", index, name, bench.report(task, 15, seconds=seconds))
    (task,) = bench.lease(2, "c").tasks
    keep_alive(bench, 5, "a", "b", "c")
    assert "is slow" not in bench.told()
    keep_alive(bench, 20, "a", "b", "c")
    assert bench.told().count("worker 2 is slow: 4 records/s") == 1

    # It catches up, and falls behind once more.
    bench.heartbeat("worker", 2, "c", bench.report(task, 1, seconds=0.1))
    keep_alive(bench, 2, "a", "b", "c")
    bench.heartbeat("worker", 2, "c", bench.report(task, 3, seconds=40.0))
    bench.heartbeat("worker", 2, "c", bench.report(task, 7, seconds=80.0))
    keep_alive(bench, 20, "a", "b", "c")
    assert bench.told().count("worker 2 is slow") == 2


def test_a_worker_that_still_compiles_is_no_straggler():
    bench = Bench(max_workers=3)
    bench.begin_training("a", "b", "c")
    for index, name, seconds in ((0, "a", 1.0), (1, "b", 1.0), (2, "c", 1.0)):
        (task,) = bench.lease(index, name, most=1).tasks
        compiling = 7.0 if name == "c" else 0.0
        bench.heartbeat(
            "worker", index, name, bench.report(task, 1, seconds=compiling + seconds / 4)
        )
        bench.heartbeat("worker", index, name, bench.report(task, 15, seconds=compiling + seconds))
    bench.lease(2, "c")
    keep_alive(bench, 10, "a", "b", "c")
    assert "is slow" not in bench.told()


# Ends of members.


def test_a_crash_loop_ends_the_job_with_the_members_own_traceback():
    bench = Bench(max_start_failures=3)
    bench.tell(Tick())
    for number in range(3):
        assert bench.job.phase == "waiting"
        bench.see("worker", 0, f"w{number}", "error", traceback="ImportError: x", code=1)
    (failure,) = bench.all_of(Fail)
    assert failure.traceback == "ImportError: x"
    assert "worker 0 failed (exit code 1)" in failure.reason
    assert "3 failures of members in a row without any progress" in failure.reason


def test_one_error_of_each_of_many_members_is_no_crash_loop():
    bench = Bench(max_workers=3, max_start_failures=3)
    bench.tell(Tick())
    for index in range(3):
        bench.see("worker", index, f"w{index}", "error", code=1)
    assert bench.job.phase == "waiting"
    for number in range(2):
        bench.see("worker", 1, f"again{number}", "error", code=1)
    assert bench.job.phase == "failed"


def test_workers_start_a_few_at_a_time():
    bench = Bench(max_workers=90, max_workers_starting=4)
    bench.tell(Tick())

    def workers_started():
        return {one.index for one in bench.all_of(StartMember) if one.role == "worker"}

    assert workers_started() == {0, 1, 2, 3}
    bench.register("worker", 2, "c")
    bench.tell(Tick(), after=0.1)
    assert workers_started() == {0, 1, 2, 3, 4}


def test_progress_makes_up_for_errors_and_repetition_does_not():
    bench = Bench(max_start_failures=2)
    bench.begin_training("a")
    bench.see("worker", 1, "b0", "error")
    (task,) = bench.lease(0, "a").tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 3))
    bench.see("worker", 1, "b1", "error")
    # A server that fails each time at the same place: the same batches, over and over.
    bench.see("ps", 0, "p", "killed")
    bench.register("ps", 0, "q")
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 3))
    assert bench.job.phase == "training"
    bench.see("worker", 1, "b2", "error")
    assert bench.job.phase == "failed"


def test_a_member_that_failed_comes_back_after_its_pause():
    bench = Bench()
    bench.begin_training("a")
    bench.see("worker", 1, "b", "error", code=1)
    bench.log.clear()
    bench.tell(Tick(), after=0.4)
    assert not bench.all_of(StartMember)
    bench.tell(Tick(), after=0.2)
    assert bench.all_of(StartMember) == [StartMember("worker", 1)]


def test_out_of_memory_names_the_size():
    bench = Bench(max_start_failures=1)
    bench.begin_training("a")
    bench.heartbeat("worker", 0, "a", rss=5 * 2**30)
    bench.see("worker", 0, "a", "out_of_memory")
    assert "worker 0 ran out of memory (it last held 5.0 GiB)" in bench.all_of(Fail)[0].reason


def test_a_process_that_replaces_another_takes_nothing_over():
    bench = Bench()
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    bench.register("worker", 0, "z")
    assert bench.heartbeat("worker", 0, "a").directive == "leave"
    assert bench.lease(0, "z").tasks[0].attempt > task.attempt


def test_a_server_that_is_replaced_takes_the_job_back():
    bench = Bench()
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.replace_server("q")
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 0, 64)


def test_a_server_that_lives_keeps_its_place():
    bench = Bench(server_silence_seconds=10.0)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.log.clear()
    bench.tell(Tick(), after=9.0)
    refused = bench.register("ps", 0, "q")
    assert "parameter server 0 is process 1 on host at 127.0.0.1:0, heard 9.0 s ago" in refused
    assert "end that one first" in refused
    assert bench.heartbeat("ps", 0, "p").directive == "go_on"
    assert bench.job.status().trained == 64
    assert bench.all_of(Announce) == []


def test_the_place_of_a_server_is_free_once_it_was_silent():
    bench = Bench(server_silence_seconds=10.0)
    bench.begin_training("a")
    assert bench.register("ps", 0, "q")
    bench.tell(Tick(), after=10.1)
    assert bench.register("ps", 0, "q") == ""
    assert bench.heartbeat("ps", 0, "p").directive == "leave"


def test_what_the_launcher_knows_to_be_dead_holds_no_place():
    bench = Bench(server_silence_seconds=10.0)
    bench.see("ps", 0, "p")
    bench.begin_training("a")
    bench.see("ps", 0, "p", "killed")
    assert bench.register("ps", 0, "q") == ""


def test_a_new_master_does_not_know_whether_a_server_lives():
    bench = Bench()
    bench.begin_training("a")
    again = Bench(records=bench.disk)
    assert again.register("ps", 0, "q") == ""
    heard = Bench(records=bench.disk)
    heard.heartbeat("ps", 0, "p")
    assert "is process 1 on host" in heard.register("ps", 0, "q")


def test_the_launchers_view_of_the_master_and_of_old_processes_changes_nothing():
    bench = Bench()
    bench.begin_training("a")
    bench.log.clear()
    bench.see("master", 0, "m", "error")
    bench.see("worker", 0, "older", "error")
    assert bench.all_of(Announce) == []
    assert bench.lease(0, "a").verdict == "tasks"
    assert "given up" in bench.register("worker", 0, "older")


def test_a_job_that_is_over_takes_nobody_in():
    bench = Bench()
    bench.begin_training("a")
    bench.tell(CannotGoOn("no"))
    assert bench.register("worker", 1, "b") == "the job is over: it is failed"
    assert bench.heartbeat("worker", 1, "b").directive == "leave"
    assert bench.lease(1, "b").verdict == "end"
    bench.log.clear()
    bench.tell(CannotGoOn("no again"))
    bench.tell(StopAsked())
    assert bench.all_of(Fail) == []
    assert bench.job.phase == "failed"


# Cuts and rollbacks.


def test_a_rollback_takes_the_ledger_back_and_tells_how_long_it_took():
    bench = Bench(checkpoint_seconds=30.0, worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.tell(Tick(), after=31.0)
    assert [one.cut for one in bench.all_of(TakeCut)] == [1]
    bench.train_all(0, "a", most_tasks=3)
    bench.see("ps", 0, "p", "killed")
    assert bench.heartbeat("worker", 0, "a").generation > 1
    bench.tell(Tick(), after=4.0)
    bench.register("ps", 0, "q")
    status = bench.job.status()
    assert (status.trained, status.repeated) == (64, 96)
    bench.train_all(0, "a", most_tasks=1)
    recovery = next(one for one in bench.all_of(Announce) if one.recovery_seconds is not None)
    assert recovery.recovery_seconds == 4.0
    assert recovery.done == "96 records are trained again"


def test_how_long_nobody_worked_is_told_when_the_first_batch_is_trained_again():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a", "b")
    bench.lease(0, "a", most=1)
    bench.see("worker", 0, "a", "killed")
    bench.tell(Tick(), after=2.0)
    bench.see("worker", 1, "b", "killed")
    bench.tell(Tick(), after=3.0)
    bench.register("worker", 0, "c")
    (task,) = bench.lease(0, "c", most=1).tasks
    assert all(one.recovery_seconds is None for one in bench.all_of(Announce))
    bench.tell(Tick(), after=1.5)
    bench.heartbeat("worker", 0, "c", bench.report(task, 1))
    bench.heartbeat("worker", 0, "c", bench.report(task, 3))
    told = [one for one in bench.all_of(Announce) if one.recovery_seconds is not None]
    assert told == [Announce("the job has recovered", "its work goes on", 4.5)]


def test_while_one_worker_is_left_nothing_has_to_recover():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a", "b")
    bench.see("worker", 0, "a", "killed")
    bench.train_all(1, "b")
    assert all(one.recovery_seconds is None for one in bench.all_of(Announce))


def test_workers_lost_after_servers_take_nothing_back_again():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.see("ps", 0, "p", "killed")
    bench.register("ps", 0, "q")
    bench.train_all(0, "a", most_tasks=1)
    bench.see("worker", 0, "a", "killed")
    bench.register("worker", 0, "b")
    bench.train_all(0, "b", most_tasks=1)
    told = [one.done for one in bench.all_of(Announce) if one.recovery_seconds is not None]
    assert told == ["64 records are trained again", "its work goes on"]


def test_no_cut_is_taken_of_nothing_new():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.tell(Tick(), after=31.0)
    assert not bench.all_of(TakeCut)


def test_a_cut_counts_what_was_counted_when_it_was_asked_for():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.holds.add(TakeCut)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.tell(Tick(), after=31.0)
    bench.train_all(0, "a", most_tasks=2)
    (cut,) = bench.all_of(TakeCut)
    assert cut.step == 8
    bench.cuts[1] = cut.frozen
    bench.tell(CutTaken(1))
    bench.replace_server("q")
    assert bench.job.status().trained == 64


def test_after_a_failed_cut_the_next_one_holds_all_rows():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=1)
    bench.tell(Tick(), after=31.0)
    bench.holds.add(TakeCut)
    for number in (2, 3):
        bench.train_all(0, "a", most_tasks=1)
        bench.tell(Tick(), after=31.0)
        bench.tell(CutFailed(number, "no space left"))
    cuts = bench.all_of(TakeCut)
    assert [(one.cut, one.full, one.parent) for one in cuts] == [
        (1, True, 0),
        (2, False, 1),
        (3, True, 0),
    ]
    assert "checkpoint 2 failed: no space left: it is tried again" in bench.told()


def test_no_cut_at_the_end_of_an_epoch_fails_the_job_in_the_end():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    bench.train_all(0, "a")
    for number in range(1, 6):
        assert bench.job.phase == "cutting"
        bench.tell(CutFailed(number, "no space left"))
        bench.tell(Tick(), after=31.0)
    assert bench.job.phase == "failed"


def test_the_cut_of_a_generation_that_is_over_does_not_count():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=1)
    bench.holds.add(TakeCut)
    bench.tell(Tick(), after=31.0)
    bench.see("ps", 0, "p", "killed")
    bench.tell(CutTaken(1))
    assert bench.job.cuts == ()


def test_a_damaged_cut_gives_way_to_the_one_before_it():
    bench = Bench(
        worker_silence_seconds=1e9, server_silence_seconds=1e9, keep_checkpoints=2, full_every=1
    )
    bench.begin_training("a")
    for _ in range(2):
        bench.train_all(0, "a", most_tasks=1)
        bench.tell(Tick(), after=31.0)
    bench.holds.add(RestoreCut)
    bench.replace_server("q")
    newest = bench.all_of(RestoreCut)[-1]
    assert newest.cut == 2
    bench.holds.clear()
    bench.tell(RestoreFailed(newest.generation, 2, "rows-2.log is damaged", "damage"))
    assert bench.job.cuts == (1,)
    assert (
        "checkpoint 2 cannot be restored: rows-2.log is damaged: checkpoint 1 is used"
        in bench.told()
    )
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 32, 32)


def with_cuts(number, **changes):
    """A job with some cuts, whose restores are answered by hand, and whose server is new."""
    bench = Bench(
        worker_silence_seconds=1e9, server_silence_seconds=1e9, keep_checkpoints=2, **changes
    )
    bench.begin_training("a")
    for _ in range(number):
        bench.train_all(0, "a", most_tasks=1)
        bench.tell(Tick(), after=31.0)
    bench.holds.add(RestoreCut)
    bench.replace_server("q")
    return bench


def fail_restore(bench, cause, *, after=0.0, announced=0):
    wanted = bench.all_of(RestoreCut)[-1]
    bench.now += after
    bench.tell(RestoreFailed(wanted.generation, wanted.cut, "why", cause, announced))


def test_a_cut_that_cannot_be_read_for_now_is_waited_for():
    bench = with_cuts(2, storage_timeout_seconds=60.0)
    for _ in range(9):
        fail_restore(bench, "storage")
        assert bench.job.cuts == (1, 2)
        status = bench.job.status()
        assert (status.phase, status.trained) == ("restoring", 64)
        assert status.reason == "waiting for storage: checkpoint 2 cannot be restored: why"
        asked = len(bench.all_of(RestoreCut))
        while len(bench.all_of(RestoreCut)) == asked:
            bench.tell(Tick(), after=0.5)
    assert [one for one in bench.told().splitlines() if "cannot be restored" in one] == [
        "checkpoint 2 cannot be restored: why: it is tried until storage is back"
    ]
    bench.restore(bench.all_of(RestoreCut)[-1])
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated, status.reason) == ("training", 64, 0, "")


def test_a_job_that_has_waited_for_storage_long_enough_fails_and_goes_on_from_its_cut():
    bench = with_cuts(2, storage_timeout_seconds=60.0)
    fail_restore(bench, "storage")
    bench.tell(Tick(), after=2.0)
    fail_restore(bench, "storage", after=60.0)
    (failure,) = bench.all_of(Fail)
    assert "Nothing that was saved is lost" in failure.reason
    assert "--resume goes on from checkpoint 2" in failure.reason
    again = Bench(records=bench.disk, resume=True)
    again.cuts = bench.cuts
    again.register("ps", 0, "r")
    assert restored_cuts(again) == [2]


def test_no_job_begins_anew_because_all_its_cuts_are_damaged():
    bench = with_cuts(2)
    fail_restore(bench, "damage")
    fail_restore(bench, "damage")
    (failure,) = bench.all_of(Fail)
    assert failure.reason.startswith("no checkpoint is left: checkpoint 1 cannot be restored: why")
    assert "--overwrite" in failure.reason
    again = Bench(records=bench.disk, resume=True)
    again.holds.add(RestoreCut)
    again.register("ps", 0, "r")
    assert restored_cuts(again) == [1]


def test_a_master_whose_ledger_is_older_than_its_servers_goes_beyond_their_generation():
    bench = with_cuts(1)
    fail_restore(bench, "outrun", announced=41)
    bench.tell(Tick(), after=1.0)
    assert bench.all_of(RestoreCut)[-1].generation == 42
    assert bench.job.cuts == (1,)


def test_a_cut_at_the_end_of_an_epoch_waits_for_storage():
    bench = Bench(
        worker_silence_seconds=1e9, server_silence_seconds=1e9, storage_timeout_seconds=400.0
    )
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    bench.train_all(0, "a")
    for number in range(1, 10):
        bench.tell(CutFailed(number, "the volume is away", of_storage=True))
        assert bench.job.phase == "cutting"
        assert bench.job.status().reason == "waiting for storage: the volume is away"
        bench.tell(Tick(), after=31.0)
    assert bench.told().count("the volume is away") == 1
    bench.tell(CutTaken(10))
    assert (bench.job.phase, bench.job.status().reason) == ("validating", "")


def test_a_cut_at_the_end_of_an_epoch_waits_no_longer_than_it_may():
    bench = Bench(
        worker_silence_seconds=1e9, server_silence_seconds=1e9, storage_timeout_seconds=60.0
    )
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    bench.train_all(0, "a")
    bench.tell(CutFailed(1, "the volume is away", of_storage=True))
    bench.tell(Tick(), after=61.0)
    bench.tell(CutFailed(2, "the volume is away", of_storage=True))
    assert "the volume is away" in bench.all_of(Fail)[0].reason


def test_a_cut_that_proves_damaged_while_it_is_kept_is_no_parent_of_the_next():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    for _ in range(2):
        bench.train_all(0, "a", most_tasks=1)
        bench.tell(Tick(), after=31.0)
    bench.tell(CutDamaged(2, "its checksum differs"))
    assert bench.job.cuts == (1,)
    assert "checkpoint 2 is damaged: its checksum differs" in bench.told()
    bench.train_all(0, "a", most_tasks=1)
    bench.tell(Tick(), after=31.0)
    assert (bench.all_of(TakeCut)[-1].cut, bench.all_of(TakeCut)[-1].full) == (3, True)


def test_reports_that_servers_contradict_are_taken_back_and_their_worker_ends():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("honest", "liar")
    bench.see("worker", 1, "liar")
    bench.train_all(0, "honest", most_tasks=1)
    bench.tell(Tick(), after=31.0)
    assert bench.all_of(TakeCut)[-1].claims == ((0, 0b1111),)
    bench.holds.add(TakeCut)
    bench.train_all(0, "honest", most_tasks=1)
    bench.train_all(1, "liar", most_tasks=1)
    bench.tell(Tick(), after=31.0)
    asked = bench.all_of(TakeCut)[-1]
    assert asked.claims == ((1, 0b1111), (2, 0b1111))
    bench.tell(CutContradicted(asked.cut, ((2, 0b0110),)))
    assert "2 batches were reported as trained" in bench.told()
    assert "worker 1 reported batches that no server holds" in bench.told()
    assert [(one.role, one.index) for one in bench.all_of(StopMember)] == [("worker", 1)]
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 32, 64)
    assert restored_cuts(bench) == [0, 1]


def test_a_job_whose_reports_are_contradicted_again_and_again_fails():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9, max_start_failures=2)
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    for worker in ("a", "b"):
        if worker == "b":
            bench.register("worker", 0, "b")
        bench.train_all(0, worker, most_tasks=1)
        bench.tell(Tick(), after=31.0)
        cut = bench.all_of(TakeCut)[-1].cut
        bench.tell(CutContradicted(cut, bench.all_of(TakeCut)[-1].claims))
    assert "2 times in a row" in bench.all_of(Fail)[0].reason


def test_a_master_that_comes_back_holds_earlier_reports_against_the_servers_too():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a", "b")
    bench.train_all(0, "a", most_tasks=1)
    bench.tell(Tick(), after=31.0)
    assert bench.job.cuts == (1,)
    # One ends before the next cut begins, one while it is written; of a third no end is known.
    bench.train_all(0, "a", most_tasks=1)
    bench.holds.add(TakeCut)
    bench.tell(Tick(), after=31.0)
    bench.train_all(1, "b", most_tasks=1)
    (open_task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(open_task, 1))
    again = Bench(records=bench.disk, worker_silence_seconds=1e9, server_silence_seconds=1e9)
    again.holds.add(TakeCut)
    # The batch whose report was not written is told again by who holds it.
    again.heartbeat("worker", 0, "a", bench.report(open_task, 1))
    again.tell(Tick(), after=31.0)
    (asked,) = again.all_of(TakeCut)
    assert dict(asked.claims) == {1: 15, 2: 15, 3: 1}
    again.cuts = bench.cuts
    again.tell(CutContradicted(asked.cut, ((2, 0b0100),)))
    assert [(one.role, one.index) for one in again.all_of(StopMember)] == [("worker", 1)]


def test_what_a_cut_has_shown_is_not_asked_of_the_next_even_by_another_master():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.tell(Tick(), after=31.0)
    again = Bench(records=bench.disk, worker_silence_seconds=1e9, server_silence_seconds=1e9)
    again.holds.add(TakeCut)
    again.tell(Tick(), after=31.0)
    (asked,) = again.all_of(TakeCut)
    assert asked.claims == ()


def test_the_ledger_keeps_records_of_tasks_at_work_and_counts_of_the_others():
    bench = Bench(
        plan_epoch=lambda epoch: EpochPlan(epoch, 1000, 32, 8, ()),
        worker_silence_seconds=1e9,
        server_silence_seconds=1e9,
        task_timeout_floor_seconds=1e9,
    )
    bench.begin_training("a", "b")
    (task,) = bench.lease(1, "b", most=1).tasks
    sizes = []
    for _ in range(3):
        bench.train_all(0, "a", most_tasks=100)
        assert len([name for name in bench.disk if name.startswith("task/")]) == 101
        bench.heartbeat("worker", 1, "b", held=(HeldLease(task.key, task.attempt),))
        bench.tell(Tick(), after=31.0)
        assert [name for name in bench.disk if name.startswith("task/")] == ["task/0"]
        sizes.append(
            [len(json.dumps(of)) for of in (bench.disk["base"], bench.cuts[max(bench.cuts)])]
        )
    assert max(sizes) < [size + 20 for size in sizes[0]]
    again = Bench(records=bench.disk, plan_epoch=bench.settings.plan_epoch)
    before, after = bench.job.status(), again.job.status()
    assert (after.trained, after.step, after.tasks_done) == (300 * 32, 1200, 300)
    assert after.epochs == before.epochs
    assert held_by(again, "b") == (HeldLease(task.key, task.attempt),)


def test_repeated_records_are_counted_once_over_cuts_masters_and_rollbacks():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 3, repeated=1))
    bench.tell(Tick(), after=31.0)
    bench.heartbeat("worker", 0, "a", bench.report(task, 7, repeated=5))
    assert bench.job.status().repeated == 16
    again = Bench(records=bench.disk, worker_silence_seconds=1e9, server_silence_seconds=1e9)
    assert again.job.status().repeated == 8
    again.heartbeat("worker", 0, "a", bench.report(task, 7, repeated=5))
    assert again.job.status().repeated == 16
    again.cuts = bench.cuts
    again.replace_server("q")
    # The third batch, which the cut does not count, will be trained again.
    assert (again.job.status().trained, again.job.status().repeated) == (16, 24)


def test_scores_of_a_best_cut_that_is_lost_meanwhile_are_not_mixed_with_those_of_another():
    splits = (ScoredSplit("test", 20, 10),)
    bench = Bench(num_epochs=2, final_splits=splits)
    bench.begin_training("w")
    bench.train_all(most_tasks=6 + 1 + 6 + 1 + 1)
    assert (bench.job.phase, bench.job.status().tasks_done) == ("scoring", 1)
    bench.holds.add(RestoreCut)
    bench.see("ps", 0, "p", "killed")
    bench.register("ps", 0, "q")
    assert bench.all_of(RestoreCut)[-1].cut == 1
    fail_restore(bench, "damage")
    assert "checkpoint 2 is used, of epoch 2" in bench.told()
    bench.restore(bench.all_of(RestoreCut)[-1])
    status = bench.job.status()
    assert (status.phase, status.tasks_done, status.best_epoch) == ("scoring", 0, 1)


def test_servers_that_cannot_restore_fail_the_job_in_the_end():
    bench = Bench()
    bench.holds.add(RestoreCut)
    bench.tell(Tick())
    bench.register("ps", 0, "p")
    for number in range(5):
        generation = bench.all_of(RestoreCut)[-1].generation
        assert generation == number + 1
        bench.tell(RestoreFailed(generation, 0, "no memory", "server"))
        bench.heartbeat("ps", 0, "p")
        bench.tell(Tick(), after=1.0)
    assert bench.all_of(Fail)[0].reason == "checkpoint 0 cannot be restored: no memory"


def test_old_cuts_go_and_the_best_one_stays():
    bench = Bench(
        keep_checkpoints=1, num_epochs=9, worker_silence_seconds=1e9, server_silence_seconds=1e9
    )
    bench.begin_training("w")
    bench.train_all(most_tasks=6 + 1)  # One epoch and its validation: cut 1 is the best.
    for _ in range(3):
        bench.train_all(most_tasks=1)
        bench.tell(Tick(), after=31.0)
    assert bench.job.cuts == (1, 4)
    assert bench.all_of(DropCuts)[-1].keep == (1, 4)


# Ends of epochs and of the job.


def test_an_epoch_ends_with_a_cut_a_validation_and_a_decision():
    bench = Bench(num_epochs=2)
    bench.begin_training("w")
    bench.train_all()
    kinds = [
        type(one)
        for one in bench.log
        if isinstance(one, TakeCut | DecideEpoch | RestoreCut | RestoreDone)
    ]
    # After the second epoch the first is the best: back to its cut.
    assert kinds == [RestoreCut, TakeCut, DecideEpoch, TakeCut, DecideEpoch, RestoreCut]
    decision = bench.all_of(DecideEpoch)[1]
    assert decision.history == ({"epoch": 0},)
    assert (decision.totals.trained, decision.totals.loss_sum) == (192, 24.0)
    assert decision.valid.scores == SCORES
    assert bench.all_of(RestoreCut)[-1].cut == 1
    assert bench.job.phase == "finished"
    assert bench.job.status().final_scores[0].scores == SCORES


def test_the_last_epoch_as_the_best_needs_no_restore():
    bench = Bench(num_epochs=2)
    bench.best_epoch = 1
    bench.holds.add(DecideEpoch)
    bench.begin_training("w")
    bench.train_all()
    bench.tell(EpochDecided(0, {"epoch": 0}, False, 0, ""))
    bench.train_all()
    bench.tell(EpochDecided(1, {"epoch": 1}, True, 1, "all epochs are done"))
    bench.train_all()
    assert bench.job.phase == "finished"
    assert len(bench.all_of(RestoreCut)) == 1


def test_early_stopping_ends_training():
    bench = Bench(num_epochs=9)
    bench.stops = True
    bench.begin_training("w")
    bench.train_all()
    assert bench.job.phase == "finished"
    assert len(bench.job.status().history) == 1


def test_without_validation_rows_the_decision_comes_at_once():
    bench = Bench(valid=None, final_splits=(), num_epochs=1)
    bench.begin_training("w")
    bench.train_all()
    assert bench.all_of(DecideEpoch)[0].valid is None
    assert bench.job.phase == "finished"


def test_only_final_scores_are_written_to_files():
    bench = Bench(num_epochs=1, final_splits=(ScoredSplit("valid", 10, 10),))
    bench.begin_training("w")
    bench.train_all(most_tasks=6)
    (valid,) = bench.lease(0, "w").tasks
    assert valid.scores_file == ""
    bench.heartbeat("worker", 0, "w", bench.report(valid, 1, finished=True))
    (final,) = bench.lease(0, "w").tasks
    assert final.scores_file == "scores/valid-0.f32"


def test_a_server_lost_after_training_changes_nothing():
    bench = Bench(num_epochs=2)
    bench.begin_training("w")
    bench.see("ps", 0, "p")
    bench.train_all()
    bench.log.clear()
    bench.see("ps", 0, "p", "killed")
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("finished", 2 * 192, 0)
    assert not [one for one in bench.log if isinstance(one, RestoreCut | StartMember)]


def test_a_server_lost_while_the_best_is_scored_costs_no_scores():
    bench = Bench(num_epochs=1, final_splits=(ScoredSplit("test", 20, 10),))
    bench.begin_training("w")
    bench.train_all(most_tasks=6 + 1 + 1)
    assert bench.job.phase == "scoring"
    bench.see("ps", 0, "p", "killed")
    bench.register("ps", 0, "q")
    assert bench.job.phase == "scoring"
    (rest,) = bench.lease(0, "w").tasks
    assert rest.key.task == 1


def test_the_newest_epoch_stands_in_for_a_best_cut_that_is_damaged():
    bench = Bench(num_epochs=2)
    bench.holds.add(RestoreCut)
    bench.tell(Tick())
    bench.register("ps", 0, "p")
    bench.register("worker", 0, "w")
    bench.restore(bench.all_of(RestoreCut)[0])
    bench.train_all()
    best = bench.all_of(RestoreCut)[-1]
    assert best.cut == 1
    bench.tell(RestoreFailed(best.generation, 1, "damaged", "damage"))
    second = bench.all_of(RestoreCut)[-1]
    assert second.cut == 2
    bench.tell(RestoreFailed(second.generation, 2, "damaged", "damage"))
    assert bench.all_of(Fail)[0].reason.startswith(
        "no checkpoint of a whole epoch is left: checkpoint 2"
    )


def test_all_leave_when_training_is_over_and_its_best_epoch_is_scored():
    bench = Bench(num_epochs=1)
    bench.begin_training("w")
    bench.see("ps", 0, "p")
    bench.train_all()
    assert bench.lease(0, "w").verdict == "end"
    assert bench.heartbeat("worker", 0, "w").directive == "leave"
    assert bench.heartbeat("ps", 0, "p").directive == "leave"
    bench.see("worker", 0, "w", "completed", code=0)
    assert not bench.all_of(End)
    bench.see("ps", 0, "p", "completed", code=0)
    assert bench.all_of(End) == [End("finished")]


def test_members_that_do_not_leave_are_waited_for_only_so_long():
    bench = Bench(num_epochs=1, leave_seconds=10.0)
    bench.begin_training("w")
    bench.see("ps", 0, "p")
    bench.tell(CannotGoOn("validation rows are of one class"))
    assert bench.all_of(Fail) == [Fail("validation rows are of one class", "")]
    assert StopMember("ps", 0, "p", 10.0) in bench.all_of(StopMember)
    bench.tell(Tick(), after=19.0)
    assert not bench.all_of(End)
    bench.tell(Tick(), after=2.0)
    assert bench.all_of(End) == [End("failed")]


# Stopping, going on, scaling.


def test_a_stop_takes_a_cut_and_the_job_goes_on_from_it():
    bench = Bench()
    bench.begin_training("w")
    bench.train_all(most_tasks=2)
    bench.tell(StopAsked())
    assert bench.job.phase == "stopped"
    assert "it can go on from checkpoint 1" in bench.told()
    again = Bench(records=bench.disk, resume=True)
    again.cuts = bench.cuts
    again.tell(Tick())
    assert len(again.all_of(StartMember)) == 3
    again.register("ps", 0, "q")
    again.register("worker", 0, "v")
    status = again.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 64, 0)
    again.train_all(0, "v")
    assert again.job.phase == "finished"


def test_a_stop_does_not_wait_for_what_workers_do_meanwhile():
    bench = Bench()
    bench.begin_training("w")
    bench.train_all(most_tasks=1)
    (task,) = bench.lease(0, "w", most=1).tasks
    bench.holds.add(TakeCut)
    bench.tell(StopAsked())
    bench.heartbeat("worker", 0, "w", bench.report(task, 15))
    bench.tell(CutTaken(1))
    assert bench.job.phase == "stopped"


def test_what_was_counted_after_the_last_cut_is_repeated_when_a_failed_job_goes_on():
    bench = Bench(max_task_failures=1)
    bench.begin_training("w")
    bench.train_all(most_tasks=2)
    fail_task(bench, 1, 0, "w")
    assert bench.job.phase == "failed"
    again = Bench(records=bench.disk, resume=True, max_task_failures=1)
    again.register("ps", 0, "q")
    again.register("worker", 0, "v")
    status = again.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 0, 72)


def test_a_stop_whose_cut_keeps_failing_is_a_stop_all_the_same():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("w")
    bench.train_all(most_tasks=2)
    bench.holds.add(TakeCut)
    bench.tell(StopAsked())
    for number in range(1, 6):
        assert bench.job.phase == "stopping"
        bench.tell(CutFailed(number, "no space left"))
        bench.tell(Tick(), after=31.0)
    assert bench.job.phase == "stopped"
    assert "it will begin anew; what was trained since will be repeated" in bench.told()


@pytest.mark.parametrize("phase", ["waiting", "validating"])
def test_a_stop_where_nothing_is_new_needs_no_cut(phase):
    bench = Bench(num_epochs=1)
    bench.tell(Tick())
    if phase != "waiting":
        bench.register("ps", 0, "p")
        bench.register("worker", 0, "w")
        bench.train_all(most_tasks=6)
    assert bench.job.phase == phase
    cuts = len(bench.all_of(TakeCut))
    bench.tell(StopAsked())
    assert bench.job.phase == "stopped"
    assert len(bench.all_of(TakeCut)) == cuts


@pytest.mark.parametrize(
    ("event", "end"), [(StopAsked(), "stopped"), (CannotGoOn("disk full"), "failed")]
)
def test_a_decision_that_comes_after_the_end_does_not_begin_the_job_again(event, end):
    bench = Bench()
    bench.begin_training("w")
    bench.holds.add(DecideEpoch)
    bench.train_all()
    assert bench.job.phase == "validating"
    bench.tell(event)
    bench.tell(EpochDecided(0, {"epoch": 0}, False, 0, ""))
    assert bench.job.phase == end
    # The one that goes on decides it.
    again = Bench(records=bench.disk, resume=True)
    again.cuts = bench.cuts
    again.register("ps", 0, "q")
    again.register("worker", 0, "v")
    again.train_all(0, "v")
    assert again.all_of(DecideEpoch)[0].totals.epoch == 0
    assert again.job.phase == "finished"


def test_a_server_lost_while_the_job_stops_does_not_hold_it_up():
    bench = Bench()
    bench.begin_training("w")
    bench.train_all(most_tasks=1)
    bench.holds.add(TakeCut)
    bench.tell(StopAsked())
    bench.see("ps", 0, "p", "killed")
    assert bench.job.phase == "stopped"


def test_more_epochs_may_be_asked_for_when_a_finished_job_goes_on():
    bench = Bench(num_epochs=1)
    bench.begin_training("w")
    bench.train_all()
    again = Bench(records=bench.disk, resume=True, num_epochs=2)
    again.cuts = bench.cuts
    again.register("ps", 0, "q")
    again.register("worker", 0, "v")
    # The decision on the first epoch is made again: now it need not be the last.
    assert again.job.phase == "validating"
    again.train_all(0, "v")
    assert again.job.phase == "finished"
    assert [epoch.trained for epoch in again.job.status().epochs] == [192, 192]


@pytest.mark.parametrize(("num_tasks", "place"), [(0, "its beginning"), (99, "checkpoint 1")])
def test_a_resumption_is_an_event(num_tasks, place):
    bench = Bench()
    bench.begin_training("w")
    bench.holds.add(TakeCut)
    bench.train_all(most_tasks=num_tasks)
    for cut in bench.all_of(TakeCut)[:1]:
        bench.tell(CutTaken(cut.cut))
    bench.tell(CannotGoOn("disk full"))
    again = Bench(records=bench.disk, resume=True)
    again.tell(Tick())
    assert again.told() == f"the job is resumed: it goes on from {place}"
    # A master that only follows one that was killed resumes nothing.
    other = Bench(records=bench.disk, resume=False)
    other.tell(Tick())
    assert other.told() == ""


@pytest.mark.parametrize(
    ("code", "last_end"), [(0, ""), (-15, ""), (143, ""), (-9, ""), (-11, "crashed (SIGSEGV)")]
)
def test_members_that_leave_a_finished_job_had_no_accident(code, last_end):
    bench = Bench(num_epochs=1)
    bench.begin_training("w")
    bench.train_all()
    assert bench.job.phase == "finished"
    bench.see("ps", 0, "p", "completed" if code == 0 else "killed", code=code)
    (server,) = (one for one in bench.job.status().members if one.role == "ps")
    assert server.state == "left"
    assert last_end in server.last_end
    assert bool(server.last_end) == bool(last_end)


def test_a_finished_job_that_goes_on_ends_at_once_and_starts_nobody():
    bench = Bench(num_epochs=1)
    bench.begin_training("w")
    bench.train_all()
    again = Bench(records=bench.disk, resume=True, num_epochs=1)
    again.tell(Tick())
    assert again.told() == "the job is resumed: nothing is left to train"
    again.tell(ProcessesSeen(()))
    again.tell(Tick())
    assert again.all_of(End) == [End("finished")]
    assert not again.all_of(StartMember)
    assert again.job.status().final_scores == bench.job.status().final_scores


def test_a_job_without_its_ledger_goes_on_from_its_newest_cut():
    bench = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    bench.begin_training("w")
    bench.train_all(most_tasks=6 + 1 + 2)
    bench.tell(Tick(), after=31.0)
    attempt = bench.lease(0, "w").tasks[0].attempt
    again = Bench()
    again.cuts = bench.cuts
    again.job = Job.from_cut(again.settings, bench.cuts, bench.job.generation, 0.0)
    again.register("ps", 0, "q")
    again.register("worker", 0, "v")
    status = again.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 192 + 64, 0)
    assert status.generation > bench.job.generation
    assert status.history == ({"epoch": 0},)
    (task,) = again.lease(0, "v", most=1).tasks
    assert task.attempt >= attempt
    again.tell(Tick())
    again.train_all(0, "v")
    assert again.job.phase == "finished"


def scoring_bench(trained, cut, **changes):
    bench = Bench(final_splits=(ScoredSplit("test", 20, 10),), **changes)
    bench.cuts = {cut: trained.cuts[cut]}
    bench.job = Job.to_score(bench.settings, cut, trained.cuts[cut], 0.0)
    bench.register("ps", 0, "q")
    bench.register("worker", 0, "v")
    return bench


def restored_cuts(bench):
    return [action.cut for action in bench.log if isinstance(action, RestoreCut)]


@pytest.mark.parametrize("most_tasks", [3, 6 + 1 + 2])
def test_a_job_that_scores_does_so_with_its_cut_and_touches_none(most_tasks):
    # The cut is one of a first epoch that is not over, or of the second one.
    trained = Bench(worker_silence_seconds=1e9, server_silence_seconds=1e9)
    trained.begin_training("w")
    trained.train_all(most_tasks=most_tasks)
    trained.tell(Tick(), after=31.0)
    cut = max(trained.cuts)
    bench = scoring_bench(trained, cut, worker_silence_seconds=1e9, server_silence_seconds=1e9)
    assert bench.job.phase == "scoring"
    assert restored_cuts(bench) == [cut]
    bench.tell(Tick(), after=100.0)
    bench.train_all(0, "v")
    assert bench.job.phase == "finished"
    assert [split.num_rows for split in bench.job.status().final_scores] == [20]
    assert not [action for action in bench.log if isinstance(action, TakeCut | DropCuts)]
    assert bench.job.phase == "finished"


def test_a_job_that_scores_outlives_its_members_and_its_master():
    trained = Bench(num_epochs=1)
    trained.begin_training("w")
    trained.train_all()
    (cut,) = trained.cuts
    bench = scoring_bench(trained, cut)
    bench.do(bench.job.handle(Tick(), bench.now))
    bench.replace_server("r")
    assert restored_cuts(bench) == [cut, cut]
    again = Bench(records=bench.disk, final_splits=bench.settings.final_splits)
    again.cuts = bench.cuts
    again.register("ps", 0, "s")
    again.register("worker", 0, "x")
    assert restored_cuts(again) == [cut]
    again.train_all(0, "x")
    assert again.job.phase == "finished"
    again.tell(StopAsked())
    assert not [action for action in again.log if isinstance(action, TakeCut)]


def test_a_job_that_scores_fails_rather_than_score_with_other_parameters():
    trained = Bench(num_epochs=1)
    trained.begin_training("w")
    trained.train_all()
    (cut,) = trained.cuts
    bench = Bench()
    bench.holds = {RestoreCut}
    bench.job = Job.to_score(bench.settings, cut, trained.cuts[cut], 0.0)
    bench.register("ps", 0, "q")
    bench.tell(RestoreFailed(bench.job.generation, cut, "a file is gone", "damage"))
    assert bench.job.phase == "failed"
    assert restored_cuts(bench) == [cut]


def test_the_number_of_servers_may_change_when_a_job_goes_on():
    bench = Bench()
    bench.begin_training("w")
    bench.train_all(most_tasks=2)
    bench.tell(StopAsked())
    again = Bench(records=bench.disk, resume=True, num_parameter_servers=3)
    again.cuts = bench.cuts
    for index in range(3):
        again.register("ps", index, f"q{index}")
    again.register("worker", 0, "v")
    assert (again.job.phase, again.job.status().trained) == ("training", 64)


def test_fewer_workers_are_asked_for_and_more_again():
    bench = Bench(max_workers=3, work_ahead_seconds=1e6)
    bench.begin_training("a", "b", "c")
    for index, name in enumerate("abc"):
        bench.see("worker", index, name)
        bench.lease(index, name, most=1)
    bench.tell(ScaleAsked(target_workers=1))
    assert bench.job.status().target_workers == 1
    stops = [(one.index, one.grace_seconds) for one in bench.all_of(StopMember)]
    assert stops == [(1, 10.0), (2, 10.0)]
    assert bench.heartbeat("worker", 2, "c").directive == "leave"
    assert bench.lease(2, "c", held=()).verdict == "leave"
    bench.see("worker", 2, "c", "completed", code=0)
    bench.log.clear()
    bench.tell(ScaleAsked(target_workers=3))
    assert bench.all_of(StartMember) == [StartMember("worker", 2)]


def test_who_is_to_leave_ends_what_it_has_begun_and_gives_the_rest_back():
    bench = Bench(work_ahead_seconds=1e6)
    bench.begin_training("a", "b")
    (task,) = bench.lease(1, "b", most=1).tasks
    bench.heartbeat("worker", 1, "b", bench.report(task, 1))
    bench.heartbeat("worker", 1, "b", bench.report(task, 15, seconds=2.0))
    own = bench.lease(1, "b").tasks
    assert len(own) == 3  # Its share of five.
    bench.tell(ScaleAsked(target_workers=1))
    held = tuple(HeldLease(task.key, task.attempt) for task in own)
    reply = bench.heartbeat("worker", 1, "b", bench.report(own[0], 15), held=held)
    assert reply.directive == "leave"
    assert [lease.key for lease in reply.revoked] == [task.key for task in own[1:]]
    assert bench.job.status().trained == 64
    bench.train_all(0, "a", most_tasks=4)
    assert bench.job.status().epochs[0].trained == 192


@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        (ScaleAsked(target_workers=99), (1, 2, 2)),
        (ScaleAsked(target_workers=0), (1, 2, 1)),
        (ScaleAsked(max_workers=8), (1, 8, 8)),
        (ScaleAsked(min_workers=5), (5, 5, 5)),
        (ScaleAsked(min_workers=0, max_workers=0), (1, 1, 1)),
    ],
)
def test_bounds_hold(asked, bounds):
    bench = Bench(max_workers=2)
    bench.tell(asked)
    assert bench.disk["head"]["min_workers"] == bounds[0]
    assert bench.disk["head"]["max_workers"] == bounds[1]
    assert bench.job.status().target_workers == bounds[2]


def test_a_standby_worker_fills_a_gap_and_stays():
    bench = Bench(max_workers=1, standby_workers=1)
    bench.begin_training("a", "s")
    assert bench.lease(0, "a", most=1).verdict == "tasks"
    assert bench.lease(1, "s").verdict == "wait"
    states = {one.index: one.state for one in bench.job.status().members if one.role == "worker"}
    assert states == {0: "running", 1: "standby"}
    bench.see("worker", 0, "a", "killed")
    assert bench.lease(1, "s").verdict == "tasks"
    bench.register("worker", 0, "a2")
    assert bench.lease(0, "a2").verdict == "wait"


# The ledger.


def test_a_job_comes_back_from_its_ledger_with_its_leases():
    bench = Bench()
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 5, repeated=4))
    again = Bench(records=bench.disk)
    before, after = bench.job.status(), again.job.status()
    # The open task's progress is the worker's to tell once more.
    assert (before.trained, before.repeated) == (64 + 16, 8)
    assert (after.phase, after.trained, after.repeated) == ("training", 64, 0)
    assert after.generation == before.generation
    assert again.job.ps_addresses == bench.job.ps_addresses
    held = (HeldLease(task.key, task.attempt),)
    reply = again.heartbeat("worker", 0, "a", again.report(task, 15, repeated=4), held=held)
    assert (reply.directive, reply.revoked) == ("go_on", ())
    assert (again.job.status().trained, again.job.status().repeated) == (96, 8)
    assert again.lease(0, "a", most=1).tasks[0].attempt > task.attempt


def test_a_master_that_died_during_a_restore_asks_for_it_again():
    bench = Bench()
    bench.holds.add(RestoreCut)
    bench.tell(Tick())
    bench.register("ps", 0, "p")
    again = Bench(records=bench.disk)
    again.holds.add(RestoreCut)
    again.tell(Tick())
    assert again.all_of(RestoreCut)[0].generation > bench.all_of(RestoreCut)[0].generation


def test_a_master_that_died_during_a_decision_asks_for_it_again():
    bench = Bench()
    bench.holds.add(DecideEpoch)
    bench.begin_training("w")
    bench.train_all()
    again = Bench(records=bench.disk)
    again.tell(Tick())
    assert again.all_of(DecideEpoch) == bench.all_of(DecideEpoch)


def test_an_empty_ledger_is_a_new_job():
    bench = Bench(records={})
    bench.begin_training("w")


def test_void_records_of_tasks_are_passed_over():
    bench = Bench()
    bench.begin_training("w")
    bench.train_all(most_tasks=3)
    old = {name: record for name, record in bench.disk.items() if name.startswith("task/")}
    bench.replace_server("q")  # Back to the beginning.
    assert len(old) == 3
    again = Bench(records={**old, **bench.disk})
    assert again.job.status().trained == 0
