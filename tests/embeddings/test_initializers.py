import hashlib
import math
from typing import get_args

import numpy as np
import pytest

from ctr_pipeline.embeddings.initializers import INITIALIZERS
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.specs.initializer import InitializerName, InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

SGD = OptimizerSpec(name="sgd", learning_rate=0.1)
NUM_IDS = 20_000
DIM = 4


def initial_values(name, scale=0.5, *, threads=1, ids=range(NUM_IDS)):
    """Linear weights and vectors of fresh rows."""
    initializer = InitializerSpec(name=name, scale=scale)
    segments = [
        SegmentSpec("linear", 1, SGD, "sum"),
        SegmentSpec("vector", DIM, SGD, "sum", initializer=initializer),
    ]
    store = EmbeddingStore([TableSpec("x", NUM_IDS)], segments, seed=7, threads=threads)
    values = store.read_rows(np.array(ids), create=True)
    assert (values[:, 0] == 0).all()
    return values[:, 1:]


def mix(bits):
    """SplitMix64's finaliser."""
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return bits ^ bits >> 31


GOLDEN = 0x9E3779B97F4A7C15
TABLE_SEED = int.from_bytes(hashlib.blake2b(b"7\0x", digest_size=8).digest(), "little")


def bits_of(number, place):
    """The 64 bits of a value; places count from the row's first."""
    row_seed = mix(TABLE_SEED ^ mix((number + GOLDEN) % 2**64))
    return mix((row_seed + GOLDEN * (place + 1)) % 2**64)


def test_every_name_has_an_initializer():
    assert set(INITIALIZERS) == set(get_args(InitializerName))


@pytest.mark.parametrize("name", INITIALIZERS)
def test_values_do_not_depend_on_order_or_threads(name):
    values = initial_values(name)
    np.testing.assert_array_equal(initial_values(name, threads=3), values)
    backwards = initial_values(name, ids=range(NUM_IDS)[::-1])
    np.testing.assert_array_equal(backwards[::-1], values)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_values_follow_their_scale(name):
    np.testing.assert_array_equal(initial_values(name, 1.0), 2 * initial_values(name, 0.5))
    assert not initial_values(name, 0.0).any()


def test_zeros_are_zeros():
    assert not initial_values("zeros").any()


def test_uniform_by_hand():
    values = initial_values("uniform", 0.3)
    for number, place in ((0, 1), (1, 1), (19_999, 4)):
        centred = (bits_of(number, place) >> 39 | 1) - 2**24
        expected = np.float32(centred * 2.0**-24) * np.float32(0.3)
        assert values[number, place - 1] == expected


def test_normal_by_hand():
    values = initial_values("normal", 0.3)
    for number, place in ((0, 1), (1, 1), (19_999, 4)):
        bits = bits_of(number, place)
        radius = math.sqrt(-2 * math.log(((bits >> 32) + 1) / 2**32))
        expected = 0.3 * radius * math.cos(2 * math.pi * (bits % 2**32) / 2**32)
        assert values[number, place - 1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "deviation", "kurtosis"), [("uniform", 1 / math.sqrt(3), 1.8), ("normal", 1.0, 3.0)]
)
def test_values_have_the_moments_of_their_distribution(name, deviation, kurtosis):
    values = initial_values(name, 1.0).astype(np.float64)
    assert abs(values.mean()) < 4 * deviation / math.sqrt(values.size)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert (values**4).mean() / values.var() ** 2 == pytest.approx(kurtosis, rel=0.05)
    assert np.abs(np.corrcoef(values.T) - np.eye(DIM)).max() < 4 / math.sqrt(NUM_IDS)
