import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.reporting.axes import Scale, nice_ticks, padded_range, tick_texts


@given(st.floats(-1e6, 1e6), st.floats(1e-4, 1e6), st.integers(2, 8))
def test_ticks_are_inside_even_and_about_as_many_as_asked(low, span, count):
    high = low + span
    ticks = nice_ticks(low, high, count)
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert len(ticks) <= count + 1
    if len(ticks) > 2:
        steps = np.diff(ticks)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        ([0.76, 0.762, 0.764], ["0.760", "0.762", "0.764"]),
        ([0.45, 0.475, 0.5], ["0.450", "0.475", "0.500"]),
        ([0, 20_000, 40_000], ["0", "20 k", "40 k"]),
        ([0.5], ["0.5"]),
    ],
)
def test_tick_texts_have_the_digits_that_tell_them_apart(ticks, texts):
    assert tick_texts(ticks) == texts


def test_scales_and_ranges():
    assert Scale(0, 10, 100, 200)(2.5) == 125
    assert Scale(0, 1, 200, 100)(1) == 100
    low, high = padded_range([3.0, 3.0])
    assert low < 3 < high
    assert padded_range([0.0]) == (-1e-3, 1e-3)
