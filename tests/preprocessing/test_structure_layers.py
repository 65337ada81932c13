"""Layers that change the structure around values: ragged, sparse, side by side, a vector a row."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.preprocessing.layers import (
    ConcatenateWithOffset,
    SparseEmbedding,
    ToNumber,
    ToRagged,
    ToSparse,
)
from tests.preprocessing.layer_cases import assert_same_tensor, input_like


def round_trip(layer, inputs, tmp_path):
    """The layer's result, after config, functional model and `.keras` file gave the same."""
    expected = layer(inputs)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    if not layer.weights:
        assert_same_tensor(again(inputs), expected)
    symbolic = (
        [input_like(tensor) for tensor in inputs]
        if isinstance(inputs, list)
        else input_like(inputs)
    )
    result = layer(symbolic)
    kinds = isinstance(expected, tf.SparseTensor), isinstance(expected, tf.RaggedTensor)
    assert (result.dtype, result.sparse, result.ragged) == (expected.dtype.name, *kinds)
    assert len(result.shape) == expected.shape.rank
    assert expected.shape.is_compatible_with(result.shape)
    model = keras.Model(symbolic, result)
    assert_same_tensor(model(inputs), expected)
    model.save(tmp_path / "model.keras")
    assert_same_tensor(keras.models.load_model(tmp_path / "model.keras")(inputs), expected)
    assert_same_tensor(tf.function(layer)(inputs), expected)
    return expected


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        (ToRagged(), [["1,2,3"], ["4,5"], [""]], [[b"1", b"2", b"3"], [b"4", b"5"], []]),
        (ToRagged("|"), [["1|2", "3"], ["a,b", ""]], [[b"1", b"2", b"3"], [b"a,b"]]),
        (ToRagged(None), [["1,2", ""], ["", ""]], [[b"1,2"], []]),
        (ToRagged(ignore_value="2"), [["1,2,,3"], [""]], [[b"1", b"", b"3"], [b""]]),
        (ToRagged(), [[1, -1], [-1, -1], [4, 0]], [[1], [], [4, 0]]),
        (ToRagged(ignore_value=0), [[1, 0], [-1, 0]], [[1], [-1]]),
        (ToRagged(), [[0.0, -1.0]], [[0.0, -1.0]]),
        (ToRagged(ignore_value=float("nan")), [[0.5, float("nan")], [1.0, 2.0]], [[0.5], [1, 2]]),
        (ToRagged(), [[[1, -1], [2, 3]], [[-1, -1], [4, -1]]], [[[1], [2, 3]], [[], [4]]]),
        (ToRagged("::"), ["a::b", ""], [[b"a", b"b"], []]),
    ],
)
def test_ragged_layer_converts_dense_tensors(layer, inputs, expected, tmp_path):
    assert round_trip(layer, tf.constant(inputs), tmp_path).to_list() == expected


def test_ragged_layer_converts_ragged_tensors(tmp_path):
    texts = tf.ragged.constant([["1", "2,3"], ["4", ""], []])
    assert round_trip(ToRagged(), texts, tmp_path).to_list() == [[b"1", b"2", b"3"], [b"4"], []]
    inner = tf.RaggedTensor.from_row_lengths(tf.constant([[1, -1], [2, 3], [-1, -1]]), [2, 0, 1])
    assert ToRagged()(inner).to_list() == [[[1], [2, 3]], [], [[]]]


@pytest.mark.slow
@given(st.lists(st.lists(st.text(st.sampled_from("ab,é"), max_size=6), min_size=2, max_size=2)))
def test_ragged_layer_cuts_texts_as_python_does(rows):
    expected = [[part for text in row for part in text.split(",") if part] for row in rows]
    found = ToRagged()(tf.constant(rows, tf.string, [len(rows), 2])).to_list()
    assert found == [[part.encode() for part in row] for row in expected]


