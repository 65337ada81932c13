"""The executor where its surroundings fail: ledger, launcher, machine."""

import itertools
import threading
from dataclasses import asdict

import pytest

from ctr_pipeline.distributed.coordination.events import (
    Announce,
    AnswerLease,
    CannotGoOn,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    End,
    EpochDecided,
    EpochTotals,
    Fail,
    Persist,
    ProcessesSeen,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    StartMember,
    StartRefused,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job.status import JobStatus
from ctr_pipeline.distributed.coordination.launching import CannotLaunchError, LauncherBusyError
from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
)
from ctr_pipeline.distributed.master.durable_job import MasterGoneError
from ctr_pipeline.distributed.master.executor import JobExecutor
from ctr_pipeline.distributed.master.ledger.store import LedgerLostError, LedgerUnavailableError
from ctr_pipeline.distributed.master.status import NewestCut
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.training.history import EpochRecord
from tests.distributed.waiting import wait_until

HEARTBEAT = HeartbeatRequest(Member("worker", 0, "w"), 3, (), MemberStats())
LEASE = LeaseRequest(Member("worker", 0, "w"), 3, 1, wait_seconds=2.0)
TASKS = LeaseReply("tasks", 3, (), 0.0)
REPLY = HeartbeatReply("go_on", 3, (), (), ())


RECORD = asdict(EpochRecord(0, 10, 0.5, 0.6, 0.7, 1.0, 1.0, 10, 2.0))


class ScriptedJob:
    """Answers every call with the actions that the test put in line."""

    def __init__(self):
        self.actions = []
        self.events = []
        self.generation = 3
        self.num_repeated = 0
        self.ps_addresses = ("a:1", "b:2")
        self.placement = None
        self.last_cut = 0
        self.error = None
        self.lease_reply = None
        self.waiting = []

    def handle(self, event, now):
        self.events.append(event)
        if self.error is not None:
            raise self.error
        return self._pop()

    def heartbeat(self, request, now):
        return REPLY, self._pop()

    def lease(self, request, now, call):
        self.waiting.append(call)
        return self.lease_reply, self._pop()

    def hang_up(self, call):
        self.waiting.remove(call)

    def _pop(self):
        actions, self.actions = self.actions, []
        return actions

    def status(self):
        return JobStatus(
            phase="training",
            reason="",
            traceback="",
            generation=self.generation,
            epoch=0,
            tasks_done=0,
            tasks_total=1,
            epochs=(EpochTotals(0, 10, 0, 0, 6.0, 1.0),),
            step=7,
            trained=10,
            repeated=0,
            dropped=0,
            dropped_tasks=(),
            history=(),
            best_epoch=None,
            last_cut=self.last_cut,
            best_cut=0,
            cut_age_seconds=0.0,
            members=(),
            target_workers=1,
            refused_reports=0,
            final_scores=(),
        )


class ScriptedStore:
    """Keeps what is committed; fails as often as it is told to."""

    def __init__(self):
        self.records = {}
        self.durable = []
        self.num_commits = 0  # begun
        self.failures = []
        self.lock_failures = []
        self.refused = set()  # threads that were refused the lock
        self.committed = threading.Event()
        self.is_open = threading.Event()
        self.is_open.set()

    def require_lock(self):
        if self.lock_failures:
            self.refused.add(threading.current_thread().name)
            raise self.lock_failures.pop(0)

    def commit(self, records, *, durable):
        self.num_commits += 1
        self.is_open.wait(60)
        if self.failures:
            raise self.failures.pop(0)
        self.records.update(records)
        self.durable.append((dict(records), durable))
        self.committed.set()


class ScriptedLauncher:
    def __init__(self):
        self.calls = []
        self.failures = 0
        self.failure = PeerUnavailable("no answer")
        self.refusals = []
        self.processes = ()
        self.called = threading.Condition()

    def _refuse(self):
        if self.refusals:
            raise self.refusals.pop()

    def _note(self, call):
        with self.called:
            if self.failures:
                self.failures -= 1
                raise self.failure
            self.calls.append(call)
            self.called.notify_all()

    def start(self, role, index):
        self._refuse()
        self._note(("start", role, index))

    def stop(self, role, index, incarnation, *, grace_seconds):
        self._refuse()
        self._note(("stop", role, index, incarnation, grace_seconds))

    def observe(self):
        with self.called:
            if self.failures:
                self.failures -= 1
                raise self.failure
        return self.processes


