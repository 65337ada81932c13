"""The life of a job as a pure machine: (state, event, now) → (state, actions).

`Job` holds every decision: who works on what, who is dead, when a cut is taken, what is rolled
back, when training is over. It reads no clock, opens no file and calls nobody. The executor in
`distributed.master` feeds it and performs its actions.

Whatever happens, first the state takes it in, then `_advance` asks of the state, and of nothing
else, what is to be done next. So a lost event costs time and never truth, and a master that reads
its ledger again goes on where the one before it died.

Time: `now` is any clock in seconds. Only differences between calls count, a step backwards counts
as none and a leap forwards as at most `JobSettings.most_clock_step_seconds`, so a suspended
machine does not find all its members dead when it wakes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, assert_never

from ctr_pipeline.distributed.coordination.cuts import (
    CutRecord,
    CutSchedule,
    cuts_to_keep,
    decide_full,
)
from ctr_pipeline.distributed.coordination.events import (
    Action,
    Announce,
    CannotGoOn,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    End,
    EpochDecided,
    EpochTotals,
    Event,
    Fail,
    FinishAsked,
    Json,
    Persist,
    Phase,
    ProcessesSeen,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    ScaleAsked,
    SplitTotals,
    StartMember,
    StopAsked,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import (
    Directive,
    HeartbeatReply,
    HeartbeatRequest,
    HeldLease,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterRequest,
    Role,
    TaskKey,
    TaskKind,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch, explain_end
from ctr_pipeline.distributed.coordination.tasks import (
    EpochPlan,
    ScoredSplit,
    Task,
    TaskBoard,
    leased_task,
    merge_scores,
    name_of,
    scores_from_json,
    scores_to_json,
)
from ctr_pipeline.distributed.coordination.timeouts import (
    MovingAverage,
    SteadyClock,
    is_straggler,
    patience_seconds,
)

_WAIT_SECONDS = 0.2
_RESTORE_RETRY_SECONDS = 1.0
_MAX_RESTORE_FAILURES = 5
_MAX_CUT_FAILURES = 5
_OVER: frozenset[Phase] = frozenset({"finished", "stopped", "failed"})
_NEEDS_SERVERS: frozenset[Phase] = frozenset(
    {"waiting", "restoring", "training", "cutting", "validating", "scoring", "trained"}
)


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


class Job:
    """The state of a job and everything that changes it.

    Make one with `begin`, `from_ledger` or `from_cut`.
    """

    def __init__(self, settings: JobSettings, now: float) -> None:
        self._settings = settings
        self._clock = SteadyClock(now, settings.most_clock_step_seconds)
        self._actions: list[Action] = []
        self._dirty: dict[str, Json | None] = {}
        self._dirty_durable = False
        # What the ledger keeps of the job; `_head_json` and `_load_head` name the same fields.
        self._phase: Phase = "waiting"
        self._reason = ""
        self._traceback = ""
        self._generation = 0
        self._era = 0
        self._attempt = 0
        self._next_cut = 1
        self._chain_intact = True
        self._is_restored = False
        self._has_started = False
        self._training_over = False
        self._min_workers = settings.min_workers
        self._max_workers = settings.max_workers
        self._target_workers = settings.max_workers
        self._repeated: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._best_trained = 0
        self._errors_in_row = 0
        self._refused_reports = 0
        self._final_scores: tuple[SplitTotals, ...] = ()
        self._ledger = Ledger()
        self._base_era = 0
        self._scoring: TaskBoard | None = None
        self._scoring_era = 0
        self._cuts: dict[int, CutRecord] = {}
        self._members: dict[tuple[Role, int], MemberState] = {}
        # What a new master finds out again.
        self._schedule = CutSchedule(settings.checkpoint_seconds, 0.0)
        self._counted_since_cut = False
        self._pending_cut: CutRecord | None = None
        self._pending_ends_epoch = False
        self._restore_in_flight = False
        self._restore_retry_at = 0.0
        self._restore_failures = 0
        self._is_deciding = False
        self._recovering_since: float | None = None
        self._seconds_per_row: dict[TaskKind, MovingAverage] = {
            "train": MovingAverage(),
            "score": MovingAverage(),
        }
        self._over_since: float | None = None
        self._seen_since_over = False
        self._has_ended = False

    # Beginning and going on.

    @classmethod
    def begin(cls, settings: JobSettings, now: float) -> Self:
        """A new job without any ledger; the first `Tick` starts its members."""
        job = cls(settings, now)
        job._write_ledger()
        return job

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
        if "head" not in records or "base" not in records:
            # The first transaction of the job was never written.
            return cls.begin(settings, now)
        job = cls(settings, now)
        job._load_head(records["head"])
        job._load_boards(records)
        for name, record in records.items():
            kind, _, rest = name.partition("/")
            if kind == "member":
                role, _, index = rest.partition("/")
                place = job._member("ps" if role == "ps" else "worker", int(index))
                place.load_json(record)
            elif kind == "cut":
                job._cuts[int(rest)] = CutRecord.from_json(record)
        if resume:
            job._resume()
        return job

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
        job = cls(settings, now)
        job._generation = generation
        for number, frozen in cuts.items():
            job._cuts[number] = CutRecord.from_json(frozen["cut"])
            job._put(f"cut/{number}", job._cuts[number].to_json(), durable=True)
        if cuts:
            newest = cuts[max(cuts)]
            job._ledger = Ledger.thaw(newest, settings.plan_epoch)
            job._attempt = newest["attempt"]
            job._next_cut = max(cuts) + 1
            job._repeated = dict(newest["repeated"])
            job._seconds = dict(newest["seconds"])
            job._best_trained = job._ledger.trained
        job._write_ledger()
        return job

    def _resume(self) -> None:
        for member in self._members.values():
            member.give_up(member.incarnation)
            member.ends_in_row = 0
            self._touch_member(member)
        self._release_all()
        for board in self._boards():
            for key, task in board.touched():
                task.failures = 0
                self._touch_task(board, key)
        settings = self._settings
        self._min_workers, self._max_workers = settings.min_workers, settings.max_workers
        self._target_workers = settings.max_workers
        self._phase, self._reason, self._traceback = "waiting", "", ""
        self._is_restored = self._has_started = False
        self._errors_in_row = 0
        if self._training_over and self._ledger.epoch < settings.num_epochs:
            # More epochs are allowed than before: the last one is decided on again.
            self._training_over = False
            self._final_scores = ()
        if not self._training_over:
            self._end_scoring()
        self._touch_head(durable=True)

    # What the executor reads.

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self._phase

    @property
    def generation(self) -> int:
        """Of the job now."""
        return self._generation

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Of the registered parameter servers, by index; empty where one is missing."""
        return tuple(
            self._member("ps", index).address
            for index in range(self._settings.num_parameter_servers)
        )

    @property
    def cuts(self) -> tuple[int, ...]:
        """Cuts that the ledger knows, ascending."""
        return tuple(sorted(self._cuts))

    def status(self) -> JobStatus:
        """The job for a person or a metric, as of the last call."""
        board = self._scoring if self._scoring is not None else self._ledger.board
        totals = tuple(self._totals())
        return JobStatus(
            phase=self._phase,
            reason=self._reason,
            traceback=self._traceback,
            generation=self._generation,
            epoch=max(0, self._ledger.epoch - (1 if self._ledger.board is None else 0)),
            tasks_done=0 if board is None else board.num_over,
            tasks_total=0 if board is None else board.num_tasks,
            epochs=totals,
            step=self._ledger.batches,
            trained=sum(epoch.trained for epoch in totals),
            repeated=sum(self._repeated.values()),
            dropped=sum(epoch.dropped for epoch in totals),
            dropped_tasks=self._ledger.dropped_tasks(),
            history=tuple(self._ledger.history),
            best_epoch=self._ledger.best_epoch,
            last_cut=max(self._cuts, default=0),
            best_cut=self._ledger.best_cut,
            cut_age_seconds=self._clock.seconds - self._schedule.last_at,
            members=tuple(
                self._member_status(self._members[place]) for place in sorted(self._members)
            ),
            target_workers=self._target_workers,
            refused_reports=self._refused_reports,
            final_scores=self._final_scores,
        )

    def _member_status(self, member: MemberState) -> MemberStatus:
        leases = sum(len(board.held_by(member.incarnation)) for board in self._boards())
        return MemberStatus(
            role=member.role,
            index=member.index,
            incarnation=member.incarnation,
            state=self._state_of(member),
            address=member.address,
            metrics_address=member.metrics_address,
            host=member.host,
            pid=member.pid,
            leases=leases if member.incarnation else 0,
            silent_seconds=self._clock.seconds - member.heard_at if member.incarnation else 0.0,
            restarts=member.restarts,
            last_end=member.last_end,
            stats=member.stats,
        )

    def _state_of(self, member: MemberState) -> str:
        if member.incarnation:
            silent = self._clock.seconds - member.heard_at > 3 * self._settings.heartbeat_seconds
            if silent:
                return "silent"
            is_standby = member.role == "worker" and not member.is_active
            return "standby" if is_standby else "running"
        if member.is_running:
            return "starting"
        if not self._is_wanted(member):
            return "left"
        return "backing off" if self._clock.seconds < member.not_before else "ended"

    def _totals(self) -> list[EpochTotals]:
        found = [
            EpochTotals(
                epoch.epoch,
                epoch.trained,
                self._repeated.get(epoch.epoch, 0),
                epoch.dropped,
                epoch.loss_sum,
                self._seconds.get(epoch.epoch, 0.0),
            )
            for epoch in self._ledger.closed
        ]
        board, epoch = self._ledger.board, self._ledger.epoch
        if board is not None:
            found.append(
                EpochTotals(
                    epoch,
                    board.rows_done,
                    self._repeated.get(epoch, 0),
                    board.rows_dropped,
                    board.loss_sum,
                    self._seconds.get(epoch, 0.0),
                )
            )
        return found

    # What happens.

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes in what happened."""
        self._pass_time(now)
        match event:
            case Tick():
                self._check_members()
                self._check_tasks()
            case ProcessesSeen():
                self._see_processes(event.processes)
            case CutTaken():
                self._take_in_cut(event)
            case CutFailed():
                self._take_in_failed_cut(event)
            case RestoreDone():
                self._take_in_restore(event)
            case RestoreFailed():
                self._take_in_failed_restore(event)
            case CannotGoOn():
                self._fail(event.reason)
            case EpochDecided():
                self._take_in_decision(event)
            case StopAsked():
                self._take_in_stop()
            case ScaleAsked():
                self._take_in_scale(event)
            case FinishAsked():
                if self._phase == "trained":
                    self._enter("finished")
            case _:
                assert_never(event)
        self._advance()
        self._start_and_stop_members()
        return self._flush()

    def register(self, request: RegisterRequest, now: float) -> tuple[str, list[Action]]:
        """Takes in a member: why it is refused (empty if it is not), and actions.

        Protocol and fingerprint are the executor's to compare; here only identity counts.
        """
        self._pass_time(now)
        refused = self._take_in_member(request)
        self._advance()
        return refused, self._flush()

    def heartbeat(
        self, request: HeartbeatRequest, now: float
    ) -> tuple[HeartbeatReply, list[Action]]:
        """Takes in progress; says what the member has to know."""
        self._pass_time(now)
        member = self._registered(request.member)
        directive: Directive = "go_on"
        if member is None:
            directive = "leave" if self._is_void(request.member) else "register_again"
        else:
            member.heard_at = self._clock.seconds
            member.stats = request.stats
            for report in request.reports:
                self._take_in_report(member, report, request.generation)
            self._advance()
            # The report itself may have ended the job.
            if not self._is_wanted(member):
                directive = "leave"
                member.told_to_leave = True
        revoked = tuple(
            lease
            for lease in request.held
            if request.generation != self._generation
            or not self._holds(request.member.incarnation, lease)
        )
        reply = HeartbeatReply(
            directive, self._generation, self.ps_addresses, revoked, self._active_workers()
        )
        return reply, self._flush()

    def lease(self, request: LeaseRequest, now: float) -> tuple[LeaseReply, list[Action]]:
        """Gives a worker tasks under new attempts."""
        self._pass_time(now)
        self._advance()
        if self._phase in _OVER or self._phase == "trained":
            return LeaseReply("end", self._generation, (), 0.0), self._flush()
        member = self._registered(request.member)
        board = self._open_board()
        keys: list[TaskKey] = []
        if member is not None and board is not None and request.generation == self._generation:
            member.heard_at = self._clock.seconds
            keys = self._lost_leases(member, board, request)
            if self._may_work(member):
                keys += self._new_leases(member, board, request.num_tasks - len(keys))
        if not keys or board is None:
            return LeaseReply("wait", self._generation, (), _WAIT_SECONDS), self._flush()
        # Final scores are wanted as files; those of an epoch are not.
        folder = self._settings.scores_folder if self._training_over else ""
        tasks = tuple(leased_task(key, board.tasks[key], folder) for key in keys)
        return LeaseReply("tasks", self._generation, tasks, 0.0), self._flush()

    def _pass_time(self, now: float) -> None:
        step = self._clock.advance(now)
        if self._phase == "training":
            epoch = self._ledger.epoch
            self._seconds[epoch] = self._seconds.get(epoch, 0.0) + step

    # What is to be done next.

    def _advance(self) -> None:
        """Does what the state calls for, until it calls for nothing more."""
        before = None
        while before != (before := self._phase):
            if self._phase in _OVER:
                self._advance_end()
            elif self._phase in {"waiting", "restoring"}:
                self._advance_restore()
            elif self._phase == "training":
                self._advance_training()
            elif self._phase == "cutting":
                self._take_cut_if_due(at_once=True)
            elif self._phase in {"validating", "scoring"}:
                self._advance_scoring()
            elif self._phase == "stopping":
                self._advance_stop()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        if phase in _OVER:
            self._over_since = None
            self._release_all()
        self._touch_head(durable=True)

    def _advance_restore(self) -> None:
        if self._is_restored:
            workers = sum(bool(member.incarnation) for member in self._workers())
            if self._has_started or workers >= self._min_workers:
                self._go_on()
            return
        waits = self._restore_in_flight or self._clock.seconds < self._restore_retry_at
        if waits or not all(self.ps_addresses):
            return
        self._generation += 1
        self._restore_in_flight = True
        self._enter("restoring")
        self._actions.append(RestoreCut(self._cut_to_restore(), self._generation))

    def _cut_to_restore(self) -> int:
        if not self._training_over:
            return max(self._cuts, default=0)
        best = self._ledger.best_cut
        if best in self._cuts:
            return best
        # The best cut is damaged: the newest epoch that has one is the next best thing.
        others = (cut for cut in self._ledger.epoch_cuts.values() if cut in self._cuts)
        return max(others, default=0)

    def _go_on(self) -> None:
        """Parameter servers hold what the ledger counts; whatever comes next begins."""
        ledger = self._ledger
        self._has_started = True
        if self._training_over:
            if self._final_scores or not self._settings.final_splits:
                self._enter("trained")
                return
            if self._scoring is None:
                self._begin_scoring(self._settings.final_splits)
            self._enter("scoring")
        elif ledger.board is not None:
            self._enter("training")
        elif len(ledger.history) < len(ledger.closed):
            if self._settings.valid is not None and self._scoring is None:
                self._begin_scoring((self._settings.valid,))
            self._enter("validating")
        elif ledger.epoch >= self._settings.num_epochs:
            self._end_training(f"all {self._settings.num_epochs} epochs are done")
        else:
            ledger.open_epoch(self._settings.plan_epoch(ledger.epoch))
            self._write_ledger()
            self._enter("training")

    def _advance_training(self) -> None:
        board = self._ledger.board
        if board is not None and board.is_over:
            self._ledger.close_epoch()
            self._write_ledger()
            self._counted_since_cut = True
            self._enter("cutting")
        elif self._counted_since_cut:
            self._take_cut_if_due(at_once=False)

    def _take_cut_if_due(self, *, at_once: bool) -> None:
        if not self._schedule.is_due(self._clock.seconds, at_once=at_once):
            return
        ledger, number = self._ledger, self._next_cut
        parent = self._cuts.get(max(self._cuts, default=0))
        full = decide_full(
            parent, chain_intact=self._chain_intact, full_every=self._settings.full_every
        )
        record = CutRecord(
            cut=number,
            parent=0 if full or parent is None else parent.cut,
            depth=0 if full or parent is None else parent.depth + 1,
            best_cut=ledger.best_cut,
        )
        self._next_cut += 1
        # Until it is known to be durable, nobody knows what the servers count as touched since.
        self._chain_intact = False
        self._pending_cut = record
        self._pending_ends_epoch = ledger.board is None and bool(ledger.closed)
        self._schedule.begin(number)
        self._counted_since_cut = False
        self._touch_head(durable=True)
        frozen = ledger.freeze()
        if self._pending_ends_epoch:
            frozen["epoch_cuts"] = [
                *(list(pair) for pair in ledger.epoch_cuts.items()),
                [ledger.epoch - 1, number],
            ]
        frozen["cut"] = record.to_json()
        frozen["attempt"] = self._attempt
        frozen["repeated"] = [list(pair) for pair in self._repeated.items()]
        frozen["seconds"] = [list(pair) for pair in self._seconds.items()]
        self._actions.append(
            TakeCut(
                cut=number,
                generation=self._generation,
                parent=record.parent,
                full=full,
                epoch=max(0, ledger.epoch - (1 if ledger.board is None else 0)),
                step=ledger.batches,
                best_cut=ledger.best_cut,
                frozen=frozen,
            )
        )

    def _advance_scoring(self) -> None:
        board = self._scoring
        if self._phase == "scoring":
            if board is not None and board.is_over:
                self._final_scores = tuple(
                    self._split_totals(board, split) for split in self._settings.final_splits
                )
                self._end_scoring()
                self._enter("trained")
        elif not self._is_deciding and (board is None or board.is_over):
            self._is_deciding = True
            split, history = self._settings.valid, tuple(self._ledger.history)
            valid = None if split is None or board is None else self._split_totals(board, split)
            self._actions.append(DecideEpoch(self._totals()[len(history)], valid, history))

    def _split_totals(self, board: TaskBoard, split: ScoredSplit) -> SplitTotals:
        parts = [
            task.scores
            for key, task in board.tasks.items()
            if key.split == split.name and task.scores is not None
        ]
        return SplitTotals(split.name, split.num_rows, merge_scores(parts))

    def _advance_stop(self) -> None:
        if self._schedule.in_flight:
            return
        is_lost = self._schedule.failures_in_row >= _MAX_CUT_FAILURES
        if self._is_restored and self._counted_since_cut and not is_lost:
            self._take_cut_if_due(at_once=True)
            return
        last = max(self._cuts, default=0)
        where = f"it can go on from cut {last}" if last else "it will begin anew"
        if self._counted_since_cut:
            where += "; what was trained since will be repeated"
        self._actions.append(Announce("the job stops, as asked", where))
        self._enter("stopped")

    def _advance_end(self) -> None:
        now = self._clock.seconds
        if self._has_ended:
            return
        if self._over_since is None:
            self._over_since, self._seen_since_over = now, False
        waited = now - self._over_since
        patience = self._settings.leave_seconds
        still_there = any(
            member.process.running
            if member.process is not None
            else bool(member.incarnation) and not member.told_to_leave
            for member in self._members.values()
        )
        if (self._seen_since_over and not still_there) or waited > 2 * patience:
            self._has_ended = True
            self._actions.append(End(self._phase))

    # Members.

    def _member(self, role: Role, index: int) -> MemberState:
        place = (role, index)
        if place not in self._members:
            self._members[place] = MemberState(role, index)
        return self._members[place]

    def _workers(self) -> list[MemberState]:
        return [member for member in self._members.values() if member.role == "worker"]

    def _registered(self, who: Member) -> MemberState | None:
        member = self._members.get((who.role, who.index))
        return member if member is not None and member.incarnation == who.incarnation else None

    def _is_void(self, who: Member) -> bool:
        """Whether an unknown process has no place here, now or later."""
        member = self._members.get((who.role, who.index))
        if self._phase in _OVER:
            return True
        # Its place is taken by another process, or it was given up.
        return member is not None and (
            bool(member.incarnation) or who.incarnation in member.given_up
        )

    def _is_wanted(self, member: MemberState) -> bool:
        if self._phase in _OVER:
            return False
        if member.role == "ps":
            return member.index < self._settings.num_parameter_servers
        wanted = self._target_workers + self._settings.standby_workers
        return self._phase != "trained" and member.index < wanted

    def _take_in_member(self, request: RegisterRequest) -> str:
        who = request.member
        if who.role == "master":
            return "a master does not register"
        if self._phase in _OVER:
            return f"the job is over: it is {self._phase}"
        if who.role == "ps" and not 0 <= who.index < self._settings.num_parameter_servers:
            return f"the job has {self._settings.num_parameter_servers} parameter servers"
        member = self._member(who.role, who.index)
        if who.incarnation in member.given_up:
            return "this process was given up: it ended, was replaced, or fell silent"
        if member.incarnation and member.incarnation != who.incarnation:
            self._lose(member, f"another {member.name} has registered")
        member.join(request, self._clock.seconds)
        self._touch_member(member, durable=True)
        return ""

    def _lose(self, member: MemberState, why: str) -> None:
        """A registered member is no longer there."""
        incarnation = member.incarnation
        member.give_up(incarnation)
        member.last_end = why
        self._touch_member(member)
        if member.role == "worker":
            num_leases = 0
            for board in self._boards():
                for key, _ in board.held_by(incarnation):
                    board.release(key)
                    self._touch_task(board, key)
                    num_leases += 1
            if self._phase not in _OVER:
                done = f"{num_leases} leased tasks are given to others"
                self._actions.append(Announce(why, done))
        elif self._phase in _NEEDS_SERVERS or self._phase == "stopping":
            if self._is_restored or self._restore_in_flight:
                cut = self._cut_to_restore()
                where = f"cut {cut}" if cut else "its beginning"
                self._actions.append(Announce(why, f"the job goes back to {where}"))
                self._roll_back()
            else:
                self._actions.append(Announce(why, "it is started again"))

    def _roll_back(self) -> None:
        """Everything since the last cut is void; the ledger follows when the servers have."""
        self._generation += 1
        self._is_restored = self._restore_in_flight = self._is_deciding = False
        self._pending_cut = None
        self._schedule.start_over(self._clock.seconds)
        self._release_all()
        if not self._training_over:
            self._end_scoring()
        if self._recovering_since is None and self._has_started:
            self._recovering_since = self._clock.seconds
        # A job that stops does so without its servers: it can go on from its last cut.
        if self._phase not in {"waiting", "stopping"}:
            self._phase = "restoring"
        self._touch_head(durable=True)

    def _release_all(self) -> None:
        for board in self._boards():
            for key, _ in board.held():
                board.release(key)
                self._touch_task(board, key)

    def _see_processes(self, processes: tuple[ProcessState, ...]) -> None:
        self._seen_since_over = self._over_since is not None
        for process in processes:
            if process.role == "master":
                continue
            member = self._member(process.role, process.index)
            member.see(process, self._clock.seconds)
            if not process.running and process.incarnation not in member.given_up:
                self._take_in_end(member, process)

    def _take_in_end(self, member: MemberState, process: ProcessState) -> None:
        is_registered = member.incarnation == process.incarnation
        if member.incarnation and not is_registered:
            # An older process of a place that is filled again.
            member.give_up(process.incarnation)
            self._touch_member(member)
            return
        reason = process.reason or "killed"
        why = explain_end(
            reason, process.exit_code, member=member.name, rss_bytes=member.stats.rss_bytes
        )
        is_wanted = self._is_wanted(member)
        member.start_asked_at = None
        if is_registered and is_wanted:
            self._lose(member, why)
        elif is_registered:
            # It left as it was told to.
            self._release_leases_of(member)
        member.give_up(process.incarnation)
        member.last_end = why
        member.ends_in_row += 1
        self._touch_member(member)
        if not is_wanted:
            return
        relaunch = decide_relaunch(reason, registered=is_registered, ends_in_row=member.ends_in_row)
        member.not_before = self._clock.seconds + relaunch.delay_seconds
        if not is_registered:
            self._actions.append(
                Announce(why, f"it is started again in {relaunch.delay_seconds:g} s")
            )
        if relaunch.blames_program:
            self._count_error(why, process.traceback)

    def _release_leases_of(self, member: MemberState) -> None:
        for board in self._boards():
            for key, _ in board.held_by(member.incarnation):
                board.release(key)
                self._touch_task(board, key)

    def _count_error(self, why: str, traceback: str) -> None:
        self._errors_in_row += 1
        self._touch_head()
        if self._errors_in_row >= self._settings.max_start_failures:
            times = f"{self._errors_in_row} failures of members in a row without any progress"
            self._fail(f"{why}; these are {times}", traceback)

    def _fail(self, reason: str, traceback: str = "") -> None:
        if self._phase in _OVER:
            return
        self._reason, self._traceback = reason, traceback
        self._enter("failed")
        self._actions.append(Fail(reason, traceback))

    def _check_members(self) -> None:
        """Looks for members that have gone silent, and for those that never came up."""
        now, settings = self._clock.seconds, self._settings
        for member in list(self._members.values()):
            if not self._is_wanted(member):
                continue
            if member.incarnation:
                patience = settings.worker_silence_seconds
                if member.role == "ps":
                    patience = settings.server_silence_seconds
                if now - member.heard_at > patience:
                    self._kill(member, f"{member.name} was not heard for {patience:g} s")
            elif (
                member.process is not None
                and member.coming_since is not None
                and now - member.coming_since > settings.start_seconds
            ):
                why = f"{member.name} did not register within {settings.start_seconds:g} s"
                member.give_up(member.process.incarnation)
                self._kill(member, why)
                self._count_error(why, member.process.traceback)

    def _kill(self, member: MemberState, why: str) -> None:
        """A process that hangs is ended at once; its place is filled when it is gone."""
        if member.incarnation:
            self._lose(member, why)
        member.ends_in_row += 1
        member.start_asked_at = None
        relaunch = decide_relaunch("killed", registered=True, ends_in_row=member.ends_in_row)
        member.not_before = self._clock.seconds + relaunch.delay_seconds
        member.stop_asked_at = self._clock.seconds
        self._actions.append(StopMember(member.role, member.index, 0.0))

    def _start_and_stop_members(self) -> None:
        now, settings = self._clock.seconds, self._settings
        if self._phase not in _OVER:
            for index in range(settings.num_parameter_servers):
                self._start(self._member("ps", index))
            if self._phase != "trained":
                for index in range(self._target_workers + settings.standby_workers):
                    self._start(self._member("worker", index))
        for member in self._members.values():
            grace = 0.0 if member.is_condemned else settings.leave_seconds
            is_in_the_way = member.is_condemned or (
                member.is_running and not self._is_wanted(member)
            )
            if is_in_the_way and member.may_stop(now, grace):
                member.stop_asked_at = now
                self._actions.append(StopMember(member.role, member.index, grace))

    def _start(self, member: MemberState) -> None:
        now = self._clock.seconds
        if member.may_start(now):
            member.start_asked_at = now
            member.stop_asked_at = None
            self._actions.append(StartMember(member.role, member.index))

    def _take_in_scale(self, event: ScaleAsked) -> None:
        least = max(1, self._min_workers if event.min_workers is None else event.min_workers)
        most = self._max_workers if event.max_workers is None else event.max_workers
        self._min_workers, self._max_workers = least, max(least, most)
        target = self._max_workers if event.target_workers is None else event.target_workers
        self._target_workers = min(max(target, least), self._max_workers)
        self._choose_active()
        self._touch_head(durable=True)
        bounds = f"between {self._min_workers} and {self._max_workers}"
        self._actions.append(
            Announce("another number of workers is asked for", f"{self._target_workers}, {bounds}")
        )

    # Leases.

    def _choose_active(self) -> None:
        """Takes work from workers beyond the target, and gives it to those on standby."""
        active = [member for member in self._workers() if member.is_active]
        for member in sorted(active, key=lambda member: -member.index):
            is_surplus = len(active) > self._target_workers
            if is_surplus or not self._is_wanted(member):
                member.is_active = False
                active.remove(member)
                self._give_back_unstarted(member)
                self._touch_member(member)

    def _give_back_unstarted(self, member: MemberState) -> None:
        """What a worker has begun it may finish; the rest goes to others now."""
        for board in self._boards():
            for place, (key, task) in enumerate(board.held_by(member.incarnation)):
                if place and task.done_mask == task.mask_at_lease:
                    board.release(key)
                    self._touch_task(board, key)

    def _may_work(self, member: MemberState) -> bool:
        """Whether a worker is among those wanted now; one on standby fills a gap."""
        if not self._is_wanted(member):
            return False
        if not member.is_active:
            if sum(other.is_active for other in self._workers()) >= self._target_workers:
                return False
            member.is_active = True
            self._touch_member(member)
        return True

    def _open_board(self) -> TaskBoard | None:
        if not self._is_restored:
            return None
        if self._phase == "training":
            return self._ledger.board
        return self._scoring if self._phase in {"validating", "scoring"} else None

    def _boards(self) -> list[TaskBoard]:
        boards = (self._ledger.board, self._scoring)
        return [board for board in boards if board is not None]

    def _board_of(self, key: TaskKey) -> TaskBoard | None:
        board = self._ledger.board if key.kind == "train" else self._scoring
        return board if board is not None and key in board.tasks else None

    def _holds(self, incarnation: str, lease: HeldLease) -> bool:
        board = self._board_of(lease.key)
        if board is None:
            return False
        task = board.tasks[lease.key]
        # Of a task that is done nothing is revoked: it is the worker's to be told so.
        return task.attempt == lease.attempt and (task.holder == incarnation or task.is_done)

    def _active_workers(self) -> tuple[str, ...]:
        board = self._ledger.board
        if board is None:
            return ()
        return tuple(sorted({task.holder for _, task in board.held()}))

    @staticmethod
    def _lost_leases(member: MemberState, board: TaskBoard, request: LeaseRequest) -> list[TaskKey]:
        """Leases that the worker does not know of, because a reply was lost."""
        known = {(lease.key, lease.attempt) for lease in request.held}
        return [
            key
            for key, task in board.held_by(member.incarnation)
            if (key, task.attempt) not in known
        ]

    def _new_leases(self, member: MemberState, board: TaskBoard, most: int) -> list[TaskKey]:
        kind: TaskKind = "train" if board is self._ledger.board else "score"
        speed = member.speed_of(kind) or 0.0
        held = board.held_by(member.incarnation)
        rows_held = sum(task.rows_left for _, task in held)
        num_held = len(held)
        num_workers = max(1, sum(other.is_active for other in self._workers()))
        if not num_held:
            member.idle_since = self._clock.seconds
        keys: list[TaskKey] = []
        while board.num_todo and len(keys) < most:
            fair_share = math.ceil((board.num_todo + num_held) / num_workers)
            has_enough = rows_held >= self._settings.lease_seconds * speed
            if num_held and (has_enough or num_held >= fair_share):
                break
            key = self._lease(board, member, None)
            keys.append(key)
            rows_held += board.tasks[key].rows_left
            num_held += 1
        if not num_held and not keys and most > 0:
            stolen = self._task_to_steal(member, board, kind)
            if stolen is not None:
                keys.append(self._lease(board, member, stolen))
        return keys

    def _lease(self, board: TaskBoard, member: MemberState, stolen: TaskKey | None) -> TaskKey:
        self._attempt += 1
        now = self._clock.seconds
        if stolen is None:
            key = board.lease_next(member.incarnation, self._attempt, now)
        else:
            key = stolen
            board.lease_again(key, member.incarnation, self._attempt, now)
        self._touch_task(board, key, durable=True)
        self._touch_head(durable=True)
        return key

    def _task_to_steal(
        self, thief: MemberState, board: TaskBoard, kind: TaskKind
    ) -> TaskKey | None:
        """The last unstarted task of the worker that would be busy longest, if that saves time."""
        best: TaskKey | None = None
        longest = 0.0
        thief_speed = thief.speed_of(kind)
        for member in self._workers():
            held = board.held_by(member.incarnation) if member is not thief else []
            if len(held) < 2:
                continue
            key, task = held[-1]
            if task.done_mask != task.mask_at_lease:
                continue
            speed = member.speed_of(kind)
            rows = sum(task.rows_left for _, task in held)
            busy = rows / speed if speed else math.inf
            own = task.rows_left / thief_speed if thief_speed else 0.0
            if busy > max(longest, own):
                best, longest = key, busy
        return best

    def _take_in_report(self, member: MemberState, report: TaskReport, generation: int) -> None:
        board = self._board_of(report.key)
        task = None if board is None else board.tasks[report.key]
        is_ours = task is not None and report.attempt == task.attempt
        if generation != self._generation or board is None or task is None or not is_ours:
            self._refused_reports += 1
            return
        if task.is_over:
            return
        key, holds = report.key, task.holder == member.incarnation
        new = board.count(key, report)
        if new:
            self._take_in_progress(member, task, report, new)
        if task.is_done:
            self._finish_task(member, board, report)
        elif holds and report.failure:
            self._take_in_task_failure(member, board, key, report.failure)
        elif holds and report.finished:
            # It says that nothing is left, and yet something is.
            board.release(key)
            self._touch_task(board, key)
        elif new:
            self._touch_task(board, key)

    def _take_in_progress(
        self, member: MemberState, task: Task, report: TaskReport, new: int
    ) -> None:
        now, rows, kind = self._clock.seconds, task.rows_in(new), report.key.kind
        seconds = report.seconds - task.seconds_seen
        task.progress_at = now
        task.seconds_seen = max(task.seconds_seen, report.seconds)
        member.measure(kind, rows, seconds)
        member.ends_in_row = 0
        if kind == "train":
            self._counted_since_cut = True
            repeated = task.rows_in(new & report.repeated_mask)
            if repeated:
                epoch = report.key.epoch
                self._repeated[epoch] = self._repeated.get(epoch, 0) + repeated
                self._touch_head()
        if self._recovering_since is not None:
            seconds = now - self._recovering_since
            self._recovering_since = None
            self._actions.append(
                Announce("the job has recovered", "it goes on from its last cut", seconds)
            )
        trained = self._ledger.trained
        if kind == "score" or trained > self._best_trained:
            # What only repeats what was rolled back is no progress: a server that fails each time
            # at the same place would go on for ever.
            self._best_trained = max(self._best_trained, trained)
            self._errors_in_row = 0
            for server in range(self._settings.num_parameter_servers):
                self._member("ps", server).ends_in_row = 0

    def _finish_task(self, member: MemberState, board: TaskBoard, report: TaskReport) -> None:
        task = board.tasks[report.key]
        rows = task.rows_in(task.full_mask & ~task.mask_at_lease)
        if rows and task.seconds_seen > 0:
            self._seconds_per_row[report.key.kind].add(task.seconds_seen / rows)
        board.settle(report.key)
        member.idle_since = self._clock.seconds
        self._touch_task(board, report.key, durable=True)

    def _take_in_task_failure(
        self, member: MemberState, board: TaskBoard, key: TaskKey, failure: str
    ) -> None:
        task = board.tasks[key]
        task.failures += 1
        name, most = name_of(key, task), self._settings.max_task_failures
        lines = failure.strip().splitlines()
        last_line = lines[-1].strip() if lines else "no reason given"
        what = f"{name} failed on {member.name} ({task.failures} of {most}): {last_line}"
        if task.failures < most:
            board.release(key)
            self._actions.append(Announce(what, "it is given out again"))
        elif (
            key.kind == "train"
            and len(self._ledger.dropped_tasks()) < self._settings.max_dropped_tasks
        ):
            task.dropped = last_line
            board.settle(key)
            self._actions.append(
                Announce(what, f"its {task.rows_left:,} records that are not trained are dropped")
            )
        else:
            board.release(key)
            self._fail(f"{name} failed {task.failures} times, the last time: {last_line}", failure)
        self._touch_task(board, key, durable=True)

    def _check_tasks(self) -> None:
        """Looks for tasks that stand still or take too long, and for stragglers."""
        board = self._open_board()
        if board is None:
            return
        kind: TaskKind = "train" if board is self._ledger.board else "score"
        holders = {task.holder for _, task in board.held()}
        still: list[tuple[float, MemberState]] = []
        for member in self._workers():
            if member.incarnation in holders:
                self._check_slow(member, kind)
                key, task = board.held_by(member.incarnation)[0]
                begun = max(task.leased_at, member.idle_since)
                patience = self._patience_for(task, kind)
                if self._clock.seconds - max(begun, task.progress_at) > patience:
                    still.append((max(begun, task.progress_at), member))
                elif (
                    self._clock.seconds - begun > patience
                    # While no task has ended, nobody knows what is long.
                    and self._seconds_per_row[kind].value is not None
                    and self._has_another(member)
                ):
                    self._give_rest_to_others(member, board, key, patience)
        if still:
            # In synchronous mode one that hangs holds up all the others. The first to stand still
            # is ended; the others get their time again.
            _, first = min(still, key=lambda entry: entry[0])
            for _, member in still:
                board.held_by(member.incarnation)[0][1].progress_at = self._clock.seconds
            self._end_standstill(first, board, kind)

    def _patience_for(self, task: Task, kind: TaskKind) -> float:
        per_row = self._seconds_per_row[kind].value
        return patience_seconds(
            None if per_row is None else per_row * task.num_rows,
            floor_seconds=self._settings.task_timeout_floor_seconds,
            factor=self._settings.task_timeout_factor,
        )

    def _end_standstill(self, member: MemberState, board: TaskBoard, kind: TaskKind) -> None:
        key, task = board.held_by(member.incarnation)[0]
        why = f"no batch of it was done within {self._patience_for(task, kind):.0f} s"
        if task.done_mask == task.mask_at_lease:
            self._take_in_task_failure(member, board, key, why)
        if self._phase not in _OVER:
            self._kill(member, f"{member.name} stands still in {name_of(key, task)}: {why}")

    def _give_rest_to_others(
        self, member: MemberState, board: TaskBoard, key: TaskKey, patience: float
    ) -> None:
        board.release(key)
        self._touch_task(board, key)
        member.idle_since = self._clock.seconds
        what = f"{name_of(key, board.tasks[key])} takes {member.name} longer than {patience:.0f} s"
        self._actions.append(Announce(what, "what is left of it is given to others"))

    def _has_another(self, member: MemberState) -> bool:
        return any(
            other is not member and other.incarnation and self._is_wanted(other)
            for other in self._workers()
        )

    def _check_slow(self, member: MemberState, kind: TaskKind) -> None:
        speeds = {
            other.index: speed
            for other in self._workers()
            if other.incarnation and (speed := other.speed_of(kind)) is not None
        }
        own = speeds.pop(member.index, None)
        if own is None or member.is_slow or not is_straggler(own, list(speeds.values())):
            return
        member.is_slow = True
        self._actions.append(
            Announce(
                f"{member.name} is slow: {own:,.0f} records/s, less than half of the others",
                "idle workers take over what it has not begun",
            )
        )

    # Cuts.

    def _take_in_cut(self, event: CutTaken) -> None:
        record = self._pending_cut
        if record is None or record.cut != event.cut:
            # Of a generation that is over: the servers went back behind it.
            return
        self._pending_cut = None
        self._schedule.succeed(self._clock.seconds)
        self._chain_intact = True
        self._cuts[record.cut] = record
        self._put(f"cut/{record.cut}", record.to_json(), durable=True)
        if self._pending_ends_epoch:
            self._ledger.epoch_cuts[self._ledger.epoch - 1] = record.cut
            self._write_ledger()
        self._touch_head(durable=True)
        self._drop_cuts()
        # One that was begun before the epoch was over is not the cut at its end.
        if self._phase == "cutting" and self._pending_ends_epoch:
            self._go_on()

    def _take_in_failed_cut(self, event: CutFailed) -> None:
        if self._pending_cut is None or self._pending_cut.cut != event.cut:
            return
        self._pending_cut = None
        self._schedule.fail(self._clock.seconds)
        self._counted_since_cut = True
        self._actions.append(
            Announce(f"cut {event.cut} failed: {event.reason}", "it is tried again")
        )
        if self._phase == "cutting" and self._schedule.failures_in_row >= _MAX_CUT_FAILURES:
            self._fail(f"no cut can be taken at the end of an epoch: {event.reason}")

    def _drop_cuts(self) -> None:
        ledger = self._ledger
        pinned = {ledger.best_cut}
        if ledger.epoch_cuts:
            pinned.add(ledger.epoch_cuts[max(ledger.epoch_cuts)])
        keep = cuts_to_keep(self._cuts, self._settings.keep_checkpoints, pinned)
        for cut in set(self._cuts).difference(keep):
            self._forget_cut(cut)
        self._actions.append(DropCuts(keep))

    def _forget_cut(self, cut: int) -> None:
        del self._cuts[cut]
        self._put(f"cut/{cut}", None, durable=False)

    def _awaits_restore(self, generation: int) -> bool:
        return (
            self._restore_in_flight
            and self._phase == "restoring"
            and generation == self._generation
        )

    def _take_in_restore(self, event: RestoreDone) -> None:
        if not self._awaits_restore(event.generation):
            return
        self._restore_in_flight = False
        self._restore_failures = 0
        self._is_restored = self._chain_intact = True
        self._schedule.start_over(self._clock.seconds)
        self._counted_since_cut = False
        if not self._training_over:
            self._roll_ledger_back(event.frozen)
            for cut in [cut for cut in self._cuts if cut > event.cut]:
                self._forget_cut(cut)
        self._touch_head(durable=True)
        self._phase = "waiting"

    def _roll_ledger_back(self, frozen: Json) -> None:
        before, failures = self._ledger, {}
        if before.board is not None:
            failures = {key: task.failures for key, task in before.board.touched()}
        self._ledger = Ledger.thaw(frozen, self._settings.plan_epoch)
        kept = self._ledger.trained_by_epoch()
        for epoch, rows in before.trained_by_epoch().items():
            again = rows - kept.get(epoch, 0)
            if again:
                self._repeated[epoch] = self._repeated.get(epoch, 0) + again
        self._write_ledger()
        # Failures belong to the task, not to the model.
        board = self._ledger.board
        for key, count in failures.items():
            if count and board is not None and key in board.tasks:
                board.tasks[key].failures = count
                self._touch_task(board, key)

    def _take_in_failed_restore(self, event: RestoreFailed) -> None:
        if not self._awaits_restore(event.generation):
            return
        self._restore_in_flight = False
        self._restore_retry_at = self._clock.seconds + _RESTORE_RETRY_SECONDS
        what = f"cut {event.cut} cannot be restored: {event.reason}"
        if event.damaged and event.cut in self._cuts:
            self._forget_cut(event.cut)
            self._restore_retry_at = self._clock.seconds
            before = self._cut_to_restore()
            if self._training_over and not before:
                self._fail(f"no cut of a whole epoch is left: {event.reason}")
                return
            done = f"cut {before} is used" if before else "the job begins anew"
            self._actions.append(Announce(what, done))
            return
        self._restore_failures += 1
        if self._restore_failures >= _MAX_RESTORE_FAILURES:
            self._fail(what)
        else:
            self._actions.append(Announce(what, "it is tried again"))

    # Ends of epochs, and of everything.

    def _begin_scoring(self, splits: tuple[ScoredSplit, ...]) -> None:
        self._era += 1
        self._scoring_era = self._era
        self._scoring = TaskBoard.of_splits(splits, self._ledger.epoch - 1)
        self._touch_scoring()

    def _end_scoring(self) -> None:
        if self._scoring is not None:
            self._scoring = None
            self._touch_scoring()

    def _take_in_decision(self, event: EpochDecided) -> None:
        ledger = self._ledger
        if not self._is_deciding or event.epoch != len(ledger.history):
            return
        self._is_deciding = False
        ledger.history.append(dict(event.record))
        ledger.best_epoch = event.best_epoch
        self._end_scoring()
        self._write_ledger()
        self._drop_cuts()
        if event.stop or ledger.epoch >= self._settings.num_epochs:
            self._end_training(event.reason)
        else:
            self._go_on()

    def _end_training(self, reason: str) -> None:
        self._training_over = True
        self._actions.append(Announce(f"training is over: {reason}", "the best epoch is scored"))
        held = self._ledger.epoch_cuts.get(self._ledger.epoch - 1, 0)
        if held and held == self._cut_to_restore():
            self._go_on()
        else:
            self._generation += 1
            self._is_restored = False
            self._enter("restoring")

    def _take_in_stop(self) -> None:
        if self._phase in _OVER or self._phase == "stopping":
            return
        if self._phase in {"cutting", "training"}:
            self._enter("stopping")
            return
        # Nothing was trained since the last cut, or the servers do not hold it.
        self._counted_since_cut = False
        self._enter("stopping")

    # The ledger on disk.

    def _put(self, name: str, record: Json | None, *, durable: bool) -> None:
        self._dirty[name] = record
        self._dirty_durable |= durable

    def _touch_head(self, *, durable: bool = False) -> None:
        # Rendered when it is written: it changes several times in one event.
        self._put("head", {}, durable=durable)

    def _touch_member(self, member: MemberState, *, durable: bool = False) -> None:
        self._put(f"member/{member.role}/{member.index}", member.to_json(), durable=durable)

    def _touch_task(self, board: TaskBoard, key: TaskKey, *, durable: bool = False) -> None:
        is_train = key.kind == "train"
        if board is not (self._ledger.board if is_train else self._scoring):
            return
        name = f"task/{key.task}" if is_train else f"score/{key.split}/{key.task}"
        era = self._base_era if is_train else self._scoring_era
        self._put(name, {"era": era, **board.tasks[key].to_json()}, durable=durable)

    def _touch_scoring(self) -> None:
        board = self._scoring
        if board is None:
            self._put("scoring", None, durable=True)
        else:
            final = self._training_over
            record = {"era": self._scoring_era, "epoch": self._ledger.epoch - 1, "final": final}
            self._put("scoring", record, durable=True)

    def _write_ledger(self) -> None:
        """Writes the ledger as a whole; records of single tasks before it are void from now on."""
        self._era += 1
        self._base_era = self._era
        for name in [name for name in self._dirty if name.startswith("task/")]:
            del self._dirty[name]
        self._put("base", {"era": self._base_era, "ledger": self._ledger.freeze()}, durable=True)
        self._touch_head(durable=True)

    def _flush(self) -> list[Action]:
        actions, self._actions = self._actions, []
        if self._dirty:
            if "head" in self._dirty:
                self._dirty["head"] = self._head_json()
            actions.insert(0, Persist(self._dirty, self._dirty_durable))
            self._dirty, self._dirty_durable = {}, False
        return actions

    def _head_json(self) -> dict[str, object]:
        return {
            "phase": self._phase,
            "reason": self._reason,
            "traceback": self._traceback,
            "generation": self._generation,
            "era": self._era,
            "attempt": self._attempt,
            "next_cut": self._next_cut,
            "chain_intact": self._chain_intact,
            "is_restored": self._is_restored,
            "has_started": self._has_started,
            "training_over": self._training_over,
            "workers": [self._min_workers, self._max_workers, self._target_workers],
            "repeated": [list(pair) for pair in self._repeated.items()],
            "seconds": [list(pair) for pair in self._seconds.items()],
            "best_trained": self._best_trained,
            "errors_in_row": self._errors_in_row,
            "refused_reports": self._refused_reports,
            "final_scores": [
                [totals.split, totals.num_rows, scores_to_json(totals.scores)]
                for totals in self._final_scores
            ],
        }

    def _load_head(self, head: Json) -> None:
        self._phase = head["phase"]
        self._reason, self._traceback = head["reason"], head["traceback"]
        self._generation, self._era = head["generation"], head["era"]
        self._attempt, self._next_cut = head["attempt"], head["next_cut"]
        self._chain_intact = head["chain_intact"]
        self._is_restored, self._has_started = head["is_restored"], head["has_started"]
        self._training_over = head["training_over"]
        self._min_workers, self._max_workers, self._target_workers = head["workers"]
        self._repeated, self._seconds = dict(head["repeated"]), dict(head["seconds"])
        self._best_trained = head["best_trained"]
        self._errors_in_row = head["errors_in_row"]
        self._refused_reports = head["refused_reports"]
        self._final_scores = tuple(
            SplitTotals(split, num_rows, scores_from_json(scores))
            for split, num_rows, scores in head["final_scores"]
        )

    def _load_boards(self, records: Mapping[str, Json]) -> None:
        base = records["base"]
        self._base_era = base["era"]
        self._ledger = Ledger.thaw(base["ledger"], self._settings.plan_epoch)
        scoring = records.get("scoring")
        if scoring is not None:
            self._scoring_era = scoring["era"]
            valid = self._settings.valid
            splits = self._settings.final_splits if scoring["final"] else (valid,) if valid else ()
            self._scoring = TaskBoard.of_splits(splits, scoring["epoch"])
        trained: dict[TaskKey, Json] = {}
        scored: dict[TaskKey, Json] = {}
        for name, record in records.items():
            kind, _, rest = name.partition("/")
            if kind == "task" and record["era"] == self._base_era:
                trained[TaskKey("train", self._ledger.epoch, int(rest), "train")] = record
            elif kind == "score" and scoring is not None and record["era"] == self._scoring_era:
                split, _, task = rest.partition("/")
                scored[TaskKey("score", scoring["epoch"], int(task), split)] = record
        if self._ledger.board is not None:
            self._ledger.board.load(trained)
        if self._scoring is not None:
            self._scoring.load(scored)
        # After the cut it may have counted more; one cut too many does no harm.
        self._counted_since_cut = True
