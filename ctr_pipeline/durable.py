"""Files that are whole or absent: temporary name, fsync, rename."""

import errno
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from ctr_pipeline.errors import RunFolderError

_SYNCS_AT_A_TIME = 4
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]+\.tmp")


def open_temporary(path: Path, *, mode: int = 0o666) -> tuple[Path, int]:
    """A new empty file beside `path`, whose name nobody can foresee and plant a link at.

    Args:
        path: What the file is to become.
        mode: Permissions, less the umask.

    Returns:
        The file, `.NAME.RANDOM.tmp`, and a descriptor that writes to it.

    Raises:
        OSError: The folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return temporary, os.open(temporary, flags, mode)


def becomes_of(temporary: Path) -> Path | None:
    """What a file of `open_temporary` was to become; None for another one."""
    match = _TEMPORARY.fullmatch(temporary.name)
    return temporary.with_name(match[1]) if match else None


def not_through_links(path: str, flags: int) -> int:
    """An opener of files that go on growing: a link in the place of one is refused.

    Raises:
        OSError: ELOOP where it is a link, and as `os.open`.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def durable_write(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside `path` and puts it there once it is on disk.

    An error leaves what stood at `path` before untouched.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    with os_errors_explained(path):
        temporary, descriptor = open_temporary(path)
    try:
        with os_errors_explained(path):
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class FileSyncs:
    """Puts files on disk while others are made; a context manager that waits for them.

    A disk takes some milliseconds for a file however small it is, and one that is asked for several
    at a time writes them together.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_SYNCS_AT_A_TIME, thread_name_prefix="sync")
        self._pending: list[Future[None]] = []

    def add(self, path: Path) -> None:
        """Begins with a file that is whole."""
        self._pending.append(self._pool.submit(_sync_file, path))

    def finish(self) -> None:
        """Returns when all files are on disk; the names of new ones need `sync_folder`.

        Raises:
            RunFolderError: One could not be written.
        """
        for pending in self._pending:
            pending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _sync_file(path: Path) -> None:
    with os_errors_explained(path), path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file, durably."""
    with durable_write(path) as file:
        file.write(text.encode("utf-8"))


def link_or_copy(source: Path, target: Path) -> None:
    """Gives a file a second name; a copy, where the file system knows no such thing.

    Raises:
        FileNotFoundError: There is no such file.
        RunFolderError: The disk is full or the folder cannot be written.
    """
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise explain_os_error(error, target) from error


def sync_folder(folder: Path) -> None:
    """Makes renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_folder(new: Path, place: Path) -> None:
    """Moves a folder to the place of another one, if there is one, which is deleted.

    A kill may leave neither there, and the old one under a name that ends in `.tmp`.
    """
    replaced = place.with_name(f".{place.name}.{os.getpid()}.old.tmp")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        if place.exists():
            place.rename(replaced)
        new.rename(place)
        sync_folder(place.parent)
    finally:
        shutil.rmtree(replaced, ignore_errors=True)


def crc32_of(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


@contextmanager
def os_errors_explained(path: Path) -> Iterator[None]:
    """Errors of the system become errors that a user reads.

    Raises:
        RunFolderError: In place of an `OSError`; see `explain_os_error`.
    """
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error


def explain_os_error(error: OSError, path: Path) -> RunFolderError:
    """What an operating system error means to the user."""
    if error.errno == errno.ENOSPC:
        return RunFolderError("the disk is full", place=str(path), remedy="Free space, then resume")
    if error.errno == errno.ELOOP:
        return RunFolderError(
            "is a link, which is not written through", place=str(path), remedy="Remove it"
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return RunFolderError(
            "cannot be written",
            place=str(path),
            remedy="Choose another 'output' or its permissions",
        )
    if error.errno == errno.EDQUOT:
        return RunFolderError(
            "the disk quota is used up", place=str(path), remedy="Free space, then resume"
        )
    if error.errno == errno.EFBIG:
        return RunFolderError(
            "is larger than files may be",
            place=str(path),
            remedy="Raise the limit, 'ulimit -f unlimited', then resume",
        )
    return RunFolderError(
        f"cannot be written ({error.strerror or error})",
        place=str(path),
        remedy="Choose another place, or remove what is in the way",
    )
