"""Checks whether parameter servers hold the batches that workers reported as trained.

A worker reports a batch once every server has applied it. A cut holds the bitmaps of applied
batches of all servers, so that reports are compared with the model there.
"""

from collections.abc import Iterable, Mapping, Sequence

from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.messages import TaskBitmap
from ctr_pipeline.distributed.coordination.task_set import TaskSet


class Claims:
    """Reported batches of the open epoch that no cut has confirmed yet, by worker."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, int]] = {}
        self._in_cut: dict[int, dict[str, int]] = {}

    def to_json(self, task: int | None = None) -> list[tuple[int, str, int]]:
        """Tasks, workers and masks of their batches, of one task or (None) of all."""
        return [
            (number, incarnation, mask)
            for batches in (self._open, self._in_cut)
            for number in (batches if task is None else {task} & batches.keys())
            for incarnation, mask in batches[number].items()
        ]

    def load_json(self, record: Iterable[tuple[int, str, int]]) -> None:
        """Adds what `to_json` gave."""
        for task, incarnation, mask in record:
            self.add(task, mask, incarnation)

    def add(self, task: int, mask: int, incarnation: str) -> None:
        """A worker has reported batches; the name is empty where the worker is not known."""
        by_worker = self._open.setdefault(task, {})
        by_worker[incarnation] = by_worker.get(incarnation, 0) | mask

    def begin_cut(self) -> tuple[tuple[int, int], ...]:
        """Batches that a cut beginning now has to confirm: tasks and masks of their batches."""
        for task, by_worker in self._open.items():
            for incarnation, mask in by_worker.items():
                shown = self._in_cut.setdefault(task, {})
                shown[incarnation] = shown.get(incarnation, 0) | mask
        self._open = {}
        return tuple((task, _union(masks.values())) for task, masks in self._in_cut.items())

    def end_cut(self) -> None:
        """The cut has confirmed its batches; after one that fails, the next cut has to."""
        self._in_cut = {}

    def forget(self) -> None:
        """The job went back to a cut, which had confirmed everything that it counts."""
        self._open, self._in_cut = {}, {}

    def claimants(self, missing: Iterable[tuple[int, int]]) -> set[str]:
        """Workers that reported any of the batches that a cut did not confirm."""
        return {
            incarnation
            for task, mask in missing
            for incarnation, claimed in self._in_cut.get(task, {}).items()
            if claimed & mask and incarnation
        }


def unproven(
    claims: Iterable[tuple[int, int]], bitmaps: Sequence[Sequence[TaskBitmap]], epoch: int
) -> tuple[tuple[int, int], ...]:
    """Batches that were reported and that some server has not applied.

    Args:
        claims: Tasks of the epoch, and masks of their batches.
        bitmaps: Bitmaps of every server. Where a task has several, of parts of the server, all must
            agree.

    Returns:
        Tasks and masks, those that are not proven alone.
    """
    applied = [_masks_of(server, epoch) for server in bitmaps]
    missing = (
        (task, mask & ~_intersection(server.get(task, 0) for server in applied))
        for task, mask in claims
    )
    return tuple((task, mask) for task, mask in missing if mask)


TaskRanges = tuple[tuple[int, int], ...]
"""The first task of each run and the one after its last, ascending."""


def tasks_over(frozen: Json) -> tuple[int, TaskRanges]:
    """The epoch that a cut is of, and its tasks that are over: nobody works on them again."""
    return len(frozen["closed"]), tuple((first, end) for first, end in frozen["over"])


def bitmaps_beyond(
    bitmaps: Iterable[TaskBitmap], epoch: int, over: TaskRanges
) -> tuple[TaskBitmap, ...]:
    """Bitmaps without those of earlier epochs, and of tasks of this one that are over."""
    tasks = TaskSet(over)
    return tuple(
        bitmap
        for bitmap in bitmaps
        if bitmap.epoch > epoch or (bitmap.epoch == epoch and bitmap.task not in tasks)
    )


def _masks_of(bitmaps: Iterable[TaskBitmap], epoch: int) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for bitmap in bitmaps:
        if bitmap.epoch == epoch:
            found[bitmap.task] = found.get(bitmap.task, bitmap.mask) & bitmap.mask
    return found


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _intersection(masks: Iterable[int]) -> int:
    common = -1
    for mask in masks:
        common &= mask
    return common
