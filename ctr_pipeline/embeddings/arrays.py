"""Names for the array types that kernels and store pass around."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Float32Array: TypeAlias = npt.NDArray[np.float32]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
IdArray: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
