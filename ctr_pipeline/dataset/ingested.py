"""The record of an ingestion, `ingested.json` beside the parts it describes."""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.durable import write_text
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ColumnType

INGESTED_VERSION = 1
_RECORD = "ingested.json"


class SplitRows(BaseModel):
    """The rows of one split: their parts in order, how many, and how many with label 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    files: tuple[Path, ...]
    num_rows: int
    num_positive: int


class IngestedRows(BaseModel):
    """Rows that are ingested.

    Attributes:
        version: Of this format.
        splits: By name; those that get no rows are absent.
        bad_rows: What was left out.
        fingerprint: Of files, config and column types; equal ones mean equal rows.
        seconds: What the ingestion took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: int = INGESTED_VERSION
    splits: dict[str, SplitRows]
    bad_rows: BadRows
    fingerprint: str
    seconds: float


def fingerprint_of(
    data: DataConfig,
    source: Source,
    column_types: Mapping[str, ColumnType],
    *,
    seed: int,
    sensitive: Collection[str],
) -> str:
    """Names everything the ingested rows depend on; the seed only where rows are divided by it.

    Sensitive columns are part of it because examples of bad rows are kept without their values.
    """
    facts: dict[str, Any] = {
        "version": INGESTED_VERSION,
        "data": data.model_dump(mode="json"),
        "format": [source.format, source.delimiter],
        "types": list(column_types.items()),
        "seed": seed if data.split.by == "random" else None,
        "sensitive": sorted(sensitive),
        "files": {
            split: [_stat_of(file) for file in files] for split, files in source.files.items()
        },
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _stat_of(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return str(file.resolve()), stat.st_size, stat.st_mtime_ns


def save_ingested(folder: Path, rows: IngestedRows) -> None:
    """Writes the record; files are kept relative to it, so that the folder can be moved."""
    splits = {
        name: split.model_copy(
            update={"files": tuple(file.relative_to(folder) for file in split.files)}
        )
        for name, split in rows.splits.items()
    }
    relative = rows.model_copy(update={"splits": splits})
    write_text(folder / _RECORD, relative.model_dump_json(indent=2) + "\n")


def load_ingested(folder: Path) -> IngestedRows:
    """Reads the record of an ingestion.

    Raises:
        DataError: It is missing or damaged, or parts it names are gone.
    """
    path = folder / _RECORD
    remedy = "Delete the folder and run the pipeline again"
    try:
        rows = IngestedRows.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", place=str(path), remedy=remedy
        ) from error
    except ValueError as error:
        raise DataError(
            "is damaged or of another version", place=str(path), remedy=remedy
        ) from error
    if rows.version != INGESTED_VERSION:
        raise DataError(f"has version {rows.version}", place=str(path), remedy=remedy)
    splits = {
        name: split.model_copy(update={"files": tuple(folder / file for file in split.files)})
        for name, split in rows.splits.items()
    }
    for split in splits.values():
        for file in split.files:
            if not file.is_file():
                raise DataError("is gone", place=str(file), remedy=remedy)
    return rows.model_copy(update={"splits": splits})
