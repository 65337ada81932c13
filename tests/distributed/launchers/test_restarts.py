import pytest

from ctr_pipeline.distributed.launchers.restarts import (
    MAX_CRASHES,
    STEADY_SECONDS,
    ShortLives,
    decide_restart,
)


def end_often(reason, exit_code, *, times, lived_seconds=1.0):
    lives, found = ShortLives(), []
    for _ in range(times):
        restart = decide_restart(reason, exit_code, lived_seconds=lived_seconds, before=lives)
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
    assert restarts[0].after_seconds == 0
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
        restart = decide_restart(reason, exit_code, lived_seconds=1.0, before=lives)
        assert restart.after_seconds is not None
        lives = restart.short_lives


def test_a_long_life_makes_up_for_crashes():
    restarts = end_often("error", 3, times=50, lived_seconds=STEADY_SECONDS)
    assert all(restart.after_seconds is not None for restart in restarts)
