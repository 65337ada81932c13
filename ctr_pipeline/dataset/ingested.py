"""The record of an ingestion, `ingested.json` beside the parts it describes."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.dataset.versions import SourceVersions
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.durable import write_text
from ctr_pipeline.features import ListSpec
from ctr_pipeline.specs.columns import ColumnType

if TYPE_CHECKING:
    from ctr_pipeline.dataset.source import Source

INGESTED_VERSION = 2
_RECORD = "ingested.json"


class TimeRange(BaseModel):
    """The first and the last time of some rows, as people read them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    first: str
    last: str


class SplitRows(BaseModel):
    """The rows of one split.

    Attributes:
        files: Their parts in order.
        part_rows: Rows of each part.
        num_rows: How many.
        num_positive: How many with label 1.
        weights: What they weigh; None without weights.
        times: Their times; None unless rows are divided by time and times may be shown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    files: tuple[Path, ...]
    part_rows: tuple[int, ...]
    num_rows: int
    num_positive: int
    weights: WeightSums | None = None
    times: TimeRange | None = None

    @property
    def label_rate(self) -> float:
        """Mean label, weighted if rows have weights."""
        if self.weights is None:
            return self.num_positive / self.num_rows
        return self.weights.positive / self.weights.total


def joint_label_rate(splits: Sequence[SplitRows]) -> float:
    """Mean label of the rows of several splits, weighted if rows have weights."""
    sizes = [one.num_rows if one.weights is None else one.weights.total for one in splits]
    clicks = [one.label_rate * size for one, size in zip(splits, sizes, strict=True)]
    return sum(clicks) / sum(sizes)


class IngestedRows(BaseModel):
    """Rows that are ingested.

    Attributes:
        splits: By name; those that get no rows are absent.
        bad_rows: What was left out.
        origin: Names what they were read from and as what; see `fingerprint_of`.
        seconds: What the ingestion took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: int = INGESTED_VERSION
    splits: dict[str, SplitRows]
    bad_rows: BadRows
    origin: str
    seconds: float

    @property
    def fingerprint(self) -> str:
        """Equal ones mean equal rows, whatever columns are only carried beside those of features.

        A carried column may make a row a bad one, so what was left out is part of it.
        """
        left_out = [(bad.row, bad.column, bad.reason) for bad in self.bad_rows.examples]
        sizes = {name: split.num_rows for name, split in self.splits.items()}
        facts = [self.origin, sizes, self.bad_rows.by_reason, left_out]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def fingerprint_of(
    data: DataConfig,
    source: "Source",
    column_types: Mapping[str, ColumnType],
    *,
    seed: int,
    sensitive: Collection[str],
    lists: Mapping[str, ListSpec],
    versions: SourceVersions,
) -> str:
    """Names what the ingested rows are read from; the seed only where rows are divided by it.

    Columns that are only carried are no part of it: a run may be asked for more of them later.
    Sensitive columns are part of it because examples of bad rows are kept without their values.

    Args:
        versions: Versions of the files.
    """
    # The files say where they are, however that was written. What is read is not sampled; what is
    # trained on is.
    without = {"train", "query", "valid", "test", "sample", "key_columns"}
    without |= {key for key in ("weight", "key_value") if getattr(data, key) is None}
    # Keys that are read are among the types.
    exclude: dict[str, Any] = {"key_value": {"keys"}, **dict.fromkeys(without, True)}
    facts: dict[str, Any] = {
        "version": INGESTED_VERSION,
        "data": data.model_dump(mode="json", exclude=exclude),
        "format": [source.format_name, source.delimiter],
        "types": list(column_types.items()),
        "seed": seed if data.split.by == "random" else None,
        "sensitive": sorted(sensitive),
        "files": {
            split: [versions.states[file] for file in files]
            for split, files in source.files.items()
        },
    }
    if lists:
        # Under the name that sequences had before there were vectors.
        facts["sequences"] = {name: cut.model_dump(mode="json") for name, cut in lists.items()}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def save_ingested(folder: Path, rows: IngestedRows) -> None:
    """Writes the record; files are kept relative to it, so that the folder can be moved."""
    relative = _with_files(rows, lambda file: file.relative_to(folder))
    write_text(folder / _RECORD, relative.model_dump_json(indent=2) + "\n")


def load_ingested(folder: Path) -> IngestedRows | None:
    """The rows in `folder`; None if there are none that are whole and of this version."""
    try:
        relative = IngestedRows.model_validate_json((folder / _RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    rows = moved(relative, Path(), folder)
    are_there = all(file.is_file() for split in rows.splits.values() for file in split.files)
    return rows if rows.version == INGESTED_VERSION and are_there else None


def moved(rows: IngestedRows, old: Path, new: Path) -> IngestedRows:
    """The same rows after their folder was renamed."""
    return _with_files(rows, lambda file: new / file.relative_to(old))


def _with_files(rows: IngestedRows, change: Callable[[Path], Path]) -> IngestedRows:
    splits = {
        name: split.model_copy(update={"files": tuple(change(file) for file in split.files)})
        for name, split in rows.splits.items()
    }
    return rows.model_copy(update={"splits": splits})
