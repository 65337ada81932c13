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

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Self, assert_never

from ctr_pipeline.distributed.coordination.claims import Claims
from ctr_pipeline.distributed.coordination.cuts import (
    CutRecord,
    CutSchedule,
    cuts_to_keep,
    decide_full,
)
from ctr_pipeline.distributed.coordination.events import (
    Action,
    Announce,
    AnswerLease,
    CannotGoOn,
    CutContradicted,
    CutDamaged,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    End,
    EpochDecided,
    EpochTotals,
    Event,
    Fail,
    Json,
    MoveFailed,
    MovePartitions,
    MoveReady,
    Phase,
    PlacePartitions,
    ProcessesSeen,
    RestoreCut,
    RestoreDone,
    RestoreFailed,
    ScaleAsked,
    ServersAsked,
    SplitTotals,
    StartMember,
    StartRefused,
    StopAsked,
    StopMember,
    TakeCut,
    Tick,
    WaitingCall,
)
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.leasing import (
    Queue,
    WaitingLease,
    holds_enough,
    lost_leases,
    task_to_steal,
)
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
    RegisterRequest,
    Role,
    TaskKey,
    TaskKind,
    TaskReport,
    checksum_of,
)
from ctr_pipeline.distributed.coordination.moves import (
    HeatWatch,
    HotServer,
    MoveSchedule,
    PlannedMove,
    plan_balance,
)
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.records import (
    JobHead,
    LedgerRecords,
    Servers,
    read_records,
)
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch, explain_end
from ctr_pipeline.distributed.coordination.reports import (
    LONGEST_FAILURE,
    find_false_identity,
    find_nonsense,
    last_line_of,
)
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.status import JobStatus, MemberStatus
from ctr_pipeline.distributed.coordination.storage import StorageWait
from ctr_pipeline.distributed.coordination.tasks import (
    ScoredSplit,
    Task,
    TaskBoard,
    leased_task,
    merge_scores,
    name_of,
)
from ctr_pipeline.distributed.coordination.timeouts import (
    MovingAverage,
    Speeds,
    SteadyClock,
    patience_seconds,
)

__all__ = ["Job", "JobSettings", "JobStatus", "MemberStatus"]

_WAIT_SECONDS = 0.2
_RESTORE_RETRY_SECONDS = 1.0
_MAX_RESTORE_FAILURES = 5
_MAX_CUT_FAILURES = 5
_KEPT_FILES = "its files are kept until its manifest, *.json.given-up, is removed"
_MAX_STALLS = 3
_USUAL_TIMES_OF_STALL = 20.0
"""A job in which so many times the usual time of a batch passes without one stands still."""
# A worker that is slower than half of the others for so long is told of; one that has come back to
# this fraction of them keeps up, and is told of again if it falls behind again.
_BEHIND_SECONDS = 5.0
_KEEPS_UP = 0.75
_OVER: frozenset[Phase] = frozenset({"finished", "stopped", "failed"})


