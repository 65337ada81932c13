"""A worker's side of its job's master, as its loop sees it."""

import time
from collections.abc import Callable
from typing import Self

from ctr_pipeline.distributed.coordination.messages import (
    LeasedTask,
    Member,
    MemberStats,
    ScoreSummary,
)
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.rpc.master_calls import MasterLink
from ctr_pipeline.distributed.worker.master_talk import MasterTalk
from ctr_pipeline.distributed.worker.session_state import Route, SessionState

_POLL_SECONDS = 0.2
"""A signal handler can wake nobody."""


class WorkerSession:
    """What the loop asks of the master and tells it; a thread of `MasterTalk` does the talking.

    Args:
        config_fingerprint: Fingerprint of the config that we were started with.
        metrics_address: Address of our metrics; empty if there are none.
        connect: Opens a connection to wherever the master is now.
        stats: The figures that heartbeats report.
        clock: Seconds, monotonic.

    Attributes:
        talk: With the master.
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
        self._state = SessionState()
        self.talk = MasterTalk(
            self._state,
            member=member,
            config_fingerprint=config_fingerprint,
            metrics_address=metrics_address,
            connect=connect,
            stats=stats,
            clock=clock,
        )

    def __enter__(self) -> Self:
        self.talk.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.talk.end()

    @property
    def incarnation(self) -> str:
        """Our name."""
        return self._member.incarnation

    def leave(self) -> None:
        """Takes no more tasks; safe to call from a signal handler."""
        # No lock: the interrupted thread may hold it, and everybody polls.
        self._state.leaving = True

    # What the loop asks.

    def wait_registered(self) -> JobSpec | None:
        """The job, once the master has taken us in; None if we are to leave before that.

        Raises:
            CtrPipelineError: The master refuses us.
        """
        with self._state.changed:
            self._wait_until(lambda: self._state.spec is not None)
            return None if self._state.leaving else self._state.spec

    def wait_route(self, generation: int) -> Route | None:
        """The parameter servers, once all are there in at least this generation; None to leave.

        Raises:
            CtrPipelineError: The master refuses us.
        """
        with self._state.changed:
            self._wait_until(
                lambda: self._state.route.is_complete and self._state.route.generation >= generation
            )
            return None if self._state.leaving else self._state.route

    def follow_route(self, listener: Callable[[Route], None]) -> None:
        """Has `listener` told of the parameter servers, now and whenever they change.

        It is called by any thread and must not call back.
        """
        with self._state.changed:
            self._state.listener = listener
            listener(self._state.route)

    def wait_task(self, seconds: float) -> LeasedTask | None:
        """The next task; None if none came in time or none will come."""
        with self._state.changed:
            task = self._state.book.take()
            if task is None and not self._state.is_over:
                self._state.changed.wait(seconds)
                task = self._state.book.take()
            return task

    @property
    def is_over(self) -> bool:
        """Whether to stop working: told to leave, nothing left for ever, or refused."""
        return self._state.is_over

    @property
    def is_pausing(self) -> bool:
        """Whether to begin no batch for now, and call `pause` once none is under way."""
        return self._state.is_pausing

    def pause(self, seconds: float) -> None:
        """Hands back all leases, as nothing is under way, and waits a while for news."""
        with self._state.changed:
            if not self._state.paused and self._state.pause_asked:
                self._state.paused = self._state.hurry = True
                self._state.changed.notify_all()
            self._state.changed.wait(seconds)

    @property
    def route(self) -> Route:
        """The parameter servers as far as we know."""
        return self._state.route

    def holds(self, task: LeasedTask) -> bool:
        """Whether a task is still ours."""
        with self._state.changed:
            return self._state.book.holds(task)

    def raise_refusal(self) -> None:
        """Raises what the master refused us for, if it did.

        Raises:
            CtrPipelineError: It did.
        """
        with self._state.changed:
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
        with self._state.changed:
            self._state.book.mark_batch(
                task,
                batch,
                loss_sum=loss_sum,
                repeated=repeated,
                finished=finished,
                seconds=seconds,
            )
            if finished:
                self._state.changed.notify_all()

    def finish_empty(self, task: LeasedTask) -> None:
        """All of a task was done before it was leased."""
        with self._state.changed:
            self._state.book.finish_empty(task)
            self._state.changed.notify_all()

    def finish_scores(self, task: LeasedTask, scores: ScoreSummary, seconds: float) -> None:
        """A score task is done, and its file is in its place."""
        with self._state.changed:
            self._state.book.finish_scores(task, scores, seconds)
            self._state.changed.notify_all()

    def fail(self, task: LeasedTask, reason: str, *, is_final: bool = False) -> None:
        """A task cannot be done; if that is final, by nobody."""
        with self._state.changed:
            self._state.book.fail(task, reason, is_final=is_final)
            self._state.changed.notify_all()

    def lose(self, task: LeasedTask) -> None:
        """A parameter server has seen a newer attempt of a task."""
        with self._state.changed:
            held = self._state.book.held()
            self._state.book.revoke(lease for lease in held if lease.key == task.key)
            self._state.changed.notify_all()

    def rolled_back(self, generation: int) -> None:
        """A parameter server is in a newer generation: leases are void."""
        with self._state.changed:
            self._state.move_to(Route(generation, ()))
            self._state.hurry = True
            self._state.changed.notify_all()

    def ask_again(self) -> None:
        """A parameter server does not answer: the master may know more."""
        with self._state.changed:
            self._state.hurry = True
            self._state.changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until the master knows all that there is to report; False if it took too long."""
        with self._state.changed:
            self._state.hurry = True
            self._state.changed.notify_all()
            return self._state.changed.wait_for(
                lambda: not self._state.book.has_news or self._state.error is not None, seconds
            )

    def _wait_until(self, happened: Callable[[], bool]) -> None:
        """Waits, at most until we are to leave; raises what we were refused for."""
        while not (happened() or self._state.is_over):
            self._state.changed.wait(_POLL_SECONDS)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._state.error is not None:
            raise self._state.error
