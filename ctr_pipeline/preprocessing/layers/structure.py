"""Dense tensors to ragged and to sparse ones: `ToRagged`, `ToSparse`."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.raw_layer import (
    PACKAGE,
    RawLayer,
    as_tensor,
    is_number,
    spec_like,
)


class _IgnoringLayer(RawLayer):
    """A layer that leaves out the values equal to `ignore_value`."""

    def __init__(self, ignore_value: str | float | None, **options: Any) -> None:
        super().__init__(**options)
        if isinstance(ignore_value, np.generic):
            ignore_value = ignore_value.item()
        known = ignore_value is None or isinstance(ignore_value, str | int | float)
        if not known or isinstance(ignore_value, bool):
            raise ValueError(f"ignore_value must be text or a number, got {ignore_value!r}")
        self.ignore_value = ignore_value

    def _ignored(self, dtype: tf.DType) -> str | float | None:
        """What is left out of values of this type.

        Raises:
            TypeError: The values are neither text nor numbers, or cannot equal `ignore_value`.
        """
        if dtype != tf.string and not is_number(dtype):
            raise TypeError(f"expects text or numbers, got {dtype.name}")
        value = self.ignore_value
        if value is None:
            if dtype == tf.string:
                return ""
            return -1 if dtype.is_integer and dtype.min < 0 else self._ignored_float(dtype)
        fits = isinstance(value, str) == (dtype == tf.string)
        if fits and dtype.is_integer:
            fits = float(value).is_integer() and dtype.min <= value <= dtype.max
        if not fits:
            raise TypeError(
                f"ignore_value {value!r} cannot stand among values of type {dtype.name}"
            )
        return value

    def _ignored_float(self, dtype: tf.DType) -> float | None:
        raise NotImplementedError

    def _kept(self, values: tf.Tensor) -> tf.Tensor:
        """bool, the shape of the values: which of them stay."""
        ignored = self._ignored(values.dtype)
        if ignored is None:
            return tf.ones_like(values, tf.bool)
        if isinstance(ignored, float) and math.isnan(ignored):
            return tf.logical_not(tf.math.is_nan(values))
        return tf.not_equal(values, tf.constant(ignored, values.dtype))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "ignore_value": self.ignore_value}


@keras.saving.register_keras_serializable(package=PACKAGE)
class ToRagged(_IgnoringLayer):
    """A `tf.RaggedTensor` of the values that count, text cut at its separators.

    The parts of a text take its place in its row, so that `["1,2", "3"]` becomes `["1", "2", "3"]`.

    Args:
        sep: Where text is cut; None leaves it whole.
        ignore_value: Values left out, after the cut. None: `""` of text, -1 of signed integers;
            none of floats and unsigned integers.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: `sep` is empty, or, when called, the inputs have no rows: numbers of rank 1.
        TypeError: When called: the inputs are sparse, or of a type that `ignore_value` is not of.

    Example:
        >>> ToRagged()([["1,2,3"], ["4,5"], [""]])
        <tf.RaggedTensor [[b'1', b'2', b'3'], [b'4', b'5'], []]>
        >>> ToRagged()([[1], [-1], [4]])
        <tf.RaggedTensor [[1], [], [4]]>
    """

    def __init__(
        self, sep: str | None = ",", ignore_value: str | float | None = None, **options: Any
    ) -> None:
        super().__init__(ignore_value, **options)
        if sep == "":
            raise ValueError("sep must not be empty; None leaves text whole")
        self.sep = sep

    def call(self, inputs: Any) -> tf.RaggedTensor:
        """The values that count.

        Args:
            inputs: Text or numbers, dense or ragged; text of any rank above 0, numbers of rank 2 or
                more. A text of rank 1 is a row by itself.

        Returns:
            The same rows, of ragged lengths; text of rank 1 gains a dimension.
        """
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError(_NO_SPARSE)
        if not isinstance(inputs, tf.RaggedTensor):
            inputs = as_tensor(inputs)
        # Refused here, before any tensor is made of them.
        self._ignored(inputs.dtype)
        rank = self._rank_of_result(inputs.shape.rank, inputs.dtype)
        if inputs.shape.rank < rank:
            rows = tf.strings.split(inputs, self.sep)
        else:
            rows = _fully_ragged(inputs)
            if inputs.dtype == tf.string and self.sep is not None:
                parts = tf.strings.split(rows.flat_values, self.sep)
                rows = rows.with_flat_values(parts).merge_dims(-2, -1)
        return tf.ragged.boolean_mask(rows, rows.with_flat_values(self._kept(rows.flat_values)))

    def _rank_of_result(self, rank: int | None, dtype: tf.DType) -> int:
        if rank is None:
            raise ValueError("expects inputs of a known rank")
        if rank >= 2:
            return rank
        if rank == 1 and dtype == tf.string and self.sep is not None:
            return 2
        raise ValueError(f"expects rows of values, [batch, values], got rank {rank}")

    def _ignored_float(self, dtype: tf.DType) -> float | None:
        return None

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Ragged in every dimension but the first."""
        if inputs.sparse:
            raise TypeError(_NO_SPARSE)
        dtype = tf.as_dtype(inputs.dtype)
        self._ignored(dtype)
        rank = self._rank_of_result(len(inputs.shape), dtype)
        shape = (inputs.shape[0], *[None] * (rank - 1))
        return keras.KerasTensor(shape, dtype.name, ragged=True)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "sep": self.sep}


