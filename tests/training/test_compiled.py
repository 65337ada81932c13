from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.errors import ModelError
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.model_kinds import DeepFMConfig
from ctr_pipeline.training.compiled import CompiledModel
from tests.training.training_problem import (
    BATCH_SIZE,
    DIM,
    NUM_IDS,
    NUM_NUMBERS,
    draw_rows,
    new_model,
)

NUM_VALID = 13


@pytest.fixture(scope="module")
def still():
    """A model without dropout, compiled, and the same model for Keras."""
    config = DeepFMConfig(embedding_dim=DIM, hidden_units=(5,), dropout=0.0)
    model = build_model(config, ModelSignature(len(NUM_IDS), DIM, 2, 0.4), seed=0)
    return CompiledModel(model, batch_size=BATCH_SIZE), model


@pytest.fixture(scope="module")
def batch():
    _, numbers, labels = draw_rows(BATCH_SIZE, 9)
    rows = np.random.default_rng(1).normal(size=(BATCH_SIZE, len(NUM_IDS), 1 + DIM))
    return {"rows_BFW": rows.astype(np.float32), "numbers_BN": numbers, "labels_B": labels}


def parameters_of(compiled):
    values = compiled.initial_parameters()
    return values + np.random.default_rng(2).normal(0, 0.1, len(values)).astype(np.float32)


@dataclass(frozen=True)
class Found:
    """Gradients, those of the rows' parts put together."""

    loss_sum: float
    parameters_P: np.ndarray
    rows_BFW: np.ndarray


def split(rows_BFW):
    return {"linear_BF1": rows_BFW[:, :, :1].copy(), "embeddings_BFD": rows_BFW[:, :, 1:].copy()}


def gradients(compiled, batch, parameters_P, *, num_valid=NUM_VALID, seed=0):
    others = {name: values for name, values in batch.items() if name != "rows_BFW"}
    found = compiled.gradients(
        parameters_P=parameters_P,
        num_valid=num_valid,
        dropout_seed=seed,
        **split(batch["rows_BFW"]),
        **others,
    )
    rows_BFW = np.concatenate([found.linear_BF1, found.embeddings_BFD], axis=2)
    return Found(found.loss_sum, found.parameters_P, rows_BFW)


def logits_of(compiled, parameters_P, rows_BFW, numbers_BN):
    return compiled.logits(parameters_P=parameters_P, numbers_BN=numbers_BN, **split(rows_BFW))


def softplus_losses(logits, labels):
    return np.logaddexp(0, logits.astype(np.float64)) - labels * logits


def test_loss_is_the_sum_over_the_rows_that_count(still, batch):
    compiled, _ = still
    parameters = parameters_of(compiled)
    logits = logits_of(compiled, parameters, batch["rows_BFW"], batch["numbers_BN"])
    expected = softplus_losses(logits, batch["labels_B"])[:NUM_VALID].sum()
    assert gradients(compiled, batch, parameters).loss_sum == pytest.approx(expected, rel=1e-5)


def test_gradients_equal_a_plain_keras_tape(still, batch):
    import tensorflow as tf

    compiled, model = still
    parameters = parameters_of(compiled)
    initial = compiled.initial_parameters()
    compiled.assign(parameters)
    rows = tf.constant(batch["rows_BFW"][:NUM_VALID])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        logits = model(
            {
                "linear": rows[:, :, 0],
                "embeddings": rows[:, :, 1:],
                "numbers": tf.constant(batch["numbers_BN"][:NUM_VALID]),
            },
            training=True,
        )
        losses = keras.losses.binary_crossentropy(
            batch["labels_B"][:NUM_VALID, None], logits[:, None], from_logits=True
        )
        loss_sum = tf.reduce_sum(losses)
    of_rows, *of_weights = tape.gradient(loss_sum, [rows, *model.trainable_variables])
    compiled.assign(initial)
    found = gradients(compiled, batch, parameters)
    expected = np.concatenate([np.ravel(weight) for weight in of_weights]) / NUM_VALID
    assert found.parameters_P == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert found.rows_BFW[:NUM_VALID] == pytest.approx(np.asarray(of_rows), rel=1e-4, abs=1e-6)


