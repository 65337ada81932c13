"""Tasks that fail, and reports that cannot be or that parameter servers contradict."""

import json
from dataclasses import replace

import pytest

from ctr_pipeline.distributed.coordination.events import (
    CutContradicted,
    Fail,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
)
from tests.distributed.coordination.job_bench import SCORES, Bench, fail_task, restored_cuts


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


def test_task_that_fails_each_time_is_not_tried_again():
    """Parameters that diverged would be in the next checkpoint."""
    bench = Bench(max_task_failures=3)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a", most=1).tasks
    report = bench.report(task, 1, failure="Traceback\nTrainingError: the loss is nan")
    bench.heartbeat("worker", 0, "a", replace(report, is_final=True))
    (failure,) = bench.all_of(Fail)
    assert failure.reason == (
        "task 0 of epoch 1 (32 records) failed: TrainingError: the loss is nan"
    )


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
    bench = Bench(silence_seconds=1e9)
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
    bench = Bench(epochs=1)
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


def test_reports_that_servers_contradict_are_taken_back_and_their_worker_ends():
    bench = Bench(silence_seconds=1e9)
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
    bench = Bench(silence_seconds=1e9, max_start_failures=2)
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
    bench = Bench(silence_seconds=1e9)
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
    again = Bench(records=bench.disk, silence_seconds=1e9)
    again.holds.add(TakeCut)
    # The batch whose report was not written is told again by who holds it.
    again.heartbeat("worker", 0, "a", bench.report(open_task, 1))
    again.tell(Tick(), after=31.0)
    (asked,) = again.all_of(TakeCut)
    assert dict(asked.claims) == {1: 15, 2: 15, 3: 1}
    again.cuts = bench.cuts
    again.tell(CutContradicted(asked.cut, ((2, 0b0100),)))
    assert [(one.role, one.index) for one in again.all_of(StopMember)] == [("worker", 1)]


def test_claims_a_cut_has_shown_are_not_asked_again_even_by_another_master():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.tell(Tick(), after=31.0)
    again = Bench(records=bench.disk, silence_seconds=1e9)
    again.holds.add(TakeCut)
    again.tell(Tick(), after=31.0)
    (asked,) = again.all_of(TakeCut)
    assert asked.claims == ()
