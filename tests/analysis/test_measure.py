"""Quantiles, cut points, frequent values and histograms against numpy and counting in Python."""

import math
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.analysis import part_engine
from ctr_pipeline.analysis.duckdb_engine import DuckDbSession
from ctr_pipeline.analysis.groups import plan_edges
from ctr_pipeline.analysis.top_values import number_text
from ctr_pipeline.features import FeatureSpec, expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import Moments
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.analysis.interval_oracle import interval_cuts, inverted_cdf

FEW_NUMBERS = st.one_of(
    st.none(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 1e300, -1e-300]),
    st.integers(-5, 5).map(float),
    st.floats(-1e6, 1e6),
)
FEW_TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "a", "A", "é", "zz", "\U0001f600", "'\"\n\0"])
)


def bucketized(n: int, chain: tuple = ()) -> FeatureSpec:
    return FeatureSpec(
        column="x", column_type=ColumnType.NUMBER, id=(*chain, Bucketize(quantiles=n))
    )


@given(values=st.lists(FEW_NUMBERS, min_size=1, max_size=60), n=st.integers(2, 40))
def test_number_column_equals_counting(collect, values, n):
    labels = [index % 2 for index in range(len(values))]
    statistics = collect({"x": values}, labels, [bucketized(n)])
    column = statistics.columns["x"]
    present = [
        (value, label)
        for value, label in zip(values, labels, strict=True)
        if value is not None and not math.isnan(value)
    ]
    missing = [
        label
        for value, label in zip(values, labels, strict=True)
        if value is None or math.isnan(value)
    ]
    finite = np.array([value for value, _ in present if math.isfinite(value)])
    assert (statistics.num_rows, column.count) == (len(values), len(values))
    assert statistics.label_rate == sum(labels) / len(labels)
    assert column.num_missing == len(missing)
    assert column.num_infinite == len(present) - len(finite)
    assert column.num_distinct == len({value for value, _ in present})
    assert column.missing_label_rate == (sum(missing) / len(missing) if missing else None)
    if len(finite):
        assert column.quantiles == {
            str(i / 20): inverted_cdf(finite, i, 20) for i in (1, 5, 10, 15, 19)
        }
        assert statistics.boundaries["x"][str(n)] == interval_cuts(finite, n)
    else:
        assert column.quantiles == {}
        assert statistics.boundaries["x"][str(n)] == ()
        assert column.histogram == ()
    counts = Counter(value for value, _ in present)
    clicks = Counter(value for value, label in present if label)
    frequent = sorted(counts, key=lambda value: (-counts[value], value))[:20]
    assert [(float(top.value), top.count, top.label_rate) for top in column.top_values] == [
        (value, counts[value], clicks[value] / counts[value]) for value in frequent
    ]
    check_histogram(column.histogram, present)


def check_histogram(bins, present):
    finite = [(value, label) for value, label in present if math.isfinite(value)]
    assert len(bins) <= 20
    assert sum(bin_.count for bin_ in bins) == len(finite)
    for index, bin_ in enumerate(bins):
        last = index == len(bins) - 1
        inside = [
            label
            for value, label in finite
            if bin_.left <= value and (value < bin_.right or (last and value <= bin_.right))
        ]
        assert bin_.count == len(inside)
        assert bin_.label_rate == (sum(inside) / len(inside) if inside else None)
    assert all(a.right == b.left for a, b in pairwise(bins))


@given(values=st.lists(FEW_TEXTS, min_size=1, max_size=60))
def test_text_column_equals_counting(collect, values):
    labels = [index % 3 == 0 for index in range(len(values))]
    spec = FeatureSpec(column="c", column_type=ColumnType.TEXT)
    column = collect({"c": [value or "" for value in values]}, labels, [spec]).columns["c"]
    counts = Counter(value for value in values if value)
    clicks = Counter(value for value, label in zip(values, labels, strict=True) if value and label)
    frequent = sorted(counts, key=lambda value: (-counts[value], value.encode()))
    assert column.num_missing == len(values) - counts.total()
    assert column.num_distinct == len(counts)
    assert [(top.value, top.count, top.label_rate) for top in column.top_values] == [
        (value, counts[value], clicks[value] / counts[value]) for value in frequent
    ]


