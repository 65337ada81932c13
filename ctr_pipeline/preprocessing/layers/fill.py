"""The layer of `fill`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ctr_pipeline.kernels.float64 import flush_scalar
from ctr_pipeline.preprocessing.layers.number_layer import NumberLayer, constants
from ctr_pipeline.preprocessing.layers.raw_layer import serves
from ctr_pipeline.transforms import fill as transforms


@serves(transforms.Fill)
class Fill(NumberLayer):
    """`value` in place of NaN.

    Args:
        value: What a missing value becomes.
        options: Keyword arguments of `keras.layers.Layer`.

    Example:
        >>> Fill(-1.0)([2.0, float("nan")]).numpy()
        array([ 2., -1.], dtype=float32)
    """

    def __init__(self, value: float, **options: Any) -> None:
        super().__init__(**options)
        self.value = float(value)

    @staticmethod
    def of_rows(layers: Sequence["Fill"], values: tf.Tensor) -> tf.Tensor:
        """As `NumberLayer.of_rows`."""
        filled = constants([flush_scalar(one.value) for one in layers])
        return tf.where(tf.math.is_nan(values), filled, values)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "value": self.value}
