"""Objects in stores such as S3, by address: found, and read in ranges, through fsspec.

`s3://bucket/clicks/*.parquet`, `gs://…`, `az://…`, `https://…`: whatever one of `SCHEMES` names.
Credentials come from where the store's own package looks for them, never from an address. Rows of a
file are read once, so ranges of an object go straight to whoever reads, and no copy lies on disk.
"""

import difflib
import glob
import io
import re
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

from ctr_pipeline.dataset.partitions import (
    check_partitioned_files,
    is_hidden,
    is_partition_folder,
    plain_folder,
)
from ctr_pipeline.errors import DataError

BUFFER_BYTES = 64 << 10
FIRST_BYTES = 256 << 10
"""Of a read that does not go on from the last one, such as that of a head or a footer."""

RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 2
_RANGES_KEPT = 2
"""Columns of Parquet are not always asked for in their order."""

_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.5

_VERSION_KEYS = (
    "generation",
    "VersionId",
    "ETag",
    "etag",
    "md5Hash",
    "Content-MD5",
    "LastModified",
    "last_modified",
    "updated",
    "Last-Modified",
    "mtime",
    "created",
)
"""What stores tell about an object that changes with it, the surest first."""

_SECRET_QUERY = re.compile(
    r"(?i)[?&;](x-(amz|goog|oss)-[a-z-]+|sig|signature|pwd|auth|authorization|jwt|"
    r"[a-z0-9_.-]*(token|password|passwd|passphrase|secret|credentials?|api[_.-]?key|"
    r"access[_.-]?key|account[_.-]?key|private[_.-]?key|subscription[_.-]?key)[a-z0-9_.-]*|key)="
)


class _Store(NamedTuple):
    """What a scheme needs."""

    package: str | None
    credentials: str


_S3 = _Store(
    "s3fs", "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in the environment"
)
_GCS = _Store(
    "gcsfs",
    "Set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
)
_AZURE = _Store(
    "adlfs", "Set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and a key of it"
)
_OSS = _Store("ossfs", "Set OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET and OSS_ENDPOINT")
_WEB = _Store("aiohttp", "Name an address that needs no password, or download the file")
SCHEMES: Mapping[str, _Store] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "oss": _OSS,
    "http": _WEB,
    "https": _WEB,
    "memory": _Store(None, "Check the address"),
}
"""Of addresses that are read, each with the package that reads them beside fsspec."""


