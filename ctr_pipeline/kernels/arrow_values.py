"""Arrow columns as the arrays that kernels read, without copying where Arrow allows it.

Text comes as its buffers: offsets and bytes, with a bit per value that tells NULL. Numbers come as
float64 with NaN for NULL. Arrays handed to kernels are read-only throughout, since Numba compiles
read-only and writable arrays apart.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.kernels.compilation import read_only
from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL_FLOAT32, flush_subnormal
from ctr_pipeline.kernels.text_buffers import TextBuffers, text_buffers


@dataclass(frozen=True)
class TextColumn:
    """A text column: plain values, or values of a dictionary and an index into them per row.

    Attributes:
        values: The text, NULL among it.
        num_values: Number of values in `values`.
        indices: uint16, int32 or int64 [N] into `values`; None: row n is value n.
    """

    values: TextBuffers
    num_values: int
    indices: np.ndarray | None


@dataclass(frozen=True)
class NumberColumn:
    """A number column: plain values, or values of a dictionary and an index into them per row.

    Attributes:
        values: float64; NULL is NaN, subnormal numbers are 0.
        indices: uint16, int32 or int64 [N] into `values`; None: row n is value n.
    """

    values: np.ndarray
    indices: np.ndarray | None


def text_column(array: pa.Array, *, column: str) -> TextColumn:
    """The buffers of a string, large_string, binary, dictionary or all-null array, slices included.

    Integers are their decimal text, as in `Hashing`.

    A dictionary larger than the array is decoded, so that a short batch never pays for the whole
    dictionary.

    Raises:
        ValueError: The array holds something else than text.
    """
    if pa.types.is_integer(array.type) or pa.types.is_null(array.type):
        array = array.cast(pa.string())
    if pa.types.is_dictionary(array.type):
        if pa.types.is_integer(array.type.value_type):
            array = array.cast(pa.dictionary(array.type.index_type, pa.string()))
        _check_text(array.type.value_type, column)
        values, indices = _dictionary_of(array)
        return TextColumn(text_buffers(values), len(values), indices)
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    _check_text(array.type, column)
    return TextColumn(text_buffers(array), len(array), None)


def binary_texts(array: pa.Array, *, column: str) -> tuple[pa.Array, pa.Array | None]:
    """The values of a text column, large_binary [V], and their places [N]; None: row n is value n.

    Dictionaries and integers are treated as by `text_column`.

    Raises:
        ValueError: The array holds something else than text or integers.
    """
    values, indices = array, None
    if pa.types.is_dictionary(array.type):
        values, indices = array.dictionary, array.indices
        if len(values) > len(array) or indices.null_count:
            values, indices = values.take(indices), None
    if pa.types.is_integer(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.string())
    try:
        return values.cast(pa.large_binary()), indices
    except pa.ArrowException as error:
        kind = array.type
        raise ValueError(f"column '{column}' holds {kind}, and is to be read as text") from error


def number_column(array: pa.Array, *, column: str) -> NumberColumn:
    """A number column, plain or a dictionary, as kernels read it.

    Raises:
        ValueError: The array holds something else than numbers.
    """
    if not pa.types.is_dictionary(array.type):
        return NumberColumn(number_values(array, column=column), None)
    values, indices = _dictionary_of(array)
    return NumberColumn(number_values(values, column=column), indices)


def number_values(array: pa.Array, *, column: str) -> np.ndarray:
    """A number column as float64 [N]: NULL is NaN, subnormal numbers are 0.

    Subnormal numbers become 0 since TensorFlow's threads run with the processor's flush-to-zero
    mode, where a comparison takes them for 0.

    Raises:
        ValueError: The array holds something else than numbers.
    """
    if pa.types.is_null(array.type):
        array = array.cast(pa.float64())
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        raise ValueError(f"column '{column}' holds {array.type}, and its transforms read numbers")
    if pa.types.is_float32(array.type):
        singles = array.to_numpy(zero_copy_only=False)
        return flush_subnormal(singles, SMALLEST_NORMAL_FLOAT32).astype(np.float64)
    if not pa.types.is_float64(array.type):
        array = array.cast(pa.float64(), safe=False)
    return flush_subnormal(array.to_numpy(zero_copy_only=False))


def _dictionary_of(array: pa.DictionaryArray) -> tuple[pa.Array, np.ndarray | None]:
    """Values and indices into them; of a dictionary larger than the array, the array itself."""
    values, indices = array.dictionary, array.indices
    if len(values) > len(array):
        return values.take(indices), None
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    positions = indices.to_numpy(zero_copy_only=False)
    # Of three types alone, since kernels are compiled for each.
    is_known = positions.dtype in (np.uint16, np.int32)
    return values, read_only(positions if is_known else positions.astype(np.int64, copy=False))


def _check_text(kind: pa.DataType, column: str) -> None:
    if not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        raise ValueError(f"column '{column}' holds {kind}, and its transforms read text")
