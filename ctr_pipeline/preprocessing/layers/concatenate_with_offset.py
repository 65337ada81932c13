"""Ids of several fields side by side in one range: `ConcatenateWithOffset`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.raw_layer import (
    PACKAGE,
    RawLayer,
    as_tensor,
    check_number,
)


@keras.saving.register_keras_serializable(package=PACKAGE)
class ConcatenateWithOffset(RawLayer):
    """Adds offset i to every value of input i, then concatenates the inputs.

    So the ids of several fields share one embedding table without meeting: with fields of 10 and 20
    ids and offsets 0 and 10, they lie in [0, 30).

    Args:
        offsets: A number for each input; None adds nothing.
        axis: To concatenate along; negative counts from the last.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: When called: there are more or fewer inputs than offsets, an offset is none of
            the inputs' type, or the inputs' ranks differ.
        TypeError: When called: the inputs are not all dense, all ragged or all sparse, are text, or
            are of types that differ.

    Example:
        >>> layer = ConcatenateWithOffset(offsets=[0, 10], axis=1)
        >>> layer([tf.constant([[1], [1]]), tf.constant([[2], [3]])]).numpy()
        array([[ 1, 12],
               [ 1, 13]], dtype=int32)
    """

    def __init__(self, offsets: Sequence[float] | None, axis: int = -1, **options: Any) -> None:
        super().__init__(**options)
        # A tuple: Keras would wrap a list, and track every element of it.
        self.offsets = None if offsets is None else tuple(_plain(offset) for offset in offsets)
        self.axis = int(axis)

    def call(self, inputs: Any) -> Any:
        """One tensor of all the inputs' values.

        Args:
            inputs: A list of numbers: all dense, all ragged or all sparse, of one type and rank,
                and of one shape but for `axis`. A tensor that is in no list is returned as it is,
                without an offset.

        Returns:
            Of the inputs' kind and type.
        """
        if not isinstance(inputs, list | tuple):
            return inputs
        tensors = [
            tensor if isinstance(tensor, tf.SparseTensor | tf.RaggedTensor) else as_tensor(tensor)
            for tensor in inputs
        ]
        kind = self._kind_of_all(
            [_Form(_kind_of(tensor), tensor.dtype, tensor.shape.rank) for tensor in tensors]
        )
        if self.offsets is not None:
            tensors = [
                _shifted(tensor, offset)
                for tensor, offset in zip(tensors, self.offsets, strict=True)
            ]
        if kind == "sparse":
            return tf.sparse.concat(self.axis, tensors)
        return tf.concat(tensors, self.axis)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The inputs' kind and type, with their lengths along `axis` added up."""
        if not isinstance(inputs, list | tuple):
            return inputs
        kind = self._kind_of_all(
            [
                _Form(_kind_of(tensor), tf.as_dtype(tensor.dtype), len(tensor.shape))
                for tensor in inputs
            ]
        )
        first = inputs[0]
        axis = self.axis % len(first.shape)
        lengths = [tensor.shape[axis] for tensor in inputs]
        shape = list(first.shape)
        shape[axis] = None if None in lengths else sum(lengths)
        return keras.KerasTensor(
            tuple(shape), first.dtype, sparse=kind == "sparse", ragged=kind == "ragged"
        )

    def _kind_of_all(self, forms: list["_Form"]) -> str:
        """Refuses inputs that cannot stand side by side; their kind."""
        if self.offsets is not None and len(forms) != len(self.offsets):
            raise ValueError(f"{len(self.offsets)} offsets need as many inputs, got {len(forms)}")
        if not forms:
            raise ValueError("expects one input or more, got an empty list")
        first = forms[0]
        for form in forms:
            check_number(form.dtype)
            if form.kind != first.kind:
                raise TypeError(
                    f"expects all inputs dense, all ragged or all sparse, got "
                    f"{' and '.join(dict.fromkeys(form.kind for form in forms))} ones"
                )
            if form.dtype != first.dtype:
                raise TypeError(
                    f"expects inputs of one type, got "
                    f"{' and '.join(dict.fromkeys(form.dtype.name for form in forms))}"
                )
            if form.rank != first.rank:
                raise ValueError(f"expects inputs of one rank, got {first.rank} and {form.rank}")
        if first.rank is not None and not -first.rank <= self.axis < first.rank:
            raise ValueError(f"axis {self.axis} is none of inputs of rank {first.rank}")
        for offset in self.offsets or ():
            fits = not first.dtype.is_integer or (
                float(offset).is_integer() and first.dtype.min <= offset <= first.dtype.max
            )
            if not fits:
                raise ValueError(f"offset {offset} is no {first.dtype.name}, the inputs' type")
        return first.kind

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "offsets": None if self.offsets is None else list(self.offsets),
            "axis": self.axis,
        }


class _Form(NamedTuple):
    """What inputs have to have in common."""

    kind: str
    dtype: tf.DType
    rank: int | None


def _kind_of(tensor: Any) -> str:
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return "sparse"
    if isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "ragged", False):
        return "ragged"
    return "dense"


def _shifted(tensor: Any, offset: float) -> Any:
    number = tf.constant(offset, tensor.dtype)
    if isinstance(tensor, tf.SparseTensor):
        return tensor.with_values(tensor.values + number)
    return tensor + number


def _plain(number: Any) -> int | float:
    """A Python number, so that a config can be written as JSON."""
    return int(number) if float(number).is_integer() else float(number)
