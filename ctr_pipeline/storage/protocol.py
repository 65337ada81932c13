"""What a storage does, and the errors by which it answers."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Protocol

from ctr_pipeline.errors import EXIT_TRY_AGAIN, CtrPipelineError, StorageError

# No part begins with a dot: '..' leads elsewhere, and temporary files of a disk begin so.
_KEY = re.compile(r"[\w=-][\w.=-]*(/[\w=-][\w.=-]*)*", re.ASCII)


class ObjectMissingError(CtrPipelineError):
    """There is no object under the key."""


class ObjectExistsError(CtrPipelineError):
    """Another writer has put an object under the key."""


class ObjectTruncatedError(CtrPipelineError):
    """The object ends before the bytes that were asked for."""


class ObjectChangedError(CtrPipelineError):
    """The object has been written again since its version was asked for."""


class StorageDeniedError(StorageError):
    """The credentials, or the permissions of the disk, do not allow it."""


class StorageAwayError(StorageError):
    """The storage does not answer, also after several attempts; a write may have happened."""

    exit_code = EXIT_TRY_AGAIN


@dataclass(frozen=True)
class StoredObject:
    """An object as a storage knows it.

    Attributes:
        version: Changes whenever the object is written.
    """

    key: str
    num_bytes: int
    version: str


class Storage(Protocol):
    """Objects under keys such as `parts/000001/rows.arrow`, whole or absent.

    Every method may raise `StorageDeniedError`, `StorageAwayError`, or `ValueError` for a key that
    is none. On a local disk, writing raises `RunFolderError` where the disk is full.
    """

    address: str
    """The address of the root, as the user writes it."""

    def read(self, key: str) -> bytes:
        """All bytes of an object.

        Raises:
            ObjectMissingError: It is not there.
        """

    def read_range(
        self, key: str, start: int, num_bytes: int, *, version: str | None = None
    ) -> bytes:
        """The bytes [start, start + num_bytes) of an object.

        Args:
            version: As `stat` tells it; None: any.

        Raises:
            ObjectMissingError: It is not there.
            ObjectChangedError: It has another version.
            ObjectTruncatedError: It ends before the range does.
        """

    def open(self, key: str) -> IO[bytes]:
        """Opens an object to be read from any place on; the caller closes it.

        On a local disk it is the file itself: it has a descriptor, whose memory may be mapped, and
        reading costs no more than without a storage. A store that only answers requests for ranges
        returns `ranged_reading.open_ranges`, which has no descriptor.

        Raises:
            ObjectMissingError: It is not there.
        """

    def write(self, key: str, data: bytes) -> None:
        """Puts an object, in place of an earlier one."""

    def create(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """A file whose bytes become an object once the block ends; nothing is put if it raises.

        Raises:
            StorageAwayError: The bytes are gone; write them again, under another key.
        """

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Puts an object where there is none; of many writers, one succeeds.

        Args:
            data: Names its writer. After a lost answer, an object of equal bytes counts as put.

        Raises:
            ObjectExistsError: There is one.
        """

    def list(self, folder: str) -> Sequence[StoredObject]:
        """All objects whose keys begin with `folder/`, or all, in the order of their keys.

        Args:
            folder: A key; empty for all objects.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are not there are passed over."""

    def delete_unfinished(self, is_abandoned: Callable[[str], bool]) -> None:
        """Deletes what killed writers left of objects that they never put.

        Args:
            is_abandoned: Whether nobody writes an object any more, by its key.
        """

    def stat(self, key: str) -> StoredObject:
        """Size and version of an object.

        Raises:
            ObjectMissingError: It is not there.
        """


def changed(place: str) -> ObjectChangedError:
    """The error of an object that is not the one that was asked about before."""
    return ObjectChangedError(
        "was written again while it was read",
        place=place,
        remedy="Let nothing else write there meanwhile, and run again",
    )


def check_key(key: str) -> str:
    """Returns the key.

    Raises:
        ValueError: It has other characters than letters, digits and `._=-` between slashes, or a
            part of it is empty or begins with a dot.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no key of a storage")
    return key
