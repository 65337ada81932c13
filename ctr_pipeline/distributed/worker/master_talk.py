"""A worker's talk with the master: registration, heartbeats with progress, leases.

It never gives up: whatever happens to the master, the worker trains on what it holds and asks
again, with pauses. Only three things end it: the master says that nothing is left, the master says
to leave, or the master refuses this worker for good.
"""

import logging
import threading
import time
from collections.abc import Callable

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
)
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.rpc.master_calls import MasterCalls, MasterLink, Pending
from ctr_pipeline.distributed.worker.leases import Reports
from ctr_pipeline.distributed.worker.session_state import Route, SessionState
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS = 0.2
_LEASE_WAIT_SECONDS = 2.5
"""Time for which the master may keep a request for tasks; what waits is not lost to it."""
_LONGEST_PAUSE_SECONDS = 2.0
_FEWEST_TASKS = 2
"""One to work on, one to read ahead."""
_MOST_TASKS = 64


class MasterTalk:
    """The worker's side of the talk; `turn` does one thing of it, its thread turns for ever.

    Args:
        state: Shared with the loop.
        config_fingerprint: Fingerprint of the config that we were started with.
        metrics_address: Address of our metrics; empty if there are none.
        connect: Opens a connection to wherever the master is now.
        stats: The figures that heartbeats report.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        state: SessionState,
        *,
        member: Member,
        config_fingerprint: str,
        metrics_address: str,
        connect: Callable[[], MasterLink],
        stats: Callable[[], MemberStats],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._member = member
        self._config_fingerprint = config_fingerprint
        self._metrics_address = metrics_address
        self._stats = stats
        self._clock = clock
        self._calls = MasterCalls(
            member,
            connect,
            meanwhile="training goes on",
            longest_pause_seconds=_LONGEST_PAUSE_SECONDS,
            clock=clock,
        )
        self._registered = False
        self._heartbeat_seconds = self._news_seconds = _ASK_AGAIN_SECONDS
        self._work_ahead_seconds = 0.0
        self._heartbeat_at = 0.0
        """When the last one was sent."""
        self._asked: Pending[LeaseReply] | None = None
        """The request for tasks that the master has not answered yet."""
        self._num_asked = 0
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)

    def begin(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread and the connection."""
        with self._state.changed:
            self._state.stop_asked = True
            self._state.changed.notify_all()
        self._thread.join()
        self._ask_no_more()
        self._calls.hang_up()

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
        except (PeerUnavailable, CallRefused) as error:
            self._ask_no_more()
            self._retry_at = self._clock() + self._calls.pause_after(error)
        return 0.0

    def _run(self) -> None:
        try:
            while not self._state.stop_asked:
                seconds = self.turn()
                with self._state.changed:
                    # Whatever happened since may be due sooner.
                    if seconds > 0 and not self._state.stop_asked:
                        due = max(self._next()[0], self._retry_at)
                        self._state.changed.wait(min(seconds, max(due - self._clock(), 0.0)))
        except CtrPipelineError as error:
            _LOGGER.error("%s", error)
            with self._state.changed:
                self._state.error = error
                self._state.changed.notify_all()

    def _next(self) -> tuple[float, Callable[[], None]]:
        """What is to be done next, and when."""
        with self._state.changed:
            if not self._registered:
                return self._retry_at, self._register
            is_unwanted = self._state.leaving or self._state.is_pausing
            if self._asked is not None and (is_unwanted or self._asked.done()):
                return 0.0, self._take_tasks
            if self._state.hurry or self._state.book.has_endings:
                return self._heartbeat_at, self._heartbeat
            pause = self._heartbeat_seconds
            if self._state.book.has_news:
                pause = min(pause, self._news_seconds)
            heartbeat_at = self._heartbeat_at + pause
            if self._asked is None and self._num_wanted() and self._state.lease_at < heartbeat_at:
                return self._state.lease_at, self._lease
            return heartbeat_at, self._heartbeat

    def _num_wanted(self) -> int:
        """How many tasks more we would hold."""
        if self._state.leaving or self._state.is_pausing:
            return 0
        with self._state.changed:
            seconds = self._state.book.task_seconds
            wanted = _FEWEST_TASKS
            if seconds > 0:
                wanted = max(wanted, 1 + int(self._work_ahead_seconds / seconds))
            return max(0, min(wanted, _MOST_TASKS) - self._state.book.num_open)

    def _register(self) -> None:
        reply = self._calls.register(
            address="",
            metrics_address=self._metrics_address,
            config_fingerprint=self._config_fingerprint,
        )
        with self._state.changed:
            self._registered = True
            self._state.spec = reply.spec
            self._heartbeat_seconds = reply.heartbeat_seconds
            self._work_ahead_seconds = reply.spec.supervision.work_ahead_seconds
            self._news_seconds = reply.news_seconds
            self._state.move_to(Route(reply.generation, reply.ps_addresses))
            self._state.lease_at = 0.0
            self._heartbeat_at = self._clock()
            self._state.changed.notify_all()

    def _heartbeat(self) -> None:
        with self._state.changed:
            reports: Reports = self._state.book.compose()
            request = HeartbeatRequest(
                member=self._member,
                generation=self._state.route.generation,
                reports=reports.reports,
                stats=self._stats(),
                held=self._state.book.held(),
                paused=self._state.paused,
            )
            self._heartbeat_at = self._clock()
            self._state.hurry = False
        reply = self._calls.call("Heartbeat", request, HeartbeatReply)
        with self._state.changed:
            if reply.directive == "register_again":
                _LOGGER.warning("The master does not know this worker: its leases are void")
                self._registered = self._state.pause_asked = self._state.paused = False
                self._state.book.clear()
                self._ask_no_more()
            else:
                self._state.book.acknowledge(reports)
                self._take_pause(reply, told=request.paused)
                # What has just been reported as done is not ours any more either.
                lost = set(reply.revoked) & set(self._state.book.held())
                self._state.book.revoke(lost)
                if lost:
                    _LOGGER.warning("Leases revoked: %s", ", ".join(map(str, lost)))
                self._state.move_to(Route(reply.generation, reply.ps_addresses))
                if reply.directive == "leave" and not self._state.leaving:
                    _LOGGER.info("The master says to leave")
                    self._state.leaving = True
            self._state.changed.notify_all()

    def _take_pause(self, reply: HeartbeatReply, *, told: bool) -> None:
        """Takes in whether to pause; a master that was told that we do has freed what we held."""
        if reply.directive == "pause" and not self._state.pause_asked:
            _LOGGER.info("Pauses, as the master says: a checkpoint is to hold all that is trained")
        self._state.pause_asked = reply.directive == "pause"
        if told:
            self._state.book.clear()
            self._state.paused = self._state.pause_asked

    def _lease(self) -> None:
        wanted = self._num_wanted()
        with self._state.changed:
            request = LeaseRequest(
                member=self._member,
                generation=self._state.route.generation,
                num_tasks=wanted,
                held=self._state.book.held(),
                wait_seconds=_LEASE_WAIT_SECONDS,
            )
        self._num_asked = wanted
        self._asked = self._calls.start("Lease", request, LeaseReply, self._wake)

    def _wake(self) -> None:
        with self._state.changed:
            self._state.changed.notify_all()

    def _ask_no_more(self) -> None:
        """What the master may be about to give is of no use; it hears of that."""
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def _take_tasks(self) -> None:
        asked = self._asked
        if asked is None or self._state.leaving or self._state.is_pausing:
            self._ask_no_more()
            return
        self._asked = None
        reply = asked.result()
        self._calls.answered()
        with self._state.changed:
            if reply.generation < self._state.route.generation:
                # The master has yet to learn what a parameter server told us.
                self._state.lease_at = self._clock() + _ASK_AGAIN_SECONDS
                return
            self._state.move_to(Route(reply.generation, ()))
            if reply.verdict == "tasks":
                # What it could not give now it may give later.
                if self._state.book.add(reply.tasks) < self._num_asked:
                    self._state.lease_at = self._clock() + max(
                        reply.wait_seconds, _ASK_AGAIN_SECONDS
                    )
            elif reply.verdict == "wait":
                self._state.lease_at = self._clock() + max(reply.wait_seconds, 0.01)
            else:
                is_end = reply.verdict == "end"
                _LOGGER.info("The master says %s", "that nothing is left" if is_end else "to leave")
                self._state.leaving = True
            self._state.changed.notify_all()
