import io
from typing import get_args

import numpy as np
import pytest

from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.optimizers import OPTIMIZERS, step_constants
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerName, OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

NUM_STEPS = 60
NUM_IDS = 6
# Some values that are worked on side by side, and some that remain.
DIM = 13

SPECS = {
    "sgd": OptimizerSpec(name="sgd", learning_rate=0.1),
    "momentum": OptimizerSpec(name="momentum", learning_rate=0.02, momentum=0.8),
    "nesterov": OptimizerSpec(name="nesterov", learning_rate=0.02, momentum=0.8),
    "adagrad": OptimizerSpec(name="adagrad", learning_rate=0.05, initial_accumulator=0.2),
    "adam": OptimizerSpec(name="adam", learning_rate=0.01),
    "amsgrad": OptimizerSpec(name="amsgrad", learning_rate=0.01, beta_2=0.9),
    "rmsprop": OptimizerSpec(name="rmsprop", learning_rate=0.01, rho=0.8),
    "ftrl": OptimizerSpec(name="ftrl", learning_rate=0.1, l1=0.02, l2=0.05),
}


def keras_optimizer(spec):
    import keras

    return {
        "sgd": lambda: keras.optimizers.SGD(spec.learning_rate),
        "momentum": lambda: keras.optimizers.SGD(spec.learning_rate, spec.momentum),
        "nesterov": lambda: keras.optimizers.SGD(spec.learning_rate, spec.momentum, nesterov=True),
        "adagrad": lambda: keras.optimizers.Adagrad(
            spec.learning_rate, spec.initial_accumulator, spec.epsilon
        ),
        "adam": lambda: keras.optimizers.Adam(
            spec.learning_rate, spec.beta_1, spec.beta_2, spec.epsilon
        ),
        "amsgrad": lambda: keras.optimizers.Adam(
            spec.learning_rate, spec.beta_1, spec.beta_2, spec.epsilon, amsgrad=True
        ),
        "rmsprop": lambda: keras.optimizers.RMSprop(
            spec.learning_rate, spec.rho, epsilon=spec.epsilon
        ),
        "ftrl": lambda: keras.optimizers.Ftrl(
            spec.learning_rate,
            initial_accumulator_value=spec.initial_accumulator,
            l1_regularization_strength=spec.l1,
            l2_regularization_strength=spec.l2,
        ),
    }[spec.name]()


def make_store(spec):
    uniform = InitializerSpec(name="uniform", scale=0.5)
    segment = SegmentSpec("vector", DIM, spec, "sum", initializer=uniform)
    return EmbeddingStore([TableSpec("t", NUM_IDS)], [segment], seed=1, threads=1)


def train_rows(store, gradients_SID):
    ids = np.arange(NUM_IDS, dtype=np.int64)[:, None]
    for step, gradients in enumerate(gradients_SID, start=1):
        prepared = store.prepare(ids, NUM_IDS)
        store.locate(prepared, create=True)
        store.update(
            prepared, gradients[:, None], step=step, learning_rate_factor=1.0, num_examples=1
        )


def random_gradients():
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-3, 1, (1, NUM_IDS, 1))
    return (rng.normal(0.2, 1, (NUM_STEPS, NUM_IDS, DIM)) * scales).astype(np.float32)


def test_every_optimizer_is_covered():
    assert {*SPECS, "rowwise_adagrad"} == set(OPTIMIZERS)


def test_every_optimizer_can_be_configured():
    assert get_args(OptimizerName) == tuple(OPTIMIZERS)


