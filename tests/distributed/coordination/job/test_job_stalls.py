"""Members that are silent or slow, and jobs in which nothing goes on."""

from ctr_pipeline.distributed.coordination.events import (
    Fail,
    StartMember,
    StopMember,
    TakeCut,
    Tick,
)
from tests.distributed.coordination.job_bench import Bench, restored_cuts


def keep_alive(bench, seconds, *names):
    for _ in range(int(seconds)):
        bench.heartbeat("ps", 0, "p")
        for index, name in enumerate(names):
            bench.heartbeat("worker", index, name)
        bench.tell(Tick(), after=1.0)


def test_a_silent_worker_is_ended_and_started_again_and_its_work_goes_to_others():
    bench = Bench(silence_seconds=10.0)
    bench.begin_training("a", "b")
    bench.see("worker", 0, "a")
    (task,) = bench.lease(0, "a").tasks
    bench.tell(Tick(), after=10.0)
    bench.heartbeat("worker", 1, "b")
    bench.heartbeat("ps", 0, "p")
    assert not bench.all_of(StopMember)
    bench.tell(Tick(), after=0.5)
    assert bench.all_of(StopMember) == [StopMember("worker", 0, "a", 0.0)]
    assert bench.lease(1, "b").tasks[0].key == task.key
    # It wakes before it dies: it has no place here any more.
    assert bench.heartbeat("worker", 0, "a", bench.report(task, 15)).directive == "leave"
    assert "given up" in bench.register("worker", 0, "a")
    assert bench.job.status().trained == 0
    bench.log.clear()
    bench.see("worker", 0, "a", "killed")
    assert bench.all_of(StartMember) == [StartMember("worker", 0)]


def test_a_leap_of_the_clock_is_nobodys_silence():
    bench = Bench(silence_seconds=10.0, most_clock_step_seconds=2.0)
    bench.begin_training("a")
    for leap in (1e9, -1e9, 1e9):
        bench.tell(Tick(), after=leap)
    assert not bench.all_of(StopMember)


def test_a_silent_server_is_ended_and_the_job_goes_back():
    bench = Bench(silence_seconds=10.0)
    bench.begin_training("a")
    generation = bench.job.generation
    bench.tell(Tick(), after=10.5)
    assert StopMember("ps", 0, "p", 0.0) in bench.all_of(StopMember)
    assert bench.job.phase == "restoring"
    assert bench.job.generation > generation
    assert bench.heartbeat("ps", 0, "p").directive == "leave"


def test_a_task_that_stands_still_counts_as_failed_and_its_worker_is_ended():
    bench = Bench(task_timeout_floor_seconds=60.0, max_task_failures=2)
    bench.begin_training("a")
    bench.lease(0, "a")
    keep_alive(bench, 60, "a")
    assert not bench.all_of(StopMember)
    keep_alive(bench, 2, "a")
    assert bench.all_of(StopMember) == [StopMember("worker", 0, "a", 0.0)]
    assert "no batch of it was done within 60 s" in bench.told()


def test_a_worker_that_hangs_in_the_middle_of_a_task_is_no_failure_of_the_task():
    bench = Bench(task_timeout_floor_seconds=60.0, max_task_failures=1)
    bench.begin_training("a")
    (task,) = bench.lease(0, "a").tasks
    bench.heartbeat("worker", 0, "a", bench.report(task, 1))
    keep_alive(bench, 62, "a")
    assert bench.job.phase == "training"
    assert "worker 0 stands still" in bench.told()


def test_worker_that_stood_still_first_is_ended_when_several_stand_still():
    bench = Bench(task_timeout_floor_seconds=60.0, silence_seconds=1e9)
    bench.begin_training("a", "b")
    bench.lease(0, "a")
    keep_alive(bench, 5, "a", "b")
    bench.lease(1, "b")
    keep_alive(bench, 60, "a", "b")
    assert [one.index for one in bench.all_of(StopMember)] == [0]
    keep_alive(bench, 30, "a", "b")
    assert [one.index for one in bench.all_of(StopMember)] == [0]


def stall(bench, seconds):
    """Workers that are replaced as often as need be hold work, and nothing of it is done."""
    for _ in range(int(seconds)):
        bench.heartbeat("ps", 0, "p")
        for index in range(2):
            if not bench.job.state.member("worker", index).incarnation:
                bench.register("worker", index, f"w{index}-{bench.now}")
            name = bench.job.state.member("worker", index).incarnation
            bench.heartbeat("worker", index, name)
            bench.lease(index, name, most=1)
        bench.tell(Tick(), after=1.0)


def stalling_bench():
    bench = Bench(max_task_failures=99, silence_seconds=1e9)
    bench.begin_training("a")
    bench.train_all(0, "a", most_tasks=2)
    bench.tell(Tick(), after=31.0)
    assert bench.job.cuts == (1,)
    # No other cut comes about, so that what follows is taken back each time.
    bench.holds.add(TakeCut)
    bench.train_all(0, "a", most_tasks=1)
    return bench


