"""Ends of epochs and of the job."""

from ctr_pipeline.distributed.coordination.events import (
    CannotGoOn,
    DecideEpoch,
    End,
    EpochDecided,
    Fail,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    StartMember,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.task_plans import ScoredSplit
from ctr_pipeline.specs.learning_rate import ReduceOnPlateau
from tests.distributed.coordination.job_bench import SCORES, Bench


def test_an_epoch_ends_with_a_cut_a_validation_and_a_decision():
    bench = Bench(epochs=2)
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
    bench = Bench(epochs=2)
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


def test_leases_tell_what_the_epochs_before_make_of_the_learning_rate():
    bench = Bench(epochs=3, learning_rate_schedule=ReduceOnPlateau())
    bench.best_epoch = 1
    bench.holds.add(DecideEpoch)
    bench.begin_training("w")
    for epoch, loss in enumerate((0.5, 0.6)):
        (task,) = bench.lease(0, "w", most=1).tasks
        assert (task.key.epoch, task.learning_rate_factor) == (epoch, 1.0)
        bench.train_all()
        record = {"epoch": epoch, "valid_logloss": loss, "valid_auc": 0.5}
        bench.tell(EpochDecided(epoch, record, False, 1, ""))
    (task,) = bench.lease(0, "w", most=1).tasks
    assert (task.key.epoch, task.learning_rate_factor) == (2, 0.1)


def test_early_stopping_ends_training():
    bench = Bench(epochs=9)
    bench.stops = True
    bench.begin_training("w")
    bench.train_all()
    assert bench.job.phase == "finished"
    assert len(bench.job.status().history) == 1


def test_epoch_decision_comes_at_once_without_validation_rows():
    bench = Bench(valid=None, final_splits=(), epochs=1)
    bench.begin_training("w")
    bench.train_all()
    assert bench.all_of(DecideEpoch)[0].valid is None
    assert bench.job.phase == "finished"


def test_scores_are_written_to_files_only_if_they_are_final():
    bench = Bench(epochs=1, final_splits=(ScoredSplit("valid", 10, 10),))
    bench.begin_training("w")
    bench.train_all(most_tasks=6)
    (valid,) = bench.lease(0, "w").tasks
    assert valid.scores_file == ""
    bench.heartbeat("worker", 0, "w", bench.report(valid, 1, finished=True))
    (final,) = bench.lease(0, "w").tasks
    assert final.scores_file == "scores/valid-0.f32"


def test_a_server_lost_after_training_changes_nothing():
    bench = Bench(epochs=2)
    bench.begin_training("w")
    bench.see("ps", 0, "p")
    bench.train_all()
    bench.log.clear()
    bench.see("ps", 0, "p", "killed")
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("finished", 2 * 192, 0)
    assert not [one for one in bench.log if isinstance(one, RestoreCut | StartMember)]


def test_a_server_lost_while_the_best_is_scored_costs_no_scores():
    bench = Bench(epochs=1, final_splits=(ScoredSplit("test", 20, 10),))
    bench.begin_training("w")
    bench.train_all(most_tasks=6 + 1 + 1)
    assert bench.job.phase == "scoring"
    bench.see("ps", 0, "p", "killed")
    bench.register("ps", 0, "q")
    assert bench.job.phase == "scoring"
    (rest,) = bench.lease(0, "w").tasks
    assert rest.key.task == 1


def test_the_newest_epoch_stands_in_for_a_best_cut_that_is_damaged():
    bench = Bench(epochs=2)
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
    bench = Bench(epochs=1)
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
    bench = Bench(epochs=1, leave_seconds=10.0)
    bench.begin_training("w")
    bench.see("ps", 0, "p")
    bench.tell(CannotGoOn("validation rows are of one class"))
    assert bench.all_of(Fail) == [Fail("validation rows are of one class", "")]
    assert StopMember("ps", 0, "p", 10.0) in bench.all_of(StopMember)
    bench.tell(Tick(), after=19.0)
    assert not bench.all_of(End)
    bench.tell(Tick(), after=2.0)
    assert bench.all_of(End) == [End("failed")]
