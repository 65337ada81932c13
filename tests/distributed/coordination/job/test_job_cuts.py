"""When a cut is taken, counts, fails, and is dropped."""

from ctr_pipeline.distributed.coordination.events import (
    CutDamaged,
    CutFailed,
    CutTaken,
    DropCuts,
    Fail,
    RestoreCut,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.task_plans import ScoredSplit
from tests.distributed.coordination.job_bench import Bench, fail_restore


def test_no_cut_is_taken_of_nothing_new():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.tell(Tick(), after=31.0)
    assert not bench.all_of(TakeCut)


def test_a_cut_counts_what_was_counted_when_it_was_asked_for():
    bench = Bench(silence_seconds=1e9)
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


def test_cut_holds_all_rows_after_one_that_failed():
    bench = Bench(silence_seconds=1e9)
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
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    bench.train_all(0, "a")
    for number in range(1, 6):
        assert bench.job.phase == "cutting"
        bench.tell(CutFailed(number, "no space left"))
        bench.tell(Tick(), after=31.0)
    assert bench.job.phase == "failed"


def test_the_cut_of_a_generation_that_is_over_does_not_count():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=1)
    bench.holds.add(TakeCut)
    bench.tell(Tick(), after=31.0)
    bench.see("ps", 0, "p", "killed")
    bench.tell(CutTaken(1))
    assert bench.job.cuts == ()


def test_a_cut_at_the_end_of_an_epoch_waits_for_storage():
    bench = Bench(silence_seconds=1e9, storage_timeout_seconds=400.0)
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
    bench = Bench(silence_seconds=1e9, storage_timeout_seconds=60.0)
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    bench.train_all(0, "a")
    bench.tell(CutFailed(1, "the volume is away", of_storage=True))
    bench.tell(Tick(), after=61.0)
    bench.tell(CutFailed(2, "the volume is away", of_storage=True))
    assert "the volume is away" in bench.all_of(Fail)[0].reason


def test_a_cut_that_proves_damaged_while_it_is_kept_is_no_parent_of_the_next():
    bench = Bench(silence_seconds=1e9)
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


def test_scores_of_a_best_cut_that_is_lost_meanwhile_are_not_mixed_with_those_of_another():
    splits = (ScoredSplit("test", 20, 10),)
    bench = Bench(epochs=2, final_splits=splits)
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


def test_old_cuts_go_and_the_best_one_stays():
    bench = Bench(keep_checkpoints=1, epochs=9, silence_seconds=1e9)
    bench.begin_training("w")
    bench.train_all(most_tasks=6 + 1)  # One epoch and its validation: cut 1 is the best.
    for _ in range(3):
        bench.train_all(most_tasks=1)
        bench.tell(Tick(), after=31.0)
    assert bench.job.cuts == (1, 4)
    assert bench.all_of(DropCuts)[-1].keep == (1, 4)
