"""Layers that take the rows of many columns at once give what each gives for its own row."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.preprocessing.layers import Clip, Fill, Log, Normalizer, Standardize
from ctr_pipeline.preprocessing.layers.buckets import IntervalIds
from ctr_pipeline.preprocessing.layers.index_lookup import IndexLookup
from ctr_pipeline.preprocessing.layers.raw_layer import as_number
from tests.preprocessing.preprocessing_cases import HOSTILE_NUMBERS

NUMBERS = np.array([*HOSTILE_NUMBERS, -3.0, 0.5, 2.0, 7.25, 1e9])
TEXTS = np.array(["", "a", "b", "é", "zz", " a", "missing", "\U0001f600"], dtype=object)
OF_NUMBERS = {
    "normalizer": [Normalizer(0.5 * n, 1.0 + n, dtype="float64") for n in range(4)],
    "standardize": [
        Standardize(float(n), n / 3, clip, dtype="float64")
        for n, clip in enumerate([None, 1.5, 3.0, None])
    ],
    "unclipped": [Standardize(float(n), 1.0, dtype="float64") for n in range(3)],
    "log": [Log(dtype="float64") for _ in range(3)],
    "clip": [
        Clip(0.0, None, dtype="float64"),
        Clip(None, 2.0, dtype="float64"),
        Clip(-1.0, 1e-310, dtype="float64"),
    ],
    "fill": [Fill(float(n), dtype="float64") for n in range(3)],
}
INTERVALS = [
    IntervalIds([], [7], 3),
    IntervalIds([0.0, 10.0], [7, 8, 9], 3),
    IntervalIds([-np.inf, 0.5, np.inf], [0, 1, 2, 3], 4),
    IntervalIds([1.0, 1.0, 2.0], [5, 4, 3, 2], 9),
]
LOOKUPS = {
    "one other id, missing": [
        partial(IndexLookup, ["a", "é"], missing_id=9),
        partial(IndexLookup, [], missing_id=5),
    ],
    "no other id": [partial(IndexLookup, ["b"], 0), partial(IndexLookup, ["a", "zz", " a"], 0)],
    "many other ids": [partial(IndexLookup, ["a"], 7), partial(IndexLookup, ["zz", "b"], 7)],
}


@pytest.mark.parametrize("kind", OF_NUMBERS)
def test_numbers(kind):
    layers = OF_NUMBERS[kind]
    rows_CB = as_number(tf.constant([np.roll(NUMBERS, n) for n in range(len(layers))]))
    found = type(layers[0]).of_rows(layers, rows_CB).numpy()
    expected = [layer(row).numpy() for layer, row in zip(layers, rows_CB, strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_intervals():
    rows_CB = as_number(tf.constant([np.roll(NUMBERS, n) for n in range(len(INTERVALS))]))
    found = IntervalIds.of_rows(INTERVALS, rows_CB).numpy()
    expected = [layer(row).numpy() for layer, row in zip(INTERVALS, rows_CB, strict=True)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", LOOKUPS)
def test_lookups(kind):
    layers = [make() for make in LOOKUPS[kind]]
    rows_CB = tf.constant([np.roll(TEXTS, n) for n in range(len(layers))])
    found = IndexLookup.of_rows(layers, rows_CB).numpy()
    expected = [layer(row).numpy() for layer, row in zip(layers, rows_CB, strict=True)]
    np.testing.assert_array_equal(found, expected)
