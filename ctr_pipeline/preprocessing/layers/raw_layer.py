"""What all preprocessing layers share: inputs as they are, never converted by Keras.

Keras would turn every float input into the layer's compute type and fail on text. These layers
take float64, integers and text as they come and convert them here.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ctr_pipeline.preprocessing.arrow_values import SMALLEST_NORMAL, SMALLEST_NORMAL_FLOAT32


class RawLayer(keras.layers.Layer):
    """A layer without weights to train, over dense tensors of any rank and type."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Keras 3 would cast float64 to float32 and refuse text.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        # XLA has no text, and rewrites divisions.
        self.supports_jit = False

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The shape of the input."""
        return input_shape


def as_tensor(inputs: Any) -> tf.Tensor:
    """A tensor of the inputs' own type; Python floats are float64."""
    if tf.is_tensor(inputs):
        return inputs
    if isinstance(inputs, keras.KerasTensor | keras.Variable):
        return tf.convert_to_tensor(inputs)
    array = np.asarray(inputs)
    # NumPy's fixed-width text drops trailing zero bytes, so text is taken as it came.
    return tf.convert_to_tensor(inputs if array.dtype.kind in "SUO" else array)


def as_number(inputs: Any) -> tf.Tensor:
    """float64 without subnormal numbers.

    TensorFlow's threads flush subnormal numbers to zero, its main thread may not: making them 0
    here gives one result on both.

    Raises:
        TypeError: The inputs are text.
    """
    tensor = as_tensor(inputs)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(f"expects numbers, got {tensor.dtype.name}")
    if tensor.dtype == tf.float32:
        return tf.cast(flush_subnormal(tensor, SMALLEST_NORMAL_FLOAT32), tf.float64)
    return flush_subnormal(tf.cast(tensor, tf.float64))


def as_text(inputs: Any) -> tf.Tensor:
    """Text; integers become their decimal text.

    Raises:
        TypeError: The inputs are neither.
    """
    tensor = as_tensor(inputs)
    if tensor.dtype.is_integer:
        return tf.strings.as_string(tensor)
    if tensor.dtype != tf.string:
        raise TypeError(f"expects text or integers, got {tensor.dtype.name}")
    return tensor


def flush_subnormal(values: tf.Tensor, smallest: float = SMALLEST_NORMAL) -> tf.Tensor:
    """`values` with 0 in place of magnitudes below `smallest`; NaN stays."""
    return tf.where(tf.abs(values) < smallest, tf.zeros_like(values), values)