class Job:
    """The state of a job and everything that changes it.

    Make one with `begin`, `from_ledger` or `from_cut`.
    """

    def __init__(self, settings: JobSettings, now: float) -> None:
        self._settings = settings
        self._clock = SteadyClock(now, settings.most_clock_step_seconds)
        self._actions: list[Action] = []
        self._head = JobHead(
            min_workers=settings.min_workers,
            max_workers=settings.max_workers,
            target_workers=settings.max_workers,
        )
        self._records = LedgerRecords()
        self._ledger = Ledger()
        self._scoring: TaskBoard | None = None
        self._cuts: dict[int, CutRecord] = {}
        self._servers = Servers(settings.first_placement(), settings.num_parameter_servers)
        self._members: dict[tuple[Role, int], MemberState] = {}
        # What follows is no part of the ledger: a new master finds it out again.
        self._schedule = CutSchedule(settings.checkpoint_seconds, 0.0)
        self._moves = MoveSchedule()
        self._heat = HeatWatch(settings.heat)
        self._counted_since_cut = False
        self._pending_cut: CutRecord | None = None
        self._pending_ends_epoch = False
        self._restore_in_flight = False
        self._restore_retry_at = 0.0
        self._restore_failures = 0
        self._claims = Claims()
        self._waiting: dict[str, WaitingLease] = {}
        """Workers without enough to do, by name, in the order in which they asked."""
        self._look_at: set[str] | None = set()
        """Those of them for whom there may be something now; None: all."""
        self._storage = StorageWait(settings.storage_patience_seconds)
        self._is_deciding = False
        self._stops_with = 0
        """The first cut that is new enough for an asked stop."""
        self._recovering_since: float | None = None
        self._rows_rolled_back = 0
        self._still_seconds = self._stall_looked_at = 0.0
        """For how long workers have held work of which nothing was counted; looked at when."""
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
        stored = read_records(records, settings)
        if stored is None:
            return cls.begin(settings, now)
        job = cls(settings, now)
        job._head, job._ledger, job._scoring = stored.head, stored.ledger, stored.scoring
        job._members, job._cuts = stored.members, stored.cuts
        job._servers = stored.servers or job._servers
        job._records.continue_after(stored)
        job._claims = stored.claims
        # It may have counted more since its last cut; one cut too many does no harm.
        job._counted_since_cut = True
        job._stops_with = stored.head.next_cut
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
        job._head.generation = generation
        for number, frozen in cuts.items():
            job._cuts[number] = CutRecord.from_json(frozen["cut"])
            job._records.put_cut(job._cuts[number])
        if cuts:
            newest = cuts[max(cuts)]
            job._ledger = Ledger.thaw(newest, settings.plan_epoch)
            job._head.attempt = newest["attempt"]
            job._head.next_cut = max(cuts) + 1
            job._head.repeated = dict(newest["repeated"])
            job._head.seconds = dict(newest["seconds"])
            job._head.best_trained = job._ledger.trained
        job._write_ledger()
        return job

    @classmethod
    def to_score(cls, settings: JobSettings, cut: int, frozen: Json, now: float) -> Self:
        """A job that scores the final splits with the parameters of one cut, and does no more.

        It trains nothing and takes no cut, so that it may run beside the job that took this one.

        Args:
            settings: Of the job.
            cut: Its number.
            frozen: `TakeCut.frozen` of it.
            now: The clock.
        """
        job = cls.from_cut(settings, {cut: frozen}, 0, now)
        ledger = job._ledger
        ledger.board = None
        ledger.best_epoch = max(0, ledger.epoch - 1)
        ledger.epoch_cuts = {ledger.best_epoch: cut}
        job._head.training_over = True
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
                self._touch_task(key, task)
        settings = self._settings
        self._head.min_workers, self._head.max_workers = settings.min_workers, settings.max_workers
        self._head.target_workers = settings.max_workers
        self._servers = Servers(settings.first_placement(), settings.num_parameter_servers)
        self._records.put_servers(None)
        self._head.phase, self._head.reason, self._head.traceback = "waiting", "", ""
        self._head.is_restored = self._head.has_started = False
        self._head.errors_in_row = self._head.stalls_in_row = 0
        if self._head.training_over and self._ledger.epoch < settings.num_epochs:
            # More epochs are allowed than before: the last one is decided on again.
            self._head.training_over = False
            self._head.final_scores = ()
        if not self._head.training_over:
            self._end_scoring()
        elif self._all_is_scored:
            # What comes after is made from the best cut; nobody needs members for it.
            self._head.phase = "finished"
        self._touch_head(durable=True)

    @property
    def _all_is_scored(self) -> bool:
        return bool(self._head.final_scores) or not self._settings.final_splits

    # What the executor reads.

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self._head.phase

    @property
    def generation(self) -> int:
        """Of the job now."""
        return self._head.generation

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Of the parameter servers that hold something, by index; empty where one is missing."""
        return self.all_ps_addresses[: self._servers.placement.num_servers]

    @property
    def all_ps_addresses(self) -> tuple[str, ...]:
        """Of these, and after them of those that are to hold something."""
        return tuple(self._member("ps", index).address for index in range(self._servers.number))

    @property
    def told_ps_addresses(self) -> tuple[str, ...]:
        """What members are told: servers that hold nothing yet only once they are there."""
        known = list(self.all_ps_addresses)
        while len(known) > self._servers.placement.num_servers and not known[-1]:
            known.pop()
        return tuple(known)

    @property
    def placement(self) -> Placement:
        """Who holds what."""
        return self._servers.placement

    @property
    def move_in_flight(self) -> int:
        """Version of the placement that a move is about to make; 0: none is."""
        return self._moves.in_flight

    @property
    def cuts(self) -> tuple[int, ...]:
        """Cuts that the ledger knows, ascending."""
        return tuple(sorted(self._cuts))

    def status(self) -> JobStatus:
        """The job for a person or a metric, as of the last call."""
        board = self._scoring if self._scoring is not None else self._ledger.board
        totals = tuple(self._totals())
        return JobStatus(
            phase=self._head.phase,
            reason=self._head.reason or self._storage_reason(),
            traceback=self._head.traceback,
            generation=self._head.generation,
            epoch=max(0, self._ledger.epoch - (1 if self._ledger.board is None else 0)),
            tasks_done=0 if board is None else board.num_over,
            tasks_total=0 if board is None else board.num_tasks,
            epochs=totals,
            step=self._ledger.batches,
            trained=sum(epoch.trained for epoch in totals),
            repeated=sum(self._repeated().values()),
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
            target_workers=self._head.target_workers,
            refused_reports=self._head.refused_reports,
            final_scores=self._head.final_scores,
        )

    def _storage_reason(self) -> str:
        is_waiting = self._storage.reason and self._head.phase not in _OVER
        return f"waiting for storage: {self._storage.reason}" if is_waiting else ""

    def _member_status(self, member: MemberState) -> MemberStatus:
        leases = sum(board.num_held_by(member.incarnation) for board in self._boards())
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

    def _repeated(self) -> dict[int, int]:
        """Records executed beyond those counted, by epoch."""
        board, epoch = self._ledger.board, self._ledger.epoch
        repeated = dict(self._head.repeated)
        if board is not None and board.rows_repeated:
            repeated[epoch] = repeated.get(epoch, 0) + board.rows_repeated
        return repeated

    def _totals(self) -> list[EpochTotals]:
        repeated = self._repeated()
        found = [
            EpochTotals(
                epoch.epoch,
                epoch.trained,
                repeated.get(epoch.epoch, 0),
                epoch.dropped,
                epoch.loss_sum,
                self._head.seconds.get(epoch.epoch, 0.0),
            )
            for epoch in self._ledger.closed
        ]
        board, epoch = self._ledger.board, self._ledger.epoch
        if board is not None:
            found.append(
                EpochTotals(
                    epoch,
                    board.rows_done,
                    repeated.get(epoch, 0),
                    board.rows_dropped,
                    board.loss_sum,
                    self._head.seconds.get(epoch, 0.0),
                )
            )
        return found

    # What happens.

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes in what happened."""
        self._pass_time(now)
        self._look_at = None
        match event:
            case Tick():
                self._check_members()
                self._check_tasks()
                self._check_stall()
                self._cool_servers()
            case ProcessesSeen():
                self._see_processes(event.processes)
            case StartRefused():
                self._take_in_refused_start(event)
            case CutTaken():
                self._take_in_cut(event)
            case CutFailed():
                self._take_in_failed_cut(event)
            case CutContradicted():
                self._take_in_contradicted_cut(event)
            case CutDamaged():
                self._take_in_damaged_cut(event)
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
            case ServersAsked():
                self._take_in_servers(event)
            case MoveReady():
                self._take_in_move(event)
            case MoveFailed():
                self._take_in_failed_move(event)
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
        self._look_at = None
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
            # It is told nothing of others.
            reply = HeartbeatReply(directive, self._head.generation, (), request.held, None)
            return reply, self._flush()
        member.hear(self._clock.seconds)
        member.take_in_stats(request.stats)
        for report in request.reports:
            self._take_in_report(member, report, request.generation)
        if request.reports and self._look_at is not None:
            self._look_at.add(member.incarnation)
        self._advance()
        # The report itself may have ended the job.
        if not self._is_wanted(member):
            directive = "leave"
            member.told_to_leave = True
        is_current = request.generation == self._head.generation
        # Of a task that it has just said to be done nothing is revoked.
        ended = [
            HeldLease(report.key, report.attempt) for report in request.reports if report.finished
        ]
        revoked = tuple(
            lease
            for lease in request.held
            if not is_current
            or not (
                self._holds(request.member.incarnation, lease)
                or (lease in ended and self._is_done(lease.key))
            )
        )
        active: tuple[str, ...] | None = None
        if request.member.role == "ps" and self._settings.has_rounds:
            active = self._active_workers()
            if checksum_of(active) == request.active_workers:
                active = None
        placement = self._servers.placement
        knows_it = request.placement in {-1, placement.version}
        reply = HeartbeatReply(
            directive,
            self._head.generation,
            self.told_ps_addresses,
            revoked,
            active,
            placement=None if knows_it else placement,
            move=self._moves.in_flight,
        )
        return reply, self._flush()

    def lease(
        self, request: LeaseRequest, now: float, call: WaitingCall | None = None
    ) -> tuple[LeaseReply | None, list[Action]]:
        """Gives a worker tasks under new attempts.

        Args:
            request: Of the worker.
            now: The clock.
            call: Where an answer can be sent that is not there yet; None: it is wanted at once.

        Returns:
            The answer, None if it will be an `AnswerLease`; and actions.
        """
        self._pass_time(now)
        self._advance()
        member = self._registered(request.member)
        is_current = request.generation == self._head.generation
        if member is not None and is_current:
            member.hear(self._clock.seconds)
        reply = self._answer_lease(request)
        may_wait = member is not None and is_current and request.wait_seconds > 0
        if reply.verdict != "wait" or call is None or not may_wait:
            return reply, self._flush()
        before = self._waiting.pop(request.member.incarnation, None)
        if before is not None:
            # Nobody listens there any more.
            self._actions.append(AnswerLease(before.call, reply))
        until = self._clock.seconds + request.wait_seconds
        self._waiting[request.member.incarnation] = WaitingLease(request, call, until)
        return None, self._flush()

    def hang_up(self, call: WaitingCall) -> None:
        """A call that `lease` was handed has ended: whatever it waited for is for others."""
        for name, waiting in self._waiting.items():
            if waiting.call is call:
                del self._waiting[name]
                return

    def _answer_lease(self, request: LeaseRequest) -> LeaseReply:
        generation = self._head.generation
        if self._head.phase in _OVER:
            return LeaseReply("end", generation, (), 0.0)
        member, board = self._registered(request.member), self._open_board()
        if member is not None and not self._is_wanted(member):
            return LeaseReply("leave", generation, (), 0.0)
        keys: list[TaskKey] = []
        if member is not None and board is not None and request.generation == generation:
            keys = lost_leases(self._queue_of(member, board), request.held)
            if self._may_work(member):
                keys += self._new_leases(member, board, request.num_tasks - len(keys))
        if not keys or board is None:
            return LeaseReply("wait", generation, (), _WAIT_SECONDS)
        # Final scores are wanted as files; those of an epoch are not.
        folder = self._settings.scores_folder if self._head.training_over else ""
        tasks = tuple(leased_task(key, board.task(key), folder) for key in keys)
        return LeaseReply("tasks", generation, tasks, 0.0)

    def _answer_waiting(self) -> None:
        """Gives those that wait for tasks what there is for them by now, and their time's end."""
        looked_at, self._look_at = self._look_at, set()
        names = list(self._waiting) if looked_at is None else looked_at & self._waiting.keys()
        board, now = self._open_board(), self._clock.seconds
        has_work = board is not None and (board.num_todo > 0 or board.has_queues)
        for name in names:
            waiting = self._waiting[name]
            member = self._registered(waiting.request.member)
            is_wanted = member is not None and self._is_wanted(member)
            is_current = waiting.request.generation == self._head.generation
            if is_wanted and is_current and not has_work and now < waiting.until:
                continue
            reply = self._answer_lease(waiting.request)
            if is_wanted and is_current and reply.verdict == "wait" and now < waiting.until:
                continue
            if reply.verdict == "wait":
                reply = replace(reply, wait_seconds=0.0)
            del self._waiting[name]
            self._actions.append(AnswerLease(waiting.call, reply))

    def _pass_time(self, now: float) -> None:
        step = self._clock.advance(now)
        if self._head.phase == "training":
            epoch = self._ledger.epoch
            self._head.seconds[epoch] = self._head.seconds.get(epoch, 0.0) + step

    # What is to be done next.

    def _advance(self) -> None:
        """Does what the state calls for, until it calls for nothing more."""
        before = None
        while before != (before := self._head.phase):
            if self._head.phase in _OVER:
                self._advance_end()
            elif self._head.phase in {"waiting", "restoring"}:
                self._advance_restore()
            elif self._head.phase == "training":
                self._advance_training()
            elif self._head.phase == "cutting":
                self._take_cut_if_due(at_once=True)
            elif self._head.phase in {"validating", "scoring"}:
                self._advance_scoring()
            elif self._head.phase == "stopping":
                self._advance_stop()

    def _enter(self, phase: Phase) -> None:
        self._head.phase = phase
        self._look_at = None
        if phase in _OVER:
            self._over_since = None
            self._release_all()
        self._touch_head(durable=True)

    def _advance_restore(self) -> None:
        if self._head.is_restored:
            workers = sum(bool(member.incarnation) for member in self._workers())
            if self._head.has_started or workers >= self._head.min_workers:
                self._go_on()
            return
        waits = self._restore_in_flight or self._clock.seconds < self._restore_retry_at
        if waits or not all(self.ps_addresses):
            return
        self._head.generation += 1
        self._restore_in_flight = True
        self._enter("restoring")
        self._actions.append(RestoreCut(self._cut_to_restore(), self._head.generation))

    def _cut_to_restore(self, among: Collection[int] | None = None) -> int:
        """The cut to go back to, of all or some; 0: the beginning."""
        cuts = self._cuts if among is None else among
        if not self._head.training_over:
            return max(cuts, default=0)
        best = self._ledger.best_cut
        if best in cuts:
            return best
        # The best cut is damaged: the newest epoch that has one is the next best thing.
        return max((cut for cut in self._ledger.epoch_cuts.values() if cut in cuts), default=0)

    def _go_on(self) -> None:
        """Parameter servers hold what the ledger counts; whatever comes next begins."""
        ledger = self._ledger
        self._head.has_started = True
        if self._head.training_over:
            if self._all_is_scored:
                self._announce_recovery()
                self._enter("finished")
                return
            if self._scoring is None:
                self._begin_scoring()
            self._enter("scoring")
        elif ledger.board is not None:
            self._enter("training")
        elif len(ledger.history) < len(ledger.closed):
            if self._settings.valid is not None and self._scoring is None:
                self._begin_scoring()
            self._enter("validating")
        else:
            ledger.open_epoch(self._settings.plan_epoch(ledger.epoch))
            self._write_ledger()
            self._enter("training")

    def _advance_training(self) -> None:
        board = self._ledger.board
        if board is not None and board.is_over:
            self._head.repeated = self._repeated()
            self._ledger.close_epoch()
            self._write_ledger()
            self._counted_since_cut = True
            self._storage.start_over(self._clock.seconds)
            self._enter("cutting")
            return
        if self._counted_since_cut:
            self._take_cut_if_due(at_once=False)
        self._move_if_due()

    def _take_cut_if_due(self, *, at_once: bool) -> None:
        # Neither begins while the other is under way.
        if self._moves.in_flight or not self._schedule.is_due(self._clock.seconds, at_once=at_once):
            return
        ledger, number = self._ledger, self._head.next_cut
        parent = self._cuts.get(max(self._cuts, default=0))
        full = decide_full(
            parent, chain_intact=self._head.chain_intact, full_every=self._settings.full_every
        )
        record = CutRecord(
            cut=number,
            parent=0 if full or parent is None else parent.cut,
            depth=0 if full or parent is None else parent.depth + 1,
            best_cut=ledger.best_cut,
        )
        self._head.next_cut += 1
        # Until it is known to be durable, nobody knows what the servers count as touched since.
        self._head.chain_intact = False
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
        frozen["attempt"] = self._head.attempt
        frozen["repeated"] = [list(pair) for pair in self._repeated().items()]
        frozen["seconds"] = [list(pair) for pair in self._head.seconds.items()]
        self._actions.append(
            TakeCut(
                cut=number,
                generation=self._head.generation,
                parent=record.parent,
                full=full,
                epoch=max(0, ledger.epoch - (1 if ledger.board is None else 0)),
                step=ledger.batches,
                best_cut=ledger.best_cut,
                frozen=frozen,
                ends_epoch=self._pending_ends_epoch,
                claims=self._claims.begin_cut(),
            )
        )

    def _advance_scoring(self) -> None:
        board = self._scoring
        if self._head.phase == "scoring":
            if board is not None and board.is_over:
                self._head.final_scores = tuple(
                    self._split_totals(board, split) for split in self._settings.final_splits
                )
                self._end_scoring()
                self._enter("finished")
        elif not self._is_deciding and (board is None or board.is_over):
            self._is_deciding = True
            split, history = self._settings.valid, tuple(self._ledger.history)
            valid = None if split is None or board is None else self._split_totals(board, split)
            self._actions.append(DecideEpoch(self._totals()[len(history)], valid, history))

    def _split_totals(self, board: TaskBoard, split: ScoredSplit) -> SplitTotals:
        parts = [
            task.scores
            for key, task in board.touched()
            if key.split == split.name and task.scores is not None
        ]
        return SplitTotals(split.name, split.num_rows, merge_scores(parts))

    def _advance_stop(self) -> None:
        if self._schedule.in_flight:
            return
        # Workers go on with what they hold; what they do after the cut is not waited for.
        has_cut = max(self._cuts, default=0) >= self._stops_with
        is_lost = self._schedule.failures_in_row >= _MAX_CUT_FAILURES
        if self._head.is_restored and self._counted_since_cut and not has_cut and not is_lost:
            self._take_cut_if_due(at_once=True)
            return
        last = max(self._cuts, default=0)
        where = f"it can go on from cut {last}" if last else "it will begin anew"
        if self._counted_since_cut and not has_cut:
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
            self._actions.append(End(self._head.phase))

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
        return member if member is not None and member.is_process(who) else None

    def _is_void(self, who: Member) -> bool:
        """Whether an unknown process has no place here, now or later."""
        member = self._members.get((who.role, who.index))
        if self._head.phase in _OVER:
            return True
        # Its place is taken by another process, or it was given up.
        return member is not None and (
            bool(member.incarnation) or who.incarnation in member.given_up
        )

    def _is_wanted(self, member: MemberState) -> bool:
        if self._head.phase in _OVER:
            return False
        if member.role == "ps":
            return member.index < self._servers.number
        wanted = self._head.target_workers + self._settings.standby_workers
        return member.index < wanted

    def _take_in_member(self, request: RegisterRequest) -> str:
        who = request.member
        if who.role == "master":
            return "a master does not register"
        if false := find_false_identity(request):
            return false
        if self._head.phase in _OVER:
            return f"the job is over: it is {self._head.phase}"
        if who.role == "ps" and not 0 <= who.index < self._servers.number:
            return f"the job has {self._servers.number} parameter servers"
        member = self._member(who.role, who.index)
        if who.incarnation in member.given_up:
            return "this process was given up: it ended, was replaced, or fell silent"
        if member.incarnation == who.incarnation and not member.is_process(who):
            return "another process has registered under its name"
        # A worker that is replaced loses a batch; a server takes the whole job back.
        patience = self._settings.server_silence_seconds
        now = self._clock.seconds
        if who.role == "ps" and member.is_held_against(who.incarnation, now, patience):
            return (
                f"{member.name} is process {member.pid} on {member.host} at {member.address}, "
                f"heard {now - member.heard_at:.1f} s ago: end that one first, then come again "
                f"once it was silent for {patience:g} s"
            )
        if member.incarnation and member.incarnation != who.incarnation:
            self._lose(member, f"another {member.name} has registered")
        member.join(request, self._clock.seconds)
        self._touch_member(member, durable=True)
        return ""

    def _lose(self, member: MemberState, why: str) -> None:
        """A registered member is no longer there, though it is wanted."""
        incarnation = member.incarnation
        done = "it is started again"
        if member.role == "worker":
            done = f"{self._release_leases_of(member)} leased tasks are given to others"
        elif self._head.phase == "stopping":
            done = "the job stops without another cut"
        elif member.index >= self._servers.placement.num_servers:
            done = "it held nothing; it is started again"
        elif self._head.is_restored or self._restore_in_flight:
            cut = self._cut_to_restore()
            done = f"the job goes back to {f'cut {cut}' if cut else 'its beginning'}"
        self._actions.append(Announce(why, done))
        member.give_up(incarnation)
        member.last_end = why
        self._touch_member(member)
        holds = member.role == "ps" and member.index < self._servers.placement.num_servers
        if holds and (self._head.is_restored or self._restore_in_flight):
            self._roll_back()
        elif self._open_board() is not None and not any(one.incarnation for one in self._workers()):
            # Nobody works any more: as after the loss of a server, it counts when work goes on.
            self._begin_recovery()

    def _roll_back(self) -> None:
        """Everything since the last cut is void; the ledger follows when the servers have."""
        self._head.generation += 1
        self._head.is_restored = self._restore_in_flight = self._is_deciding = False
        self._pending_cut = None
        self._moves.give_up()
        self._schedule.start_over(self._clock.seconds)
        self._release_all()
        if not self._head.training_over:
            self._end_scoring()
        self._begin_recovery()
        # A job that stops does so without its servers: it can go on from its last cut.
        if self._head.phase not in {"waiting", "stopping"}:
            self._head.phase = "restoring"
        self._touch_head(durable=True)

    def _release_all(self) -> None:
        for board in self._boards():
            for key, _ in board.held():
                self._release(board, key)

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
            self._count_error(member, why, process.traceback)

    def _take_in_refused_start(self, event: StartRefused) -> None:
        member = self._member(event.role, event.index)
        if not self._is_wanted(member) or member.incarnation or member.is_running:
            return
        what = f"{member.name} cannot be started: {event.reason}"
        if event.is_final:
            self._fail(what)
            return
        is_first = not any(one.refusals_in_row for one in self._members.values())
        member.refuse_start(self._clock.seconds)
        if is_first:
            self._actions.append(Announce(what, "it is tried again"))

    def _release_leases_of(self, member: MemberState) -> int:
        num_leases = 0
        for board in self._boards():
            for key, _ in board.held_by(member.incarnation):
                self._release(board, key)
                num_leases += 1
        return num_leases

    def _count_error(self, member: MemberState, why: str, traceback: str) -> None:
        self._head.errors_in_row += 1
        self._touch_head()
        # Of one member: where many start slowly at once, each of them may do so.
        most = self._settings.max_start_failures
        if self._head.errors_in_row >= most and member.ends_in_row >= most:
            times = f"{self._head.errors_in_row} failures of members in a row without any progress"
            self._fail(f"{why}; these are {times}", traceback)

    def _fail(self, reason: str, traceback: str = "") -> None:
        if self._head.phase in _OVER:
            return
        self._head.reason, self._head.traceback = reason, traceback
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
                self._count_error(member, why, member.process.traceback)

    def _kill(self, member: MemberState, why: str) -> None:
        """A process that hangs is ended at once; its place is filled when it is gone."""
        incarnation = member.incarnation
        if incarnation:
            self._lose(member, why)
        elif member.process is not None:
            incarnation = member.process.incarnation
        member.ends_in_row += 1
        member.start_asked_at = None
        relaunch = decide_relaunch("killed", registered=True, ends_in_row=member.ends_in_row)
        member.not_before = self._clock.seconds + relaunch.delay_seconds
        member.stop_asked_at = self._clock.seconds
        self._actions.append(StopMember(member.role, member.index, incarnation, 0.0))

    def _start_and_stop_members(self) -> None:
        now, settings = self._clock.seconds, self._settings
        if self._head.phase not in _OVER:
            for index in range(self._servers.number):
                self._start(self._member("ps", index))
            self._start_workers(self._head.target_workers + settings.standby_workers)
        for member in self._members.values():
            grace = 0.0 if member.is_condemned else settings.leave_seconds
            is_in_the_way = member.is_condemned or (
                member.is_running and not self._is_wanted(member)
            )
            process = member.process
            if process is not None and is_in_the_way and member.may_stop(now, grace):
                member.stop_asked_at = now
                self._actions.append(
                    StopMember(member.role, member.index, process.incarnation, grace)
                )

    def _start_workers(self, number: int) -> None:
        """Starts those that are missing, a few at a time: each costs seconds of several cores."""
        workers = [self._member("worker", index) for index in range(number)]
        now = self._clock.seconds
        coming = sum(one.is_coming(now) for one in workers)
        for worker in workers:
            if coming >= self._settings.max_workers_starting:
                return
            if worker.may_start(now):
                self._start(worker)
                coming += 1

    def _start(self, member: MemberState) -> None:
        now = self._clock.seconds
        if member.may_start(now):
            member.start_asked_at = now
            member.stop_asked_at = None
            self._actions.append(StartMember(member.role, member.index))

    def _take_in_scale(self, event: ScaleAsked) -> None:
        least = max(1, self._head.min_workers if event.min_workers is None else event.min_workers)
        most = self._head.max_workers if event.max_workers is None else event.max_workers
        self._head.min_workers, self._head.max_workers = least, max(least, most)
        target = self._head.max_workers if event.target_workers is None else event.target_workers
        self._head.target_workers = min(max(target, least), self._head.max_workers)
        self._choose_active()
        self._touch_head(durable=True)
        bounds = f"between {self._head.min_workers} and {self._head.max_workers}"
        self._actions.append(
            Announce(
                "another number of workers is asked for", f"{self._head.target_workers}, {bounds}"
            )
        )

    # Moves of partitions.

    def _take_in_servers(self, event: ServersAsked) -> None:
        wanted = min(max(1, event.num_parameter_servers), len(self._servers.placement.owners))
        self._servers = replace(self._servers, wanted=wanted, is_balancing=True)
        self._records.put_servers(self._servers)
        self._actions.append(
            Announce(
                f"{wanted} parameter servers are asked for",
                "partitions move while training goes on",
            )
        )

    def _move_if_due(self) -> None:
        if not self._servers.is_balancing or not self._moves.may_begin(self._clock.seconds):
            return
        if self._schedule.in_flight or not self._head.is_restored:
            return
        placement = self._servers.placement
        planned = plan_balance(placement, self._servers.wanted)
        if planned is None:
            self._servers = replace(self._servers, is_balancing=False)
            self._records.put_servers(self._servers)
            self._actions.append(
                Announce("partitions are where they are to be", f"{placement.num_servers} servers")
            )
        elif self._member("ps", planned.target).address:
            self._begin_move(planned)

    def _cool_servers(self) -> None:
        """Partitions of a server that was busy for long move, unless something else is going on."""
        if self._head.phase != "training" or self._servers.is_balancing or self._moves.in_flight:
            self._heat.interrupt()
            return
        now, servers = self._clock.seconds, range(self._servers.placement.num_servers)
        found = self._heat.look(now, [self._member("ps", index).stats for index in servers])
        if isinstance(found, HotServer):
            self._actions.append(Announce(found.what, found.remedy))
        elif found is not None and self._moves.may_begin(now) and not self._schedule.in_flight:
            self._begin_move(found)

    def _begin_move(self, planned: PlannedMove) -> None:
        placement = self._servers.placement
        self._moves.begin(planned, placement)
        self._actions.append(
            MovePartitions(self._head.generation, self._moves.version, placement, planned)
        )

    def _awaits_move(self, event: MoveReady | MoveFailed) -> PlannedMove | None:
        is_ours = event.version == self._moves.in_flight
        return self._moves.planned if is_ours and event.generation == self.generation else None

    def _take_in_move(self, event: MoveReady) -> None:
        planned = self._awaits_move(event)
        if planned is None:
            return
        self._moves.succeed()
        self._heat.end_move(self._clock.seconds, planned.partitions)
        placement = planned.applied_to(self._servers.placement, event.version)
        placement = placement.without_idle(self._servers.wanted)
        self._servers = replace(self._servers, placement=placement)
        self._records.put_servers(self._servers)
        self._counted_since_cut = True
        self._touch_head(durable=True)
        self._actions.append(
            PlacePartitions(self._head.generation, placement, planned, is_done=True)
        )

    def _take_in_failed_move(self, event: MoveFailed) -> None:
        planned = self._awaits_move(event)
        if planned is None:
            return
        self._moves.fail(self._clock.seconds)
        self._heat.end_move(self._clock.seconds, ())
        placement = self._servers.placement
        self._actions.append(
            PlacePartitions(self._head.generation, placement, planned, is_done=False)
        )
        self._actions.append(
            Announce(f"partitions did not move: {event.reason}", "it is tried again")
        )

    # Leases.

    def _choose_active(self) -> None:
        """Takes work from workers beyond the target, and gives it to those on standby."""
        active = [member for member in self._workers() if member.is_active]
        for member in sorted(active, key=lambda member: -member.index):
            is_surplus = len(active) > self._head.target_workers
            if is_surplus or not self._is_wanted(member):
                member.is_active = False
                active.remove(member)
                self._give_back_unstarted(member)
                self._touch_member(member)

    def _give_back_unstarted(self, member: MemberState) -> None:
        """What a worker has begun it may finish; the rest goes to others now."""
        for board in self._boards():
            for key in self._queue_of(member, board).unstarted():
                self._release(board, key)

    def _may_work(self, member: MemberState) -> bool:
        """Whether a worker is among those wanted now; one on standby fills a gap."""
        if not self._is_wanted(member):
            return False
        if not member.is_active:
            if sum(other.is_active for other in self._workers()) >= self._head.target_workers:
                return False
            member.is_active = True
            self._touch_member(member)
        return True

    def _open_board(self) -> TaskBoard | None:
        if not self._head.is_restored:
            return None
        if self._head.phase == "training":
            return self._ledger.board
        return self._scoring if self._head.phase in {"validating", "scoring"} else None

    def _boards(self) -> list[TaskBoard]:
        boards = (self._ledger.board, self._scoring)
        return [board for board in boards if board is not None]

    def _board_of(self, key: TaskKey) -> TaskBoard | None:
        board = self._ledger.board if key.kind == "train" else self._scoring
        return board if board is not None and key in board else None

    def _is_done(self, key: TaskKey) -> bool:
        board = self._board_of(key)
        return board is not None and board.task(key).is_done

    def _holds(self, incarnation: str, lease: HeldLease) -> bool:
        board = self._board_of(lease.key)
        if board is None:
            return False
        task = board.task(lease.key)
        return task.attempt == lease.attempt and task.holder == incarnation

    def _active_workers(self) -> tuple[str, ...]:
        board = self._ledger.board
        if board is None:
            return ()
        return board.holders

    def _queue_of(self, member: MemberState, board: TaskBoard) -> Queue:
        kind: TaskKind = "train" if board is self._ledger.board else "score"
        return Queue(board.held_by(member.incarnation), member.speed_of(kind))

    def _new_leases(self, member: MemberState, board: TaskBoard, most: int) -> list[TaskKey]:
        queue = self._queue_of(member, board)
        was_idle = not queue.tasks
        if was_idle:
            member.idle_since = self._clock.seconds
        joined = sum(
            bool(other.incarnation) and self._is_wanted(other) for other in self._workers()
        )
        num_workers = min(joined, self._head.target_workers)
        keys: list[TaskKey] = []
        while (
            board.num_todo
            and len(keys) < most
            and not holds_enough(
                queue,
                lease_seconds=self._settings.lease_seconds,
                num_todo=board.num_todo,
                num_workers=num_workers,
            )
        ):
            keys.append(self._lease(board, member, None))
            queue = self._queue_of(member, board)
        if was_idle and not keys and most > 0:
            others = [self._queue_of(other, board) for other in self._workers()]
            stolen = task_to_steal(queue.speed, others)
            if stolen is not None:
                keys.append(self._lease(board, member, stolen))
        return keys

    def _lease(self, board: TaskBoard, member: MemberState, stolen: TaskKey | None) -> TaskKey:
        self._head.attempt += 1
        now = self._clock.seconds
        if stolen is None:
            key = board.lease_next(member.incarnation, self._head.attempt, now)
        else:
            key = stolen
            board.lease_again(key, member.incarnation, self._head.attempt, now)
        self._touch_task(key, board.task(key), durable=True)
        self._touch_head(durable=True)
        return key

    def _release(self, board: TaskBoard, key: TaskKey) -> None:
        """A held task is there for all again."""
        board.release(key)
        self._look_at = None
        self._touch_task(key, board.task(key))

    def _take_in_report(self, member: MemberState, report: TaskReport, generation: int) -> None:
        board = self._board_of(report.key)
        task = None if board is None else board.task(report.key)
        if generation != self._head.generation or board is None or task is None:
            self._head.refused_reports += 1
            return
        if task.is_over:
            return
        if report.attempt != task.attempt:
            self._head.refused_reports += 1
            return
        key, holds = report.key, task.holder == member.incarnation
        nonsense = find_nonsense(report, task)
        if nonsense:
            self._head.refused_reports += 1
            if holds:
                why = f"its report is refused: {nonsense}"
                self._take_in_task_failure(member, board, key, why)
            return
        new = board.count(key, report)
        if new:
            self._take_in_progress(member, task, report, new)
        if task.is_done:
            self._finish_task(member, board, report)
        elif holds and report.failure:
            failure = report.failure[-LONGEST_FAILURE:]
            self._take_in_task_failure(member, board, key, failure)
        elif holds and report.finished:
            # It says that nothing is left, and yet something is.
            self._release(board, key)

    def _take_in_progress(
        self, member: MemberState, task: Task, report: TaskReport, new: int
    ) -> None:
        now, rows, kind = self._clock.seconds, task.rows_in(new), report.key.kind
        seconds = report.seconds - task.seconds_seen
        task.progress_at = now
        self._still_seconds = 0.0
        task.seconds_seen = max(task.seconds_seen, report.seconds)
        member.measure(kind, rows, seconds)
        member.ends_in_row = 0
        if kind == "train":
            self._counted_since_cut = True
            self._claims.add(report.key.task, new, member.incarnation)
        self._announce_recovery()
        trained = self._ledger.trained
        if kind == "score" or trained > self._head.best_trained:
            # What only repeats what was rolled back is no progress: a server that fails each time
            # at the same place would go on for ever.
            self._head.best_trained = max(self._head.best_trained, trained)
            self._head.errors_in_row = self._head.stalls_in_row = 0
            for server in range(self._servers.number):
                self._member("ps", server).ends_in_row = 0

    def _begin_recovery(self) -> None:
        if self._recovering_since is None and self._head.has_started:
            self._recovering_since = self._clock.seconds

    def _announce_recovery(self) -> None:
        """Work goes on for the first time since servers, or all workers, were lost."""
        if self._recovering_since is not None:
            seconds = self._clock.seconds - self._recovering_since
            self._recovering_since = None
            done = "its work goes on"
            if self._rows_rolled_back:
                done = f"{self._rows_rolled_back:,} records are trained again"
            self._rows_rolled_back = 0
            self._actions.append(Announce("the job has recovered", done, seconds))

    def _finish_task(self, member: MemberState, board: TaskBoard, report: TaskReport) -> None:
        task = board.task(report.key)
        rows = task.rows_in(task.full_mask & ~task.mask_at_lease)
        if rows and task.seconds_seen > 0:
            self._seconds_per_row[report.key.kind].add(task.seconds_seen / rows)
        board.settle(report.key)
        member.idle_since = self._clock.seconds
        self._touch_task(report.key, task, durable=True)

    def _take_in_task_failure(
        self, member: MemberState, board: TaskBoard, key: TaskKey, failure: str
    ) -> None:
        task = board.task(key)
        task.failures += 1
        name, most = name_of(key, task), self._settings.max_task_failures
        last_line = last_line_of(failure)
        what = f"{name} failed on {member.name} ({task.failures} of {most}): {last_line}"
        if task.failures < most:
            self._release(board, key)
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
            self._release(board, key)
            self._fail(f"{name} failed {task.failures} times, the last time: {last_line}", failure)
        self._touch_task(key, board.task(key), durable=True)

    def _check_tasks(self) -> None:
        """Looks for tasks that stand still or take too long, and for stragglers."""
        board = self._open_board()
        if board is None:
            return
        kind: TaskKind = "train" if board is self._ledger.board else "score"
        speeds = self._speeds(kind)
        still: list[tuple[float, MemberState]] = []
        for member in self._workers():
            if board.num_held_by(member.incarnation):
                self._check_slow(member, speeds)
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
            for _, task in board.held():
                task.progress_at = self._clock.seconds
            self._end_standstill(first, board, kind)

    def _check_stall(self) -> None:
        """Looks whether anything is counted at all while workers hold work.

        By then a worker that hangs was ended and its work given to others: what is left is what no
        worker can mend, such as parameter servers that refuse all of them.
        """
        board, now = self._open_board(), self._clock.seconds
        passed, self._stall_looked_at = now - self._stall_looked_at, now
        held = () if board is None else board.held()
        if not held:
            return
        self._still_seconds += passed
        key, task = held[0]
        per_row = self._seconds_per_row[key.kind].value
        patience = patience_seconds(
            None if per_row is None else per_row * task.batch_size,
            floor_seconds=2 * self._settings.task_timeout_floor_seconds,
            factor=_USUAL_TIMES_OF_STALL,
        )
        if self._still_seconds <= patience:
            return
        self._still_seconds = 0.0
        self._head.stalls_in_row += 1
        what = f"nothing was counted for {patience:.0f} s though workers hold work"
        if self._head.stalls_in_row > _MAX_STALLS:
            times = f"{self._head.stalls_in_row} times in a row without any progress"
            self._fail(f"{what}; this happened {times}")
            return
        cut = self._cut_to_restore()
        done = f"the job goes back to {f'cut {cut}' if cut else 'its beginning'}"
        self._actions.append(Announce(what, done))
        self._roll_back()

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
        if self._head.phase not in _OVER:
            self._kill(member, f"{member.name} stands still in {name_of(key, task)}: {why}")

    def _give_rest_to_others(
        self, member: MemberState, board: TaskBoard, key: TaskKey, patience: float
    ) -> None:
        self._release(board, key)
        member.idle_since = self._clock.seconds
        what = f"{name_of(key, board.task(key))} takes {member.name} longer than {patience:.0f} s"
        self._actions.append(Announce(what, "what is left of it is given to others"))

    def _has_another(self, member: MemberState) -> bool:
        return any(
            other is not member and other.incarnation and self._is_wanted(other)
            for other in self._workers()
        )

    def _speeds(self, kind: TaskKind) -> Speeds:
        return Speeds(
            {
                worker.index: speed
                for worker in self._workers()
                if worker.incarnation and (speed := worker.speed_of(kind)) is not None
            }
        )

    def _check_slow(self, member: MemberState, speeds: Speeds) -> None:
        if not speeds.is_straggler(member.index, fraction=_KEEPS_UP):
            member.behind_since, member.is_slow = None, False
            return
        if not speeds.is_straggler(member.index):
            return
        if member.behind_since is None:
            # The first batches of a process, while others start, are no measure.
            member.behind_since = self._clock.seconds
        if member.is_slow or self._clock.seconds - member.behind_since < _BEHIND_SECONDS:
            return
        member.is_slow = True
        self._actions.append(
            Announce(
                f"{member.name} is slow: {speeds.of(member.index) or 0.0:,.0f} records/s, less "
                "than half of the others",
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
        self._end_storage_wait()
        self._claims.end_cut()
        self._schedule.succeed(self._clock.seconds)
        self._head.chain_intact = True
        self._cuts[record.cut] = record
        self._records.put_cut(record)
        if self._pending_ends_epoch:
            self._ledger.epoch_cuts[self._ledger.epoch - 1] = record.cut
        self._compact_ledger()
        self._drop_cuts()
        # One that was begun before the epoch was over is not the cut at its end.
        if self._head.phase == "cutting" and self._pending_ends_epoch:
            self._go_on()

    def _take_in_failed_cut(self, event: CutFailed) -> None:
        if self._pending_cut is None or self._pending_cut.cut != event.cut:
            return
        self._pending_cut = None
        self._schedule.fail(self._clock.seconds)
        self._counted_since_cut = True
        now = self._clock.seconds
        if event.of_storage:
            self._storage.fail(now, event.reason)
        if not event.of_storage or self._storage.is_new:
            self._actions.append(
                Announce(f"cut {event.cut} failed: {event.reason}", "it is tried again")
            )
        if self._head.phase != "cutting":
            return
        if self._storage.is_over(now):
            self._fail_for_storage("what was trained since is trained again then")
        elif not self._storage.reason and self._schedule.failures_in_row >= _MAX_CUT_FAILURES:
            self._fail(f"no cut can be taken at the end of an epoch: {event.reason}")

    def _take_in_contradicted_cut(self, event: CutContradicted) -> None:
        """A model that holds less than is counted is of no use: back to the last cut."""
        if self._pending_cut is None or self._pending_cut.cut != event.cut:
            return
        batches = sum(mask.bit_count() for _, mask in event.missing)
        what = f"{batches:,} batches were reported as trained, and no server holds them all"
        cut = max(self._cuts, default=0)
        done = f"the job goes back to {f'cut {cut}' if cut else 'its beginning'}"
        self._actions.append(Announce(what, done))
        claimants = self._claims.claimants(event.missing)
        self._roll_back()
        for worker in self._workers():
            if worker.incarnation in claimants:
                self._kill(worker, f"{worker.name} reported batches that no server holds")
        self._head.errors_in_row += 1
        if self._head.errors_in_row >= self._settings.max_start_failures:
            self._fail(f"{what}; this has happened {self._head.errors_in_row} times in a row")

    def _take_in_damaged_cut(self, event: CutDamaged) -> None:
        if event.cut not in self._cuts:
            return
        what = f"cut {event.cut} is damaged: {event.reason}"
        self._actions.append(Announce(what, f"it counts no more; {_KEPT_FILES}"))
        if len(self._cuts) > 1:
            # The last one stays known: a restore of it fails, where none would begin anew.
            self._forget_cut(event.cut)
        self._head.chain_intact = False
        self._touch_head()

    def _end_storage_wait(self) -> None:
        seconds = self._storage.end(self._clock.seconds)
        if seconds is not None:
            self._actions.append(Announce("checkpoints can be read and written again", "", seconds))

    def _fail_for_storage(self, more: str) -> None:
        last = max(self._cuts, default=0)
        where = f"goes on from cut {last}" if last else "begins anew, as there is no cut yet"
        self._fail(
            f"storage could not be used for {self._settings.storage_patience_seconds:g} s: "
            f"{self._storage.reason}. Nothing that was saved is lost: once it is back, --resume "
            f"{where}; {more}"
        )

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
        self._records.drop_cut(cut)

    def _awaits_restore(self, generation: int) -> bool:
        return (
            self._restore_in_flight
            and self._head.phase == "restoring"
            and generation == self._head.generation
        )

    def _take_in_restore(self, event: RestoreDone) -> None:
        if not self._awaits_restore(event.generation):
            return
        self._restore_in_flight = False
        self._restore_failures = 0
        self._end_storage_wait()
        self._claims.forget()
        self._head.is_restored = self._head.chain_intact = True
        self._schedule.start_over(self._clock.seconds)
        self._counted_since_cut = False
        self._rows_rolled_back = 0
        if self._head.training_over:
            self._name_restored_epoch(event.cut)
        else:
            self._roll_ledger_back(event.frozen)
        self._touch_head(durable=True)
        self._head.phase = "waiting"

    def _name_restored_epoch(self, cut: int) -> None:
        """The best epoch is one whose cut is left."""
        ledger = self._ledger
        if ledger.best_epoch is None or ledger.best_cut == cut:
            return
        for epoch, of_epoch in ledger.epoch_cuts.items():
            if of_epoch == cut:
                ledger.best_epoch = epoch
                self._write_ledger()

    def _roll_ledger_back(self, frozen: Json) -> None:
        before, failures = self._ledger, {}
        repeated = self._repeated()
        if before.board is not None:
            failures = {key: task.failures for key, task in before.board.touched()}
        self._ledger = Ledger.thaw(frozen, self._settings.plan_epoch)
        again = before.rows_beyond(self._ledger)
        self._rows_rolled_back = sum(again.values())
        for epoch, rows in again.items():
            repeated[epoch] = repeated.get(epoch, 0) + rows
        self._head.repeated = repeated
        self._write_ledger()
        # Failures belong to the task, not to the model.
        board = self._ledger.board
        for key, count in failures.items():
            if count and board is not None and key in board:
                board.remember_failures(key, count)
                self._touch_task(key, board.task(key))

    def _take_in_failed_restore(self, event: RestoreFailed) -> None:
        if not self._awaits_restore(event.generation):
            return
        self._restore_in_flight = False
        what = f"cut {event.cut} cannot be restored: {event.reason}"
        match event.cause:
            case "damage":
                self._use_cut_before(event.cut, what)
            case "storage":
                self._wait_for_storage(what)
            case "outrun":
                # The ledger was lost, and an older one or none took its place.
                self._head.generation = max(self._head.generation, event.announced)
                self._touch_head(durable=True)
                self._retry_restore(what, _RESTORE_RETRY_SECONDS)
            case "server":
                self._retry_restore(what, _RESTORE_RETRY_SECONDS)
            case _:
                assert_never(event.cause)

    def _use_cut_before(self, cut: int, what: str) -> None:
        others = set(self._cuts) - {cut}
        before = self._cut_to_restore(others)
        self._restore_retry_at = self._clock.seconds
        if not before:
            whole = " of a whole epoch" if self._head.training_over else ""
            # It stays known, so that nothing begins anew unless a person says so.
            self._fail(f"no cut{whole} is left: {what}; {_KEPT_FILES}, and --overwrite begins anew")
            return
        self._forget_cut(cut)
        done = f"cut {before} is used"
        if self._head.training_over:
            # Scores of two models are no scores of one.
            self._end_scoring()
            epochs = {of: epoch for epoch, of in self._ledger.epoch_cuts.items()}
            done += f", of epoch {epochs[before] + 1}"
        self._actions.append(Announce(what, f"{done}; {_KEPT_FILES}"))

    def _wait_for_storage(self, what: str) -> None:
        now = self._clock.seconds
        self._storage.fail(now, what)
        self._restore_retry_at = now + self._storage.retry_seconds
        if self._storage.is_over(now):
            self._fail_for_storage("it is tried again then")
        elif self._storage.is_new:
            self._actions.append(Announce(what, "it is tried until storage is back"))

    def _retry_restore(self, what: str, seconds: float) -> None:
        self._restore_retry_at = self._clock.seconds + seconds
        self._restore_failures += 1
        if self._restore_failures >= _MAX_RESTORE_FAILURES:
            self._fail(what)
        else:
            self._actions.append(Announce(what, "it is tried again"))

    # Ends of epochs, and of everything.

    def _begin_scoring(self) -> None:
        final, epoch = self._head.training_over, max(0, self._ledger.epoch - 1)
        self._scoring = TaskBoard.of_splits(self._settings.splits_to_score(final=final), epoch)
        self._records.put_scoring(epoch, final=final)

    def _end_scoring(self) -> None:
        if self._scoring is not None:
            self._scoring = None
            self._records.drop_scoring()

    def _take_in_decision(self, event: EpochDecided) -> None:
        ledger = self._ledger
        # A job that was stopped, or has failed, while its decision was made does not begin again.
        is_awaited = self._is_deciding and self._head.phase == "validating"
        if not is_awaited or event.epoch != len(ledger.history):
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
        self._head.training_over = True
        self._actions.append(Announce(f"training is over: {reason}", "the best epoch is scored"))
        held = self._ledger.epoch_cuts.get(self._ledger.epoch - 1, 0)
        if held and held == self._cut_to_restore():
            self._go_on()
        else:
            self._head.generation += 1
            self._head.is_restored = False
            self._enter("restoring")

    def _take_in_stop(self) -> None:
        if self._head.phase in _OVER or self._head.phase == "stopping":
            return
        self._stops_with = self._head.next_cut
        if self._head.phase not in {"cutting", "training"}:
            # Nothing was trained since the last cut, or the servers do not hold it.
            self._counted_since_cut = False
        self._enter("stopping")

    # The ledger on disk.

    def _touch_head(self, *, durable: bool = False) -> None:
        self._records.put_head(durable=durable)

    def _touch_member(self, member: MemberState, *, durable: bool = False) -> None:
        self._records.put_member(member, durable=durable)

    def _touch_task(self, key: TaskKey, task: Task, *, durable: bool = False) -> None:
        if key.kind == "train":
            self._records.put_task(key, task, self._claims, durable=durable)
        else:
            self._records.put_score_task(key, task, durable=durable)

    def _write_ledger(self) -> None:
        self._records.put_base(self._ledger, self._claims)
        self._touch_head(durable=True)

    def _compact_ledger(self) -> None:
        """Records of single tasks are left for those that somebody is to work on."""
        board = self._ledger.board
        if board is not None:
            self._head.repeated = self._repeated()
            board.forget_repeated()
        self._write_ledger()
        for key, task in () if board is None else board.touched():
            self._touch_task(key, task)

    def _flush(self) -> list[Action]:
        if self._waiting:
            self._answer_waiting()
        actions, self._actions = self._actions, []
        transaction = self._records.take(self._head)
        return actions if transaction is None else [transaction, *actions]
