"""Leases: tasks are given to workers that ask, and to those that wait."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from ctr_pipeline.distributed.coordination.events import AnswerLease, WaitingCall
from ctr_pipeline.distributed.coordination.job import drains, members
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import (
    HeldLease,
    LeaseReply,
    LeaseRequest,
    TaskKey,
)
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.tasks import leased_task
from ctr_pipeline.distributed.coordination.work_sharing import (
    holds_enough,
    lost_leases,
    task_to_steal,
)

_WAIT_SECONDS = 0.2


def hang_up(state: JobState, call: WaitingCall) -> None:
    """A call that `lease` was handed has ended: whatever it waited for is for others."""
    for name, waiting in state.waiting.items():
        if waiting.call is call:
            del state.waiting[name]
            return


def answer(
    state: JobState, request: LeaseRequest, num_sharing: Callable[[], int] | None = None
) -> LeaseReply:
    """Gives a worker tasks under new attempts, or says why there are none for it.

    Args:
        num_sharing: Counts the workers that share the work; None: by the state.
    """
    generation = state.head.generation
    if state.is_over:
        return LeaseReply("end", generation, (), 0.0)
    member, board = state.registered(request.member), drains.board_to_lease(state)
    if member is not None and not state.is_wanted(member):
        return LeaseReply("leave", generation, (), 0.0)
    keys: list[TaskKey] = []
    if member is not None and board is not None and request.generation == generation:
        keys = lost_leases(state.queue_of(member, board), request.held)
        if members.may_work(state, member):
            count = num_sharing or partial(_num_sharing, state)
            keys += _new_leases(state, member, board, request.num_tasks - len(keys), count)
    if not keys or board is None:
        return LeaseReply("wait", generation, (), _WAIT_SECONDS)
    # Final scores are wanted as files; those of an epoch are not.
    folder = state.settings.scores_folder if state.head.training_over else ""
    factor = state.settings.course.learning_rate_schedule.factor_of_epoch(state.ledger.history)
    tasks = tuple(leased_task(key, board.task(key), folder, factor) for key in keys)
    return LeaseReply("tasks", generation, tasks, 0.0)


def answer_waiting(state: JobState) -> None:
    """Gives those that wait for tasks what there is for them by now, and their time's end."""
    looked_at, state.look_at = state.look_at, set()
    names = list(state.waiting) if looked_at is None else looked_at & state.waiting.keys()
    board, now = drains.board_to_lease(state), state.now
    has_work = board is not None and (board.num_todo > 0 or board.has_queues)
    # Counted once for all that wait: there may be a thousand.
    num_sharing = cache(partial(_num_sharing, state))
    for name in names:
        waiting = state.waiting[name]
        member = state.registered(waiting.request.member)
        is_wanted = member is not None and state.is_wanted(member)
        is_current = waiting.request.generation == state.head.generation
        if is_wanted and is_current and not has_work and now < waiting.until:
            continue
        reply = answer(state, waiting.request, num_sharing)
        if is_wanted and is_current and reply.verdict == "wait" and now < waiting.until:
            continue
        if reply.verdict == "wait":
            reply = replace(reply, wait_seconds=0.0)
        del state.waiting[name]
        state.actions.append(AnswerLease(waiting.call, reply))


def holds(state: JobState, incarnation: str, lease: HeldLease) -> bool:
    """Whether a worker still has a lease."""
    board = state.board_of(lease.key)
    if board is None:
        return False
    task = board.task(lease.key)
    return task.attempt == lease.attempt and task.holder == incarnation


def active_workers(state: JobState) -> tuple[str, ...]:
    """Workers that hold training tasks, by name."""
    board = state.ledger.board
    return () if board is None else board.holders


def _num_sharing(state: JobState) -> int:
    joined = sum(bool(one.incarnation) and state.is_wanted(one) for one in state.workers())
    return min(joined, state.head.target_workers)


def _new_leases(
    state: JobState,
    member: MemberState,
    board: TaskBoard,
    most: int,
    num_sharing: Callable[[], int],
) -> list[TaskKey]:
    queue = state.queue_of(member, board)
    was_idle = not queue.tasks
    if was_idle:
        member.idle_since = state.now
    keys: list[TaskKey] = []
    while (
        board.num_todo
        and len(keys) < most
        and not holds_enough(
            queue,
            work_ahead_seconds=state.settings.supervision.work_ahead_seconds,
            num_todo=board.num_todo,
            num_workers=num_sharing,
        )
    ):
        keys.append(_lease(state, board, member, None))
        queue = state.queue_of(member, board)
    if was_idle and not keys and most > 0:
        others = [state.queue_of(other, board) for other in state.workers()]
        stolen = task_to_steal(queue.speed, others)
        if stolen is not None:
            keys.append(_lease(state, board, member, stolen))
    return keys


def _lease(
    state: JobState, board: TaskBoard, member: MemberState, stolen: TaskKey | None
) -> TaskKey:
    state.head.attempt += 1
    now = state.now
    if stolen is None:
        key = board.lease_next(member.incarnation, state.head.attempt, now)
    else:
        key = stolen
        board.lease_again(key, member.incarnation, state.head.attempt, now)
    return key
