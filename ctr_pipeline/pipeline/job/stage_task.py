"""Stages of a run that one worker does as one task, while the process that started the job follows.

What the worker needs beyond the run folder lies in a file of the task's folder: its facts.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.preparation import (
    Phase,
    PreparationBoard,
    Unit,
    UnitLease,
    part_name,
)
from ctr_pipeline.errors import CtrPipelineError, DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.resources import bound_libraries
from ctr_pipeline.pipeline.stages.sharing import AttemptReport
from ctr_pipeline.pipeline.timing import StageTimes

T = TypeVar("T")

_FACTS = "facts.json"
_ATTEMPTS = "attempts"
_MADE_OF: Mapping[Phase, str] = {"divide": "rows", "analyze": "statistics", "finish": "run"}
"""What the stages make, by which their unit is named."""


@dataclass(frozen=True)
class StageTask:
    """Stages that one worker does, as `SharedWork`.

    Attributes:
        phase: Which ones.
        loaded: The config.
        folder: As of `SharedWork`.
        fingerprint: The same.
        num_stages: How many, for the progress.
        run_stages: Does them in a worker, for an attempt.
        is_made: Whether all that an attempt makes is there.
        fails_always: As `is_final` of `SharedWork`.
    """

    phase: Phase
    loaded: LoadedConfig
    folder: Path
    fingerprint: str
    num_stages: int
    run_stages: Callable[[RunContext, UnitLease], None] = field(repr=False)
    is_made: Callable[[UnitLease], bool] = field(repr=False)
    fails_always: Callable[[CtrPipelineError], bool] = field(repr=False)

    @property
    def unit(self) -> Unit:
        """All of it."""
        split = _MADE_OF[self.phase]
        return Unit(split, 0, 0, num_parts=1, start=0, size=self.num_stages, measure="stages")

    def work_on(self, lease: UnitLease, report: AttemptReport) -> None:
        """As of `SharedWork`."""
        context = RunContext.create(self.loaded, _ReportedProgress(report))
        context.times.on_stage = _StageCount(context.times, report).count
        bound_libraries(context.config.runtime)
        self.run_stages(context, lease)

    def is_whole(self, lease: UnitLease) -> bool:
        """As of `SharedWork`."""
        return self.is_made(lease)

    def is_final(self, error: CtrPipelineError) -> bool:
        """As of `SharedWork`."""
        return self.fails_always(error)

    def look(self, board: PreparationBoard) -> None:
        """As of `SharedWork`: what is done is not looked at before all is."""


def attempt_folder(folder: Path, part: str) -> Path:
    """Where an attempt at a task writes and no other one does; it need not exist.

    Args:
        folder: Folder of the task.
        part: As of `UnitLease`.
    """
    return folder / _ATTEMPTS / part


def begin_attempt(folder: Path, lease: UnitLease) -> Path:
    """The folder of an attempt, empty; those of earlier attempts are deleted."""
    mine = attempt_folder(folder, lease.part)
    with durable.os_errors_explained(mine):
        mine.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, lease.attempt + 1):
            earlier = attempt_folder(folder, part_name(lease.unit.number, attempt))
            shutil.rmtree(earlier, ignore_errors=True)
        mine.mkdir()
    return mine


def save_facts(folder: Path, facts: object) -> None:
    """Leaves what a worker needs for a task.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    with durable.os_errors_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(folder / _FACTS, encode(facts).decode())


def load_facts(kind: type[T], folder: Path) -> T:
    """What a worker needs for a task.

    Raises:
        DataError: The process that started the job has left nothing of it.
    """
    try:
        return decode(kind, (folder / _FACTS).read_bytes())
    except (OSError, MalformedMessage) as error:
        raise DataError(
            "is missing or damaged", place=str(folder / _FACTS), remedy="Run again with --resume"
        ) from error


def fingerprint_of_facts(facts: object) -> str:
    """Changes when the facts of a task do."""
    return hashlib.sha256(encode(facts)).hexdigest()


@dataclass
class _StageCount:
    """Reports how many stages are done, whenever one begins."""

    times: StageTimes
    report: AttemptReport
    reported: int = 0

    def count(self) -> None:
        done = len(self.times.seconds)
        self.report.add(done - self.reported)
        self.reported = done


class _ReportedTask:
    """Long work, of which whoever watches sees how far it is; it ends where its lease is lost."""

    def __init__(self, report: AttemptReport, name: str, total: int | None, unit: str) -> None:
        self._report = report
        self._name = name
        self._of_all = f"{unit}" if total is None else f"of {total:,} {unit}"
        self._done = 0

    def advance(self, amount: int) -> None:
        self._done += amount
        self._report.add(0)
        self._report.note(f"{self._name}: {self._done:,} {self._of_all}")

    def note(self, text: str) -> None:
        """Nothing: what is beside a bar is not reported."""

    def __enter__(self) -> Self:
        self._report.note(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        self._report.note("")


class _ReportedProgress:
    """A `Progress` that the process which started the job shows."""

    def __init__(self, report: AttemptReport) -> None:
        self._report = report

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> _ReportedTask:
        """Long work."""
        return _ReportedTask(self._report, name, total, unit)

    def log(self, text: str) -> None:
        """One line; ends the work where its lease is lost."""
        self._report.add(0)
        self._report.say(text)

    def board(self, lines: Sequence[str]) -> None:
        """Nothing: these stages show none."""
