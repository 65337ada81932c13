"""A job stops, goes on, or begins without its ledger."""

import pytest

from ctr_pipeline.distributed.coordination.events import (
    CannotGoOn,
    CutFailed,
    CutTaken,
    DecideEpoch,
    End,
    EpochDecided,
    ProcessesSeen,
    StartMember,
    StopAsked,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from tests.distributed.coordination.job_bench import Bench, fail_task
from tests.distributed.coordination.job_world import World


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


def stopped_while_two_train(**changes):
    """Both workers hold a task when the job is asked to stop."""
    bench = Bench(silence_seconds=1e9, **changes)
    bench.begin_training("a", "b")
    tasks = [bench.lease(index, name, most=1).tasks[0] for index, name in enumerate("ab")]
    bench.tell(StopAsked())
    return bench, tasks


def resumed(bench):
    again = Bench(records=bench.disk, resume=True)
    again.cuts = bench.cuts
    again.register("ps", 0, "q")
    again.register("worker", 0, "v")
    return again


def test_workers_pause_before_the_last_cut_and_no_record_is_trained_again():
    bench, (first, second) = stopped_while_two_train()
    assert bench.heartbeat("worker", 0, "a").directive == "pause"
    assert bench.lease(0, "a").verdict == "wait"
    report = bench.report(first, 0b0011)
    assert bench.heartbeat("worker", 0, "a", report, paused=True).directive == "pause"
    # The other one is still at work.
    bench.tell(Tick(), after=1.0)
    assert not bench.all_of(TakeCut)
    bench.heartbeat("worker", 1, "b", bench.report(second, 0b0111), paused=True)
    (cut,) = bench.all_of(TakeCut)
    assert (cut.step, bench.job.phase) == (2 + 3, "stopped")
    assert "what was trained since" not in bench.told()

    again = resumed(bench)
    assert (again.job.status().trained, again.job.status().repeated) == (8 * 5, 0)
    (task,) = again.lease(0, "v", most=1).tasks
    assert (task.key, task.done_mask) == (first.key, 0b0011)


def test_a_worker_that_does_not_pause_is_not_waited_for_for_ever():
    bench, (first, second) = stopped_while_two_train()
    bench.holds.add(TakeCut)
    bench.heartbeat("worker", 0, "a", bench.report(first, 0b0001), paused=True)
    bench.tell(Tick(), after=19.9)
    assert not bench.all_of(TakeCut)
    bench.tell(Tick(), after=0.2)
    assert [cut.step for cut in bench.all_of(TakeCut)] == [1]
    # It still works, and a cut that fails is tried again all the same.
    bench.heartbeat("worker", 1, "b", bench.report(second, 0b0001))
    bench.tell(CutFailed(1, "no space left"))
    bench.tell(Tick(), after=31.0)
    assert [cut.step for cut in bench.all_of(TakeCut)] == [1, 2]
    bench.heartbeat("worker", 1, "b", bench.report(second, 0b0011))
    bench.cuts[2] = bench.all_of(TakeCut)[-1].frozen
    bench.tell(CutTaken(2))
    assert bench.job.phase == "stopped"
    assert "from checkpoint 2; what was trained since will be repeated" in bench.told()
    assert resumed(bench).job.status().repeated == 8


def test_a_worker_that_ends_instead_of_pausing_is_not_waited_for():
    bench, (first, _) = stopped_while_two_train()
    bench.heartbeat("worker", 0, "a", bench.report(first, 0b0001), paused=True)
    bench.see("worker", 1, "b", "killed")
    assert [cut.step for cut in bench.all_of(TakeCut)] == [1]
    assert bench.job.phase == "stopped"


def test_a_cut_that_was_under_way_is_followed_by_one_of_what_is_at_rest():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=1)
    (task,) = bench.lease(0, "a", most=1).tasks
    bench.holds.add(TakeCut)
    bench.tell(Tick(), after=31.0)
    bench.tell(StopAsked())
    bench.tell(CutTaken(1))
    assert bench.job.phase == "stopping"
    bench.heartbeat("worker", 0, "a", bench.report(task, 0b0001), paused=True)
    bench.tell(CutTaken(2))
    assert bench.job.phase == "stopped"
    assert [cut.step for cut in bench.all_of(TakeCut)] == [4, 5]