class ScriptedCuts:
    def __init__(self):
        self.taken, self.restored, self.kept = [], [], []
        self.error = None
        self.step = 0

    def take(self, action, addresses, placement, *, abandoned, fence):
        self._stumble()
        fence()
        self.taken.append((action.cut, addresses, abandoned()))
        return CutTaken(action.cut, 0.0)

    def _stumble(self):
        if self.error is not None:
            raise self.error

    def restore(self, action, addresses, placement, *, abandoned):
        self._stumble()
        self.restored.append((action.cut, addresses))
        return RestoreDone(action.generation, action.cut, {}), NewestCut(action.cut, 5, 99.0)

    def keep_only(self, cuts):
        self._stumble()
        self.kept.append(cuts)
        return ()


class ScriptedRecorder:
    def __init__(self):
        self.rolled_back = []
        self.progress = []
        self.failures = 0

    def roll_back(self, step, history):
        self.rolled_back.append((step, history))

    def note_progress(self, step, **values):
        self.progress.append((step, values))

    def end_epoch(self, history):
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")


class Stage:
    def __init__(self, launched=True, **options):
        self.job, self.store = ScriptedJob(), ScriptedStore()
        self.launcher = ScriptedLauncher() if launched else None
        self.cuts, self.recorder = ScriptedCuts(), ScriptedRecorder()
        self.decide = lambda action: EpochDecided(0, {}, False, 0, "")
        self.executor = JobExecutor(
            self.job,
            self.store,
            launcher=self.launcher,
            cuts=self.cuts,
            mover=None,
            recorder=self.recorder,
            decide_epoch=self._decide,
            wall_clock=lambda: 1000.0,
            **options,
        )

    def _decide(self, action):
        return self.decide(action)

    def perform(self, *actions):
        self.job.actions = list(actions)
        self.executor.submit(Tick())

    def was_asked(self):
        """Whether the machine has given its actions, and the executor has taken note of them."""
        return not self.job.actions and self.executor.generation == self.job.generation

    def told(self):
        return "\n".join(event.what for event in self.executor.events)

    wait_for = staticmethod(wait_until)


@pytest.fixture
def stage():
    found = Stage()
    yield found
    found.executor.close()


def test_records_that_must_be_durable_are_so_before_the_answer(stage):
    stage.job.actions = [Persist({"head": {"n": 1}}, durable=True)]
    assert stage.executor.heartbeat(HEARTBEAT) == REPLY
    assert stage.store.durable == [({"head": {"n": 1}}, True)]


def test_lease_call_that_waits_is_answered_once_tasks_are_durably_its_own(stage):
    call = stage.executor.lease(LEASE)
    given = []
    call.send_with(lambda make: given.append((make(), dict(stage.store.records))))
    stage.perform(AnswerLease(call, TASKS), Persist({"task/0": {"n": 1}}, durable=True))
    assert given == [(TASKS, {"task/0": {"n": 1}})]


def test_lease_call_that_need_not_wait_is_answered_at_once(stage):
    stage.job.lease_reply = TASKS
    assert stage.executor.lease(LEASE) == TASKS


def test_a_call_that_has_ended_waits_for_nothing(stage):
    ended, waits = stage.executor.lease(LEASE), stage.executor.lease(LEASE)
    ended.abandon()
    stage.perform()
    assert stage.job.waiting == [waits]


def test_calls_are_not_answered_while_the_ledger_cannot_be_written(stage):
    unavailable = LedgerUnavailableError("etcd does not answer")
    stage.store.failures = [unavailable] * 3
    stage.job.actions = [Persist({"head": {"n": 1}}, durable=True)]
    assert stage.executor.heartbeat(HEARTBEAT) == REPLY
    assert stage.store.records["head"] == {"n": 1}
    (event,) = stage.executor.events
    assert event.what == "the ledger could not be written"
    assert event.recovery_seconds > 0


