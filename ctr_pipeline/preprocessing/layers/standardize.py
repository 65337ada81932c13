"""The layer of `standardize`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ctr_pipeline.kernels.float64 import usable_divisor
from ctr_pipeline.preprocessing.layers.number_layer import NumberLayer, clip_rows, scale_rows
from ctr_pipeline.preprocessing.layers.raw_layer import serves
from ctr_pipeline.transforms.standardize import StandardizeStep


@serves(StandardizeStep)
class Standardize(NumberLayer):
    """`(x - mean) / standard_deviation`, clipped to ± `clip`.

    Args:
        mean: Mean of the training rows.
        standard_deviation: Theirs as well; 0, a constant column, divides by 1.
        clip: Bound in deviations; None leaves the result as it is.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: The deviation is negative, or the clip not positive.

    Example:
        >>> Standardize(mean=1.0, standard_deviation=2.0, clip=3.0)([0.0, 2.0, 100.0]).numpy()
        array([-0.5,  0.5,  3. ], dtype=float32)
    """

    def __init__(
        self, mean: float, standard_deviation: float, clip: float | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        if standard_deviation < 0:
            raise ValueError(f"standard_deviation must not be negative, got {standard_deviation}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        self.mean = float(mean)
        self.standard_deviation = float(standard_deviation)
        self.clip = None if clip is None else float(clip)

    @staticmethod
    def of_rows(layers: Sequence["Standardize"], values: tf.Tensor) -> tf.Tensor:
        """As `NumberLayer.of_rows`."""
        divisors = [usable_divisor(one.standard_deviation) for one in layers]
        scaled = scale_rows(values, [one.mean for one in layers], divisors)
        clips = [one.clip for one in layers]
        return clip_rows(scaled, [None if clip is None else -clip for clip in clips], clips)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
            "clip": self.clip,
        }
