"""How many workers a job asks for, and who leaves when they are fewer."""

import pytest

from ctr_pipeline.distributed.coordination.events import (
    ScaleAsked,
    StartMember,
    StopMember,
)
from ctr_pipeline.distributed.coordination.messages import (
    HeldLease,
)
from tests.distributed.coordination.job_bench import Bench


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


def test_worker_that_is_to_leave_ends_what_it_has_begun_and_returns_the_rest():
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
