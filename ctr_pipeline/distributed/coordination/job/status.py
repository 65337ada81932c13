"""What a job reports of itself and its members, to a person or a metric."""

from dataclasses import dataclass, fields
from typing import Any

from ctr_pipeline.distributed.coordination.events import EpochTotals, Json, Phase, SplitTotals
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.members import MemberEnd, MemberState
from ctr_pipeline.distributed.coordination.messages import MemberStats, Role

_REPORTS_MISSED = 3
"""A member is shown as silent after so many."""


@dataclass(frozen=True)
class MemberStatus:
    """One member, from the master's state to `ctrpipe status`; a new field is set in `of`.

    Attributes:
        pid: Its process; 0 if none is known.
        host: Its host.
        address: It serves on; empty for workers.
        metrics_address: Address of its Prometheus metrics; empty if it has none.
        state: `pending`, `starting`, `running`, `standby`, `leaving`, `silent`, `ended`,
            `backing off`, `left`; `finished` once the job is; `unknown` where no master answered.
        restarts: Starts after the first.
        last_seen_seconds: Since its last heartbeat; None if there was none.
        leases: Tasks that it holds.
        last_end: How it ended the last time; None if it never did, other than as it was asked to.
        stats: The figures of its last heartbeat; None if no master answers: the ledger lacks them.
        incarnation: Name of its process; empty while none is registered.
        waits_for: Why it is `pending`; empty otherwise.
    """

    role: Role
    index: int
    pid: int
    host: str
    address: str
    metrics_address: str
    state: str
    restarts: int = 0
    last_seen_seconds: float | None = None
    leases: int = 0
    last_end: MemberEnd | None = None
    stats: MemberStats | None = None
    incarnation: str = ""
    waits_for: str = ""

    @property
    def name(self) -> str:
        """Role and index, such as `ps-0`."""
        return f"{self.role}-{self.index}"

    @classmethod
    def of(
        cls,
        member: MemberState,
        now: float,
        *,
        report_seconds: float,
        is_wanted: bool,
        leases: int = 0,
    ) -> "MemberStatus":
        """A member for a person; where it has not registered, its process is the launcher's.

        Args:
            member: What is known of it.
            now: Seconds on the job's clock.
            report_seconds: Between its reports; after three that are missing it is shown as silent.
            is_wanted: It is kept running.
            leases: Tasks that it holds.
        """
        is_there, process = bool(member.incarnation), member.process
        return cls(
            role=member.role,
            index=member.index,
            pid=member.pid if is_there or process is None else process.pid,
            host=member.host,
            address=member.address,
            metrics_address=member.metrics_address,
            state=_state_of(member, now, report_seconds, is_wanted=is_wanted),
            restarts=member.restarts,
            last_seen_seconds=now - member.heard_at if is_there else None,
            leases=leases,
            last_end=member.last_end,
            stats=member.stats,
            incarnation=member.incarnation,
            waits_for=member.waits_for,
        )


def _state_of(member: MemberState, now: float, report_seconds: float, *, is_wanted: bool) -> str:
    if member.incarnation:
        if now - member.heard_at > _REPORTS_MISSED * report_seconds:
            return "silent"
        if member.leaves_at is not None:
            return "leaving"
        is_standby = member.role == "worker" and not member.is_active
        return "standby" if is_standby else "running"
    if member.is_running:
        return "pending" if member.waits_for else "starting"
    if not is_wanted:
        return "left"
    return "backing off" if now < member.not_before else "ended"


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What the job machine and whoever shows a job both say of it; a new fact is a field here.

    Attributes:
        reason: Why it stopped or failed; empty otherwise.
        traceback: Traceback of the member whose failure failed the job; empty otherwise.
        generation: Rollbacks and restores so far.
        epoch: Being trained, or trained last, from 0.
        tasks_done: Tasks of the epoch, or of the splits being scored.
        tasks_total: Tasks of the epoch, or of the splits being scored.
        step: Batches counted, all epochs.
        best_epoch: None before the first validation.
        members: All that were ever started; where a master answers, itself first.
        dropped_tasks: Names of tasks that were given up, with why.
        refused_reports: Reports of older attempts or generations, which do not count.
    """

    reason: str
    traceback: str
    generation: int
    epoch: int
    tasks_done: int
    tasks_total: int
    step: int
    best_epoch: int | None
    members: tuple[MemberStatus, ...]
    dropped_tasks: tuple[str, ...]
    refused_reports: int

    def facts(self) -> dict[str, Any]:
        """The facts alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(JobFacts)}


@dataclass(frozen=True, kw_only=True)
class JobStatus(JobFacts):
    """The job as its machine knows it.

    Attributes:
        phase: Where it is.
        epochs: Totals of all epochs so far, the current one last.
        trained: Records counted, all epochs.
        repeated: Executions beyond that.
        dropped: Records dropped.
        history: As `EpochDecided` gave it.
        last_cut: 0: none yet.
        best_cut: 0: none yet.
        cut_age_seconds: Since the last cut, or since training began.
        target_workers: Wanted.
        final_scores: Scores of `final_splits`, when phase is `trained` or `finished`.
    """

    phase: Phase
    epochs: tuple[EpochTotals, ...]
    trained: int
    repeated: int
    dropped: int
    history: tuple[Json, ...]
    last_cut: int
    best_cut: int
    cut_age_seconds: float
    target_workers: int
    final_scores: tuple[SplitTotals, ...]


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
            _status_of_member(state, state.members[place]) for place in sorted(state.members)
        ),
        target_workers=state.head.target_workers,
        refused_reports=state.head.refused_reports,
        final_scores=state.head.final_scores,
    )


def _storage_reason(state: JobState) -> str:
    is_waiting = state.storage.reason and not state.is_over
    return f"waiting for storage: {state.storage.reason}" if is_waiting else ""


def _status_of_member(state: JobState, member: MemberState) -> MemberStatus:
    return MemberStatus.of(
        member,
        state.now,
        report_seconds=state.settings.heartbeat_seconds,
        is_wanted=state.is_wanted(member),
        leases=sum(board.num_held_by(member.incarnation) for board in state.boards()),
    )
