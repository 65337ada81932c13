"""Several columns to one bucket: `HashedCrossing`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keras
import tensorflow as tf

from ctr_pipeline.kernels.crosses import MISSING
from ctr_pipeline.preprocessing.layers.raw_layer import (
    RawLayer,
    as_number,
    as_text,
    build_layer,
    serves,
)
from ctr_pipeline.transforms.cross import CrossStep


@serves(CrossStep)
class HashedCrossing(RawLayer):
    """FarmHash Fingerprint64 of several values at once, modulo `num_bins`.

    Every value is a text; it is written as its length in bytes, a colon and its bytes, a missing
    one as a hyphen, and all of a row one after another are hashed. So (`ab`, `c`) and (`a`, `bc`)
    differ, and a missing value is one of its own.

    Args:
        num_bins: Number of buckets.
        missing_id: Id where all values are missing; None: the bucket of that, as of any other.
        number_layers: For each input, the layer that makes ids of numbers, by which they are
            crossed; None for texts and integers. NaN is missing, whatever id it has.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: num_bins is below 1.

    Example:
        >>> HashedCrossing(1000)([["ab", "a"], ["c", "bc"]]).numpy()
        array([681, 884])
    """

    def __init__(
        self,
        num_bins: int,
        *,
        missing_id: int | None = None,
        number_layers: Sequence[keras.layers.Layer | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        self.num_bins = int(num_bins)
        self.missing_id = missing_id
        self.number_layers = None if number_layers is None else list(number_layers)

    def call(self, inputs: Sequence[Any]) -> tf.Tensor:
        """Buckets of the inputs.

        Args:
            inputs: Two or more tensors of one shape: texts, integers, or numbers where a layer
                makes ids of them. '' is missing.

        Returns:
            int64, the same shape.

        Raises:
            ValueError: Fewer than two inputs, or another number of them than of layers.
        """
        layers = self.number_layers or [None] * len(inputs)
        if len(inputs) < 2 or len(layers) != len(inputs):
            raise ValueError(f"{len(inputs)} inputs to cross, with {len(layers)} layers")
        texts = [_part(value, layer) for value, layer in zip(inputs, layers, strict=True)]
        written = [
            tf.where(
                tf.equal(text, ""),
                MISSING,
                tf.strings.join([tf.strings.as_string(tf.strings.length(text)), ":", text]),
            )
            for text in texts
        ]
        joined = tf.strings.join(written)
        ids = tf.strings.to_hash_bucket_fast(joined, self.num_bins)
        if self.missing_id is None:
            return ids
        missing = tf.constant(self.missing_id, tf.int64)
        return tf.where(tf.equal(joined, MISSING * len(written)), missing, ids)

    def compute_output_shape(self, input_shape: Sequence[Any]) -> Any:
        """The shape of an input."""
        return input_shape[0]

    def compute_output_spec(self, inputs: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
        """int64, of the shape of an input."""
        return keras.KerasTensor(inputs[0].shape, "int64")

    @classmethod
    def of_step(cls, step: Any, folder: Path) -> Self:
        """Makes the layer, with a layer for each part that is a number."""
        layers = [
            None if part.step is None else build_layer(part.step, folder) for part in step.parts
        ]
        return cls(step.num_bins, missing_id=step.missing_id, number_layers=layers)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        layers = self.number_layers
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "missing_id": self.missing_id,
            "number_layers": None
            if layers is None
            else [
                None if layer is None else keras.saving.serialize_keras_object(layer)
                for layer in layers
            ],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HashedCrossing":
        """The layer of a config that `get_config` gave."""
        layers = config.get("number_layers")
        if layers is not None:
            layers = [
                None if layer is None else keras.saving.deserialize_keras_object(layer)
                for layer in layers
            ]
        return cls(**{**config, "number_layers": layers})


def _part(value: Any, layer: keras.layers.Layer | None) -> tf.Tensor:
    if layer is None:
        return as_text(value)
    number = as_number(value)
    return tf.where(tf.math.is_nan(number), "", tf.strings.as_string(layer(number)))
