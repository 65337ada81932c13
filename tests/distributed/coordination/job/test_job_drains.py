"""A parameter server that is asked to end leaves once a checkpoint holds all that was trained."""

import pytest

from ctr_pipeline.distributed.coordination.events import (
    Announce,
    CutFailed,
    CutTaken,
    RestoreCut,
    StopAsked,
    TakeCut,
    Tick,
)
from tests.distributed.coordination.job_bench import Bench, held_by
from tests.distributed.coordination.job_world import NUM_SERVERS, World

GRACE = 27.0


def in_training(*workers, **changes):
    """Each worker has trained one task, and holds another."""
    bench = Bench(silence_seconds=1e9, **changes)
    bench.begin_training(*workers)
    for index, name in enumerate(workers):
        bench.train_all(index, name, most_tasks=1)
    tasks = [bench.lease(index, name, most=1).tasks[0] for index, name in enumerate(workers)]
    return bench, tasks


def ask_to_end(bench, *, within=GRACE):
    return bench.heartbeat("ps", 0, "p", leaves_in=within).directive


def pause(bench, index, name, *reports):
    """The heartbeat of a worker that has finished its batch; the answer."""
    held = held_by(bench, name)
    return bench.heartbeat("worker", index, name, *reports, held=held, paused=True).directive


def server(bench):
    return next(one for one in bench.job.status().members if one.role == "ps")


def test_workers_hand_back_what_they_hold_and_no_record_is_trained_again():
    bench, (first, second) = in_training("a", "b")
    assert ask_to_end(bench) == "go_on"
    assert server(bench).state == "leaving"
    assert bench.heartbeat("worker", 0, "a", held=held_by(bench, "a")).directive == "pause"
    assert bench.lease(0, "a").verdict == "wait"
    assert pause(bench, 0, "a", bench.report(first, 0b0011)) == "pause"
    # The other one is still at work.
    assert ask_to_end(bench, within=26.0) == "go_on"
    assert not bench.all_of(TakeCut)
    assert pause(bench, 1, "b", bench.report(second, 0b0111)) == "pause"
    (cut,) = bench.all_of(TakeCut)
    assert cut.step == 4 + 4 + 2 + 3
    assert ask_to_end(bench, within=25.0) == "leave"
    # Until it is gone, there is nothing to do.
    assert bench.lease(1, "b").verdict == "wait"

    bench.now += 2.0
    bench.see("ps", 0, "p", "killed", code=143)
    bench.register("ps", 0, "q")
    assert bench.all_of(RestoreCut)[-1].cut == cut.cut
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 8 * 13, 0)
    assert server(bench).state == "running"
    assert bench.heartbeat("worker", 0, "a").directive == "go_on"
    (task,) = bench.lease(0, "a", most=1).tasks
    assert (task.key, task.done_mask) == (first.key, 0b0011)
    bench.train_all(1, "b")
    bench.heartbeat("worker", 0, "a", bench.report(task, 15))
    bench.train_all(0, "a")
    assert bench.job.phase == "finished"
    assert bench.job.status().repeated == 0
    # From when nobody worked any more.
    (recovery,) = (one for one in bench.all_of(Announce) if one.topic == "recovery")
    assert (recovery.done, recovery.recovery_seconds) == ("its work goes on", 2.0)
    told = bench.told()
    assert "parameter server 0 is asked to end within 27 s: workers pause, and a checkpoint" in told
    assert "0 was ended by SIGTERM: no record is trained again: checkpoint 1 holds all" in told


def test_a_worker_that_ends_meanwhile_is_not_waited_for():
    bench, (first, _) = in_training("a", "b")
    ask_to_end(bench)
    pause(bench, 0, "a", bench.report(first, 0b0001))
    bench.see("worker", 1, "b", "evicted", code=143)
    assert len(bench.all_of(TakeCut)) == 1
    assert ask_to_end(bench) == "leave"


def test_task_that_nobody_hands_back_is_not_awaited_beyond_the_time_of_a_cut():
    bench, (first, second) = in_training("a", "b")
    ask_to_end(bench, within=10.0)
    pause(bench, 0, "a", bench.report(first, 0b0001))
    bench.tell(Tick(), after=8.9)
    assert not bench.all_of(TakeCut)
    bench.tell(Tick(), after=0.2)
    (cut,) = bench.all_of(TakeCut)
    assert cut.step == 4 + 4 + 1
    # There is no second one, unless the worker comes to rest.
    bench.heartbeat("worker", 1, "b", bench.report(second, 0b0001), held=held_by(bench, "b"))
    bench.tell(Tick(), after=0.3)
    assert len(bench.all_of(TakeCut)) == 1
    assert ask_to_end(bench, within=0.6) == "go_on"
    assert ask_to_end(bench, within=0.0) == "leave"
    bench.see("ps", 0, "p", "killed", code=143)
    assert (
        "the job goes back to checkpoint 1, as it ended before a newer checkpoint was taken; with "
        "a longer runtime.termination_grace_seconds there is time for one"
    ) in bench.told()
    bench.register("ps", 0, "q")
    assert bench.job.status().repeated == 8


