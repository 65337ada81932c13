"""Which format the rows of a config have, and what they hold, from a bounded look.

Files of one source must agree: the same columns, in text files without a header the same number,
and the same kind of values in each. With a header the columns may stand in another order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ctr_pipeline.config.models import ConnectionConfig, DataConfig, DataFormat
from ctr_pipeline.dataset.data_files import DataFile, open_bytes, size_of
from ctr_pipeline.dataset.formats import FORMATS
from ctr_pipeline.dataset.key_values import with_key_columns
from ctr_pipeline.dataset.object_files import names_object
from ctr_pipeline.dataset.paths import check_not_twice, paths_of, resolve_files
from ctr_pipeline.dataset.source import Place, Source, SourceFormat
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.source_formats import is_query

_FIRST_BYTES = 64


def inspect_source(data: DataConfig, *, seed: int = 0) -> Source:
    """Resolves the files or tables of a config and finds out what they hold.

    Args:
        data: The config's section.
        seed: Seed of the random split of a table.

    Raises:
        DataError: Files are missing, unreadable, empty, of another format, or do not agree; or a
            column that the config names does not exist.
    """
    groups = {"train": data.training_rows, "valid": data.valid, "test": data.test}
    keys = {"train": data.training_key, "valid": "data.valid", "test": "data.test"}
    named = {split: paths for split, paths in groups.items() if paths is not None}
    source = inspect_paths(data, named, keys, seed=seed)
    source.require([data.label], "data.label")
    if data.weight is not None:
        source.require([data.weight], "data.weight")
    source.require(data.key_columns, "data.key_columns")
    if data.split.column is not None:
        source.require([data.split.column], "data.split.column")
    return source


def inspect_paths(
    data: DataConfig,
    groups: Mapping[str, str | Sequence[str]],
    keys: Mapping[str, str],
    *,
    seed: int | None = None,
    are_new: bool = False,
) -> Source:
    """As `inspect_source`, for paths that need not be those of the config.

    Args:
        data: How they are read.
        groups: Paths or addresses by split.
        keys: Where they are named, by split, for messages.
        seed: Seed of the random split of a table; None: rows are not divided.
        are_new: As of `SourceFormat.inspect`.

    Raises:
        DataError: As `inspect_source`, but for the columns that the config names.
    """
    found = [
        format
        for paths in groups.values()
        for path in paths_of(paths)
        if (format := format_of_address(path, data.connection)) is not None
    ]
    places: dict[str, tuple[Place, ...]] = {}
    empty: list[DataFile] = []
    for split, paths in groups.items():
        if found:
            places[split] = _find_tables(found[0], paths_of(paths), keys[split], data.connection)
        else:
            files = resolve_files(paths, keys[split])
            with_bytes = tuple(file for file in files if not _is_empty_part(file))
            if 0 < len(with_bytes) < len(files):
                there = set(with_bytes)
                empty += [file for file in files if file not in there]
            places[split] = with_bytes or files
    format = found[0] if found else _format_of_files("auto" if are_new else data.format, places)
    source = format.inspect(data, places, seed=seed, are_new=are_new)
    if empty:
        num_others = len(empty) - 1
        others = f" and {num_others:,} other file{'s' if num_others > 1 else ''}"
        note = f"No bytes, and so no rows, are in {empty[0]}{others if num_others else ''}."
        source = replace(source, notes=(*source.notes, note))
    return source if data.key_value is None else with_key_columns(source, data, data.key_value)


def format_of_address(path: str, connection: ConnectionConfig | None = None) -> SourceFormat | None:
    """The format whose table a path of the config names; None if it names files.

    Args:
        path: A path, an address or a SELECT.
        connection: The database that executes SELECTs.
    """
    found = next((format for format in FORMATS if format.is_address(path)), None)
    if connection is None or not is_query(path):
        return found
    return next((format for format in FORMATS if format.driver == connection.driver), found)


def asks_elsewhere(paths: str | Sequence[str]) -> bool:
    """Whether a look at these paths asks a service or an object store."""
    for path in paths_of(paths):
        format = format_of_address(path)
        if format.is_remote if format is not None else names_object(path):
            return True
    return False


def local_files(path: str, key: str) -> tuple[Path, ...]:
    """The files on this machine that hold the rows of a path, glob or address.

    Args:
        path: As in the config.
        key: Where it is named, for messages.

    Raises:
        DataError: There is no such file.
    """
    format = format_of_address(path)
    if format is not None:
        return () if format.is_remote else format.local_files(format.find(path, key))
    if names_object(path):
        return ()
    return tuple(file for file in resolve_files(path, key) if isinstance(file, Path))


def _find_tables(
    format: SourceFormat, addresses: Sequence[str], key: str, connection: ConnectionConfig | None
) -> tuple[Place, ...]:
    for address in addresses:
        if format_of_address(address, connection) is not format:
            raise DataError(
                f"'{address}' is no table of {format.name}, but other rows are in one",
                place=key,
                remedy="Give tables only, or files only",
            )
    return check_not_twice([format.find(address, key) for address in addresses], key)


def _format_of_files(wanted: DataFormat, places: Mapping[str, tuple[Place, ...]]) -> SourceFormat:
    """The format that all files have.

    Args:
        wanted: What the config says.
        places: The files, by split.

    Raises:
        DataError: They are of several, or one cannot be read.
    """
    formats = {
        file: _format_of(file, wanted)
        for group in places.values()
        for file in group
        if isinstance(file, DataFile)
    }
    (first, expected), *others = formats.items()
    for file, format in others:
        if format is not expected:
            raise DataError(
                f"is {format.name}, but '{first}' is {expected.name}",
                place=str(file),
                remedy="Give files of one format",
            )
    return expected


def _is_empty_part(file: DataFile) -> bool:
    """Whether this is a text of no bytes, as Spark writes where a part of a table has no rows."""
    name = file.name.lower()
    return size_of(file) == 0 and not any(
        name.endswith(format.endings) for format in FORMATS if format.magic
    )


def _format_of(file: DataFile, wanted: DataFormat) -> SourceFormat:
    try:
        size = size_of(file)
        with open_bytes(file) as stream:
            first_bytes = stream.read(_FIRST_BYTES)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})",
            place=str(file),
            remedy="Check the file and its permissions",
        ) from error
    if size == 0:
        raise DataError("is empty", place=str(file), remedy="Leave it out, or write it again")
    for format in FORMATS:
        if format.begins(first_bytes, file):
            if wanted not in {"auto", *format.keys}:
                raise DataError(
                    f"is {format.name}, but data.format is {wanted}",
                    place=str(file),
                    remedy="Set data.format: auto",
                )
            return format
    name = file.name.lower().removesuffix(".gz").removesuffix(".zst")
    for format in FORMATS:
        is_promised = wanted in format.keys or (wanted == "auto" and name.endswith(format.endings))
        if is_promised and format.magic:
            raise DataError(
                f"is not a {format.name} file: it does not begin with the bytes "
                f"{format.magic.hex(' ')}",
                place=str(file),
                remedy="Write it again, or set data.format to what it is",
            )
    return FORMATS[-1]
