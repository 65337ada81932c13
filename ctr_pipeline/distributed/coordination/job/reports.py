"""What workers have done: counted once, under the newest lease and generation alone."""

from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import TaskKey, TaskReport
from ctr_pipeline.distributed.coordination.reports import (
    LONGEST_FAILURE,
    find_nonsense,
    last_line_of,
)
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.tasks import Task, name_of


def take_in(state: JobState, member: MemberState, report: TaskReport, generation: int) -> None:
    """A worker tells what of a task it has done."""
    board = state.board_of(report.key)
    task = None if board is None else board.task(report.key)
    if generation != state.head.generation or board is None or task is None:
        state.head.refused_reports += 1
        return
    if task.is_over:
        return
    if report.attempt != task.attempt:
        state.head.refused_reports += 1
        return
    key, holds = report.key, task.holder == member.incarnation
    nonsense = find_nonsense(report, task)
    if nonsense:
        state.head.refused_reports += 1
        if holds:
            why = f"its report is refused: {nonsense}"
            fail_task(state, member, board, key, why)
        return
    new = board.count(key, report)
    if new:
        _take_in_progress(state, member, task, report, new)
    if task.is_done:
        _finish_task(state, member, board, report)
    elif holds and report.failure:
        failure = report.failure[-LONGEST_FAILURE:]
        fail_task(state, member, board, key, failure, is_final=report.is_final)
    elif holds and report.finished:
        # It says that nothing is left, and yet something is.
        state.release(board, key)


def _take_in_progress(
    state: JobState, member: MemberState, task: Task, report: TaskReport, new: int
) -> None:
    now, rows, kind = state.now, task.rows_in(new), report.key.kind
    seconds = report.seconds - task.seconds_seen
    task.progress_at = now
    state.still_seconds = 0.0
    task.seconds_seen = max(task.seconds_seen, report.seconds)
    member.measure(kind, rows, seconds)
    member.ends_in_row = 0
    if kind == "train":
        state.counted_since_cut = True
        state.claims.add(report.key.task, new, member.incarnation)
    state.announce_recovery()
    trained = state.ledger.trained
    if kind == "score" or trained > state.head.best_trained:
        # What only repeats what was rolled back is no progress: a server that fails each time
        # at the same place would go on for ever.
        state.head.best_trained = max(state.head.best_trained, trained)
        state.head.errors_in_row = state.head.stalls_in_row = 0
        for server in range(state.servers.number):
            state.member("ps", server).ends_in_row = 0


def _finish_task(
    state: JobState, member: MemberState, board: TaskBoard, report: TaskReport
) -> None:
    task = board.task(report.key)
    rows = task.rows_in(task.full_mask & ~task.mask_at_lease)
    if rows and task.seconds_seen > 0:
        state.seconds_per_row[report.key.kind].add(task.seconds_seen / rows)
    board.settle(report.key)
    member.idle_since = state.now


def fail_task(
    state: JobState,
    member: MemberState,
    board: TaskBoard,
    key: TaskKey,
    failure: str,
    *,
    is_final: bool = False,
) -> None:
    """A task itself has failed: it is tried again, dropped, or the end of the job.

    Args:
        is_final: To try it again is of no use.
    """
    task = board.task(key)
    failures = board.fail(key)
    name, supervision = name_of(key, task), state.settings.supervision
    most = supervision.max_task_failures
    last_line = last_line_of(failure)
    what = f"{name} failed on {member.name} ({failures} of {most}): {last_line}"
    if failures < most and not is_final:
        state.release(board, key)
        state.announce(what, "it is given out again")
    elif key.kind == "train" and len(state.ledger.dropped_tasks()) < supervision.max_dropped_tasks:
        board.drop(key, last_line)
        state.announce(what, f"its {task.rows_left:,} records that are not trained are dropped")
    else:
        state.release(board, key)
        times = "" if failures == 1 else f" {failures} times, the last time"
        state.fail(f"{name} failed{times}: {last_line}", failure)
