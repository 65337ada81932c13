"""Layers over dense, ragged and sparse tensors: eager, in graphs, in Keras models, saved."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.preprocessing.layers import (
    ConcatenateWithOffset,
    Discretization,
    Hashing,
    IndexLookup,
    LogRound,
    Normalizer,
    RoundIdentity,
    SparseEmbedding,
    ToNumber,
    ToRagged,
    ToSparse,
)
from tests.preprocessing.layer_cases import (
    ELEMENTWISE,
    assert_same_tensor,
    flat,
    input_like,
    three_kinds,
    values_for,
)

KINDS = ["dense", "ragged", "sparse"]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_ragged_and_sparse_values_are_those_of_dense_ones(name):
    layer = ELEMENTWISE[name]()
    inputs = three_kinds(values_for(name))
    results = {kind: layer(tensor) for kind, tensor in inputs.items()}
    for kind in KINDS:
        assert_same_tensor(
            results[kind],
            inputs[kind].with_values(tf.reshape(results["dense"], [-1]))
            if kind == "sparse"
            else inputs[kind].with_flat_values(tf.reshape(results["dense"], [-1]))
            if kind == "ragged"
            else results["dense"],
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_functional_model_graph_and_saved_model_equal_the_eager_call(name, tmp_path):
    layer = ELEMENTWISE[name]()
    inputs = three_kinds(values_for(name))
    expected = {kind: layer(tensor) for kind, tensor in inputs.items()}
    symbolic = {kind: input_like(tensor, kind) for kind, tensor in inputs.items()}
    results = {kind: layer(tensor) for kind, tensor in symbolic.items()}
    for kind, result in results.items():
        assert result.dtype == expected[kind].dtype.name
        assert (result.sparse, result.ragged) == (kind == "sparse", kind == "ragged")
    model = keras.Model(symbolic, results)
    model.save(tmp_path / "model.keras")
    module = tf.Module()
    module.layer = layer
    specs = {kind: tf.type_spec_from_value(tensor) for kind, tensor in inputs.items()}
    module.apply = tf.function(
        lambda tensors: {kind: layer(tensor) for kind, tensor in tensors.items()},
        input_signature=[specs],
    )
    tf.saved_model.save(module, tmp_path / "saved")
    served = tf.saved_model.load(tmp_path / "saved")
    for found in (
        model(inputs),
        keras.models.load_model(tmp_path / "model.keras")(inputs),
        module.apply(inputs),
        served.apply(inputs),
    ):
        for kind in KINDS:
            assert_same_tensor(found[kind], expected[kind])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_rows_of_a_dataset(name):
    layer = ELEMENTWISE[name]()
    values = values_for(name)
    rows = tf.data.Dataset.from_tensor_slices(values).batch(4).map(layer)
    np.testing.assert_array_equal(np.concatenate(list(rows.as_numpy_iterator())), layer(values))


def test_a_dataset_of_sparse_and_ragged_rows_into_an_embedding():
    texts = tf.ragged.constant([["a,b"], [], ["c"], ["a"]])
    rows = tf.data.Dataset.from_tensor_slices(texts).ragged_batch(2)
    ids = rows.map(ToRagged()).map(Hashing(50))
    assert [batch.to_list() for batch in ids] == [
        Hashing(50)(tf.ragged.constant([["a", "b"], []])).to_list(),
        Hashing(50)(tf.ragged.constant([["c"], ["a"]])).to_list(),
    ]
    layer = SparseEmbedding(50, 3)
    vectors = ids.map(layer)
    sparse = ids.map(lambda batch: layer(ToSparse()(batch)))
    np.testing.assert_array_equal(
        np.concatenate(list(vectors.as_numpy_iterator())),
        np.concatenate(list(sparse.as_numpy_iterator())),
    )


# What the ancestor's documents and tests give, dense, ragged and sparse.
@pytest.mark.parametrize(
    ("make", "values", "expected"),
    [
        (partial(Normalizer, 1.0, 2.0), [3.0, 5.0, 7.0], [1.0, 2.0, 3.0]),
        (partial(Discretization, [0.0, 1.0, 2.0]), [-1.5, 0.0, 0.5, 1.0, 3.4], [0, 1, 1, 2, 3]),
        (partial(LogRound, 16, base=2), [1.2, 1.6, 0.2, 3.1, 100.0, 0.0], [0, 1, 0, 2, 7, 0]),
        (partial(LogRound, num_bins=3, default_value=0), [1e9, 7.0, 21.0], [0, 2, 0]),
        (partial(RoundIdentity, 5), [1.2, 1.6, 0.2, 3.1, 4.9, 0.5], [1, 2, 0, 3, 0, 0]),
        (partial(Hashing, 3), ["A", "B", "C", "D", "E"], [1, 0, 1, 1, 2]),
        (partial(IndexLookup, ["A", "B", "C"]), ["A", "B", "C", "D", "E"], [0, 1, 2, 3, 3]),
        (partial(IndexLookup, ["A", "B", "C"], 0), ["C", "D"], [2, -1]),
        (partial(ToNumber, tf.int32, -1), ["123", "", "456", "-789"], [123, -1, 456, -789]),
        (partial(ToNumber, tf.float32, 0.5), ["2.5", "", "-8"], [2.5, 0.5, -8.0]),
    ],
    ids=lambda value: value.func.__name__ if isinstance(value, partial) else "",
)
def test_documented_examples(make, values, expected):
    layer = make()
    for tensor in three_kinds(tf.constant(values)).values():
        assert flat(layer(tensor)).tolist() == expected


def test_integers_hash_as_their_decimal_text_in_every_kind():
    for numbers, texts in zip(
        three_kinds(tf.constant([5, -7, 0])).values(),
        three_kinds(tf.constant(["5", "-7", "0"])).values(),
        strict=True,
    ):
        assert_same_tensor(Hashing(1000)(numbers), Hashing(1000)(texts))


def test_a_model_of_sparse_inputs_serves_from_a_saved_model(tmp_path):
    """Concatenated ids of two sparse fields into one table, trained, then served by TensorFlow."""
    names = ["city", "device"]
    symbolic = {n: keras.Input((None,), dtype="string", sparse=True, name=n) for n in names}
    ids = [Hashing(20)(symbolic["city"]), IndexLookup(["phone", "tablet"])(symbolic["device"])]
    both = ConcatenateWithOffset([0, 20])(ids)
    vector = SparseEmbedding(23, 4, combiner="sqrtn")(both)
    model = keras.Model(symbolic, keras.layers.Dense(1)(vector))
    model.compile("sgd", "mse")
    inputs = {
        "city": tf.ragged.constant([["Rome", "Oslo"], [], ["Rome"]]).to_sparse(),
        "device": tf.ragged.constant([["phone"], ["tv"], []]).to_sparse(),
    }
    model.fit(inputs, np.array([[1.0], [0.0], [1.0]]), verbose=0)
    expected = model(inputs)
    module = tf.Module()
    module.model = model
    specs = {n: tf.SparseTensorSpec([None, None], tf.string) for n in names}
    module.score = tf.function(model, input_signature=[specs])
    tf.saved_model.save(module, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.score(inputs), expected)
