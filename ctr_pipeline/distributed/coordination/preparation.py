"""Units of the rows that workers encode: who works on which, and which are done.

`PreparationBoard` decides without effects: its methods take the time, and `take_changed` gives what
the ledger must hold before anybody acts on it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ctr_pipeline.distributed.coordination.codec import from_record, to_record
from ctr_pipeline.distributed.coordination.events import Json

MOST_UNITS = 256
"""Of a split. A reader keeps a file of each open."""


@dataclass(frozen=True)
class Unit:
    """Neighbouring parts of a split, which a worker encodes under one lease.

    Attributes:
        split: `train`, `valid` or `test`.
        number: Within the split, from 0.
        first_part: The first of its parts.
        num_parts: Parts.
        first_row: Number of its first row in the split.
        num_rows: Rows.
    """

    split: str
    number: int
    first_part: int
    num_parts: int
    first_row: int
    num_rows: int

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
        fingerprint: Fingerprint of the encoded rows as the worker would encode them.
    """

    worker: str
    fingerprint: str


@dataclass(frozen=True)
class UnitReply:
    """What a worker does next.

    Attributes:
        verdict: `unit`: encode it. `wait`: ask again soon. `end`: nothing is left.
        lease: The unit, if there is one.
    """

    verdict: Literal["unit", "wait", "end"]
    lease: UnitLease | None = None


@dataclass(frozen=True)
class UnitReport:
    """How far a worker is.

    Attributes:
        worker: Its incarnation.
        lease: What it works on.
        rows_done: Rows of the unit that it has encoded.
        finished: The whole unit lies on the disk.
        failure: Why the unit cannot be encoded; empty if it can.
    """

    worker: str
    lease: UnitLease
    rows_done: int
    finished: bool = False
    failure: str = ""


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
        rows_done: Rows that the holder has encoded.
        heard_at: When the holder was heard last.
    """

    attempt: int = 0
    failures: int = 0
    is_done: bool = False
    holder: str = ""
    rows_done: int = 0
    heard_at: float = 0.0


@dataclass(frozen=True)
class _UnitRecord:
    """What the ledger holds of a unit."""

    attempt: int
    failures: int
    is_done: bool


def part_name(number: int, attempt: int) -> str:
    """Names the part of a split that an attempt at a unit writes."""
    return f"{number:05d}-{attempt}"


def plan_units(split: str, part_rows: Sequence[int], rows_per_unit: int) -> list[Unit]:
    """Divides a split into units of neighbouring parts.

    Args:
        split: Its name.
        part_rows: Rows of each of its parts, in order.
        rows_per_unit: Rows of a unit, at least, but for the last one; more where there would be
            more than `MOST_UNITS`.
    """
    least = max(rows_per_unit, -(-sum(part_rows) // MOST_UNITS))
    units: list[Unit] = []
    first_part = first_row = num_rows = 0
    for part, rows in enumerate(part_rows):
        num_rows += rows
        is_last = part + 1 == len(part_rows)
        if num_rows >= least or is_last:
            num_parts = part + 1 - first_part
            units.append(Unit(split, len(units), first_part, num_parts, first_row, num_rows))
            first_part, first_row, num_rows = part + 1, first_row + num_rows, 0
    return units


class PreparationBoard:
    """The units of all splits, in the order in which they are leased.

    Args:
        units: All of them.
        records: What the ledger holds of them, as `take_changed` gave it.
        silence_seconds: A worker that was not heard for so long loses its unit.
        max_failures: A unit that failed so often fails the job.

    Attributes:
        failure: Why the job cannot go on; empty while it can.
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
        self.failure = ""

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
    def num_rows(self) -> int:
        """Rows of all units."""
        return sum(unit.num_rows for unit in self._units.values())

    @property
    def rows_done(self) -> int:
        """Rows of done units, and those that workers have encoded of others."""
        return sum(
            self._units[name].num_rows if state.is_done else state.rows_done
            for name, state in self._states.items()
        )

    @property
    def is_over(self) -> bool:
        """All units are done."""
        return not self.num_open

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

    def lease(self, worker: str, now: float) -> UnitReply:
        """Gives a worker the first unit that nobody holds.

        A worker that asks again has lost the answer, or its work: what it held is given anew.
        """
        self.release(worker)
        if self.is_over or self.failure:
            return UnitReply("end")
        for name, state in self._states.items():
            if not state.is_done and not state.holder:
                state.attempt += 1
                state.holder, state.rows_done, state.heard_at = worker, 0, now
                self._changed.add(name)
                return UnitReply("unit", UnitLease(self._units[name], state.attempt))
        return UnitReply("wait")

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
        if report.failure:
            self._fail(name, report.failure)
            return UnitAnswer(has_lease=False)
        state.rows_done = min(report.rows_done, self._units[name].num_rows)
        if report.finished:
            state.is_done, state.holder = True, ""
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
            if state.holder and now - state.heard_at > self._silence_seconds
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

    def _held_by(self, worker: str) -> str | None:
        return next((name for name, one in self._states.items() if one.holder == worker), None)

    def _let_go(self, name: str) -> None:
        state = self._states[name]
        state.holder, state.rows_done = "", 0

    def _fail(self, name: str, why: str) -> None:
        self._let_go(name)
        state = self._states[name]
        state.failures += 1
        self._changed.add(name)
        if state.failures >= self._max_failures:
            unit = self._units[name]
            last = unit.first_row + unit.num_rows - 1
            self.failure = (
                f"rows {unit.first_row:,} to {last:,} of {unit.split} could not be encoded: {why}"
            )
