"""What a job tells of itself."""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.events import EpochTotals, Json, Phase, SplitTotals
from ctr_pipeline.distributed.coordination.messages import MemberStats, Role


@dataclass(frozen=True)
class MemberStatus:
    """One member for a person or a metric.

    Attributes:
        incarnation: Empty while it has not registered.
        state: `starting`, `running`, `standby`, `silent`, `ended`, `backing off`, `left`.
        address: It serves on; empty for workers.
        metrics_address: Empty if it has none.
        host: Its host.
        pid: Its process.
        leases: Tasks that it holds.
        silent_seconds: Since its last heartbeat.
        restarts: Starts after the first.
        last_end: Why it ended the last time; empty if it never did.
        stats: The figures of its last heartbeat.
    """

    role: Role
    index: int
    incarnation: str
    state: str
    address: str
    metrics_address: str
    host: str
    pid: int
    leases: int
    silent_seconds: float
    restarts: int
    last_end: str
    stats: MemberStats


@dataclass(frozen=True)
class JobStatus:
    """The job for a person or a metric.

    Attributes:
        phase: Where it is.
        reason: Why it stopped or failed; empty otherwise.
        traceback: Traceback of the member whose failure failed the job.
        generation: Rollbacks and restores so far.
        epoch: Being trained, or trained last.
        tasks_done: Tasks of the epoch, or of the splits being scored.
        tasks_total: Tasks of the epoch, or of the splits being scored.
        epochs: Totals of all epochs so far, the current one last.
        step: Batches counted, all epochs.
        trained: Records counted, all epochs.
        repeated: Executions beyond that.
        dropped: Records dropped.
        dropped_tasks: Names of tasks that were dropped, with why.
        history: As `EpochDecided` gave it.
        best_epoch: None before the first validation.
        last_cut: 0: none yet.
        best_cut: 0: none yet.
        cut_age_seconds: Since the last cut, or since training began.
        members: All that were ever started.
        target_workers: Wanted.
        refused_reports: Reports of older attempts or generations, not counted.
        final_scores: Scores of `final_splits`, when phase is `trained` or `finished`.
    """

    phase: Phase
    reason: str
    traceback: str
    generation: int
    epoch: int
    tasks_done: int
    tasks_total: int
    epochs: tuple[EpochTotals, ...]
    step: int
    trained: int
    repeated: int
    dropped: int
    dropped_tasks: tuple[str, ...]
    history: tuple[Json, ...]
    best_epoch: int | None
    last_cut: int
    best_cut: int
    cut_age_seconds: float
    members: tuple[MemberStatus, ...]
    target_workers: int
    refused_reports: int
    final_scores: tuple[SplitTotals, ...]
