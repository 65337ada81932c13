from itertools import islice

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.evaluation.importance import importance_of, shuffled_orders


def test_orders_are_permutations_that_depend_on_seed_and_place():
    orders = list(islice(shuffled_orders(100, 5), 3))
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(100))
    again = list(islice(shuffled_orders(100, 5), 3))
    np.testing.assert_array_equal(orders, again)
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], next(shuffled_orders(100, 6)))


def test_a_used_feature_costs_and_an_unused_one_costs_nothing():
    random = np.random.default_rng(0)
    used, unused = random.normal(size=2000), random.normal(size=2000)
    labels = (random.random(2000) < 1 / (1 + np.exp(-used))).astype(np.uint8)
    orders = shuffled_orders(2000, 0)

    def score(used, unused):
        return used + 0 * unused

    logits = score(used, unused)
    shuffled = score(used[next(orders)], unused)
    row = importance_of("used", labels, logits, [shuffled])
    assert row.feature == "used"
    assert row.auc_drop == pytest.approx(
        roc_auc_score(labels, logits) - roc_auc_score(labels, shuffled)
    )
    assert row.logloss_rise == pytest.approx(
        log_loss(labels, 1 / (1 + np.exp(-shuffled))) - log_loss(labels, 1 / (1 + np.exp(-logits)))
    )
    assert row.auc_drop > 0.1
    assert (row.auc_drop_std, row.logloss_rise_std, row.repeats) == (None, None, 1)
    idle = importance_of(
        "unused", labels, logits, [score(used, unused[next(orders)]) for _ in range(3)]
    )
    assert (idle.auc_drop, idle.logloss_rise) == (0.0, 0.0)
    assert (idle.auc_drop_std, idle.logloss_rise_std, idle.repeats) == (0.0, 0.0, 3)


def test_repeats_give_mean_and_sample_deviation():
    random = np.random.default_rng(1)
    labels = (random.random(300) < 0.4).astype(np.uint8)
    logits = random.normal(size=300) + labels
    shuffled = [random.permutation(logits) for _ in range(4)]
    row = importance_of("x", labels, logits, shuffled)
    drops = [roc_auc_score(labels, logits) - roc_auc_score(labels, one) for one in shuffled]
    assert row.auc_drop == pytest.approx(np.mean(drops))
    assert row.auc_drop_std == pytest.approx(np.std(drops, ddof=1))
    losses = [log_loss(labels, 1 / (1 + np.exp(-one))) for one in shuffled]
    assert row.logloss_rise_std == pytest.approx(np.std(losses, ddof=1))
    assert row.repeats == 4


def test_no_shuffle_is_refused():
    with pytest.raises(ValueError, match="one shuffle or more"):
        importance_of("x", np.array([0, 1]), np.zeros(2), [])
