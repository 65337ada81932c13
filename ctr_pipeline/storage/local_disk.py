"""A folder as a storage: `pread`, `fsync`, `rename`, and `link` for what may be put once."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ctr_pipeline import durable
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from ctr_pipeline.storage.protocol import (
    ObjectExistsError,
    ObjectMissingError,
    ObjectTruncatedError,
    StorageAwayError,
    StorageDeniedError,
    StoredObject,
    changed,
    check_key,
)

_AWAY = {
    errno.EIO,
    errno.ENODEV,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
_NO_LINKS = {errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.ENOSYS}


class LocalDisk:
    """Objects as files below a folder, which the first one that is written creates.

    Args:
        address: The folder, or `file://` and its absolute path.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.root = Path(address.removeprefix("file://"))

    def read(self, key: str) -> bytes:
        """See `Storage.read`."""
        path = self._path(key)
        with _explained(path, reads=True):
            return path.read_bytes()

    def read_range(
        self, key: str, start: int, num_bytes: int, *, version: str | None = None
    ) -> bytes:
        """See `Storage.read_range`."""
        path = self._path(key)
        with _explained(path, reads=True):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = _described(key, os.fstat(descriptor)).version
                if version is not None and found != version:
                    raise changed(str(path))
                pieces = []
                # One call reads at most 2 GiB.
                while num_bytes and (piece := os.pread(descriptor, num_bytes, start)):
                    pieces.append(piece)
                    start += len(piece)
                    num_bytes -= len(piece)
            finally:
                os.close(descriptor)
        if num_bytes:
            raise ObjectTruncatedError(f"ends {num_bytes:,} bytes too early", place=str(path))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def open(self, key: str) -> IO[bytes]:
        """See `Storage.open`."""
        path = self._path(key)
        with _explained(path, reads=True):
            return path.open("rb")

    def write(self, key: str, data: bytes) -> None:
        """See `Storage.write`."""
        with self.create(key) as file:
            file.write(data)

    @contextmanager
    def create(self, key: str) -> Iterator[IO[bytes]]:
        """See `Storage.create`; errors of the system in the block are taken for the disk's."""
        path = self._path(key)
        with _explained(path):
            _create_folder(path.parent)
            with durable.durable_write(path) as file:
                yield file

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `Storage.put_if_absent`."""
        path = self._path(key)
        with _explained(path):
            _create_folder(path.parent)
            temporary, descriptor = durable.open_temporary(path)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                _link(temporary, path)
                durable.sync_folder(path.parent)
            finally:
                temporary.unlink(missing_ok=True)

    def list(self, folder: str) -> Sequence[StoredObject]:
        """See `Storage.list`."""
        top = self._path(folder) if folder else self.root
        found = []
        with _explained(top, reads=True):
            for parent, _, names in os.walk(top, onerror=_raise_unless_missing):
                for name in names:
                    if name.startswith("."):
                        continue  # temporary
                    path = Path(parent, name)
                    try:
                        state = path.stat()
                    except FileNotFoundError:
                        continue  # deleted meanwhile
                    found.append(_described(path.relative_to(self.root).as_posix(), state))
        return sorted(found, key=lambda one: one.key)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Storage.delete`."""
        folders = set()
        for key in keys:
            path = self._path(key)
            with _explained(path), contextlib.suppress(FileNotFoundError):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            # What is deleted next must not come to be gone before this.
            with _explained(folder):
                durable.sync_folder(folder)

    def delete_unfinished(self, is_abandoned: Callable[[str], bool]) -> None:
        """See `Storage.delete_unfinished`."""
        with _explained(self.root):
            for path in self.root.rglob(".*.tmp"):
                becomes = durable.becomes_of(path)
                if becomes and is_abandoned(becomes.relative_to(self.root).as_posix()):
                    path.unlink(missing_ok=True)

    def stat(self, key: str) -> StoredObject:
        """See `Storage.stat`."""
        path = self._path(key)
        with _explained(path, reads=True):
            return _described(key, path.stat())

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)


def _described(key: str, state: os.stat_result) -> StoredObject:
    # A file that is replaced has another inode, or a later time where the inode is used again.
    return StoredObject(key, state.st_size, f"{state.st_ino}-{state.st_mtime_ns}")


def _create_folder(folder: Path) -> None:
    """Creates a folder and those above it; their names survive a power cut."""
    if folder.is_dir():
        return
    _create_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    durable.sync_folder(folder.parent)


def _link(source: Path, target: Path) -> None:
    """Gives a file its name unless another one has it.

    Raises:
        ObjectExistsError: Another one has it.
        RunFolderError: The file system has no hard links.
    """
    try:
        target.hardlink_to(source)
    except FileExistsError as error:
        raise ObjectExistsError("is there already", place=str(target)) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise RunFolderError(
            "the file system has no hard links, by which one of several writers is told apart",
            place=str(target.parent),
            remedy="Choose a folder on another file system, or an object store",
        ) from error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _explained(path: Path, *, reads: bool = False) -> Iterator[None]:
    """Errors of the system become those of a storage."""
    try:
        yield
    except OSError as error:
        raise _explain(error, path, reads=reads) from error
    except RunFolderError as error:
        if isinstance(error.__cause__, OSError):
            raise _explain(error.__cause__, path, otherwise=error) from error
        raise


def _explain(
    error: OSError,
    path: Path,
    *,
    reads: bool = False,
    otherwise: CtrPipelineError | None = None,
) -> CtrPipelineError:
    place = str(path)
    if isinstance(error, FileNotFoundError):
        return ObjectMissingError("is not there", place=place)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StorageDeniedError(
            f"may not be used ({error.strerror})",
            place=place,
            remedy="Change its permissions, or choose another folder",
        )
    if error.errno in _AWAY:
        return StorageAwayError(
            f"the disk does not answer ({error.strerror})",
            place=place,
            remedy="Mount its volume, then resume",
        )
    if reads:
        # Such as too many open files: it says nothing of the object.
        return StorageAwayError(f"cannot be read ({error.strerror or error})", place=place)
    return otherwise or durable.explain_os_error(error, path)
