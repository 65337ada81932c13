"""The ledger of units that workers read or encode: one JSON file, replaced as a whole.

A split has few units, and the process that gives them holds the lock of the run folder: no other
one writes here. The file may lie on any disk that members share.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.distributed.coordination.events import Json

_FILE = "ledger.json"


@dataclass(frozen=True)
class UnitsDone:
    """How many units are done.

    Attributes:
        num_done: Units that lie on the disk.
        num_units: All units.
    """

    num_done: int
    num_units: int


class UnitLedger:
    """Records of units by name.

    Args:
        folder: Where it is kept.
        identity: Names the rows and their units; records of others are forgotten.
        num_units: All units.

    Attributes:
        records: What is known of units that were ever leased.

    Raises:
        RunFolderError: The folder cannot be written.
    """

    def __init__(self, folder: Path, identity: str, num_units: int) -> None:
        self._path = folder / _FILE
        self._facts = {"identity": identity, "num_units": num_units}
        found = _load(self._path)
        is_ours = found is not None and found.get("identity") == identity
        self.records: dict[str, Json] = dict(found["records"]) if found and is_ours else {}
        self.commit({})

    def commit(self, records: Mapping[str, Json]) -> None:
        """Puts records; they survive a power cut when this returns."""
        self.records.update(records)
        durable.write_text(self._path, json.dumps({**self._facts, "records": self.records}))


def read_units_done(folder: Path) -> UnitsDone | None:
    """How far the ledger in a folder says that workers are; None if there is none."""
    found = _load(folder / _FILE)
    if found is None:
        return None
    num_done = sum(bool(record["is_done"]) for record in found["records"].values())
    return UnitsDone(num_done, found["num_units"])


def _load(path: Path) -> Json | None:
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
