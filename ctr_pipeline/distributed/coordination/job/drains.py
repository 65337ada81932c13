"""A parameter server, or a whole job, that is asked to end does so once a cut holds all.

On a node that is drained or taken away, a pod gets SIGTERM and some seconds. Its server says so in
its heartbeats. Then workers are given no more tasks, finish their batches and hand back what they
hold; a cut is taken of what is then at rest; the server is let go, and the one in its place
restores that cut, so that no record is trained again. A job that is stopped pauses in the same way
before its last cut.
"""

from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import HeartbeatRequest
from ctr_pipeline.distributed.coordination.task_board import TaskBoard

_AWAITS_CUT = frozenset({"training", "cutting", "stopping"})
"""Phases of which the newest cut does not hold all that was trained."""
_CUT_TIMES = 1.5
_CUT_MORE_SECONDS = 1.0
"""What is kept back for a cut: so many times what the last one took, and so much more."""
_STOP_REST_SECONDS = 20.0
"""A stop waits so long for workers to hand back what they hold."""


def take_in(state: JobState, member: MemberState, request: HeartbeatRequest) -> None:
    """A server says that it was asked to end, or a worker that it holds nothing any more."""
    if request.paused and request.generation == state.head.generation:
        state.release_leases_of(member)
    if member.role != "ps" or request.leaves_in_seconds is None:
        return
    is_new = member.leaves_at is None
    member.leaves_at = state.now + request.leaves_in_seconds
    if is_new and is_draining(state) and not holds_all(state):
        state.announce(
            f"{member.name} is asked to end within {request.leaves_in_seconds:.0f} s",
            "workers pause, and a checkpoint is taken before it does",
            topic="member",
        )


def is_draining(state: JobState) -> bool:
    """Training pauses: a server that holds something is about to leave."""
    return state.head.phase == "training" and bool(_leaving(state))


def is_pausing(state: JobState) -> bool:
    """Workers are to pause: for a server that is about to leave, or before the job stops."""
    return state.head.phase == "stopping" or is_draining(state)


def begin_stop(state: JobState) -> None:
    """Workers have some time from now on to come to rest before the job stops."""
    state.stop_rests_by = state.now + _STOP_REST_SECONDS


def board_to_lease(state: JobState) -> TaskBoard | None:
    """Tasks that workers may be given now; None: there are none."""
    return None if is_draining(state) else state.open_board()


def is_at_rest(state: JobState) -> bool:
    """No worker holds a task of training."""
    board = state.ledger.board
    return board is None or not board.holders


def wants_cut(state: JobState) -> bool:
    """Whether a cut is to be taken for a server that leaves, or for a job that stops.

    Once nobody works any more; or, if a worker does not hand back what it holds, when there is just
    enough time left for a cut: then what that worker does meanwhile is trained again.
    """
    if holds_all(state):
        return False
    if is_at_rest(state):
        return True
    for_cut = _CUT_TIMES * state.cut_seconds + _CUT_MORE_SECONDS
    latest = [leaves_at - for_cut for leaves_at in _leaving(state)]
    if state.head.phase == "stopping":
        # One that fails is tried again: the job does not stop without one.
        return state.now >= min([*latest, state.stop_rests_by])
    return state.now >= min(latest) > state.cut_began_at


def may_leave(state: JobState, member: MemberState) -> bool:
    """Whether a member that was asked to end does so now: nothing is lost, or its time is over."""
    if member.role != "ps" or member.leaves_at is None:
        return False
    holds_nothing = member.index >= state.servers.placement.num_servers
    if holds_nothing or state.head.phase not in _AWAITS_CUT or state.now >= member.leaves_at:
        return True
    return state.head.phase == "training" and holds_all(state)


def explain_loss(state: JobState) -> str:
    """What the end of a server that was asked to end means, once it has ended."""
    cut = state.cut_to_restore()
    if holds_all(state):
        where = f"checkpoint {cut} holds all" if cut else "nothing was trained yet"
        return f"no record is trained again: {where}"
    where = f"checkpoint {cut}" if cut else "its beginning"
    return (
        f"the job goes back to {where}, as it ended before a newer checkpoint was taken; with a "
        "longer runtime.termination_grace_seconds there is time for one"
    )


def _leaving(state: JobState) -> list[float]:
    """When servers that hold something leave, of those that were asked to."""
    servers = (state.member("ps", index) for index in range(state.servers.placement.num_servers))
    return [one.leaves_at for one in servers if one.leaves_at is not None]


def holds_all(state: JobState) -> bool:
    """The newest cut holds all that was trained."""
    if state.head.phase not in _AWAITS_CUT:
        return True
    return is_at_rest(state) and not state.counted_since_cut and state.pending_cut is None
