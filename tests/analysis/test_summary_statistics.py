"""Every registered summary statistic is computed, kept under its name, left out if undefined."""

import numpy as np
import pytest

from ctr_pipeline.summary_statistics.registry import (
    LABELS,
    NUMBER_STATISTICS,
    TEXT_STATISTICS,
)


def test_names_and_labels_occur_once():
    num_registered = len(NUMBER_STATISTICS) + len(TEXT_STATISTICS)
    assert len(LABELS) == len(set(LABELS.values())) == num_registered


@pytest.mark.parametrize("num_values", [50, 9000], ids=["counted here", "in the database"])
def test_columns_have_all_of_their_type_in_the_order_of_the_registry(collect, num_values):
    x = np.random.default_rng(0).lognormal(size=num_values).tolist()
    found = collect({"x": x, "c": [f"v{value}" for value in x]}).columns
    assert list(found["x"].summary) == [one.name for one in NUMBER_STATISTICS]
    assert list(found["c"].summary) == [one.name for one in TEXT_STATISTICS]


def test_number_columns_without_finite_values_have_none(collect):
    assert collect({"x": [None, float("inf")]}).columns["x"].summary == {}


def test_summary_is_empty_without_profile(collect):
    found = collect({"x": [1.0, 2.0, 4.0], "c": ["a", "b", "b"]}, profile=False).columns
    assert found["x"].summary == found["c"].summary == {}


def test_singletons_are_values_that_occur_once(collect):
    column = collect({"c": ["a", "b", "b", "c", None, ""]}).columns["c"]
    assert column.summary["singletons"] == 2
