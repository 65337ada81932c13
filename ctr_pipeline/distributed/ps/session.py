"""A parameter server's talk with the master: registration and heartbeats, for ever.

A master that is away changes nothing: workers are served meanwhile. Only two things end it: the
master says to leave, or refuses this server for good.
"""

import logging
import time
from collections.abc import Callable

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    Member,
    MemberStats,
    PlacementRequest,
    checksum_of,
)
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.rpc.master_calls import MasterCalls, MasterLink
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_LONGEST_PAUSE_SECONDS = 1.0
_ROUND_SECONDS = 0.25
"""Between heartbeats while a round waits, for a worker that may be gone, or for a cut to leave."""
_ALONE_SECONDS = 1.0
"""A server that was asked to end waits no longer for a master that does not answer."""


class PsSession:
    """The server's side of the talk; `turn` does the next thing of it.

    Args:
        core: Its round follows the workers that the master names.
        address: The address that it serves on.
        connect: Opens a connection to wherever the master is now.
        stats: The figures that heartbeats report.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        core: PsCore,
        *,
        member: Member,
        address: str,
        metrics_address: str,
        connect: Callable[[], MasterLink],
        stats: Callable[[], MemberStats],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._member = member
        self._address = address
        self._metrics_address = metrics_address
        self._stats = stats
        self._clock = clock
        self._active_workers: tuple[str, ...] | None = None
        self._registered = False
        self._must_leave = False
        self._leaves_at: float | None = None
        self._answered_at = clock()
        self._heartbeat_seconds = _LONGEST_PAUSE_SECONDS
        self._calls = MasterCalls(
            member,
            connect,
            meanwhile="workers are served",
            longest_pause_seconds=_LONGEST_PAUSE_SECONDS,
            clock=clock,
        )

    @property
    def must_leave(self) -> bool:
        """Whether the master has said so, or the time to leave by has come."""
        is_late = self._leaves_at is not None and self._clock() >= self._leaves_at
        return self._must_leave or is_late

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to end."""
        return self._leaves_at is not None

    def leave_within(self, seconds: float) -> None:
        """Asks the master to let this server go, and leaves without its word when time is over.

        Nobody is asked where the master knows nothing of this server.
        """
        self._leaves_at = self._clock() + (seconds if self._registered else 0.0)
        self._answered_at = self._clock()

    def turn(self) -> float:
        """Registers, or sends a heartbeat.

        Returns:
            Seconds until the next turn.

        Raises:
            CtrPipelineError: The master refuses this server.
        """
        try:
            if self._registered:
                self._heartbeat()
            else:
                self._register()
        except (PeerUnavailable, CallRefused) as error:
            pause = self._calls.pause_after(error)
            if self.is_leaving and self._clock() - self._answered_at > _ALONE_SECONDS:
                _LOGGER.warning("Leaves without a checkpoint, as the master does not answer")
                self._must_leave = True
            return pause
        self._answered_at = self._clock()
        if not self._registered:
            return 0.0
        if self._core.updates.num_waiting or self.is_leaving:
            return min(self._heartbeat_seconds, _ROUND_SECONDS)
        return self._heartbeat_seconds

    def close(self) -> None:
        """Ends the connection."""
        self._calls.hang_up()

    def _register(self) -> None:
        reply = self._calls.register(
            address=self._address,
            metrics_address=self._metrics_address,
            config_fingerprint=self._core.spec.config_fingerprint,
        )
        _require_same_job(self._core.spec, reply.spec)
        self._registered = True
        self._heartbeat_seconds = reply.heartbeat_seconds

    def _heartbeat(self) -> None:
        active = self._active_workers
        request = HeartbeatRequest(
            member=self._member,
            generation=max(self._core.serving.generation, 0),
            reports=(),
            stats=self._stats(),
            placement=self._core.state.placement.version,
            active_workers=-1 if active is None else checksum_of(active),
            leaves_in_seconds=self._leaves_in_seconds(),
        )
        moves_begun = self._core.moves.num_begun
        reply = self._calls.call("Heartbeat", request, HeartbeatReply)
        if reply.directive == "register_again":
            _LOGGER.warning("The master does not know this parameter server")
            self._registered = False
            return
        if reply.active_workers is not None:
            self._active_workers = reply.active_workers
            self._core.updates.set_active_workers(reply.active_workers)
        # As good as always there is nothing to say, and nobody who works on rows is waited for.
        is_news = reply.placement is not None or self._core.moves.takes_part
        if is_news and reply.generation == self._core.serving.generation:
            placement = reply.placement or self._core.state.placement
            self._core.moves.place(
                PlacementRequest(reply.generation, placement, reply.move), moves_begun
            )
        if reply.directive == "leave":
            _LOGGER.info("The master says to leave")
            self._must_leave = True

    def _leaves_in_seconds(self) -> float | None:
        return None if self._leaves_at is None else max(0.0, self._leaves_at - self._clock())


def _require_same_job(ours: JobSpec, masters: JobSpec) -> None:
    if ours != masters:
        raise CtrPipelineError(
            "the master's job is another one than that of this run folder",
            place="job/spec.json",
            remedy="Stop this parameter server and start the job again",
        )
