"""Tasks of an epoch and of a split: what they hold, who holds them, what of them is done."""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.messages import (
    LeasedTask,
    ScoreSummary,
    TaskKey,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK


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
        return dict(self.other_rows).get(task, self.rows_per_task)

    def batches_of(self, task: int) -> int:
        """Batches of a task, at most `BATCHES_PER_TASK`."""
        return min(BATCHES_PER_TASK, -(-self.rows_of(task) // self.batch_size))

    @property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        others = dict(self.other_rows)
        return (self.num_tasks - len(others)) * self.rows_per_task + sum(others.values())


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


@dataclass
class Task:
    """One task: todo without a holder, doing with one, until it is done or dropped.

    Attributes:
        num_rows: Records.
        batch_size: Records of every batch but the last; a score task is one batch.
        first_row: Of a score task.
        attempt: Of its newest lease; 0: never leased.
        holder: Incarnation of the worker that holds it; empty if none does.
        done_mask: Batches counted.
        losses: Loss sums of the counted batches, until the task is done.
        loss_sum: Of the done task.
        rows_repeated: Records of it that were trained beyond those counted.
        failures: Failures of the task itself; no worker's death is among them.
        dropped: Why it was given up; empty if it was not.
        scores: Of a done score task.
        leased_at: When it was leased, on the job's clock.
        progress_at: When a batch of it was counted last, on the job's clock.
        mask_at_lease: `done_mask` when it was leased.
        seconds_seen: Of the newest report under this lease.
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

    def to_json(self) -> dict[str, object]:
        """Everything that has to outlive the master."""
        return {
            "attempt": self.attempt,
            "holder": self.holder,
            "mask": self.done_mask,
            "losses": [[batch, loss] for batch, loss in self.losses.items()],
            "loss_sum": self.loss_sum,
            "rows_repeated": self.rows_repeated,
            "failures": self.failures,
            "dropped": self.dropped,
            "scores": None if self.scores is None else scores_to_json(self.scores),
        }

    def load_json(self, record: Json) -> None:
        """Becomes what `to_json` described."""
        self.attempt = record["attempt"]
        self.holder = record["holder"]
        self.done_mask = record["mask"]
        self.losses = dict(record["losses"])
        self.loss_sum = record["loss_sum"]
        self.rows_repeated = record["rows_repeated"]
        self.failures = record["failures"]
        self.dropped = record["dropped"]
        scores = record["scores"]
        self.scores = None if scores is None else scores_from_json(scores)
        self.mask_at_lease = self.done_mask


class TaskBoard:
    """The tasks of one epoch, or of the splits that are being scored, in the order to lease them.

    Args:
        tasks: None of them held or over.
    """

    def __init__(self, tasks: Mapping[TaskKey, Task]) -> None:
        self.tasks = dict(tasks)
        self._keys = list(self.tasks)
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._todo = list(range(len(self._keys)))
        self._held: dict[str, dict[TaskKey, None]] = {}
        """By worker, in the order of their leases."""
        self._num_over = 0
        self._rows_done = 0
        self._batches_done = 0
        self._rows_repeated = 0
        self._dropped: set[TaskKey] = set()
        self._unfinished: set[TaskKey] = set()
        """Some of their batches are counted."""
        self._losses_of_done = ExactSum()

    @classmethod
    def of_epoch(cls, plan: EpochPlan) -> "TaskBoard":
        """Tasks of an epoch."""
        return cls(
            {
                TaskKey("train", plan.epoch, task, "train"): Task(
                    plan.rows_of(task), plan.batch_size
                )
                for task in range(plan.num_tasks)
            }
        )

    @classmethod
    def of_splits(cls, splits: tuple[ScoredSplit, ...], epoch: int) -> "TaskBoard":
        """Tasks that score splits after an epoch."""
        return cls(
            {
                TaskKey("score", epoch, task, split.name): Task(
                    split.rows_of(task), split.rows_of(task), split.first_row_of(task)
                )
                for split in splits
                for task in range(split.num_tasks)
            }
        )

    @property
    def num_tasks(self) -> int:
        """All tasks."""
        return len(self._keys)

    @property
    def num_over(self) -> int:
        """Tasks that are done or dropped."""
        return self._num_over

    @property
    def num_todo(self) -> int:
        """Tasks that nobody holds and that are not over."""
        return len(self._todo)

    @property
    def is_over(self) -> bool:
        """All tasks are done or dropped."""
        return self._num_over == len(self._keys)

    def held(self) -> list[tuple[TaskKey, Task]]:
        """Tasks that somebody holds."""
        return [(key, self.tasks[key]) for keys in self._held.values() for key in keys]

    def held_by(self, incarnation: str) -> list[tuple[TaskKey, Task]]:
        """Tasks that a worker holds, in the order of their leases."""
        return [(key, self.tasks[key]) for key in self._held.get(incarnation, ())]

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
        key = self._keys[heapq.heappop(self._todo)]
        self._hold(key, incarnation, attempt, now)
        return key

    def lease_again(self, key: TaskKey, incarnation: str, attempt: int, now: float) -> None:
        """Takes a held task from its worker and gives it to another."""
        self._hold(key, incarnation, attempt, now)

    def _hold(self, key: TaskKey, incarnation: str, attempt: int, now: float) -> None:
        task = self.tasks[key]
        self._let_go(key)
        task.holder, task.attempt = incarnation, attempt
        task.leased_at = task.progress_at = now
        task.mask_at_lease, task.seconds_seen = task.done_mask, 0.0
        self._held.setdefault(incarnation, {})[key] = None

    def _let_go(self, key: TaskKey) -> bool:
        """Nobody holds a task any more; whether somebody did."""
        task = self.tasks[key]
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
        self._let_go(key)
        heapq.heappush(self._todo, self._places[key])

    def settle(self, key: TaskKey) -> None:
        """Takes a task that has just become done or dropped from those to be worked on.

        It need not be held: its last report may come after it was given up.
        """
        if not self._let_go(key):
            self._todo.remove(self._places[key])
            heapq.heapify(self._todo)
        self._num_over += 1
        if self.tasks[key].dropped:
            self._dropped.add(key)

    def load(self, records: Mapping[TaskKey, Json]) -> None:
        """Becomes what the records of its tasks describe; others stay as they are."""
        for key, record in records.items():
            self.tasks[key].load_json(record)
        self.refresh()

    def count(self, key: TaskKey, report: TaskReport) -> int:
        """Takes in a report of the newest lease; returns the mask of the batches new to it."""
        task = self.tasks[key]
        new = task.count(report)
        self._batches_done += new.bit_count()
        self._rows_done += task.rows_in(new)
        if new:
            self._note_loss(key, task)
        if key.kind == "train":
            repeated = task.rows_in(new & report.repeated_mask)
            task.rows_repeated += repeated
            self._rows_repeated += repeated
        return new

    def _note_loss(self, key: TaskKey, task: Task) -> None:
        if task.is_done:
            self._unfinished.discard(key)
            self._losses_of_done.add(task.loss_sum)
        elif task.losses:
            self._unfinished.add(key)

    def refresh(self) -> None:
        """Takes in that tasks were changed one by one."""
        self._todo, self._held = [], {}
        self._num_over = self._rows_done = self._batches_done = self._rows_repeated = 0
        self._dropped, self._unfinished, self._losses_of_done = set(), set(), ExactSum()
        held: list[tuple[int, TaskKey]] = []
        for place, key in enumerate(self._keys):
            task = self.tasks[key]
            self._rows_done += task.rows_done
            self._batches_done += task.done_mask.bit_count()
            self._rows_repeated += task.rows_repeated
            self._note_loss(key, task)
            if task.dropped:
                self._dropped.add(key)
            if task.is_over:
                self._num_over += 1
            elif task.holder:
                held.append((task.attempt, key))
            else:
                self._todo.append(place)
        for _, key in sorted(held, key=lambda entry: entry[0]):
            self._held.setdefault(self.tasks[key].holder, {})[key] = None

    def over_ranges(self) -> list[list[int]]:
        """Training tasks that are done or dropped: the first of each run, and the one after it."""
        ranges: list[list[int]] = []
        for key, task in self.tasks.items():
            if not task.is_over:
                continue
            if ranges and ranges[-1][1] == key.task:
                ranges[-1][1] += 1
            else:
                ranges.append([key.task, key.task + 1])
        return ranges

    def touched(self) -> Iterator[tuple[TaskKey, Task]]:
        """Tasks that are not as they were at the beginning."""
        for key, task in self.tasks.items():
            if task.attempt or task.done_mask or task.failures:
                yield key, task

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
        keys = sorted(self._dropped, key=self._places.__getitem__)
        return [(key, self.tasks[key]) for key in keys]

    @property
    def rows_dropped(self) -> int:
        """Records of dropped tasks that are not counted."""
        return sum(task.rows_left for _, task in self.dropped)

    @property
    def loss_sum(self) -> float:
        """Over the records counted, the same in whatever order they came."""
        unfinished = (self.tasks[key].loss_so_far() for key in self._unfinished)
        return math.fsum((*self._losses_of_done.parts, *unfinished))


class ExactSum:
    """A sum of floats that is not rounded before it is read.

    Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic", as `math.fsum` does it. Of
    values that are infinite or no number it is what adding gives.
    """

    def __init__(self) -> None:
        self.parts: list[float] = []
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


def scores_to_json(scores: ScoreSummary) -> dict[str, object]:
    """As JSON."""
    return {
        "positives": [list(pair) for pair in scores.positives],
        "negatives": [list(pair) for pair in scores.negatives],
        "loss_sum": scores.loss_sum,
        "probability_sum": scores.probability_sum,
    }


def scores_from_json(record: Json) -> ScoreSummary:
    """Back from JSON."""
    return ScoreSummary(
        tuple((place, count) for place, count in record["positives"]),
        tuple((place, count) for place, count in record["negatives"]),
        record["loss_sum"],
        record["probability_sum"],
    )


def name_of(key: TaskKey, task: Task) -> str:
    """A task for a person."""
    if key.kind == "train":
        return f"task {key.task} of epoch {key.epoch + 1} ({task.num_rows:,} records)"
    last_row = task.first_row + task.num_rows - 1
    return f"rows {task.first_row:,} to {last_row:,} of {key.split} after epoch {key.epoch + 1}"
