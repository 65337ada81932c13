"""Best possible figures against independent oracles: quadrature, scikit-learn, Monte Carlo."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.apps.sample.criteo_columns import CATEGORY_COLUMNS
from ctr_pipeline.apps.sample.planted_model import MISSING, PlantedModel, sigmoid
from ctr_pipeline.apps.sample.reference_losses import (
    SeenIds,
    best_additive_loss,
    cross_entropy,
    integrate_normal,
    predict_floor,
    ranking_quality,
)

RNG = np.random.default_rng(5)


@given(mean=st.floats(-5, 5), variance=st.floats(0.01, 3))
def test_integral_equals_adaptive_quadrature(mean, variance):
    deviation = variance**0.5
    expected, _ = integrate.quad(
        lambda z: stats.norm.pdf(z) / (1 + np.exp(-mean - deviation * z)), -9, 9
    )
    got = integrate_normal(np.array([mean]), np.array([variance]))[0]
    assert got == pytest.approx(expected, abs=1e-6)


def test_integral_without_variance_is_the_sigmoid():
    means = np.linspace(-6, 6, 13)
    np.testing.assert_allclose(integrate_normal(means, np.zeros(13)), sigmoid(means), atol=1e-15)


def test_cross_entropy_and_auc_equal_scikit_learn():
    scores = RNG.random(3000)
    labels = (RNG.random(3000) < scores).astype(float)
    assert cross_entropy(labels, scores) == pytest.approx(log_loss(labels, scores), abs=1e-12)
    assert ranking_quality(labels, scores) == pytest.approx(
        roc_auc_score(labels, scores), abs=1e-12
    )


def test_auc_of_expectations_is_the_mean_over_pairs():
    targets, scores = RNG.random(60), RNG.random(60)
    right = total = 0.0
    for i in range(60):
        for j in range(60):
            if i != j:
                weight = targets[i] * (1 - targets[j])
                total += weight
                right += weight * (scores[i] > scores[j])
    assert ranking_quality(targets, scores) == pytest.approx(right / total, abs=1e-12)


def test_auc_of_one_class_is_not_a_number():
    assert np.isnan(ranking_quality(np.ones(5), RNG.random(5)))


def test_additive_loss_equals_a_fitted_regression():
    additive = RNG.normal(-1, 1, 4000)
    probabilities = sigmoid(additive + RNG.normal(0, 1, 4000))
    rows = np.concatenate([additive, additive])[:, None]
    labels = np.repeat([1, 0], 4000)
    weights = np.concatenate([probabilities, 1 - probabilities])
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(rows, labels, sample_weight=weights)
    expected = cross_entropy(probabilities, model.predict_proba(additive[:, None])[:, 1])
    assert best_additive_loss(probabilities, additive) == pytest.approx(expected, abs=1e-8)


@pytest.fixture(scope="module")
def planted():
    model = PlantedModel(seed=11, num_rows=12_000)
    return model, model.draw(0, 10_000), model.draw(10_000, 2_000)


def test_floor_knows_everything_when_every_id_was_seen(planted):
    model, _, test = planted
    seen = SeenIds()
    seen.add(test)
    floor = predict_floor(model, test, seen)
    truth = sigmoid(sum(model.additive_and_interaction_logits(test)))
    np.testing.assert_allclose(floor.probabilities_B, truth, atol=1e-12)
    assert not floor.has_unseen_B.any()


@pytest.mark.slow
def test_floor_is_the_mean_over_redrawn_weights_of_unseen_ids(planted):
    """Unseen ids get weights and vectors anew, many times; the mean probability is the floor."""
    model, train, test = planted
    seen = SeenIds()
    seen.add(train)
    floor = predict_floor(model, test, seen)
    rows = np.flatnonzero(floor.has_unseen_B)[:150]
    repeats = 4000
    logits = np.repeat(model.context_logits(test)[rows][:, None], repeats, axis=1)
    sums = np.zeros((rows.size, repeats, 3))
    squares = np.zeros((rows.size, repeats))
    for field, column in enumerate(CATEGORY_COLUMNS):
        ids = test.ids_FB[field][rows]
        seen_before = set(train.ids_FB[field].tolist())
        unseen = np.array([one != MISSING and one not in seen_before for one in ids.tolist()])
        deviation = np.maximum(column.effect / np.sqrt(1 + ids / 30.0), 0.07)
        redrawn = RNG.normal(size=(rows.size, repeats)) * deviation[:, None]
        logits += np.where(unseen[:, None], redrawn, model.weights(field, ids)[:, None])
        if model.has_vectors(field):
            spread = np.sqrt(model.vector_variances(field, ids))
            redrawn = RNG.normal(size=(rows.size, repeats, 3)) * spread[:, None, None]
            known = model.vectors(field, ids)[:, None, :]
            vectors = np.where(unseen[:, None, None], redrawn, known)
            sums += vectors
            squares += (vectors**2).sum(axis=2)
    logits += 0.5 * ((sums**2).sum(axis=2) - squares)
    expected = sigmoid(logits).mean(axis=1)
    np.testing.assert_allclose(floor.probabilities_B[rows], expected, atol=0.006)
    assert np.abs(floor.probabilities_B[rows] - expected).mean() < 0.0012


@pytest.mark.slow
def test_best_fitted_main_effects_fall_behind_by_the_interactions():
    """One-hot regression on true probabilities, in sample, over all interacting columns."""
    from scipy import sparse

    num_rows = 60_000
    model = PlantedModel(seed=3, num_rows=num_rows)
    draw = model.draw(0, num_rows)
    additive, interaction = model.additive_and_interaction_logits(draw)
    probabilities = sigmoid(additive + interaction)
    bayes = cross_entropy(probabilities, probabilities)
    reported = best_additive_loss(probabilities, additive) - bayes
    fields = [field for field in range(26) if model.has_vectors(field)]
    blocks = [sparse.csr_matrix(additive[:, None])]
    for field in fields:
        codes = np.minimum(draw.ids_FB[field], 40) + 1
        rows = np.arange(num_rows)
        blocks.append(sparse.csr_matrix((np.ones(num_rows), (rows, codes)), (num_rows, 42)))
    one_hot = sparse.hstack(blocks, format="csr")
    both = sparse.vstack([one_hot, one_hot], format="csr")
    labels = np.repeat([1, 0], num_rows)
    weights = np.concatenate([probabilities, 1 - probabilities])
    fitted = LogisticRegression(C=10.0, max_iter=300).fit(both, labels, sample_weight=weights)
    gap = cross_entropy(probabilities, fitted.predict_proba(one_hot)[:, 1]) - bayes
    assert 0.01 <= gap <= reported + 1e-6
    assert gap == pytest.approx(reported, rel=0.15)
