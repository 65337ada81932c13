"""The columns that a config names, held against those of the data, all at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.inspection import asks_elsewhere, inspect_paths, inspect_source
from ctr_pipeline.dataset.paths import paths_of
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import ConfigError, CtrPipelineError, DataError

_READING = (
    "train",
    "query",
    "attach",
    "connection",
    "format",
    "record",
    "columns",
    "key_value",
    "delimiter",
    "quote",
)
"""Keys of `data` that a header depends on."""


def find_header(section: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of the training rows by a `data:` section in which other keys may be wrong.

    None where `columns` lists them, which the config itself is held against; where the rows are
    not in files of this machine; and where they cannot be read, which is told once the config is
    right.
    """
    given = {key: section[key] for key in _READING if section.get(key) is not None}
    if "columns" in given:
        return ()
    try:
        data = DataConfig.model_validate(given)
        rows = data.training_rows
        if data.connection is not None or asks_elsewhere(rows):
            return ()
        return inspect_paths(data, {"train": rows}, {"train": data.training_key}).column_names
    except (ValidationError, CtrPipelineError):
        return ()


def inspect_named(loaded: LoadedConfig) -> Source:
    """What the files or tables of a config hold.

    Raises:
        ConfigError: Several columns that the config names are not there.
        DataError: As `inspect_source`.
    """
    config = loaded.config
    try:
        return inspect_source(config.data, seed=config.train.seed)
    except DataError as error:
        header = find_header(config.data.model_dump(exclude_defaults=True))
        problems = loaded.missing_columns(header) if header else []
        if len(problems) > 1:
            raise ConfigError(problems) from error
        _refuse_rows_beside_config(loaded)
        raise


def _refuse_rows_beside_config(loaded: LoadedConfig) -> None:
    """Raises DataError if rows lie where the config is, and the command runs elsewhere."""
    if loaded.path is None:
        return
    folder, data = loaded.path.absolute().parent, loaded.config.data
    for key, paths in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        for path in paths_of(paths or ()):
            if not Path(path).exists() and (folder / path).is_file():
                raise DataError(
                    f"no such file: '{path}'",
                    place=f"data.{key}",
                    remedy=f"Paths are relative to the folder the command runs in, {Path.cwd()}; "
                    f"there is one of that name in {folder}, where the config is: run it there",
                )
