"""Information value and mutual information: by hand, row by row, and on columns of known worth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from ctr_pipeline.analysis.information import SMOOTHINGS, Groups, label_information


def groups_of(*sizes):
    """Rows, clicks and, if not once, how often."""
    rows = [(*size, 1)[:3] for size in sizes]
    num_rows, num_clicks, multiplicity = np.array(rows, np.int64).T
    return Groups(num_rows, num_clicks, multiplicity)


def test_two_groups_by_hand():
    """Each row is judged by (the other row of its group + half a row) / 2, that is 0.75 right."""
    found = label_information(groups_of((2, 2), (2, 0)))
    assert found.smoothing == 1.0
    assert found.mutual_information == pytest.approx(math.log(0.75 / 0.5), rel=1e-15)
    assert found.information_value == pytest.approx(2 * math.log(3), rel=1e-15)
    assert found.num_groups == 2


def test_one_label_tells_nothing():
    assert label_information(groups_of((3, 0), (4, 0))) is None
    assert label_information(groups_of((3, 3))) is None


def test_a_constant_column_says_nothing():
    found = label_information(groups_of((1000, 200)))
    assert (found.mutual_information, found.information_value, found.smoothing) == (0, 0, None)


def row_by_row(sizes, smoothing):
    """The definitions, with a list of rows; gain and information value."""
    rows = [
        (group, 1 if row < num_clicks else 0)
        for group, (num_rows, num_clicks) in enumerate(sizes)
        for row in range(num_rows)
    ]
    base = sum(label for _, label in rows) / len(rows)
    gain, evidence = 0.0, {0: [], 1: []}
    for place, (group, label) in enumerate(rows):
        others = [y for other, (g, y) in enumerate(rows) if g == group and other != place]
        rate = (sum(others) + smoothing * base) / (len(others) + smoothing)
        gain += math.log(rate / base) if label else math.log((1 - rate) / (1 - base))
        odds = math.log(rate / (1 - rate)) - math.log(base / (1 - base))
        evidence[label].append(odds)
    value = sum(evidence[1]) / len(evidence[1]) - sum(evidence[0]) / len(evidence[0])
    return gain / len(rows), value


@given(
    sizes=st.lists(
        st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        min_size=1,
        max_size=8,
    )
)
def test_label_information_is_the_definition_row_by_row(sizes):
    found = label_information(groups_of(*sizes))
    clicks, rows = sum(k for _, k in sizes), sum(n for n, _ in sizes)
    if clicks in {0, rows}:
        assert found is None
        return
    by_strength = [row_by_row(sizes, smoothing) for smoothing in SMOOTHINGS]
    best = max(gain for gain, _ in by_strength)
    assert found.mutual_information == pytest.approx(max(best, 0.0), abs=1e-12)
    if found.smoothing is not None:
        _, value = row_by_row(sizes, found.smoothing)
        assert found.information_value == pytest.approx(max(value, 0.0), abs=1e-12)


@given(
    sizes=st.lists(
        st.integers(1, 9).flatmap(
            lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, 5))
        ),
        min_size=2,
        max_size=8,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_neither_order_nor_repetition_of_groups_matters(sizes, seed):
    spread = [(n, k) for n, k, times in sizes for _ in range(times)]
    np.random.default_rng(seed).shuffle(spread)
    one, other = label_information(groups_of(*sizes)), label_information(groups_of(*spread))
    if one is None:
        assert other is None
        return
    assert other.num_groups == one.num_groups
    assert other.mutual_information == pytest.approx(one.mutual_information, rel=1e-12)


@pytest.fixture(scope="module")
def planted(collect):
    """20,000 rows of which some columns tell the click, some pretend to."""
    random = np.random.default_rng(3)
    size = 20_000
    city = random.integers(0, 5, size)
    age = random.uniform(15, 80, size)
    chance = 0.05 + 0.08 * city + 0.2 * (age > 60)
    labels = (random.random(size) < chance).astype(int)
    columns = {
        "unique id": [f"{number:06d}" for number in random.permutation(size)],
        "pairs": [f"{number // 2}" for number in random.permutation(size)],
        "noise of 200": [f"{number}" for number in random.integers(0, 200, size)],
        "city": [f"city {number}" for number in city],
        "age": age.tolist(),
        "noise": random.normal(size=size).tolist(),
        "constant": [1.0] * size,
        "missing where clicked": [None if label else 1.0 for label in labels],
        "label as text": [f"{label}" for label in labels],
    }
    return collect(columns, labels.tolist()), columns, labels


def test_a_random_unique_id_says_exactly_nothing(planted):
    statistics, columns, labels = planted
    found = statistics.columns["unique id"].label_information
    assert (found.mutual_information, found.information_value) == (0.0, 0.0)
    # In the rows that it was made from, it would know everything.
    assert mutual_info_score(columns["unique id"], labels) > 0.5
    assert found.num_groups == len(labels)


@pytest.mark.parametrize("column", ["pairs", "noise of 200", "noise", "constant"])
def test_noise_says_next_to_nothing(planted, column):
    found = planted[0].columns[column].label_information
    assert found.mutual_information < 3e-4
    assert found.information_value < 3e-3


def test_few_groups_agree_with_the_plain_estimate(planted):
    statistics, columns, labels = planted
    found = statistics.columns["city"].label_information
    assert found.mutual_information == pytest.approx(
        mutual_info_score(columns["city"], labels), abs=4e-4
    )
    clicks = np.array([sum(labels[np.array(columns["city"]) == f"city {n}"]) for n in range(5)])
    rows = np.array([columns["city"].count(f"city {n}") for n in range(5)])
    of_clicks, of_others = clicks / clicks.sum(), (rows - clicks) / (rows - clicks).sum()
    plain = ((of_clicks - of_others) * np.log(of_clicks / of_others)).sum()
    assert found.information_value == pytest.approx(plain, rel=0.01)


def test_numbers_are_grouped_by_intervals(planted):
    found = planted[0].columns["age"].label_information
    assert found.num_groups == 20
    assert found.mutual_information > 0.01


def test_missing_values_are_a_group(planted):
    statistics, _, labels = planted
    rate = labels.mean()
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    for column in ("missing where clicked", "label as text"):
        found = statistics.columns[column].label_information
        assert found.num_groups == 2
        assert found.mutual_information == pytest.approx(entropy, rel=1e-3)
    assert statistics.columns["label as text"].label_information.information_value > 10


def test_infinite_values_are_in_the_outer_intervals(collect):
    values = [float("inf"), float("-inf"), 1.0, None] * 5
    labels = [1, 0, 0, 1] * 5
    found = collect({"x": values}, labels).columns["x"].label_information
    assert found.num_groups == 3  # (-inf, 1], (1, inf], missing
    assert found.mutual_information > 0.4


def test_label_information_is_left_out_where_there_is_one_label(collect):
    assert collect({"x": [1.0, 2.0], "c": ["a", "b"]}).columns["x"].label_information is None
