"""Names for the array types that kernels and store pass around."""

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
IdArray: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_ALIGNMENT_BYTES = 64


def empty_aligned(shape: tuple[int, ...]) -> Float32Array:
    """An uninitialised float32 array that starts at a cache line, as TensorFlow wants memory."""
    num_bytes = math.prod(shape) * 4
    buffer = np.empty(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT_BYTES
    return buffer[start : start + num_bytes].view(np.float32).reshape(shape)


def is_aligned(array: npt.NDArray[Any]) -> bool:
    """Whether an array starts at a cache line."""
    return array.ctypes.data % _ALIGNMENT_BYTES == 0
