"""One task: what it holds, who holds it, what of it is done."""

import math
from dataclasses import dataclass, field
from typing import Any

from ctr_pipeline.distributed.coordination.codec import fields_to_record, set_fields
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.messages import (
    LeasedTask,
    ScoreSummary,
    TaskKey,
    TaskReport,
)

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
"""Fields of a task that the ledger holds."""


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


def leased_task(
    key: TaskKey, task: Task, scores_folder: str, learning_rate_factor: float = 1.0
) -> LeasedTask:
    """What a worker is told of its lease.

    Args:
        key: The task.
        task: Its state.
        scores_folder: Where logits go; empty if nobody wants them.
        learning_rate_factor: As of `LeasedTask`.
    """
    if key.kind == "train":
        return LeasedTask(key, task.attempt, task.done_mask, 0, 0, "", learning_rate_factor)
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
