import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ctr_pipeline.errors import DataError
from ctr_pipeline.evaluation.bootstrap import paired_bootstrap
from ctr_pipeline.evaluation.likelihood import logloss_of_logits


def two_models(num_rows=2000, seed=0):
    """Labels, a good model and one with noise; scores rounded so that there are ties."""
    random = np.random.default_rng(seed)
    good = random.normal(-1, 1, num_rows)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-good))).astype(np.uint8)
    noisy = good + random.normal(0, 1, num_rows)
    return labels, np.round(good, 1).astype(np.float32), np.round(noisy, 1).astype(np.float32)


def test_weighted_auc_of_a_repeat_equals_scikit_learn_on_the_drawn_rows():
    labels, good, noisy = two_models(300)
    result = paired_bootstrap(labels, good, noisy, "auc", repeats=1, seed=7)
    drawn = np.random.default_rng(7).integers(0, 300, 300, dtype=np.int64)
    expected = roc_auc_score(labels[drawn], good[drawn]) - roc_auc_score(
        labels[drawn], noisy[drawn]
    )
    assert result.interval.low == result.interval.high == pytest.approx(expected)
    assert result.difference == pytest.approx(
        roc_auc_score(labels, good) - roc_auc_score(labels, noisy)
    )


def test_the_better_model_is_ahead_and_a_model_is_not_ahead_of_itself():
    labels, good, noisy = two_models()
    auc = paired_bootstrap(labels, good, noisy, "auc", repeats=200)
    assert 0 < auc.interval.low < auc.difference < auc.interval.high
    assert auc.share_above_zero == 1.0
    loss = paired_bootstrap(labels, good, noisy, "logloss", repeats=200)
    assert loss.interval.high < 0
    assert loss.difference == pytest.approx(
        logloss_of_logits(labels, good) - logloss_of_logits(labels, noisy)
    )
    same = paired_bootstrap(labels, good, good, "auc", repeats=50)
    assert (same.interval.low, same.interval.high) == (0.0, 0.0)


def test_same_seed_same_interval():
    labels, good, noisy = two_models(500)
    first = paired_bootstrap(labels, good, noisy, "auc", repeats=20, seed=3)
    assert first == paired_bootstrap(labels, good, noisy, "auc", repeats=20, seed=3)
    assert first != paired_bootstrap(labels, good, noisy, "auc", repeats=20, seed=4)


def test_repeats_always_meet_both_classes():
    labels, scores = np.array([0, 0, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])
    result = paired_bootstrap(labels, scores, -scores, "auc", repeats=100)
    assert result.interval.low == result.interval.high == 1.0
    with pytest.raises(DataError, match="all 4 labels"):
        paired_bootstrap(np.zeros(4), scores, scores, "auc")
