"""Arrays that may grow to a bound without being copied.

Address space for the bound is reserved at once; the system gives a page when it is first written.
"""

import contextlib
import math
import mmap
import sys
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ctr_pipeline.errors import TrainingError

Item = TypeVar("Item", bound=np.generic)

# The mmap module of Python 3.11 lacks the name; this is its value on x86-64 and ARM Linux.
_MAP_NORESERVE = 0x4000 if sys.platform.startswith("linux") else 0


def reserve_array(shape: tuple[int, ...], dtype: type[Item], *, purpose: str) -> npt.NDArray[Item]:
    """An array of zeros whose pages take memory only once written.

    Large pages are asked for where the system has them: rows are read at random, and the
    translation of addresses would otherwise cost as much as the rows.

    Args:
        shape: Shape of the whole reservation.
        purpose: What the memory is for, as an error names it.

    Raises:
        TrainingError: The system does not give the address space.
    """
    num_bytes = max(math.prod(shape) * np.dtype(dtype).itemsize, mmap.PAGESIZE)
    try:
        area = mmap.mmap(
            -1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        )
    except (OSError, OverflowError, ValueError) as error:
        raise TrainingError(
            f"no address space for {num_bytes / 2**30:.1f} GiB of {purpose}",
            remedy="Lower vocabulary sizes, hash buckets or embedding_dim, "
            "or allow the system to overcommit memory",
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel built without large pages refuses; small ones hold the same bytes.
        with contextlib.suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(area, dtype=dtype, count=math.prod(shape)).reshape(shape)


def give_back(array: npt.NDArray[Any]) -> None:
    """Returns the memory of a reservation to the system; it reads as zeros from then on."""
    area: Any = array
    while isinstance(area, np.ndarray):
        area = area.base
    area.obj.madvise(mmap.MADV_DONTNEED)
