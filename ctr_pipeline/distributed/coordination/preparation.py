"""Units of the phases before and after training: who works on which, and which are done.

`PreparationBoard` decides without effects: its methods take the time, and `take_changed` gives what
the ledger must hold before anybody acts on it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from ctr_pipeline.distributed.coordination.codec import from_record, to_record
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.liveness import is_lost
from ctr_pipeline.errors import CarriedError

Phase = Literal["read", "divide", "analyze", "encode", "finish"]
"""What workers do with units."""

Measure = Literal["rows", "bytes", "stages"]

_FAILED_STAGES = {
    "rows": "the rows could not be divided",
    "statistics": "the statistics could not be computed",
    "run": "the run could not be finished",
}
"""Failures by the name that a unit of stages has in place of a split."""

MOST_UNITS = 256
"""Units of a split: a reader keeps a file of each open."""


@dataclass(frozen=True)
class Unit:
    """What a worker does under one lease: reads or encodes parts of a split, or does stages.

    Attributes:
        split: `train`, `valid` or `test`; for stages of a run, what these make of it: `rows` of
            each split, `statistics`, or the whole `run`.
        number: Within the split, from 0.
        first_part: The first of its parts.
        num_parts: Parts.
        start: What lies before it in the split.
        size: What is in it.
        measure: What `start` and `size` count.
        where: What it is in the words of whoever wrote the config, such as a file; empty: only what
            it counts tells.
    """

    split: str
    number: int
    first_part: int
    num_parts: int
    start: int
    size: int
    measure: Measure = "rows"
    where: str = ""

    @property
    def name(self) -> str:
        """Names it among the units of all splits."""
        return f"{self.split}/{self.number}"


@dataclass(frozen=True)
class UnitLease:
    """A unit given to a worker.

    Attributes:
        attempt: From 1; every lease of the unit has another one.
    """

    unit: Unit
    attempt: int

    @property
    def part(self) -> str:
        """Names what this attempt writes, among the parts of the split."""
        return part_name(self.unit.number, self.attempt)


@dataclass(frozen=True)
class UnitRequest:
    """A worker asks for a unit.

    Attributes:
        worker: Its incarnation.
    """

    worker: str


@dataclass(frozen=True)
class GivenUnit:
    """What a worker does next.

    Attributes:
        lease: The unit.
        phase: What is done with it.
        fingerprint: Fingerprint of what is written.
    """

    lease: UnitLease
    phase: Phase
    fingerprint: str


@dataclass(frozen=True)
class UnitReply:
    """Whether there is a unit for a worker.

    Attributes:
        is_over: There will be no more: the worker leaves.
        given: The unit; None: the worker asks again soon.
    """

    is_over: bool
    given: GivenUnit | None = None


@dataclass(frozen=True)
class UnitReport:
    """How far a worker is.

    Attributes:
        worker: Its incarnation.
        lease: What it works on.
        amount_done: How much of the unit is done, in its measure.
        finished: The whole unit lies on the disk.
        failure: Why the unit cannot be done; empty if it can.
        error: The same, where it is an error that the user can mend.
        is_final: Another attempt would fail as this one did.
        said: Lines for whoever watches the run, since the last report that was answered.
        doing: What it does at this moment, for the same; empty if there is nothing to tell.
    """

    worker: str
    lease: UnitLease
    amount_done: int
    finished: bool = False
    failure: str = ""
    error: CarriedError | None = None
    is_final: bool = False
    said: tuple[str, ...] = ()
    doing: str = ""


@dataclass(frozen=True)
class UnitAnswer:
    """Whether the worker still has the lease; without it, its attempt does not count."""

    has_lease: bool


@dataclass
class _UnitState:
    """A unit: todo without a holder, doing with one, until it is done.

    Attributes:
        attempt: Number of the newest lease; 0: never leased.
        failures: Failures of the unit itself; no worker's death is among them.
        is_done: The newest attempt counts.
        holder: Incarnation of the worker that holds it; empty if none does.
        amount_done: What the holder has done of it, in its measure.
        heard_at: When the holder was heard last.
        doing: What the holder does.
    """

    attempt: int = 0
    failures: int = 0
    is_done: bool = False
    holder: str = ""
    amount_done: int = 0
    heard_at: float = 0.0
    doing: str = ""


@dataclass(frozen=True)
class _UnitRecord:
    """What the ledger holds of a unit."""

    attempt: int
    failures: int
    is_done: bool


def part_name(number: int, attempt: int) -> str:
    """Names the part of a split that an attempt at a unit writes."""
    return f"{number:05d}-{attempt}"


def plan_units(
    split: str,
    sizes: Sequence[int],
    least_size: int,
    measure: Measure = "rows",
    name_of: Callable[[int, int], str] = lambda first, num_parts: "",
) -> list[Unit]:
    """Divides a split into units of neighbouring parts.

    Args:
        split: Its name.
        sizes: Sizes of its parts, in order.
        least_size: Size of a unit, at least, but for the last one; more where there would be more
            than `MOST_UNITS`.
        measure: What sizes count.
        name_of: Says what the parts of a unit are, from the first one and their number.
    """
    least = max(least_size, -(-sum(sizes) // MOST_UNITS))
    units: list[Unit] = []
    first_part = start = size = 0
    for part, one in enumerate(sizes):
        size += one
        is_last = part + 1 == len(sizes)
        if size >= least or is_last:
            num_parts = part + 1 - first_part
            where = name_of(first_part, num_parts)
            units.append(
                Unit(split, len(units), first_part, num_parts, start, size, measure, where)
            )
            first_part, start, size = part + 1, start + size, 0
    return units


class PreparationBoard:
    """The units of a phase, in the order in which they are leased.

    Args:
        units: All of them.
        records: What the ledger holds of them, as `take_changed` gave it.
        silence_seconds: A worker that was not heard for so long loses its unit.
        max_failures: A unit that failed so often fails the job.

    Attributes:
        failure: Why the job cannot go on; empty while it can.
        error: The same, where a worker that did stages was the one to find it.
    """

    def __init__(
        self,
        units: Iterable[Unit],
        records: Mapping[str, Json],
        *,
        silence_seconds: float,
        max_failures: int,
    ) -> None:
        self._units = {unit.name: unit for unit in units}
        self._states = {name: _UnitState() for name in self._units}
        for name, record in records.items():
            if name in self._states:
                known = from_record(_UnitRecord, record)
                # A resumed job gives what failed before another chance.
                self._states[name] = _UnitState(known.attempt, is_done=known.is_done)
        self._silence_seconds = silence_seconds
        self._max_failures = max_failures
        self._changed: set[str] = set()
        self._said: list[str] = []
        self.failure = ""
        self.error: CarriedError | None = None

    @property
    def num_units(self) -> int:
        """All units."""
        return len(self._units)

    @property
    def num_done(self) -> int:
        """Units whose rows lie on the disk."""
        return sum(state.is_done for state in self._states.values())

    @property
    def num_open(self) -> int:
        """Units that are not done."""
        return self.num_units - self.num_done

    @property
    def measure(self) -> Measure:
        """What sizes count."""
        return next(iter(self._units.values())).measure

    @property
    def size(self) -> int:
        """Size of all units."""
        return sum(unit.size for unit in self._units.values())

    @property
    def amount_done(self) -> int:
        """Size of the units that are done, and what workers have done of others."""
        return sum(
            self._units[name].size if state.is_done else state.amount_done
            for name, state in self._states.items()
        )

    @property
    def doing(self) -> str:
        """What a worker does, if one of them has told."""
        return next((state.doing for state in self._states.values() if state.doing), "")

    @property
    def is_over(self) -> bool:
        """All units are done."""
        return not self.num_open

    def done_after(self, number: int) -> UnitLease | None:
        """The unit after the first `number` of all and the attempt that did it; None if not done.

        Args:
            number: Units that are left out, in the order of all.
        """
        unit = next(islice(self._units.values(), number, None), None)
        if unit is None or not self._states[unit.name].is_done:
            return None
        return UnitLease(unit, self._states[unit.name].attempt)

    def parts_of(self, split: str) -> list[str]:
        """Names of the parts that count, in the order of their rows; all units must be done."""
        return [
            part_name(unit.number, self._states[name].attempt)
            for name, unit in self._units.items()
            if unit.split == split
        ]

    def unit_of(self, worker: str) -> Unit | None:
        """What a worker holds."""
        name = self._held_by(worker)
        return None if name is None else self._units[name]

    def lease(self, worker: str, now: float) -> UnitLease | None:
        """Gives a worker the first unit that nobody holds; None if there is none.

        A worker that asks again has lost the answer, or its work: what it held is given anew.
        """
        self.release(worker)
        if self.failure:
            return None
        for name, state in self._states.items():
            if not state.is_done and not state.holder:
                state.attempt += 1
                state.holder, state.amount_done, state.heard_at = worker, 0, now
                self._changed.add(name)
                return UnitLease(self._units[name], state.attempt)
        return None

    def report(self, report: UnitReport, now: float) -> UnitAnswer:
        """Takes in how far a worker is; a report under an older lease changes nothing.

        A report that comes again, because its answer was lost, is answered as before.
        """
        name = report.lease.unit.name
        state = self._states.get(name)
        if state is None or self._units[name] != report.lease.unit:
            return UnitAnswer(has_lease=False)
        is_newest = state.attempt == report.lease.attempt
        if state.is_done:
            return UnitAnswer(has_lease=is_newest)
        if not is_newest or state.holder != report.worker:
            return UnitAnswer(has_lease=False)
        state.heard_at = now
        self._said.extend(report.said)
        if report.failure:
            self._fail(name, report.failure, report.error, is_final=report.is_final)
            return UnitAnswer(has_lease=False)
        state.amount_done = min(report.amount_done, self._units[name].size)
        state.doing = report.doing
        if report.finished:
            state.is_done, state.holder, state.doing = True, "", ""
            self._changed.add(name)
        return UnitAnswer(has_lease=True)

    def lose(self, worker: str, failure: str) -> None:
        """A worker has ended.

        Args:
            failure: Why, if its program is to blame, which counts against its unit; empty if not.
        """
        name = self._held_by(worker)
        if name is not None and failure:
            self._fail(name, failure)
        else:
            self.release(worker)

    def release(self, worker: str) -> None:
        """Takes back what a worker holds; nobody is to blame."""
        name = self._held_by(worker)
        if name is not None:
            self._let_go(name)

    def take_silent(self, now: float) -> list[str]:
        """Takes units back from workers that were not heard for too long, and names those."""
        silent = [
            state.holder
            for state in self._states.values()
            if state.holder and is_lost(state.heard_at, now, self._silence_seconds)
        ]
        for worker in silent:
            self.release(worker)
        return silent

    def take_changed(self) -> dict[str, Json]:
        """Records of the units that were leased, failed or ended since the last call."""
        changed, self._changed = self._changed, set()
        return {
            name: to_record(_UnitRecord(state.attempt, state.failures, state.is_done))
            for name, state in self._states.items()
            if name in changed
        }

    def take_said(self) -> list[str]:
        """Lines that workers reported since the last call."""
        said, self._said = self._said, []
        return said

    def _held_by(self, worker: str) -> str | None:
        return next((name for name, one in self._states.items() if one.holder == worker), None)

    def _let_go(self, name: str) -> None:
        state = self._states[name]
        state.holder, state.amount_done, state.doing = "", 0, ""

    def _fail(
        self, name: str, why: str, error: CarriedError | None = None, *, is_final: bool = False
    ) -> None:
        self._let_go(name)
        state = self._states[name]
        state.failures += 1
        self._changed.add(name)
        if is_final or state.failures >= self._max_failures:
            unit = self._units[name]
            if unit.measure == "stages":
                self.failure, self.error = f"{_FAILED_STAGES[unit.split]}: {why}", error
                return
            last = unit.start + unit.size - 1
            verb = "encoded" if unit.measure == "rows" else "read"
            what = unit.where or f"{unit.measure} {unit.start:,} to {last:,} of {unit.split}"
            self.failure = f"{what} could not be {verb}: {why}"
