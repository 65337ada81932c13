import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.evaluation.calibration import (
    calibration_bins,
    calibration_ratio,
    expected_calibration_error,
    wilson_interval,
)


def draw(random, num_rows, scale=1.0):
    probabilities = random.beta(1, 4, num_rows)
    labels = (random.random(num_rows) < probabilities * scale).astype(np.uint8)
    return labels, probabilities


def test_ratio_and_interval_width_against_the_bootstrap():
    random = np.random.default_rng(0)
    labels, probabilities = draw(random, 4000)
    ratio, interval = calibration_ratio(labels, probabilities)
    assert ratio == pytest.approx(probabilities.sum() / labels.sum())
    again = []
    for _ in range(1000):
        rows = random.integers(0, 4000, 4000)
        again.append(probabilities[rows].sum() / labels[rows].sum())
    low, high = np.quantile(again, [0.025, 0.975])
    assert interval.low == pytest.approx(low, abs=0.01)
    assert interval.high == pytest.approx(high, abs=0.01)


def test_interval_holds_the_truth_about_95_times_of_100():
    random = np.random.default_rng(1)
    inside = sum(calibration_ratio(*draw(random, 500))[1].contains(1.0) for _ in range(600))
    assert 0.92 <= inside / 600 <= 0.98


def test_miscalibration_is_seen():
    labels, probabilities = draw(np.random.default_rng(2), 20_000, scale=0.8)
    ratio, interval = calibration_ratio(labels, probabilities)
    assert ratio == pytest.approx(1.25, abs=0.05)
    assert not interval.contains(1.0)


def test_ratio_of_vanishing_predictions_stays_finite():
    labels = np.array([0, 1], dtype=np.uint8)
    assert calibration_ratio(labels, np.zeros(2))[0] == 0.0
    _, interval = calibration_ratio(labels, np.array([1e-300, 1e-300]))
    assert np.isfinite([interval.low, interval.high]).all()


def test_wilson_interval_of_textbook_values():
    # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3.
    for (positive, rows), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        interval = wilson_interval(positive, rows)
        assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_bins_of_distinct_predictions_have_equal_rows():
    labels, probabilities = draw(np.random.default_rng(3), 1000)
    bins = calibration_bins(labels, probabilities, 20)
    assert [one.num_rows for one in bins] == [50] * 20
    order = np.argsort(probabilities)
    for one, rows in zip(bins, np.array_split(order, 20), strict=True):
        assert one.mean_predicted == pytest.approx(probabilities[rows].mean())
        assert one.observed_rate == pytest.approx(labels[rows].mean())
        assert one.interval.contains(one.observed_rate)
    error = sum(abs(one.mean_predicted - one.observed_rate) for one in bins) / 20
    assert expected_calibration_error(bins) == pytest.approx(error)


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.5, 0.9])), min_size=1),
    st.integers(2, 12),
    st.randoms(use_true_random=False),
)
def test_bins_do_not_depend_on_the_order_of_rows(pairs, num_bins, random):
    def bins_of(rows):
        labels = np.array([label for label, _ in rows], dtype=np.uint8)
        return calibration_bins(labels, np.array([p for _, p in rows]), num_bins)

    shuffled = list(pairs)
    random.shuffle(shuffled)
    ours, theirs = bins_of(pairs), bins_of(shuffled)
    assert [(b.num_rows, b.observed_rate) for b in ours] == [
        (b.num_rows, b.observed_rate) for b in theirs
    ]
    assert sum(one.num_rows for one in ours) == len(pairs)
    assert len(ours) <= num_bins
