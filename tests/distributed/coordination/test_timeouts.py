from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.timeouts import (
    MovingAverage,
    Speeds,
    SteadyClock,
    timeout_seconds,
)


def test_a_clock_counts_what_passes_between_looks():
    clock = SteadyClock(100.0, most_step_seconds=2.0)
    assert [clock.advance(now) for now in (100.5, 101.0, 102.5)] == [0.5, 0.5, 1.5]
    assert clock.seconds == 2.5


@pytest.mark.parametrize(("jump", "counted"), [(-1e6, 0.0), (3600.0, 2.0), (1e12, 2.0)])
def test_a_jump_of_the_clock_counts_as_little(jump, counted):
    clock = SteadyClock(100.0, most_step_seconds=2.0)
    assert clock.advance(100.0 + jump) == counted
    # And from there on as before.
    assert clock.advance(100.5 + jump) == 0.5


def test_a_moving_average_begins_with_its_first_value_and_follows():
    average = MovingAverage(weight=0.25)
    assert average.value is None
    average.add(8.0)
    assert average.value == 8.0
    average.add(4.0)
    assert average.value == 7.0


@pytest.mark.parametrize(("usual", "timeout"), [(None, 60.0), (10.0, 60.0), (30.0, 90.0)])
def test_a_timeout_is_a_multiple_of_the_usual_and_never_below_its_floor(usual, timeout):
    assert timeout_seconds(usual, floor_seconds=60.0, factor=3.0) == timeout


def test_a_straggler_is_slower_than_half_of_the_others_median():
    others = {1: 10.0, 2: 9.0, 3: 100.0}
    assert Speeds({0: 4.0} | others).is_straggler(0)
    assert not Speeds({0: 6.0} | others).is_straggler(0)
    assert not Speeds(others).is_straggler(0)


def test_one_other_worker_is_no_measure():
    assert not Speeds({0: 1.0, 1: 100.0}).is_straggler(0)


@given(
    speeds=st.lists(st.integers(1, 30).map(float), min_size=3, max_size=9),
    fraction=st.sampled_from([0.25, 0.5, 0.75]),
)
def test_each_worker_is_held_against_the_median_of_the_others(speeds, fraction):
    compared = Speeds(dict(enumerate(speeds)))
    for worker, speed in enumerate(speeds):
        others = speeds[:worker] + speeds[worker + 1 :]
        is_straggler = speed < fraction * median(others)
        assert compared.is_straggler(worker, fraction=fraction) == is_straggler
