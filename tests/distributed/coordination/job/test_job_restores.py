"""Rollbacks, and cuts that cannot be restored."""

from ctr_pipeline.distributed.coordination.events import (
    Announce,
    Fail,
    RestoreCut,
    RestoreFailed,
    TakeCut,
    Tick,
)
from tests.distributed.coordination.job_bench import Bench, fail_restore, restored_cuts


def test_a_rollback_takes_the_ledger_back_and_tells_how_long_it_took():
    bench = Bench(checkpoint_seconds=30.0, silence_seconds=1e9)
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


def test_time_without_work_is_told_when_the_first_batch_is_trained_again():
    bench = Bench(silence_seconds=1e9)
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
    assert told == [Announce("the job has recovered", "its work goes on", 4.5, "recovery")]


def test_job_has_nothing_to_recover_while_one_worker_is_left():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a", "b")
    bench.see("worker", 0, "a", "killed")
    bench.train_all(1, "b")
    assert all(one.recovery_seconds is None for one in bench.all_of(Announce))


def test_workers_lost_after_servers_take_nothing_back_again():
    bench = Bench(silence_seconds=1e9)
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


def test_a_damaged_cut_gives_way_to_the_one_before_it():
    bench = Bench(silence_seconds=1e9, keep_checkpoints=2, full_every=1)
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
    bench = Bench(silence_seconds=1e9, keep_checkpoints=2, **changes)
    bench.begin_training("a")
    for _ in range(number):
        bench.train_all(0, "a", most_tasks=1)
        bench.tell(Tick(), after=31.0)
    bench.holds.add(RestoreCut)
    bench.replace_server("q")
    return bench


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
