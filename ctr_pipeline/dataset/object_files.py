"""Objects in stores such as S3, by address: found, and read in ranges.

`s3://bucket/clicks/*.parquet`, `gs://…`, `az://…`, `https://…`: whatever one of `SCHEMES` names.
Credentials come from the environment, never from an address. Rows of a file are read once, so
ranges of an object go straight to whoever reads, and no copy lies on disk.
"""

import difflib
import fnmatch
import glob
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote

from ctr_pipeline.dataset.partitions import (
    check_partitioned_files,
    is_hidden,
    is_partition_folder,
    plain_folder,
)
from ctr_pipeline.errors import DataError
from ctr_pipeline.storage.cloud_environment import SCHEMES, is_web, remedy_of
from ctr_pipeline.storage.opening import open_object_store
from ctr_pipeline.storage.protocol import ObjectMissingError, Storage, StoredObject
from ctr_pipeline.storage.ranged_reading import open_ranges

_SECRET_QUERY = re.compile(
    r"(?i)[?&;](x-(amz|goog|oss)-[a-z-]+|sig|signature|pwd|auth|authorization|jwt|"
    r"[a-z0-9_.-]*(token|password|passwd|passphrase|secret|credentials?|api[_.-]?key|"
    r"access[_.-]?key|account[_.-]?key|private[_.-]?key|subscription[_.-]?key)[a-z0-9_.-]*|key)="
)
_REMEDIES = {
    "oss": "OSS is read as S3: write s3://, and set AWS_ENDPOINT_URL to https:// and the bucket's "
    "own domain, AWS_VIRTUAL_HOSTED_STYLE_REQUEST=true, and the keys as AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY",
    "gcs": "Write it as gs://",
}
"""Remedies by schemes that other tools know."""


@dataclass(frozen=True)
class ObjectFile:
    """An object, used where a file is.

    Attributes:
        address: As the config has it, or what a glob or folder in it stands for.
        size_bytes: When it was found.
        store: The bucket, open.
        key: Its name in the bucket.
    """

    address: str
    size_bytes: int
    store: Storage = field(compare=False, repr=False)
    key: str = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """The last part of its address."""
        return self.parts.name

    @property
    def parent(self) -> PurePosixPath:
        """The folders above it."""
        return self.parts.parent

    @property
    def parts(self) -> PurePosixPath:
        """The address as a path, without scheme."""
        return PurePosixPath(self.address.partition("://")[2])

    def state(self) -> tuple[str | int, ...]:
        """Asks the store; changes when the object does.

        Raises:
            DataError: It is gone.
            StorageError: The store cannot be asked.
        """
        try:
            found = self.store.stat(self.key)
        except ObjectMissingError as error:
            raise self._gone() from error
        return self.address, found.num_bytes, f"version {found.version}"

    def open(self) -> io.BufferedReader:
        """Opens the object, to be read once from the start or at any place.

        Raises:
            DataError: It is gone, or changed since it was found.
            StorageError: It cannot be read. Reading raises `ObjectChangedError` if it is written
                again meanwhile.
        """
        try:
            stream = open_ranges(self.store, self.key)
        except ObjectMissingError as error:
            raise self._gone() from error
        if stream.seek(0, io.SEEK_END) != self.size_bytes:
            stream.close()
            raise DataError(
                "changed since it was found",
                place=self.address,
                remedy="Let nothing write into data files meanwhile, and run again",
            )
        stream.seek(0)
        return stream

    def _gone(self) -> DataError:
        return DataError(
            "cannot be found any more",
            place=self.address,
            remedy="Leave data files in place while they are read, and run again",
        )


def names_object(text: str) -> bool:
    """Whether a path of the config is an address rather than a path."""
    return "://" in text


