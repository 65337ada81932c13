"""The tasks of an epoch or of splits: who holds them, and what of them is done."""

import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.exact_sum import ExactSum
from ctr_pipeline.distributed.coordination.messages import (
    TaskKey,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.task_plans import (
    EpochPlan,
    ScoredSplit,
    ScorePlan,
    TaskPlan,
)
from ctr_pipeline.distributed.coordination.task_set import TaskSet
from ctr_pipeline.distributed.coordination.tasks import Task


class _Holdings:
    """Holders of tasks, and each one's tasks in the order of their leases."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[TaskKey, None]] = {}

    @property
    def holders(self) -> tuple[str, ...]:
        """Workers that hold tasks, by name."""
        return tuple(sorted(self._keys))

    def of(self, holder: str) -> Collection[TaskKey]:
        """What a worker holds."""
        return self._keys.get(holder, {})

    def all(self) -> Iterator[TaskKey]:
        """What all workers hold."""
        return chain.from_iterable(self._keys.values())

    def add(self, holder: str, key: TaskKey) -> None:
        """A worker holds a task from now on, behind its others."""
        self._keys.setdefault(holder, {})[key] = None

    def remove(self, holder: str, key: TaskKey) -> bool:
        """A worker holds a task no more; whether it did."""
        keys = self._keys.get(holder)
        if keys is None or key not in keys:
            return False
        del keys[key]
        if not keys:
            del self._keys[holder]
        return True


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
        """Tasks before it that nobody holds and that are not over, as a heap."""
        self._held = _Holdings()
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
        return [(key, self.task(key)) for key in self._held.all()]

    def held_by(self, incarnation: str) -> list[tuple[TaskKey, Task]]:
        """Tasks that a worker holds, in the order of their leases."""
        return [(key, self.task(key)) for key in self._held.of(incarnation)]

    def num_held_by(self, incarnation: str) -> int:
        """Tasks that a worker holds."""
        return len(self._held.of(incarnation))

    @property
    def has_queues(self) -> bool:
        """Whether some worker holds a task behind the one that it works on."""
        return any(self.num_held_by(holder) > 1 for holder in self._held.holders)

    @property
    def holders(self) -> tuple[str, ...]:
        """Workers that hold tasks, by name."""
        return self._held.holders

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
        self._held.add(incarnation, key)
        self._note(key, task, is_urgent=True)

    def _let_go(self, key: TaskKey, task: Task) -> bool:
        """Nobody holds a task any more; whether somebody did."""
        was_held = self._held.remove(task.holder, key)
        if was_held:
            task.holder = ""
        return was_held

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
        self._held = _Holdings()
        for _, number in held:
            self._held.add(known[number].holder, plan.key_of(number))
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
        """What is counted, as JSON, without leases and failures; of training tasks.

        See `training_place` for the same as a trainer without tasks has it.
        """
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
