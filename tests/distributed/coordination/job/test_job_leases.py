"""Who gets which tasks, at once or after waiting for them."""

import pytest

from ctr_pipeline.distributed.coordination.events import (
    CannotGoOn,
    CutTaken,
    Persist,
    ScaleAsked,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import leases
from ctr_pipeline.distributed.coordination.messages import (
    HeldLease,
    LeaseRequest,
    Member,
    TaskReport,
    checksum_of,
)
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan
from tests.distributed.coordination.job_bench import Bench, Call, held_by


@pytest.fixture
def waiting():
    """Worker a is at work on the only task, and b waits for two seconds."""
    bench = Bench(max_workers=3, plan_epoch=lambda epoch: EpochPlan(epoch, 1, 32, 8, ()))
    bench.begin_training("a", "b")
    (task,) = bench.lease(0, "a").tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 1))
    return bench, bench.wait_for_tasks(1, "b")


def test_worker_that_waits_gets_what_a_lost_worker_held(waiting):
    bench, call = waiting
    bench.tell(Tick(), after=1.0)
    assert call.replies == []
    bench.see("worker", 0, "a", "killed")
    (reply,) = call.replies
    assert [task.key.task for task in reply.tasks] == [0]
    # It is on disk before the answer, as any lease is.
    assert bench.disk["task/0"]["task"]["holder"] == "b"


def test_worker_that_waits_gets_what_another_could_not_do(waiting):
    bench, call = waiting
    (lease, *_) = held_by(bench, "a")
    bench.heartbeat(
        "worker", 0, "a", TaskReport(lease.key, lease.attempt, 1, 0, (), False, "bug", 1.0, None)
    )
    assert [task.key for task in call.replies[0].tasks] == [lease.key]


def test_worker_that_waits_is_answered_when_its_time_is_over(waiting):
    bench, call = waiting
    bench.tell(Tick(), after=1.9)
    assert call.replies == []
    bench.tell(Tick(), after=0.1)
    assert call.verdicts == ["wait"]
    assert call.replies[0].wait_seconds == 0.0


def test_worker_that_waits_hears_at_once_that_it_is_to_leave(waiting):
    bench, call = waiting
    bench.tell(ScaleAsked(target_workers=1))
    assert call.verdicts == ["leave"]


def test_worker_that_waits_hears_of_a_rollback_and_of_the_end(waiting):
    bench, call = waiting
    bench.see("ps", 0, "p", "killed")
    assert call.verdicts == ["wait"]
    assert call.replies[0].generation == bench.job.generation
    again = bench.wait_for_tasks(1, "b")
    bench.tell(CannotGoOn("no rows"))
    assert again.verdicts == ["end"]


def test_worker_that_waits_takes_over_a_task_not_begun_once_that_is_quicker():
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


def test_worker_that_waits_gets_tasks_when_an_epoch_begins():
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


def test_workers_that_share_are_counted_once_for_all_that_wait(monkeypatch):
    number, counted = 20, []
    bench = Bench(
        max_workers=number, plan_epoch=lambda epoch: EpochPlan(epoch, number + 1, 32, 8, ())
    )
    names = [f"w{index}" for index in range(number)]
    bench.begin_training(*names)
    calls = []
    for index, name in enumerate(names):
        (task,) = bench.lease(index, name, most=1).tasks
        held = (HeldLease(task.key, task.attempt),)
        # So fast that only the others' share keeps it from taking the last task.
        for _ in range(2):
            bench.job.state.member("worker", index).measure("train", 1000, 1.0)
        calls.append((LeaseRequest(Member("worker", index, name), 1, 1, held, 2.0), Call()))
    for request, call in calls:
        assert bench.job.lease(request, bench.now, call)[0] is None
    count = leases._num_sharing
    monkeypatch.setattr(leases, "_num_sharing", lambda state: counted.append(1) or count(state))
    bench.tell(Tick())
    assert len(counted) == 1
    assert not any(call.replies for _, call in calls)


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


def test_worker_that_asks_again_waits_once(waiting):
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


def test_a_worker_of_another_generation_waits():
    bench = Bench()
    bench.begin_training("a")
    request = LeaseRequest(Member("worker", 0, "a"), bench.job.generation - 1, 1)
    assert bench.job.lease(request, 0.0)[0].verdict == "wait"


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
