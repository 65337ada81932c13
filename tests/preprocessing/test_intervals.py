"""Thresholds by bisection against direct evaluation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.kernels.float64 import flush_subnormal
from ctr_pipeline.kernels.numbers import interval_ids, rounded_ids
from ctr_pipeline.transforms.shared.intervals import (
    LN2_SMALL_IDS,
    LN2_TOP,
    bisect_steps,
    boundary_level,
    boundary_steps,
    in_range_ids,
    ln2_level,
    log_round_level,
    log_round_steps,
    round_level,
)
from tests.preprocessing.preprocessing_cases import HOSTILE_NUMBERS

ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True, width=64)


def ids_of(steps, values):
    return interval_ids(flush_subnormal(values), steps.thresholds, steps.ids, -9)


def log_round_oracle(value, num_bins, default, base):
    if math.isnan(value):
        return -9
    if value <= 0:
        return default
    if math.isinf(value):
        return default
    rounded = round(float(np.log(value)) / float(np.log(base)))
    return rounded if 0 <= rounded < num_bins else default


@given(st.lists(ANY_NUMBER, max_size=20), st.sampled_from([1.5, 2.0, math.e, 10.0]))
def test_log_round_equals_its_definition(values, base):
    values = np.array([*values, *HOSTILE_NUMBERS])
    steps = log_round_steps(30, 4, base)
    expected = [log_round_oracle(v, 30, 4, base) for v in flush_subnormal(values)]
    assert ids_of(steps, values).tolist() == expected


def test_thresholds_are_the_smallest_numbers_of_their_level():
    level = log_round_level(40, None)
    steps = log_round_steps(40, 0, None)
    below = np.nextafter(steps.thresholds, -np.inf)
    assert (level(below) < level(steps.thresholds)).all()
    # np.rint(np.log(x)) changes at e^(k + 1/2).
    np.testing.assert_allclose(steps.thresholds, np.exp(np.arange(41) - 0.5), rtol=1e-14)


def test_unreachable_bins_cost_nothing():
    steps = log_round_steps(10**9, 0, None)
    assert len(steps.thresholds) < 720
    assert ids_of(steps, np.array([np.inf])).tolist() == [0]


def test_log_rounding_refuses_too_many_steps():
    with pytest.raises(PreprocessingError, match="cut points"):
        log_round_steps(10**9, 0, 1.0000001)


@given(st.lists(ANY_NUMBER, max_size=20))
def test_rounding_by_thresholds_equals_rounding(values):
    values = flush_subnormal(np.array([*values, *HOSTILE_NUMBERS]))
    level = round_level(12)
    steps = bisect_steps(level, in_range_ids(level, 12, 7))
    np.testing.assert_array_equal(ids_of(steps, values), rounded_ids(values, 12, 7, -9))


def test_ln2_gives_small_integers_ids_of_their_own():
    values = np.array([-3, -2, -1, 0, 1, 2, 3, 7, 8, 1000, 2**62, 1e300, np.inf])
    expected = [0, 0, 1, 2, 3, 4, 6, 8, 9, 5 + 47, 5 + 1846, 5 + LN2_TOP, 5 + LN2_TOP]
    steps = bisect_steps(ln2_level, ln2_level)
    assert ids_of(steps, values).tolist() == expected
    assert steps.ids.max() == LN2_SMALL_IDS + LN2_TOP
    for value in range(3, 3000):
        want = 5 + math.floor(math.log(value) ** 2)
        assert ids_of(steps, np.array([float(value)])).tolist() == [want]


def test_nan_is_missing_even_without_thresholds():
    ids = interval_ids(np.array([1.0, np.nan]), np.zeros(0), np.array([0]), 1)
    assert ids.tolist() == [0, 1]


@given(st.sets(st.floats(allow_nan=False, allow_infinity=False, width=64), max_size=20))
def test_boundaries_are_the_steps_that_bisection_finds(boundaries):
    hostile = {-5e-324, 0.0, 5e-324, 2.5e-308, -1e308, 1.7976931348623157e308}
    cuts = np.array(sorted({*boundaries, *hostile}))
    found = bisect_steps(boundary_level(cuts), boundary_level(cuts))
    direct = boundary_steps(cuts)
    assert direct.thresholds.tolist() == found.thresholds.tolist()
    assert direct.ids.tolist() == found.ids.tolist()
