"""Files that exist, from `data.train`, `data.valid` and `data.test`."""

import glob
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TypeVar

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.object_files import find_objects, names_object
from ctr_pipeline.dataset.partitions import check_regular, find_partitioned_files, is_hidden
from ctr_pipeline.errors import DataError, NoSuchFileError

_LOCAL = "file://"
_Place = TypeVar("_Place", bound=Hashable)


def paths_of(paths: str | Sequence[str]) -> tuple[str, ...]:
    """One path or several, as several."""
    return (paths,) if isinstance(paths, str) else tuple(paths)


def paths_of_splits(data: DataConfig) -> tuple[str, ...]:
    """All paths and addresses of the rows that a config trains, validates and tests on."""
    given = (data.training_rows, data.valid, data.test)
    return tuple(path for paths in given if paths is not None for path in paths_of(paths))


def resolve_files(paths: str | Sequence[str], key: str) -> tuple[DataFile, ...]:
    """The files that a path, a list of paths or globs stand for.

    A list keeps its order; the files of a glob are sorted by name, and so are those of a folder of
    `key=value` folders. A file whose own name has glob characters is taken as it is. Addresses such
    as `s3://bucket/*.parquet` stand for objects in the same way.

    Args:
        paths: As in the config.
        key: The config key, for messages.

    Raises:
        DataError: A file is missing, a plain folder, or named twice; a glob matches nothing; an
            object store cannot be asked.
    """
    files: list[DataFile] = []
    for item in paths_of(paths):
        files.extend(_resolve_one(item, key))
    if not files:
        raise DataError("names no files", place=key, remedy="Name a file, a list or a glob")
    return check_not_twice(files, key)


def check_not_twice(places: Sequence[_Place], key: str) -> tuple[_Place, ...]:
    """The same files or tables; DataError if one is named twice."""
    seen = set[_Place]()
    for place in places:
        if place in seen:
            raise DataError(
                f"'{place}' is named twice, its rows would count twice",
                place=key,
                remedy="Name it once",
            )
        seen.add(place)
    return tuple(places)


def _resolve_one(item: str, key: str) -> list[DataFile]:
    item = item.removeprefix(_LOCAL)
    if names_object(item):
        return [*find_objects(item, key)]
    path = Path(item).expanduser()
    if path.is_dir():
        return [*find_partitioned_files(path, key)]
    if path.exists():
        check_regular(path, key)
        return [path]
    if not glob.has_magic(item):
        raise NoSuchFileError(
            f"no such file: '{path}'",
            place=key,
            remedy="Check the spelling"
            if path.is_absolute()
            else f"Paths are relative to the folder the command runs in, {Path.cwd()}",
        )
    # Path.glob takes no absolute pattern.
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
    files = [match for match in matches if match.is_file() and not is_hidden(match.name)]
    if not files:
        raise NoSuchFileError(
            f"no file matches '{item}'", place=key, remedy="Check the pattern and the folder"
        )
    return [*files]
