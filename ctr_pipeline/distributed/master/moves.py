"""Moves partitions: has the target of a move take them over, and tells all who holds what."""

import logging
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeVar

from ctr_pipeline.distributed.coordination.events import (
    AnnouncePlacement,
    MoveFailed,
    MovePartitions,
    MoveReady,
)
from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    MoveReply,
    MoveRequest,
    PlacementReply,
    PlacementRequest,
)
from ctr_pipeline.distributed.master.server_calls import (
    CallAbandonedError,
    ServerCalls,
    ServerRefusedError,
)
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
_COPY_SECONDS = 300.0
_TELL_SECONDS = 10.0
# A source that leaves may have heard it with a heartbeat, and be gone.
_TELL_LEAVING_SECONDS = 2.0


class Mover:
    """Moves of one job, one at a time; for one thread.

    Args:
        calls: To the parameter servers.
    """

    def __init__(self, calls: ServerCalls) -> None:
        self._calls = calls

    def move(
        self, action: MovePartitions, addresses: Sequence[str], *, abandoned: Callable[[], bool]
    ) -> MoveReady | MoveFailed:
        """Has the target copy everything; the source holds updates up when this succeeds.

        Args:
            addresses: Addresses of all servers, by number, the target among them.
            abandoned: Whether the job went back to a cut meanwhile.
        """
        planned, generation = action.planned, action.generation

        def failed(reason: object) -> MoveFailed:
            return MoveFailed(generation, action.version, str(reason))

        try:
            # One that holds nothing is in no cut that was restored: it begins here.
            place = PlacementRequest(generation, action.placement, action.version)
            self._ask(
                planned.target, addresses, "Place", place, reply=PlacementReply, abandoned=abandoned
            )
            request = MoveRequest(
                generation=generation,
                version=action.version,
                source=addresses[planned.source],
                partitions=planned.partitions,
                takes_dense=planned.takes_dense,
            )
            reply = self._ask(
                planned.target, addresses, "TakeOver", request, reply=MoveReply, abandoned=abandoned
            )
        except CallAbandonedError:
            return failed("the job went back to a checkpoint meanwhile")
        except (PeerUnavailable, ServerRefusedError) as error:
            return failed(error)
        if reply.refused:
            return failed(f"parameter server {planned.target}: {reply.refused}")
        return MoveReady(generation, action.version)

    def place(
        self, action: AnnouncePlacement, addresses: Sequence[str], *, abandoned: Callable[[], bool]
    ) -> float | None:
        """Tells all servers who holds what; whom it does not reach hears it with a heartbeat.

        Args:
            action: What became of a move.
            addresses: Addresses of all servers by number, also of a source that leaves now.
            abandoned: Whether the job went back to a cut meanwhile.

        Returns:
            For how long the source held updates up, at most, since it started; None if it does
            not say.
        """
        planned, held_seconds = action.planned, None
        leaves = planned.source >= action.placement.num_servers
        request = PlacementRequest(action.generation, action.placement, 0)
        try:
            # The target before the others: where workers hear of it, it is served. The source
            # holds until it is told, however many the others are.
            self._ask(
                planned.target,
                addresses,
                "Place",
                request,
                reply=PlacementReply,
                abandoned=abandoned,
            )
            replies = self._calls.call_all(
                "Place",
                # Servers that are still to come hold nothing; they hear it with a heartbeat.
                tuple(takewhile(bool, addresses)),
                request,
                PlacementReply,
                deadline_seconds=_TELL_LEAVING_SECONDS if leaves else _TELL_SECONDS,
                abandoned=abandoned,
                keep=addresses,
            )
            if planned.source < len(replies):
                held_seconds = replies[planned.source].held_seconds
        except CallAbandonedError:
            return held_seconds
        except (PeerUnavailable, ServerRefusedError) as error:
            _LOGGER.warning("some parameter servers do not know of a move yet: %s", error)
        for server in (planned.target,) if leaves else (planned.source, planned.target):
            # A cut or another move would do it too, if this does not.
            try:
                self._ask(
                    server, addresses, "DropForeignRows", Empty(), reply=Empty, abandoned=abandoned
                )
            except CallAbandonedError:
                return held_seconds
            except (PeerUnavailable, ServerRefusedError) as error:
                _LOGGER.info("parameter server %d still holds rows of a move: %s", server, error)
        return held_seconds

    def _ask(
        self,
        server: int,
        addresses: Sequence[str],
        method: str,
        message: object,
        *,
        reply: type[T],
        abandoned: Callable[[], bool],
    ) -> T:
        address = addresses[server] if server < len(addresses) else ""
        seconds = _COPY_SECONDS if method == "TakeOver" else _TELL_SECONDS
        (answer,) = self._calls.call_all(
            method,
            (address,),
            message,
            reply,
            deadline_seconds=seconds,
            abandoned=abandoned,
            first_number=server,
            keep=addresses,
        )
        return answer
