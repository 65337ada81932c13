import pytest

from ctr_pipeline.distributed.coordination.cuts import (
    CutRecord,
    CutSchedule,
    cuts_to_keep,
    decide_full,
)


def make_cuts(*best):
    """Cuts 1, 2, …, each with the best cut of its time."""
    return {
        number: CutRecord(number, 0, 0, best_cut) for number, best_cut in enumerate(best, start=1)
    }


def test_a_cut_is_due_after_its_interval_and_never_while_another_is_taken():
    schedule = CutSchedule(30.0, now=0.0)
    schedule.begin(1)
    assert not schedule.is_due(100.0, at_once=True)
    schedule.succeed(100.0)
    assert not schedule.is_due(129.9, at_once=False)
    assert schedule.is_due(130.0, at_once=False)
    assert schedule.is_due(101.0, at_once=True)


def test_a_failed_cut_is_tried_again_after_ever_longer_pauses():
    schedule = CutSchedule(30.0, now=0.0)
    now, pauses = 100.0, []
    for number in range(1, 8):
        schedule.begin(number)
        schedule.fail(now)
        pause = next(
            tenths / 10
            for tenths in range(1000)
            if schedule.is_due(now + tenths / 10, at_once=True)
        )
        pauses.append(pause)
        now += pause
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    schedule.begin(9)
    schedule.succeed(now)
    assert schedule.failures_in_row == 0


def test_a_rollback_forgets_the_cut_in_flight():
    schedule = CutSchedule(30.0, now=0.0)
    schedule.begin(1)
    schedule.start_over(50.0)
    assert schedule.in_flight == 0
    assert schedule.is_due(50.0, at_once=True)


@pytest.mark.parametrize(
    ("parent", "intact", "full"),
    [
        (None, True, True),
        (CutRecord(1, 0, 0, 0), True, False),
        (CutRecord(1, 0, 0, 0), False, True),
        (CutRecord(9, 8, 8, 0), True, False),
        (CutRecord(10, 9, 9, 0), True, True),
    ],
)
def test_deltas_need_a_parent_that_servers_know_and_end_with_a_full_cut(parent, intact, full):
    assert decide_full(parent, chain_intact=intact, full_every=10) is full


def test_the_newest_are_kept_and_what_is_pinned():
    assert cuts_to_keep(make_cuts(0, 0, 0, 0, 0), 2, {2}) == (2, 4, 5)


def test_the_best_of_the_time_of_each_kept_cut_is_kept():
    # Cut 4 made a new best; going back to cut 3 would make cut 1 the best again.
    assert cuts_to_keep(make_cuts(0, 1, 1, 1, 4), 3, {4}) == (1, 3, 4, 5)


def test_a_lost_pinned_cut_is_not_named():
    assert cuts_to_keep(make_cuts(0, 0), 1, {0, 7}) == (2,)
