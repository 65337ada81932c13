import numpy as np
import pytest

from ctr_pipeline.models.layers import SeededDropout


def mask_of(seed, shape=(2000, 64), rate=0.2):
    return np.asarray(SeededDropout(rate, seed)(np.ones(shape, np.float32), training=True))


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


def test_one_layer_gives_each_call_a_mask_of_its_own():
    layer = SeededDropout(0.5, 3)
    ones = np.ones((500, 64), np.float32)
    first, second = (np.asarray(layer(ones, training=True)) for _ in range(2))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.03
