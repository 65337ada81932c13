"""Records beyond a memory limit lie in a file, mapped where memory would have been.

An array stays one array: whoever reads or writes it cannot tell. The system keeps pages of the file
in memory while there is room, and writes them out and reads them again when there is none.
"""

import ctypes
import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ctr_pipeline.durable import os_errors_explained

# The file grows by so much at a time; an update waits some milliseconds for it.
GROWTH_BYTES = 16 << 20
_ZEROS = bytes(1 << 20)
# The mmap module cannot map to a given address; this is the flag's value on Linux and macOS.
_MAP_FIXED = 0x10


@dataclass(frozen=True)
class MemoryBound:
    """How much memory an array may take.

    Attributes:
        num_bytes: Bytes of the array in memory; whole pages count, so it may be a page less.
    """

    num_bytes: int

    def spilled_bytes(self, num_bytes: int) -> int:
        """How many of an array's first so many bytes lie in the file."""
        return max(num_bytes - self.first_spilled, 0)

    @property
    def first_spilled(self) -> int:
        """Where the part that lies in the file begins, in bytes."""
        return self.num_bytes // mmap.PAGESIZE * mmap.PAGESIZE


@dataclass(frozen=True)
class MemoryLimit(MemoryBound):
    """How much memory an array may take, and where the rest of it lies.

    Attributes:
        folder: Where the file lies. It has no name, and goes with the process however that ends.
    """

    folder: Path


class SpilledPart:
    """The end of a reserved array that lies in a file.

    There is no file before it is needed. Its blocks are taken from the disk before they are
    written to: a full disk is then an error, where a store to a mapped hole would end the process.

    Args:
        array: From `reserve_array`; nothing beyond the limit was written yet.
        limit: Where the part begins, and where its file lies.

    Attributes:
        limit: As given.
    """

    def __init__(self, array: npt.NDArray[Any], limit: MemoryLimit) -> None:
        self._address = array.ctypes.data + limit.first_spilled
        whole = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._most_bytes = max(whole - limit.first_spilled, 0)
        self.limit = limit
        self._descriptor: int | None = None
        self._file_bytes = 0

    def require(self, num_bytes: int) -> None:
        """Makes sure that the array's first so many bytes can be written.

        Raises:
            RunFolderError: The disk is full, or the folder cannot be written; nothing changed.
        """
        needed = self.limit.spilled_bytes(num_bytes)
        if needed <= self._file_bytes:
            return
        file_bytes = min(-(-needed // GROWTH_BYTES) * GROWTH_BYTES, self._most_bytes)
        with os_errors_explained(self.limit.folder):
            if self._descriptor is None:
                self._descriptor = self._mapped_file(file_bytes)
            else:
                _take_blocks(self._descriptor, self._file_bytes, file_bytes)
        self._file_bytes = file_bytes

    def _mapped_file(self, file_bytes: int) -> int:
        """A file without a name that stands for the part from now on; its descriptor."""
        self.limit.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(".tmp", ".embedding-rows-", self.limit.folder)
        try:
            Path(name).unlink()
            _take_blocks(descriptor, 0, file_bytes)
            _map_file(self._address, self._most_bytes, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def release(self) -> None:
        """Gives the blocks back to the disk; nobody reads the part before the next `require`."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            self._file_bytes = 0


def _take_blocks(descriptor: int, first: int, last: int) -> None:
    """Makes a file longer, all blocks of the new part its own."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, first, last - first)
        return
    while first < last:
        first += os.pwrite(descriptor, _ZEROS[: last - first], first)


def _map_file(address: int, num_bytes: int, descriptor: int) -> None:
    """Puts a file, which may be shorter, in place of memory that is mapped there."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    found = library.mmap(
        address,
        num_bytes,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_SHARED | _MAP_FIXED,
        descriptor,
        0,
    )
    if found != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
