from dataclasses import replace

import pytest

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.launchers.restarts import (
    MAX_CRASHES,
    KeptWorkers,
    ShortLives,
    decide_restart,
)


def end_often(reason, exit_code, *, times, progressed=False):
    lives, found = ShortLives(), []
    for _ in range(times):
        restart = decide_restart(reason, exit_code, progressed=progressed, before=lives)
        found.append(restart)
        lives = restart.short_lives
    return found


def test_one_that_completed_stays_ended():
    (restart,) = end_often("completed", 0, times=1)
    assert (restart.after_seconds, restart.why_not) == (None, "")


def test_the_user_s_error_is_not_tried_again():
    (restart,) = end_often("error", 1, times=1)
    assert (restart.after_seconds, restart.why_not) == (None, "ended with an error")


def test_one_that_is_killed_comes_back_as_often_as_it_takes_the_first_time_at_once():
    restarts = end_often("killed", -9, times=100)
    assert [restart.after_seconds for restart in restarts[:4]] == [0, 0.5, 1, 2]
    assert all(restart.after_seconds is not None for restart in restarts)


@pytest.mark.parametrize(
    ("reason", "exit_code"), [("error", 3), ("error", -11), ("out_of_memory", 71)]
)
def test_a_crash_loop_ends(reason, exit_code):
    restarts = end_often(reason, exit_code, times=MAX_CRASHES + 1)
    pauses = [restart.after_seconds for restart in restarts[:-1]]
    assert all(pause is not None and pause > 0 for pause in pauses)
    assert pauses == sorted(pauses)
    assert restarts[-1].after_seconds is None
    assert restarts[-1].why_not == f"crashed {MAX_CRASHES + 1} times in a row"


def test_kills_between_crashes_are_no_crashes():
    lives = ShortLives()
    for reason, exit_code in [("error", 3), ("killed", -9)] * MAX_CRASHES:
        restart = decide_restart(reason, exit_code, progressed=False, before=lives)
        assert restart.after_seconds is not None
        lives = restart.short_lives


def test_a_long_life_makes_up_for_crashes():
    restarts = end_often("error", 3, times=50, progressed=True)
    assert all(restart.after_seconds is not None for restart in restarts)


class Workers:
    """A launcher whose workers run until they are stopped."""

    def __init__(self):
        self.states = {}

    def start(self, role, index):
        earlier = self.states.get(index)
        if earlier is None or not earlier.running:
            number = 0 if earlier is None else earlier.restarts + 1
            self.states[index] = ProcessState(
                role, index, f"{index}-{number}", 1, True, None, None, "", number
            )

    def stop(self, role, index, incarnation, *, grace_seconds):
        assert grace_seconds == 5.0
        number = self.states[index].restarts
        self.states[index] = ProcessState(
            role, index, incarnation, 1, False, 143, "killed", "", number
        )

    def observe(self):
        return tuple(self.states.values())

    @property
    def running(self):
        return [one.incarnation for one in self.states.values() if one.running]


def test_another_number_of_workers_is_kept_running():
    launcher = Workers()
    workers = KeptWorkers(launcher, 3)
    workers.start_missing(0.0)
    assert launcher.running == ["0-0", "1-0", "2-0"]
    workers.scale(1, 1.0, grace_seconds=5.0)
    assert [one.index for one in workers.take_ended(2.0)] == [1, 2]
    workers.start_missing(1000.0)
    assert launcher.running == ["0-0"]
    workers.scale(4, 1001.0, grace_seconds=5.0)
    workers.start_missing(1001.0)
    assert launcher.running == ["0-0", "1-1", "2-1", "3-0"]


def test_worker_that_ended_before_is_started_again_and_is_no_failure():
    launcher = Workers()
    launcher.start("worker", 0)
    failed = {"running": False, "exit_code": 1, "reason": "error"}
    launcher.states[0] = replace(launcher.states[0], **failed)
    workers = KeptWorkers(launcher, 1)
    assert workers.take_ended(0.0) == []
    workers.start_missing(0.0)
    assert launcher.running == ["0-1"]
    launcher.states[0] = replace(launcher.states[0], **failed)
    assert len(workers.take_ended(1.0)) == 1
    assert "worker-0 ended with an error" in workers.failure


def test_worker_that_ended_before_its_number_was_asked_for_is_no_failure():
    launcher = Workers()
    launcher.start("worker", 1)
    failed = {"running": False, "exit_code": 1, "reason": "error"}
    launcher.states[1] = replace(launcher.states[1], **failed)
    workers = KeptWorkers(launcher, 1)
    workers.scale(2, 0.0, grace_seconds=5.0)
    assert workers.take_ended(0.0) == []
    workers.start_missing(0.0)
    assert launcher.running == ["1-1", "0-0"]
    assert not workers.failure
