"""Folders `key=value` above Parquet files: their values are columns of every row beneath them.

Hive, Spark, DuckDB and Arrow write tables like this: `clicks/ds=2024-03-31/hour=07/part-0.parquet`.
Keys and values are percent-encoded; `__HIVE_DEFAULT_PARTITION__` and no value at all mean missing.
Values are texts, as those of text files are, and numbers only where they are used as such: the hour
`07` stays `07`.
"""

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Protocol
from urllib.parse import unquote

import pyarrow as pa

from ctr_pipeline.errors import DataError

Partition = tuple[tuple[str, str | None], ...]
"""Name and value of each folder, the outermost first; None is missing."""

_MISSING = "__HIVE_DEFAULT_PARTITION__"
_STREAMS = (Path("/dev"), Path("/dev/fd"))
_ENDINGS = (".parquet", ".pq")


class NamedFile(Protocol):
    """A file on disk or an object in a store."""

    @property
    def name(self) -> str:
        """Without its folders."""

    @property
    def parent(self) -> PurePath:
        """The folders above the file."""


def is_partition_folder(name: str) -> bool:
    """Whether a folder's own name is `key=value`."""
    key, equals, _ = name.partition("=")
    return bool(key and equals)


def find_partitioned_files(folder: Path, key: str) -> list[Path]:
    """The files in the `key=value` folders of a folder, sorted by path.

    Hidden files and folders, whose names begin with a dot or `_`, are no data, as in Hadoop.

    Args:
        folder: A folder that holds such folders, or is one.
        key: The config key, for messages.

    Raises:
        DataError: The folder is neither, holds no file, or one that is not Parquet by its name; or
            a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            f"cannot be read ({error.strerror})",
            place=str(error.filename),
            remedy="Check the folder's permissions",
        ) from error

    is_one = is_partition_folder(folder.name)
    found: list[Path] = []
    for place, inner, files in os.walk(folder, onerror=refuse):
        visible = [name for name in inner if not is_hidden(name)]
        if Path(place) == folder and not is_one and not any(map(is_partition_folder, visible)):
            raise plain_folder(str(folder), key)
        inner[:] = visible
        found += [Path(place) / name for name in files if not is_hidden(name)]
    check_partitioned_files(found, str(folder), key)
    for file in found:
        check_regular(file, key)
    return sorted(found, key=str)


def check_regular(path: Path, key: str) -> None:
    """Raises DataError if something that exists is no file, such as a pipe: reading it may wait.

    Nor is a stream of this process, whatever it is led to: the next command has another one.
    """
    if path.exists() and (not path.is_file() or path.parent in _STREAMS):
        raise DataError(
            f"'{path}' is a pipe, a socket or a device, and rows are read several times",
            place=key,
            remedy="Write the rows into a file, and name that",
        )


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is no data, as in Hadoop's folders."""
    return name.startswith((".", "_"))


def plain_folder(folder: str, key: str) -> DataError:
    """A folder is named, and holds no `key=value` folders."""
    return DataError(
        f"'{folder}' is a folder, not a file",
        place=key,
        remedy=f"Name its files with a glob such as '{folder}/*.parquet'",
    )


def check_partitioned_files(found: Sequence[NamedFile], folder: str, key: str) -> None:
    """Raises DataError unless there are files, all of them Parquet by their names."""
    if not found:
        raise DataError(
            f"no file is in the folder '{folder}'", place=key, remedy="Check the folder"
        )
    for file in found:
        if not file.name.lower().endswith(_ENDINGS):
            raise DataError(
                "is no Parquet file by its name, and the values of key=value folders are columns "
                "of Parquet files only",
                place=str(file),
                remedy=f"Take it out of '{folder}', or name the files with a glob such as "
                f"'{folder}/**/*.parquet'",
            )


def partition_of(file: NamedFile) -> Partition:
    """What the folders of a path, as it was given, say of the rows of its file.

    Raises:
        DataError: Two folders have the same key, or a name is not UTF-8.
    """
    values: dict[str, str | None] = {}
    for folder in file.parent.parts:
        if not is_partition_folder(folder):
            continue
        raw_key, _, raw_value = folder.partition("=")
        try:
            name, value = unquote(raw_key, errors="strict"), unquote(raw_value, errors="strict")
            (name + value).encode()
        except UnicodeError as error:
            raise DataError(
                "the name of a key=value folder is not UTF-8",
                place=repr(str(file)),
                remedy="Rename the folder",
            ) from error
        if name in values:
            raise DataError(
                f"two of its folders are named '{name}=…'",
                place=str(file),
                remedy="Rename one of them",
            )
        values[name] = None if value in {"", _MISSING} else value
    return tuple(values.items())


def with_partition(schema: pa.Schema, partition: Partition, file: NamedFile) -> pa.Schema:
    """The columns of a file and those of its folders behind them.

    Raises:
        DataError: A folder and a column of the file have the same name.
    """
    for name, value in partition:
        if name in schema.names:
            raise DataError(
                f"its own column '{name}' and its folder '{name}={'' if value is None else value}' "
                "have the same name, and may say different things",
                place=str(file),
                remedy="Write the files without the column, or rename the folders",
            )
        schema = schema.append(pa.field(name, pa.string()))
    return schema


def add_partition(
    batch: pa.RecordBatch, partition: Partition, names: Sequence[str]
) -> pa.RecordBatch:
    """The columns `names` of a file's rows, those of its folders among them."""
    if not partition:
        return batch.select(names)
    values = dict(partition)
    columns = [
        pa.repeat(pa.scalar(values[name], pa.string()), batch.num_rows)
        if name in values
        else batch.column(name)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
