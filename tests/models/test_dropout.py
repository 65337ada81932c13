import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.models.layers.dropout import hashed_dropout


def mask_of(seed, shape=(2000, 64), rate=0.2):
    generator = keras.random.SeedGenerator(seed)
    return np.asarray(hashed_dropout(np.ones(shape, np.float32), rate, generator))


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate_in_every_row_and_unit(rate):
    dropped = mask_of(0, rate=rate) == 0
    assert dropped.mean() == pytest.approx(rate, abs=0.005)
    assert np.abs(dropped.mean(axis=0) - rate).max() < 6 * np.sqrt(rate * (1 - rate) / 2000)
    assert np.abs(dropped.mean(axis=1) - rate).max() < 6 * np.sqrt(rate * (1 - rate) / 64)


def test_kept_units_are_scaled_up():
    values = mask_of(0, rate=0.2)
    assert np.unique(values) == pytest.approx([0.0, 1.25])


def test_masks_of_rows_units_and_seeds_are_unrelated():
    masks = [(mask_of(seed) == 0).astype(float) for seed in (0, 1)]
    assert abs(np.corrcoef(masks[0].ravel(), masks[1].ravel())[0, 1]) < 0.02
    rows = np.corrcoef(masks[0][:200])
    units = np.corrcoef(masks[0].T)
    for correlation, count in ((rows, 64), (units, 2000)):
        others = correlation[~np.eye(len(correlation), dtype=bool)]
        assert abs(others.mean()) < 0.01
        assert others.std() == pytest.approx(1 / np.sqrt(count), rel=0.15)


def test_one_generator_gives_each_call_a_mask_of_its_own():
    generator = keras.random.SeedGenerator(3)
    ones = np.ones((500, 64), np.float32)
    first, second = (np.asarray(hashed_dropout(ones, 0.5, generator)) for _ in range(2))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.03


def test_xla_draws_the_same_masks():
    ones = np.ones((64, 32), np.float32)

    def draw(state):
        with keras.StatelessScope([(generator.state, state)]):
            return hashed_dropout(ones, 0.5, generator)

    generator = keras.random.SeedGenerator(0)
    state = tf.constant([5, 7], tf.uint32)
    compiled = tf.function(draw, jit_compile=True)(state)
    assert np.array_equal(np.asarray(draw(state)), np.asarray(compiled))
