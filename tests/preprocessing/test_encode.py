"""The columnar face against the TensorFlow face, over every transform and hostile values."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import FeatureSpec, SequenceSpec, VectorSpec
from ctr_pipeline.kernels.numbers import NUMBER_LIMIT
from ctr_pipeline.preprocessing.build import build_preprocessing
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.plan import raw_signature
from ctr_pipeline.preprocessing.sequences import pooling_coefficients
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.preprocessing.preprocessing_cases import (
    HOSTILE_NUMBERS,
    HOSTILE_TEXTS,
    VOCABULARY,
    batch_for,
    example_specs,
    number_spec,
    statistics_for,
    text_spec,
)


@pytest.fixture(scope="module")
def specs():
    return example_specs()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def plan(specs, folder):
    return plan_preprocessing(specs, statistics_for(specs, folder), folder)


@pytest.fixture(scope="module")
def encoder(plan, folder):
    return ColumnEncoder(plan, folder)


@pytest.fixture(scope="module")
def module(plan, folder):
    return build_preprocessing(plan, folder)


@pytest.fixture(scope="module")
def serve(plan, module):
    dtypes = {"string": tf.string, "double": tf.float64}
    signature = {
        column: tf.TensorSpec([None], dtypes[kind], name=column)
        for column, kind in raw_signature(plan).items()
    }
    # A graph: the rewriter runs, and threads flush subnormal numbers.
    return tf.function(module, input_signature=[signature])


def tensors_of(specs, numbers, texts):
    text = tf.constant([value or b"" for value in texts], tf.string)
    number = tf.constant(numbers, tf.float64)
    return {
        part.column: text if part.column_type is ColumnType.TEXT else number
        for spec in specs
        for part in spec.parts
    }


def pad(numbers, texts):
    length = max(len(numbers), len(texts))
    return np.resize(numbers, length), [texts[n % len(texts)] for n in range(length)]


def assert_equal_faces(plan, encoded, served):
    ids, numbers = (tensor.numpy() for tensor in served)
    assert encoded.ids.dtype == np.int32
    assert encoded.numbers.dtype == np.float32
    assert encoded.ids.flags.c_contiguous
    assert encoded.numbers.flags.c_contiguous
    for s, table in enumerate(plan.position_tables):
        field = plan.fields[table]
        np.testing.assert_array_equal(encoded.ids[:, s], ids[:, s], err_msg=field.name)
        assert encoded.ids[:, s].min(initial=0) >= 0
        assert encoded.ids[:, s].max(initial=0) < field.num_ids
    assert np.isfinite(encoded.numbers).all()
    for d, number in enumerate(plan.numbers):
        exact = not any(isinstance(step, Log) for step in number.steps)
        # Logarithms agree to 1e-14, which standardizing by a deviation of 0.3 enlarges.
        np.testing.assert_allclose(
            encoded.numbers[:, d],
            numbers[:, d],
            rtol=0 if exact else 2e-7,
            atol=0 if exact else 1e-7,
            err_msg=number.name,
        )
    assert encoded.numbers.shape == numbers.shape
    # Sums of weights are taken in another order.
    np.testing.assert_allclose(
        encoded.numbers[:, len(plan.numbers) :], numbers[:, len(plan.numbers) :], rtol=2e-7
    )


def test_encoder_and_tensorflow_agree_on_hostile_values(specs, plan, encoder, module, serve):
    numbers, texts = pad(HOSTILE_NUMBERS, HOSTILE_TEXTS)
    encoded = encoder.encode(batch_for(specs, numbers, texts))
    columns = tensors_of(specs, numbers, texts)
    assert_equal_faces(plan, encoded, serve(columns))
    assert_equal_faces(plan, encoded, module(columns))


ANY_NUMBER = st.one_of(
    st.floats(width=64), st.integers(-(2**63), 2**64).map(float), st.floats(-10, 10)
)
ANY_TEXT = st.one_of(
    st.none(), st.binary(max_size=90), st.text("ab|:.e-05\n", max_size=40).map(str.encode),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([value.encode() for value in VOCABULARY]),
)  # fmt: skip


@given(
    numbers=st.lists(ANY_NUMBER, min_size=1, max_size=30),
    texts=st.lists(ANY_TEXT, min_size=1, max_size=30),
)
def test_encoder_and_tensorflow_agree_on_any_values(numbers, texts, specs, plan, encoder, serve):
    numbers, texts = pad(np.array(numbers), texts)
    encoded = encoder.encode(batch_for(specs, numbers, texts))
    assert_equal_faces(plan, encoded, serve(tensors_of(specs, numbers, texts)))


def test_encoder_and_tensorflow_agree_next_to_every_threshold(specs, plan, encoder, serve):
    thresholds = np.concatenate(
        [np.array(f.step.thresholds) for f in plan.fields if f.step.name == "intervals"]
    )
    thresholds = np.unique(thresholds[np.isfinite(thresholds)])[:6000]
    numbers = np.concatenate(
        [thresholds, np.nextafter(thresholds, -np.inf), np.nextafter(thresholds, np.inf)]
    )
    texts = [b"a"] * len(numbers)
    encoded = encoder.encode(batch_for(specs, numbers, texts))
    assert_equal_faces(plan, encoded, serve(tensors_of(specs, numbers, texts)))


def test_no_rows(specs, plan, encoder, serve):
    encoded = encoder.encode(batch_for(specs, np.zeros(0), []))
    assert encoded.ids.shape == (0, plan.num_positions)
    assert_equal_faces(plan, encoded, serve(tensors_of(specs, np.zeros(0), [])))


@pytest.mark.slow
def test_saved_model_round_trip(specs, plan, encoder, module, serve, tmp_path):
    holder = tf.Module()
    holder.preprocessing = module
    holder.serve = serve
    tf.saved_model.save(holder, tmp_path / "served")
    loaded = tf.saved_model.load(tmp_path / "served")
    numbers, texts = pad(HOSTILE_NUMBERS, HOSTILE_TEXTS)
    encoded = encoder.encode(batch_for(specs, numbers, texts))
    assert_equal_faces(plan, encoded, loaded.serve(tensors_of(specs, numbers, texts)))


def test_vocabularies_are_variables(plan, module):
    num_vocabularies = sum(len(field.step.files) for field in plan.fields)
    shapes = [(v.dtype, v.shape[0], v.trainable) for v in module.variables]
    assert shapes[: 2 * num_vocabularies] == [(tf.int64, len(VOCABULARY), False)] * (
        2 * num_vocabularies
    )
    tables = shapes[2 * num_vocabularies :]
    assert len(tables) == 3 * sum(step.name != "age" for _, step in plan.text_steps)
    assert all(size >= 1 and not trainable for _, size, trainable in tables)


def test_dictionary_batches_and_slices_give_the_same(specs, encoder):
    numbers, texts = pad(HOSTILE_NUMBERS, [t for t in HOSTILE_TEXTS if b"\xff" not in (t or b"")])
    plain = batch_for(specs, numbers, texts)
    expected = encoder.encode(plain)
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        columns = {
            name: column.cast(pa.string()).cast(kind)
            if pa.types.is_large_binary(column.type)
            else column
            for name, column in zip(plain.schema.names, plain.columns, strict=True)
        }
        batch = pa.record_batch(columns)
        np.testing.assert_array_equal(encoder.encode(batch).ids, expected.ids)
        part = encoder.encode(batch.slice(7, 20))
        np.testing.assert_array_equal(part.ids, expected.ids[7:27])
        np.testing.assert_array_equal(part.numbers, expected.numbers[7:27])


def test_threads_share_an_encoder(specs, encoder):
    numbers, texts = pad(HOSTILE_NUMBERS, HOSTILE_TEXTS)
    batches = [batch_for(specs, np.roll(numbers, n), texts) for n in range(8)]
    alone = [encoder.encode(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for expected, got in zip(alone, pool.map(encoder.encode, batches * 4), strict=False):
            np.testing.assert_array_equal(got.ids, expected.ids)
            np.testing.assert_array_equal(got.numbers, expected.numbers)


def encode_numbers(chain, values, folder):
    spec = number_spec("x", number=chain)
    plan = plan_preprocessing([spec], statistics_for([spec], folder), folder)
    return ColumnEncoder(plan, folder).encode(pa.record_batch({"x": values})).numbers[:, 0]


def test_numbers_by_hand(tmp_path):
    values = pa.array([1.0, None, np.inf, -np.inf, np.nan])
    z = np.float32((np.log1p(1.0) - 1.7) / 0.3)
    encoded = encode_numbers([Log(), Standardize()], values, tmp_path)
    np.testing.assert_allclose(encoded, [z, 0, 5, -5, 0], rtol=1e-6)
    limit = np.float32(NUMBER_LIMIT)
    encoded = encode_numbers([Standardize(clip=None)], values, tmp_path)
    np.testing.assert_allclose(encoded, [-0.7 / 0.3, 0, limit, -limit, 0], rtol=1e-6)
    encoded = encode_numbers([Fill(value=3.0), Clip(maximum=2.0)], values, tmp_path)
    assert encoded.tolist() == [1, 2, 2, -limit, 2]


def test_numbers_of_other_types(tmp_path):
    for kind in (pa.int64(), pa.float32(), pa.uint8(), pa.null()):
        values = pa.array([3, None] if kind != pa.null() else [None, None], kind)
        expected = [3, 0] if kind != pa.null() else [0, 0]
        assert encode_numbers([], values, tmp_path).tolist() == expected


def test_ids_by_hand(tmp_path):
    specs = [
        number_spec("b", id=[Bucketize(boundaries=(0.0, 1.0))]),
        text_spec("h", Hash(buckets=3)),
        text_spec("v", Vocabulary()),
    ]
    plan = plan_preprocessing(specs, statistics_for(specs, tmp_path), tmp_path)
    batch = pa.record_batch(
        {
            "ignored": pa.array([0, 0, 0, 0]),
            "v": ["é", "unseen", "", None],
            "b": pa.array([-1.0, 0.0, 1.0, None]),
            "h": ["A", "B", "E", None],
        }
    )
    ids = ColumnEncoder(plan, tmp_path).encode(batch).ids
    assert ids.tolist() == [[0, 1, 2], [1, 0, 7], [2, 2, 8], [3, 3, 8]]


def test_wrong_columns_are_refused_by_name(tmp_path):
    specs = [number_spec("x", number=[Log()]), text_spec("t", Hash(buckets=3))]
    plan = plan_preprocessing(specs, statistics_for(specs, tmp_path), tmp_path)
    encoder = ColumnEncoder(plan, tmp_path)
    good = {"x": pa.array([1.0]), "t": pa.array(["a"])}
    with pytest.raises(ValueError, match="'x' is not among"):
        encoder.encode(pa.record_batch({"t": good["t"]}))
    with pytest.raises(ValueError, match="'x' is more than once among"):
        encoder.encode(pa.record_batch([good["x"]] * 2 + [good["t"]], names=["x", "x", "t"]))
    with pytest.raises(ValueError, match="'x' holds string"):
        encoder.encode(pa.record_batch({**good, "x": pa.array(["1"])}))
    with pytest.raises(ValueError, match="'t' holds double"):
        encoder.encode(pa.record_batch({**good, "t": pa.array([1.0])}))
    numbers = pa.array([1.5]).dictionary_encode()
    with pytest.raises(ValueError, match="'t' holds double"):
        encoder.encode(pa.record_batch({**good, "t": numbers}))


def test_another_vocabulary_than_the_fitted_one_is_refused(tmp_path):
    specs = [text_spec("t", Vocabulary())]
    plan = plan_preprocessing(specs, statistics_for(specs, tmp_path), tmp_path)
    step = plan.fields[0].step.model_copy(update={"size": 3})
    other = plan.model_copy(update={"fields": (plan.fields[0].model_copy(update={"step": step}),)})
    with pytest.raises(PreprocessingError, match="7 values, the plan was fitted with 3"):
        ColumnEncoder(other, tmp_path)


def test_kernels_load_no_tensorflow():
    code = (
        "import sys, ctr_pipeline.preprocessing.encode, ctr_pipeline.preprocessing.fit, "
        "ctr_pipeline.preprocessing.build, ctr_pipeline.preprocessing.chains\n"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_positions_by_hand(tmp_path):
    sequence = SequenceSpec(max_length=3, weights=True)
    spec = FeatureSpec(
        column="x", column_type=ColumnType.TEXT, id=(Hash(buckets=9),), sequence=sequence
    )
    after = text_spec("y", Hash(buckets=9))
    plan = plan_preprocessing([spec, after], statistics_for([spec, after], tmp_path), tmp_path)
    # Sequences come last, whatever the order of the features.
    assert [field.name for field in plan.fields] == ["y", "x"]
    assert plan.position_tables == (0, 1, 1, 1)
    assert (plan.num_positions, plan.num_coefficients, plan.num_floats) == (4, 3, 3)
    assert plan.places_of("x") == ([1, 2, 3], [0, 1, 2])
    assert plan.places_of("y") == ([0], [])
    rows = pa.record_batch({"x": ["p:9|q|r:2|s:1", "q:0", None, "|"], "y": ["q", "r", "s", "p"]})
    encoded = ColumnEncoder(plan, tmp_path).encode(rows)
    q, r, s, _ = encoded.ids[:, 0].tolist()
    padding, missing = plan.fields[1].padding_id, plan.fields[1].missing_id
    assert (missing, padding, plan.fields[1].num_ids) == (9, 10, 11)
    empty = [padding] * 3
    assert encoded.ids[:, 1:].tolist() == [[q, r, s], [q, padding, padding], empty, empty]
    assert encoded.numbers.tolist() == [[0.25, 0.5, 0.25], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("sum", [3.0, 4.0, 0.0]),
        ("mean", [3 / 7, 4 / 7, 0.0]),
        ("sqrtn", [0.6, 0.8, 0.0]),
        ("max", [1.0, 1.0, 0.0]),
    ],
)
def test_coefficients_by_hand(pooling, expected):
    weights = np.array([[3.0, 4.0, 0.0]])
    np.testing.assert_allclose(pooling_coefficients(weights, pooling)[0], expected, rtol=1e-7)


def test_vectors_by_hand(tmp_path):
    spec = FeatureSpec(
        column="v",
        column_type=ColumnType.TEXT,
        number=(Clip(maximum=5.0),),
        vector=VectorSpec(length=2, delimiter=";"),
    )
    plan = plan_preprocessing([spec], statistics_for([spec], tmp_path), tmp_path)
    assert [number.name for number in plan.numbers] == ["v[0]", "v[1]"]
    assert plan.places_of("v") == ([], [0, 1])
    assert plan.features == ("v",)
    assert raw_signature(plan) == {"v": "string"}
    texts = ["1.5;-2", None, "7;0.25", "", "1;2;3", "1;x", "1;inf", "7;0.25"]
    expected = [[1.5, -2], [0, 0], [5, 0.25], [0, 0], [0, 0], [0, 0], [0, 0], [5, 0.25]]
    encoder = ColumnEncoder(plan, tmp_path)
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        rows = pa.record_batch({"v": pa.array(texts, pa.string()).cast(kind)})
        assert encoder.encode(rows).numbers.tolist() == expected
        assert encoder.encode(rows.slice(2, 1)).numbers.tolist() == [[5, 0.25]]
    with pytest.raises(ValueError, match="column 'v' holds double"):
        encoder.encode(pa.record_batch({"v": [1.0]}))
