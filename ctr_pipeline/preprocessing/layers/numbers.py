"""Numbers to numbers: `Normalizer`, `Standardize`, `Log`, `Clip`, `Fill`.

All compute in float64 and give the layer's type, float32 unless `dtype` says otherwise. NaN means
missing and stays NaN, except in `Fill`.
"""

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


class _NumberLayer(ElementwiseLayer):
    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """The layer's function of floats or integers, in the layer's compute type."""
        return tf.cast(self._apply(as_number(values)), self.compute_dtype)

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """The layer's compute type."""
        check_number(dtype)
        return tf.as_dtype(self.compute_dtype)

    def _apply(self, values: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


def _scale(values: tf.Tensor, subtractor: float, divisor: float) -> tf.Tensor:
    centred = flush_subnormal(values - tf.constant(flush_scalar(subtractor), tf.float64))
    # Not `/`: TensorFlow's graph rewriter turns a division by a constant into a multiplication by
    # its reciprocal, which differs in the last bit. It leaves this operation alone.
    return flush_subnormal(tf.math.divide_no_nan(centred, tf.constant(divisor, tf.float64)))


def _clip(values: tf.Tensor, minimum: float | None, maximum: float | None) -> tf.Tensor:
    # Not tf.clip_by_value, whose result for NaN depends on the processor.
    if minimum is not None:
        bound = tf.constant(flush_scalar(minimum), tf.float64)
        values = tf.where(values < bound, bound, values)
    if maximum is not None:
        bound = tf.constant(flush_scalar(maximum), tf.float64)
        values = tf.where(values > bound, bound, values)
    return values


@keras.saving.register_keras_serializable(package=PACKAGE)
class Normalizer(_NumberLayer):
    """`(x - subtractor) / divisor`.

    Args:
        subtractor: What is subtracted.
        divisor: What is divided by.
        options: Of every Keras layer.

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

    def _apply(self, values: tf.Tensor) -> tf.Tensor:
        return _scale(values, self.subtractor, self.divisor)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "subtractor": self.subtractor,
            "divisor": self.divisor,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
class Standardize(_NumberLayer):
    """`(x - mean) / standard_deviation`, clipped to ± `clip`.

    Args:
        mean: Mean of the training rows.
        standard_deviation: Theirs as well; 0, a constant column, divides by 1.
        clip: Bound in deviations; None leaves the result as it is.
        options: Of every Keras layer.

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

    def _apply(self, values: tf.Tensor) -> tf.Tensor:
        scaled = _scale(values, self.mean, usable_divisor(self.standard_deviation))
        return scaled if self.clip is None else _clip(scaled, -self.clip, self.clip)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
            "clip": self.clip,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
class Log(_NumberLayer):
    """`log(1 + max(x, 0))`, natural.

    The value agrees with the kernel's to 1e-14 relative, and with the exact one likewise; ids are
    never computed from it.

    Example:
        >>> Log()([-1.0, 0.0, 1.0, float("nan")]).numpy()
        array([0.       , 0.       , 0.6931472,       nan], dtype=float32)
    """

    def _apply(self, values: tf.Tensor) -> tf.Tensor:
        zero = tf.constant(0.0, tf.float64)
        return flush_subnormal(tf.math.log1p(tf.where(values < zero, zero, values)))


@keras.saving.register_keras_serializable(package=PACKAGE)
class Clip(_NumberLayer):
    """x within [minimum, maximum].

    Args:
        minimum: Smallest value; None: no bound.
        maximum: Largest value; None: no bound.
        options: Of every Keras layer.

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

    def _apply(self, values: tf.Tensor) -> tf.Tensor:
        return _clip(values, self.minimum, self.maximum)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "minimum": self.minimum, "maximum": self.maximum}


@keras.saving.register_keras_serializable(package=PACKAGE)
class Fill(_NumberLayer):
    """`value` in place of NaN.

    Args:
        value: What a missing value becomes.
        options: Of every Keras layer.

    Example:
        >>> Fill(-1.0)([2.0, float("nan")]).numpy()
        array([ 2., -1.], dtype=float32)
    """

    def __init__(self, value: float, **options: Any) -> None:
        super().__init__(**options)
        self.value = float(value)

    def _apply(self, values: tf.Tensor) -> tf.Tensor:
        value = tf.constant(flush_scalar(self.value), tf.float64)
        return tf.where(tf.math.is_nan(values), value, values)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "value": self.value}
