"""What all preprocessing layers share: inputs as they are, never converted by Keras.

Keras would turn every float input into the layer's compute type, fail on text, and densify sparse
tensors. These layers take float64, integers, text, ragged and sparse tensors as they come and
convert them here.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Self, TypeVar

import keras
import numpy as np
import tensorflow as tf

from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL, SMALLEST_NORMAL_FLOAT32
from ctr_pipeline.transforms.base import IdStep, Step

PACKAGE = "ctr_pipeline"
"""The name that Keras registers the layers under."""


class RawLayer(keras.layers.Layer):
    """A layer over tensors of any rank and type: dense, `tf.RaggedTensor` or `tf.SparseTensor`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Keras 3 would cast float64 to float32, refuse text and densify sparse tensors.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        # XLA has no text, and rewrites divisions.
        self.supports_jit = False

    @classmethod
    def of_step(cls, step: Any, folder: Path) -> Self:
        """Makes the layer of a fitted step.

        A step's fields are the arguments of its layer, unless the layer says otherwise here.

        Args:
            step: The step that the layer serves.
            folder: The run folder, below which vocabulary files lie.
        """
        del folder
        # Numbers stay float64 until the end of their chain.
        options = {} if isinstance(step, IdStep) else {"dtype": "float64"}
        return cls(**step.model_dump(exclude={"name"}), **options)


LayerT = TypeVar("LayerT", bound=RawLayer)
_LAYERS: dict[type[Step], type[RawLayer]] = {}


def serves(step: type[Step]) -> Callable[[type[LayerT]], type[LayerT]]:
    """Registers a layer with Keras, and as what serves a step in the exported model."""

    def register(layer: type[LayerT]) -> type[LayerT]:
        _LAYERS[step] = layer
        keras.saving.register_keras_serializable(package=PACKAGE)(layer)
        return layer

    return register


def build_layer(step: Step, folder: Path) -> Any:
    """Makes the layer that serves a fitted step.

    Args:
        step: The step.
        folder: The run folder, below which vocabulary files lie.
    """
    if type(step) not in _LAYERS:
        import_layers()
    return _LAYERS[type(step)].of_step(step, folder)


def import_layers() -> None:
    """Imports every module of this package, so that all layers are registered."""
    package = __name__.rpartition(".")[0]
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"{package}.{module.name}")


class ElementwiseLayer(RawLayer):
    """A layer that gives one value for each value, and keeps the structure around them.

    Values of a ragged tensor are its `flat_values`; those of a sparse tensor are the ones it holds,
    so that what is absent stays absent.
    """

    def call(self, inputs: Any) -> Any:
        """The result for each value of the inputs.

        Args:
            inputs: A dense, ragged or sparse tensor of any shape, or what NumPy makes an array of.

        Returns:
            The same kind of tensor with the same shape.
        """
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self.of_values(inputs.values))
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.of_values(inputs.flat_values))
        return self.of_values(as_tensor(inputs))

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """The result for each value of a dense tensor, of the same shape."""
        raise NotImplementedError

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """The type of the results for inputs of `dtype`.

        Raises:
            TypeError: The layer does not take such inputs.
        """
        raise NotImplementedError

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The shape of the input."""
        return input_shape

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """The input's shape and structure with the type of the results."""
        return spec_like(inputs, self.result_dtype(tf.as_dtype(inputs.dtype)))


def spec_like(tensor: keras.KerasTensor, dtype: tf.DType) -> keras.KerasTensor:
    """A symbolic tensor of the shape and structure of `tensor`, and another type."""
    return keras.KerasTensor(tensor.shape, dtype.name, sparse=tensor.sparse, ragged=tensor.ragged)


def as_tensor(inputs: Any) -> tf.Tensor:
    """A tensor of the inputs' own type; Python floats are float64."""
    if tf.is_tensor(inputs):
        return inputs
    if isinstance(inputs, keras.KerasTensor | keras.Variable):
        return tf.convert_to_tensor(inputs)
    array = np.asarray(inputs)
    # NumPy's fixed-width text drops trailing zero bytes, so text is taken as it came.
    return tf.convert_to_tensor(inputs if array.dtype.kind in "SUO" else array)


def is_number(dtype: tf.DType) -> bool:
    """Whether values of this type are floats or integers."""
    return bool(dtype.is_floating or dtype.is_integer)


def check_number(dtype: tf.DType) -> None:
    """Refuses text.

    Raises:
        TypeError: It is no type of numbers.
    """
    if not is_number(dtype):
        raise TypeError(f"expects numbers, got {dtype.name}")


def check_text(dtype: tf.DType) -> None:
    """Refuses what is neither text nor integers.

    Raises:
        TypeError: It is neither.
    """
    if dtype != tf.string and not dtype.is_integer:
        raise TypeError(f"expects text or integers, got {dtype.name}")


def as_number(inputs: Any) -> tf.Tensor:
    """float64 without subnormal numbers.

    TensorFlow's threads flush subnormal numbers to zero, its main thread may not: making them 0
    here gives one result on both.

    Raises:
        TypeError: The inputs are text.
    """
    tensor = as_tensor(inputs)
    check_number(tensor.dtype)
    if tensor.dtype == tf.float32:
        return tf.cast(flush_subnormal(tensor, SMALLEST_NORMAL_FLOAT32), tf.float64)
    return flush_subnormal(tf.cast(tensor, tf.float64))


def as_text(inputs: Any) -> tf.Tensor:
    """Text; integers become their decimal text.

    Raises:
        TypeError: The inputs are neither.
    """
    tensor = as_tensor(inputs)
    check_text(tensor.dtype)
    return tf.strings.as_string(tensor) if tensor.dtype.is_integer else tensor


def flush_subnormal(values: tf.Tensor, smallest: float = SMALLEST_NORMAL) -> tf.Tensor:
    """`values` with 0 in place of magnitudes below `smallest`; NaN stays."""
    return tf.where(tf.abs(values) < smallest, tf.zeros_like(values), values)
