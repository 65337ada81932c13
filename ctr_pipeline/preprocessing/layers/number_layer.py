"""What layers from numbers to numbers share.

All compute in float64 and give the layer's type, float32 unless `dtype` says otherwise. NaN means
missing and stays NaN, except in `Fill`.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ctr_pipeline.kernels.float64 import flush_scalar
from ctr_pipeline.preprocessing.layers.raw_layer import (
    ElementwiseLayer,
    as_number,
    check_number,
    flush_subnormal,
)


class NumberLayer(ElementwiseLayer):
    """A layer from numbers to numbers."""

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """The layer's function of floats or integers, in the layer's compute type."""
        return tf.cast(self.of_rows([self], as_number(values)), self.compute_dtype)

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """The layer's compute type."""
        check_number(dtype)
        return tf.as_dtype(self.compute_dtype)

    @staticmethod
    def of_rows(layers: Sequence[Any], values: tf.Tensor) -> tf.Tensor:
        """What layers of one class make of float64 values without subnormal ones, as float64.

        Args:
            layers: One, of values of any shape; or C of them, each of a row of [C, B] values. A
                graph of a few operations for many columns is built, saved and loaded in a
                fraction of the time that one for each column takes.
            values: Their values.
        """
        raise NotImplementedError


def constants(numbers: Sequence[float]) -> tf.Tensor:
    """Returns one float64 number, or one for each row."""
    return tf.constant(numbers[0] if len(numbers) == 1 else [[one] for one in numbers], tf.float64)


def scale_rows(
    values: tf.Tensor, subtractors: Sequence[float], divisors: Sequence[float]
) -> tf.Tensor:
    """Computes `(x - subtractor) / divisor` of each row."""
    centred = flush_subnormal(values - constants([flush_scalar(one) for one in subtractors]))
    # Not `/`: TensorFlow's graph rewriter turns a division by a constant into a multiplication by
    # its reciprocal, which differs in the last bit. It leaves this operation alone.
    return flush_subnormal(tf.math.divide_no_nan(centred, constants(divisors)))


def clip_rows(
    values: tf.Tensor, minima: Sequence[float | None], maxima: Sequence[float | None]
) -> tf.Tensor:
    """Clips each row to its bounds; None is no bound."""
    # Not tf.clip_by_value, whose result for NaN depends on the processor.
    if any(one is not None for one in minima):
        low = constants([-math.inf if one is None else flush_scalar(one) for one in minima])
        values = tf.where(values < low, low, values)
    if any(one is not None for one in maxima):
        high = constants([math.inf if one is None else flush_scalar(one) for one in maxima])
        values = tf.where(values > high, high, values)
    return values
