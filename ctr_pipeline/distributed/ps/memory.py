"""Memory that a server does not need once its kernels are compiled."""

import ctypes
import sys
from pathlib import Path

_MADV_DONTNEED = 4
_COMPILER = "libllvmlite"


def release_compiler_pages() -> int:
    """Takes the compiler's code out of this process; the system maps it again if it is needed.

    Loading kernels touches some 60 MB of the compiler's machine code. The pages are clean and those
    of the file, so nothing is lost by giving them back; only segments of pure code are given, since
    others hold addresses that the loader wrote.

    Returns:
        Bytes of address space whose pages were given back; 0 where the system cannot.
    """
    if not sys.platform.startswith("linux"):
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    released = 0
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        addresses, permissions, *rest = line.split(maxsplit=5)
        if permissions == "r-xp" and len(rest) == 4 and _COMPILER in Path(rest[3]).name:
            first, last = (int(address, 16) for address in addresses.split("-"))
            if madvise(first, last - first, _MADV_DONTNEED) == 0:
                released += last - first
    return released
