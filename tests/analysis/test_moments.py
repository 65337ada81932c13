"""Moments against exact fractions and numpy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.features import FeatureSpec, expression_key
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize
from tests.analysis.interval_oracle import interval_cuts

NUMBERS = st.one_of(
    st.none(),
    st.just(math.nan),
    st.floats(allow_nan=False, allow_subnormal=False),
    st.integers(-50, 50).map(float),
)


def finite(values):
    return [value for value in values if value is not None and math.isfinite(value)]


def exact_moments(values):
    """Mean, deviation and skew by fractions; only the roots are rounded."""
    numbers = [Fraction(value) for value in values]
    mean = sum(numbers) / len(numbers)
    variance, third = (
        sum((number - mean) ** power for number in numbers) / len(numbers) for power in (2, 3)
    )
    if not variance:
        return float(mean), 0.0, None
    # The root of a fraction of any size: scaled to 1 first.
    scale = max(abs(number - mean) for number in numbers)
    deviation = math.sqrt(variance / scale**2)
    return float(mean), float(Fraction(deviation) * scale), float(third / scale**3) / deviation**3


@given(values=st.lists(NUMBERS, min_size=1, max_size=30))
def test_equal_exact_fractions(collect, values):
    column = collect({"x": values}).columns["x"]
    moments, numbers = column.moments, finite(values)
    assert moments.count == len(numbers)
    if not numbers:
        assert (moments.mean, moments.minimum) == (None, None)
        return
    mean, deviation, skew = exact_moments(numbers)
    largest = max(abs(number) for number in numbers)
    assert (moments.minimum, moments.maximum) == (min(numbers), max(numbers))
    assert moments.mean == pytest.approx(mean, rel=1e-15, abs=largest * 1e-15)
    assert moments.standard_deviation == pytest.approx(deviation, rel=1e-9, abs=largest * 1e-15)
    if skew is not None and deviation > largest * 1e-6:
        assert column.summary["skew"] == pytest.approx(skew, rel=1e-6, abs=1e-6)


def test_equal_numpy_on_skewed_rows(collect):
    x = np.random.default_rng(0).lognormal(3, 2, 5000)
    column = collect({"x": x.tolist()}).columns["x"]
    moments = column.moments
    centered = x - x.mean()
    assert moments.mean == pytest.approx(x.mean(), rel=1e-13)
    assert moments.standard_deviation == pytest.approx(x.std(), rel=1e-12)
    skew = (centered**3).mean() / x.std() ** 3
    assert column.summary["skew"] == pytest.approx(skew, rel=1e-10)


def assert_near(column, values, weights):
    """To 1e-9 of sums that are rounded once; a mean of values that cancel, to 1e-9 of theirs."""
    moments, total = column.moments, math.fsum(weights)
    mean = sum(Fraction(w) * Fraction(x) for w, x in zip(weights, values, strict=True))
    mean /= sum(map(Fraction, weights))
    largest = max(map(abs, values))
    scale = max(abs(Fraction(x) - mean) for x in values)
    y = [float((Fraction(x) - mean) / scale) for x in values]
    variance, third = (
        math.fsum(w * one**power for w, one in zip(weights, y, strict=True)) / total
        for power in (2, 3)
    )
    assert moments.mean == pytest.approx(float(mean), rel=1e-9, abs=largest * 1e-15)
    deviation = float(Fraction(math.sqrt(variance)) * scale)
    assert moments.standard_deviation == pytest.approx(deviation, rel=1e-9)
    skew = third / variance**1.5
    assert column.summary["skew"] == pytest.approx(skew, rel=1e-9, abs=1e-9)


COLUMNS_OF_ALL_SIZES = {
    "offset": lambda chance: 1.7e9 + chance.normal(size=12_000),
    "huge": lambda chance: chance.normal(size=12_000) * 1e307,
    "tiny": lambda chance: chance.lognormal(size=12_000) * 1e-305,
    "cancelling": lambda chance: np.concatenate([v := chance.lognormal(0, 4, 6_000), -v]),
    "ratios": lambda chance: 10.0 ** chance.uniform(-150, 150, 12_000),
    "few": lambda chance: chance.poisson(2, 12_000).astype(float),
}


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighed"])
@pytest.mark.parametrize("make", COLUMNS_OF_ALL_SIZES.values(), ids=COLUMNS_OF_ALL_SIZES)
def test_moments_are_near_sums_without_rounding(collect, make, weighted):
    chance = np.random.default_rng(7)
    values = make(chance).tolist()
    # Over twelve orders of magnitude.
    weights = (10.0 ** chance.uniform(-8, 4, len(values))).tolist() if weighted else None
    column = collect({"x": values}, weights=weights).columns["x"]
    assert_near(column, values, weights or [1.0] * len(values))


def test_large_offset_does_not_swamp_the_deviation(collect):
    values = [2.0**53 - 2, 2.0**53, 2.0**53 + 2, 2.0**53 + 8]
    column = collect({"x": values}).columns["x"]
    moments = column.moments
    mean, deviation, skew = exact_moments(values)
    assert moments.mean == mean
    assert moments.standard_deviation == pytest.approx(deviation, rel=1e-12)
    assert column.summary["skew"] == pytest.approx(skew, rel=1e-12)


def test_huge_values_do_not_overflow(collect):
    moments = collect({"x": [1.7e308, -1.7e308, 1.7e308]}).columns["x"].moments
    assert moments.mean == pytest.approx(1.7e308 / 3, rel=1e-14)
    assert moments.standard_deviation == pytest.approx(1.7e308 * math.sqrt(8 / 9), rel=1e-14)


@pytest.mark.parametrize("value", [0.1, -3.0, 1e300, 2.0**53, 7e-300])
def test_constant_column_has_its_value_and_no_deviation(collect, value):
    column = collect({"x": [value] * 7}).columns["x"]
    moments = column.moments
    assert (moments.mean, moments.standard_deviation, column.summary) == (value, 0.0, {})


def test_bits_do_not_depend_on_order_and_threads(collect):
    x = np.random.default_rng(1).lognormal(0, 3, 300_000)
    one = collect({"x": x.tolist()}, threads=1)
    two = collect({"x": np.sort(x)[::-1].tolist()}, threads=2)
    assert one.columns == two.columns


CHAINS = [
    (),
    (Log(),),
    (Fill(value=2.5),),
    (Clip(minimum=-1.0, maximum=3.0),),
    (Clip(minimum=0.5),),
    (Fill(value=-4.0), Log()),
    (Log(), Clip(maximum=1.0)),
    (Standardize(),),
    (Log(), Standardize(clip=1.0)),
    (Standardize(clip=None), Normalize()),
    (Normalize(), Standardize(), Log()),
]


def reference_chain(x: np.ndarray, chain) -> np.ndarray:
    """The transforms as the documentation words them, on whole arrays."""
    for transform in chain:
        present = x[np.isfinite(x)]
        if isinstance(transform, Log):
            x = np.log1p(np.maximum(x, 0))
        elif isinstance(transform, Fill):
            x = np.where(np.isnan(x), transform.value, x)
        elif isinstance(transform, Clip):
            x = np.clip(x, transform.minimum, transform.maximum)
        elif isinstance(transform, Normalize):
            width = np.ptp(present) if len(present) else 0.0
            x = (x - (present.min() if len(present) else 0.0)) / (width or 1.0)
        else:
            deviation = present.std() if len(present) else 0.0
            x = (x - (present.mean() if len(present) else 0.0)) / (deviation or 1.0)
            if transform.clip is not None:
                x = np.clip(x, -transform.clip, transform.clip)
    return x


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: ",".join(t.name for t in chain) or "-")
@settings(max_examples=4)
@given(
    values=st.lists(
        st.one_of(
            st.none(),
            st.sampled_from([math.inf, -math.inf, 0.0, -0.0, 1e-12]),
            st.integers(-100, 1000).map(lambda number: number / 8),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_moments_equal_numpy_after_a_chain(collect, chain, values):
    spec = FeatureSpec(
        column="x", column_type=ColumnType.NUMBER, number=(*chain, Standardize(clip=None))
    )
    statistics = collect({"x": values}, specs=[spec])
    moments = statistics.derived_moments[expression_key("x", chain)]
    x = np.array([math.nan if value is None else value for value in values])
    result = reference_chain(x, chain)
    result = result[np.isfinite(result)]
    assert moments.count == len(result)
    if len(result):
        assert moments.mean == pytest.approx(result.mean(), rel=1e-12, abs=1e-12)
        assert moments.standard_deviation == pytest.approx(result.std(), rel=1e-9, abs=1e-9)
        assert moments.minimum == pytest.approx(result.min(), rel=1e-12, abs=1e-12)
        assert moments.maximum == pytest.approx(result.max(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("chain", CHAINS[1:], ids=lambda chain: ",".join(t.name for t in chain))
def test_the_kernels_of_training_give_the_values_that_were_measured(collect, tmp_path, chain):
    rng = np.random.default_rng(3)
    x = np.where(rng.random(500) < 0.3, np.nan, rng.lognormal(1, 1, 500))
    x[:2] = np.inf, -np.inf
    last, quantiles = Standardize(clip=None), Bucketize(quantiles=7)
    spec = FeatureSpec(
        column="x", column_type=ColumnType.NUMBER, number=(*chain, last), id=(*chain, quantiles)
    )
    statistics = collect({"x": x.tolist()}, specs=[spec], folder=tmp_path)
    (planned,) = plan_preprocessing([spec], statistics, tmp_path).numbers
    values = x
    for step in planned.steps[:-1]:
        values = step.kernel(values)
    values = values[np.isfinite(values)]
    key = expression_key("x", chain)
    moments = statistics.derived_moments[key]
    assert moments.count == len(values)
    assert moments.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-12)
    assert moments.standard_deviation == pytest.approx(values.std(), rel=1e-9)
    cuts = interval_cuts(values, 7)
    assert statistics.boundaries[key]["7"] == pytest.approx(cuts, rel=1e-12, abs=1e-12)


def test_log_keeps_the_precision_of_small_numbers(collect):
    x = np.array([1e-9, 2e-9, 5e-9, 3e-17])
    spec = FeatureSpec(
        column="x", column_type=ColumnType.NUMBER, number=(Log(), Standardize(clip=None))
    )
    moments = collect({"x": x.tolist()}, specs=[spec]).derived_moments[
        expression_key("x", (Log(),))
    ]
    assert moments.mean == pytest.approx(np.log1p(x).mean(), rel=1e-14)
    assert moments.standard_deviation == pytest.approx(np.log1p(x).std(), rel=1e-12)