@pytest.mark.parametrize("kind", ["number", "text", "text with a long vocabulary"])
def test_a_column_takes_few_queries(collect, monkeypatch, kind):
    monkeypatch.setattr(part_engine, "MOST_VALUES", 0)
    asked = []
    for name in ("rows", "batches"):
        method = getattr(DuckDbSession, name)

        def ask(session, query, *parameters, method=method):
            asked.append(query.render())
            return method(session, query, *parameters)

        monkeypatch.setattr(DuckDbSession, name, ask)
    if kind == "number":
        spec = FeatureSpec(
            column="x",
            column_type=ColumnType.NUMBER,
            number=(Log(), Standardize()),
            id=(Bucketize(quantiles=7),),
        )
        collect({"x": [float(number % 50) for number in range(200)]}, specs=[spec])
        # Counts, summary and ranges, means, powers, largest counts, quantiles, top values, bins,
        # and the end.
        assert len(asked) == 9
        return
    spec = FeatureSpec(column="x", column_type=ColumnType.TEXT, id=(Vocabulary(min_count=2),))
    num_values = 50 if "long" in kind else 5
    column = collect({"x": [f"{n % num_values}" for n in range(200)]}, specs=[spec]).columns["x"]
    assert len(column.top_values) == min(num_values, 20)
    # Counts, vocabulary, groups, and the end; top values where the vocabulary may lack some.
    assert len(asked) == (4 if "long" in kind else 5)


@pytest.mark.parametrize("wanted", [{"min_count": 2}, {"min_count": 1}, {"max_size": 3}])
@pytest.mark.parametrize("num_values", [5, 40])
def test_top_values_are_the_same_beside_any_vocabulary(collect, wanted, num_values):
    values = [f"{n % num_values}" for n in range(num_values * 3 + 2)] + ["once", "", None]
    labels = [n % 2 for n in range(len(values))]
    spec = FeatureSpec(column="x", column_type=ColumnType.TEXT, id=(Vocabulary(**wanted),))
    plain = FeatureSpec(column="x", column_type=ColumnType.TEXT, id=(Hash(buckets=9),))
    beside, alone = (
        collect({"x": values}, labels, [one]).columns["x"].top_values for one in (spec, plain)
    )
    assert beside == alone


@pytest.mark.parametrize("n", [2, 3, 7, 30, 1000, 10_000])
def test_boundaries_equal_numpy_on_many_rows(collect, n):
    x = np.random.default_rng(n).lognormal(2, 1.5, 20_011)
    found = collect({"x": x.tolist()}, specs=[bucketized(n)]).boundaries["x"][str(n)]
    # 20,011 is prime: no i N / n is whole, so that numpy's rounding of it does no harm.
    expected = np.unique(np.quantile(x, np.arange(1, n) / n, method="inverted_cdf"))
    assert found == tuple(expected.tolist())


def test_a_value_of_a_third_of_the_rows_is_one_of_the_quantiles(collect):
    random = np.random.default_rng(3)
    x = random.permutation(np.concatenate([random.lognormal(2, 1.5, 2_003), np.zeros(1_000)]))
    cuts = collect({"x": x.tolist()}, specs=[bucketized(30)]).boundaries["x"]["30"]
    expected = np.unique(np.quantile(x, np.arange(1, 30) / 30, method="inverted_cdf"))
    assert cuts == tuple(expected[1:].tolist())


@pytest.mark.parametrize("heavy", [[0.0], [-7.0, 3.0], [0.0, 1e9]])
def test_heavy_values_have_intervals_of_their_own_and_leave_the_others_to_numpy(collect, heavy):
    random = np.random.default_rng(len(heavy))
    light = random.lognormal(2, 1.5, 1_009)
    # Each is half of the rows that are left without those before it.
    frequent = [np.full(size, one) for size, one in zip((14_000, 6_000), heavy, strict=False)]
    x = random.permutation(np.concatenate([light, *frequent]))
    cuts = np.array(collect({"x": x.tolist()}, specs=[bucketized(30)]).boundaries["x"]["30"])
    of_light = np.arange(1, 30 - len(heavy)) / (30 - len(heavy))
    quantiles = np.quantile(light, of_light, method="inverted_cdf")
    assert set(quantiles.tolist()) <= set(cuts.tolist())
    intervals = np.searchsorted(cuts, x, side="right")
    for one in heavy:
        assert set(x[intervals == intervals[x == one][0]]) == {one}
    assert np.unique(intervals).size == len(cuts) + 1 <= 30 + len(heavy)