@pytest.mark.parametrize(
    ("layer", "inputs", "indices", "values"),
    [
        (ToSparse(), [["A", ""], ["B", "C"]], [[0, 0], [1, 0], [1, 1]], [b"A", b"B", b"C"]),
        (ToSparse(), [[12, -1], [45, 78]], [[0, 0], [1, 0], [1, 1]], [12, 45, 78]),
        (ToSparse(), [[0.0, 1.5], [-0.0, 2.0]], [[0, 1], [1, 1]], [1.5, 2.0]),
        (ToSparse(np.int64(7)), [[7, 0], [1, 7]], [[0, 1], [1, 0]], [0, 1]),
        (ToSparse("x"), [["x"], [""]], [[1, 0]], [b""]),
        (ToSparse(float("nan")), [[0.0, float("nan")]], [[0, 0]], [0.0]),
        (ToSparse(), [5, -1], [[0]], [5]),
    ],
)
def test_sparse_layer_converts_dense_tensors(layer, inputs, indices, values, tmp_path):
    tensor = tf.constant(inputs)
    found = round_trip(layer, tensor, tmp_path) if tensor.shape.rank > 1 else layer(tensor)
    assert found.indices.numpy().tolist() == indices
    assert found.values.numpy().tolist() == values
    assert found.dense_shape.numpy().tolist() == list(tensor.shape)


def test_sparse_layer_converts_ragged_and_sparse_tensors(tmp_path):
    ragged = tf.ragged.constant([[1, -1, 2], [], [-1, 3]])
    found = round_trip(ToSparse(), ragged, tmp_path)
    assert found.indices.numpy().tolist() == [[0, 0], [0, 2], [2, 1]]
    assert found.values.numpy().tolist() == [1, 2, 3]
    assert found.dense_shape.numpy().tolist() == [3, 3]
    sparse = ragged.to_sparse()
    assert_same_tensor(round_trip(ToSparse(), sparse, tmp_path), sparse)


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("axis", [1, -1])
def test_concatenate_with_offset(kind, axis, tmp_path):
    first = tf.ragged.constant([[1], [], [1]], tf.int64)
    second = tf.ragged.constant([[2], [2], []], tf.int64)
    inputs = {
        "dense": [tf.constant([[1], [1], [1]]), tf.constant([[2], [2], [2]])],
        "ragged": [first, second],
        "sparse": [first.to_sparse(), second.to_sparse()],
    }[kind]
    found = round_trip(ConcatenateWithOffset([0, 10], axis=axis), inputs, tmp_path)
    if kind == "dense":
        assert found.numpy().tolist() == [[1, 12]] * 3
    elif kind == "ragged":
        assert found.to_list() == [[1, 12], [12], [1]]
    else:
        assert found.values.numpy().tolist() == [1, 12, 12, 1]
        assert found.dense_shape.numpy().tolist() == [3, 2]
    plain = ConcatenateWithOffset(None, axis=axis)(inputs)
    assert tf.reduce_sum(getattr(plain, "values", plain)) == (9 if kind == "dense" else 6)


def test_concatenate_along_the_batch_and_of_floats(tmp_path):
    rows = [tf.constant([[0.5, 1.0]]), tf.constant([[2.0, 3.0]])]
    found = round_trip(ConcatenateWithOffset([0.25, -1], axis=0), rows, tmp_path)
    assert found.numpy().tolist() == [[0.75, 1.25], [1.0, 2.0]]
    alone = tf.constant([[7]])
    assert ConcatenateWithOffset([10])(alone) is alone


def looked_up(table, rows, combiner):
    """The layer's definition in numpy."""
    out = np.zeros((len(rows), table.shape[1]), np.float64)
    for n, row in enumerate(rows):
        vectors = np.array([table[i] for i in row if i >= 0], np.float64)
        if len(vectors):
            divisor = {"sum": 1, "mean": len(vectors), "sqrtn": np.sqrt(len(vectors))}[combiner]
            out[n] = vectors.sum(0) / divisor
    return out


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_sparse_embedding(combiner, tmp_path):
    rows = [[1, 5, 5], [], [3], [-1, 2], [-4]]
    layer = SparseEmbedding(6, 3, "normal", combiner)
    expected = looked_up(layer.embeddings.numpy(), rows, combiner)
    ragged = tf.ragged.constant(rows)
    np.testing.assert_allclose(round_trip(layer, ragged, tmp_path), expected, rtol=1e-6)
    np.testing.assert_allclose(round_trip(layer, ragged.to_sparse(), tmp_path), expected, rtol=1e-6)
    dense = ragged.to_tensor(default_value=0)
    np.testing.assert_allclose(round_trip(layer, dense, tmp_path), expected, rtol=1e-6)


