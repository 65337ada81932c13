"""Pooling of positions against numpy, and what gradients of padding are."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.training.compiled import CompiledModel, model_inputs
from ctr_pipeline.training.sequence_pooling import PooledField, SequencePooling

B, N, D = 5, 2, 3
POOLING = SequencePooling(
    num_plain=2, pooled=(PooledField(3, False), PooledField(2, True)), num_numbers=N
)


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    values = random.normal(size=(B, 7, D)).astype(np.float32)
    floats = random.normal(size=(B, N + 5)).astype(np.float32)
    floats[:, N + 3 :] = [[1, 1], [1, 0], [0, 0], [0, 1], [1, 1]]
    floats[2, N:] = 0
    return values, floats


def pooled_by_hand(values, floats):
    summed = np.einsum("bld,bl->bd", values[:, 2:5], floats[:, N : N + 3])
    masked = np.where(floats[:, N + 3 :, None] != 0, values[:, 5:], -np.inf).max(axis=1)
    largest = np.where(np.isfinite(masked), masked, 0)
    return np.concatenate([values[:, :2], summed[:, None], largest[:, None]], axis=1)


@pytest.mark.parametrize("compiled", [False, True])
def test_pooling_equals_numpy(batch, compiled):
    values, floats = batch
    pool = tf.function(POOLING.pool, jit_compile=compiled)
    np.testing.assert_allclose(pool(values, floats), pooled_by_hand(values, floats), rtol=1e-5)
    np.testing.assert_array_equal(POOLING.numbers(floats), floats[:, :N])


def small_model():
    inputs = {
        "embeddings": keras.Input((4, D), name="embeddings"),
        "linear": keras.Input((4,), name="linear"),
        "numbers": keras.Input((N,), name="numbers"),
    }
    flat = keras.layers.Flatten()(inputs["embeddings"])
    joined = keras.layers.Concatenate()([flat, inputs["linear"], inputs["numbers"]])
    logits = keras.layers.Dense(1)(joined)
    return keras.Model(inputs, keras.layers.Reshape(())(logits))


def test_a_model_sees_fields_and_padding_has_no_gradient(batch):
    values, floats = batch
    compiled = CompiledModel(small_model(), batch_size=B, sequence_pooling=POOLING)
    arguments = {
        "parameters_P": compiled.initial_parameters(),
        "linear_BF1": values[:, :, :1],
        "embeddings_BFD": values,
        "numbers_BN": floats,
    }
    gradients = compiled.gradients(
        **arguments, labels_B=np.ones(B, np.float32), num_valid=B, dropout_seed=0
    )
    assert gradients.embeddings_BFD.shape == (B, 7, D)
    is_empty = floats[:, N:] == 0
    assert is_empty.any()
    assert (gradients.embeddings_BFD[:, 2:][is_empty] == 0).all()
    assert (gradients.linear_BF1[:, 2:][is_empty] == 0).all()
    assert (gradients.embeddings_BFD[:, 2:5][~is_empty[:, :3]] != 0).all()
    # Whatever lies in the row of the padding, scores are the same.
    changed = values.copy()
    changed[:, 2:][is_empty] = 1e6
    other = compiled.logits(**(arguments | {"embeddings_BFD": changed}))
    np.testing.assert_array_equal(other, compiled.logits(**arguments))


def test_positions_are_given_apart_where_the_model_asks(batch):
    values, floats = map(tf.constant, batch)
    given = model_inputs(values[:, :, :1], values, floats, replace(POOLING, apart=True))
    assert list(given) == ["embeddings", "linear", "numbers", "elements", "coefficients"]
    np.testing.assert_array_equal(given["elements"], values[:, 2:])
    np.testing.assert_array_equal(given["coefficients"], floats[:, N:])
    pooled = model_inputs(values[:, :, :1], values, floats, POOLING)
    assert list(pooled) == ["embeddings", "linear", "numbers"]
    for key, expected in pooled.items():
        np.testing.assert_array_equal(given[key], expected)
