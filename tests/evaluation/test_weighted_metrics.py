"""Weights: whole ones are repeated rows, any others what scikit-learn makes of them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score, roc_curve

from ctr_pipeline.errors import DataError
from ctr_pipeline.evaluation.auc import exact_auc, roc_points
from ctr_pipeline.evaluation.bootstrap import paired_bootstrap
from ctr_pipeline.evaluation.calibration import calibration_bins
from ctr_pipeline.evaluation.groups import group_auc
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.evaluation.importance import importance_of
from ctr_pipeline.evaluation.metrics import evaluate_predictions

# Few logits, so that many tie; weight 0 among the weights.
rows = st.lists(
    st.tuples(st.booleans(), st.integers(-4, 4), st.integers(0, 3), st.integers(0, 2)),
    min_size=2,
    max_size=30,
)


def arrays(drawn):
    labels, logits, weights, groups = (np.array(values) for values in zip(*drawn, strict=True))
    return labels.astype(np.float32), logits.astype(np.float32), weights, groups


def measurable(labels, weights):
    return weights[labels == 1].any() and weights[labels == 0].any()


def clicks(num_rows=4000, seed=0):
    chance = np.random.default_rng(seed)
    logits = chance.normal(-1, 1.5, num_rows).astype(np.float32)
    labels = (chance.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    # Heavy tails, and one in ten weighs nothing.
    weights = np.exp(chance.normal(0, 1, num_rows)) * (chance.random(num_rows) > 0.1)
    return labels, logits, weights


@given(rows, st.integers(2, 6))
def test_whole_weights_are_repeated_rows(drawn, num_bins):
    labels, logits, weights, groups = arrays(drawn)
    assume(measurable(labels, weights))
    weighted = evaluate_predictions(
        labels, logits, weights=weights, groups=groups, bins=num_bins, baseline_rate=0.3
    )
    repeated = evaluate_predictions(
        np.repeat(labels, weights),
        np.repeat(logits, weights),
        groups=np.repeat(groups, weights),
        bins=num_bins,
        baseline_rate=0.3,
    )
    assert weighted.num_rows == len(labels)
    assert weighted.weight_sum == repeated.num_rows == weights.sum()
    for name in ("auc", "label_rate", "gauc_num_groups", "roc"):
        assert getattr(weighted, name) == getattr(repeated, name), name
    for name in (
        "logloss",
        "normalized_entropy",
        "baseline_logloss",
        "mean_probability",
        "calibration",
        "expected_calibration_error",
    ):
        expected = pytest.approx(getattr(repeated, name), rel=1e-12, abs=1e-15)
        assert getattr(weighted, name) == expected, name
    assert (weighted.gauc is None) == (repeated.gauc is None)
    if repeated.gauc is not None:
        # A sum over groups in the order in which they first occur, which is not the same.
        assert weighted.gauc == pytest.approx(repeated.gauc, rel=1e-12)
    bins = [(one.mean_predicted, one.observed_rate) for one in repeated.calibration_bins]
    assert [one.weight for one in weighted.calibration_bins] == [
        one.num_rows for one in repeated.calibration_bins
    ]
    found = [(one.mean_predicted, one.observed_rate) for one in weighted.calibration_bins]
    np.testing.assert_allclose(found, bins, rtol=1e-12)


@given(rows)
def test_histograms_of_whole_weights_are_those_of_repeated_rows(drawn):
    labels, logits, weights, _ = arrays(drawn)
    assume(measurable(labels, weights))
    weighted = ScoreHistogram.of(labels, logits, weights=weights)
    repeated = ScoreHistogram.of(np.repeat(labels, weights), np.repeat(logits, weights))
    assert weighted.auc().value == repeated.auc().value
    assert weighted.auc().error_bound == repeated.auc().error_bound
    assert weighted.logloss() == pytest.approx(repeated.logloss(), rel=1e-14)
    assert weighted.calibration() == pytest.approx(repeated.calibration(), rel=1e-14)


def test_histogram_of_weights_1_gives_the_same_bits_as_none():
    labels, logits, _ = clicks(50_000)
    weighted = ScoreHistogram.of(labels, logits, weights=np.ones(len(labels), np.float32))
    plain = ScoreHistogram.of(labels, logits)
    assert weighted.logloss() == plain.logloss()
    assert weighted.calibration() == plain.calibration()
    assert weighted.auc() == plain.auc()


def test_histogram_of_any_weights_is_near_the_exact_metrics():
    labels, logits, weights = clicks(50_000)
    relative = weights / weights.mean()
    merged = ScoreHistogram.empty()
    for first in range(0, len(labels), 1024):
        part = slice(first, first + 1024)
        merged += ScoreHistogram.of(labels[part], logits[part], weights=relative[part])
    # As a master gets it.
    merged = ScoreHistogram.from_sparse(
        merged.sparse_positives,
        merged.sparse_negatives,
        loss_sum=merged.loss_sum,
        probability_sum=merged.probability_sum,
    )
    estimate = merged.auc()
    exact = roc_auc_score(labels, logits, sample_weight=weights)
    assert abs(estimate.value - exact) <= estimate.error_bound + 1e-6
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = log_loss(labels, probabilities, sample_weight=weights)
    assert merged.logloss() == pytest.approx(expected, rel=1e-6)
    ratio = (weights * probabilities).sum() / (weights * labels).sum()
    assert merged.calibration() == pytest.approx(ratio, rel=1e-6)


def test_any_weights_agree_with_scikit_learn():
    labels, logits, weights = clicks()
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    result = evaluate_predictions(labels, logits, weights=weights)
    assert result.auc == pytest.approx(
        roc_auc_score(labels, logits, sample_weight=weights), abs=1e-12
    )
    expected = log_loss(labels, probabilities, sample_weight=weights)
    assert result.logloss == pytest.approx(expected, rel=1e-12)
    assert result.label_rate == pytest.approx(np.average(labels, weights=weights))
    x, y, _ = roc_curve(labels, logits, sample_weight=weights, drop_intermediate=False)
    curve = np.stack([x, y], axis=1)
    for point in roc_points(labels, logits, weights=weights):
        assert np.abs(curve - np.array(point)).max(axis=1).min() < 1e-9


def test_gauc_of_weights_equals_a_loop_over_groups():
    labels, logits, weights = clicks()
    groups = np.random.default_rng(1).integers(0, 300, len(labels))
    total = share = 0.0
    for group in np.unique(groups):
        mine = (groups == group) & (weights > 0)
        if len(set(labels[mine])) == 2:
            weight = weights[mine].sum()
            total += weight * roc_auc_score(labels[mine], logits[mine], sample_weight=weights[mine])
            share += weight
    found = group_auc(labels, logits, groups, weights=weights)
    assert found.value == pytest.approx(total / share, rel=1e-12)
    assert found.num_rows_counted <= (weights > 0).sum()


def test_metrics_depend_only_on_ratios_of_weights():
    labels, logits, weights = clicks()
    one, other = (
        evaluate_predictions(labels, logits, weights=weights * factor) for factor in (1, 4096)
    )
    assert one.model_dump(exclude={"weight_sum", "calibration_bins"}) == other.model_dump(
        exclude={"weight_sum", "calibration_bins"}
    )
    assert other.weight_sum == 4096 * one.weight_sum


def test_unequal_weights_widen_the_intervals():
    labels, logits, weights = clicks()
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    widths = []
    for each in (np.ones(len(labels)), weights):
        (bin_,) = calibration_bins(labels, probabilities, 1, each)
        widths.append(bin_.interval.high - bin_.interval.low)
    # Kish's design effect of these weights.
    effect = len(weights) * (weights**2).sum() / weights.sum() ** 2
    assert widths[1] / widths[0] == pytest.approx(effect**0.5, rel=0.05)


def test_importance_and_bootstrap_take_weights():
    labels, logits, weights = clicks(500)
    whole = np.rint(weights * 2).astype(np.int64)
    shuffled = np.random.default_rng(2).permutation(logits)
    weighted = importance_of("x", labels, logits, [shuffled], whole)
    repeated = importance_of(
        "x", np.repeat(labels, whole), np.repeat(logits, whole), [np.repeat(shuffled, whole)]
    )
    assert weighted.auc_drop == pytest.approx(repeated.auc_drop, abs=1e-12)
    assert weighted.logloss_rise == pytest.approx(repeated.logloss_rise, abs=1e-12)
    for metric in ("auc", "logloss"):
        found = paired_bootstrap(labels, logits, shuffled, metric, weights=whole, repeats=20)
        change = -repeated.logloss_rise if metric == "logloss" else repeated.auc_drop
        assert found.difference == pytest.approx(change, abs=1e-12)
        ones = np.ones(len(labels))
        plain = paired_bootstrap(labels, logits, shuffled, metric, repeats=20)
        same = paired_bootstrap(labels, logits, shuffled, metric, weights=ones, repeats=20)
        assert same.interval.low == pytest.approx(plain.interval.low, abs=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_a_class_that_weighs_nothing_is_refused(label):
    labels, logits, weights = clicks(100)
    with pytest.raises(DataError, match=f"all rows of label {label} weigh 0"):
        exact_auc(labels, logits, weights=np.where(labels == label, 0.0, weights))


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, np.nan], [1.0, np.inf], [1.0]])
def test_weights_that_are_none_are_a_mistake_of_the_caller(weights):
    with pytest.raises(ValueError, match="weight"):
        exact_auc(np.array([0, 1]), np.array([0.0, 1.0]), weights=np.array(weights))