@pytest.mark.parametrize("name", SPECS)
def test_rows_and_dense_parameters_move_as_with_keras(name):
    keras = pytest.importorskip("keras")
    spec, gradients = SPECS[name], random_gradients()
    store = make_store(spec)
    initial = store.read_rows(np.arange(NUM_IDS), create=True)
    variable = keras.Variable(initial)
    optimizer = keras_optimizer(spec)
    optimizer.build([variable])
    dense = DenseParameters(initial.reshape(-1), spec)
    for step, gradient in enumerate(gradients, start=1):
        optimizer.apply([keras.ops.convert_to_tensor(gradient)])
        dense.update(gradient.reshape(-1), step=step)
    train_rows(store, gradients)
    expected = np.asarray(variable)
    rows = store.read_rows(np.arange(NUM_IDS))
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - initial).max() > 0.01
    if name == "ftrl":
        assert (expected == 0).any()
    # One implementation: not close but equal.
    np.testing.assert_array_equal(dense.values, rows.reshape(-1))


def test_rowwise_adagrad_by_hand():
    spec = OptimizerSpec(name="rowwise_adagrad", learning_rate=0.1, initial_accumulator=0.3)
    store, gradients = make_store(spec), random_gradients()
    values = store.read_rows(np.arange(NUM_IDS), create=True).astype(np.float64)
    accumulator = np.full(NUM_IDS, 0.3)
    for gradient in gradients.astype(np.float64):
        accumulator += (gradient**2).mean(axis=1)
        values -= 0.1 * gradient / np.sqrt(accumulator + 1e-7)[:, None]
    train_rows(store, gradients)
    np.testing.assert_allclose(store.read_rows(np.arange(NUM_IDS)), values, rtol=1e-5, atol=1e-6)
    assert store.row_bytes == (2 + DIM + 1) * 4


def test_rowwise_adagrad_of_one_value_is_adagrad():
    gradient = random_gradients()[:, 0, :1]
    results = []
    for name in ("adagrad", "rowwise_adagrad"):
        dense = DenseParameters(
            np.array([0.5], np.float32), OptimizerSpec(name=name, learning_rate=0.1)
        )
        for step, one in enumerate(gradient, start=1):
            dense.update(one, step=step)
        results.append(dense.values[0])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_untouched_rows_keep_values_and_moments(name):
    store = make_store(OptimizerSpec(name=name, learning_rate=0.1))
    train_rows(store, random_gradients()[:3])
    before = store.rows.records_NR[:NUM_IDS].copy()
    prepared = store.prepare(np.array([[2], [4], [2]]), 2)
    store.locate(prepared, create=True)
    gradients = np.ones((3, 1, DIM), np.float32)
    store.update(prepared, gradients, step=9, learning_rate_factor=1.0, num_examples=3)
    after = store.rows.records_NR[:NUM_IDS]
    rows_by_id = {int(key): row for row, key in enumerate(store.rows.keys_N[:NUM_IDS])}
    for row_id, row in rows_by_id.items():
        same = np.array_equal(before[row].view(np.int32), after[row].view(np.int32))
        assert same == (row_id not in {2, 4})


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_zero_gradient_of_a_new_row_moves_nothing_and_makes_no_nan(name):
    for accumulator in (0.0, 0.1):
        dense = DenseParameters(
            np.zeros(3, np.float32),
            OptimizerSpec(name=name, learning_rate=0.1, initial_accumulator=accumulator),
        )
        dense.update(np.zeros(3, np.float32), step=1)
        assert (dense.values == 0).all()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_rate_of_zero_keeps_values(name):
    values = np.array([1, -2, 3], np.float32)
    dense = DenseParameters(values, OptimizerSpec(name=name, learning_rate=0.1))
    dense.update(np.ones(3, np.float32), step=1, learning_rate_factor=0.0)
    np.testing.assert_array_equal(dense.values, values)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_nan_gradients_are_not_hidden(name):
    dense = DenseParameters(np.ones(3, np.float32), OptimizerSpec(name=name, learning_rate=0.1))
    dense.update(np.array([0.5, np.nan, 0.5], np.float32), step=1)
    assert np.isnan(dense.values[1])


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_dense_parameters_round_trip(name):
    rng = np.random.default_rng(0)
    dense = DenseParameters(
        rng.normal(size=40).astype(np.float32), OptimizerSpec(name=name, learning_rate=0.1)
    )
    gradients = rng.normal(size=(4, 40)).astype(np.float32)
    dense.update(gradients[0], step=1)
    file = io.BytesIO()
    dense.save(file)
    other = DenseParameters(np.zeros(40, np.float32), OptimizerSpec(name=name, learning_rate=0.1))
    other.load(io.BytesIO(file.getvalue()))
    for step, gradient in enumerate(gradients[1:], start=2):
        dense.update(gradient, step=step)
        other.update(gradient, step=step)
    np.testing.assert_array_equal(dense.values, other.values)
    np.testing.assert_array_equal(dense.slots, other.slots)


