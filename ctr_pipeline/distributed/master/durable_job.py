"""The job machine with its ledger: nobody hears of a decision before it is durable.

One lock around the machine, another around what it asks for, so that the ledger has the order of
the machine: while one transaction is written, the records of the next ones gather.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from ctr_pipeline import interruption
from ctr_pipeline.distributed.coordination.codec import to_record
from ctr_pipeline.distributed.coordination.events import (
    Action,
    Announce,
    AnswerLease,
    End,
    Event,
    Fail,
    Json,
    Persist,
    Phase,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.job.status import JobStatus
from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    RegisterRequest,
)
from ctr_pipeline.distributed.coordination.news import Topic
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.master.ledger.store import (
    LedgerLostError,
    LedgerStore,
    LedgerUnavailableError,
)
from ctr_pipeline.distributed.master.recovery import EVENTS_RECORD, FENCE_RECORD
from ctr_pipeline.distributed.master.speed import SpeedMeter
from ctr_pipeline.distributed.master.status import NO_ERRORS, JobEvent, MasterErrors
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
_EVENTS_KEPT = 200

LEDGER_AGAIN_SECONDS = 0.1
"""Until a ledger that cannot be written is asked again."""


class MasterGoneError(Refusal):
    """This master is ending and answers nobody; another one will."""

    def __init__(self) -> None:
        super().__init__("master_gone", "this master is ending")


class DurableJob(ABC):
    """The job machine and its ledger; may be called by many threads.

    Args:
        job: The machine.
        store: Where its records go.
        clock: Seconds, never backwards.
        wall_clock: Unix time, seconds.
        events: Events of the masters before this one, oldest first.

    Attributes:
        closing: Set once this master ends.
    """

    def __init__(
        self,
        job: Job,
        store: LedgerStore,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        events: Sequence[JobEvent],
    ) -> None:
        self._job = job
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self.closing = threading.Event()
        self._lock = threading.RLock()
        self._turn = threading.Condition(threading.Lock())
        """Wakes those that do what was asked for; never taken while the other lock is held."""
        self._is_settling = False
        self._hung_up: deque[LaterReply] = deque()
        """Calls that have ended without their answers; of the machine they wait as yet."""
        self._unsettled: list[Action] = []
        self._asked = self._asked_durably = self._settled = 0
        self._released = threading.Event()
        self._death: Exception | None = None
        self._ended: Phase | None = None
        self._over = threading.Event()
        self._events: deque[JobEvent] = deque(events, maxlen=_EVENTS_KEPT)
        self._speed = SpeedMeter()
        self._errors = NO_ERRORS
        self._told_errors: set[str] = set()

    @abstractmethod
    def _do_soon(self, action: Action) -> None:
        """Has a thread of its own do what the machine asks for; returns at once."""

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

    def submit_unless_gone(self, event: Event) -> None:
        """The same, from a thread that has nobody to tell that this master ends."""
        try:
            self.submit(event)
        except MasterGoneError:
            _LOGGER.info("too late, this master ends: %s", type(event).__name__)

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
    def errors(self) -> MasterErrors:
        """Errors of this master's own that it went on after."""
        return self._errors

    @property
    def generation(self) -> int:
        """The job's generation."""
        with self._lock:
            return self._job.generation

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Addresses of the parameter servers that members are told of."""
        with self._lock:
            return self._job.announced_ps_addresses

    def holders(self) -> tuple[tuple[str, ...], Placement]:
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

    def is_void(self, generation: int) -> bool:
        """Whether work for a generation comes to nothing: it is over, or this master is."""
        return self.closing.is_set() or self.generation != generation

    def ps_addresses_with(self, server: int) -> tuple[str, ...]:
        """Addresses of the servers that hold something, and of this one."""
        with self._lock:
            return self._job.ps_addresses_with(server)

    def require_lock(self) -> None:
        """Makes sure that no other master is at work, with members of its own.

        Raises:
            LedgerUnavailableError: It cannot be told.
            LedgerLostError: Another master is.
        """
        self._store.require_lock()

    def fence(self, cut: int) -> None:
        """Makes sure of it by writing, before a checkpoint counts.

        Raises:
            LedgerUnavailableError: It cannot be told.
            LedgerLostError: Another master is at work.
        """
        # A real record: a store may think nothing of an empty commit.
        self._store.commit({FENCE_RECORD: {"cut": cut}}, durable=True)

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
        self.closing.set()
        self._released.set()

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
            if self._death is not None or self.closing.is_set():
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

    def stumble(self, where: str, error: Exception) -> None:
        """Takes in an error of a thread of its own: only one that lost the ledger ends a master."""
        if isinstance(error, LedgerLostError):
            self.die(error)
        if isinstance(error, MasterGoneError) or self.closing.is_set():
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
        self.closing.set()
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
            match action:
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
                case _:
                    self._do_soon(action)

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
                is_over = self.closing.wait(LEDGER_AGAIN_SECONDS) or interruption.requested()
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