def test_sparse_embedding_of_dense_ids_drops_the_padding():
    options = {"embeddings_initializer": "ones", "combiner": "sum"}
    ids = tf.constant([[0, 1, 7], [7, 7, 7]])
    assert SparseEmbedding(8, 1, **options)(ids).numpy().tolist() == [[2], [3]]
    assert SparseEmbedding(8, 1, **options, padding_id=7)(ids).numpy().tolist() == [[2], [0]]
    assert SparseEmbedding(8, 1, **options, padding_id=None)(ids).numpy().tolist() == [[3], [3]]


def test_rows_of_rows_of_ids():
    layer = SparseEmbedding(9, 2, combiner="sum")
    ids = tf.ragged.constant([[[1, 2], []], [[3]]])
    table = layer.embeddings.numpy()
    found = layer(ids).numpy()
    np.testing.assert_allclose(found[0, 0], table[1] + table[2], rtol=1e-6)
    np.testing.assert_allclose(found[1], [table[3], [0, 0]], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse", "ragged", "dense"])
def test_sparse_embedding_trains_the_vectors_of_its_ids_alone(kind):
    keras.utils.set_random_seed(3)
    layer = SparseEmbedding(8, 4, combiner="mean")
    ragged = tf.ragged.constant([[1, 2], [2], []])
    inputs = {"sparse": ragged.to_sparse(), "ragged": ragged, "dense": ragged.to_tensor()}[kind]
    before = layer.embeddings.numpy()
    symbolic = input_like(inputs)
    model = keras.Model(symbolic, keras.layers.Dense(1)(layer(symbolic)))
    model.compile(keras.optimizers.SGD(0.3), "mse")
    labels = np.array([[1.0], [-1.0], [0.5]])
    first = model.evaluate(inputs, labels, verbose=0)
    model.fit(inputs, labels, epochs=20, verbose=0)
    assert model.evaluate(inputs, labels, verbose=0) < first / 2
    changed = np.any(layer.embeddings.numpy() != before, axis=1)
    assert np.flatnonzero(changed).tolist() == [1, 2]


def test_mixed_precision():
    layer = SparseEmbedding(8, 4, dtype="mixed_bfloat16")
    assert layer(tf.constant([[1, 2]])).dtype == tf.bfloat16
    assert layer.embeddings.dtype == "float32"


NAN = float("nan")


@pytest.mark.parametrize(
    ("out_type", "default", "inputs", "expected"),
    [
        ("int64", 3, ["", " 12 ", "-9223372036854775808"], [3, 12, -(2**63)]),
        ("uint8", 9, ["", "255"], [9, 255]),
        ("float64", NAN, ["", "0.1", "1e400"], [NAN, 0.1, np.inf]),
        ("float16", 0, ["0.1"], [np.float16(0.1)]),
        ("int32", -1, np.array([NAN, -2.9, 2147483647.9]), [-1, -2, 2147483647]),
        ("int8", 0, [-128.9, 127.9], [-128, 127]),
        ("float32", 5.0, [NAN, 1.0], [NAN, 1.0]),
        ("int64", 0, [True, False], [1, 0]),
        ("uint64", 0, [2**63 - 1], [2**63 - 1]),
        ("float32", 0, [3], [3.0]),
    ],
)
def test_number_layer_converts_texts_and_numbers(out_type, default, inputs, expected, tmp_path):
    layer = ToNumber(out_type, default)
    found = round_trip(layer, tf.constant(inputs)[:, None], tmp_path).numpy().ravel()
    assert found.dtype == np.dtype(out_type)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("out_type", "inputs"),
    [
        ("int8", ["128"]),
        ("int32", ["2147483648"]),
        ("uint8", ["-1"]),
        ("int64", ["x"]),
        ("float32", ["1,5"]),
        ("int8", [-129.0]),
        ("int64", [2.0**63]),
        ("int32", [np.inf]),
        ("int32", [2**31]),
        ("uint64", [-1]),
    ],
)
def test_number_layer_never_wraps_around(out_type, inputs):
    layer = ToNumber(out_type, 0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer(tf.constant(inputs))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(layer)(tf.constant(inputs))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ToNumber(tf.string, 0), "out_type"),
        (lambda: ToNumber("number", 0), "out_type"),
        (lambda: ToNumber("int8", 300), "300 is no int8"),
        (lambda: ToNumber("int32", 0.5), "0.5 is no int32"),
        (lambda: ToNumber("int32", NAN), "nan is no int32"),
        (lambda: ToRagged(""), "sep"),
        (lambda: ToRagged(ignore_value=[1]), "ignore_value"),
        (lambda: ToSparse(ignore_value=()), "ignore_value"),
        (lambda: ToSparse(ignore_value=True), "ignore_value"),
        (lambda: SparseEmbedding(0, 2), "input_dim"),
        (lambda: SparseEmbedding(None, 2), "input_dim"),
        (lambda: SparseEmbedding(2, 0), "output_dim"),
        (lambda: SparseEmbedding(2, 2, combiner="max"), "combiner"),
        (lambda: SparseEmbedding(2, 2, combiner=None), "combiner"),
    ],
)
def test_wrong_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


