"""Statistics after transforms that make numbers of texts, against counting in Python."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.analysis.statistics_plan import plan_statistics
from ctr_pipeline.features import FeatureSpec, expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.analysis.interval_oracle import interval_cuts

ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b", "é", "'"]), st.integers(0, 1)),
    min_size=1,
    max_size=50,
)


def text(**chains):
    return FeatureSpec(column="c", column_type=ColumnType.TEXT, **chains)


@pytest.mark.parametrize("num_examples", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_moments_and_quantiles_equal_counting(collect, num_examples):
    @settings(max_examples=num_examples)
    @given(rows=ROWS, min_count=st.integers(1, 3), smoothing=st.floats(0.1, 50.0))
    def check_any_rows(rows, min_count, smoothing):
        check_statistics(collect, rows, min_count, smoothing)

    check_any_rows()


def check_statistics(collect, rows, min_count, smoothing):
    texts, labels = [text or None for text, _ in rows], [label for _, label in rows]
    # Without a text among them the rows would be taken for numbers.
    texts, labels = [*texts, "a"], [*labels, 0]
    count = CountEncode(min_count=min_count)
    rate = TargetEncode(min_count=min_count, smoothing=smoothing)
    specs = [
        text(number=(count, Log(), Standardize()), id=(count, Bucketize(quantiles=3))),
        text(number=(rate, Standardize()), id=(Vocabulary(min_count=2),)),
    ]
    statistics = collect({"c": texts}, labels, specs)
    rows_of = Counter(texts)
    clicks_of = Counter(text for text, label in zip(texts, labels, strict=True) if label)
    base = sum(labels) / len(labels)
    counts = [
        float(rows_of[one]) if rows_of[one] >= min_count else 0.0
        for one in texts
        if one is not None
    ]
    rates = [
        (clicks_of[one] + smoothing * base) / (rows_of[one] + smoothing)
        if rows_of[one] >= min_count
        else base
        for one in texts
    ]
    for chain, numbers in (((count, Log()), np.log1p(counts)), ((rate,), np.array(rates))):
        moments = statistics.derived_moments[expression_key("c", chain)]
        assert moments.count == len(numbers)
        assert moments.mean == pytest.approx(numbers.mean(), rel=1e-12)
        assert moments.standard_deviation == pytest.approx(numbers.std(), abs=1e-12)
        assert moments.maximum == pytest.approx(numbers.max(), rel=1e-15)
    cuts = statistics.boundaries[expression_key("c", (count,))]["3"]
    assert cuts == interval_cuts(np.array(counts), 3)


def test_the_table_has_what_the_least_demanding_transform_needs(collect, tmp_path):
    specs = [
        text(number=(CountEncode(min_count=3),), id=(Vocabulary(min_count=1),)),
        text(number=(TargetEncode(min_count=2),)),
    ]
    texts = ["a", "a", "b", "b", "b", "c", None]
    statistics = collect({"c": texts}, [1, 0, 1, 1, 0, 1, 0], specs, folder=tmp_path)
    table = pq.read_table(tmp_path / statistics.value_tables["c"].file)
    assert table.to_pylist() == [
        {"value": "b", "count": 3, "label_sum": 2},
        {"value": "a", "count": 2, "label_sum": 1},
    ]
    assert statistics.vocabularies["c"].size == 3
    assert statistics.value_tables["c"].file != statistics.vocabularies["c"].file


def test_a_number_column_has_no_counts():
    spec = FeatureSpec(column="x", column_type=ColumnType.NUMBER, number=(CountEncode(),))
    with pytest.raises(ValueError, match="'count_encode' does not fit a number column"):
        plan_statistics([spec], "label")
