"""Feeds the job machine with what happens and does what it decides.

One lock around the machine, another around what it asks for, so that the ledger has the order of
the machine: while one transaction is written, the records of the next ones gather. Nobody is
answered before what the answer rests on is durable. Everything else, calls to launchers and
servers, files of checkpoints, is done by threads of its own and comes back as an event.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ctr_pipeline import interruption
from ctr_pipeline.distributed.coordination.codec import to_record
from ctr_pipeline.distributed.coordination.events import (
    Action,
    Announce,
    AnnouncePlacement,
    AnswerLease,
    CannotGoOn,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    End,
    EpochDecided,
    Event,
    Fail,
    Json,
    MovePartitions,
    Persist,
    Phase,
    ProcessesSeen,
    RestoreCut,
    RestoreFailed,
    StartMember,
    StartRefused,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.job.status import JobStatus
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    MemberControl,
)
from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    RegisterRequest,
)
from ctr_pipeline.distributed.coordination.news import Topic
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.master.autoscaling import Autoscaler
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.ledger.store import (
    LedgerLostError,
    LedgerStore,
    LedgerUnavailableError,
)
from ctr_pipeline.distributed.master.moves import Mover
from ctr_pipeline.distributed.master.recording import Recorder
from ctr_pipeline.distributed.master.recovery import EVENTS_RECORD, FENCE_RECORD, TIMELINE_RECORD
from ctr_pipeline.distributed.master.serial_executor import SerialExecutor
from ctr_pipeline.distributed.master.speed import SpeedMeter
from ctr_pipeline.distributed.master.status import (
    NO_CUT,
    NO_ERRORS,
    JobEvent,
    MasterErrors,
    NewestCut,
)
from ctr_pipeline.distributed.master.timeline import JobMoment, Timeline
from ctr_pipeline.distributed.master.validation import read_record
from ctr_pipeline.distributed.rpc.backoff import delays
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable, Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.errors import CtrPipelineError

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
_EVENTS_KEPT = 200
_OBSERVE_EVERY_SECONDS = 0.2
_LEDGER_AGAIN_SECONDS = 0.1
_NOTE_PROGRESS_EVERY_SECONDS = 2.0
_SCALE_EVERY_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_REPLACE_GRACE_SECONDS = 10.0
_MEMBERS_AT_ONCE = 8
"""That a launcher is asked to start or stop: in a cluster, each call takes a while."""
_MAX_DECISIONS = 5
"""An epoch whose end cannot be decided on so often fails the job."""


class MasterGoneError(Refusal):
    """This master is ending and answers nobody; another one will."""

    def __init__(self) -> None:
        super().__init__("master_gone", "this master is ending")


class JobExecutor:
    """The job machine with its surroundings; may be called by many threads.

    Args:
        job: The machine.
        store: Where its records go.
        launcher: Starts and stops members; None: people do.
        cuts: Takes and restores cuts.
        mover: Moves partitions.
        recorder: Writes metrics and events for people.
        decide_epoch: Metrics of an epoch and whether to stop.
        autoscaler: Chooses the number of workers; None: people do.
        clock: Seconds, never backwards.
        wall_clock: Unix time, seconds.
        delays: Pauses between tries, as of `backoff.delays`.
        events: Events of the masters before this one, oldest first.
        timeline: Moments that they kept, oldest first.
        newest_cut: When this master starts.
    """

    def __init__(
        self,
        job: Job,
        store: LedgerStore,
        *,
        launcher: MemberControl | None,
        cuts: CutKeeper,
        mover: Mover,
        recorder: Recorder,
        decide_epoch: Callable[[DecideEpoch], EpochDecided],
        autoscaler: Autoscaler | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        delays: Callable[..., Iterator[float]] = delays,
        events: Sequence[JobEvent] = (),
        timeline: Sequence[JobMoment] = (),
        newest_cut: NewestCut = NO_CUT,
    ) -> None:
        self._job = job
        self._store = store
        self._launcher = launcher
        self._cuts = cuts
        self._mover = mover
        self._recorder = recorder
        self._decide_epoch = decide_epoch
        self._autoscaler = autoscaler
        self._clock = clock
        self._wall_clock = wall_clock
        self._delays = delays
        self._lock = threading.RLock()
        self._turn = threading.Condition(threading.Lock())
        """Of those that do what was asked for; never taken while the other lock is held."""
        self._is_settling = False
        self._hung_up: deque[LaterReply] = deque()
        """Calls that have ended without their answers; of the machine they wait as yet."""
        self._unsettled: list[Action] = []
        self._asked = self._asked_durably = self._settled = 0
        self._closing = threading.Event()
        self._released = threading.Event()
        self._death: Exception | None = None
        self._ended: Phase | None = None
        self._over = threading.Event()
        self._events: deque[JobEvent] = deque(events, maxlen=_EVENTS_KEPT)
        self._timeline = Timeline(timeline)
        self._newest_cut = newest_cut
        self._speed = SpeedMeter()
        self._errors = NO_ERRORS
        self._told_errors: set[str] = set()
        self._progress_due = self._scaling_due = clock()
        # Changes of one member follow each other; those of others do not wait for them.
        self._member_executors = tuple(
            SerialExecutor("members", partial(self._stumble, "starting or stopping members"))
            for _ in range(_MEMBERS_AT_ONCE)
        )
        self._starting: set[StartMember] = set()
        """Starts that wait or are under way."""
        self._cut_executor = SerialExecutor("cuts", partial(self._stumble, "its checkpoints"))
        self._observer: threading.Thread | None = None
        if launcher is not None:
            self._observer = threading.Thread(
                target=self._observe, args=(launcher,), name="observer", daemon=True
            )
            self._observer.start()

    # What members and people ask.

    def register(self, request: RegisterRequest) -> str:
        """Takes in a member: why it is refused, empty if it is not."""
        return self._answer(lambda now: self._job.register(request, now))

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Takes in progress."""
        return self._answer(lambda now: self._job.heartbeat(request, now))

    def lease(self, request: LeaseRequest) -> LeaseReply | LaterReply:
        """Gives out work, once there is some if the worker waits for it."""
        call = LaterReply(self._hung_up.append)
        reply = self._answer(lambda now: self._job.lease(request, now, call))
        return call if reply is None else reply

    def submit(self, event: Event) -> None:
        """Takes in what happened."""
        self._ask(lambda now: (None, self._job.handle(event, now)))

    def tick(self) -> None:
        """Time has passed."""
        now = self._clock()
        if self._autoscaler is not None and now >= self._scaling_due:
            self._scaling_due = now + _SCALE_EVERY_SECONDS
            self._scale(self._autoscaler)
        self.submit(Tick())
        if now < self._progress_due:
            return
        self._progress_due = now + _NOTE_PROGRESS_EVERY_SECONDS
        status = self.status()
        self._note_moment(status)
        if status.phase == "training" and status.epochs and status.epochs[-1].trained:
            totals = status.epochs[-1]
            self._recorder.note_progress(
                status.step,
                train_logloss=totals.loss_sum / totals.trained,
                samples_per_second=self.samples_per_second,
            )

    def _note_moment(self, status: JobStatus) -> None:
        running = Counter(one.role for one in status.members if one.state == "running")
        moment = JobMoment(
            time=self._wall_clock(),
            workers=running["worker"],
            servers=running["ps"],
            trained=status.trained,
            samples_per_second=self.samples_per_second,
        )
        with self._lock:
            is_kept = self._timeline.note(moment)
        if is_kept:
            record = {"moments": to_record(self._timeline.moments)}
            self.note({TIMELINE_RECORD: record}, durable=False)

    def _scale(self, autoscaler: Autoscaler) -> None:
        step = autoscaler.poll(self.status())
        if step is None:
            return
        if step.scale is not None:
            number = step.scale.target_workers
            wanted = "1 worker is" if number == 1 else f"{number} workers are"
            _LOGGER.info("%s wanted: %s", wanted, step.reason)
            self.submit(step.scale)
        for worker in step.stragglers:
            what = f"worker {worker} stays far behind the others"
            self.announce(what, "it is replaced", topic="member")
            self._members_like(worker).put(partial(self._replace, worker))

    def _members_like(self, index: int) -> SerialExecutor:
        """Changes the members of an index."""
        return self._member_executors[index % _MEMBERS_AT_ONCE]

    def _replace(self, worker: int) -> None:
        members = self.status().members
        name = next(
            (one.incarnation for one in members if (one.role, one.index) == ("worker", worker)), ""
        )
        self._change_member(StopMember("worker", worker, name, _REPLACE_GRACE_SECONDS))

    # What is told.

    def status(self) -> JobStatus:
        """The job now."""
        with self._lock:
            status = self._job.status()
            self._speed.note(self._clock(), status.trained)
            return status

    @property
    def samples_per_second(self) -> float:
        """Records counted, over the last seconds."""
        with self._lock:
            return self._speed.per_second

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """The last ones, oldest first."""
        with self._lock:
            return tuple(self._events)

    @property
    def timeline(self) -> tuple[JobMoment, ...]:
        """Members, records and speed so far."""
        return self._timeline.moments

    @property
    def errors(self) -> MasterErrors:
        """Errors of this master's own that it went on after."""
        return self._errors

    @property
    def newest_cut(self) -> NewestCut:
        """That can be restored."""
        return self._newest_cut

    @property
    def generation(self) -> int:
        """Of the job."""
        with self._lock:
            return self._job.generation

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Of the parameter servers that members are told of."""
        with self._lock:
            return self._job.announced_ps_addresses

    def _holders(self) -> tuple[tuple[str, ...], Placement]:
        """Addresses of the servers that hold something, and which holds what."""
        with self._lock:
            return self._job.ps_addresses, self._job.placement

    def announce(
        self,
        what: str,
        done: str,
        recovery_seconds: float | None = None,
        *,
        topic: Topic = "job",
    ) -> None:
        """Adds a line to the event log."""
        self._ask(lambda _: (None, [Announce(what, done, recovery_seconds, topic)]))

    def note(self, records: Mapping[str, Json | None], *, durable: bool) -> None:
        """Puts records that the machine does not know."""
        self._ask(lambda _: (None, [Persist(records, durable)]))

    # Its end.

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the job, or of this master; whether it has come."""
        return self._over.wait(seconds)

    @property
    def ended(self) -> Phase | None:
        """How the job ended; None while it has not."""
        return self._ended

    @property
    def death(self) -> Exception | None:
        """Why this master cannot go on; None while it can."""
        return self._death

    def release(self) -> None:
        """Lets go of callers that wait for a master that can answer; its server is stopped."""
        self._closing.set()
        self._released.set()

    def close(self) -> None:
        """Ends its threads; waits for what they are doing, but not for ever."""
        self.release()
        for executor in self._member_executors:
            executor.close(_CLOSE_SECONDS)
        self._cut_executor.close(_CLOSE_SECONDS)
        if self._observer is not None:
            self._observer.join(_CLOSE_SECONDS)

    def _answer(self, question: Callable[[float], tuple[T, list[Action]]]) -> T:
        """The answer to a member; from a master that ends it hears nothing, as if it were gone."""
        try:
            return self._ask(question)
        except MasterGoneError:
            self._released.wait()
            raise

    def _ask(self, question: Callable[[float], tuple[T, list[Action]]]) -> T:
        """Asks the machine and does what it says before the answer is given.

        Raises:
            MasterGoneError: This master ends; `death` may say why.
        """
        with self._lock:
            if self._death is not None or self._closing.is_set():
                raise MasterGoneError
            try:
                self._until_available(self._store.require_lock)
                while self._hung_up:
                    self._job.hang_up(self._hung_up.popleft())
                answer, actions = question(self._clock())
            except Exception as error:  # noqa: BLE001  the machine is in an unknown state
                self.die(error)
                raise MasterGoneError from None
            if actions:
                self._asked += 1
                self._unsettled += actions
                if any(isinstance(action, Persist) and action.durable for action in actions):
                    self._asked_durably = self._asked
            # What is told may rest on what others have asked.
            number = self._asked if actions else self._asked_durably
        self._settle(number)
        return answer

    def _settle(self, number: int) -> None:
        """Does what all questions up to one have asked for, if nobody has done it yet.

        Whoever comes first writes the records of all that wait, in one transaction.
        """
        if self._settled >= number:
            return
        with self._turn:
            # Woken together when it is done: a lock would pass from one of them to the next, and
            # each would wait for the interpreter's lock in its turn.
            self._turn.wait_for(lambda: self._settled >= number or not self._is_settling)
            if self._settled >= number:
                return
            if self._death is not None:
                raise MasterGoneError
            self._is_settling = True
        settled = self._settled
        try:
            with self._lock:
                actions, self._unsettled = self._unsettled, []
                last = self._asked
            self._perform(actions)
            settled = last
        except Exception as error:  # noqa: BLE001  what of it was done is unknown
            self.die(error)
            raise MasterGoneError from None
        finally:
            with self._turn:
                self._settled, self._is_settling = settled, False
                self._turn.notify_all()

    def _stumble(self, where: str, error: Exception) -> None:
        """Takes in an error of a thread of its own: only one that lost the ledger ends a master."""
        if isinstance(error, LedgerLostError):
            self.die(error)
        if isinstance(error, MasterGoneError) or self._closing.is_set():
            return
        _LOGGER.error("the master goes on after an error in %s", where, exc_info=error)
        words = f"{where}: {type(error).__name__}: {error}"
        what = f"the master had an error in {words}"
        with self._lock:
            self._errors = MasterErrors(self._errors.count + 1, words)
            is_new = what not in self._told_errors and len(self._told_errors) < _EVENTS_KEPT
            self._told_errors.add(what)
        if is_new:
            with suppress(MasterGoneError):
                self.announce(what, "it goes on and tries again")

    def die(self, error: Exception) -> None:
        """Ends the master with an error; the first one counts."""
        if self._death is None:
            self._death = error
        self._closing.set()
        self._over.set()

    # Actions, in the order of the machine.

    def _perform(self, actions: Sequence[Action]) -> None:
        records: dict[str, Json | None] = {}
        transactions = [action for action in actions if isinstance(action, Persist)]
        for transaction in transactions:
            records.update(transaction.records)
        if transactions:
            self._commit(records, durable=any(action.durable for action in transactions))
        for action in actions:
            self._perform_one(action)

    def _perform_one(self, action: Action) -> None:
        match action:
            case StartMember() | StopMember():
                self._change_soon(action)
            case TakeCut():
                self._cut_executor.put(lambda: self._take_cut(action))
            case RestoreCut():
                self._cut_executor.put(lambda: self._restore_cut(action))
            case MovePartitions():
                self._cut_executor.put(lambda: self._move_partitions(action))
            case AnnouncePlacement():
                self._cut_executor.put(lambda: self._announce_placement(action))
            case DropCuts(keep):
                self._cut_executor.put(lambda: self._drop_cuts(keep))
            case DecideEpoch():
                self._cut_executor.put(lambda: self._end_epoch(action))
            case AnswerLease(call, reply):
                call.give(reply)
            case Announce():
                self._announce(action)
            case Fail(reason, traceback):
                self._announce(Announce(f"the job failed: {reason}", "members leave"))
                if traceback:
                    _LOGGER.error("last output of the member:\n%s", traceback)
            case End(phase):
                self._ended = phase
                self._over.set()

    def _commit(self, records: Mapping[str, Json | None], *, durable: bool) -> None:
        self._until_available(lambda: self._store.commit(records, durable=durable))

    def _until_available(self, call: Callable[[], None]) -> None:
        """Asks the ledger until it answers; nobody else is answered before."""
        try:
            call()
        except LedgerUnavailableError as error:
            _LOGGER.warning("the ledger cannot be written, so calls are not answered: %s", error)
        else:
            return
        since = self._clock()
        with self._lock:
            while True:
                is_over = self._closing.wait(_LEDGER_AGAIN_SECONDS) or interruption.requested()
                try:
                    call()
                except LedgerUnavailableError:
                    if is_over:
                        raise
                else:
                    break
        seconds = self._clock() - since
        self._announce(Announce("the ledger could not be written", "the job paused", seconds))

    def _announce(self, told: Announce) -> None:
        seconds = told.recovery_seconds
        took = "" if seconds is None else f" ({seconds:.1f} s)"
        _LOGGER.info("%s%s%s", told.what, f": {told.done}" if told.done else "", took)
        with self._lock:
            event = JobEvent(
                self._wall_clock(),
                told.what,
                told.done,
                seconds,
                told.topic,
                is_disruption=told.is_disruption,
                repeated=self._job.num_repeated,
            )
            self._events.append(event)
            kept = {"events": to_record(self._events)}
        self._commit({EVENTS_RECORD: kept}, durable=False)

    def _change_soon(self, action: StartMember | StopMember) -> None:
        # A start that waits behind hundreds is asked for again meanwhile.
        if action in self._starting:
            return
        if isinstance(action, StartMember):
            self._starting.add(action)

        def change() -> None:
            try:
                self._change_member(action)
            finally:
                if isinstance(action, StartMember):
                    self._starting.discard(action)

        self._members_like(action.index).put(change)

    # Actions in their executors; the lock is not held.

    def _change_member(self, action: StartMember | StopMember) -> None:
        launcher = self._launcher
        if launcher is None:
            self._log_action(action)
            return
        pauses = self._delays(0.1, 2.0, 2.0, seed=action.index)
        while not self._closing.is_set():
            try:
                # Another master may be at work, with members of its own.
                self._store.require_lock()
                if isinstance(action, StartMember):
                    launcher.start(action.role, action.index)
                else:
                    launcher.stop(
                        action.role,
                        action.index,
                        action.incarnation,
                        grace_seconds=action.grace_seconds,
                    )
            except LedgerUnavailableError:
                self._closing.wait(_LEDGER_AGAIN_SECONDS)
            except PeerUnavailable as error:
                _LOGGER.warning("the launcher does not answer: %s", error)
                self._closing.wait(next(pauses))
            except (LauncherBusyError, CannotLaunchError) as error:
                if isinstance(action, StopMember):
                    # It is asked for again.
                    _LOGGER.warning("%s %d cannot be ended: %s", action.role, action.index, error)
                    return
                is_final = isinstance(error, CannotLaunchError)
                _LOGGER.warning("%s %d cannot be started: %s", action.role, action.index, error)
                self._submit_unless_gone(
                    StartRefused(action.role, action.index, str(error), is_final)
                )
                return
            except LedgerLostError:
                raise
            except Exception as error:
                if isinstance(action, StartMember):
                    self._submit_unless_gone(
                        StartRefused(action.role, action.index, str(error), is_final=False)
                    )
                raise
            else:
                return

    def _move_partitions(self, action: MovePartitions) -> None:
        outcome = self._mover.move(
            action,
            self._ps_addresses_with(action.planned.source),
            abandoned=lambda: self._is_void(action.generation),
        )
        self._submit_unless_gone(outcome)

    def _announce_placement(self, action: AnnouncePlacement) -> None:
        held_seconds = self._mover.place(
            action,
            self._ps_addresses_with(action.planned.source),
            abandoned=lambda: self._is_void(action.generation),
        )
        planned = action.planned
        if action.is_done and not self._closing.is_set():
            what = f"{len(planned.partitions)} partitions"
            what += " and the dense parameters" if planned.takes_dense else ""
            self.announce(
                f"{what} moved from parameter server {planned.source} to {planned.target}: "
                f"{planned.reason}",
                ""
                if held_seconds is None
                else f"updates of them were held for {held_seconds:.3f} s at most",
            )

    def _ps_addresses_with(self, server: int) -> tuple[str, ...]:
        with self._lock:
            return self._job.ps_addresses_with(server)

    def _log_action(self, action: StartMember | StopMember) -> None:
        verb = "start" if isinstance(action, StartMember) else "stop"
        _LOGGER.warning("there is no launcher: please %s %s %d", verb, action.role, action.index)

    def _take_cut(self, action: TakeCut) -> None:
        try:
            outcome = self._cuts.take(
                action,
                *self._holders(),
                abandoned=lambda: self._is_void(action.generation),
                # A real record: a store may think nothing of an empty commit.
                fence=lambda: self._store.commit({FENCE_RECORD: {"cut": action.cut}}, durable=True),
            )
        except Exception as error:
            self._submit_unless_gone(CutFailed(action.cut, f"{type(error).__name__}: {error}"))
            raise
        if isinstance(outcome, CutTaken):
            self._newest_cut = NewestCut(action.cut, action.step, self._wall_clock())
        self._submit_unless_gone(outcome)

    def _drop_cuts(self, keep: tuple[int, ...]) -> None:
        for damage in self._cuts.keep_only(keep):
            self._submit_unless_gone(damage)

    def _restore_cut(self, action: RestoreCut) -> None:
        try:
            outcome, restored = self._cuts.restore(
                action, *self._holders(), abandoned=lambda: self._is_void(action.generation)
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._submit_unless_gone(RestoreFailed(action.generation, action.cut, reason, "server"))
            raise
        self._submit_unless_gone(outcome)
        if restored is None:
            return
        # What the machine made of it: the best cut at the end takes nothing back.
        status = self.status()
        if status.last_cut == restored.cut:
            self._newest_cut = restored
        self._recorder.roll_back(status.step, [read_record(line) for line in status.history])

    def _end_epoch(self, action: DecideEpoch) -> None:
        self._submit_unless_gone(self._decide(action))

    def _decide(self, action: DecideEpoch) -> EpochDecided | CannotGoOn:
        pauses = self._delays(0.1, 4.0, 10.0, seed=0)
        attempts = 0
        while True:
            try:
                outcome = self._decide_epoch(action)
                history = [read_record(line) for line in (*action.history, outcome.record)]
                self._recorder.end_epoch(history)
            except CtrPipelineError as error:
                return CannotGoOn(str(error))
            except Exception as error:  # noqa: BLE001  of a disk that is away, for example
                attempts += 1
                self._stumble("the end of an epoch", error)
                if attempts >= _MAX_DECISIONS or self._closing.wait(next(pauses)):
                    return CannotGoOn(f"the end of an epoch cannot be noted: {error}")
            else:
                return outcome

    def _submit_unless_gone(self, event: Event) -> None:
        try:
            self.submit(event)
        except MasterGoneError:
            _LOGGER.info("too late, this master ends: %s", type(event).__name__)

    def _is_void(self, generation: int) -> bool:
        return self._closing.is_set() or self.generation != generation

    def _observe(self, launcher: MemberControl) -> None:
        is_silent, pauses, pause = False, self._observe_pauses(), _OBSERVE_EVERY_SECONDS
        while not self._closing.wait(pause):
            try:
                processes = launcher.observe()
            except PeerUnavailable as error:
                if not is_silent:
                    _LOGGER.warning("the launcher does not answer: %s", error)
                is_silent = True
            except Exception as error:  # noqa: BLE001  its next answer may be a better one
                self._stumble("watching processes", error)
                pause = next(pauses)
            else:
                is_silent, pauses, pause = False, self._observe_pauses(), _OBSERVE_EVERY_SECONDS
                self._submit_unless_gone(ProcessesSeen(processes))

    def _observe_pauses(self) -> Iterator[float]:
        return self._delays(_OBSERVE_EVERY_SECONDS, 2.0, 5.0, seed=0)
