"""How kernels are compiled: on first use, without the GIL, kept on disk.

A cached kernel is compiled again when its own file changes, not when a file it calls into does:
kernels that call each other therefore stand in one file. What `lanes` and `prefetch` offer is
compiled into kernels of other files: whoever changes it deletes the `__pycache__` folders.
"""

import logging
from collections.abc import Callable
from typing import Any

import numba

_LOGGER = logging.getLogger(__name__)


def inlined(function: Callable[..., Any]) -> Any:
    """Compiles `function` into the kernels that call it.

    A call that stays a call passes arrays with their reference counts, which costs more than the
    arithmetic of a row.
    """
    return numba.njit(forceinline=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles `function` lazily, nogil, exact in its floating point (never fastmath).

    The machine code is kept in `__pycache__`, else in the user's cache folder. Where neither can
    be written it is compiled anew in each process.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Numba's way of saying that no cache folder is writable.
        _LOGGER.warning("kernel %s is not cached: no writable folder", function.__qualname__)
        return numba.njit(nogil=True)(function)
