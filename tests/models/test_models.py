"""All models of the registry: values against numpy, gradients, a step, round trips, XLA."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.models.layers import LocalActivation
from ctr_pipeline.specs.model_kinds import MODELS, DeepFMConfig, ModelConfig

BATCH = 7
SIZES = [(4, 3), (1, 2), (3, 0), (0, 2)]
BUILT_IN = [name for name in MODELS if name != "custom"]

Weights = dict[str, np.ndarray]


def small_config(name: str, dropout: float = 0.0) -> ModelConfig:
    keys = (
        {"target": "item", "activation_units": (4, 3)}
        if "target" in MODELS[name].model_fields
        else {}
    )
    return MODELS[name](embedding_dim=3, hidden_units=(6, 5), dropout=dropout, **keys)


def signature_of(name: str, fields: int = 4, numbers: int = 3) -> ModelSignature:
    """With two sequences where the model looks into them and there are fields enough."""
    apart = name in MODELS and "target" in MODELS[name].model_fields and fields == 4
    return ModelSignature(
        fields, 3, numbers, 0.2, sequences=(2, 3) if apart else (), target=1 if apart else None
    )


def make_model(name: str, fields: int = 4, numbers: int = 3, dropout: float = 0.0) -> keras.Model:
    model = build_model(small_config(name, dropout), signature_of(name, fields, numbers), seed=5)
    generator = np.random.default_rng(1)
    # Zeros at the start would hide a term that is missing.
    for variable in model.trainable_variables:
        variable.assign(generator.normal(scale=0.4, size=variable.shape))
    return model


def make_batch(fields: int = 4, numbers: int = 3, name: str = "") -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    batch = {
        "embeddings": generator.normal(size=(BATCH, fields, 3)).astype(np.float32),
        "linear": generator.normal(size=(BATCH, fields)).astype(np.float32),
        "numbers": generator.normal(size=(BATCH, numbers)).astype(np.float32),
    }
    if num_positions := sum(signature_of(name, fields, numbers).sequences):
        batch["elements"] = generator.normal(size=(BATCH, num_positions, 3)).astype(np.float32)
        there = generator.random((BATCH, num_positions)) < 0.6
        # One row without any element.
        there[0] = False
        batch["coefficients"] = np.where(there, 0.3, 0.0).astype(np.float32)
    return batch


def weights_of(model: keras.Model) -> Weights:
    return {v.path: np.array(v.numpy(), dtype=np.float64) for v in model.trainable_variables}


def flat(batch: dict[str, np.ndarray]) -> np.ndarray:
    rows = [np.concatenate([e.ravel(), n]) for e, n in zip(*numpy_pair(batch), strict=True)]
    return np.array(rows)


def numpy_pair(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return batch["embeddings"].astype(np.float64), batch["numbers"].astype(np.float64)


def numpy_linear(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    logit = batch["linear"].astype(np.float64).sum(axis=1) + w["linear_logit/bias"]
    if batch["numbers"].shape[1]:
        logit = logit + batch["numbers"] @ w["linear_logit/kernel"]
    return logit


def numpy_mlp(w: Weights, x: np.ndarray, name: str = "mlp") -> np.ndarray:
    for layer in (f"{name}/dense_0", f"{name}/dense_1"):
        x = np.maximum(x @ w[f"{layer}/kernel"] + w[f"{layer}/bias"], 0)
    return x


def numpy_deep(w: Weights, batch: dict[str, np.ndarray], x: np.ndarray | None = None) -> np.ndarray:
    x = numpy_mlp(w, flat(batch) if x is None else x)
    return (x @ w["deep_logit/kernel"])[:, 0]


def numpy_pairs(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    embeddings = batch["embeddings"].astype(np.float64)
    total = np.zeros(BATCH)
    for i in range(embeddings.shape[1]):
        for j in range(i):
            total += (embeddings[:, i] * embeddings[:, j]).sum(axis=1)
    return total


def numpy_interaction(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Eq. (6) of xDeepFM, map by map and product by product."""
    first = batch["embeddings"].astype(np.float64)
    fields = first.shape[1]
    if fields == 0:
        return np.zeros(BATCH)
    maps, pooled = first, []
    for layer in range(2):
        kernel = w[f"interaction/kernel_{layer}"].reshape(maps.shape[1], fields, -1)
        new = np.zeros((BATCH, kernel.shape[2], first.shape[2]))
        for h in range(kernel.shape[2]):
            for i in range(maps.shape[1]):
                for j in range(fields):
                    new[:, h] += kernel[i, j, h] * maps[:, i] * first[:, j]
        maps = new
        pooled.append(maps.sum(axis=2))
    return (np.concatenate(pooled, axis=1) @ w["interaction_logit/kernel"])[:, 0]


