"""The life of a job as a pure machine: (state, event, now) → (state, actions).

`Job` holds every decision: who works on what, who is dead, when a cut is taken, what is rolled
back, when training is over. It reads no clock, opens no file and calls nobody. The executor in
`distributed.master` feeds it and performs its actions.

Time: `now` is any clock in seconds. Only differences between calls count, a step backwards counts
as none and a leap forwards as at most `JobSettings.most_clock_step_seconds`, so a suspended
machine does not find all its members dead when it wakes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from ctr_pipeline.distributed.coordination.events import (
    Action,
    EpochTotals,
    Event,
    Json,
    Phase,
    SplitTotals,
)
from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    MemberStats,
    RegisterRequest,
    Role,
)
from ctr_pipeline.distributed.coordination.tasks import EpochPlan


@dataclass(frozen=True)
class ScoredSplit:
    """A split that is scored in ranges of rows.

    Attributes:
        name: `valid` or `test`.
        num_rows: Rows.
        rows_per_task: Rows of every task but the last.
    """

    name: str
    num_rows: int
    rows_per_task: int


@dataclass(frozen=True)
class JobSettings:
    """What a job is told before it starts.

    Attributes:
        num_parameter_servers: Parameter servers, all needed.
        min_workers: Training starts when so many have registered.
        max_workers: Wanted.
        standby_workers: Started beyond the wanted ones, given work only in place of a lost one.
        num_epochs: Most epochs.
        plan_epoch: The tasks of an epoch; pure.
        valid: Scored after every epoch; None skips it.
        final_splits: Scored under the best cut at the end, with files of scores.
        scores_folder: Where those files go: `<split>-<task>.f32`.
        checkpoint_seconds: Between cuts.
        keep_checkpoints: Cuts kept, beside the best.
        full_every: One cut in so many holds all rows.
        heartbeat_seconds: Between heartbeats of a member.
        lease_seconds: Work that a worker holds at least, by its measured speed.
        worker_silence_seconds: A worker without a heartbeat for so long is hung.
        server_silence_seconds: A parameter server without a heartbeat for so long is hung.
        start_seconds: A started member that has not registered for so long is hung.
        task_timeout_floor_seconds: No task is taken back sooner for being slow.
        task_timeout_factor: A task is taken back after so many times the usual time.
        max_task_failures: A task that failed so often is beyond its budget.
        max_dropped_tasks: Tasks beyond their budget that are dropped, by name, instead of
            failing the job.
        max_start_failures: A job fails after so many errors of members in a row without progress.
        leave_seconds: For members to leave at the end before they are stopped.
        most_clock_step_seconds: More than this between two calls counts as this.
    """

    num_parameter_servers: int
    min_workers: int
    max_workers: int
    num_epochs: int
    plan_epoch: Callable[[int], EpochPlan]
    standby_workers: int = 0
    valid: ScoredSplit | None = None
    final_splits: tuple[ScoredSplit, ...] = ()
    scores_folder: str = ""
    checkpoint_seconds: float = 30.0
    keep_checkpoints: int = 2
    full_every: int = 10
    heartbeat_seconds: float = 1.0
    lease_seconds: float = 5.0
    worker_silence_seconds: float = 10.0
    server_silence_seconds: float = 10.0
    start_seconds: float = 120.0
    task_timeout_floor_seconds: float = 60.0
    task_timeout_factor: float = 3.0
    max_task_failures: int = 3
    max_dropped_tasks: int = 0
    max_start_failures: int = 3
    leave_seconds: float = 10.0
    most_clock_step_seconds: float = 2.0


@dataclass(frozen=True)
class MemberStatus:
    """One member for a person or a metric.

    Attributes:
        role: Of the member.
        index: Of the member.
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
        stats: That it said of itself last.
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
        traceback: Of the member whose failure failed the job.
        generation: Rollbacks and restores so far.
        epoch: Being trained, or trained last.
        tasks_done: Of the epoch, or of the splits being scored.
        tasks_total: Of the epoch, or of the splits being scored.
        epochs: Totals of all epochs so far, the current one last.
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
        final_scores: Of `final_splits`, when phase is `trained` or `finished`.
    """

    phase: Phase
    reason: str
    traceback: str
    generation: int
    epoch: int
    tasks_done: int
    tasks_total: int
    epochs: tuple[EpochTotals, ...]
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


class Job:
    """The state of a job and everything that changes it."""

    @classmethod
    def begin(cls, settings: JobSettings, now: float) -> Self:
        """A new job without any ledger; the first `Tick` starts its members."""
        raise NotImplementedError

    @classmethod
    def from_ledger(
        cls, settings: JobSettings, records: Mapping[str, Json], now: float, *, resume: bool = False
    ) -> Self:
        """The job that the ledger describes; leases survive.

        Args:
            settings: As at the beginning; the number of parameter servers may differ if `resume`.
            records: Everything that `Persist` ever put, less what it deleted.
            now: The clock.
            resume: All members are gone: a stopped or failed job goes on from its last cut.
        """
        raise NotImplementedError

    @classmethod
    def from_cut(
        cls, settings: JobSettings, cuts: Mapping[int, Json], generation: int, now: float
    ) -> Self:
        """A job whose ledger is lost goes on from cuts: number → `TakeCut.frozen`.

        Args:
            settings: Of the job.
            cuts: Those with a sound manifest.
            generation: The highest that any manifest names.
            now: The clock.
        """
        raise NotImplementedError

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes in what happened."""
        raise NotImplementedError

    def register(self, request: RegisterRequest, now: float) -> tuple[str, list[Action]]:
        """Takes in a member: why it is refused (empty if it is not), and actions.

        Protocol and fingerprint are the executor's to compare; here only identity counts.
        """
        raise NotImplementedError

    def heartbeat(
        self, request: HeartbeatRequest, now: float
    ) -> tuple[HeartbeatReply, list[Action]]:
        """Takes in progress; says what the member has to know."""
        raise NotImplementedError

    def lease(self, request: LeaseRequest, now: float) -> tuple[LeaseReply, list[Action]]:
        """Gives a worker tasks under new attempts."""
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """Of the job now."""
        raise NotImplementedError

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Of the registered parameter servers, by index; empty where one is missing."""
        raise NotImplementedError

    def status(self) -> JobStatus:
        """The job for a person or a metric, as of the last call."""
        raise NotImplementedError
