"""The layer of `normalize`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ctr_pipeline.kernels.float64 import flush_scalar
from ctr_pipeline.preprocessing.layers.number_layer import NumberLayer, scale_rows
from ctr_pipeline.preprocessing.layers.raw_layer import serves
from ctr_pipeline.transforms.normalize import NormalizeStep


@serves(NormalizeStep)
class Normalizer(NumberLayer):
    """`(x - subtractor) / divisor`.

    Args:
        subtractor: What is subtracted.
        divisor: What is divided by.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: The divisor is 0, or so small that TensorFlow takes it for 0.

    Example:
        >>> Normalizer(subtractor=1.0, divisor=2.0)([[3.0], [5.0], [7.0]]).numpy()
        array([[1.],
               [2.],
               [3.]], dtype=float32)
    """

    def __init__(self, subtractor: float, divisor: float, **options: Any) -> None:
        super().__init__(**options)
        if flush_scalar(divisor) == 0:
            raise ValueError("divisor must not be 0 or subnormal")
        self.subtractor = float(subtractor)
        self.divisor = float(divisor)

    @staticmethod
    def of_rows(layers: Sequence["Normalizer"], values: tf.Tensor) -> tf.Tensor:
        """As `NumberLayer.of_rows`."""
        return scale_rows(
            values, [one.subtractor for one in layers], [one.divisor for one in layers]
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "subtractor": self.subtractor,
            "divisor": self.divisor,
        }