def test_gradients_equal_finite_differences(still, batch):
    compiled, _ = still
    parameters = parameters_of(compiled)
    found = gradients(compiled, batch, parameters)
    chance = np.random.default_rng(3)
    direction_P = chance.normal(size=len(parameters)).astype(np.float32)
    direction_BFW = chance.normal(size=batch["rows_BFW"].shape).astype(np.float32)
    size = 1e-3

    def loss(sign):
        moved = batch | {"rows_BFW": batch["rows_BFW"] + sign * size * direction_BFW}
        return gradients(compiled, moved, parameters + sign * size * direction_P).loss_sum

    slope = (loss(1) - loss(-1)) / (2 * size)
    expected = NUM_VALID * found.parameters_P @ direction_P + (found.rows_BFW * direction_BFW).sum()
    assert slope == pytest.approx(expected, rel=0.02)


def test_padding_contributes_nothing(still, batch):
    compiled, _ = still
    parameters = parameters_of(compiled)
    found = gradients(compiled, batch, parameters)
    other = {name: values.copy() for name, values in batch.items()}
    other["rows_BFW"][NUM_VALID:] = 7.0
    other["numbers_BN"][NUM_VALID:] = -3.0
    other["labels_B"][NUM_VALID:] = 1.0
    again = gradients(compiled, other, parameters)
    assert again.loss_sum == found.loss_sum
    assert np.array_equal(again.parameters_P, found.parameters_P)
    assert np.array_equal(again.rows_BFW[:NUM_VALID], found.rows_BFW[:NUM_VALID])
    assert not again.rows_BFW[NUM_VALID:].any()


def test_logits_do_not_depend_on_the_padding(still, batch):
    compiled, _ = still
    parameters = parameters_of(compiled)
    rows, numbers = batch["rows_BFW"].copy(), batch["numbers_BN"].copy()
    first = logits_of(compiled, parameters, rows, numbers)
    rows[NUM_VALID:], numbers[NUM_VALID:] = 0, 0
    second = logits_of(compiled, parameters, rows, numbers)
    assert np.array_equal(first[:NUM_VALID], second[:NUM_VALID])


