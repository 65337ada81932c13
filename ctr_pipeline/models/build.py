"""The Keras model that a config names."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Literal

import keras

from ctr_pipeline.errors import ModelError
from ctr_pipeline.models.inputs import ModelSignature, build_inputs
from ctr_pipeline.specs.model_kinds import ModelConfig


def build_model(
    config: ModelConfig,
    signature: ModelSignature,
    *,
    seed: int,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> keras.Model:
    """Builds the model that the config names.

    The logit of all but `custom` is b + Σ_f linear_BF + numbers · w_n + the architecture's own
    parts; b starts at the logit of the base rate and w_n at zero.

    Args:
        config: The `model:` section.
        signature: Sizes of the inputs.
        seed: Seed of initial weights and dropout; equal seeds give equal models.
        precision: What layers compute in; variables, inputs and logits are float32 in either case.
            With bfloat16, products of matrices have Keras's policy `mixed_bfloat16`, after
            Micikevicius et al. 2018, "Mixed Precision Training" (arXiv:1710.03740); since bfloat16
            reaches as far as float32, no loss is scaled (Kalamkar et al. 2019, arXiv:1905.12322).

    Returns:
        A model from the inputs {"embeddings": (batch, fields, dim), "linear": (batch, fields),
        "numbers": (batch, numbers)}, float32, to logits (batch,); with sequences in the signature,
        of "elements": (batch, positions, dim) and "coefficients": (batch, positions) as well. Its
        only variables beside the trainable ones are states of seed generators.

    Raises:
        ValueError: There is no feature.
        ModelError: The user's own file is at fault.
    """
    inputs = build_inputs(signature, seed=seed)
    with _computing_in(precision):
        architecture = import_module(f"ctr_pipeline.models.{config.name}")
        logit_B = architecture.build(inputs, config, seed)
    try:
        model = keras.Model(inputs.as_dict(), logit_B, name=config.name)
    except ValueError as error:
        if config.code_file is None:
            raise
        raise ModelError(
            f"the layers make no model: {error}",
            place=config.code_file,
            remedy="Make the logits from the inputs given, each layer with a name of its own",
        ) from error
    _check_state(model, config)
    return model


@contextmanager
def _computing_in(precision: str) -> Iterator[None]:
    """Layers that are made inside, and name no type of their own, compute in this."""
    if precision == "float32":
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _check_state(model: keras.Model, config: ModelConfig) -> None:
    """Refuses state that gradients do not train; seed generators are no such state."""
    if model.non_trainable_weights:
        names = ", ".join(weight.path for weight in model.non_trainable_weights)
        raise ModelError(
            f"the model has state that gradients do not train: {names}",
            place=config.code_file,
            remedy="Leave out batch normalisation, frozen layers and counters",
        )
    if not model.trainable_weights:
        raise ModelError(
            "the model has nothing to train", place=config.code_file, remedy="Give it a layer"
        )