DENSE = tf.constant([[1]])


@pytest.mark.parametrize(
    ("layer", "inputs", "error", "message"),
    [
        (ToNumber("int32", 0), tf.constant([[1j]]), TypeError, "text or numbers, got complex"),
        (ToRagged(), DENSE[0], ValueError, "got rank 1"),
        (ToRagged(None), tf.constant(["a"]), ValueError, "got rank 1"),
        (ToRagged(), tf.sparse.from_dense(DENSE), TypeError, "from_sparse"),
        (ToRagged(ignore_value=0), tf.constant([["a"]]), TypeError, "ignore_value 0"),
        (ToRagged(ignore_value="a"), DENSE, TypeError, "ignore_value 'a'"),
        (ToRagged(ignore_value=0.5), DENSE, TypeError, "ignore_value 0.5"),
        (ToRagged(ignore_value=NAN), DENSE, TypeError, "ignore_value nan"),
        (ToSparse(ignore_value=300), tf.constant([[1]], tf.uint8), TypeError, "type uint8"),
        (ToSparse(), tf.constant([[True]]), TypeError, "got bool"),
        (ToSparse(), tf.constant(1), ValueError, "single value"),
        (ConcatenateWithOffset([0]), [DENSE, DENSE], ValueError, "1 offsets .* got 2"),
        (ConcatenateWithOffset(None), [], ValueError, "empty list"),
        (ConcatenateWithOffset([0, 2**40]), [DENSE, DENSE], ValueError, "no int32"),
        (ConcatenateWithOffset([0, 0.5]), [DENSE, DENSE], ValueError, "offset 0.5"),
        (ConcatenateWithOffset(None, axis=2), [DENSE, DENSE], ValueError, "axis 2"),
        (ConcatenateWithOffset(None), [DENSE, DENSE[0]], ValueError, "one rank"),
        (ConcatenateWithOffset(None), [tf.constant([["a"]])], TypeError, "numbers, got string"),
        (
            ConcatenateWithOffset(None),
            [DENSE, tf.constant([[1.0]])],
            TypeError,
            "one type, got int32 and float32",
        ),
        (
            ConcatenateWithOffset(None),
            [DENSE, tf.sparse.from_dense(DENSE)],
            TypeError,
            "dense and sparse ones",
        ),
        (SparseEmbedding(3, 2), tf.constant([[1.0]]), TypeError, "integers, got float32"),
        (SparseEmbedding(3, 2), tf.constant([1]), ValueError, "got rank 1"),
        (SparseEmbedding(3, 2), tf.constant([[3]]), tf.errors.InvalidArgumentError, "below input"),
    ],
)
def test_wrong_inputs_are_refused(layer, inputs, error, message):
    with pytest.raises(error, match=message):
        layer(inputs)


@pytest.mark.parametrize(
    ("layer", "symbolic", "message"),
    [
        (ToRagged(), lambda: keras.Input((None,), sparse=True), "from_sparse"),
        (ToRagged(ignore_value="a"), lambda: keras.Input((2,), dtype="int32"), "ignore_value"),
        (ToNumber("int32", 0), lambda: keras.Input((2,), dtype="complex64"), "complex64"),
        (SparseEmbedding(3, 2), lambda: keras.Input((2,), dtype="string"), "integers"),
        (
            ConcatenateWithOffset(None),
            lambda: [keras.Input((None,), dtype="int64", sparse=s) for s in (False, True)],
            "dense and sparse",
        ),
    ],
)
def test_a_model_refuses_them_when_it_is_built(layer, symbolic, message):
    with pytest.raises(TypeError, match=message):
        layer(symbolic())
