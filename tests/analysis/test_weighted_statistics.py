"""Statistics of weighted rows: what weighs them, against numpy, and what counts them."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctr_pipeline.dataset.parts import read_batches
from ctr_pipeline.features import FeatureSpec, SequenceSpec, VectorSpec, expression_key
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.out_of_fold import OutOfFold
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.analysis.engine_rows import assert_close

WEIGHTS = st.one_of(st.sampled_from([0.0, 1.0, 0.1, 3.0, 1e-6, 1e6]), st.floats(0, 50))
ROWS = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(-40, 400).map(lambda n: n / 8)), WEIGHTS),
    min_size=1,
    max_size=40,
)


def assert_weighted(moments, values, weights):
    """The moments of finite values, by numpy."""
    values, weights = np.array(values, np.float64), np.array(weights, np.float64)
    is_finite = np.isfinite(values)
    values, weights = values[is_finite], weights[is_finite]
    assert moments.count == len(values)
    assert moments.weight == pytest.approx(weights.sum(), rel=1e-9, abs=1e-9)
    if not len(values):
        return
    assert (moments.minimum, moments.maximum) == (values.min(), values.max())
    if weights.sum() < 1e-3:
        return
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    size = np.abs(values).max()
    assert moments.mean == pytest.approx(mean, rel=1e-9, abs=1e-9 * size)
    assert moments.standard_deviation == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6)


@given(rows=ROWS)
@example(rows=[(0.0, 1.0), (1 / 8, 1e-307)])
def test_moments_weigh_rows(collect, rows):
    values, weights = zip(*rows, strict=True)
    chain = (Log(),)
    spec = FeatureSpec(
        column="x", column_type=ColumnType.NUMBER, number=(*chain, Standardize(clip=None))
    )
    statistics = collect({"x": values}, specs=[spec], weights=weights)
    numbers = [math.nan if value is None else value for value in values]
    assert_weighted(statistics.columns["x"].moments, numbers, weights)
    logs = np.log1p(np.maximum(numbers, 0))
    moments = statistics.derived_moments[expression_key("x", chain)]
    assert moments.count == np.isfinite(logs).sum()
    if sum(weight for weight, log in zip(weights, logs, strict=True) if log == log) > 1e-3:
        known = np.isfinite(logs)
        expected = np.average(logs[known], weights=np.array(weights)[known])
        assert moments.mean == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_weights_of_one_give_the_same_statistics_as_none(collect):
    x = np.random.default_rng(0).lognormal(0, 2, 3000).tolist()
    plain = collect({"x": x}).columns["x"]
    weighed = collect({"x": x}, weights=[1.0] * len(x)).columns["x"]
    assert weighed.moments.weight == len(x)
    moments = weighed.moments.model_copy(update={"weight": None})
    assert_close(weighed.model_copy(update={"moments": moments}).model_dump(), plain.model_dump())


def test_everything_else_counts_rows(collect):
    x, c = [1.0, 2.0, 2.0, 9.0, None], ["a", "b", "b", "b", ""]
    weights, labels = [5.0, 0.0, 1.0, 0.0, 7.0], [1, 0, 1, 0, 1]
    specs = [
        FeatureSpec(column="x", column_type=ColumnType.NUMBER, id=(Bucketize(quantiles=2),)),
        FeatureSpec(column="c", column_type=ColumnType.TEXT, id=(Vocabulary(min_count=2),)),
    ]
    plain = collect({"x": x, "c": c}, labels, specs)
    weighed = collect({"x": x, "c": c}, labels, specs, weights=weights)
    assert weighed.columns["c"] == plain.columns["c"]
    without = {"moments": None, "summary": {}}
    assert weighed.columns["x"].model_copy(update=without) == plain.columns["x"].model_copy(
        update=without
    )
    assert weighed.boundaries == plain.boundaries
    assert weighed.vocabularies == plain.vocabularies
    assert weighed.label_rate == plain.label_rate
    assert weighed.fingerprint != plain.fingerprint
    assert any("weigh rows by 'weight'" in note for note in weighed.notes)
    assert not any("weigh" in note for note in plain.notes)


def test_rows_that_weigh_nothing_count_alike(collect):
    moments = collect({"x": [1.0, 2.0, None]}, weights=[0.0, 0.0, 3.0]).columns["x"].moments
    assert (moments.mean, moments.standard_deviation, moments.weight) == (1.5, 0.5, 0.0)


def test_numbers_of_vectors_weigh_as_their_rows(collect):
    spec = FeatureSpec(
        column="v",
        column_type=ColumnType.TEXT,
        number=(Standardize(),),
        vector=VectorSpec(length=2),
    )
    statistics = collect({"v": ["1|2", "3|4", ""]}, specs=[spec], weights=[1.0, 3.0, 9.0])
    moments = statistics.columns["v"].moments
    assert moments.mean == pytest.approx(np.average([1, 2, 3, 4], weights=[1, 1, 3, 3]))
    assert moments.weight == 8.0


def test_elements_of_sequences_are_counted(collect):
    spec = FeatureSpec(
        column="s",
        column_type=ColumnType.TEXT,
        id=(Vocabulary(min_count=1),),
        sequence=SequenceSpec(),
    )
    plain = collect({"s": ["a|b", "b"]}, specs=[spec])
    assert collect({"s": ["a|b", "b"]}, specs=[spec], weights=[1.0, 3.0]).columns == plain.columns


WEIGHED_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "é", ""]),
        st.integers(0, 1),
        st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]),
    ),
    min_size=2,
    max_size=50,
)


@pytest.mark.slow
@given(rows=WEIGHED_ROWS, smoothing=st.floats(0.1, 50), folds=st.sampled_from([None, 3]))
@example(rows=[("a", 0, 0.5), ("a", 1, 0.5)], smoothing=1.0, folds=None)
def test_target_encode_weighs_rows(collect, tmp_path_factory, rows, smoothing, folds):
    """The final table, the encodings of training rows and the moments after it, by counting."""
    texts, labels, weights = (list(column) for column in zip(*rows, strict=True))
    if not sum(weights):
        weights[0] = 1.0
    folder = tmp_path_factory.mktemp("run")
    step = TargetEncode(smoothing=smoothing, folds=folds, order=None if folds else "time")
    spec = FeatureSpec(
        column="c", column_type=ColumnType.TEXT, number=(step, Standardize(clip=None))
    )
    statistics = collect({"c": texts}, labels, [spec], weights=weights, folder=folder)
    # The same chain without its last step, whose result is the click rate itself.
    bare = spec.model_copy(update={"number": (step,)})
    plan = plan_preprocessing([bare], statistics, folder)
    out_of_fold, encoder = OutOfFold(plan, folder), ColumnEncoder(plan, folder)
    assert out_of_fold.columns == ["c", "weight"]
    (batch,) = read_batches([folder / "rows.arrow"], None)
    if out_of_fold.needs_counting:
        out_of_fold.count([batch], "label")
    training = encoder.encode(batch, out_of_fold=out_of_fold.encoder("label")(batch)).numbers[:, 0]
    final = encoder.encode(batch).numbers[:, 0]

    texts, labels, weights = np.array(texts), np.array(labels), np.array(weights)
    in_rows = weights / weights.mean()
    base = np.average(labels, weights=weights)

    def rate(others):
        size, clicks = in_rows[others].sum(), (in_rows * labels)[others].sum()
        return (clicks + smoothing * base) / (size + smoothing) if size else base

    if plan.numbers[0].steps:
        # What is constant in the final table is so in the training rows, too.
        assert np.ptp(final) == np.ptp(training - final) == 0
        return
    for n, text in enumerate(texts):
        assert final[n] == pytest.approx(rate(texts == text), rel=1e-5, abs=1e-6)
        if folds is None:
            before = (texts == text) & (np.arange(len(texts)) < n)
            assert training[n] == pytest.approx(rate(before), rel=1e-5, abs=1e-6)
    if folds is not None:
        # A row of weight 0 leaves no trace, and no row sees its own label.
        alone = np.array([(texts == text).sum() == 1 for text in texts])
        assert training[alone] == pytest.approx(base, rel=1e-5, abs=1e-6)
    moments = statistics.derived_moments[expression_key("c", (step,))]
    assert moments.mean == pytest.approx(np.average(final, weights=weights), rel=1e-5, abs=1e-6)