def test_transactions_gather_into_one_while_another_is_written(stage):
    stage.store.is_open.clear()
    answers = []

    def ask():
        answers.append(stage.executor.heartbeat(HEARTBEAT))

    askers = []
    for number in range(5):
        stage.job.actions = [Persist({f"task/{number}": {"n": number}}, durable=True)]
        askers.append(threading.Thread(target=ask, daemon=True))
        askers[-1].start()
        stage.wait_for(stage.was_asked)
        if number == 0:
            # The first is being written before the others come.
            stage.wait_for(lambda: stage.store.num_commits == 1)
    # What changes nothing may rest on what is not durable yet: it waits as well.
    stage.job.actions = []
    askers.append(threading.Thread(target=ask, daemon=True))
    askers[-1].start()
    assert not answers
    stage.store.is_open.set()
    for asker in askers:
        asker.join(60)
    assert answers == [REPLY] * 6
    first, rest = stage.store.durable
    assert first == ({"task/0": {"n": 0}}, True)
    assert rest == ({f"task/{number}": {"n": number} for number in range(1, 5)}, True)


def test_a_master_whose_lock_may_be_anothers_answers_nobody_and_starts_nobody(stage):
    stage.launcher.failures = 10_000
    stage.perform(StartMember("worker", 1))
    unavailable = LedgerUnavailableError("etcd was not heard for 5 s")
    stage.store.lock_failures = [unavailable] * 10_000
    answers = []
    asker = threading.Thread(
        target=lambda: answers.append(stage.executor.heartbeat(HEARTBEAT)), daemon=True
    )
    asker.start()
    # Both have asked for the lock by then, and again.
    stage.wait_for(lambda: len(stage.store.refused) == 2 and len(stage.store.lock_failures) < 9_990)
    assert "members" in stage.store.refused
    stage.launcher.failures = 0
    assert not answers
    assert not stage.launcher.calls
    stage.store.lock_failures.clear()
    asker.join(60)
    assert answers == [REPLY]
    stage.wait_for(lambda: stage.launcher.calls)


def test_a_master_that_lost_its_ledger_answers_nobody_ever_again(stage):
    stage.store.failures = [LedgerLostError("another master has it")]
    outcomes = []

    def ask():
        try:
            outcomes.append(stage.executor.heartbeat(HEARTBEAT))
        except MasterGoneError as error:
            outcomes.append(error)

    # One writes, and the others wait for it.
    stage.store.is_open.clear()
    callers = [threading.Thread(target=ask) for _ in range(3)]
    for number, caller in enumerate(callers):
        stage.job.actions = [Persist({"head": {"n": number}}, durable=True)]
        caller.start()
        stage.wait_for(stage.was_asked)
    stage.store.is_open.set()
    assert stage.executor.wait(60)
    assert isinstance(stage.executor.death, LedgerLostError)
    assert outcomes == []
    stage.executor.release()
    for caller in callers:
        caller.join(60)
    assert [type(outcome) for outcome in outcomes] == [MasterGoneError] * 3
    assert stage.store.durable == []


def test_a_mistake_of_the_machine_ends_this_master(stage):
    stage.job.error = KeyError("head")
    with pytest.raises(MasterGoneError):
        stage.perform()
    assert stage.executor.wait(0.0)
    assert isinstance(stage.executor.death, KeyError)
    # Not even a machine that has come to its senses is asked again.
    stage.job.error = None
    with pytest.raises(MasterGoneError):
        stage.executor.tick()


def test_a_member_is_started_and_stopped_in_order_and_does_not_hold_up_others(stage):
    start, is_held = stage.launcher.start, threading.Event()

    def start_slowly(role, index):
        if role == "ps":
            is_held.wait(60)
        start(role, index)

    stage.launcher.start = start_slowly
    stage.perform(StartMember("ps", 0), StartMember("worker", 1), StopMember("ps", 0, "p", 2.5))
    stage.wait_for(lambda: stage.launcher.calls == [("start", "worker", 1)])
    is_held.set()
    stage.wait_for(lambda: len(stage.launcher.calls) == 3)
    assert stage.launcher.calls[1:] == [("start", "ps", 0), ("stop", "ps", 0, "p", 2.5)]


def test_a_start_that_is_asked_for_again_while_it_waits_is_done_once(stage):
    start, is_held = stage.launcher.start, threading.Event()

    def start_slowly(role, index):
        is_held.wait(60)
        start(role, index)

    stage.launcher.start = start_slowly
    for _ in range(3):
        stage.perform(StartMember("worker", 0))
    is_held.set()
    stage.perform(StopMember("worker", 0, "a", 2.5))
    stage.wait_for(lambda: len(stage.launcher.calls) == 2)
    assert stage.launcher.calls == [("start", "worker", 0), ("stop", "worker", 0, "a", 2.5)]
    stage.perform(StartMember("worker", 0))
    stage.wait_for(lambda: stage.launcher.calls[2:] == [("start", "worker", 0)])


