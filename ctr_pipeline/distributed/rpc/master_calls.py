"""A member's calls to the master of its job, wherever it is now."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from ctr_pipeline.distributed.coordination.messages import Member, RegisterReply, RegisterRequest
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION
from ctr_pipeline.distributed.rpc.backoff import delays
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_DEADLINE_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.1
_ROLES = {"worker": "worker", "ps": "parameter server"}

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


class MasterCalls:
    """Calls to the master; a member goes on without it, and asks again with pauses.

    Args:
        member: The member that calls; spreads the pauses, so that not all come back at once.
        connect: Opens a connection to wherever the master is now.
        meanwhile: What goes on without a master, for the log.
        longest_pause_seconds: Between two attempts.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        member: Member,
        connect: Callable[[], MasterLink],
        *,
        meanwhile: str,
        longest_pause_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._member = member
        self._connect = connect
        self._meanwhile = meanwhile
        self._longest = longest_pause_seconds
        self._clock = clock
        self._link: MasterLink | None = None
        self._was_answered = False
        self._away_since: float | None = None
        self._pauses = self._new_pauses()

    def register(
        self, *, address: str, metrics_address: str, config_fingerprint: str
    ) -> RegisterReply:
        """Tells the master who this is.

        Raises:
            CtrPipelineError: The master refuses this member.
        """
        request = RegisterRequest(
            member=self._member,
            pid=os.getpid(),
            host=socket.gethostname(),
            address=address,
            metrics_address=metrics_address,
            protocol=PROTOCOL_VERSION,
            config_fingerprint=config_fingerprint,
        )
        reply = self.call("Register", request, RegisterReply)
        if reply.refused:
            role = _ROLES[self._member.role]
            raise CtrPipelineError(f"the master refuses this {role}: {reply.refused}")
        _LOGGER.info("Registered, generation %d", reply.generation)
        return reply

    def call(self, method: str, message: object, reply: type[T]) -> T:
        """Sends a message and waits for the answer."""
        answer = self._connected().call(method, message, reply, deadline_seconds=_DEADLINE_SECONDS)
        self.answered()
        return answer

    def start(
        self, method: str, message: object, reply: type[T], on_done: Callable[[], None]
    ) -> Pending[T]:
        """Sends a message; `on_done` is called when its answer is there: then call `answered`."""
        return self._connected().start(
            method, message, reply, deadline_seconds=_DEADLINE_SECONDS, on_done=on_done
        )

    def answered(self) -> None:
        """The master is there."""
        self._was_answered = True
        if self._away_since is not None:
            _LOGGER.info("The master answers again after %.1f s", self._clock() - self._away_since)
            self._away_since = None
            self._pauses = self._new_pauses()

    def pause_after(self, error: PeerUnavailable | CallRefused) -> float:
        """Seconds until the master is to be asked again, after a call that failed.

        Raises:
            CallRefused: There is no use in asking again.
        """
        if isinstance(error, CallRefused) and not error.may_pass_for(
            answered_before=self._was_answered
        ):
            raise error
        # It may come back at another address.
        self.hang_up()
        if self._away_since is None:
            self._away_since = self._clock()
            _LOGGER.warning("The master does not answer, %s: %s", self._meanwhile, error)
        return next(self._pauses)

    def hang_up(self) -> None:
        """Ends the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _connected(self) -> MasterLink:
        if self._link is None:
            self._link = self._connect()
        return self._link

    def _new_pauses(self) -> Iterator[float]:
        seed = sum(map(ord, self._member.incarnation)) + self._member.index
        return delays(_FIRST_PAUSE_SECONDS, 2.0, self._longest, seed)
