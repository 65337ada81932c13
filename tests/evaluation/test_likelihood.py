import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from ctr_pipeline.evaluation.likelihood import (
    constant_logloss,
    logloss_of_logits,
    normalized_entropy,
    probabilities_of,
)


def rows(num_rows=2000, seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 2, num_rows).astype(np.float32)
    labels = (random.random(num_rows) < 0.3).astype(np.uint8)
    return labels, logits


def test_logloss_equals_scikit_learn():
    labels, logits = rows()
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = log_loss(labels, probabilities)
    assert logloss_of_logits(labels, logits) == pytest.approx(expected, abs=1e-12)


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.sampled_from([0, 1]))
def test_extreme_logits_give_their_own_size_as_loss_and_no_warning(logit, label):
    loss = logloss_of_logits(np.array([label]), np.array([logit], dtype=np.float32))
    signed = -logit if label else logit
    assert max(signed, 0) <= loss <= max(signed, 0) + np.log(2) + 1e-12
    probability = float(probabilities_of(np.array([logit], dtype=np.float32))[0])
    assert 0.0 <= probability <= 1.0
    mirrored = float(probabilities_of(np.array([-logit], dtype=np.float32))[0])
    assert probability + mirrored == pytest.approx(1.0)


def test_normalized_entropy_of_the_base_rate_is_one():
    labels, _ = rows()
    rate = float(labels.mean())
    constant = np.full(labels.size, rate)
    assert constant_logloss(rate, rate) == pytest.approx(log_loss(labels, constant))
    assert normalized_entropy(log_loss(labels, constant), rate) == pytest.approx(1.0)
    assert constant_logloss(rate, 0.5) == pytest.approx(np.log(2))
    assert np.isfinite(constant_logloss(rate, 0.0))
