import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc as area_of
from sklearn.metrics import roc_auc_score, roc_curve

from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.evaluation.auc import exact_auc, roc_points
from ctr_pipeline.evaluation.groups import group_auc


def rows(num_rows, seed, *, levels=None):
    """Labels that follow noisy scores; few `levels` make many ties."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=num_rows).astype(np.float32)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-scores))).astype(np.uint8)
    if levels is not None:
        scores = np.round(scores * levels).astype(np.float32)
    return labels, scores


@pytest.mark.parametrize("levels", [None, 20, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_auc_equals_scikit_learn(levels, dtype):
    labels, scores = rows(5000, 1, levels=levels)
    scores = scores.astype(dtype)
    assert exact_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_auc_counts_pairs(pairs):
    positives = [score for label, score in pairs if label]
    negatives = [score for label, score in pairs if not label]
    labels = np.array([label for label, _ in pairs], dtype=np.uint8)
    scores = np.array([score for _, score in pairs], dtype=np.float32)
    if not positives or not negatives:
        with pytest.raises(DataError, match="no ranking"):
            exact_auc(labels, scores)
        return
    right = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    assert exact_auc(labels, scores) == pytest.approx(right / len(positives) / len(negatives))


def test_auc_of_constant_scores_is_one_half_and_zero_signs_tie():
    labels = np.array([0, 1, 0, 1])
    assert exact_auc(labels, np.full(4, 0.3)) == 0.5
    assert exact_auc(labels, np.array([0.0, -0.0, -0.0, 0.0])) == 0.5


@pytest.mark.parametrize(
    ("labels", "scores", "error", "message"),
    [
        ([], [], ValueError, "no labels"),
        ([1, 1], [0.1, 0.2], DataError, "all 2 labels are 1"),
        ([0, 0], [0.1, 0.2], DataError, "all 2 labels are 0"),
        ([0, 2], [0.1, 0.2], ValueError, "neither 0 nor 1"),
        ([0, np.nan], [0.1, 0.2], ValueError, "neither 0 nor 1"),
        ([0, 1], [0.1], ValueError, "2 labels"),
        ([0, 1], [0.1, np.nan], TrainingError, "1 of 2 scores"),
        ([0, 1], [np.inf, 0.1], TrainingError, "NaN or infinite"),
    ],
)
def test_auc_refuses_what_has_no_auc(labels, scores, error, message):
    with pytest.raises(error, match=message) as caught:
        exact_auc(np.array(labels, dtype=np.float64), np.array(scores), place="test rows")
    assert str(caught.value).startswith("test rows: ")


def grouped_by_scikit_learn(labels, scores, groups):
    values, weights = [], []
    for group in np.unique(groups):
        inside = groups == group
        if 0 < labels[inside].sum() < inside.sum():
            values.append(roc_auc_score(labels[inside], scores[inside]))
            weights.append(inside.sum())
    return np.average(values, weights=weights), len(values), sum(weights)


@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize(
    "as_groups", [lambda g: g, pa.array, lambda g: pa.chunked_array([g[:7], g[7:]])]
)
def test_gauc_equals_a_loop_over_groups(levels, as_groups):
    labels, scores = rows(3000, 2, levels=levels)
    groups = np.random.default_rng(3).zipf(1.4, 3000) % 400
    result = group_auc(labels, scores, as_groups(groups))
    value, num_groups, num_rows = grouped_by_scikit_learn(labels, scores, groups)
    assert result.value == pytest.approx(value, abs=1e-12)
    assert (result.num_groups_counted, result.num_rows_counted) == (num_groups, num_rows)
    assert result.num_groups == len(np.unique(groups)) > num_groups


def test_gauc_of_texts_leaves_out_missing_groups_and_one_class_groups():
    labels = np.array([1, 0, 1, 1, 0, 1])
    scores = np.array([0.9, 0.1, 0.2, 0.3, 0.8, 0.1])
    texts = ["a", "a", "b", "b", None, None]
    for groups in (pa.array(texts), pa.array(texts).dictionary_encode(), np.array(texts, object)):
        result = group_auc(labels, scores, groups)
        assert result.value == 1.0
        assert (result.num_groups, result.num_groups_counted) == (2, 1)
        assert result.num_rows_counted == 2


def test_gauc_without_a_countable_group_is_none():
    labels, scores = np.array([0, 1]), np.array([0.1, 0.2])
    assert group_auc(labels, scores, np.array(["a", "b"])).value is None
    assert group_auc(labels, scores, pa.nulls(2, pa.string())).value is None
    with pytest.raises(ValueError, match="3 groups for 2 rows"):
        group_auc(labels, scores, np.arange(3))


@pytest.mark.parametrize("levels", [None, 2])
def test_roc_points_lie_on_the_exact_curve(levels):
    labels, scores = rows(4000, 4, levels=levels)
    points = roc_points(labels, scores)
    assert len(points) <= 400
    assert points[0] == (0, 0)
    assert points[-1] == (1, 1)
    false_rate, true_rate, _ = roc_curve(labels, scores, drop_intermediate=False)
    exact = set(zip(false_rate.tolist(), true_rate.tolist(), strict=True))
    assert set(map(tuple, points)) <= exact
    thinned = area_of([p[0] for p in points], [p[1] for p in points])
    assert thinned == pytest.approx(exact_auc(labels, scores), abs=1e-4)
