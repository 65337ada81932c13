"""Text to numbers, and numbers to another type: `ToNumber`."""

from typing import Any

import keras
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.raw_layer import PACKAGE, ElementwiseLayer, is_number


@keras.saving.register_keras_serializable(package=PACKAGE)
class ToNumber(ElementwiseLayer):
    """Text as the number it writes, and numbers as another type; missing values as the default.

    Missing is the empty text and, where the result is an integer, NaN. Floats lose their fraction
    on the way to integers.

    Args:
        out_type: A type of numbers: `tf.int32`, `"float32"`.
        default_value: What a missing value becomes.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: `out_type` is no type of numbers, or has no such value as the default.
        tf.errors.InvalidArgumentError: When called: a text is no number, or a number is beyond the
            range of `out_type`.

    Example:
        >>> ToNumber(tf.int32, default_value=-1)([["123", ""], ["456", "-789"]]).numpy()
        array([[ 123,   -1],
               [ 456, -789]], dtype=int32)
    """

    def __init__(self, out_type: tf.DType | str, default_value: float, **options: Any) -> None:
        super().__init__(**options)
        self.out_type = _number_type(out_type)
        self.default_value = _value_of(self.out_type, default_value)

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """The numbers, of `out_type`."""
        self.result_dtype(values.dtype)
        default = tf.constant(self.default_value, self.out_type)
        if values.dtype == tf.string:
            missing = tf.equal(values, "")
            parsed = tf.strings.to_number(tf.where(missing, "0", values), self._parsed_type())
            return tf.where(missing, default, self._converted(parsed))
        if values.dtype.is_floating and self.out_type.is_integer:
            missing = tf.math.is_nan(values)
            known = tf.where(missing, tf.zeros_like(values), values)
            return tf.where(missing, default, self._converted(known))
        return self._converted(values)

    def _parsed_type(self) -> tf.DType:
        """What TensorFlow reads text as: it knows four types."""
        if self.out_type in {tf.int32, tf.float32}:
            return self.out_type
        return tf.int64 if self.out_type.is_integer else tf.float64

    def _converted(self, values: tf.Tensor) -> tf.Tensor:
        if not self.out_type.is_integer or values.dtype in {self.out_type, tf.bool}:
            return tf.cast(values, self.out_type)
        # A cast alone would wrap around, or give what the processor happens to give.
        message = f"a number is beyond the range of {self.out_type.name}"
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all(self._within(values)), [message, values])]
        ):
            return tf.cast(values, self.out_type)

    def _within(self, values: tf.Tensor) -> tf.Tensor:
        """bool: which of the numbers `out_type` can hold, their fraction dropped."""
        smallest, largest = self.out_type.min, self.out_type.max
        if values.dtype.is_floating:
            whole = tf.cast(values, tf.float64)
            whole = tf.where(whole < 0.0, tf.math.ceil(whole), tf.math.floor(whole))
            # The largest 64-bit integers are no float64, but the number after them is.
            return (whole >= float(smallest)) & (whole < float(largest + 1))
        source = values.dtype
        within = tf.ones_like(values, tf.bool)
        if source.min < smallest:
            within &= values >= tf.constant(smallest, source)
        if source.max > largest:
            within &= values <= tf.constant(largest, source)
        return within

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """`out_type`."""
        if not (is_number(dtype) or dtype in {tf.string, tf.bool}):
            raise TypeError(f"expects text or numbers, got {dtype.name}")
        return self.out_type

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "out_type": self.out_type.name,
            "default_value": self.default_value,
        }


def _number_type(out_type: tf.DType | str) -> tf.DType:
    try:
        dtype = tf.as_dtype(out_type)
    except TypeError:
        dtype = None
    if dtype is None or not is_number(dtype) or dtype.is_quantized:
        raise ValueError(f"out_type must be a type of numbers such as tf.int32, got {out_type!r}")
    return dtype


def _value_of(dtype: tf.DType, value: float) -> float | int:
    """The default as a Python number that the type can hold."""
    if not dtype.is_integer:
        return float(value)
    if not float(value).is_integer() or not dtype.min <= value <= dtype.max:
        raise ValueError(f"default_value {value} is no {dtype.name}")
    return int(value)
