"""Numbers to numbers: `Normalizer`, `Standardize`, `Log`, `Clip`, `Fill`.

All compute in float64 and give the layer's type, float32 unless `dtype` says otherwise. NaN means
missing and stays NaN, except in `Fill`.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ctr_pipeline.preprocessing.arrow_values import flush_scalar, usable_divisor
from ctr_pipeline.preprocessing.layers.raw_layer import (
    PACKAGE,
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


def _constants(numbers: Sequence[float]) -> tf.Tensor:
    """One number, or one for each row."""
    return tf.constant(numbers[0] if len(numbers) == 1 else [[one] for one in numbers], tf.float64)


def _scale(values: tf.Tensor, subtractors: Sequence[float], divisors: Sequence[float]) -> tf.Tensor:
    centred = flush_subnormal(values - _constants([flush_scalar(one) for one in subtractors]))
    # Not `/`: TensorFlow's graph rewriter turns a division by a constant into a multiplication by
    # its reciprocal, which differs in the last bit. It leaves this operation alone.
    return flush_subnormal(tf.math.divide_no_nan(centred, _constants(divisors)))


def _clip(
    values: tf.Tensor, minima: Sequence[float | None], maxima: Sequence[float | None]
) -> tf.Tensor:
    # Not tf.clip_by_value, whose result for NaN depends on the processor.
    if any(one is not None for one in minima):
        low = _constants([-math.inf if one is None else flush_scalar(one) for one in minima])
        values = tf.where(values < low, low, values)
    if any(one is not None for one in maxima):
        high = _constants([math.inf if one is None else flush_scalar(one) for one in maxima])
        values = tf.where(values > high, high, values)
    return values


@keras.saving.register_keras_serializable(package=PACKAGE)
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
        return _scale(values, [one.subtractor for one in layers], [one.divisor for one in layers])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "subtractor": self.subtractor,
            "divisor": self.divisor,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
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
        scaled = _scale(values, [one.mean for one in layers], divisors)
        clips = [one.clip for one in layers]
        return _clip(scaled, [None if clip is None else -clip for clip in clips], clips)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
            "clip": self.clip,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
class Log(NumberLayer):
    """`log(1 + max(x, 0))`, natural.

    The value agrees with the kernel's to 1e-14 relative, and with the exact one likewise; ids are
    never computed from it.

    Example:
        >>> Log()([-1.0, 0.0, 1.0, float("nan")]).numpy()
        array([0.       , 0.       , 0.6931472,       nan], dtype=float32)
    """

    @staticmethod
    def of_rows(layers: Sequence["Log"], values: tf.Tensor) -> tf.Tensor:
        """As `NumberLayer.of_rows`."""
        del layers
        zero = tf.constant(0.0, tf.float64)
        return flush_subnormal(tf.math.log1p(tf.where(values < zero, zero, values)))


@keras.saving.register_keras_serializable(package=PACKAGE)
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
        return _clip(values, [one.minimum for one in layers], [one.maximum for one in layers])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "minimum": self.minimum, "maximum": self.maximum}


@keras.saving.register_keras_serializable(package=PACKAGE)
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
        filled = _constants([flush_scalar(one.value) for one in layers])
        return tf.where(tf.math.is_nan(values), filled, values)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "value": self.value}
