"""Work of a phase that is divided into units and may be done by the workers of a job."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ctr_pipeline.distributed.coordination.preparation import (
    Phase,
    PreparationBoard,
    Unit,
    UnitLease,
)
from ctr_pipeline.errors import CtrPipelineError


class AttemptReport(Protocol):
    """Where an attempt at a unit reports how far it is."""

    def add(self, amount: int) -> None:
        """Counts so much more as done, in the unit's measure; raises if the attempt is void."""

    def say(self, line: str) -> None:
        """A line for whoever watches the run."""

    def note(self, text: str) -> None:
        """What it does at this moment, for the same; it replaces what it did before."""


class SharedWork(Protocol):
    """What is done with units; a worker has the same, made from what lies in the run folder."""

    @property
    def phase(self) -> Phase:
        """What it is."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of what is written: workers that would write something else are refused."""

    @property
    def folder(self) -> Path:
        """Folder of the units, while workers do them."""

    def work_on(self, lease: UnitLease, report: AttemptReport) -> None:
        """Writes the part of an attempt, and reports what is done of it."""

    def is_whole(self, lease: UnitLease) -> bool:
        """Whether the part of an attempt that ended lies on the disk."""

    def is_final(self, error: CtrPipelineError) -> bool:
        """Whether every attempt would fail as this one did."""

    def look(self, board: PreparationBoard) -> None:
        """Called now and then, and when all units are done; what it raises ends the work."""


ShareUnits = Callable[[SharedWork, Sequence[Unit]], Mapping[str, Sequence[str]]]
"""Has units worked on; gives the names of the parts of each split, in the order of their rows."""
