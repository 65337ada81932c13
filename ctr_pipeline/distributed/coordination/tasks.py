"""Tasks of an epoch and of a split: what they hold, who holds them, what of them is done."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from ctr_pipeline.distributed.coordination.codec import fields_to_record, set_fields
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.messages import (
    LeasedTask,
    ScoreSummary,
    TaskKey,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK


class TaskPlan(Protocol):
    """What tasks there are, by number, in the order in which they are leased."""

    @property
    def num_tasks(self) -> int:
        """All of them."""

    @property
    def keeps_done(self) -> bool:
        """Whether more of a done task is of use than that it is done."""

    def key_of(self, number: int) -> TaskKey:
        """The name of a task."""

    def number_of(self, key: TaskKey) -> int | None:
        """The task of a name; None if it is none of these."""

    def make_task(self, number: int) -> "Task":
        """A task that nobody has worked on."""

    def rows_between(self, first: int, end: int) -> int:
        """Records of the tasks from the first to before the end."""

    def batches_between(self, first: int, end: int) -> int:
        """Batches of them."""


@dataclass(frozen=True)
class EpochPlan:
    """How the records of an epoch fall into tasks; computed where the order of records is known.

    Attributes:
        epoch: From 0.
        num_tasks: Tasks.
        rows_per_task: Rows of every task but those in `other_rows`.
        batch_size: Rows of every batch of a task but its last.
        other_rows: (task, rows) of the tasks that hold the end of the data.
    """

    epoch: int
    num_tasks: int
    rows_per_task: int
    batch_size: int
    other_rows: tuple[tuple[int, int], ...]

    def rows_of(self, task: int) -> int:
        """Rows of a task."""
        return next((rows for other, rows in self.other_rows if other == task), self.rows_per_task)

    def batches_of(self, task: int) -> int:
        """Batches of a task, at most `BATCHES_PER_TASK`."""
        return min(BATCHES_PER_TASK, -(-self.rows_of(task) // self.batch_size))

    @property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        return self.rows_between(0, self.num_tasks)

    @property
    def keeps_done(self) -> bool:
        """What a done task held is in the sums of the epoch."""
        return False

    def key_of(self, number: int) -> TaskKey:
        """The name of a task."""
        return TaskKey("train", self.epoch, number, "train")

    def number_of(self, key: TaskKey) -> int | None:
        """The task of a name; None if it is none of the epoch."""
        is_ours = (key.kind, key.epoch, key.split) == ("train", self.epoch, "train")
        return key.task if is_ours and 0 <= key.task < self.num_tasks else None

    def make_task(self, number: int) -> "Task":
        """A task that nobody has worked on."""
        return Task(self.rows_of(number), self.batch_size)

    def rows_between(self, first: int, end: int) -> int:
        """Rows of the tasks from the first to before the end."""
        others = [rows for task, rows in self.other_rows if first <= task < end]
        return (end - first - len(others)) * self.rows_per_task + sum(others)

    def batches_between(self, first: int, end: int) -> int:
        """Batches of them."""
        others = [self.batches_of(task) for task, _ in self.other_rows if first <= task < end]
        usual = -(-self.rows_per_task // self.batch_size)
        return (end - first - len(others)) * usual + sum(others)


@dataclass(frozen=True)
class ScoredSplit:
    """A split that is scored in ranges of rows.

    Attributes:
        name: `valid` or `test`.
        num_rows: Rows.
        rows_per_task: Rows of every task but the last.
    """

    name: str
    num_rows: int
    rows_per_task: int

    @property
    def num_tasks(self) -> int:
        """Ranges of rows."""
        return -(-self.num_rows // self.rows_per_task)

    def first_row_of(self, task: int) -> int:
        """Where the range of a task begins."""
        return task * self.rows_per_task

    def rows_of(self, task: int) -> int:
        """Rows of a task."""
        return min(self.rows_per_task, self.num_rows - self.first_row_of(task))


@dataclass(frozen=True)
class ScorePlan:
    """Splits that are scored after an epoch, one after another; a task is one batch.

    Attributes:
        splits: In their order.
        epoch: From 0.
    """

    splits: tuple[ScoredSplit, ...]
    epoch: int

    @property
    def num_tasks(self) -> int:
        """Ranges of rows."""
        return sum(split.num_tasks for split in self.splits)

    @property
    def keeps_done(self) -> bool:
        """Their scores are what they were for."""
        return True

    @property
    def _firsts(self) -> list[int]:
        return list(accumulate((split.num_tasks for split in self.splits), initial=0))

    def _find(self, number: int) -> tuple[ScoredSplit, int]:
        firsts = self._firsts
        place = bisect_right(firsts, number) - 1
        return self.splits[place], number - firsts[place]

    def key_of(self, number: int) -> TaskKey:
        """The name of a task."""
        split, task = self._find(number)
        return TaskKey("score", self.epoch, task, split.name)

    def number_of(self, key: TaskKey) -> int | None:
        """The task of a name; None if it is none of these."""
        for split, first in zip(self.splits, self._firsts, strict=False):
            if split.name == key.split and 0 <= key.task < split.num_tasks:
                return first + key.task if (key.kind, key.epoch) == ("score", self.epoch) else None
        return None

    def make_task(self, number: int) -> "Task":
        """A task that nobody has worked on."""
        split, task = self._find(number)
        return Task(split.rows_of(task), split.rows_of(task), split.first_row_of(task))

    def rows_between(self, first: int, end: int) -> int:
        """Rows of the tasks from the first to before the end."""
        return sum(self.make_task(number).num_rows for number in range(first, end))

    def batches_between(self, first: int, end: int) -> int:
        """Batches of them."""
        return end - first


class TaskSet:
    """Numbers of tasks, as runs of neighbours: few, however many tasks there are.

    Args:
        runs: The first number of each run and the one after its last, ascending and apart.
    """

    def __init__(self, runs: Iterable[Iterable[int]] = ()) -> None:
        pairs = [tuple(run) for run in runs]
        self._firsts = [first for first, _ in pairs]
        self._ends = [end for _, end in pairs]
        self.num_tasks = sum(end - first for first, end in pairs)
        """In all runs."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The first number of each run and the one after its last, ascending."""
        return zip(self._firsts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number < self._ends[place]

    @property
    def end(self) -> int:
        """The one after the last."""
        return self._ends[-1] if self._ends else 0

    def add(self, number: int) -> None:
        """One more, which need not be new."""
        if number in self:
            return
        self.num_tasks += 1
        place = bisect_right(self._firsts, number)
        joins_before = place > 0 and self._ends[place - 1] == number
        joins_after = place < len(self._firsts) and self._firsts[place] == number + 1
        if joins_before and joins_after:
            self._ends[place - 1] = self._ends.pop(place)
            del self._firsts[place]
        elif joins_before:
            self._ends[place - 1] += 1
        elif joins_after:
            self._firsts[place] -= 1
        else:
            self._firsts.insert(place, number)
            self._ends.insert(place, number + 1)

    def gaps(self, end: int) -> Iterator[int]:
        """Numbers before the end that are not among these."""
        before = 0
        for first, after in (*self, (end, end)):
            yield from range(before, min(first, end))
            before = after

    def common_with(self, other: "TaskSet") -> Iterator[tuple[int, int]]:
        """Runs of the numbers that are among both."""
        ours, theirs = list(self), list(other)
        while ours and theirs:
            first, end = max(ours[0][0], theirs[0][0]), min(ours[0][1], theirs[0][1])
            if first < end:
                yield first, end
            (ours if ours[0][1] == end else theirs).pop(0)


_TASK_FIELDS = (
    "attempt",
    "holder",
    "done_mask",
    "losses",
    "loss_sum",
    "rows_repeated",
    "failures",
    "dropped",
    "scores",
)
"""Of a task, what the ledger holds."""


@dataclass
class Task:
    """One task: todo without a holder, doing with one, until it is done or dropped.

    Attributes:
        num_rows: Records.
        batch_size: Records of every batch but the last; a score task is one batch.
        first_row: The first row of a score task.
        attempt: Attempt of its newest lease; 0: never leased.
        holder: Incarnation of the worker that holds it; empty if none does.
        done_mask: Batches counted.
        losses: Loss sums of the counted batches, until the task is done.
        loss_sum: Loss sum of the done task.
        rows_repeated: Records of it that were trained beyond those counted.
        failures: Failures of the task itself; no worker's death is among them.
        dropped: Why it was given up; empty if it was not.
        scores: Scores of a done score task.
        leased_at: When it was leased, on the job's clock.
        progress_at: When a batch of it was counted last, on the job's clock.
        mask_at_lease: `done_mask` when it was leased.
        seconds_seen: Seconds of work in the newest report under this lease.
    """

    num_rows: int
    batch_size: int
    first_row: int = 0
    attempt: int = 0
    holder: str = ""
    done_mask: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    loss_sum: float = 0.0
    rows_repeated: int = 0
    failures: int = 0
    dropped: str = ""
    scores: ScoreSummary | None = None
    leased_at: float = 0.0
    progress_at: float = 0.0
    mask_at_lease: int = 0
    seconds_seen: float = 0.0

    @property
    def num_batches(self) -> int:
        """Batches of the task."""
        return -(-self.num_rows // self.batch_size)

    @property
    def full_mask(self) -> int:
        """All its batches."""
        return (1 << self.num_batches) - 1

    @property
    def is_done(self) -> bool:
        """All of it is counted."""
        return self.done_mask == self.full_mask

    @property
    def is_over(self) -> bool:
        """Nobody is to work on it again in this epoch."""
        return self.is_done or bool(self.dropped)

    @property
    def rows_done(self) -> int:
        """Records counted."""
        return self.rows_in(self.done_mask)

    @property
    def rows_left(self) -> int:
        """Records not counted yet."""
        return self.num_rows - self.rows_done

    def rows_in(self, mask: int) -> int:
        """Records of some of its batches."""
        rows = mask.bit_count() * self.batch_size
        if mask >> (self.num_batches - 1) & 1:
            rows -= self.num_batches * self.batch_size - self.num_rows
        return rows

    def count(self, report: TaskReport) -> int:
        """Takes in a report of the newest lease; returns the mask of the batches new to it.

        Masks are merged, never replaced: reports may overtake each other. A batch without its loss
        is not counted, as it would be missing from the mean.
        """
        if report.key.kind == "score":
            if not report.finished or report.scores is None:
                return 0
            new = self.full_mask & ~self.done_mask
            if new:
                self.scores = report.scores
        else:
            losses = {entry.batch: entry.loss_sum for entry in report.losses}
            new = report.done_mask & self.full_mask & ~self.done_mask
            new &= sum(1 << batch for batch in losses)
            self.losses.update((batch, loss) for batch, loss in losses.items() if new >> batch & 1)
        self.done_mask |= new
        if new and self.is_done:
            self.loss_sum = math.fsum(self.losses.values())
            self.losses = {}
        return new

    def loss_so_far(self) -> float:
        """Loss sum of the counted batches."""
        return self.loss_sum if self.is_done else math.fsum(self.losses.values())

    def to_record(self) -> dict[str, Any]:
        """Everything that has to outlive the master."""
        return fields_to_record(self, _TASK_FIELDS)

    def take_record(self, record: Json) -> None:
        """Becomes what `to_record` described."""
        set_fields(self, record)
        self.mask_at_lease = self.done_mask


class TaskBoard:
    """The tasks of one epoch, or of the splits that are being scored.

    It holds those that were leased and are not done; of the others, however many there are, only
    which are done.

    Args:
        plan: The tasks; none of them is held or over.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._known: dict[int, Task] = {}
        """Tasks that are not as at the beginning, less those that are done and of no more use."""
        self._done = TaskSet()
        self._dropped: set[int] = set()
        self._next = 0
        """No task from here on was ever leased."""
        self._returned: list[int] = []
        """Those before it that nobody holds and that are not over, as a heap."""
        self._held: dict[str, dict[TaskKey, None]] = {}
        """By worker, in the order of their leases."""
        self._rows_done = 0
        self._batches_done = 0
        self._rows_repeated = 0
        self._unfinished: set[int] = set()
        """Some of their batches are counted."""
        self._losses_of_done = ExactSum()
        self._changed: dict[TaskKey, tuple[Task, bool]] = {}

    @classmethod
    def of_epoch(cls, plan: EpochPlan) -> "TaskBoard":
        """Tasks of an epoch."""
        return cls(plan)

    @classmethod
    def of_splits(cls, splits: tuple[ScoredSplit, ...], epoch: int) -> "TaskBoard":
        """Tasks that score splits after an epoch."""
        return cls(ScorePlan(splits, epoch))

    @property
    def num_tasks(self) -> int:
        """All tasks."""
        return self._plan.num_tasks

    @property
    def num_over(self) -> int:
        """Tasks that are done or dropped."""
        return self._done.num_tasks + len(self._dropped)

    @property
    def num_todo(self) -> int:
        """Tasks that nobody holds and that are not over."""
        return self.num_tasks - self._next + len(self._returned)

    @property
    def is_over(self) -> bool:
        """All tasks are done or dropped."""
        return self.num_over == self.num_tasks

    def __contains__(self, key: TaskKey) -> bool:
        return self._plan.number_of(key) is not None

    def task(self, key: TaskKey) -> Task:
        """A task; of one that nobody has worked on, or that is done, what is known of it."""
        number = self._number_of(key)
        known = self._known.get(number)
        if known is not None:
            return known
        task = self._plan.make_task(number)
        if number in self._done:
            task.done_mask = task.full_mask
        return task

    def _number_of(self, key: TaskKey) -> int:
        number = self._plan.number_of(key)
        if number is None:
            raise KeyError(key)
        return number

    def held(self) -> list[tuple[TaskKey, Task]]:
        """Tasks that somebody holds."""
        return [(key, self.task(key)) for keys in self._held.values() for key in keys]

    def held_by(self, incarnation: str) -> list[tuple[TaskKey, Task]]:
        """Tasks that a worker holds, in the order of their leases."""
        return [(key, self.task(key)) for key in self._held.get(incarnation, ())]

    def num_held_by(self, incarnation: str) -> int:
        """Tasks that a worker holds."""
        return len(self._held.get(incarnation, ()))

    @property
    def has_queues(self) -> bool:
        """Whether some worker holds a task behind the one that it works on."""
        return any(len(keys) > 1 for keys in self._held.values())

    @property
    def holders(self) -> tuple[str, ...]:
        """Workers that hold tasks, by name."""
        return tuple(sorted(self._held))

    def lease_next(self, incarnation: str, attempt: int, now: float) -> TaskKey:
        """Gives the first task that is todo; there must be one."""
        if self._returned:
            number = heapq.heappop(self._returned)
        else:
            number, self._next = self._next, self._next + 1
        key = self._plan.key_of(number)
        self._hold(key, incarnation, attempt, now)
        return key

    def lease_again(self, key: TaskKey, incarnation: str, attempt: int, now: float) -> None:
        """Takes a held task from its worker and gives it to another."""
        self._hold(key, incarnation, attempt, now)

    def _hold(self, key: TaskKey, incarnation: str, attempt: int, now: float) -> None:
        task = self._known[self._number_of(key)] = self.task(key)
        self._let_go(key, task)
        task.holder, task.attempt = incarnation, attempt
        task.leased_at = task.progress_at = now
        task.mask_at_lease, task.seconds_seen = task.done_mask, 0.0
        self._held.setdefault(incarnation, {})[key] = None
        self._note(key, task, is_urgent=True)

    def _let_go(self, key: TaskKey, task: Task) -> bool:
        """Nobody holds a task any more; whether somebody did."""
        keys = self._held.get(task.holder)
        if keys is None or key not in keys:
            return False
        del keys[key]
        if not keys:
            del self._held[task.holder]
        task.holder = ""
        return True

    def release(self, key: TaskKey) -> None:
        """A held task becomes todo; what of it is done stays done."""
        task = self.task(key)
        self._let_go(key, task)
        heapq.heappush(self._returned, self._number_of(key))
        self._note(key, task, is_urgent=False)

    def fail(self, key: TaskKey) -> int:
        """A held task has failed once more; how often it has by now."""
        task = self.task(key)
        task.failures += 1
        self._note(key, task, is_urgent=True)
        return task.failures

    def drop(self, key: TaskKey, why: str) -> None:
        """A task is given up; what of it is done stays done."""
        self.task(key).dropped = why
        self.settle(key)

    def settle(self, key: TaskKey) -> None:
        """Takes a task that has just become done or dropped from those to be worked on.

        It need not be held: its last report may come after it was given up.
        """
        number, task = self._number_of(key), self.task(key)
        if not self._let_go(key, task):
            self._returned.remove(number)
            heapq.heapify(self._returned)
        if task.dropped:
            self._dropped.add(number)
        else:
            self._end(number, task)
        self._note(key, task, is_urgent=True)

    def _end(self, number: int, task: Task) -> None:
        self._done.add(number)
        # How often it failed outlives a rollback.
        if not task.failures and not self._plan.keeps_done:
            del self._known[number]

    def remember_failures(self, key: TaskKey, failures: int) -> None:
        """How often a task failed before it was given back by a rollback; not of a done one."""
        number = self._number_of(key)
        if number not in self._done:
            task = self._known[number] = self.task(key)
            task.failures = failures
            self._note(key, task, is_urgent=False)

    def forget_failures(self) -> None:
        """Whatever failed before is given another chance."""
        for key, task in self.touched():
            if task.failures:
                task.failures = 0
                self._note(key, task, is_urgent=False)

    def _note(self, key: TaskKey, task: Task, *, is_urgent: bool) -> None:
        _, was_urgent = self._changed.get(key, (task, False))
        self._changed[key] = task, is_urgent or was_urgent

    def take_changed(self) -> dict[TaskKey, tuple[Task, bool]]:
        """Tasks that were leased, given back, failed or ended since the last call.

        Each with whether its change must be on disk before anybody acts on it. Batches that are
        counted are no such change: the worker that holds the task tells a new master of them.
        """
        changed, self._changed = self._changed, {}
        return changed

    def forget_repeated(self) -> None:
        """What was repeated until now is counted elsewhere."""
        self._rows_repeated = 0
        for task in self._known.values():
            task.rows_repeated = 0

    def load(self, records: Mapping[TaskKey, Json]) -> None:
        """Becomes what the records of its tasks describe; others stay as they are."""
        for key, record in records.items():
            number = self._number_of(key)
            task = self._known[number] = self._plan.make_task(number)
            task.take_record(record)
            self._rows_repeated += task.rows_repeated
            if task.is_done and number not in self._done:
                self._losses_of_done.add(task.loss_sum)
                self._end(number, task)
        self._recount()

    def count(self, key: TaskKey, report: TaskReport) -> int:
        """Takes in a report of the newest lease; returns the mask of the batches new to it."""
        number, task = self._number_of(key), self.task(key)
        new = task.count(report)
        self._batches_done += new.bit_count()
        self._rows_done += task.rows_in(new)
        if new and task.is_done:
            self._unfinished.discard(number)
            self._losses_of_done.add(task.loss_sum)
        elif new:
            self._unfinished.add(number)
        if key.kind == "train":
            repeated = task.rows_in(new & report.repeated_mask)
            task.rows_repeated += repeated
            self._rows_repeated += repeated
        return new

    def _recount(self) -> None:
        """Takes in that tasks were changed one by one."""
        known, done, plan = self._known, self._done, self._plan
        others = {number: task for number, task in known.items() if number not in done}
        self._dropped = {number for number, task in others.items() if task.dropped}
        self._unfinished = {number for number, task in others.items() if task.done_mask}
        self._rows_done = sum(plan.rows_between(*run) for run in done)
        self._rows_done += sum(task.rows_done for task in others.values())
        self._batches_done = sum(plan.batches_between(*run) for run in done)
        self._batches_done += sum(task.done_mask.bit_count() for task in others.values())
        begun = (number for number, task in others.items() if task.attempt or task.done_mask)
        self._next = max(done.end, 1 + max(begun, default=-1))
        held = sorted((task.attempt, number) for number, task in others.items() if task.holder)
        self._held = {}
        for _, number in held:
            self._held.setdefault(known[number].holder, {})[plan.key_of(number)] = None
        taken = {number for _, number in held} | self._dropped
        self._returned = [number for number in done.gaps(self._next) if number not in taken]

    def over_ranges(self) -> TaskSet:
        """Tasks that are done or dropped."""
        over = TaskSet(self._done)
        for number in self._dropped:
            over.add(number)
        return over

    def touched(self) -> Iterator[tuple[TaskKey, Task]]:
        """Tasks that are not as at the beginning, less those that are done and of no more use."""
        for number, task in self._known.items():
            yield self._plan.key_of(number), task

    def rows_beyond(self, other: "TaskBoard | None") -> int:
        """Records counted here and not on another board of the same tasks."""
        if other is None:
            return self._rows_done
        theirs, plan = other._done, self._plan
        common = sum(plan.rows_between(*run) for run in self._done.common_with(theirs))
        for number, task in self._known.items():
            if number in self._done:
                continue
            counted = other.task(plan.key_of(number)).done_mask
            common += task.rows_in(task.done_mask & counted)
        for number, task in other._known.items():
            if number in self._done and number not in theirs:
                common += task.rows_done
        return self._rows_done - common

    @property
    def rows_done(self) -> int:
        """Records counted."""
        return self._rows_done

    @property
    def batches_done(self) -> int:
        """Batches counted."""
        return self._batches_done

    @property
    def rows_repeated(self) -> int:
        """Records trained beyond those counted."""
        return self._rows_repeated

    @property
    def dropped(self) -> list[tuple[TaskKey, Task]]:
        """Tasks that were given up, in their order."""
        return [
            (self._plan.key_of(number), self._known[number]) for number in sorted(self._dropped)
        ]

    @property
    def rows_dropped(self) -> int:
        """Records of dropped tasks that are not counted."""
        return sum(task.rows_left for _, task in self.dropped)

    @property
    def loss_sum(self) -> float:
        """Over the records counted, the same in whatever order they came."""
        unfinished = (self._known[number].loss_so_far() for number in self._unfinished)
        return math.fsum((*self._losses_of_done.parts, *unfinished))

    def freeze(self) -> dict[str, object]:
        """What is counted, as JSON, without leases and failures; of training tasks."""
        return {
            "done": [list(run) for run in self._done],
            "losses": list(self._losses_of_done.parts),
            "tasks": [
                [number, task.done_mask, list(task.losses.items()), task.dropped]
                for number, task in self._known.items()
                if number not in self._done and (task.done_mask or task.dropped)
            ],
        }

    @classmethod
    def thaw(cls, plan: EpochPlan, frozen: Json) -> "TaskBoard":
        """The board that was frozen, with nobody at work on it."""
        board = cls(plan)
        board._done = TaskSet(frozen["done"])
        board._losses_of_done = ExactSum(frozen["losses"])
        for number, mask, losses, dropped in frozen["tasks"]:
            task = board._known[number] = plan.make_task(number)
            task.done_mask, task.losses, task.dropped = mask, dict(losses), dropped
        board._recount()
        return board


class ExactSum:
    """A sum of floats that is not rounded before it is read.

    Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic", as `math.fsum` does it. Of
    values that are infinite or no number it is what adding gives.

    Args:
        parts: Parts of a sum so far.
    """

    def __init__(self, parts: Iterable[float] = ()) -> None:
        self.parts = list(parts)
        """Their exact sum is the sum."""

    def add(self, value: float) -> None:
        """Adds one more."""
        parts: list[float] = []
        for part in self.parts:
            larger, smaller = (value, part) if abs(value) >= abs(part) else (part, value)
            value = larger + smaller
            if math.isfinite(value) and (rest := smaller - (value - larger)):
                parts.append(rest)
        self.parts = [*parts, value]


def leased_task(key: TaskKey, task: Task, scores_folder: str) -> LeasedTask:
    """What a worker is told of its lease.

    Args:
        key: The task.
        task: Its state.
        scores_folder: Where logits go; empty if nobody wants them.
    """
    if key.kind == "train":
        return LeasedTask(key, task.attempt, task.done_mask, 0, 0, "")
    file = f"{scores_folder}/{key.split}-{key.task}.f32" if scores_folder else ""
    return LeasedTask(key, task.attempt, task.done_mask, task.first_row, task.num_rows, file)


def merge_scores(parts: list[ScoreSummary]) -> ScoreSummary:
    """The sums of all parts, the same in whatever order they came."""
    positives: dict[int, int] = {}
    negatives: dict[int, int] = {}
    for part in parts:
        for counts, merged in ((part.positives, positives), (part.negatives, negatives)):
            for place, count in counts:
                merged[place] = merged.get(place, 0) + count
    return ScoreSummary(
        tuple(sorted(positives.items())),
        tuple(sorted(negatives.items())),
        math.fsum(part.loss_sum for part in parts),
        math.fsum(part.probability_sum for part in parts),
    )


def name_of(key: TaskKey, task: Task) -> str:
    """A task for a person."""
    if key.kind == "train":
        return f"task {key.task} of epoch {key.epoch + 1} ({task.num_rows:,} records)"
    last_row = task.first_row + task.num_rows - 1
    return f"rows {task.first_row:,} to {last_row:,} of {key.split} after epoch {key.epoch + 1}"
