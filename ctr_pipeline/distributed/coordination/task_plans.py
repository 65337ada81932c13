"""What tasks there are in an epoch, or in the splits that are scored: their numbers and sizes."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from ctr_pipeline.distributed.coordination.messages import (
    TaskKey,
)
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK
from ctr_pipeline.distributed.coordination.tasks import Task


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
        """Whether tasks that are done are kept: their scores are what they were for."""
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
