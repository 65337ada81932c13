"""The storage of an address. A new one is a class in a file of its own, and a line here."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctr_pipeline.errors import StorageError
from ctr_pipeline.storage.cloud_environment import STORES
from ctr_pipeline.storage.local_disk import LocalDisk
from ctr_pipeline.storage.protocol import Storage


@contextmanager
def _lacks_told(address: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in {"obstore", "fsspec"}:
            raise
        raise StorageError(
            f"object stores need the package {error.name}, which is not installed",
            place=address,
            remedy="Run: pip install 'ctrpipe[objectstore]'",
        ) from error


def open_object_store(address: str, *, any_key: bool = False) -> Storage:
    """See `ObjectStore`.

    Raises:
        StorageError: The package is missing, or the environment is not usable.
    """
    with _lacks_told(address):
        from ctr_pipeline.storage.object_store import ObjectStore

        return ObjectStore(address, any_key=any_key)


def open_object_filesystem(address: str) -> Any:
    """The stores of an address's scheme as a file system of fsspec, for DuckDB.

    Raises:
        StorageError: A package is missing, or the environment is not usable.
    """
    with _lacks_told(address):
        from ctr_pipeline.storage.object_store import filesystem_of

        return filesystem_of(address)


STORAGES: Mapping[str, Callable[[str], Storage]] = {
    "file": LocalDisk,
    **dict.fromkeys(STORES, open_object_store),
}
"""Storages by the schemes of their addresses; a path has none."""


def open_storage(address: str) -> Storage:
    """Opens what an address names; nothing is read or written yet.

    Args:
        address: `s3://bucket/prefix`, `gs://…`, `az://…`, or a folder.

    Raises:
        StorageError: No storage has the scheme, or the environment lacks what it needs.
    """
    return STORAGES[require_address(address)](address)


def address_of(path: Path) -> str | None:
    """The address that a path was made of, whose slashes `Path` has merged; None: it is a path."""
    match = re.fullmatch(rf"({'|'.join(STORAGES)}):/+(.*)", str(path))
    if match is None:
        return None
    return f"{match[1]}://{'/' if match[1] == 'file' else ''}{match[2]}"


def require_address(address: str) -> str:
    """The scheme of an address, `file` of a path; nothing is opened.

    Raises:
        StorageError: No storage has the scheme, or the address names no place in it.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "file", address
    if scheme not in STORAGES:
        near = difflib.get_close_matches(scheme.lower(), STORAGES, n=1, cutoff=0.5)
        raise StorageError(
            f"'{scheme}://' is no storage of runs",
            place=address,
            remedy=f"Did you mean '{near[0]}://'?"
            if near
            else f"Write a folder, or one of {', '.join(f'{one}://' for one in STORAGES)}",
        )
    if not rest.strip("/"):
        raise StorageError(
            "names no place", place=address, remedy=f"Write {scheme}://, then where it is"
        )
    return scheme