def test_a_job_in_which_nothing_is_counted_goes_back_to_its_last_cut():
    bench = stalling_bench()
    generation = bench.job.generation
    stall(bench, 110)
    assert bench.job.generation == generation
    stall(bench, 15)
    assert bench.job.generation > generation
    assert restored_cuts(bench)[-1] == 1
    told = (
        "nothing was counted for 120 s though workers hold work: the job goes back to checkpoint 1"
    )
    assert told in bench.told()
    # What was wrong is over.
    bench.holds.clear()
    bench.register("worker", 1, "y")
    bench.register("worker", 0, "z")
    bench.train_all(0, "z")
    assert bench.job.phase == "finished"


def test_a_job_that_stalls_again_and_again_fails_and_says_why():
    bench = stalling_bench()
    stall(bench, 600)
    (failure,) = bench.all_of(Fail)
    assert failure.reason == (
        "nothing was counted for 120 s though workers hold work; this happened 4 times in a row "
        "without any progress"
    )


def test_work_that_is_only_repeated_is_no_progress_out_of_a_stall():
    bench = stalling_bench()
    for number in range(4):
        assert bench.job.phase == "training"
        stall(bench, 150)
        if bench.job.phase == "failed":
            break
        # Up to where it stalled, and no further.
        bench.register("worker", 0, f"again-{number}")
        (task,) = bench.lease(0, f"again-{number}", most=1).tasks
        bench.heartbeat("worker", 0, f"again-{number}", bench.report(task, 1))
    assert bench.job.phase == "failed"


def test_job_that_waits_does_not_stall_as_nobody_holds_work():
    bench = Bench(silence_seconds=1e9)
    bench.begin_training("a")
    generation = bench.job.generation
    for _ in range(500):
        bench.tell(Tick(), after=1.0)
    assert bench.job.generation == generation


def test_task_that_takes_a_worker_too_long_is_given_to_another():
    bench = Bench(task_timeout_floor_seconds=10.0, task_timeout_factor=3.0, silence_seconds=1e9)
    bench.begin_training("a", "b")
    (slow,) = bench.lease(0, "a", most=1).tasks
    (task,) = bench.lease(1, "b", most=1).tasks
    bench.heartbeat("worker", 1, "b", bench.report(task, 15, seconds=6.0))
    for second, mask in ((9, 1), (9, 3), (9, 7)):
        keep_alive(bench, second, "a", "b")
        bench.heartbeat("worker", 0, "a", bench.report(slow, mask, seconds=9.0))
    # It makes progress, so it is not ended; but 3 times the usual 6 s are over.
    assert "takes worker 0 longer than 18 s" in bench.told()
    (rest,) = bench.lease(1, "b", most=1).tasks
    assert (rest.key, rest.done_mask & 3) == (slow.key, 3)
    assert not bench.all_of(StopMember)


def test_a_straggler_is_announced_once_and_again_if_it_falls_behind_again():
    bench = Bench(max_workers=3)
    bench.begin_training("a", "b", "c")
    for index, name, seconds in ((0, "a", 1.0), (1, "b", 1.0), (2, "c", 8.0)):
        (task,) = bench.lease(index, name, most=1).tasks
        bench.heartbeat("worker", index, name, bench.report(task, 1, seconds=seconds / 4))
        bench.heartbeat("worker", index, name, bench.report(task, 15, seconds=seconds))
    (task,) = bench.lease(2, "c").tasks
    keep_alive(bench, 5, "a", "b", "c")
    assert "is slow" not in bench.told()
    keep_alive(bench, 20, "a", "b", "c")
    assert bench.told().count("worker 2 is slow: 4 records/s") == 1

    # It catches up, and falls behind once more.
    bench.heartbeat("worker", 2, "c", bench.report(task, 1, seconds=0.1))
    keep_alive(bench, 2, "a", "b", "c")
    bench.heartbeat("worker", 2, "c", bench.report(task, 3, seconds=40.0))
    bench.heartbeat("worker", 2, "c", bench.report(task, 7, seconds=80.0))
    keep_alive(bench, 20, "a", "b", "c")
    assert bench.told().count("worker 2 is slow") == 2


def test_a_worker_that_still_compiles_is_no_straggler():
    bench = Bench(max_workers=3)
    bench.begin_training("a", "b", "c")
    for index, name, seconds in ((0, "a", 1.0), (1, "b", 1.0), (2, "c", 1.0)):
        (task,) = bench.lease(index, name, most=1).tasks
        compiling = 7.0 if name == "c" else 0.0
        bench.heartbeat(
            "worker", index, name, bench.report(task, 1, seconds=compiling + seconds / 4)
        )
        bench.heartbeat("worker", index, name, bench.report(task, 15, seconds=compiling + seconds))
    bench.lease(2, "c")
    keep_alive(bench, 10, "a", "b", "c")
    assert "is slow" not in bench.told()