def test_job_goes_back_and_says_so_without_time_for_a_checkpoint():
    bench, (task,) = in_training("a")
    bench.holds.add(TakeCut)
    ask_to_end(bench, within=1.0)
    pause(bench, 0, "a", bench.report(task, 0b0001))
    assert ask_to_end(bench, within=0.5) == "go_on"
    assert ask_to_end(bench, within=0.0) == "leave"
    bench.see("ps", 0, "p", "evicted", code=143)
    assert "the job goes back to its beginning, as it ended before a newer" in bench.told()
    # What the servers wrote for it is of no use any more.
    bench.tell(CutTaken(1))
    assert bench.job.cuts == ()
    bench.register("ps", 0, "q")
    assert bench.job.status().repeated == 8 * 5


def test_a_cut_that_fails_is_tried_again_while_there_is_time():
    bench, (task,) = in_training("a")
    bench.holds.add(TakeCut)
    ask_to_end(bench)
    pause(bench, 0, "a", bench.report(task, 0b0001))
    bench.tell(CutFailed(1, "no space left"))
    assert ask_to_end(bench, within=20.0) == "go_on"
    bench.tell(Tick(), after=3.0)
    bench.tell(CutTaken(2))
    assert ask_to_end(bench, within=10.0) == "leave"


def test_a_cut_that_was_under_way_is_followed_by_one_that_holds_all():
    bench, (task,) = in_training("a")
    bench.holds.add(TakeCut)
    bench.tell(Tick(), after=31.0)
    ask_to_end(bench)
    pause(bench, 0, "a", bench.report(task, 0b0001))
    assert [cut.step for cut in bench.all_of(TakeCut)] == [4]
    bench.tell(CutTaken(1))
    assert ask_to_end(bench) == "go_on"
    assert [cut.step for cut in bench.all_of(TakeCut)] == [4, 5]
    bench.tell(CutTaken(2))
    assert ask_to_end(bench) == "leave"


def test_server_leaves_at_once_if_nothing_was_trained_since_the_last_checkpoint():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    assert ask_to_end(bench) == "leave"
    bench.see("ps", 0, "p", "killed", code=143)
    assert "no record is trained again: nothing was trained yet" in bench.told()
    assert "is asked to end" not in bench.told()


def test_server_leaves_at_once_while_a_split_is_scored():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=6)
    assert bench.job.phase == "validating"
    assert ask_to_end(bench) == "leave"
    bench.see("ps", 0, "p", "killed", code=143)
    assert "no record is trained again: checkpoint 1 holds all" in bench.told()


def test_the_cut_at_the_end_of_an_epoch_is_waited_for():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    bench.holds.add(TakeCut)
    bench.train_all(0, "a", most_tasks=6)
    assert bench.job.phase == "cutting"
    assert ask_to_end(bench) == "go_on"
    bench.tell(CutTaken(1))
    assert ask_to_end(bench) == "leave"


def test_servers_leave_after_one_cut_when_two_are_to_end():
    bench = Bench(silence_seconds=1e9, num_parameter_servers=2)
    bench.tell(Tick())
    for index, name in enumerate("pr"):
        bench.register("ps", index, name)
    bench.register("worker", 0, "a")
    (task,) = bench.lease(0, "a", most=1).tasks
    for index, name in enumerate("pr"):
        assert bench.heartbeat("ps", index, name, leaves_in=GRACE).directive == "go_on"
    pause(bench, 0, "a", bench.report(task, 0b0001))
    for index, name in enumerate("pr"):
        assert bench.heartbeat("ps", index, name, leaves_in=GRACE).directive == "leave"
    for index, name in enumerate("pr"):
        bench.see("ps", index, name, "killed", code=143)
    for index, name in enumerate("qs"):
        bench.register("ps", index, name)
    assert len(bench.all_of(TakeCut)) == 1
    status = bench.job.status()
    assert (status.phase, status.trained, status.repeated) == ("training", 8, 0)


def test_a_job_that_is_stopped_meanwhile_stops_with_the_checkpoint_that_is_under_way():
    bench, (task,) = in_training("a")
    ask_to_end(bench)
    bench.holds.add(TakeCut)
    pause(bench, 0, "a", bench.report(task, 0b0001))
    bench.tell(StopAsked())
    assert ask_to_end(bench) == "go_on"
    bench.tell(CutTaken(1))
    assert bench.job.phase == "stopped"
    assert ask_to_end(bench) == "leave"


def test_a_paused_worker_of_an_older_generation_frees_nothing():
    bench, _ = in_training("a")
    before = bench.job.generation
    bench.replace_server("q")
    (again,) = bench.lease(0, "a", most=1).tasks
    bench.heartbeat("worker", 0, "a", paused=True, generation=before)
    assert [lease.attempt for lease in held_by(bench, "a")] == [again.attempt]


def test_a_new_master_hears_again_of_a_server_that_is_to_end():
    bench, (task,) = in_training("a")
    ask_to_end(bench)
    again = Bench(records=bench.disk, silence_seconds=1e9)
    assert server(again).state != "leaving"
    assert ask_to_end(again, within=20.0) == "go_on"
    pause(again, 0, "a", again.report(task, 0b0001))
    assert ask_to_end(again, within=19.0) == "leave"


@pytest.mark.parametrize("sync", [False, True])
def test_servers_of_a_whole_job_that_are_asked_to_end_cost_nothing(sync):
    world = World(sync=sync)
    world.live(4)
    for index in range(NUM_SERVERS):
        assert world.job.phase == "training"
        before, repeated = world.servers[index], world.job.num_repeated
        world.ask_to_end(index, within_seconds=20.0)
        for _ in range(10):
            world.live(1)
            if world.servers[index] is not before and world.job.phase == "training":
                break
        assert world.servers[index] is not before
        assert world.job.num_repeated == repeated
    world.finish()