def test_a_new_master_waits_again_for_workers_of_a_job_that_stops():
    bench, (first, second) = stopped_while_two_train()
    again = Bench(records=bench.disk, silence_seconds=1e9)
    again.heartbeat("worker", 0, "a", again.report(first, 0b0001), paused=True)
    again.tell(Tick(), after=19.0)
    assert again.job.phase == "stopping"
    again.heartbeat("worker", 1, "b", again.report(second, 0b0001), paused=True)
    assert (again.job.phase, again.job.status().trained) == ("stopped", 16)


def test_a_server_that_is_about_to_leave_shortens_the_wait_for_workers():
    bench, _ = stopped_while_two_train()
    bench.heartbeat("worker", 0, "a", paused=True)
    assert bench.heartbeat("ps", 0, "p", leaves_in=5.0).directive == "go_on"
    bench.tell(Tick(), after=3.9)
    assert not bench.all_of(TakeCut)
    bench.tell(Tick(), after=0.2)
    assert bench.job.phase == "stopped"


@pytest.mark.parametrize("sync", [False, True])
def test_a_whole_job_that_is_stopped_repeats_nothing(sync):
    world = World(sync=sync)
    world.live(2)
    assert world.job.phase == "training"
    world.tell(StopAsked())
    # The cut takes a while.
    world.live(3, slow_disk=True)
    world.stop_and_go_on()
    trained = world.job.status().trained
    while world.job.phase != "training":
        world.live(1)
    # The servers hold all that the ledger counted when the job stopped.
    assert world.job.state.rows_rolled_back == 0
    assert world.job.status().trained >= trained > 0
    world.finish()


def test_work_counted_after_the_last_cut_is_repeated_when_a_failed_job_resumes():
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
    bench = Bench(silence_seconds=1e9)
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
    bench = Bench(epochs=1)
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
    bench = Bench(epochs=1)
    bench.begin_training("w")
    bench.train_all()
    again = Bench(records=bench.disk, resume=True, epochs=2)
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
    ("code", "why"), [(0, ""), (-15, ""), (143, ""), (-9, ""), (-11, "crashed (SIGSEGV)")]
)
def test_members_that_leave_a_finished_job_had_no_accident(code, why):
    bench = Bench(epochs=1)
    bench.begin_training("w")
    bench.train_all()
    assert bench.job.phase == "finished"
    bench.see("ps", 0, "p", "completed" if code == 0 else "killed", code=code)
    (server,) = (one for one in bench.job.status().members if one.role == "ps")
    assert server.state == "left"
    if why:
        assert why in server.last_end.why
        assert server.last_end.exit_code == code
    else:
        assert server.last_end is None


def test_a_finished_job_that_goes_on_ends_at_once_and_starts_nobody():
    bench = Bench(epochs=1)
    bench.begin_training("w")
    bench.train_all()
    again = Bench(records=bench.disk, resume=True, epochs=1)
    again.tell(Tick())
    assert again.told() == "the job is resumed: nothing is left to train"
    again.tell(ProcessesSeen(()))
    again.tell(Tick())
    assert again.all_of(End) == [End("finished")]
    assert not again.all_of(StartMember)
    assert again.job.status().final_scores == bench.job.status().final_scores


def test_a_job_without_its_ledger_goes_on_from_its_newest_cut():
    bench = Bench(silence_seconds=1e9)
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


@pytest.mark.parametrize("keeps_ledger", [True, False])
def test_cuts_of_a_process_that_takes_over_have_higher_numbers_than_all_before(keeps_ledger):
    bench = Bench(silence_seconds=1e9, first_cut=1_000_001)
    bench.begin_training("w")
    bench.train_all(most_tasks=2)
    bench.tell(Tick(), after=31.0)
    assert min(bench.cuts) == 1_000_001
    changes = {"first_cut": 2_000_001}
    if keeps_ledger:
        again = Bench(records=bench.disk, resume=True, **changes)
    else:
        again = Bench(**changes)
        again.job = Job.from_cut(again.settings, bench.cuts, bench.job.generation, 0.0)
    assert again.job.state.head.next_cut == 2_000_001


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
