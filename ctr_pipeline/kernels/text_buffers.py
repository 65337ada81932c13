"""Texts of Arrow as the buffers that kernels read, without copying.

Arrays handed to kernels are read-only throughout, since Numba compiles read-only and writable
arrays apart.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from ctr_pipeline.kernels.compilation import read_only


class TextBuffers(NamedTuple):
    """A text column as Arrow holds it; a named tuple, since Numba takes those.

    Attributes:
        offsets: int32 or int64 [N + 1]; value n is data[offsets[n]:offsets[n + 1]].
        data: uint8 [bytes].
        validity: uint8 [bytes], one bit a value, least significant first, 1 = present; empty if
            no value is NULL.
        validity_offset: Bit of the first value.
    """

    offsets: np.ndarray
    data: np.ndarray
    validity: np.ndarray
    validity_offset: int


@njit(inline="always")
def is_null(text: TextBuffers, n: int) -> bool:
    """Whether a value is NULL."""
    bit = text.validity_offset + n
    return bool(len(text.validity) > 0 and (text.validity[bit >> 3] >> (bit & 7)) & 1 == 0)


@njit(inline="always")
def is_blank(byte: int) -> bool:
    """Whether a byte is white space of ASCII."""
    return bool(byte == 32 or 9 <= byte <= 13)


def text_buffers(array: pa.Array) -> TextBuffers:
    """The buffers of a string, large_string, binary or large_binary array, slices included."""
    validity_buffer, offsets_buffer, data_buffer = array.buffers()
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    if offsets_buffer is None or offsets_buffer.size == 0:
        offsets = np.zeros(len(array) + 1, dtype)
    else:
        offsets = np.frombuffer(
            offsets_buffer, dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize
        )
    has_nulls = validity_buffer is not None and array.null_count > 0
    return TextBuffers(
        offsets=read_only(offsets),
        data=_bytes_of(data_buffer),
        validity=_bytes_of(validity_buffer if has_nulls else None),
        validity_offset=array.offset,
    )


def _bytes_of(buffer: pa.Buffer | None) -> np.ndarray:
    if buffer is None or buffer.size == 0:
        return read_only(np.zeros(0, np.uint8))
    return read_only(np.frombuffer(buffer, np.uint8))
