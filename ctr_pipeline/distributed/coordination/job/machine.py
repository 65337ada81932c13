"""The life of a job as a pure machine: (state, event, now) → (state, actions).

`Job` hands what happens to the part that decides on it: `members` who joins and who is lost,
`leases` and `reports` who works on what and what counts, `stalls` what takes too long, `cuts`
and `restores` what is saved and gone back to, `moves` who holds which partition. None of them reads
a clock, opens a file or calls anybody. The executor in `distributed.master` feeds the job and
performs its actions.

Whatever happens, first the state takes it in, then `epochs.advance` asks of the state, and of
nothing else, what is to be done next. So a lost event costs time and never truth. What goes into
the ledger is the difference between the state and what was written, so no decision can forget to
write, and a master that reads its ledger again goes on where the one before it died.

Time: `now` is any clock in seconds. Only differences between calls count, a step backwards counts
as none and a leap forwards as at most `JobSettings.most_clock_step_seconds`, so a suspended
machine does not find all its members dead when it wakes.
"""

from collections.abc import Mapping
from typing import Self, assert_never

from ctr_pipeline.distributed.coordination.codec import from_record
from ctr_pipeline.distributed.coordination.cuts import CutRecord
from ctr_pipeline.distributed.coordination.events import (
    Action,
    AnswerLease,
    CannotGoOn,
    CutContradicted,
    CutDamaged,
    CutFailed,
    CutTaken,
    EpochDecided,
    Event,
    Json,
    MoveFailed,
    MoveReady,
    Phase,
    ProcessesSeen,
    RestoreDone,
    RestoreFailed,
    ScaleAsked,
    ServersAsked,
    StartRefused,
    StopAsked,
    Tick,
    WaitingCall,
)
from ctr_pipeline.distributed.coordination.job import (
    cuts,
    drains,
    epochs,
    leases,
    lost_members,
    members,
    moves,
    reports,
    restores,
    stalls,
)
from ctr_pipeline.distributed.coordination.job.head import Servers
from ctr_pipeline.distributed.coordination.job.records import LedgerRecords, read_records
from ctr_pipeline.distributed.coordination.job.state import JobState
from ctr_pipeline.distributed.coordination.job.status import JobStatus, status_of
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.messages import (
    Directive,
    HeartbeatReply,
    HeartbeatRequest,
    HeldLease,
    LeaseReply,
    LeaseRequest,
    RegisterRequest,
    checksum_of,
)
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.work_sharing import WaitingLease


