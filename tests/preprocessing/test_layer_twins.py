"""Each layer beside its columnar kernel, over any parameters and any values."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st

from ctr_pipeline.kernels import numbers as number_kernels
from ctr_pipeline.kernels.arrow_values import number_values
from ctr_pipeline.kernels.float64 import clip_values, fill, flush_scalar, scale
from ctr_pipeline.kernels.text_ids import hash_ids, lookup_ids, vocabulary_table
from ctr_pipeline.preprocessing.layers import (
    Clip,
    Discretization,
    Fill,
    Hashing,
    IndexLookup,
    IntervalIds,
    Log,
    LogRound,
    Normalizer,
    RoundIdentity,
    Standardize,
)
from ctr_pipeline.transforms import log
from ctr_pipeline.transforms.shared.intervals import boundary_steps, log_round_steps
from ctr_pipeline.transforms.shared.vocabulary_files import vocabulary_of
from ctr_pipeline.transforms.standardize import StandardizeStep
from tests.preprocessing.preprocessing_cases import HOSTILE_NUMBERS

numbers = st.lists(
    st.floats() | st.sampled_from(HOSTILE_NUMBERS.tolist()) | st.integers(-100, 100).map(float),
    max_size=20,
).map(lambda values: np.array(values, np.float64))
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.lists(st.binary(max_size=80), max_size=20)
missing_ids = st.none() | st.integers(0, 99)


def kernel_values(values):
    """As the encoder hands them to kernels."""
    return number_values(pa.array(values), column="x")


def assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    # Kinds of NaN and signs of zero are not told apart by anything downstream.
    np.testing.assert_array_equal(found, expected)


@given(numbers, finite, finite)
def test_normalizer(values, subtractor, divisor):
    assume(flush_scalar(divisor) != 0)
    layer = Normalizer(subtractor, divisor, dtype="float64")
    expected = scale(kernel_values(values), subtractor, divisor)
    assert_same_bits(layer(values).numpy(), expected)


@given(numbers, finite, st.floats(0, 1e300), st.none() | st.floats(1e-300, 1e300))
def test_standardize(values, mean, deviation, clip):
    layer = Standardize(mean, deviation, clip, dtype="float64")
    expected = StandardizeStep(mean=mean, standard_deviation=deviation, clip=clip).kernel(
        kernel_values(values)
    )
    assert_same_bits(layer(values).numpy(), expected)


@given(numbers)
def test_log_to_its_stated_tolerance(values):
    found = Log(dtype="float64")(values).numpy()
    np.testing.assert_allclose(found, log.Log().kernel(kernel_values(values)), rtol=1e-14)


@given(numbers, finite, finite)
def test_clip(values, one, other):
    minimum, maximum = sorted([one, other])
    for bounds in ((minimum, maximum), (None, maximum), (minimum, None)):
        layer = Clip(*bounds, dtype="float64")
        expected = clip_values(kernel_values(values), *bounds)
        assert_same_bits(layer(values).numpy(), expected)


@given(numbers, finite)
def test_fill(values, value):
    expected = fill(kernel_values(values), value)
    assert_same_bits(Fill(value, dtype="float64")(values).numpy(), expected)


@given(numbers, st.lists(finite, min_size=1, max_size=9, unique=True), missing_ids)
def test_discretization(values, bins, missing_id):
    bins = np.unique(bins)
    steps = boundary_steps(bins)
    expected = number_kernels.interval_ids(
        kernel_values(values),
        steps.thresholds,
        steps.ids,
        len(bins) if missing_id is None else missing_id,
    )
    assert_same_bits(Discretization(bins, missing_id=missing_id)(values).numpy(), expected)


@pytest.mark.parametrize("base", [None, 2.0, 1.5, 10.0])
@given(numbers, st.integers(1, 50), st.integers(0, 9), missing_ids)
def test_log_round(base, values, num_bins, default, missing_id):
    steps = log_round_steps(num_bins, default, base)
    expected = number_kernels.interval_ids(
        kernel_values(values),
        steps.thresholds,
        steps.ids,
        default if missing_id is None else missing_id,
    )
    layer = LogRound(num_bins, default, base, missing_id=missing_id)
    assert_same_bits(layer(values).numpy(), expected)


@given(numbers, st.integers(1, 2**40), st.integers(0, 9), missing_ids)
def test_round_identity(values, num_buckets, default, missing_id):
    expected = number_kernels.rounded_ids(
        kernel_values(values), num_buckets, default, default if missing_id is None else missing_id
    )
    layer = RoundIdentity(num_buckets, default, missing_id=missing_id)
    assert_same_bits(layer(values).numpy(), expected)


@given(numbers, st.lists(st.floats(allow_nan=False), max_size=9), st.data())
def test_interval_ids(values, thresholds, data):
    thresholds = np.sort([flush_scalar(threshold) for threshold in thresholds])
    size = len(thresholds) + 1
    ids = data.draw(st.lists(st.integers(0, 2**31), min_size=size, max_size=size))
    expected = number_kernels.interval_ids(
        kernel_values(values), thresholds, np.array(ids, np.int64), 7
    )
    assert_same_bits(IntervalIds(thresholds, ids, 7)(values).numpy(), expected)


@given(texts, st.integers(1, 2**40), missing_ids)
def test_hashing(values, num_bins, missing_id):
    expected = hash_ids(pa.array(values, pa.binary()), num_bins, missing_id=missing_id)
    layer = Hashing(num_bins, missing_id=missing_id)
    assert_same_bits(layer(tf.constant(values, tf.string)).numpy(), expected)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 2**40))
def test_hashing_of_integers(values, num_bins):
    values = np.array(values, np.int64)
    assert_same_bits(Hashing(num_bins)(values).numpy(), hash_ids(pa.array(values), num_bins))


@given(
    st.lists(st.binary(max_size=40), unique=True, max_size=20),
    texts,
    st.integers(1, 9),
    missing_ids,
)
def test_index_lookup(vocabulary, others, oov_buckets, missing_id):
    values = [*others, *vocabulary]
    expected = lookup_ids(
        pa.array(values, pa.binary()),
        vocabulary_table(vocabulary_of(vocabulary)),
        oov_buckets=oov_buckets,
        missing_id=missing_id,
    )
    layer = IndexLookup(vocabulary, oov_buckets, missing_id=missing_id)
    assert_same_bits(layer(tf.constant(values, tf.string)).numpy(), expected)
