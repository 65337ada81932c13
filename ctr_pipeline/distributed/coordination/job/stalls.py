"""Tasks that stand still, workers that fall behind, and jobs in which nothing is counted."""

from ctr_pipeline.distributed.coordination.job import members, reports, restores
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import TaskKey, TaskKind
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.tasks import Task, name_of
from ctr_pipeline.distributed.coordination.timeouts import Speeds, timeout_seconds

_MAX_STALLS = 3
_USUAL_TIMES_OF_STALL = 20.0
"""A job in which so many times the usual time of a batch passes without one stands still."""
# A worker that is slower than half of the others for so long is told of; one that has come back to
# this fraction of them keeps up, and is told of again if it falls behind again.
_BEHIND_SECONDS = 5.0
_KEEPS_UP = 0.75


def check_tasks(state: JobState) -> None:
    """Looks for tasks that stand still or take too long, and for stragglers."""
    board = state.open_board()
    if board is None:
        return
    kind: TaskKind = "train" if board is state.ledger.board else "score"
    speeds = _speeds(state, kind)
    still: list[tuple[float, MemberState]] = []
    for member in state.workers():
        if board.num_held_by(member.incarnation):
            _check_slow(state, member, speeds)
            key, task = board.held_by(member.incarnation)[0]
            begun = max(task.leased_at, member.idle_since)
            timeout = _timeout_for(state, task, kind)
            if state.now - max(begun, task.progress_at) > timeout:
                still.append((max(begun, task.progress_at), member))
            elif (
                state.now - begun > timeout
                # While no task has ended, nobody knows what is long.
                and state.seconds_per_row[kind].value is not None
                and _has_another(state, member)
            ):
                _give_rest_to_others(state, member, board, key, timeout)
    if still:
        # In synchronous mode one that hangs holds up all the others. The first to stand still
        # is ended; the others get their time again.
        _, first = min(still, key=lambda entry: entry[0])
        for _, task in board.held():
            task.progress_at = state.now
        _end_stall(state, first, board, kind)


def check_job(state: JobState) -> None:
    """Looks whether anything is counted at all while workers hold work.

    By then a worker that hangs was ended and its work given to others: what is left is what no
    worker can mend, such as parameter servers that refuse all of them.
    """
    board, now = state.open_board(), state.now
    passed, state.stall_checked_at = now - state.stall_checked_at, now
    held = () if board is None else board.held()
    if not held:
        return
    state.still_seconds += passed
    key, task = held[0]
    per_row = state.seconds_per_row[key.kind].value
    timeout = timeout_seconds(
        None if per_row is None else per_row * task.batch_size,
        floor_seconds=2 * state.settings.task_timeout_floor_seconds,
        factor=_USUAL_TIMES_OF_STALL,
    )
    if state.still_seconds <= timeout:
        return
    state.still_seconds = 0.0
    state.head.stalls_in_row += 1
    what = f"nothing was counted for {timeout:.0f} s though workers hold work"
    if state.head.stalls_in_row > _MAX_STALLS:
        times = f"{state.head.stalls_in_row} times in a row without any progress"
        state.fail(f"{what}; this happened {times}")
        return
    cut = state.cut_to_restore()
    done = f"the job goes back to {f'checkpoint {cut}' if cut else 'its beginning'}"
    state.announce(what, done, is_disruption=True)
    restores.roll_back(state)


def _timeout_for(state: JobState, task: Task, kind: TaskKind) -> float:
    per_row = state.seconds_per_row[kind].value
    return timeout_seconds(
        None if per_row is None else per_row * task.num_rows,
        floor_seconds=state.settings.task_timeout_floor_seconds,
        factor=state.settings.task_timeout_factor,
    )


def _end_stall(state: JobState, member: MemberState, board: TaskBoard, kind: TaskKind) -> None:
    key, task = board.held_by(member.incarnation)[0]
    why = f"no batch of it was done within {_timeout_for(state, task, kind):.0f} s"
    if task.done_mask == task.mask_at_lease:
        reports.fail_task(state, member, board, key, why)
    if not state.is_over:
        members.kill(state, member, f"{member.name} stands still in {name_of(key, task)}: {why}")


def _give_rest_to_others(
    state: JobState, member: MemberState, board: TaskBoard, key: TaskKey, timeout: float
) -> None:
    state.release(board, key)
    member.idle_since = state.now
    what = f"{name_of(key, board.task(key))} takes {member.name} longer than {timeout:.0f} s"
    state.announce(what, "what is left of it is given to others")


def _has_another(state: JobState, member: MemberState) -> bool:
    return any(
        other is not member and other.incarnation and state.is_wanted(other)
        for other in state.workers()
    )


def _speeds(state: JobState, kind: TaskKind) -> Speeds:
    return Speeds(
        {
            worker.index: speed
            for worker in state.workers()
            if worker.incarnation and (speed := worker.speed_of(kind)) is not None
        }
    )


def _check_slow(state: JobState, member: MemberState, speeds: Speeds) -> None:
    if not speeds.is_straggler(member.index, fraction=_KEEPS_UP):
        member.behind_since, member.is_slow = None, False
        return
    if not speeds.is_straggler(member.index):
        return
    if member.behind_since is None:
        # The first batches of a process, while others start, are no measure.
        member.behind_since = state.now
    if member.is_slow or state.now - member.behind_since < _BEHIND_SECONDS:
        return
    member.is_slow = True
    state.announce(
        f"{member.name} is slow: {speeds.of(member.index) or 0.0:,.0f} records/s, less "
        "than half of the others",
        "idle workers take over what it has not begun",
        topic="member",
    )