class Job:
    """The state of a job and everything that changes it.

    Make one with `begin`, `from_ledger`, `from_cut` or `to_score`.

    Attributes:
        state: What it decides by; only its own methods change it.
    """

    def __init__(self, settings: JobSettings, now: float) -> None:
        self.state = JobState.begin(settings, now)
        self.state.head.next_cut = settings.first_cut
        self._records = LedgerRecords(self.state)

    @classmethod
    def begin(cls, settings: JobSettings, now: float) -> Self:
        """A new job without any ledger; the first `Tick` starts its members."""
        return cls(settings, now)

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
        state = job.state
        state.head, state.ledger, state.scoring = stored.head, stored.ledger, stored.scoring
        state.head.next_cut = max(stored.head.next_cut, settings.first_cut)
        state.members, state.cuts, state.claims = stored.members, stored.cuts, stored.claims
        state.servers = stored.servers or state.servers
        job._records.continue_after(stored, state)
        # It may have counted more since its last cut; one cut too many does no harm.
        state.counted_since_cut = True
        state.stops_with = state.head.next_cut
        drains.begin_stop(state)
        if resume:
            _resume(state)
        return job

    @classmethod
    def from_cut(
        cls, settings: JobSettings, cuts: Mapping[int, Json], generation: int, now: float
    ) -> Self:
        """A job whose ledger is lost goes on from cuts: number → `TakeCut.frozen`.

        Args:
            cuts: Cuts with a sound manifest.
            generation: The highest that any manifest names.
            now: The clock.
        """
        job = cls(settings, now)
        state = job.state
        state.head.generation = generation
        for number, frozen in cuts.items():
            state.cuts[number] = from_record(CutRecord, frozen["cut"])
        if cuts:
            newest = cuts[max(cuts)]
            state.ledger = Ledger.thaw(newest, settings.plan_epoch)
            state.head.attempt = newest["attempt"]
            state.head.next_cut = max(max(cuts) + 1, settings.first_cut)
            state.head.repeated = dict(newest["repeated"])
            state.head.seconds = dict(newest["seconds"])
            state.head.best_trained = state.ledger.trained
        return job

    @classmethod
    def to_score(cls, settings: JobSettings, cut: int, frozen: Json, now: float) -> Self:
        """A job that scores the final splits with the parameters of one cut, and does no more.

        It trains nothing and takes no cut, so that it may run beside the job that took this one.

        Args:
            cut: Its number.
            frozen: `TakeCut.frozen` of it.
            now: The clock.
        """
        job = cls.from_cut(settings, {cut: frozen}, 0, now)
        ledger = job.state.ledger
        ledger.board = None
        ledger.best_epoch = max(0, ledger.epoch - 1)
        ledger.epoch_cuts = {ledger.best_epoch: cut}
        job.state.head.training_over = True
        return job

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self.state.head.phase

    @property
    def generation(self) -> int:
        """The job's generation now."""
        return self.state.head.generation

    @property
    def num_repeated(self) -> int:
        """Records executed beyond those counted."""
        return sum(self.state.repeated().values())

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Addresses of the servers that hold something, by index; empty where one is missing."""
        return self.state.ps_addresses

    @property
    def all_ps_addresses(self) -> tuple[str, ...]:
        """The same addresses, and after them those of servers that are to hold something."""
        return self.state.all_ps_addresses

    def ps_addresses_with(self, server: int) -> tuple[str, ...]:
        """All these addresses, and that of a parameter server that is about to leave."""
        return self.state.ps_addresses_with(server)

    @property
    def announced_ps_addresses(self) -> tuple[str, ...]:
        """What members are told: servers that hold nothing yet only once they are there."""
        known = list(self.state.all_ps_addresses)
        while len(known) > self.state.servers.placement.num_servers and not known[-1]:
            known.pop()
        return tuple(known)

    @property
    def placement(self) -> Placement:
        """The placement now."""
        return self.state.servers.placement

    @property
    def move_in_flight(self) -> int:
        """Version of the placement that a move is about to make; 0: none is."""
        return self.state.move_schedule.in_flight

    @property
    def cuts(self) -> tuple[int, ...]:
        """Cuts that the ledger knows, ascending."""
        return tuple(sorted(self.state.cuts))

    def status(self) -> JobStatus:
        """The job for a person or a metric, as of the last call."""
        return status_of(self.state)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes in what happened."""
        state = self.state
        state.pass_time(now)
        if not isinstance(event, ProcessesSeen):
            state.look_at = None
        match event:
            case Tick():
                lost_members.check(state)
                stalls.check_tasks(state)
                stalls.check_job(state)
                moves.cool_servers(state)
            case ProcessesSeen():
                members.see_processes(state, event.processes)
            case StartRefused():
                members.refuse_start(state, event)
            case ScaleAsked():
                members.scale(state, event)
            case CutTaken():
                cuts.take_in(state, event)
            case CutFailed():
                cuts.take_in_failure(state, event)
            case CutContradicted():
                cuts.take_in_contradiction(state, event)
            case CutDamaged():
                cuts.take_in_damage(state, event)
            case RestoreDone():
                restores.take_in(state, event)
            case RestoreFailed():
                restores.take_in_failure(state, event)
            case ServersAsked():
                moves.set_servers(state, event)
            case MoveReady():
                moves.take_in(state, event)
            case MoveFailed():
                moves.take_in_failure(state, event)
            case EpochDecided():
                epochs.take_in_decision(state, event)
            case StopAsked():
                epochs.stop(state)
            case CannotGoOn():
                state.fail(event.reason)
            case _:
                assert_never(event)
        epochs.advance(state)
        members.start_and_stop(state)
        return self._flush()

    def register(self, request: RegisterRequest, now: float) -> tuple[str, list[Action]]:
        """Takes in a member: why it is refused (empty if it is not), and actions.

        Protocol and fingerprint are the executor's to compare; here only identity counts.
        """
        state = self.state
        state.pass_time(now)
        refused = members.register(state, request)
        epochs.advance(state)
        return refused, self._flush()

    def heartbeat(
        self, request: HeartbeatRequest, now: float
    ) -> tuple[HeartbeatReply, list[Action]]:
        """Takes in progress; says what the member has to know."""
        state = self.state
        state.pass_time(now)
        member = state.registered(request.member)
        directive: Directive = "go_on"
        if member is None:
            directive = "leave" if state.is_void(request.member) else "register_again"
            # It is told nothing of others.
            reply = HeartbeatReply(directive, state.head.generation, (), request.held, None)
            return reply, self._flush()
        member.note_heard(state.now)
        member.take_in_stats(request.stats)
        for report in request.reports:
            reports.take_in(state, member, report, request.generation)
        if request.reports and state.look_at is not None:
            state.look_at.add(member.incarnation)
        drains.take_in(state, member, request)
        epochs.advance(state)
        # The report itself may have ended the job.
        if not state.is_wanted(member) or drains.may_leave(state, member):
            directive = "leave"
            member.must_leave = True
        elif member.role == "worker" and drains.is_pausing(state):
            directive = "pause"
        is_current = request.generation == state.head.generation
        # Of a task that it has just said to be done nothing is revoked.
        ended = [
            HeldLease(report.key, report.attempt) for report in request.reports if report.finished
        ]
        revoked = tuple(
            lease
            for lease in request.held
            if not is_current
            or not (
                leases.holds(state, request.member.incarnation, lease)
                or (lease in ended and state.is_done(lease.key))
            )
        )
        active: tuple[str, ...] | None = None
        if request.member.role == "ps" and state.settings.has_rounds:
            active = leases.active_workers(state)
            if checksum_of(active) == request.active_workers:
                active = None
        placement = state.servers.placement
        knows_it = request.placement in {-1, placement.version}
        reply = HeartbeatReply(
            directive,
            state.head.generation,
            self.announced_ps_addresses,
            revoked,
            active,
            placement=None if knows_it else placement,
            move=state.move_schedule.in_flight,
        )
        return reply, self._flush()

    def lease(
        self, request: LeaseRequest, now: float, call: WaitingCall | None = None
    ) -> tuple[LeaseReply | None, list[Action]]:
        """Gives a worker tasks under new attempts.

        Args:
            now: The clock.
            call: Where an answer can be sent that is not there yet; None: it is wanted at once.

        Returns:
            The answer, None if it will be an `AnswerLease`; and actions.
        """
        state = self.state
        state.pass_time(now)
        epochs.advance(state)
        member = state.registered(request.member)
        is_current = request.generation == state.head.generation
        if member is not None and is_current:
            member.note_heard(state.now)
        reply = leases.answer(state, request)
        may_wait = member is not None and is_current and request.wait_seconds > 0
        if reply.verdict != "wait" or call is None or not may_wait:
            return reply, self._flush()
        before = state.waiting.pop(request.member.incarnation, None)
        if before is not None:
            # Nobody listens there any more.
            state.actions.append(AnswerLease(before.call, reply))
        until = state.now + request.wait_seconds
        state.waiting[request.member.incarnation] = WaitingLease(request, call, until)
        return None, self._flush()

    def hang_up(self, call: WaitingCall) -> None:
        """A call that `lease` was handed has ended: whatever it waited for is for others."""
        leases.hang_up(self.state, call)

    def _flush(self) -> list[Action]:
        state = self.state
        if state.waiting:
            leases.answer_waiting(state)
        actions, state.actions = state.actions, []
        transaction = self._records.take(state)
        return actions if transaction is None else [transaction, *actions]


def _resume(state: JobState) -> None:
    """All members are gone: a stopped or failed job goes on from its last cut."""
    head, settings = state.head, state.settings
    for member in state.members.values():
        member.give_up(member.incarnation)
        member.ends_in_row = 0
    state.release_all()
    for board in state.boards():
        board.forget_failures()
    head.min_workers, head.max_workers = settings.min_workers, settings.max_workers
    head.target_workers = settings.max_workers
    state.servers = Servers(settings.first_placement(), settings.num_parameter_servers)
    head.phase, head.reason, head.traceback = "waiting", "", ""
    head.is_restored = head.has_started = False
    head.errors_in_row = head.stalls_in_row = 0
    if head.training_over and state.ledger.epoch < settings.course.epochs:
        # More epochs are allowed than before: the last one is decided on again.
        head.training_over = False
        head.final_scores = ()
    if not head.training_over:
        state.end_scoring()
    elif state.all_is_scored:
        # What comes after is made from the best cut; nobody needs members for it.
        head.phase = "finished"
    cut = state.cut_to_restore()
    done = f"it goes on from checkpoint {cut}" if cut else "it goes on from its beginning"
    if head.phase == "finished":
        done = "nothing is left to train"
    state.announce("the job is resumed", done)
