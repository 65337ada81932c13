"""How much work a worker holds, and who gives it up to whom."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.events import WaitingCall
from ctr_pipeline.distributed.coordination.messages import HeldLease, LeaseRequest, TaskKey
from ctr_pipeline.distributed.coordination.tasks import Task

Held = tuple[TaskKey, Task]


@dataclass(frozen=True)
class WaitingLease:
    """A worker that asked for tasks while there were none for it.

    Attributes:
        call: Where the answer goes.
        until: When it is answered in any case, on the job's clock.
    """

    request: LeaseRequest
    call: WaitingCall
    until: float


@dataclass(frozen=True)
class Queue:
    """What a worker holds.

    Attributes:
        tasks: In the order of their leases; it works on the first.
        speed: Records per second; None before it was measured.
    """

    tasks: Sequence[Held]
    speed: float | None

    @property
    def rows_left(self) -> int:
        """Records that are not counted yet."""
        return sum(task.rows_left for _, task in self.tasks)

    def unstarted(self) -> list[TaskKey]:
        """Tasks behind the first of which nothing is reported done under their leases."""
        return [key for key, task in self.tasks[1:] if task.done_mask == task.mask_at_lease]


def holds_enough(
    queue: Queue, *, work_ahead_seconds: float, num_todo: int, num_workers: Callable[[], int]
) -> bool:
    """Whether a worker is to wait before it gets another task.

    It always gets one; then as much as keeps it busy for a while without a master, but near the end
    of the epoch no more than its share, so that all end together.

    Args:
        queue: Tasks that the worker holds.
        work_ahead_seconds: How much work it is to hold.
        num_todo: Tasks that nobody holds.
        num_workers: Counts the workers that train, this one included; asked where it matters.
    """
    if not queue.tasks:
        return False
    if queue.rows_left >= work_ahead_seconds * (queue.speed or 0.0):
        return True
    fair_share = math.ceil((num_todo + len(queue.tasks)) / max(1, num_workers()))
    return len(queue.tasks) >= fair_share


def lost_leases(queue: Queue, known: Sequence[HeldLease]) -> list[TaskKey]:
    """Leases that the worker does not name: the reply that gave them was lost.

    Args:
        queue: Tasks that the worker holds, as the master knows.
        known: Tasks that the worker holds, as the worker itself knows.
    """
    named = {(lease.key, lease.attempt) for lease in known}
    return [key for key, task in queue.tasks if (key, task.attempt) not in named]


def task_to_steal(idle_speed: float | None, others: Sequence[Queue]) -> TaskKey | None:
    """The last task of the worker that will be busy longest, if an idle one would end it sooner.

    Only what is unstarted is taken, and never the first, so no task goes back and forth.

    Args:
        idle_speed: Speed of the idle worker, records per second; None before it was measured.
        others: Tasks that the other workers hold.
    """
    best: TaskKey | None = None
    longest = 0.0
    for queue in others:
        unstarted = queue.unstarted()
        if not unstarted or unstarted[-1] != queue.tasks[-1][0]:
            continue
        _, task = queue.tasks[-1]
        busy = queue.rows_left / queue.speed if queue.speed else math.inf
        own = task.rows_left / idle_speed if idle_speed else 0.0
        if busy > max(longest, own):
            best, longest = unstarted[-1], busy
    return best