def test_dense_gradients_may_be_read_only():
    gradient = np.ones(3, np.float32)
    gradient.flags.writeable = False
    dense = DenseParameters(np.zeros(3, np.float32), OptimizerSpec(name="sgd", learning_rate=0.5))
    dense.update(gradient, step=1)
    assert dense.values.tolist() == [-0.5] * 3
    assert gradient.tolist() == [1.0] * 3


def test_dense_files_that_do_not_fit_are_refused():
    dense = DenseParameters(np.ones(4, np.float32), OptimizerSpec(name="adam", learning_rate=0.1))
    file = io.BytesIO()
    dense.save(file)
    for other, difference in (
        (
            DenseParameters(np.ones(5, np.float32), OptimizerSpec(name="adam", learning_rate=0.1)),
            "num_values: 4",
        ),
        (
            DenseParameters(np.ones(4, np.float32), OptimizerSpec(name="sgd", learning_rate=0.1)),
            "optimizer: 'adam'",
        ),
    ):
        with pytest.raises(CheckpointError, match=difference):
            other.load(io.BytesIO(file.getvalue()))
        assert (other.values == 1).all()
    damaged = bytearray(file.getvalue())
    damaged[-10] ^= 1
    with pytest.raises(CheckpointError, match="checksum"):
        dense.load(io.BytesIO(bytes(damaged)))
    assert (dense.slots == 0).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="step 0"):
        step_constants(
            OptimizerSpec(name="sgd", learning_rate=0.1), step=0, learning_rate_factor=1.0
        )
    with pytest.raises(ValueError, match="negative or not a number"):
        step_constants(
            OptimizerSpec(name="sgd", learning_rate=0.1), step=1, learning_rate_factor=float("nan")
        )
    with pytest.raises(ValueError, match="dim 0"):
        SegmentSpec("x", 0, OptimizerSpec(name="sgd", learning_rate=0.1), "sum")
    with pytest.raises(ValueError, match="unknown reduction"):
        SegmentSpec("x", 1, OptimizerSpec(name="sgd", learning_rate=0.1), "max")
    with pytest.raises(ValueError, match="num_ids 0"):
        TableSpec("x", 0)
    dense = DenseParameters(np.ones(4, np.float32), OptimizerSpec(name="sgd", learning_rate=0.1))
    with pytest.raises(ValueError, match="gradient of shape"):
        dense.update(np.ones(3, np.float32), step=1)
    with pytest.raises(ValueError, match="values of shape"):
        DenseParameters(np.ones((2, 2), np.float32), OptimizerSpec(name="sgd", learning_rate=0.1))


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("size", [7, 8, 9, 16, 37])
def test_a_value_has_the_same_bits_side_by_side_and_alone(name, size):
    rng = np.random.default_rng(size)
    values = rng.normal(size=size).astype(np.float32)
    together = DenseParameters(values, SPECS[name])
    alone = [DenseParameters(values[i : i + 1], SPECS[name]) for i in range(size)]
    for step in range(1, 20):
        gradient = (rng.normal(size=size) * 10.0 ** rng.integers(-12, 3, size)).astype(np.float32)
        if step == 19:
            gradient[0] = np.nan
        for i, one in enumerate(alone):
            one.update(gradient[i : i + 1].copy(), step=step)
        together.update(gradient.copy(), step=step)
    for part in ("values", "slots"):
        found = getattr(together, part).reshape(-1, size)
        expected = np.stack([getattr(one, part) for one in alone], axis=1)
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
