"""Every public layer that works value by value, with values that break things."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ctr_pipeline.preprocessing import layers
from ctr_pipeline.preprocessing.layers.raw_layer import ElementwiseLayer, build_layer
from ctr_pipeline.transforms.base import NumberTransform
from tests.preprocessing.preprocessing_cases import (
    EXAMPLE_MOMENTS,
    EXAMPLES,
    HOSTILE_NUMBERS,
    HOSTILE_TEXTS,
)

NUMBERS = {
    "Normalizer float64": lambda: layers.Normalizer(0.0, 0.1, dtype="float64"),
    "Standardize clipped": lambda: layers.Standardize(1.5, 0.0, clip=4.0),
    "Discretization": lambda: layers.Discretization([-1.0, 0.0, 3.5]),
    "Discretization missing": lambda: layers.Discretization([0.5], missing_id=2),
    "LogRound": lambda: layers.LogRound(16, base=2),
    "LogRound missing": lambda: layers.LogRound(16, 3, missing_id=16),
    "RoundIdentity": lambda: layers.RoundIdentity(5),
    "RoundIdentity missing": lambda: layers.RoundIdentity(5, 1, missing_id=5),
    "IntervalIds": lambda: layers.IntervalIds([0.0, 1.0, np.inf], [2, 0, 1, 2], 3),
    "ToNumber": lambda: layers.ToNumber("float32", 7.0),
}
TEXTS = {
    "Hashing": lambda: layers.Hashing(3),
    "Hashing missing": lambda: layers.Hashing(1000, missing_id=1000),
    "IndexLookup": lambda: layers.IndexLookup(["a", "line\nbreak", "é"], 2, missing_id=5),
    "NumberLookup": lambda: layers.NumberLookup(["a", "line\nbreak"], [0.5, 3.0], -1.0, 7.0),
    "NumberLookup missing": lambda: layers.NumberLookup(["a"], [2.5], dtype="float64"),
    "DatetimePart": lambda: layers.DatetimePart("weekday"),
    "Age": lambda: layers.Age(86_400),
    "IndexLookup no oov": lambda: layers.IndexLookup([b"a", b"\x00", b""], 0),
}


def _layer_of(transform):
    return lambda: build_layer(transform.fit(EXAMPLE_MOMENTS), Path())


NUMBERS |= {
    f"{type(_layer_of(transform)()).__name__} {number} of {name}": _layer_of(transform)
    for name, examples in EXAMPLES.items()
    for number, transform in enumerate(examples)
    if isinstance(transform, NumberTransform)
}
ELEMENTWISE = {**NUMBERS, **TEXTS}

NUMBER_VALUES = HOSTILE_NUMBERS
TEXT_VALUES = np.array([value or b"" for value in HOSTILE_TEXTS], object)

covered = {name.split()[0] for name in ELEMENTWISE}
assert covered == {
    name for name, layer in layers.public_layers().items() if issubclass(layer, ElementwiseLayer)
}


def values_for(name: str) -> tf.Tensor:
    return tf.constant(NUMBER_VALUES if name in NUMBERS else TEXT_VALUES)


def three_kinds(values: tf.Tensor) -> dict[str, tf.Tensor]:
    """The same values in rows of 0, 1, 2, 3, 0, 1 ... : dense (one a row), ragged and sparse."""
    lengths = []
    while sum(lengths) < len(values):
        lengths.append(min(len(lengths) % 4, len(values) - sum(lengths)))
    ragged = tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))
    return {"dense": values[:, None], "ragged": ragged, "sparse": ragged.to_sparse()}


def flat(tensor: tf.Tensor) -> np.ndarray:
    if isinstance(tensor, tf.SparseTensor):
        return tensor.values.numpy()
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.flat_values.numpy()
    return np.ravel(tensor)


def input_like(tensor: tf.Tensor, name: str | None = None) -> keras.KerasTensor:
    """A symbolic input for tensors of this kind, with rows of any length."""
    return keras.Input(
        (None,) if is_composite(tensor) else tensor.shape[1:],
        name=name,
        dtype=tensor.dtype.name,
        sparse=isinstance(tensor, tf.SparseTensor),
        ragged=isinstance(tensor, tf.RaggedTensor),
    )


def is_composite(tensor: tf.Tensor) -> bool:
    return isinstance(tensor, tf.SparseTensor | tf.RaggedTensor)


def assert_same_tensor(found: tf.Tensor, expected: tf.Tensor) -> None:
    """Kind, type, structure and values are equal; NaN equals NaN."""
    assert type(found).__name__ == type(expected).__name__
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(flat(found), flat(expected))
    if isinstance(expected, tf.SparseTensor):
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.dense_shape, expected.dense_shape)
    elif isinstance(expected, tf.RaggedTensor):
        for ours, theirs in zip(found.nested_row_splits, expected.nested_row_splits, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    else:
        assert found.shape == expected.shape