def test_a_launcher_that_does_not_answer_is_asked_again(stage):
    stage.launcher.failures = 5
    stage.perform(StartMember("ps", 0))
    stage.wait_for(lambda: stage.launcher.calls == [("start", "ps", 0)])
    assert stage.executor.death is None


def test_processes_are_looked_at_again_and_again(stage):
    stage.wait_for(lambda: stage.job.events.count(ProcessesSeen(())) >= 2)


@pytest.mark.parametrize(
    ("failure", "is_final"),
    [
        (LauncherBusyError("no more processes"), False),
        (CannotLaunchError("no more processes"), True),
        (CallRefused("bug", "no more processes"), False),
        (OSError("no more processes"), False),
    ],
)
def test_a_refused_start_is_the_machines_to_judge(stage, failure, is_final):
    stage.launcher.refusals = [failure]
    stage.perform(StartMember("ps", 0), StartMember("worker", 0))
    # What waits behind it does not wait for it.
    stage.wait_for(lambda: ("start", "worker", 0) in stage.launcher.calls)
    assert StartRefused("ps", 0, "no more processes", is_final) in stage.job.events
    assert stage.executor.death is None


def test_a_stop_that_the_launcher_refuses_is_told_and_no_end_of_the_master(stage):
    stage.launcher.refusals = [CallRefused("bug", "it stumbled")]
    stage.perform(StopMember("ps", 0, "p", 0.0), StartMember("worker", 0))
    stage.wait_for(lambda: ("start", "worker", 0) in stage.launcher.calls)
    assert "starting or stopping members: CallRefused: it stumbled" in stage.told()
    assert (stage.executor.errors.count, stage.executor.death) == (1, None)
    assert stage.executor.errors.last == "starting or stopping members: CallRefused: it stumbled"


def test_a_stop_that_the_launcher_cannot_do_now_is_no_refused_start(stage):
    """It is asked for again; a start that was refused is announced."""
    stage.launcher.refusals = [LauncherBusyError("the API server does not answer")]
    stage.perform(StopMember("ps", 0, "p", 0.0), StartMember("worker", 0))
    stage.wait_for(lambda: ("start", "worker", 0) in stage.launcher.calls)
    assert not any(isinstance(one, StartRefused) for one in stage.job.events)


def test_an_observer_that_stumbles_looks_again_and_is_told_of_once(stage):
    stage.launcher.failure = KeyError("role")
    with stage.launcher.called:
        stage.launcher.failures = 3
        stage.job.events.clear()
    stage.wait_for(lambda: ProcessesSeen(()) in stage.job.events)
    assert stage.executor.errors.count == 3
    assert stage.told().count("watching processes: KeyError: 'role'") == 1
    assert stage.executor.death is None


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (TakeCut(4, 3, 0, True, 0, 55, 0, {}), CutFailed(4, "KeyError: 'head'")),
        (RestoreCut(2, 3), RestoreFailed(3, 2, "KeyError: 'head'", "server")),
    ],
)
def test_a_cut_that_stumbles_has_failed_and_the_lane_goes_on(stage, action, answer):
    stage.cuts.error = KeyError("head")
    stage.perform(action, DropCuts((4, 3)))
    stage.wait_for(lambda: stage.executor.errors.count == 2)
    assert answer in stage.job.events
    stage.cuts.error = None
    stage.perform(DropCuts((4, 3)))
    stage.wait_for(lambda: stage.cuts.kept == [(4, 3)])
    assert stage.executor.death is None
    assert "its checkpoints: KeyError: 'head'" in stage.told()


def test_a_lane_that_finds_the_ledger_lost_ends_this_master(stage):
    stage.cuts.error = LedgerLostError("another master has it")
    stage.perform(DropCuts((4, 3)))
    assert stage.executor.wait(60)
    assert isinstance(stage.executor.death, LedgerLostError)