@dataclass(frozen=True)
class ObjectFile:
    """An object, used where a file is.

    Attributes:
        address: As the config has it, or what a glob or folder in it stands for.
        size_bytes: When it was found.
    """

    address: str
    size_bytes: int

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
        """Its address as a path, without scheme and query."""
        scheme, _, rest = self.address.partition("://")
        return PurePosixPath(rest.partition("?")[0] if scheme in {"http", "https"} else rest)

    def state(self) -> tuple[str | int, ...]:
        """Asks the store; changes when the object does.

        Raises:
            DataError: It is gone, or the store cannot be asked.
        """
        store, path = open_store(self.address)
        try:
            info = store.info(path)
        except FileNotFoundError as error:
            raise DataError(
                "cannot be found any more",
                place=self.address,
                remedy="Leave data files in place while they are read, and run again",
            ) from error
        except Exception as error:  # noqa: BLE001  each store has errors of its own
            _explain(error, self.address)
        return self.address, _size_of(info, self.address), _version_of(info)

    def open(self) -> io.BufferedReader:
        """Its bytes, to be read once from the start or at any place.

        Raises:
            DataError: It changed since it was found, or cannot be read; closing it raises this too
                if it changed while it was read.
        """
        return io.BufferedReader(_RangeReader(self), BUFFER_BYTES)


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
        DataError: The scheme is none that is read, a package or credentials are missing, the
            address holds a secret, or there is no such object.
    """
    _check_address(address, key)
    store, path = open_store(address)
    try:
        info = _info_of(store, path)
        if info is not None and info["type"] != "directory":
            found = {info["name"]: info}
        elif info is not None:
            return _partitioned_objects(store, path, address, key)
        elif glob.has_magic(path):
            found = {
                name: about
                for name, about in store.glob(path, detail=True).items()
                if about["type"] != "directory" and not is_hidden(PurePosixPath(name).name)
            }
        else:
            found = {}
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001  each store has errors of its own
        _explain(error, address)
    if not found and glob.has_magic(path):
        raise DataError(
            f"no object matches '{address}'", place=key, remedy="Check the pattern and the bucket"
        )
    if not found:
        raise DataError(f"no such object: '{address}'", place=key, remedy="Check the spelling")
    if len(found) == 1 and info is not None:
        return [ObjectFile(address, _size_of(info, address))]
    return [_object_of(name, found[name], address) for name in sorted(found)]


def _partitioned_objects(store: Any, path: str, address: str, key: str) -> list[ObjectFile]:
    """As `find_partitioned_files`, of a store."""
    listed: dict[str, Mapping[str, Any]] = store.find(path, detail=True)
    top = PurePosixPath(path)
    below = {name: PurePosixPath(name).relative_to(top) for name in listed}
    visible = [name for name in listed if not any(map(is_hidden, below[name].parts))]
    inner = {below[name].parts[0] for name in visible if len(below[name].parts) > 1}
    if not is_partition_folder(top.name) and not any(map(is_partition_folder, inner)):
        raise plain_folder(address.rstrip("/"), key)
    # Some tools mark a folder by an empty object that is called like it.
    files = [
        _object_of(name, listed[name], address) for name in sorted(visible) if below[name].parts
    ]
    files = [file for file in files if file.size_bytes or not file.address.endswith("/")]
    check_partitioned_files(files, address.rstrip("/"), key)
    return files


def _check_address(address: str, key: str) -> None:
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES:
        near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.6)
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise DataError(
            f"'{scheme}://' is no scheme that is read; those are {known}, and file:// and odps://",
            place=key,
            remedy=f"Did you mean '{near[0]}://'?"
            if near
            else "Write one of these, a path, or a SELECT for a table of a database",
        )
    user = rest.partition("/")[0].rpartition("@")[0]
    # Names of parameters may be percent-encoded.
    if ":" in user or _SECRET_QUERY.search(unquote(rest)):
        # The address itself is kept out of the message, and so out of logs.
        raise DataError(
            f"the {scheme}:// address holds a password or a signature, and a config is no place "
            "for it",
            place=key,
            remedy=f"Take it out of the address. {SCHEMES[scheme].credentials}",
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


def open_store(address: str) -> tuple[Any, str]:
    """The store of an address, and what the store calls the object."""
    scheme = address.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise DataError(
            f"{scheme}:// addresses need the package fsspec, which is not installed",
            place=address,
            remedy="Run: pip install 'ctrpipe[objectstore]'",
        ) from error
    try:
        # What is listed must be as new as what is read.
        store, path = url_to_fs(address, use_listings_cache=False)
    except ImportError as error:
        package = SCHEMES[scheme].package
        raise DataError(
            f"{scheme}:// addresses need the package {package}, which is not installed",
            place=address,
            remedy=f"Run: pip install {package}",
        ) from error
    except Exception as error:  # noqa: BLE001  each store has errors of its own
        _explain(error, address)
    return store, str(path)


def _info_of(store: Any, path: str) -> Mapping[str, Any] | None:
    try:
        info: Mapping[str, Any] = store.info(path)
    except FileNotFoundError:
        return None
    return info


def _object_of(name: str, info: Mapping[str, Any], address: str) -> ObjectFile:
    """An object that was found below an address, by what the store calls it."""
    scheme, _, rest = address.partition("://")
    if "://" not in name:
        # The store leaves out an account that stands with the bucket, as in container@account.
        bucket, _, inner = name.lstrip("/").partition("/")
        authority = rest.lstrip("/").partition("/")[0]
        is_known = authority == bucket or authority.startswith(f"{bucket}@")
        name = f"{scheme}://{authority if is_known else bucket}/{inner}"
    return ObjectFile(name, _size_of(info, name))


def _size_of(info: Mapping[str, Any], address: str) -> int:
    size = info.get("size")
    if size is None:
        raise DataError(
            "has no size that the server would tell, and cannot be read in ranges",
            place=address,
            remedy="Download it and name the file",
        )
    return int(size)


def _version_of(info: Mapping[str, Any]) -> str:
    return next((f"{key} {info[key]}" for key in _VERSION_KEYS if info.get(key)), "")


def _explain(error: Exception, address: str) -> NoReturn:
    """What an error of a store means to the user.

    Raises:
        DataError: Always.
    """
    scheme = address.partition("://")[0]
    first_line = (str(error).strip() or "no message").splitlines()[0]
    what = f"{type(error).__name__}: {first_line}"
    if _is_refused(error):
        raise DataError(
            f"may not be read ({what})", place=address, remedy=SCHEMES[scheme].credentials
        ) from error
    raise DataError(
        f"cannot be read ({what})",
        place=address,
        remedy="Check the address, the network and the store's credentials, and run again",
    ) from error


def _is_refused(error: Exception) -> bool:
    """Whether the store wants credentials, or others."""
    status = getattr(error, "status", getattr(error, "code", None))
    return (
        isinstance(error, PermissionError)
        or status in {401, 403, "401", "403"}
        or "Credential" in type(error).__name__
    )


@dataclass
class _Reading:
    """Ranges of an object that are there or on their way, by their first bytes."""

    kept: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_RANGES_KEPT))
    ahead: deque[tuple[int, int, "Future[bytes]"]] = field(default_factory=deque)
    num_in_order: int = 0


class _RangeReader(io.RawIOBase):
    """Reads an object in ranges, the next ones ahead where it is read in order."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._store, self._path = open_store(file.address)
        self._state = file.state()
        if self._state[1] != file.size_bytes:
            raise self._changed()
        self._position = 0
        self._num_ranges = 0
        self._ranges = _Reading()
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD, thread_name_prefix="object-ranges")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}
        self._position = max(0, start[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """As many bytes as are there at once."""
        view = memoryview(buffer).cast("B")
        if not len(view) or self._position >= self._file.size_bytes:
            return 0
        start, data = self._range_at(self._position, len(view))
        part = memoryview(data)[self._position - start :][: len(view)]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        """Ends the reading.

        Raises:
            DataError: The object changed meanwhile: its ranges may be of two versions.
        """
        if self.closed:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()
        if self._num_ranges > 1 and self._file.state() != self._state:
            raise self._changed()

    def _range_at(self, position: int, wanted: int) -> tuple[int, bytes]:
        """A range that holds the byte at `position`."""
        kept, ahead = self._ranges.kept, self._ranges.ahead
        for start, data in kept:
            if start <= position < start + len(data):
                return start, data
        follows = bool(kept) and position == kept[-1][0] + len(kept[-1][1])
        self._ranges.num_in_order = self._ranges.num_in_order + 1 if follows else 0
        # A head is asked for in two pieces, of which the second one is short.
        is_long = self._ranges.num_in_order > 1
        self._num_ranges += 1
        while ahead:
            start, length, future = ahead.popleft()
            if start <= position < start + length:
                kept.append((start, future.result()))
                break
            future.cancel()
        else:
            size = max(wanted, RANGE_BYTES if is_long else FIRST_BYTES)
            kept.append((position, self._fetch(position, self._length(position, size))))
        if is_long:
            self._read_ahead()
        return kept[-1]

    def _read_ahead(self) -> None:
        kept, ahead = self._ranges.kept, self._ranges.ahead
        end = ahead[-1][0] + ahead[-1][1] if ahead else kept[-1][0] + len(kept[-1][1])
        while len(ahead) < _RANGES_AHEAD and end < self._file.size_bytes:
            length = self._length(end, RANGE_BYTES)
            ahead.append((end, length, self._pool.submit(self._fetch, end, length)))
            end += length

    def _length(self, start: int, wanted: int) -> int:
        return min(wanted, self._file.size_bytes - start)

    def _fetch(self, start: int, length: int) -> bytes:
        """The bytes [start, start + length), after several attempts if need be."""
        attempt = 1
        while True:
            try:
                data = self._store.cat_file(self._path, start=start, end=start + length)
            except Exception as error:  # noqa: BLE001  each store has errors of its own
                is_lasting = isinstance(error, FileNotFoundError) or _is_refused(error)
                if is_lasting or attempt == _ATTEMPTS:
                    _explain(error, self._file.address)
            else:
                if len(data) > length:
                    raise DataError(
                        "is served as a whole, and not in ranges",
                        place=self._file.address,
                        remedy="Download it and name the file",
                    )
                if len(data) < length:
                    raise self._changed()
                return bytes(data)
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            attempt += 1

    def _changed(self) -> DataError:
        return DataError(
            "changed while it was read",
            place=self._file.address,
            remedy="Let nothing write into data files meanwhile, and run again",
        )
