"""The layer of `clip`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ctr_pipeline.preprocessing.layers.number_layer import NumberLayer, clip_rows
from ctr_pipeline.preprocessing.layers.raw_layer import serves
from ctr_pipeline.transforms import clip as transforms


@serves(transforms.Clip)
class Clip(NumberLayer):
    """x within [minimum, maximum].

    Args:
        minimum: Smallest value; None: no bound.
        maximum: Largest value; None: no bound.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: Both are None, or the minimum is above the maximum.

    Example:
        >>> Clip(minimum=0.0, maximum=10.0)([-3.0, 3.0, 30.0]).numpy()
        array([ 0.,  3., 10.], dtype=float32)
    """

    def __init__(
        self, minimum: float | None = None, maximum: float | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        if minimum is None and maximum is None:
            raise ValueError("needs a minimum, a maximum, or both")
        if minimum is not None and maximum is not None and not minimum <= maximum:
            raise ValueError(f"minimum {minimum} is above maximum {maximum}")
        self.minimum = None if minimum is None else float(minimum)
        self.maximum = None if maximum is None else float(maximum)

    @staticmethod
    def of_rows(layers: Sequence["Clip"], values: tf.Tensor) -> tf.Tensor:
        """As `NumberLayer.of_rows`."""
        return clip_rows(values, [one.minimum for one in layers], [one.maximum for one in layers])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "minimum": self.minimum, "maximum": self.maximum}