def numpy_cross(w: Weights, batch: dict[str, np.ndarray], *, matrix: bool) -> np.ndarray:
    """Eq. (3) of DCN with its outer product, or Eq. (1) or (2) of DCN V2, row by row."""
    logits = []
    for first in flat(batch):
        x = first
        for layer in ("cross_0", "cross_1"):
            kernel, bias = w[f"{layer}/kernel"], w[f"{layer}/bias"]
            if f"{layer}/down_kernel" in w:
                kernel = w[f"{layer}/down_kernel"] @ kernel
            if matrix:
                x = first * (kernel.T @ x + bias) + x
            else:
                x = np.outer(first, x) @ kernel[:, 0] + bias + x
        logits.append(x @ w["cross_logit/kernel"][:, 0])
    return np.array(logits)


def numpy_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def numpy_attention(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Eq. (5) to (8) of AutoInt, row by row, head by head, field by field."""
    logits = []
    for row in batch["embeddings"].astype(np.float64):
        fields = row
        if len(fields) == 0:
            logits.append(0.0)
            continue
        for layer in ("attention_0", "attention_1"):
            mixed = []
            for head in range(2):
                part = slice(16 * head, 16 * head + 16)
                query, key, value = (
                    fields @ w[f"{layer}/{kind}_kernel"][:, part]
                    for kind in ("query", "key", "value")
                )
                mixed.append([numpy_softmax(key @ q) @ value for q in query])
            heads = np.concatenate(mixed, axis=1)
            fields = np.maximum(heads + fields @ w[f"{layer}/residual_kernel"], 0)
        logits.append(float(fields.ravel() @ w["attention_logit/kernel"][:, 0]))
    return np.array(logits)


def numpy_bilinear(embeddings: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Eq. (7) of FiBiNET, a matrix for each pair."""
    matrices = kernel.reshape(3, -1, 3)
    fields = embeddings.shape[1]
    pairs = [(i, j) for i in range(fields) for j in range(i + 1, fields)]
    return np.concatenate(
        [
            (embeddings[:, i] @ matrices[:, place]) * embeddings[:, j]
            for place, (i, j) in enumerate(pairs)
        ],
        axis=1,
    )


def numpy_fibinet(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    embeddings, numbers = numpy_pair(batch)
    if embeddings.shape[1] < 2:
        return numpy_deep(w, batch)
    squeezed = embeddings.mean(axis=2)
    narrow = np.maximum(squeezed @ w["squeeze_excitation/narrow_kernel"], 0)
    weights = np.maximum(narrow @ w["squeeze_excitation/wide_kernel"], 0)
    parts = [
        numpy_bilinear(embeddings, w["pairs/kernel"]),
        numpy_bilinear(embeddings * weights[:, :, None], w["weighed_pairs/kernel"]),
        numbers,
    ]
    return numpy_deep(w, batch, np.concatenate(parts, axis=1))


def numpy_norm(w: Weights, x: np.ndarray, name: str) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * w[f"{name}/gamma"] + w[f"{name}/beta"]


def numpy_masknet(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Eq. (3) to (9) of MaskNet, blocks side by side."""
    embeddings, numbers = numpy_pair(batch)
    guide, x = flat(batch), numbers
    if embeddings.shape[1]:
        normed = numpy_norm(w, embeddings, "embedding_norm")
        x = np.concatenate([normed.reshape(BATCH, -1), numbers], axis=1)
    blocks = []
    for name in ("mask_block_0", "mask_block_1", "mask_block_2"):
        hidden = guide @ w[f"{name}/aggregation/kernel"] + w[f"{name}/aggregation/bias"]
        mask = np.maximum(hidden, 0) @ w[f"{name}/projection/kernel"]
        mask = mask + w[f"{name}/projection/bias"]
        masked = (mask * x) @ w[f"{name}/hidden/kernel"]
        blocks.append(np.maximum(numpy_norm(w, masked, f"{name}/norm"), 0))
    return numpy_deep(w, batch, np.concatenate(blocks, axis=1))


def numpy_finalmlp(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Eq. (4) to (6) of FinalMLP, with one head."""
    x, y = (
        numpy_mlp(w, flat(batch) * 2 / (1 + np.exp(-w[f"gate_{i}/gate"])), f"mlp_{i}")
        for i in range(2)
    )
    pairs = np.einsum("bk,kl,bl->b", x, w["fusion/pair_kernel"][0], y)
    return pairs + (x @ w["fusion/kernel_0"] + y @ w["fusion/kernel_1"])[:, 0]


def numpy_dlrm(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    embeddings, numbers = numpy_pair(batch)
    vectors = [embeddings[:, i] for i in range(embeddings.shape[1])]
    parts = []
    if numbers.shape[1]:
        parts.append(numpy_mlp(w, numbers, "bottom"))
        vectors.append(parts[0])
    for i, left in enumerate(vectors):
        parts += [(left * right).sum(axis=1, keepdims=True) for right in vectors[i + 1 :]]
    return numpy_deep(w, batch, np.concatenate(parts, axis=1) if parts else flat(batch))


def numpy_part(name: str, w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    if name in OWN_ORACLES:
        return OWN_ORACLES[name](w, batch)
    deep = numpy_deep(w, batch)
    match name:
        case "autoint":
            return deep + numpy_attention(w, batch)
        case "wide_and_deep":
            return deep
        case "deepfm":
            return deep + numpy_pairs(w, batch)
        case "xdeepfm":
            return deep + numpy_interaction(w, batch)
        case "dcn":
            return deep + numpy_cross(w, batch, matrix=False)
        case "dcnv2":
            return deep + numpy_cross(w, batch, matrix=True)
    raise AssertionError(f"no oracle for {name}")


def numpy_activation(w: Weights, place: int, element: np.ndarray, target: np.ndarray) -> float:
    """The activation unit of Figure 2 of DIN, one element of one row at a time."""
    x = np.concatenate([element, target, element - target, element * target])
    for index in range(3):
        name = f"local_activation/sequence_{place}_{index}"
        x = w[f"{name}_kernel"].T @ x + w[f"{name}_bias"]
        if f"{name}_slope" in w:
            x = np.where(x > 0, x, w[f"{name}_slope"] * x)
    return x.item()


def numpy_din(w: Weights, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Eq. (3) of DIN, row by row and element by element."""
    if "elements" not in batch:
        return numpy_deep(w, batch)
    fields = batch["embeddings"].astype(np.float64)
    rows = []
    for row in range(BATCH):
        target, parts = fields[row, 1], [*fields[row, :2]]
        for place, positions in enumerate((range(2), range(2, 5))):
            pooled = np.zeros(3)
            for position in positions:
                if batch["coefficients"][row, position] > 0:
                    element = batch["elements"][row, position].astype(np.float64)
                    pooled += numpy_activation(w, place, element, target) * element
            parts.append(pooled)
        rows.append(np.concatenate([*parts, batch["numbers"][row]]))
    return numpy_deep(w, batch, np.array(rows))


OWN_ORACLES = {
    "fibinet": numpy_fibinet,
    "masknet": numpy_masknet,
    "finalmlp": numpy_finalmlp,
    "dlrm": numpy_dlrm,
    "din": numpy_din,
}


@pytest.mark.parametrize(("fields", "numbers"), SIZES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_forward_pass_equals_numpy(name: str, fields: int, numbers: int) -> None:
    model, batch = make_model(name, fields, numbers), make_batch(fields, numbers, name)
    weights = weights_of(model)
    expected = numpy_linear(weights, batch) + numpy_part(name, weights, batch)
    logits = model(batch).numpy()
    assert logits.shape == (BATCH,)
    assert model.output_shape == (None,)
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)


def test_low_rank_cross_layers_equal_numpy() -> None:
    config = small_config("dcnv2", 0.0).model_copy(update={"cross_rank": 2})
    model, batch = build_model(config, signature_of("dcnv2", 4, 3), seed=5), make_batch()
    weights = weights_of(model)
    assert weights["cross_0/down_kernel"].shape == (15, 2)
    assert weights["cross_0/kernel"].shape == (2, 15)
    expected = numpy_linear(weights, batch) + numpy_part("dcnv2", weights, batch)
    np.testing.assert_allclose(model(batch).numpy(), expected, rtol=2e-5, atol=2e-5)


def loss_in_numpy(name: str, w: Weights, batch: dict[str, np.ndarray]) -> float:
    logit = numpy_linear(w, batch) + numpy_part(name, w, batch)
    label = np.arange(BATCH) % 2
    return float(np.mean(np.logaddexp(0, logit) - label * logit))


def loss_of(logits: Any) -> Any:
    labels = tf.cast(tf.range(BATCH) % 2, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


@pytest.mark.parametrize("name", BUILT_IN)
def test_gradient_equals_finite_differences(name: str) -> None:
    """Differences of the float64 oracle, at a few places of every parameter and every input."""
    model, batch = make_model(name), make_batch(name=name)
    tensors = {key: tf.constant(value) for key, value in batch.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = loss_of(model(tensors))
    variables = [v.value for v in model.trainable_variables]
    by_variable, by_input = tape.gradient(loss, (variables, tensors))
    weights = weights_of(model)
    wide_batch = {key: value.astype(np.float64) for key, value in batch.items()}
    gradients = dict(zip(weights, by_variable, strict=True)) | by_input
    arrays = weights | wide_batch
    generator = np.random.default_rng(3)
    for key, gradient in gradients.items():
        if key == "coefficients":
            # Whether an element is there, no more.
            assert gradient is None
            continue
        array = arrays[key]
        for place in generator.integers(array.size, size=3):
            index = np.unravel_index(place, array.shape)
            original, step = array[index], 1e-6
            losses = []
            for value in (original + step, original - step):
                array[index] = value
                losses.append(loss_in_numpy(name, weights, wide_batch))
            array[index] = original
            expected = (losses[0] - losses[1]) / (2 * step)
            assert gradient.numpy()[index] == pytest.approx(expected, rel=1e-3, abs=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_one_step_lowers_the_loss(name: str) -> None:
    model, batch = make_model(name), make_batch(name=name)
    with tf.GradientTape() as tape:
        before = loss_of(model(batch))
    variables = model.trainable_variables
    for variable, gradient in zip(
        variables, tape.gradient(before, [v.value for v in variables]), strict=True
    ):
        variable.assign_sub(0.01 * gradient)
    assert loss_of(model(batch)) < before


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_config_round_trip(name: str) -> None:
    model, batch = make_model(name, dropout=0.3), make_batch(name=name)
    again = keras.Model.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(batch), model(batch))


@pytest.mark.parametrize("name", BUILT_IN)
def test_saved_model_round_trip(name: str, tmp_path: Path) -> None:
    model, batch = make_model(name, dropout=0.3), make_batch(name=name)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(batch), model(batch))


# XLA compiles each for a second.
@pytest.mark.slow
@pytest.mark.parametrize(("fields", "numbers"), [(4, 3), (0, 2), (1, 0)])
@pytest.mark.parametrize("name", BUILT_IN)
def test_compiled_training_step_equals_eager(name: str, fields: int, numbers: int) -> None:
    """With dropout on, and the gradient with respect to parameters and inputs."""
    model, batch = make_model(name, fields, numbers, dropout=0.3), make_batch(fields, numbers, name)
    trainable = [tf.constant(v.numpy()) for v in model.trainable_variables]
    states = [tf.constant([3, 9], tf.int64) for _ in model.non_trainable_variables]
    tensors = {key: tf.constant(value) for key, value in batch.items()}

    def step(trainable: Any, states: Any, tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([trainable, tensors])
            logits, states = model.stateless_call(trainable, states, tensors, training=True)
            loss = loss_of(logits)
        gradients = tape.gradient(
            loss, [trainable, tensors], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return logits, gradients, states

    eager = step(trainable, states, tensors)
    compiled = tf.function(step, jit_compile=True)(trainable, states, tensors)
    for left, right in zip(tf.nest.flatten(eager), tf.nest.flatten(compiled), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
    assert not np.allclose(eager[0], model(batch)), "dropout did nothing"


@pytest.mark.parametrize("name", BUILT_IN)
def test_untrained_model_starts_at_the_base_rate(name: str) -> None:
    model = build_model(small_config(name), signature_of(name), seed=5)
    batch = {key: np.zeros_like(value) for key, value in make_batch(name=name).items()}
    np.testing.assert_allclose(tf.sigmoid(model(batch)), 0.2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_seed_decides_initial_weights(name: str) -> None:
    signature = signature_of(name)
    first, again, other = (
        build_model(small_config(name), signature, seed=seed).get_weights() for seed in (5, 5, 6)
    )
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    kernels = [(a, b) for a, b in zip(first, other, strict=True) if np.any(a) and a.ndim == 2]
    assert kernels
    assert all(not np.array_equal(a, b) for a, b in kernels)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_bfloat16_is_what_products_are_computed_in_and_nothing_else(name: str) -> None:
    plain = make_model(name)
    mixed = build_model(small_config(name), signature_of(name), seed=5, precision="bfloat16")
    assert keras.config.dtype_policy().name == "float32"
    assert {variable.dtype for variable in mixed.trainable_variables} == {"float32"}
    assert "bfloat16" in {layer.compute_dtype for layer in mixed.layers}
    mixed.set_weights(plain.get_weights())
    exact, rounded = (model(make_batch(name=name)).numpy() for model in (plain, mixed))
    assert rounded.dtype == np.float32
    assert not np.array_equal(exact, rounded)
    # Eight bits of each factor.
    np.testing.assert_allclose(rounded, exact, rtol=0.05, atol=0.05)


@pytest.mark.slow
# DIN compares vectors of one length: others are refused in the config.
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "din"])
def test_shorter_embeddings_are_projected_before_any_model(name: str) -> None:
    """A model of projected fields is the plain model on fields that numpy projected."""
    plain = make_model(name)
    signature = ModelSignature(4, 3, 3, base_rate=0.2, field_dims=(3, 2, 1, 3))
    mixed = build_model(small_config(name), signature, seed=5)
    given = {variable.path: variable for variable in plain.trainable_variables}
    kernels = {}
    for variable in mixed.trainable_variables:
        if variable.path in given:
            variable.assign(given[variable.path])
        else:
            kernels[variable.path] = variable.numpy()
    assert {path: kernel.shape for path, kernel in kernels.items()} == {
        "projection/kernel_1": (1, 1, 3),
        "projection/kernel_2": (1, 2, 3),
    }
    batch = make_batch()
    projected = {key: value.copy() for key, value in batch.items()}
    fields = projected["embeddings"]
    fields[:, 1] = batch["embeddings"][:, 1, :2] @ kernels["projection/kernel_2"][0]
    fields[:, 2] = batch["embeddings"][:, 2, :1] @ kernels["projection/kernel_1"][0]
    np.testing.assert_allclose(mixed(batch), plain(projected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [None, ()])
def test_numbers_alone_are_features_enough(dims: tuple[int, ...] | None) -> None:
    signature = ModelSignature(0, 3, 2, base_rate=0.2, field_dims=dims)
    model = build_model(small_config("deepfm"), signature, seed=0)
    batch = {
        "embeddings": np.zeros((4, 0, 3)),
        "linear": np.zeros((4, 0)),
        "numbers": np.ones((4, 2)),
    }
    assert model({name: tf.constant(value, tf.float32) for name, value in batch.items()}).shape == (
        4,
    )


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no feature"):
        build_model(DeepFMConfig(), ModelSignature(0, 8, 0, base_rate=0.5), seed=0)
    with pytest.raises(ValueError, match="click rate of the training rows is 1"):
        build_model(DeepFMConfig(), ModelSignature(2, 8, 0, base_rate=1.0), seed=0)


def test_empty_positions_and_pooled_fields_of_sequences_do_not_matter() -> None:
    name = "din"
    model, batch = make_model(name), make_batch(name=name)
    changed = {key: value.copy() for key, value in batch.items()}
    changed["elements"][batch["coefficients"] == 0] = 1e3
    changed["embeddings"][:, 2:] = -7.0
    changed["coefficients"] *= 5
    np.testing.assert_array_equal(model(changed), model(batch))
    changed["elements"][batch["coefficients"] > 0] += 1
    assert np.abs(model(changed).numpy() - model(batch).numpy())[1:].min() > 1e-4


def test_an_untrained_activation_unit_is_near_sum_pooling() -> None:
    """As embeddings are at the start of training: small."""
    layer = LocalActivation(target=0, sequences=(4,), units=(8,), seed=1)
    generator = np.random.default_rng(0)
    fields = generator.normal(scale=1e-4, size=(5, 2, 3)).astype(np.float32)
    positions = generator.normal(scale=1e-4, size=(5, 4, 3)).astype(np.float32)
    pooled = layer(fields, positions, np.ones((5, 4), np.float32)).numpy()
    np.testing.assert_array_equal(pooled[:, 0], fields[:, 0])
    np.testing.assert_allclose(pooled[:, 1], positions.sum(axis=1), rtol=1e-2, atol=1e-7)
