"""Target encoding of training rows: against counting by hand, and against a planted leak."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.out_of_fold import OutOfFold
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, Statistics, VocabularyStatistics
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.target_encode import TargetEncode


def statistics_of(texts, labels, folder):
    """What the analysis finds about one column `c`."""
    present = sorted({text for text in texts if text})
    counts, clicks = Counter(texts), Counter()
    for text, label in zip(texts, labels, strict=True):
        clicks[text] += label
    missing = [y for text, y in zip(texts, labels, strict=True) if not text]
    table = {
        "value": pa.array(present, pa.string()),
        "count": pa.array([counts[text] for text in present], pa.int64()),
        "label_sum": pa.array([clicks[text] for text in present], pa.int64()),
    }
    pq.write_table(pa.table(table), folder / "c.parquet")
    column = ColumnStatistics(
        column="c",
        column_type=ColumnType.TEXT,
        count=len(texts),
        num_missing=len(missing),
        num_distinct=len(present),
        missing_label_rate=sum(missing) / len(missing) if missing else None,
    )
    values = VocabularyStatistics(
        column="c",
        min_count=1,
        max_size=None,
        file="c.parquet",
        size=len(present),
        num_excluded_values=0,
        num_excluded_rows=0,
    )
    return Statistics(
        fingerprint="f",
        num_rows=len(texts),
        label_rate=sum(labels) / len(labels),
        columns={"c": column},
        value_tables={"c": values},
    )


def batches_of(texts, labels, size):
    for first in range(0, len(texts), size):
        part = slice(first, first + size)
        encoded = pa.array(texts[part], pa.string()).dictionary_encode("encode")
        yield pa.record_batch({"y": pa.array(labels[part], pa.int8()), "c": encoded})


def encode(texts, labels, transform, folder, *, size=7):
    """Numbers of the training rows, and what the final table says of them."""
    spec = FeatureSpec(column="c", column_type=ColumnType.TEXT, number=(transform,))
    plan = plan_preprocessing([spec], statistics_of(texts, labels, folder), folder)
    out_of_fold, encoder = OutOfFold(plan, folder), ColumnEncoder(plan, folder)
    assert out_of_fold.columns == ["c"]
    if out_of_fold.needs_counting:
        out_of_fold.count(batches_of(texts, labels, size), "y")
    own = out_of_fold.encoder("y")
    training, final = [], []
    for batch in batches_of(texts, labels, size):
        training.append(encoder.encode(batch, out_of_fold=own(batch)).numbers[:, 0])
        final.append(encoder.encode(batch).numbers[:, 0])
    return np.concatenate(training), np.concatenate(final), plan.numbers[0].first


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "é", "", None]), st.integers(0, 1)),
    min_size=1,
    max_size=60,
)


@given(rows=ROWS, smoothing=st.floats(0.01, 100.0), min_count=st.integers(1, 4))
def test_target_encoding_by_time_uses_only_the_rows_before(
    rows, smoothing, min_count, tmp_path_factory
):
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    transform = TargetEncode(smoothing=smoothing, order="time", min_count=min_count)
    training, final, _ = encode(texts, labels, transform, tmp_path_factory.mktemp("run"))
    base = sum(labels) / len(labels)

    def rate(others):
        return (sum(others) + smoothing * base) / (len(others) + smoothing)

    for n, text in enumerate(texts):
        same = [y for t, y in zip(texts, labels, strict=True) if (t or "") == (text or "")]
        before = [
            y for t, y in zip(texts[:n], labels[:n], strict=True) if (t or "") == (text or "")
        ]
        is_rare = len(same) < min_count
        assert final[n] == pytest.approx(base if is_rare else rate(same), rel=1e-6)
        assert training[n] == pytest.approx(base if is_rare else rate(before), rel=1e-6)


@given(rows=ROWS, folds=st.integers(2, 6), flipped=st.integers(0, 59))
def test_target_encoding_by_folds_does_not_depend_on_the_rows_own_label(
    rows, folds, flipped, tmp_path_factory
):
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    flipped %= len(labels)
    other = list(labels)
    other[flipped] = 1 - other[flipped]
    transform = TargetEncode(smoothing=2.0, folds=folds)
    one, _, step = encode(texts, labels, transform, tmp_path_factory.mktemp("run"))
    two, _, other_step = encode(texts, other, transform, tmp_path_factory.mktemp("run"))
    # The base rate alone, one number for all rows, knows of every label: its share is taken off.
    num_rows = np.array([_rows_behind(texts, n, folds) for n in range(len(texts))])
    share = 2.0 / (num_rows + 2.0)
    np.testing.assert_allclose(
        one[flipped] - share[flipped] * step.base,
        two[flipped] - share[flipped] * other_step.base,
        atol=1e-6,
    )


def _rows_behind(texts, n, folds):
    """Rows of other folds that have the text of row n; the folds as they were planned."""
    bits = (np.arange(len(texts), dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    fold = (bits ^ (bits >> np.uint64(31))) % np.uint64(folds)
    return sum(
        fold[m] != fold[n] and (text or "") == (texts[n] or "") for m, text in enumerate(texts)
    )


@pytest.mark.parametrize("options", [{"folds": 5}, {"folds": 2}, {"order": "time"}])
@pytest.mark.parametrize("rows_per_value", [1, 2, 3])
def test_a_planted_leak_predicts_nothing(tmp_path, options, rows_per_value):
    chance = np.random.default_rng(3)
    labels = (chance.random(6000) < 0.3).astype(int).tolist()
    texts = [f"v{n}" for n in chance.permutation(6000) // rows_per_value]
    transform = TargetEncode(smoothing=1.0, **options)
    training, in_sample, _ = encode(texts, labels, transform, tmp_path, size=1000)
    # Encoded by the final table, rows give their own labels away; encoded by other rows, they
    # know nothing, since the values mean nothing.
    assert roc_auc_score(labels, in_sample) > 0.8
    assert abs(roc_auc_score(labels, training) - 0.5) < 0.03
    if rows_per_value == 1:
        assert len(np.unique(training)) == 1


@pytest.mark.parametrize("options", [{"folds": 5}, {"order": "time"}])
def test_target_encoding_still_learns_what_is_true_of_a_value(tmp_path, options):
    chance = np.random.default_rng(4)
    values = chance.integers(0, 20, 6000)
    labels = (chance.random(6000) < (values + 1) / 25).astype(int).tolist()
    texts = [f"v{n}" for n in values]
    training, final, _ = encode(
        texts, labels, TargetEncode(smoothing=5.0, **options), tmp_path, size=1000
    )
    assert roc_auc_score(labels, training) > 0.7
    assert np.corrcoef(training, final)[0, 1] > 0.9


def test_ids_of_training_rows_are_made_of_the_same_numbers(tmp_path):
    chance = np.random.default_rng(5)
    texts = [f"v{n}" for n in chance.integers(0, 50, 300)]
    labels = chance.integers(0, 2, 300).tolist()
    encoded = TargetEncode(smoothing=1.0)
    spec = FeatureSpec(
        column="c",
        column_type=ColumnType.TEXT,
        number=(encoded,),
        id=(encoded, Bucketize(boundaries=(0.3, 0.5, 0.7))),
    )
    plan = plan_preprocessing([spec], statistics_of(texts, labels, tmp_path), tmp_path)
    out_of_fold = OutOfFold(plan, tmp_path)
    out_of_fold.count(batches_of(texts, labels, 100), "y")
    own, encoder = out_of_fold.encoder("y"), ColumnEncoder(plan, tmp_path)
    for batch in batches_of(texts, labels, 100):
        got = encoder.encode(batch, out_of_fold=own(batch))
        numbers = got.numbers[:, 0].astype(np.float64)
        np.testing.assert_array_equal(
            got.ids[:, 0], np.searchsorted([0.3, 0.5, 0.7], numbers, side="right")
        )
        assert (encoder.encode(batch).ids[:, 0] != got.ids[:, 0]).any()
