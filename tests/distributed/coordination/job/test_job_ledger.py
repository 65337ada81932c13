"""What the ledger keeps, and what a master makes of it."""

import json

from ctr_pipeline.distributed.coordination.events import (
    DecideEpoch,
    RestoreCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.messages import (
    HeldLease,
)
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan
from tests.distributed.coordination.job_bench import Bench, held_by


def test_the_ledger_keeps_records_of_tasks_at_work_and_counts_of_the_others():
    bench = Bench(
        plan_epoch=lambda epoch: EpochPlan(epoch, 1000, 32, 8, ()),
        silence_seconds=1e9,
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
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 3, repeated=1))
    bench.tell(Tick(), after=31.0)
    bench.heartbeat("worker", 0, "a", bench.report(task, 7, repeated=5))
    assert bench.job.status().repeated == 16
    again = Bench(records=bench.disk, silence_seconds=1e9)
    assert again.job.status().repeated == 8
    again.heartbeat("worker", 0, "a", bench.report(task, 7, repeated=5))
    assert again.job.status().repeated == 16
    again.cuts = bench.cuts
    again.replace_server("q")
    # The third batch, which the cut does not count, will be trained again.
    assert (again.job.status().trained, again.job.status().repeated) == (16, 24)


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
