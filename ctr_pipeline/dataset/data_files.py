"""Files of rows, on disk or in an object store: opened, measured and compared alike."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ctr_pipeline.dataset.object_files import ObjectFile
from ctr_pipeline.errors import DataError

DataFile = Path | ObjectFile
"""A file of rows. Both have a `name` and a `parent`, and are told in messages by `str`."""


def open_bytes(file: DataFile) -> io.BufferedReader:
    """The bytes of a file, from any place.

    Raises:
        OSError: A file on disk cannot be opened.
        CtrPipelineError: An object cannot be.
    """
    return file.open("rb") if isinstance(file, Path) else file.open()


@contextmanager
def open_arrow(file: DataFile) -> Iterator[pa.NativeFile]:
    """The same for Arrow.

    Raises:
        OSError: A file on disk cannot be opened.
        CtrPipelineError: An object cannot be.
    """
    if isinstance(file, Path):
        with pa.OSFile(str(file), "rb") as native:
            yield native
        return
    with open_bytes(file) as stream:
        yield pa.PythonFile(stream, "r")


def size_of(file: DataFile) -> int:
    """Bytes of a file.

    Raises:
        OSError: A file on disk is gone.
    """
    return file.stat().st_size if isinstance(file, Path) else file.size_bytes


def state_of(file: DataFile) -> tuple[str | int, ...]:
    """What changes when a file does.

    Raises:
        DataError: It is gone.
    """
    if isinstance(file, ObjectFile):
        return file.state()
    stat = stat_of(file)
    return str(file.resolve()), stat.st_size, stat.st_mtime_ns


def stat_of(file: Path) -> os.stat_result:
    """What the system says of a file on disk that was there.

    Raises:
        DataError: It is gone.
    """
    try:
        return file.stat()
    except OSError as error:
        raise DataError(
            f"cannot be found any more ({error.strerror})",
            place=str(file),
            remedy="Leave data files in place while they are read, and run again",
        ) from error
