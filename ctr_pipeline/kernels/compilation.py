"""How kernels are compiled: on first use, without the GIL, kept on disk.

Numba compiles a cached kernel again when its own file changes. Code and constants of other files
are compiled into it as well; those may come from `SHARED_FILES` alone, and a change of any of these
makes all kernels be compiled again.
"""

import contextlib
import functools
import glob
import logging
import os
import platform
import stat
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np

_LOGGER = logging.getLogger(__name__)
COMPILED_VARIABLE = "CTRPIPE_KERNELS"

_PACKAGE = Path(__file__).parents[1]
SHARED_FILES = (
    *sorted((_PACKAGE / "kernels").glob("*.py")),
    *sorted((_PACKAGE / "embeddings").glob("*.py")),
    *sorted((_PACKAGE / "specs").glob("*.py")),
    _PACKAGE / "splitmix.py",
)
"""What kernels of other files may use."""

_FOR_MANY = {
    "x86_64": ("x86-64-v3", ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")),
    "aarch64": ("generic", ()),
}
"""LLVM's name of what most processors can do, and the features that tell those, by machine."""


def target_of_image() -> str | None:
    """The processor that machine code of an image is for, if this one can run it; else None.

    The machine that builds an image is rarely of the same kind as those that run it.
    """
    name, needed = _FOR_MANY.get(platform.machine(), (None, ()))
    found = llvmlite.binding.get_host_cpu_features() if needed else {}
    return name if all(found.get(feature) for feature in needed) else None


if COMPILED_VARIABLE in os.environ and (_target := target_of_image()):
    # Numba reads them when the first function is compiled.
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = _target, ""


def inlined(function: Callable[..., Any]) -> Any:
    """Compiles `function` into the kernels that call it.

    A call that stays a call passes arrays with their reference counts, which costs more than the
    arithmetic of a row.
    """
    return numba.njit(forceinline=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles `function` lazily, nogil, exact in its floating point (never fastmath).

    Machine code that was compiled beforehand, as an image holds it, is taken from the folder that
    CTRPIPE_KERNELS names. Other machine code is kept in `NUMBA_CACHE_DIR` if that is set, else in
    `__pycache__`, else in the user's cache folder, else, as where the package is installed
    read-only and the user has no home, in a folder of the user's own among the temporary files.
    Where none of them can be written it is compiled anew in each process, which takes seconds a
    kernel.
    """
    folder = _folder_with_compiled()
    if folder is None:
        try:
            return _cached(function)
        except RuntimeError:
            # Numba's way of saying that no cache folder is writable.
            folder = private_folder(Path(tempfile.gettempdir()))
    if folder is not None:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            return _cached(function)
        except RuntimeError:
            _LOGGER.debug("kernel %s cannot be kept in %s either", function.__qualname__, folder)
        finally:
            numba.config.CACHE_DIR = before
    _LOGGER.warning("kernel %s is not cached: no writable folder", function.__qualname__)
    return numba.njit(nogil=True)(function)


def _cached(function: Callable[..., Any]) -> Any:
    compiled = numba.njit(nogil=True, cache=True)(function)
    # Numba asks for nothing else to tell whether machine code on the disk is of this source.
    kept = compiled._cache._cache_file
    kept._source_stamp = (kept._source_stamp, shared_stamp())
    save = compiled._cache.save_overload

    def try_to_save(*overload: Any) -> None:
        try:
            if not kept._load_index():
                # Numba names machine code in the index before it writes it: whoever is stopped
                # between the two must not leave that of an older source under the name.
                for old in Path(kept._cache_path).glob(
                    f"{glob.escape(kept._index_name[:-4])}.*.nbc"
                ):
                    old.unlink(missing_ok=True)
            save(*overload)
        except OSError as error:
            # A full disk, say: what was compiled works all the same.
            _LOGGER.warning("kernel %s is not cached: %s", function.__qualname__, error)

    compiled._cache.save_overload = try_to_save
    return compiled


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written; Numba compiles a kernel for such arrays apart from others."""
    view = array.view()
    view.flags.writeable = False
    return view


@functools.cache
def _folder_with_compiled() -> Path | None:
    """A folder of this user's with what CTRPIPE_KERNELS holds; None: the variable is not set.

    Numba wants to write where it reads, and an image is read-only, so the files are linked to.
    """
    compiled = os.environ.get(COMPILED_VARIABLE)
    folder = private_folder(Path(tempfile.gettempdir())) if compiled else None
    if compiled is None or folder is None:
        return None
    for file in Path(compiled).rglob("*.nb[ci]"):
        link = folder / file.relative_to(compiled)
        link.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(file)
    return folder


@functools.cache
def shared_stamp() -> int:
    """A checksum of the content of `SHARED_FILES`."""
    return functools.reduce(lambda sum, file: zlib.crc32(file.read_bytes(), sum), SHARED_FILES, 0)


def private_folder(parent: Path) -> Path | None:
    """A folder in `parent` that this user alone can write; None if there cannot be one.

    Cached machine code is loaded without question, so a folder that others can write, or made
    under our name, must not be used.
    """
    user = os.getuid()
    folder = parent / f"ctrpipe-kernels-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == user
    return folder if is_ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