@pytest.mark.parametrize("failures", [2, 99])
def test_an_epoch_whose_end_cannot_be_noted_is_tried_again_but_not_for_ever(failures):
    stage = Stage(launched=False, delays=lambda *_, **__: itertools.repeat(0.0))
    stage.recorder.failures = failures
    decided = EpochDecided(0, RECORD, False, 0, "")
    stage.decide = lambda _: decided
    stage.perform(DecideEpoch(EpochTotals(0, 1, 0, 0, 1.0, 1.0), None, ()))
    stage.wait_for(lambda: {type(one) for one in stage.job.events} & {EpochDecided, CannotGoOn})
    if failures == 2:
        assert decided in stage.job.events
    else:
        reason = "the end of an epoch cannot be noted: [Errno 28] No space left on device"
        assert CannotGoOn(reason) in stage.job.events
    assert stage.executor.death is None
    stage.executor.close()


def test_executor_asks_people_to_start_members_without_a_launcher(caplog):
    stage = Stage(launched=False)
    stage.perform(StartMember("worker", 1))
    stage.wait_for(lambda: "please start worker 1" in caplog.text)
    stage.executor.close()


def test_a_cut_is_taken_fenced_and_told(stage):
    stage.perform(TakeCut(4, 3, 0, True, 0, 55, 0, {}))
    stage.wait_for(lambda: CutTaken(4, 0.0) in stage.job.events)
    assert stage.cuts.taken == [(4, ("a:1", "b:2"), False)]
    # The fence is a durable commit: only the holder of the ledger may go on.
    assert ({"master/fence": {"cut": 4}}, True) in stage.store.durable
    newest = stage.executor.newest_cut
    assert (newest.cut, newest.step, newest.taken_at) == (4, 55, 1000.0)


def test_a_cut_of_an_older_generation_is_void(stage):
    stage.perform(TakeCut(4, 2, 0, True, 0, 55, 0, {}))
    stage.wait_for(lambda: stage.cuts.taken)
    assert stage.cuts.taken == [(4, ("a:1", "b:2"), True)]


def test_history_and_events_roll_back_to_what_the_machine_made_of_a_restore(stage):
    stage.job.last_cut = 2
    stage.perform(RestoreCut(2, 3))
    stage.wait_for(lambda: stage.recorder.rolled_back)
    assert stage.recorder.rolled_back == [(7, [])]
    assert stage.executor.newest_cut.cut == 2
    assert RestoreDone(3, 2, {}) in stage.job.events


def test_the_best_cut_at_the_end_is_not_the_newest(stage):
    stage.job.last_cut = 9
    stage.perform(RestoreCut(2, 3))
    stage.wait_for(lambda: stage.recorder.rolled_back)
    assert stage.executor.newest_cut.cut == 0


def test_cuts_are_dropped_after_what_came_before(stage):
    stage.perform(TakeCut(4, 3, 0, True, 0, 55, 0, {}), DropCuts((4, 3)))
    stage.wait_for(lambda: stage.cuts.kept)
    assert stage.cuts.kept == [(4, 3)]


def test_an_epoch_that_cannot_be_decided_fails_the_job_with_the_reason(stage):
    def decide(_):
        raise TrainingError("the loss of epoch 1 is nan")

    stage.decide = decide
    stage.perform(DecideEpoch(EpochTotals(0, 1, 0, 0, 1.0, 1.0), None, ()))
    stage.wait_for(lambda: CannotGoOn("the loss of epoch 1 is nan") in stage.job.events)
    assert stage.executor.death is None


def test_announcements_are_kept_for_the_next_master(stage):
    stage.perform(Announce("a worker died", "another is started", 1.5), Fail("no", "Trace"))
    (first, second) = stage.executor.events
    assert (first.time, first.what, first.done) == (1000.0, "a worker died", "another is started")
    assert first.recovery_seconds == 1.5
    assert second.what == "the job failed: no"
    kept = stage.store.records["master/events"]["events"]
    assert [entry["what"] for entry in kept] == ["a worker died", "the job failed: no"]


def test_events_are_bounded(stage):
    for number in range(300):
        stage.perform(Announce(f"event {number}", ""))
    assert len(stage.executor.events) == 200
    assert stage.executor.events[-1].what == "event 299"


def test_the_end_is_told(stage):
    assert not stage.executor.wait(0.0)
    stage.perform(End("finished"))
    assert stage.executor.wait(0.0)
    assert stage.executor.ended == "finished"


def test_progress_goes_to_tensorboard(stage):
    stage.executor.tick()
    ((step, values),) = stage.recorder.progress
    assert step == 7
    assert values["train_logloss"] == pytest.approx(0.6)
