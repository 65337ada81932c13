"""Metrics by the values of a column, against pandas and scikit-learn."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.evaluation.auc import auc_interval
from ctr_pipeline.evaluation.groups import measure_groups
from ctr_pipeline.evaluation.metrics import MeasuredRows, evaluate_predictions


def made_rows(num_rows=4000, num_values=30, seed=1):
    """Rows of a column whose values are rarer and rarer; each has its own click rate."""
    random = np.random.default_rng(seed)
    shares = 0.8 ** np.arange(num_values)
    codes = random.choice(num_values, num_rows, p=shares / shares.sum())
    logits = random.normal(-1.5 + codes / 10, 1.0).round(1)
    labels = random.random(num_rows) < 1 / (1 + np.exp(-logits))
    return pd.DataFrame(
        {
            "value": [f"v{code}" for code in codes],
            "label": labels.astype(np.float32),
            "logit": logits.astype(np.float32),
            "weight": random.choice([0.0, 0.5, 1.0, 3.0], num_rows),
        }
    )


def assert_equals_scikit_learn(found, rows, weights=None):
    labels = rows["label"]
    probabilities = 1 / (1 + np.exp(-rows["logit"].astype(float)))
    weight = np.ones(len(rows)) if weights is None else rows[weights]
    assert (found.num_rows, found.num_positive) == (len(rows), int(labels.sum()))
    assert found.label_rate == pytest.approx(np.average(labels, weights=weight))
    assert found.mean_probability == pytest.approx(np.average(probabilities, weights=weight))
    expected = log_loss(labels, probabilities, sample_weight=weight, labels=[0, 1])
    assert found.logloss == pytest.approx(expected)
    if labels[weight > 0].nunique() == 2:
        expected = roc_auc_score(labels, rows["logit"], sample_weight=weight)
        assert found.auc == pytest.approx(expected)
        assert found.auc_interval.low <= expected <= found.auc_interval.high
    else:
        assert found.auc is found.auc_interval is None
    if labels[weight > 0].any():
        expected = (probabilities * weight).sum() / (labels * weight).sum()
        assert found.calibration == pytest.approx(expected)
        assert found.calibration_interval.contains(expected)
    else:
        assert found.calibration is found.calibration_interval is None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["numpy", "arrow", "chunked", "dictionary"])
def test_groups_equal_pandas_and_scikit_learn(form, weighted):
    rows = made_rows()
    rows.loc[rows["value"] == "v2", "value"] = None
    values = {
        "numpy": rows["value"].to_numpy,
        "arrow": lambda: pa.array(rows["value"], from_pandas=True),
        "chunked": lambda: pa.chunked_array(
            [pa.array(rows["value"][:70], from_pandas=True), pa.array(rows["value"][70:])]
        ),
        "dictionary": lambda: pa.array(rows["value"], from_pandas=True).dictionary_encode(),
    }[form]()
    found = measure_groups(
        "city",
        values,
        rows["label"].to_numpy(),
        rows["logit"].to_numpy(),
        weights=rows["weight"].to_numpy() if weighted else None,
    )
    counts = rows["value"].value_counts(dropna=False)
    assert found.column == "city"
    assert found.num_values == len(counts) > 20
    assert [group.num_rows for group in found.groups] == list(counts[:20])
    assert None in [group.value for group in found.groups]
    seen = set()
    for group in found.groups:
        is_own = rows["value"].isna() if group.value is None else rows["value"] == group.value
        assert_equals_scikit_learn(group, rows[is_own], "weight" if weighted else None)
        seen |= set(rows.index[is_own])
    others = rows.drop(index=sorted(seen))
    assert len(others) > 0
    assert_equals_scikit_learn(found.others, others, "weight" if weighted else None)


def test_few_values_have_no_others_and_numbers_read_as_in_the_file():
    values = np.array([7.0, 7.0, 0.5, 7.0, 0.5])
    found = measure_groups("n", values, np.array([1, 0, 1, 0, 0.0]), np.zeros(5, np.float32))
    assert [group.value for group in found.groups] == ["7", "0.5"]
    assert found.others is None
    assert found.groups[0].auc == 0.5


def test_ties_stand_in_the_order_of_their_values_whatever_that_of_the_rows():
    labels, logits = np.array([1, 0] * 6), np.linspace(-1, 1, 12)
    values = np.array(["b", "a", "c", None] * 3)
    one = measure_groups("c", values, labels, logits, num_shown=2)
    order = np.random.default_rng(0).permutation(12)
    two = measure_groups("c", values[order], labels[order], logits[order], num_shown=2)
    assert [group.value for group in one.groups] == [group.value for group in two.groups]
    assert [group.value for group in one.groups] == [None, "a"]
    assert one.others.num_rows == 6


@pytest.mark.parametrize(
    ("labels", "weights", "hint"),
    [
        ([0] * 30, None, "no clicks: no AUC"),
        ([1] * 30, None, "clicks only: no AUC"),
        ([0, 1] * 15, [0.0, 1.0] * 15, "one class weighs nothing: no AUC"),
        ([0, 1] * 15, [0.0, 0.0] * 15, "one class weighs nothing: no AUC"),
        ([0, 1] * 15, None, "few rows"),
        ([0] * 4000 + [1] * 9, None, "few rows"),
        ([0, 1] * 2000, None, ""),
    ],
)
def test_group_hint_says_what_the_group_cannot_tell(labels, weights, hint):
    labels = np.array(labels)
    logits = np.random.default_rng(3).normal(labels * 1.0, 1.0)
    (group,) = measure_groups(
        "c",
        np.array(["x"] * len(labels)),
        labels,
        logits,
        weights=None if weights is None else np.array(weights),
    ).groups
    assert group.hint == hint
    assert (group.auc is None) == hint.endswith("no AUC")


def test_long_texts_are_cut_off():
    found = measure_groups("c", np.array(["x" * 10_000] * 2), np.array([0, 1]), np.zeros(2))
    assert found.groups[0].value == "x" * 200 + "…"


def test_a_value_for_each_row_is_required():
    with pytest.raises(ValueError, match="2 values of 'c' for 3 rows"):
        measure_groups("c", np.array(["a", "b"]), np.zeros(3), np.zeros(3))


def test_metrics_hold_the_groups_as_json_does():
    rows = made_rows()
    labels, logits = rows["label"].to_numpy(), rows["logit"].to_numpy()
    result = evaluate_predictions(labels, logits, by={"value": rows["value"].to_numpy()})
    city = result.to_metrics()["by_column"]["value"]
    first = result.by_column[0].groups[0]
    assert city["groups"][0]["auc_interval"] == [first.auc_interval.low, first.auc_interval.high]
    assert city["groups"][0]["value"] == first.value == "v0"
    assert city["others"]["num_rows"] == result.by_column[0].others.num_rows
    assert MeasuredRows.model_validate(result.to_metrics()).by_column == result.by_column
    assert evaluate_predictions(labels, logits).to_metrics()["by_column"] == {}


@pytest.mark.slow
def test_the_interval_of_an_auc_is_as_wide_as_aucs_scatter():
    """Over samples of a binormal model, whose AUC is known: 95 % of intervals hold it."""
    random = np.random.default_rng(8)
    labels = np.arange(400) < 80
    expected, held, aucs, halves = 0.7602, 0, [], []
    for _ in range(400):
        auc = roc_auc_score(labels, random.normal(labels * 1.0, 1.0))
        interval = auc_interval(auc, labels)
        held += interval.contains(expected)
        aucs.append(auc)
        halves.append((interval.high - interval.low) / 2)
    assert 0.92 < held / 400 < 0.98
    assert np.mean(halves) == pytest.approx(1.96 * np.std(aucs), rel=0.1)


def test_the_interval_is_that_of_the_paper_and_counts_weights():
    """Hanley & McNeil 1982, section IV: 58 normal and 51 abnormal images, 0.893, SE 0.032."""
    positive = np.arange(109) < 51
    interval = auc_interval(0.893, positive)
    assert (interval.high - 0.893) / 1.96 == pytest.approx(0.0325, abs=2e-4)
    doubled = auc_interval(0.893, positive, np.full(109, 2.0))
    assert doubled.low == pytest.approx(interval.low)
    half = np.where(np.arange(109) % 2 == 0, 1.0, 0.0)
    assert auc_interval(0.893, positive, half).low < interval.low
