"""Statistics of parts, merged, are those of all rows; what is not is said to be so."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.analysis import merge_statistics
from ctr_pipeline.analysis.merging import merge_moments, merge_vocabularies
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.features import (
    ColumnType,
    FeatureSpec,
    Log,
    SequenceSpec,
    Standardize,
    Vocabulary,
)
from ctr_pipeline.statistics import Moments

FEW_NUMBERS = st.one_of(
    st.none(), st.sampled_from([0.0, 1.0, 2.5, -7.0, math.nan, math.inf, -math.inf, 1e9])
)
FEW_TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "Z", "nul\0", "'; DROP x"]))
ROWS = st.lists(st.tuples(FEW_NUMBERS, FEW_TEXTS, st.booleans()), min_size=1, max_size=40)


def collected(collect, rows, specs=None, **options):
    numbers, texts, labels = zip(*rows, strict=True)
    columns = {"x": list(numbers), "c": [text or "" for text in texts]}
    return collect(columns, [int(label) for label in labels], specs, **options)


def assert_close(merged, whole):
    """Equal but for the rounding of moments."""
    assert (merged is None) == (whole is None)
    if merged is None:
        return
    assert (merged.count, merged.minimum, merged.maximum) == (
        whole.count,
        whole.minimum,
        whole.maximum,
    )
    if not whole.count:
        assert merged == whole
        return
    size = max(abs(whole.minimum or 0), abs(whole.maximum or 0), 1e-300)
    assert merged.mean == pytest.approx(whole.mean, rel=1e-12, abs=1e-12 * size)
    deviation = whole.standard_deviation
    assert merged.standard_deviation == pytest.approx(deviation, rel=1e-7, abs=1e-7 * size)
    if deviation and deviation > 1e-6 * size and merged.skew is not None:
        assert merged.skew == pytest.approx(whole.skew, rel=1e-6, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(one=ROWS, other=ROWS)
def test_parts_with_few_values_merge_exactly(collect, one, other):
    merged = merge_statistics(collected(collect, one), collected(collect, other))
    whole = collected(collect, [*one, *other])
    assert (merged.num_rows, merged.label_rate) == (whole.num_rows, whole.label_rate)
    assert merged.approximate == {}
    for name, column in whole.columns.items():
        found = merged.columns[name]
        assert_close(found.moments, column.moments)
        assert found.model_copy(update={"moments": None}) == column.model_copy(
            update={"moments": None}
        ), name
        assert_close(merged.derived_moments.get(name), whole.derived_moments.get(name))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.05, 0.95))
def test_parts_with_many_values_merge_as_far_as_they_can(collect, seed, share):
    random = np.random.default_rng(seed)
    size = 600
    numbers = np.round(random.lognormal(2, 1.5, size), 2).tolist()
    texts = [f"v{n}" for n in random.zipf(1.5, size) % 200]
    rows = [
        (None if random.random() < 0.1 else number, text, bool(random.random() < 0.3))
        for number, text in zip(numbers, texts, strict=True)
    ]
    cut = max(30, int(share * size))
    merged = merge_statistics(collected(collect, rows[:cut]), collected(collect, rows[cut:]))
    whole = collected(collect, rows)
    assert merged.num_rows == whole.num_rows
    for name, column in whole.columns.items():
        found = merged.columns[name]
        exact = ("count", "num_missing", "num_infinite", "missing_label_rate")
        assert [getattr(found, one) for one in exact] == [getattr(column, one) for one in exact]
        assert_close(found.moments, column.moments)
        if "num_distinct" in merged.approximate.get(name, ()):
            assert found.num_distinct <= column.num_distinct
        counts = {top.value: top.count for top in column.top_values}
        for top in found.top_values:
            if "top_values" in merged.approximate.get(name, ()):
                assert top.count <= counts.get(top.value, counts[column.top_values[-1].value])
    x, x_whole = merged.columns["x"], whole.columns["x"]
    assert set(merged.approximate["x"]) >= {"quantiles", "histogram", "num_distinct"}
    assert sum(one.count for one in x.histogram) == x_whole.moments.count
    assert list(x.quantiles) == list(x_whole.quantiles)
    values = np.sort([number for number, _, _ in rows if number is not None])
    for name, value in x.quantiles.items():
        # In ranks, not in values: what a histogram of twenty bins can promise.
        assert abs(np.searchsorted(values, value) / len(values) - float(name)) < 0.25


def test_quantiles_lie_between_those_of_the_parts(collect):
    one = collect({"x": [float(n) for n in range(100)]})
    other = collect({"x": [float(n) for n in range(1000, 1300)]})
    merged = merge_statistics(one, other).columns["x"].quantiles
    for name, value in merged.items():
        low, high = one.columns["x"].quantiles[name], other.columns["x"].quantiles[name]
        assert low <= value <= high


moments = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def moments_of(values):
    values = np.array(values, np.longdouble)
    mean, deviation = values.mean(), values.std()
    return Moments(
        count=len(values),
        mean=float(mean),
        standard_deviation=float(deviation),
        minimum=float(values.min()),
        maximum=float(values.max()),
        skew=float((((values - mean) / deviation) ** 3).mean()) if deviation else None,
    )


@given(one=moments, other=moments)
def test_moments_merge_as_if_counted_at_once(one, other):
    assert_close(merge_moments(moments_of(one), moments_of(other)), moments_of([*one, *other]))


def test_moments_by_hand():
    """0, 0 and 6: mean 2, variance 8, third central moment 16."""
    merged = merge_moments(moments_of([0.0, 0.0]), moments_of([6.0]))
    assert merged.mean == 2.0
    assert merged.standard_deviation == pytest.approx(math.sqrt(8))
    assert merged.skew == pytest.approx(16 / 8**1.5)


def test_moments_of_huge_numbers_do_not_overflow():
    merged = merge_moments(moments_of([-1.5e308]), moments_of([1.5e308]))
    assert merged.mean == 0.0
    assert merged.standard_deviation == pytest.approx(1.5e308)
    assert merged.skew == 0.0


def test_an_empty_part_changes_nothing():
    empty = Moments(
        count=0, mean=None, standard_deviation=None, minimum=None, maximum=None, skew=None
    )
    some = moments_of([1.0, 5.0])
    assert merge_moments(empty, some) == merge_moments(some, empty) == some


def test_complete_vocabularies_make_texts_exact(collect, tmp_path):
    spec = [FeatureSpec(column="c", column_type=ColumnType.TEXT, id=(Vocabulary(min_count=1),))]
    random = np.random.default_rng(1)
    texts = [f"v{n}" for n in random.integers(0, 300, 2000)]
    labels = random.integers(0, 2, 2000).tolist()
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    one = collect({"c": texts[:900]}, labels[:900], spec, folder=folders[0])
    other = collect({"c": texts[900:]}, labels[900:], spec, folder=folders[1])
    whole = collect({"c": texts}, labels, spec)
    assert merge_statistics(one, other).approximate == {
        "c": ("label_information", "num_distinct", "top_values")
    }
    merged = merge_statistics(one, other, folders=folders)
    assert merged.columns == whole.columns
    assert merged.approximate == {}
    assert merged.vocabularies == {}
    assert "vocabularies" in merged.notes[1]
    files = [
        folder / part.vocabularies["c"].file
        for folder, part in zip(folders, (one, other), strict=True)
    ]
    values = merge_vocabularies(*files)
    assert values["v7"] == (
        texts.count("v7"),
        sum(label for text, label in zip(texts, labels, strict=True) if text == "v7"),
    )
    files[0].write_bytes(b"no Parquet")
    with pytest.raises(StatisticsError, match="cannot be read"):
        merge_statistics(one, other, folders=folders)


def test_moments_after_steps_that_depend_on_the_rows_are_left_out(collect):
    specs = [FeatureSpec(column="x", column_type=ColumnType.NUMBER, number=(Log(), Standardize()))]
    one = collect({"x": [1.0, 2.0, 3.0]}, specs=specs)
    other = collect({"x": [10.0, 20.0]}, specs=specs)
    merged = merge_statistics(one, other)
    whole = collect({"x": [1.0, 2.0, 3.0, 10.0, 20.0]}, specs=specs)
    assert merged.derived_moments.keys() == whole.derived_moments.keys()
    for key, found in merged.derived_moments.items():
        assert_close(found, whole.derived_moments[key])


def test_sets_must_have_the_same_columns(collect):
    x = collect({"x": [1.0]})
    with pytest.raises(ValueError, match="only one of the sets has the column 'y'"):
        merge_statistics(x, collect({"x": [1.0], "y": [1.0]}))
    with pytest.raises(ValueError, match="a number in one set, a text in the other"):
        merge_statistics(x, collect({"x": ["a"]}))


SEQUENCE = FeatureSpec(
    column="c", column_type=ColumnType.TEXT, id=(Vocabulary(),), sequence=SequenceSpec(max_length=2)
)
LISTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=4).map("|".join), min_size=1, max_size=30
)


@settings(max_examples=15, deadline=None)
@given(one=LISTS, other=LISTS)
def test_lengths_of_sequences_merge_exactly(collect, one, other):
    def lengths_of(texts):
        return collect({"c": texts}, specs=[SEQUENCE])

    merged = merge_statistics(lengths_of(one), lengths_of(other))
    whole = lengths_of([*one, *other])
    assert merged.approximate == {}
    assert merged.columns == whole.columns
    expected = np.array([len(text.split("|")) if text else 0 for text in [*one, *other]])
    lengths = merged.columns["c"].lengths
    assert lengths.median == np.quantile(expected, 0.5, method="inverted_cdf")
    assert lengths.most_of_95_percent == np.quantile(expected, 0.95, method="inverted_cdf")
    assert (lengths.num_elements, lengths.maximum) == (expected.sum(), expected.max())
    assert lengths.num_truncated == (expected > 2).sum()


def test_lengths_beyond_counting_are_approximate(collect, monkeypatch):
    monkeypatch.setattr("ctr_pipeline.statistics.MOST_LENGTHS", 1)
    one = collect({"c": ["a", "a|b", "a|b|c"]}, specs=[SEQUENCE])
    other = collect({"c": ["a|b|c|d"]}, specs=[SEQUENCE])
    merged = merge_statistics(one, other)
    lengths = merged.columns["c"].lengths
    assert lengths.rows_by_length is None
    assert "lengths" in merged.approximate["c"]
    assert (lengths.num_elements, lengths.mean, lengths.maximum) == (10, 2.5, 4)
    assert (lengths.median, lengths.num_truncated) == (2, 2)
    with pytest.raises(ValueError, match="a sequence in only one of the sets"):
        merge_statistics(one, collect({"c": ["a"]}))
