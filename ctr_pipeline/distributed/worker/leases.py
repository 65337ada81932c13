"""The tasks that one worker holds, and what of each is done; pure.

Reports are cumulative: one that is lost is made up for by the next, and one that arrives twice
says nothing new.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    HeldLease,
    LeasedTask,
    ScoreSummary,
    TaskReport,
)


@dataclass
class _Progress:
    """One leased task.

    Attributes:
        task: As it was leased.
        done_mask: Batches done, those that the lease gave as done included.
        repeated_mask: Batches among these that a parameter server had applied before.
        losses: By batch, of those done under this lease.
        seconds: Spent.
        finished: All of it is done.
        failure: Why it cannot be done.
        is_final: Nobody can do it.
        scores: Scores of a finished score task.
        taken: The loop has it.
        changes: Counts what has changed since it was leased.
        reported: `changes` that the master has acknowledged.
    """

    task: LeasedTask
    done_mask: int
    repeated_mask: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = False
    failure: str = ""
    is_final: bool = False
    scores: ScoreSummary | None = None
    taken: bool = False
    changes: int = 0
    reported: int = 0

    @property
    def is_open(self) -> bool:
        return not self.finished and not self.failure


@dataclass(frozen=True)
class Reports:
    """Reports under way, and what they will have told once they are acknowledged."""

    reports: tuple[TaskReport, ...]
    changes: tuple[tuple[HeldLease, int], ...]


class LeaseBook:
    """Leases in the order in which they are worked on.

    A lease is the very `LeasedTask` that `take` returned. Whatever is said of one that is not held
    any more is ignored: it was revoked, or belongs to another generation.
    """

    def __init__(self) -> None:
        self._held: dict[HeldLease, _Progress] = {}
        self._task_seconds = 0.0

    def add(self, tasks: Iterable[LeasedTask]) -> int:
        """Takes in leases; one that is held already stays as it is.

        Returns:
            How many were new.
        """
        before = len(self._held)
        for task in tasks:
            lease = HeldLease(task.key, task.attempt)
            self._held.setdefault(lease, _Progress(task, task.done_mask))
        return len(self._held) - before

    def take(self) -> LeasedTask | None:
        """The next task that nobody works on yet; None if there is none."""
        for progress in self._held.values():
            if not progress.taken and progress.is_open:
                progress.taken = True
                return progress.task
        return None

    def holds(self, task: LeasedTask) -> bool:
        """Whether it is still ours to work on."""
        return self._open(task) is not None

    def held(self) -> tuple[HeldLease, ...]:
        """Leases whose end no acknowledged heartbeat has reported."""
        return tuple(self._held)

    @property
    def num_open(self) -> int:
        """Tasks to be worked on or being worked on."""
        return sum(progress.is_open for progress in self._held.values())

    @property
    def has_news(self) -> bool:
        """Whether something has changed that the master has not acknowledged."""
        return any(progress.changes > progress.reported for progress in self._held.values())

    @property
    def has_endings(self) -> bool:
        """Whether a task has ended and the master does not know it."""
        return any(not progress.is_open for progress in self._held.values())

    @property
    def task_seconds(self) -> float:
        """What a training task takes here, about; 0 while nobody knows."""
        return self._task_seconds

    def mark_batch(
        self,
        task: LeasedTask,
        batch: int,
        *,
        loss_sum: float,
        repeated: bool,
        finished: bool,
        seconds: float,
    ) -> None:
        """Every parameter server has acknowledged a batch.

        Args:
            task: The lease.
            repeated: Some server had applied it before.
            finished: It was the last one.
            seconds: Spent on it.
        """
        progress = self._open(task)
        if progress is None:
            return
        progress.done_mask |= 1 << batch
        progress.repeated_mask |= (1 << batch) if repeated else 0
        progress.losses[batch] = loss_sum
        self._advance(progress, seconds, finished=finished)

    def finish_empty(self, task: LeasedTask) -> None:
        """All of a task was done before it was leased."""
        progress = self._open(task)
        if progress is not None:
            self._advance(progress, 0.0, finished=True)

    def finish_scores(self, task: LeasedTask, scores: ScoreSummary, seconds: float) -> None:
        """A score task is done, and its file is in its place."""
        progress = self._open(task)
        if progress is not None:
            progress.scores = scores
            self._advance(progress, seconds, finished=True)

    def fail(self, task: LeasedTask, reason: str, *, is_final: bool = False) -> None:
        """A task cannot be done; if that is final, by nobody."""
        progress = self._open(task)
        if progress is not None:
            progress.failure, progress.is_final = reason, is_final
            progress.changes += 1

    def revoke(self, leases: Iterable[HeldLease]) -> None:
        """Leases are no longer ours."""
        for lease in leases:
            self._held.pop(lease, None)

    def clear(self) -> None:
        """All leases are void."""
        self._held.clear()

    def compose(self) -> Reports:
        """Everything that has changed since it was last acknowledged."""
        news = [(held, one) for held, one in self._held.items() if one.changes > one.reported]
        return Reports(
            tuple(_report(progress) for _, progress in news),
            tuple((held, progress.changes) for held, progress in news),
        )

    def acknowledge(self, reports: Reports) -> None:
        """The master has counted them; tasks that it knows to be over are let go."""
        for lease, changes in reports.changes:
            progress = self._held.get(lease)
            if progress is None:
                continue
            progress.reported = max(progress.reported, changes)
            if not progress.is_open and progress.reported == progress.changes:
                del self._held[lease]

    def _open(self, task: LeasedTask) -> _Progress | None:
        progress = self._held.get(HeldLease(task.key, task.attempt))
        # The very lease: attempts of an earlier generation may have had the same number.
        is_it = progress is not None and progress.task is task and progress.is_open
        return progress if is_it else None

    def _advance(self, progress: _Progress, seconds: float, *, finished: bool) -> None:
        progress.seconds += seconds
        progress.changes += 1
        progress.finished = finished
        if finished and progress.seconds and progress.task.key.kind == "train":
            # The newest tasks say most of the next ones.
            before = self._task_seconds or progress.seconds
            self._task_seconds = 0.5 * before + 0.5 * progress.seconds


def _report(progress: _Progress) -> TaskReport:
    return TaskReport(
        key=progress.task.key,
        attempt=progress.task.attempt,
        done_mask=progress.done_mask,
        repeated_mask=progress.repeated_mask,
        losses=tuple(BatchLoss(batch, loss) for batch, loss in sorted(progress.losses.items())),
        finished=progress.finished,
        failure=progress.failure,
        seconds=progress.seconds,
        scores=progress.scores,
        is_final=progress.is_final,
    )
