import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.evaluation.histogram import NUM_BINS, ScoreHistogram, bins_of

finite = st.floats(-(2.0**100), 2.0**100, width=32)
rows = st.lists(
    st.tuples(st.booleans(), st.one_of(st.floats(-6, 6, width=32), finite)), max_size=60
)


def arrays(pairs):
    return (
        np.array([label for label, _ in pairs], np.float32),
        np.array([logit for _, logit in pairs], np.float32),
    )


def clicks(num_rows, seed, spread=1.5):
    random = np.random.default_rng(seed)
    logits = random.normal(-2, spread, num_rows).astype(np.float32)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return labels, logits


@given(rows)
def test_exact_auc_lies_within_the_bound(pairs):
    labels, logits = arrays(pairs)
    histogram = ScoreHistogram.of(labels, logits)
    if len({label for label, _ in pairs}) < 2:
        with pytest.raises(DataError, match="no ranking"):
            histogram.auc()
        return
    estimate = histogram.auc()
    exact = roc_auc_score(labels, logits.astype(np.float64))
    assert abs(estimate.value - exact) <= estimate.error_bound + 1e-12


@given(st.lists(finite, min_size=2, max_size=50))
def test_bins_ascend_with_the_logit(logits):
    ordered = np.sort(np.array(logits, np.float32))
    bins = bins_of(ordered)
    assert np.all(np.diff(bins) >= 0)
    assert bins.min() >= 0
    assert bins.max() < NUM_BINS


def test_bins_are_monotone_between_neighbouring_floats():
    # Every power of two, and the floats around it: where rounding could turn the order round.
    centres = np.float32(2.0) ** np.arange(-60, 60).astype(np.float32)
    around = np.concatenate(
        [centres, np.nextafter(centres, np.float32(0)), np.nextafter(centres, np.float32(np.inf))]
    )
    ordered = np.sort(np.concatenate([-around, [0.0], around]).astype(np.float32))
    assert np.all(np.diff(bins_of(ordered)) >= 0)


def test_bins_are_fine_near_zero_and_reach_all_floats():
    assert bins_of(np.array([0.0, -1e-9, 0.0011, 1.0])).tolist() == [
        NUM_BINS // 2,
        NUM_BINS // 2 - 1,
        NUM_BINS // 2 + 1,
        NUM_BINS // 2 + NUM_BINS // 2 // 9,
    ]
    largest = np.finfo(np.float32).max
    assert bins_of(np.array([-largest, largest], np.float32)).tolist() == [0, NUM_BINS - 1]


@pytest.mark.parametrize("spread", [0.5, 1.5, 3.0])
def test_bound_is_small_for_clicks(spread):
    labels, logits = clicks(100_000, 3, spread)
    estimate = ScoreHistogram.of(labels, logits).auc()
    exact = roc_auc_score(labels, logits)
    assert abs(estimate.value - exact) <= estimate.error_bound
    assert estimate.error_bound < 6e-4
    # Within a bin rows lie as they happen to, so the error is far below what is promised.
    assert abs(estimate.value - exact) < 2e-5


@given(rows, st.randoms(use_true_random=False), st.integers(1, 7))
def test_parts_merge_to_the_whole_in_any_order(pairs, random, num_parts):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    merged = ScoreHistogram.empty()
    for part in range(num_parts):
        merged = ScoreHistogram.of(*arrays(shuffled[part::num_parts])) + merged
    whole = ScoreHistogram.of(*arrays(pairs))
    assert np.array_equal(merged.positives, whole.positives)
    assert np.array_equal(merged.negatives, whole.negatives)
    if np.abs(arrays(pairs)[1]).sum() < 1e5:
        assert merged.loss_units == whole.loss_units
        assert merged.probability_units == whole.probability_units


def test_sums_are_those_of_all_rows_to_a_billionth():
    labels, logits = clicks(20_000, 5)
    histogram = ScoreHistogram.of(labels, logits)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert histogram.logloss() == pytest.approx(log_loss(labels, probabilities), abs=1e-9)
    assert histogram.calibration() == pytest.approx(probabilities.sum() / labels.sum(), rel=1e-9)
    assert histogram.num_rows == 20_000
    assert histogram.num_positive == labels.sum()


@given(rows)
def test_sparse_form_survives_json(pairs):
    histogram = ScoreHistogram.of(*arrays(pairs))
    text = json.dumps(
        [
            histogram.sparse_positives,
            histogram.sparse_negatives,
            histogram.loss_sum,
            histogram.probability_sum,
        ]
    )
    positives, negatives, loss_sum, probability_sum = json.loads(text)
    back = ScoreHistogram.from_sparse(
        positives, negatives, loss_sum=loss_sum, probability_sum=probability_sum
    )
    assert np.array_equal(back.positives, histogram.positives)
    assert np.array_equal(back.negatives, histogram.negatives)
    assert back.loss_units == pytest.approx(histogram.loss_units, rel=1e-15)
    assert back.probability_units == histogram.probability_units


@pytest.mark.parametrize("pairs", [[(-1, 1)], [(NUM_BINS, 1)], [(3, 0)], [(3, 1), (3, 2)]])
def test_counts_that_cannot_be_are_refused(pairs):
    with pytest.raises(ValueError, match="no part of a histogram"):
        ScoreHistogram.from_sparse(pairs, [], loss_sum=0.0, probability_sum=0.0)


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(TrainingError, match="1 of 2 scores"):
        ScoreHistogram.of(np.array([0.0, 1.0]), np.array([0.0, math.nan]), place="validation rows")
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        ScoreHistogram.of(np.array([0.0, 2.0]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="2 labels"):
        ScoreHistogram.of(np.array([0.0, 1.0]), np.array([0.0]))