def test_dropout_is_a_function_of_its_seed(compiled, batch):
    parameters = parameters_of(compiled)
    first, again, other = (
        gradients(compiled, batch, parameters, seed=seed).parameters_P for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_scoring_leaves_dropout_off(compiled, batch):
    parameters = parameters_of(compiled)
    inputs = batch["rows_BFW"], batch["numbers_BN"]
    first = logits_of(compiled, parameters, *inputs)
    gradients(compiled, batch, parameters, seed=5)
    assert np.array_equal(logits_of(compiled, parameters, *inputs), first)


def test_assigned_parameters_come_back(still, batch):
    compiled, model = still
    initial = compiled.initial_parameters()
    parameters = parameters_of(compiled)
    assert compiled.num_parameters == len(initial) == model.count_params()
    assert compiled.assign(parameters) is model
    assert np.array_equal(compiled.initial_parameters(), parameters)
    logits = model.predict_on_batch(
        {
            "linear": batch["rows_BFW"][:, :, 0],
            "embeddings": batch["rows_BFW"][:, :, 1:],
            "numbers": batch["numbers_BN"],
        }
    )
    compiled.assign(initial)
    expected = logits_of(compiled, parameters, batch["rows_BFW"], batch["numbers_BN"])
    assert np.ravel(logits) == pytest.approx(expected, abs=1e-5)


def test_parameters_of_another_model_are_refused(compiled):
    with pytest.raises(ValueError, match="3 trained parameters, the model has"):
        compiled.assign(np.zeros(3, np.float32))


def test_equal_seeds_give_equal_initial_parameters(compiled):
    again = CompiledModel(new_model(), batch_size=BATCH_SIZE)
    assert np.array_equal(again.initial_parameters(), compiled.initial_parameters())


class Failing(keras.layers.Layer):
    """Fails once it is to train."""

    def call(self, x, training=None):
        if training:
            raise RuntimeError("nobody has written this layer yet")
        return x


def failing_model():
    inputs = {
        "embeddings": keras.Input((2, 3), name="embeddings"),
        "linear": keras.Input((2,), name="linear"),
        "numbers": keras.Input((1,), name="numbers"),
    }
    logit = keras.layers.Dense(1)(Failing()(inputs["linear"]))
    return keras.Model(inputs, keras.ops.squeeze(logit, -1))


def test_xla_changes_rounding_alone(compiled, batch):
    plain = CompiledModel(new_model(), batch_size=BATCH_SIZE, use_xla=False)
    parameters_P = parameters_of(compiled)
    fused, unfused = (gradients(one, batch, parameters_P, seed=3) for one in (compiled, plain))
    assert fused.loss_sum == pytest.approx(unfused.loss_sum, rel=1e-5)
    np.testing.assert_allclose(fused.parameters_P, unfused.parameters_P, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(fused.rows_BFW, unfused.rows_BFW, rtol=1e-3, atol=1e-5)


def model_in(precision, hidden_units=(6,)):
    config = DeepFMConfig(embedding_dim=DIM, hidden_units=hidden_units, dropout=0.2)
    signature = ModelSignature(len(NUM_IDS), DIM, NUM_NUMBERS, 0.4)
    return build_model(config, signature, seed=0, precision=precision)


def test_another_precision_changes_gradients_alone(compiled, batch):
    mixed = CompiledModel(
        model_in("float32"), training_model=model_in("bfloat16"), batch_size=BATCH_SIZE
    )
    parameters_P = parameters_of(compiled)
    assert np.array_equal(mixed.initial_parameters(), compiled.initial_parameters())
    exact, rounded = (gradients(one, batch, parameters_P, seed=3) for one in (compiled, mixed))
    assert rounded.loss_sum == pytest.approx(exact.loss_sum, rel=0.01)
    for left, right in (
        (exact.parameters_P, rounded.parameters_P),
        (exact.rows_BFW, rounded.rows_BFW),
    ):
        assert right.dtype == np.float32
        assert not np.array_equal(left, right)
        cosine = np.vdot(left, right) / np.linalg.norm(left) / np.linalg.norm(right)
        assert cosine > 0.999
    scores = [
        logits_of(one, parameters_P, batch["rows_BFW"], batch["numbers_BN"])
        for one in (compiled, mixed)
    ]
    assert np.array_equal(*scores)
    assert {layer.compute_dtype for layer in mixed.assign(parameters_P).layers} == {"float32"}


def test_a_training_model_of_other_shapes_is_refused():
    other = model_in("bfloat16", hidden_units=(7,))
    with pytest.raises(ValueError, match="other variables"):
        CompiledModel(model_in("float32"), training_model=other, batch_size=BATCH_SIZE)


def test_a_failure_of_the_users_own_code_is_told_as_such():
    shape = {"num_fields": 2, "embedding_dim": 3, "num_numbers": 1}
    with pytest.raises(ModelError, match=r"\(nobody has written this layer yet\)") as caught:
        CompiledModel(failing_model(), batch_size=4, is_of_user=True).warm_up(**shape)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError):
        CompiledModel(failing_model(), batch_size=4).warm_up(**shape)


def test_training_offset_shifts_the_loss_and_no_score(still, batch):
    compiled, model = still
    shifted = CompiledModel(model, batch_size=BATCH_SIZE, training_offset=1.5)
    parameters_P = parameters_of(compiled)
    arguments = {
        "parameters_P": parameters_P,
        "numbers_BN": batch["numbers_BN"],
        **split(batch["rows_BFW"]),
    }
    logits = compiled.logits(**arguments)
    np.testing.assert_array_equal(shifted.logits(**arguments), logits)
    wide, labels = logits.astype(np.float64) + 1.5, batch["labels_B"]
    losses = np.logaddexp(0, np.where(labels == 1, -wide, wide))[:NUM_VALID]
    assert gradients(shifted, batch, parameters_P).loss_sum == pytest.approx(losses.sum(), rel=1e-5)


def test_many_models_are_compiled_without_a_warning(batch, caplog):
    tf.get_logger().addHandler(caplog.handler)
    try:
        for _ in range(7):
            compiled = CompiledModel(new_model(), batch_size=BATCH_SIZE)
            parts = split(batch["rows_BFW"])
            compiled.logits(
                parameters_P=compiled.initial_parameters(),
                numbers_BN=batch["numbers_BN"],
                **parts,
            )
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert "tracing" not in caplog.text
