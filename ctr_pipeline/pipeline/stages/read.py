"""Rows that workers read, in units of neighbouring ranges of the files of a split."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ctr_pipeline import durable
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.ingest import RowsToRead, load_read, read_units
from ctr_pipeline.dataset.parts import Part
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.source import Unit as SourceUnit
from ctr_pipeline.distributed.coordination.preparation import (
    Phase,
    PreparationBoard,
    UnitLease,
    plan_units,
)
from ctr_pipeline.errors import CtrPipelineError, DataError
from ctr_pipeline.features import ListSpec
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.sharing import AttemptReport, ShareUnits
from ctr_pipeline.specs.columns import ColumnType

_FACTS = "reading.json"


class _Facts(BaseModel):
    """What workers read, beyond the config.

    Attributes:
        types: As of `RowsToRead.column_types`.
        sensitive: As of `RowsToRead`.
        lists: As of `RowsToRead`.
        files: The files of each split, as the process that gives units names them.
        units: Their ranges.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    types: dict[str, ColumnType]
    sensitive: tuple[str, ...]
    lists: dict[str, ListSpec]
    files: dict[str, tuple[str, ...]]
    units: dict[str, tuple[SourceUnit, ...]]


@dataclass
class SplitReader:
    """Reads units of splits, as `SharedWork`.

    Attributes:
        run: The run folder.
        rows: What is read.
        units: The ranges of each split's files.
        threads: Threads that read.
        names: What the process that gives units calls a file, where it is another one; a file may
            be named by a relative path there.
        ledger: Counts bad rows of units that are done; None in a worker that reads.
    """

    run: RunFolder
    rows: RowsToRead
    units: Mapping[str, Sequence[SourceUnit]]
    threads: int
    names: Mapping[str, str] = field(default_factory=dict)
    ledger: BadRowLedger | None = None
    phase: Phase = "read"
    _num_joined: int = field(default=0, init=False)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the rows."""
        return self.rows.origin

    @property
    def folder(self) -> Path:
        """As of `SharedWork`."""
        return self.run.reading

    def folder_of(self, split: str, part: str) -> Path:
        """Where an attempt at a unit writes."""
        return self.folder / "parts" / split / part

    def work_on(self, lease: UnitLease, report: AttemptReport) -> None:
        """As of `SharedWork`."""
        unit = lease.unit
        read_units(
            self.rows,
            self.units[unit.split][unit.first_part : unit.first_part + unit.num_parts],
            self.folder_of(unit.split, lease.part),
            threads=self.threads,
            on_bytes=report.add,
            name_of=lambda file: self.names.get(str(file), str(file)),
        )

    def is_whole(self, lease: UnitLease) -> bool:
        """As of `SharedWork`."""
        return load_read(self.folder_of(lease.unit.split, lease.part)) is not None

    def is_final(self, error: CtrPipelineError) -> bool:
        """As of `SharedWork`: another host may read what this one cannot."""
        del error
        return False

    def look(self, board: PreparationBoard) -> None:
        """Counts rows of the units before which all are done.

        Raises:
            DataError: A row is bad and none may be, or what a worker wrote is gone.
        """
        while (lease := board.done_after(self._num_joined)) is not None:
            unit = lease.unit
            self._join(unit.split, lease.part, self.ledger, is_first=unit.number == 0)
            self._num_joined += 1

    def join(
        self, names: Mapping[str, Sequence[str]], ledger: BadRowLedger
    ) -> dict[str, dict[str, list[Part]]]:
        """The parts of each split's files, by the split they belong to, in order.

        Args:
            names: Names of what the attempts at each split wrote, in the order of its rows.
            ledger: Counts their bad rows.

        Raises:
            DataError: As of `look`.
        """
        joined: dict[str, dict[str, list[Part]]] = {split: {} for split in names}
        for split, found in names.items():
            for number, name in enumerate(found):
                read = self._join(split, name, ledger, is_first=number == 0)
                for belongs, parts in read.items():
                    joined[split].setdefault(belongs, []).extend(parts)
        return joined

    def _join(
        self, split: str, name: str, ledger: BadRowLedger | None, *, is_first: bool
    ) -> dict[str, list[Part]]:
        folder = self.folder_of(split, name)
        found = load_read(folder)
        if found is None:
            raise DataError(
                "is missing or damaged", place=str(folder), remedy="Run again with --resume"
            )
        if ledger is not None:
            if is_first:
                ledger.end_file()
            for one in found.files:
                ledger.enter(one)
        return found.parts_in(folder)


def read_by_workers(
    rows: RowsToRead, config: Config, run: RunFolder, share_units: ShareUnits
) -> Mapping[str, Sequence[str]]:
    """Has workers read all rows.

    Args:
        rows: What is read.
        config: The config.
        run: The run folder.
        share_units: Has units read.

    Returns:
        Names of what was read of each split's files, in the order of their rows.

    Raises:
        DataError: A row is bad and none may be, or too many are.
    """
    unit_bytes = config.runtime.bytes_per_reading_task
    ranges = {split: rows.source.units(split, unit_bytes) for split in rows.source.files}
    units = [
        unit
        for split, found in ranges.items()
        for unit in plan_units(
            split,
            _sizes(rows.source, found, unit_bytes),
            unit_bytes,
            "bytes",
            partial(name_of_ranges, found),
        )
    ]
    ledger = BadRowLedger(config.data.bad_rows, config.data.max_bad_fraction)
    reader = SplitReader(run, rows, ranges, threads=1, ledger=ledger)
    facts = _Facts(
        types=dict(rows.column_types),
        sensitive=tuple(sorted(rows.sensitive)),
        lists=dict(rows.lists),
        files={
            split: tuple(str(place) for place in places)
            for split, places in rows.source.files.items()
        },
        units={split: tuple(found) for split, found in ranges.items()},
    )
    with durable.os_errors_explained(reader.folder):
        reader.folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(reader.folder / _FACTS, facts.model_dump_json())
    return share_units(reader, units)


def name_of_ranges(units: Sequence[SourceUnit], first: int, number: int) -> str:
    """What neighbouring ranges are: files, or which parts of one."""
    some = units[first : first + number]
    start, end = some[0].place, some[-1].place
    if start != end:
        return f"{start} to {end}"
    places = [place for place, unit in enumerate(units) if unit.place == start]
    if len(places) == number:
        return start
    part = first - places[0] + 1
    parts = f"part {part}" if number == 1 else f"parts {part} to {part + number - 1}"
    return f"{parts} of {len(places)} of {start}"


def _sizes(source: Source, units: Sequence[SourceUnit], unit_bytes: int) -> list[int]:
    """About how many bytes each range has: those that a file is cut into, as many as was asked."""
    files = {str(place): opened for place, opened in source.opened.items()}
    numbers = Counter(unit.place for unit in units)
    sizes = []
    for unit in units:
        if unit.after is not None:
            sizes.append(unit_bytes)
            continue
        # The last one of a file, or all of it.
        before = (numbers[unit.place] - 1) * unit_bytes
        sizes.append(max(1, files[unit.place].size_bytes() - before))
    return sizes


def open_reader(config: Config, run: RunFolder, source: Source, threads: int) -> SplitReader:
    """What a worker reads units with.

    Raises:
        DataError: The process that gives units has left nothing of it.
    """
    try:
        facts = _Facts.model_validate_json((run.reading / _FACTS).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            "is missing or damaged", place=str(run.reading / _FACTS), remedy="Start the run again"
        ) from error
    rows = RowsToRead(
        config.data,
        source,
        facts.types,
        config.train.seed,
        facts.sensitive,
        facts.lists,
        config.evaluation.columns,
    )
    here = {
        split: dict(zip(facts.files[split], map(str, places), strict=True))
        for split, places in source.files.items()
    }
    units = {
        split: [replace(unit, place=here[split][unit.place]) for unit in found]
        for split, found in facts.units.items()
    }
    names = {mine: theirs for files in here.values() for theirs, mine in files.items()}
    return SplitReader(run, rows, units, threads, names)
