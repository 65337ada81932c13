"""What a job tells of itself, for a person or a metric."""

from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.status import JobStatus, MemberStatus


def status_of(state: JobState) -> JobStatus:
    """The job for a person or a metric, as of the last call."""
    board = state.scoring if state.scoring is not None else state.ledger.board
    totals = tuple(state.totals())
    return JobStatus(
        phase=state.head.phase,
        reason=state.head.reason or _storage_reason(state),
        traceback=state.head.traceback,
        generation=state.head.generation,
        epoch=max(0, state.ledger.epoch - (1 if state.ledger.board is None else 0)),
        tasks_done=0 if board is None else board.num_over,
        tasks_total=0 if board is None else board.num_tasks,
        epochs=totals,
        step=state.ledger.batches,
        trained=sum(epoch.trained for epoch in totals),
        repeated=sum(state.repeated().values()),
        dropped=sum(epoch.dropped for epoch in totals),
        dropped_tasks=state.ledger.dropped_tasks(),
        history=tuple(state.ledger.history),
        best_epoch=state.ledger.best_epoch,
        last_cut=state.newest_cut,
        best_cut=state.ledger.best_cut,
        cut_age_seconds=state.now - state.cut_schedule.last_at,
        members=tuple(
            _member_status(state, state.members[place]) for place in sorted(state.members)
        ),
        target_workers=state.head.target_workers,
        refused_reports=state.head.refused_reports,
        final_scores=state.head.final_scores,
    )


def _storage_reason(state: JobState) -> str:
    is_waiting = state.storage.reason and not state.is_over
    return f"waiting for storage: {state.storage.reason}" if is_waiting else ""


def _member_status(state: JobState, member: MemberState) -> MemberStatus:
    leases = sum(board.num_held_by(member.incarnation) for board in state.boards())
    return MemberStatus(
        role=member.role,
        index=member.index,
        incarnation=member.incarnation,
        state=_state_of(state, member),
        address=member.address,
        metrics_address=member.metrics_address,
        host=member.host,
        pid=member.pid,
        leases=leases if member.incarnation else 0,
        silent_seconds=state.now - member.heard_at if member.incarnation else 0.0,
        restarts=member.restarts,
        last_end=member.last_end,
        stats=member.stats,
    )


def _state_of(state: JobState, member: MemberState) -> str:
    if member.incarnation:
        silent = state.now - member.heard_at > 3 * state.settings.heartbeat_seconds
        if silent:
            return "silent"
        is_standby = member.role == "worker" and not member.is_active
        return "standby" if is_standby else "running"
    if member.is_running:
        return "starting"
    if not state.is_wanted(member):
        return "left"
    return "backing off" if state.now < member.not_before else "ended"