def find_objects(address: str, key: str) -> list[ObjectFile]:
    """The objects that an address stands for.

    A folder of `key=value` folders stands for its Parquet files and a glob for what it matches,
    both sorted by name. An object whose own name has glob characters is taken as it is.

    Args:
        address: As in the config.
        key: The config key, for messages.

    Raises:
        DataError: The scheme is none that is read, the address holds a secret, or there is no such
            object.
        StorageError: A package or credentials are missing, or the store cannot be asked.
    """
    _check_address(address, key)
    root, name = _split(address)
    store = open_object_store(root, any_key=True)
    if not address.endswith("/"):
        try:
            return [ObjectFile(address, store.stat(name).num_bytes, store, name)]
        except ObjectMissingError:
            pass
    if is_web(root):
        raise _no_such_object(address, key)
    if not glob.has_magic(name):
        listed = store.list(name)
        if not listed:
            raise _no_such_object(address, key)
        return _partitioned_objects([_object_of(one, store) for one in listed], address, key)
    pattern = name.split("/")
    first = next(number for number, part in enumerate(pattern) if glob.has_magic(part))
    listed = store.list("/".join(pattern[:first]))
    found = [_object_of(one, store) for one in listed if _matches(one.key.split("/"), pattern)]
    files = [file for file in found if not is_hidden(file.name)]
    if not files:
        raise DataError(
            f"no object matches '{address}'", place=key, remedy="Check the pattern and the bucket"
        )
    return files


def _split(address: str) -> tuple[str, str]:
    """The address of the bucket, and the name in it."""
    scheme, _, rest = address.partition("://")
    bucket, _, name = rest.lstrip("/").partition("/")
    name = name.rstrip("/")
    return f"{scheme}://{bucket}", unquote(name) if is_web(address) else name


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a name is one of a glob, both in parts; `**` stands for any number of parts."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[number:], pattern[1:]) for number in range(len(name) + 1))
    return (
        bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
    )


def _object_of(found: StoredObject, store: Storage) -> ObjectFile:
    return ObjectFile(f"{store.address}/{found.key}", found.num_bytes, store, found.key)


def _no_such_object(address: str, key: str) -> DataError:
    return DataError(f"no such object: '{address}'", place=key, remedy="Check the spelling")


def _partitioned_objects(listed: Sequence[ObjectFile], address: str, key: str) -> list[ObjectFile]:
    """As `find_partitioned_files`, of a store."""
    _, name = _split(address)
    top = PurePosixPath(name)
    below = {file: PurePosixPath(file.key).relative_to(top) for file in listed}
    visible = [file for file in listed if not any(map(is_hidden, below[file].parts))]
    inner = {below[file].parts[0] for file in visible if len(below[file].parts) > 1}
    if not is_partition_folder(top.name) and not any(map(is_partition_folder, inner)):
        raise plain_folder(address.rstrip("/"), key)
    # Some tools mark a folder by an empty object that is called like it.
    folders = {str(folder) for name in below.values() for folder in name.parents}
    files = [
        file
        for file in visible
        if file.size_bytes or not (str(below[file]) in folders or is_partition_folder(file.name))
    ]
    check_partitioned_files(files, address.rstrip("/"), key)
    return files


def _check_address(address: str, key: str) -> None:
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES:
        near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.6)
        known = ", ".join(f"{one}://" for one in SCHEMES)
        other = "Write one of these, a path, or a SELECT for a table of a database"
        likely = f"Did you mean '{near[0]}://'?" if near else other
        raise DataError(
            f"'{scheme}://' is no scheme that is read; those are {known}, and file:// and odps://",
            place=key,
            remedy=_REMEDIES.get(scheme, likely),
        )
    user = rest.partition("/")[0].rpartition("@")[0]
    # Names of parameters may be percent-encoded.
    if ":" in user or _SECRET_QUERY.search(unquote(rest)):
        # The address itself is kept out of the message, and so out of logs.
        raise DataError(
            f"the {scheme}:// address holds a password or a signature, and a config is no place "
            "for it",
            place=key,
            remedy=f"Take it out of the address. {remedy_of(address)}",
        )
    if "::" in rest:
        raise DataError(
            f"'{address}' chains several file systems, and one is read",
            place=key,
            remedy="Name the object itself; .gz and .zst files are read as they are",
        )
    if not rest.strip("/"):
        raise DataError(
            f"'{address}' names no object",
            place=key,
            remedy=f"Write one, such as {scheme}://bucket/clicks/*.parquet",
        )
    if is_web(address) and "?" in rest:
        raise DataError(
            f"'{address}' has a query behind '?', which is not sent",
            place=key,
            remedy="Name the file without it, or download it",
        )
    if any(part in {"", ".", ".."} for part in rest.rstrip("/").split("/")):
        raise DataError(
            f"'{address}' has a part between slashes that is empty or dots only",
            place=key,
            remedy="Write the name of the object as the store lists it",
        )
