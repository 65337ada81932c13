import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.dataset.sampling import NegativeSampling, sampling_of
from ctr_pipeline.dataset.splits import random_fractions

NUM_ROWS = 100_000
LABELS = np.random.default_rng(0).random(NUM_ROWS) < 0.2


def rows_drawn(sampling, sizes):
    starts = np.cumsum([0, *sizes])
    masks = [
        sampling.is_drawn(start, LABELS[start : start + size])
        for start, size in zip(starts.tolist(), sizes, strict=False)
    ]
    return np.flatnonzero(np.concatenate(masks)).tolist()


def test_all_rows_of_label_1_and_a_share_of_the_others():
    drawn = NegativeSampling(negatives=0.1, seed=3).is_drawn(0, LABELS)
    assert drawn[LABELS].all()
    share = drawn[~LABELS].mean()
    assert abs(share - 0.1) < 4 * math.sqrt(0.1 * 0.9 / (~LABELS).sum())


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_batches_do_not_matter(sizes, negatives):
    sampling = NegativeSampling(negatives=negatives, seed=1)
    whole = np.flatnonzero(sampling.is_drawn(0, LABELS[: sum(sizes)]))
    assert rows_drawn(sampling, sizes) == whole.tolist()


def test_a_smaller_share_draws_some_of_the_same_rows():
    small, large = (
        NegativeSampling(negatives=share, seed=1).is_drawn(0, LABELS) for share in (0.1, 0.3)
    )
    assert not (small & ~large).any()


def test_seeds_draw_other_rows_and_the_random_split_has_nothing_to_do_with_it():
    drawn = [
        NegativeSampling(negatives=0.1, seed=seed).is_drawn(0, np.zeros(NUM_ROWS, bool))
        for seed in (0, 1)
    ]
    assert (drawn[0] & drawn[1]).mean() == pytest.approx(0.01, rel=0.2)
    in_test = random_fractions(0, NUM_ROWS, 0) >= 0.9
    assert drawn[0][in_test].mean() == pytest.approx(0.1, rel=0.1)


@given(st.floats(0.01, 0.99), st.floats(0.001, 1.0, exclude_max=True))
def test_offset_is_that_of_he_et_al(probability, negatives):
    offset = NegativeSampling(negatives=negatives, seed=0).training_offset
    # The odds among the rows drawn, by counting.
    drawn = probability / (probability + (1 - probability) * negatives)
    logit = math.log(probability / (1 - probability))
    assert logit + offset == pytest.approx(math.log(drawn / (1 - drawn)), abs=1e-9)
    corrected = drawn / (drawn + (1 - drawn) / negatives)
    assert corrected == pytest.approx(probability, rel=1e-9)


def test_sampling_draws_nothing_where_nothing_is_asked():
    mapping = {"data": {"train": "rows.csv"}}
    assert sampling_of(config_from_mapping(mapping).config) is None
    mapping = {"data": {"train": "rows.csv", "sample": {"negatives": 0.5}}, "train": {"seed": 7}}
    found = sampling_of(config_from_mapping(mapping).config)
    assert found == NegativeSampling(negatives=0.5, seed=7)
