"""A worker's talk with the master: registration, heartbeats with progress, leases.

It never gives up: whatever happens to the master, the worker trains on what it holds and asks
again, with pauses. Only three things end it: the master says that nothing is left, the master says
to leave, or the master refuses this worker for good.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeasedTask,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterReply,
    RegisterRequest,
    ScoreSummary,
)
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION, JobSpec
from ctr_pipeline.distributed.rpc.backoff import MasterAbsence
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.worker.leases import LeaseBook, Reports
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_DEADLINE_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 0.2
_LEASE_WAIT_SECONDS = 2.5
"""For so long the master may keep a request for tasks; it is not to take for lost what waits."""
_LONGEST_PAUSE_SECONDS = 2.0
_POLL_SECONDS = 0.2
"""A signal handler can wake nobody."""
_FEWEST_TASKS = 2
"""One to work on, one to read ahead."""
_MOST_TASKS = 16

T = TypeVar("T")


T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """The answer to a message that is under way; see `rpc.client.PendingReply`."""

    def result(self) -> T_co:
        """Waits for it."""

    def done(self) -> bool:
        """Whether it is there."""

    def cancel(self) -> None:
        """Nobody wants it any more."""


class MasterLink(Protocol):
    """One connection to the master."""

    def call(self, method: str, message: object, reply: type[T], *, deadline_seconds: float) -> T:
        """Sends a message and waits for the answer."""

    def start(
        self,
        method: str,
        message: object,
        reply: type[T],
        *,
        deadline_seconds: float,
        on_done: Callable[[], None],
    ) -> Pending[T]:
        """Sends a message; `on_done` is called when its answer is there."""

    def close(self) -> None:
        """Ends the connection."""


@dataclass(frozen=True)
class Route:
    """Where the parameter servers are.

    Attributes:
        addresses: By index; empty where one is not there.
    """

    generation: int
    addresses: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all of them are there."""
        return bool(self.addresses) and all(self.addresses)