@pytest.mark.parametrize("n", [120, 121, 1000])
def test_each_value_has_an_interval_of_its_own_where_there_are_no_more_than_intervals(collect, n):
    random = np.random.default_rng(n)
    present = np.sort(random.choice(20_000, 120, replace=False)).astype(float)
    x = np.concatenate([present, random.choice(present, 3_000, p=random.dirichlet(np.ones(120)))])
    cuts = collect({"x": x.tolist()}, specs=[bucketized(n)]).boundaries["x"][str(n)]
    assert cuts == tuple(present[1:].tolist())


def test_boundaries_after_a_chain_are_those_of_the_transformed_column(collect):
    x = np.random.default_rng(5).lognormal(1, 1, 5003)
    x[::7] = np.nan
    chain = (Fill(value=2.0), Clip(maximum=20.0), Log(), Standardize(clip=2.0))
    statistics = collect({"x": x.tolist()}, specs=[bucketized(9, chain)])
    transformed = np.log1p(np.minimum(np.where(np.isnan(x), 2.0, x), 20.0))
    moments = statistics.derived_moments[expression_key("x", chain[:3])]
    scaled = (transformed - moments.mean) / moments.standard_deviation
    expected = interval_cuts(np.clip(scaled, -2, 2), 9)
    # Bit for bit: rows that lie on a cut point must be on the right side of it.
    assert statistics.boundaries[expression_key("x", chain)]["9"] == expected


def test_boundaries_of_two_features_of_one_column_are_all_there(collect):
    specs = [bucketized(4), bucketized(2), bucketized(2, (Log(),))]
    boundaries = collect({"x": [1.0, 2.0, 3.0, 4.0]}, specs=specs).boundaries
    assert boundaries["x"] == {"4": (2.0, 3.0, 4.0), "2": (2.0,)}
    assert boundaries[expression_key("x", (Log(),))] == {"2": (float(np.log1p(2.0)),)}


def test_number_columns_keep_at_most_twenty_top_values(collect):
    values = [float(value) for value in range(50) for _ in range(1 + (value == 7))]
    column = collect({"x": values}).columns["x"]
    assert [top.value for top in column.top_values] == ["7", *map(str, [*range(7), *range(8, 20)])]
    assert len(column.histogram) == 20
    assert {bin_.count for bin_ in column.histogram} <= {2, 3, 4}


def test_few_values_have_a_bin_each(collect):
    column = collect({"x": [0.0, 0.0, 7.0, math.inf, None]}, [1, 0, 1, 0, 0]).columns["x"]
    assert [(b.left, b.right, b.count, b.label_rate) for b in column.histogram] == [
        (0.0, 7.0, 2, 0.5),
        (7.0, 7.0, 1, 1.0),
    ]


def test_bins_of_a_skewed_column_are_narrow_where_the_rows_are(collect):
    x = np.random.default_rng(3).lognormal(3, 2, 4000)
    bins = collect({"x": x.tolist()}).columns["x"].histogram
    assert max(bin_.count for bin_ in bins) < len(x) / 3
    assert bins[0].right - bins[0].left < bins[-1].right - bins[-1].left


def test_statistics_hold_only_what_was_asked_without_profile(collect):
    column = collect({"x": [1.0, None, 2.0]}, profile=False).columns["x"]
    assert (column.num_missing, column.num_distinct) == (1, 2)
    assert (column.moments, column.quantiles, column.top_values, column.histogram) == (
        None,
        {},
        (),
        (),
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (2.0**53, "9007199254740992"),
        (1e300, "1e+300"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_written_as_a_person_would(value, text):
    assert number_text(value) == text


def test_the_edges_of_the_largest_floats_are_finite():
    largest = sys.float_info.max
    moments = Moments(
        count=30, mean=4e306, standard_deviation=5e307, minimum=-1e308, maximum=largest
    )
    edges = plan_edges(moments, 2.5, None)
    assert (edges[0], edges[-1]) == (-1e308, largest)
    assert all(low < high < math.inf for low, high in pairwise(edges))
