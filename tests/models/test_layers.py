"""Every layer: config and saved-model round trip; dropout's masks; refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.models import layers
from ctr_pipeline.models.layers import Cross, SeededDropout

# A layer's constructor arguments, and the shapes of its inputs without the batch.
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, ...]]]] = {
    "MLP": ({"hidden_units": (4, 3), "dropout": 0.25, "seed": 7}, [(5,)]),
    "BilinearFusion": ({"heads": 2, "seed": 7}, [(4,), (6,)]),
    "BilinearInteraction": ({"form": "each", "seed": 7}, [(3, 2)]),
    "DotInteraction": ({}, [(3, 2)]),
    "FeatureGate": ({}, [(5,)]),
    "FieldProjection": ({"dims": (2, 4, 1, 4, 2), "seed": 7}, [(5, 4)]),
    "InteractingAttention": ({"heads": 2, "units": 3, "seed": 7}, [(3, 2)]),
    "MaskBlock": ({"units": 4, "mask_units": 3, "seed": 7}, [(5,), (6,)]),
    "SqueezeExcitation": ({"reduction": 2, "seed": 7}, [(3, 2)]),
    "CompressedInteraction": ({"layer_sizes": (4, 2), "seed": 7}, [(3, 2)]),
    "Cross": ({"form": "vector", "seed": 7}, [(5,), (5,)]),
    "FactorizationMachine": ({}, [(3, 2)]),
    "Linear": ({"initial_bias": -1.5}, [(3,), (2,)]),
    "LocalActivation": (
        {"target": 0, "sequences": (2, 3), "units": (4,), "seed": 7},
        [(4, 2), (5, 2), (5,)],
    ),
    "LogitHead": ({"seed": 7}, [(5,)]),
    "SeededDropout": ({"rate": 0.25, "seed": 7}, [(5,)]),
}


def test_every_layer_has_a_case() -> None:
    assert sorted(CASES) == sorted(layers.__all__)


@pytest.mark.parametrize("name", CASES)
def test_round_trips(name: str, tmp_path: Path) -> None:
    arguments, shapes = CASES[name]
    layer = getattr(layers, name)(**arguments)
    config = layer.get_config()
    for key, value in arguments.items():
        assert config[key] == (list(value) if isinstance(value, tuple) else value)
    assert type(layer).from_config(config).get_config() == config

    inputs = [keras.Input(shape) for shape in shapes]
    model = keras.Model(inputs if len(inputs) > 1 else inputs[0], layer(*inputs))
    generator = np.random.default_rng(0)
    batch = [generator.normal(size=(6, *shape)).astype(np.float32) for shape in shapes]
    batch_input = batch if len(batch) > 1 else batch[0]
    assert model(batch_input).shape[1:] == model.output_shape[1:]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(batch_input), model(batch_input))


def masks(rate: float, seed: int, state: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    layer = SeededDropout(rate, seed)
    value = tf.constant(state, tf.int64)
    outputs, (next_state,) = layer.stateless_call([], [value], tf.ones(shape), training=True)
    np.testing.assert_array_equal(next_state, [state[0], state[1] + 1])
    return outputs.numpy()


class TestSeededDropout:
    def test_drops_its_share_and_scales_the_rest(self) -> None:
        outputs = masks(0.2, 0, (1, 2), (2000, 64))
        assert set(np.unique(outputs)) == {np.float32(0), np.float32(1.25)}
        # Five standard deviations of a binomial share.
        assert np.mean(outputs == 0) == pytest.approx(0.2, abs=5 * (0.16 / outputs.size) ** 0.5)
        assert np.ptp(np.mean(outputs == 0, axis=0)) < 0.1
        assert np.ptp(np.mean(outputs == 0, axis=1)) < 0.5

    def test_seed_and_both_halves_of_the_state_change_the_mask(self) -> None:
        first = masks(0.5, 0, (1, 2), (300, 32))
        for seed, state in [(1, (1, 2)), (0, (2, 2)), (0, (1, 3))]:
            other = masks(0.5, seed, state, (300, 32))
            assert np.mean(first == other) == pytest.approx(0.5, abs=0.03)

    def test_neighbours_are_uncorrelated(self) -> None:
        kept = masks(0.5, 3, (4, 5), (1000, 64)) > 0
        for left, right in [(kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1])]:
            assert np.mean(left == right) == pytest.approx(0.5, abs=0.01)

    def test_does_nothing_outside_training(self) -> None:
        x = tf.ones((3, 4))
        np.testing.assert_array_equal(SeededDropout(0.9)(x), x)
        np.testing.assert_array_equal(SeededDropout(0.0)(x, training=True), x)

    def test_dropout_refuses_a_rate_out_of_range(self) -> None:
        with pytest.raises(ValueError, match="received 1"):
            SeededDropout(1.0)


def test_cross_of_the_first_input_alone_and_of_low_rank(tmp_path: Path) -> None:
    x = tf.constant(np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32))
    layer = Cross(rank=2, seed=7)
    np.testing.assert_array_equal(layer(x), layer(x, x))
    inputs = keras.Input((5,))
    model = keras.Model(inputs, Cross(rank=2, seed=7)(inputs))
    np.testing.assert_array_equal(model(x), layer(x))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), layer(x))


def test_cross_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="received 'diagonal'"):
        Cross("diagonal")
    for arguments in ({"rank": 0}, {"form": "vector", "rank": 2}):
        with pytest.raises(ValueError, match="rank must be at least 1, for form 'matrix'"):
            Cross(**arguments)
    with pytest.raises(ValueError, match="x_0 has 4 units but x_l has 3"):
        Cross()(tf.ones((2, 4)), tf.ones((2, 3)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: layers.BilinearInteraction("pairwise"), "received 'pairwise'"),
        (lambda: layers.BilinearInteraction()(tf.ones((2, 1, 3))), "no pair of 1 fields"),
        (lambda: layers.BilinearFusion(2)(tf.ones((2, 4)), tf.ones((2, 3))), "2 heads do not"),
        (lambda: layers.InteractingAttention(0, 3), "received 0 and 3"),
        (lambda: layers.SqueezeExcitation(0), "received 0"),
        (lambda: layers.LocalActivation(0, []), "must have positions"),
        (lambda: layers.LocalActivation(-1, [2]), "from 0 on, received -1"),
        (
            lambda: layers.LocalActivation(1, [2])(
                tf.ones((2, 2, 3)), tf.ones((2, 2, 3)), tf.ones((2, 2))
            ),
            "the target 1 is none of 1 fields",
        ),
        (
            lambda: layers.LocalActivation(0, [2])(
                tf.ones((2, 2, 3)), tf.ones((2, 3, 3)), tf.ones((2, 3))
            ),
            "sequences of 2 positions do not fit 3",
        ),
        (lambda: layers.FieldProjection((2, 0)), r"received \[2, 0\]"),
        (lambda: layers.FieldProjection((2, 4))(tf.ones((1, 2, 3))), "do not fit 2 fields of 3"),
        (lambda: layers.FieldProjection((2, 3))(tf.ones((1, 3, 3))), "do not fit 3 fields of 3"),
    ],
)
def test_layers_refuse_what_does_not_fit(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize("form", ["all", "each", "interaction"])
def test_bilinear_matrices_are_shared_as_the_form_says(form: str) -> None:
    layer = layers.BilinearInteraction(form, seed=3)
    embeddings = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    found = layer(embeddings).numpy()
    matrices = layer.kernel.numpy().reshape(3, -1, 3)
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    for place, (i, j) in enumerate(pairs):
        matrix = matrices[:, {"all": 0, "each": i, "interaction": place}[form]]
        expected = (embeddings[:, i] @ matrix) * embeddings[:, j]
        np.testing.assert_allclose(found[:, place], expected, rtol=1e-5, atol=1e-6)


def test_short_embeddings_are_projected_each_by_its_own_matrix() -> None:
    dims = (2, 4, 1, 4, 2)
    layer = layers.FieldProjection(dims, seed=3)
    embeddings = np.random.default_rng(0).normal(size=(6, 5, 4)).astype(np.float32)
    found = layer(embeddings).numpy()
    kernels = {kernel.shape[1]: kernel.numpy() for kernel in layer.trainable_variables}
    assert {dim: kernel.shape for dim, kernel in kernels.items()} == {1: (1, 1, 4), 2: (2, 2, 4)}
    matrices = {0: kernels[2][0], 2: kernels[1][0], 4: kernels[2][1]}
    for field, dim in enumerate(dims):
        expected = embeddings[:, field]
        if field in matrices:
            expected = expected[:, :dim] @ matrices[field]
        np.testing.assert_allclose(found[:, field], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layer(np.zeros_like(embeddings)), 0)


def test_heads_of_a_fusion_meet_only_their_own_piece() -> None:
    layer = layers.BilinearFusion(2, seed=3)
    x, y = np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32)
    layer(x, y)
    layer.first_kernel.assign(tf.zeros((4, 1)))
    layer.second_kernel.assign(tf.zeros((4, 1)))
    same = layer(x, y).numpy()
    across = layer(x, y[[2, 3, 0, 1]]).numpy()
    assert np.all(same != 0)
    np.testing.assert_array_equal(across, 0)


def test_dense_layers_are_seeded_apart() -> None:
    mlp = layers.MLP((4, 4), seed=1)
    mlp.build((None, 4))
    first, second = (dense.kernel.numpy() for dense in mlp.dense_layers)
    assert not np.array_equal(first, second)