class WorkerSession:
    """A worker's side of the talk; `turn` does one thing of it, the thread turns for ever.

    Args:
        config_fingerprint: Fingerprint of the config that we were started with.
        metrics_address: Address of our metrics; empty if there are none.
        connect: Opens a connection to wherever the master is now.
        stats: The figures that heartbeats report.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        *,
        member: Member,
        config_fingerprint: str,
        metrics_address: str,
        connect: Callable[[], MasterLink],
        stats: Callable[[], MemberStats],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._member = member
        self._config_fingerprint = config_fingerprint
        self._metrics_address = metrics_address
        self._connect = connect
        self._stats = stats
        self._clock = clock
        self._changed = threading.Condition()
        self._link: MasterLink | None = None
        self._book = LeaseBook()
        self._spec: JobSpec | None = None
        self._route = Route(0, ())
        self._listener: Callable[[Route], None] = lambda _: None
        self._registered = self._was_answered = False
        self._leaving = False
        self._pause_asked = False
        """The master says so."""
        self._paused = False
        """The loop has stopped; no acknowledged heartbeat has told the master."""
        self._error: CtrPipelineError | None = None
        self._heartbeat_seconds = self._news_seconds = _ASK_AGAIN_SECONDS
        self._work_ahead_seconds = 5.0
        self._heartbeat_at = 0.0
        """When the last one was sent."""
        self._hurry = False
        """The next one is not to wait."""
        self._lease_at = 0.0
        """When to ask for tasks."""
        self._asked: Pending[LeaseReply] | None = None
        """The request for tasks that the master has not answered yet."""
        self._num_asked = 0
        self._retry_at = 0.0
        self._absence = MasterAbsence(
            member,
            "training goes on",
            longest_pause_seconds=_LONGEST_PAUSE_SECONDS,
            clock=clock,
        )
        self._stop_asked = False
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
        self._thread.join()
        self._hang_up()

    @property
    def incarnation(self) -> str:
        """Our name."""
        return self._member.incarnation

    def leave(self) -> None:
        """Takes no more tasks; safe to call from a signal handler."""
        # No lock: the interrupted thread may hold it, and everybody polls.
        self._leaving = True

    # What the loop asks.

    def wait_registered(self) -> JobSpec | None:
        """The job, once the master has taken us in; None if we are to leave before that.

        Raises:
            CtrPipelineError: The master refuses us.
        """
        with self._changed:
            self._wait_until(lambda: self._spec is not None)
            return None if self._leaving else self._spec

    def wait_route(self, generation: int) -> Route | None:
        """The parameter servers, once all are there in at least this generation; None to leave.

        Raises:
            CtrPipelineError: The master refuses us.
        """
        with self._changed:
            self._wait_until(
                lambda: self._route.is_complete and self._route.generation >= generation
            )
            return None if self._leaving else self._route

    def follow_route(self, listener: Callable[[Route], None]) -> None:
        """Has `listener` told of the parameter servers, now and whenever they change.

        It is called by any thread and must not call back.
        """
        with self._changed:
            self._listener = listener
            listener(self._route)

    def wait_task(self, seconds: float) -> LeasedTask | None:
        """The next task; None if none came in time or none will come."""
        with self._changed:
            task = self._book.take()
            if task is None and not self.is_over:
                self._changed.wait(seconds)
                task = self._book.take()
            return task

    @property
    def is_over(self) -> bool:
        """Whether to stop working: told to leave, nothing left for ever, or refused."""
        return self._leaving or self._error is not None or self._stop_asked

    @property
    def is_pausing(self) -> bool:
        """Whether to begin no batch for now, and call `pause` once none is under way."""
        return self._pause_asked or self._paused

    def pause(self, seconds: float) -> None:
        """Hands back all leases, as nothing is under way, and waits a while for news."""
        with self._changed:
            if not self._paused and self._pause_asked:
                self._paused = self._hurry = True
                self._changed.notify_all()
            self._changed.wait(seconds)

    @property
    def route(self) -> Route:
        """The parameter servers as far as we know."""
        return self._route

    def holds(self, task: LeasedTask) -> bool:
        """Whether a task is still ours."""
        with self._changed:
            return self._book.holds(task)

    def raise_refusal(self) -> None:
        """Raises what the master refused us for, if it did.

        Raises:
            CtrPipelineError: It did.
        """
        with self._changed:
            self._raise_error()

    # What the loop tells.

    def mark_batch(
        self,
        task: LeasedTask,
        batch: int,
        *,
        loss_sum: float,
        repeated: bool,
        finished: bool,
        seconds: float,
    ) -> None:
        """Every parameter server has acknowledged a batch; see `LeaseBook.mark_batch`."""
        with self._changed:
            self._book.mark_batch(
                task,
                batch,
                loss_sum=loss_sum,
                repeated=repeated,
                finished=finished,
                seconds=seconds,
            )
            if finished:
                self._changed.notify_all()

    def finish_empty(self, task: LeasedTask) -> None:
        """All of a task was done before it was leased."""
        with self._changed:
            self._book.finish_empty(task)
            self._changed.notify_all()

    def finish_scores(self, task: LeasedTask, scores: ScoreSummary, seconds: float) -> None:
        """A score task is done, and its file is in its place."""
        with self._changed:
            self._book.finish_scores(task, scores, seconds)
            self._changed.notify_all()

    def fail(self, task: LeasedTask, reason: str, *, is_final: bool = False) -> None:
        """A task cannot be done; if that is final, by nobody."""
        with self._changed:
            self._book.fail(task, reason, is_final=is_final)
            self._changed.notify_all()

    def lose(self, task: LeasedTask) -> None:
        """A parameter server has seen a newer attempt of a task."""
        with self._changed:
            self._book.revoke(held for held in self._book.held() if held.key == task.key)
            self._changed.notify_all()

    def rolled_back(self, generation: int) -> None:
        """A parameter server is in a newer generation: leases are void."""
        with self._changed:
            self._move_to(Route(generation, ()))
            self._hurry = True
            self._changed.notify_all()

    def ask_again(self) -> None:
        """A parameter server does not answer: the master may know more."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until the master knows all that there is to report; False if it took too long."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not self._book.has_news or self._error is not None, seconds
            )

    # What the thread does.

    def turn(self) -> float:
        """Does the next thing that is due.

        Returns:
            Seconds until there is something to do again.
        """
        now = self._clock()
        due, action = self._next()
        due = max(due, self._retry_at)
        if now < due:
            return due - now
        try:
            action()
        except PeerUnavailable as error:
            self._pause(str(error))
        except CallRefused as error:
            if not error.may_pass_for(answered_before=self._was_answered):
                raise
            self._pause(str(error))
        return 0.0

    def _run(self) -> None:
        try:
            while not self._stop_asked:
                seconds = self.turn()
                with self._changed:
                    # Whatever happened since may be due sooner.
                    if seconds > 0 and not self._stop_asked:
                        due = max(self._next()[0], self._retry_at)
                        self._changed.wait(min(seconds, max(due - self._clock(), 0.0)))
        except CtrPipelineError as error:
            _LOGGER.error("%s", error)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> tuple[float, Callable[[], None]]:
        """What is to be done next, and when."""
        with self._changed:
            if not self._registered:
                return self._retry_at, self._register
            is_unwanted = self._leaving or self.is_pausing
            if self._asked is not None and (is_unwanted or self._asked.done()):
                return 0.0, self._take_tasks
            if self._hurry or self._book.has_endings:
                return self._heartbeat_at, self._heartbeat
            pause = self._heartbeat_seconds
            if self._book.has_news:
                pause = min(pause, self._news_seconds)
            heartbeat_at = self._heartbeat_at + pause
            if self._asked is None and self._num_wanted() and self._lease_at < heartbeat_at:
                return self._lease_at, self._lease
            return heartbeat_at, self._heartbeat

    def _num_wanted(self) -> int:
        """How many tasks more we would hold."""
        if self._leaving or self.is_pausing:
            return 0
        with self._changed:
            seconds = self._book.task_seconds
            wanted = _FEWEST_TASKS
            if seconds > 0:
                wanted = max(wanted, 1 + int(self._work_ahead_seconds / seconds))
            return max(0, min(wanted, _MOST_TASKS) - self._book.num_open)

    def _register(self) -> None:
        request = RegisterRequest(
            member=self._member,
            pid=os.getpid(),
            host=socket.gethostname(),
            address="",
            metrics_address=self._metrics_address,
            protocol=PROTOCOL_VERSION,
            config_fingerprint=self._config_fingerprint,
        )
        reply = self._call("Register", request, RegisterReply)
        if reply.refused:
            raise CtrPipelineError(f"the master refuses this worker: {reply.refused}")
        with self._changed:
            self._registered = True
            self._spec = reply.spec
            self._heartbeat_seconds = reply.heartbeat_seconds
            self._work_ahead_seconds = reply.spec.supervision.work_ahead_seconds
            self._news_seconds = reply.news_seconds
            self._move_to(Route(reply.generation, reply.ps_addresses))
            self._lease_at = 0.0
            self._heartbeat_at = self._clock()
            self._changed.notify_all()
        _LOGGER.info("Registered, generation %d", reply.generation)

    def _heartbeat(self) -> None:
        with self._changed:
            reports: Reports = self._book.compose()
            request = HeartbeatRequest(
                member=self._member,
                generation=self._route.generation,
                reports=reports.reports,
                stats=self._stats(),
                held=self._book.held(),
                paused=self._paused,
            )
            self._heartbeat_at = self._clock()
            self._hurry = False
        reply = self._call("Heartbeat", request, HeartbeatReply)
        with self._changed:
            if reply.directive == "register_again":
                _LOGGER.warning("The master does not know this worker: its leases are void")
                self._registered = self._pause_asked = self._paused = False
                self._book.clear()
                self._ask_no_more()
            else:
                self._book.acknowledge(reports)
                self._take_pause(reply, told=request.paused)
                # What has just been reported as done is not ours any more either.
                lost = set(reply.revoked) & set(self._book.held())
                self._book.revoke(lost)
                if lost:
                    _LOGGER.warning("Leases revoked: %s", ", ".join(map(str, lost)))
                self._move_to(Route(reply.generation, reply.ps_addresses))
                if reply.directive == "leave" and not self._leaving:
                    _LOGGER.info("The master says to leave")
                    self._leaving = True
            self._changed.notify_all()

    def _take_pause(self, reply: HeartbeatReply, *, told: bool) -> None:
        """Takes in whether to pause; a master that was told that we do has freed what we held."""
        if reply.directive == "pause" and not self._pause_asked:
            _LOGGER.info("Pauses, as the master says: a checkpoint is to hold all that is trained")
        self._pause_asked = reply.directive == "pause"
        if told:
            self._book.clear()
            self._paused = self._pause_asked

    def _lease(self) -> None:
        wanted = self._num_wanted()
        with self._changed:
            request = LeaseRequest(
                member=self._member,
                generation=self._route.generation,
                num_tasks=wanted,
                held=self._book.held(),
                wait_seconds=_LEASE_WAIT_SECONDS,
            )
        self._num_asked = wanted
        self._asked = self._connected().start(
            "Lease", request, LeaseReply, deadline_seconds=_DEADLINE_SECONDS, on_done=self._wake
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _ask_no_more(self) -> None:
        """What the master may be about to give is of no use; it hears of that."""
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def _take_tasks(self) -> None:
        asked = self._asked
        if asked is None or self._leaving or self.is_pausing:
            self._ask_no_more()
            return
        self._asked = None
        reply = asked.result()
        self._back()
        with self._changed:
            if reply.generation < self._route.generation:
                # The master has yet to learn what a parameter server told us.
                self._lease_at = self._clock() + _ASK_AGAIN_SECONDS
                return
            self._move_to(Route(reply.generation, ()))
            if reply.verdict == "tasks":
                # What it could not give now it may give later.
                if self._book.add(reply.tasks) < self._num_asked:
                    self._lease_at = self._clock() + max(reply.wait_seconds, _ASK_AGAIN_SECONDS)
            elif reply.verdict == "wait":
                self._lease_at = self._clock() + max(reply.wait_seconds, 0.01)
            else:
                is_end = reply.verdict == "end"
                _LOGGER.info("The master says %s", "that nothing is left" if is_end else "to leave")
                self._leaving = True
            self._changed.notify_all()

    def _move_to(self, route: Route) -> None:
        """Takes in what a reply says of the parameter servers; a rollback voids all leases."""
        before = self._route
        if route.generation < before.generation:
            return
        if route.generation > before.generation:
            if self._route.generation:
                _LOGGER.warning(
                    "Rolled back: generation %d replaces %d; leases are void",
                    route.generation,
                    self._route.generation,
                )
            self._book.clear()
            self._lease_at = 0.0
            self._route = route
        elif route.addresses:
            self._route = route
        if self._route != before:
            self._listener(self._route)

    def _call(self, method: str, message: object, reply: type[T]) -> T:
        answer = self._connected().call(method, message, reply, deadline_seconds=_DEADLINE_SECONDS)
        self._back()
        return answer

    def _connected(self) -> MasterLink:
        if self._link is None:
            self._link = self._connect()
        return self._link

    def _pause(self, reason: str) -> None:
        # It may come back at another address.
        self._hang_up()
        self._retry_at = self._clock() + self._absence.begin(reason)

    def _back(self) -> None:
        self._was_answered = True
        self._absence.end()

    def _hang_up(self) -> None:
        self._ask_no_more()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _wait_until(self, happened: Callable[[], bool]) -> None:
        """Waits, at most until we are to leave; raises what we were refused for."""
        while not (happened() or self.is_over):
            self._changed.wait(_POLL_SECONDS)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
