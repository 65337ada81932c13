"""Streams are functions of key and counter, uniform, normal and independent enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ctr_pipeline.apps.sample.counter_random import (
    derive_key,
    mix,
    normal,
    scramble_32_bits,
    uniform,
)

COUNTERS = np.arange(100_000, dtype=np.uint64)


def splitmix(state: int) -> int:
    """The published algorithm on Python's own integers."""
    mask = (1 << 64) - 1
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mix_is_splitmix(counter, key):
    expected = splitmix((counter * 0x9E3779B97F4A7C15 + key) % 2**64)
    assert int(mix(np.array([counter], dtype=np.uint64), key)[0]) == expected


def test_uniform_is_uniform_and_open():
    numbers = uniform(COUNTERS, derive_key(1, 2))
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-4


def test_normal_is_normal():
    assert stats.kstest(normal(COUNTERS, derive_key(4)), "norm").pvalue > 1e-4


def test_streams_of_other_keys_are_uncorrelated():
    first, second = (uniform(COUNTERS, derive_key(7, stream)) for stream in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.015
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.015


def test_any_part_of_a_stream_stands_alone():
    whole = normal(COUNTERS, 5)
    np.testing.assert_array_equal(normal(COUNTERS[500:600], 5), whole[500:600])


@pytest.mark.parametrize("parts", [(0,), (0, 0), (1, 2), (2, 1), (-1,)])
def test_keys_depend_on_parts_and_their_order(parts):
    others = {(0,), (0, 0), (1, 2), (2, 1), (-1,)} - {parts}
    assert all(derive_key(*parts) != derive_key(*other) for other in others)


@given(st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=200), st.integers(0, 2**40))
def test_scrambling_keeps_values_distinct(values, key):
    scrambled = scramble_32_bits(np.array(values, dtype=np.uint32), key)
    assert len(set(scrambled.tolist())) == len(values)