_NO_SPARSE = "expects a dense or ragged tensor; tf.RaggedTensor.from_sparse converts a sparse one"


def _fully_ragged(inputs: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
    """Every dimension but the first ragged, so that `flat_values` has rank 1."""
    if not isinstance(inputs, tf.RaggedTensor):
        return tf.RaggedTensor.from_tensor(inputs, ragged_rank=inputs.shape.rank - 1)
    inner_rank = inputs.flat_values.shape.rank
    if inner_rank == 1:
        return inputs
    inner = tf.RaggedTensor.from_tensor(inputs.flat_values, ragged_rank=inner_rank - 1)
    return inputs.with_flat_values(inner)


@keras.saving.register_keras_serializable(package=PACKAGE)
class ToSparse(_IgnoringLayer):
    """A `tf.SparseTensor` of the values that count, each at its place in the dense or ragged input.

    A sparse tensor stays as it is.

    Args:
        ignore_value: Values left out. None: `""` of text, -1 of signed integers, 0 of unsigned
            integers and floats.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        TypeError: When called: the inputs are of a type that `ignore_value` is not of.

    Example:
        >>> ToSparse()([["A", ""], ["B", "C"]]).values.numpy()
        array([b'A', b'B', b'C'], dtype=object)
        >>> ToSparse(ignore_value=0)([[3, 0], [0, 0]]).indices.numpy()
        array([[0, 0]])
    """

    def __init__(self, ignore_value: str | float | None = None, **options: Any) -> None:
        super().__init__(ignore_value, **options)

    def call(self, inputs: Any) -> tf.SparseTensor:
        """The values that count.

        Args:
            inputs: Text or numbers, dense, ragged or sparse, of rank 1 or more.

        Returns:
            The dense shape is that of the inputs; of a ragged tensor that of its longest rows.
        """
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        if isinstance(inputs, tf.RaggedTensor):
            whole = inputs.to_sparse()
            return tf.sparse.retain(whole, self._kept(whole.values))
        tensor = as_tensor(inputs)
        if tensor.shape.rank == 0:
            raise ValueError("expects a tensor of rank 1 or more, got a single value")
        indices = tf.where(self._kept(tensor))
        return tf.SparseTensor(
            indices, tf.gather_nd(tensor, indices), tf.shape(tensor, out_type=tf.int64)
        )

    def _ignored_float(self, dtype: tf.DType) -> float | None:
        return 0 if dtype.is_integer else 0.0

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """The shape of the input, sparse."""
        dtype = tf.as_dtype(inputs.dtype)
        self._ignored(dtype)
        if inputs.sparse:
            return spec_like(inputs, dtype)
        return keras.KerasTensor(inputs.shape, dtype.name, sparse=True)
