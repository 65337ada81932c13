"""Asks the rendezvous; used by one agent."""

import threading
import time
from typing import Any, TypeVar

from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.rendezvous import Met, NodeRange, World
from ctr_pipeline.distributed.elastic.messages import (
    SERVICE,
    Barrier,
    GetClusterSpec,
    GetWaitingNodes,
    Leave,
    Synchronize,
    WaitingNodes,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingReply, RpcClient
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable

T = TypeVar("T")

_SHORT_SECONDS = 5.0
"""For calls that are answered at once, and for the answer to one that has timed out."""

_RETRY_SECONDS = 0.5


class RendezvousClient:
    """The rendezvous as one node sees it. Every method but `cancel` is called by one thread.

    Args:
        rendezvous: `host:port` of the rendezvous.
        address: `host:port` of this node, by which the others know it.
        access: Secrets of the job, as of role `worker`.

    Raises:
        CtrPipelineError: The rendezvous is beyond this machine, and the job has no TLS.
    """

    def __init__(self, rendezvous: str, address: str, access: Access) -> None:
        self.address = address
        self._rpc = RpcClient(SERVICE, rendezvous, access)
        self._cancelled = threading.Event()
        self._pending: PendingReply[Any] | None = None

    def get_cluster_spec(
        self, nodes: NodeRange, *, reset: bool = False, timeout_seconds: float
    ) -> World:
        """Waits for the next world; asks again while the rendezvous cannot be reached.

        Raises:
            PeerUnavailable: There is none within the timeout, or the call was cancelled.
            CallRefused: The answer is no.
        """
        deadline = time.monotonic() + timeout_seconds
        message = GetClusterSpec(self.address, nodes.least, nodes.most, reset)
        while True:
            left = deadline - time.monotonic()
            try:
                return self._wait("GetClusterSpec", message, World, max(left, 0.0))
            except PeerUnavailable:
                if time.monotonic() + _RETRY_SECONDS >= deadline:
                    raise
                if self._cancelled.wait(_RETRY_SECONDS):
                    raise

    def get_waiting_nodes(self, version: int) -> int:
        """Renews the lease; returns 0 while the world is the right one.

        Returns:
            Negative: so many members were lost; positive: so many nodes may join.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
            CallRefused: The answer is no.
        """
        message = GetWaitingNodes(self.address, version)
        reply = self._rpc.call(
            "GetWaitingNodes", message, WaitingNodes, deadline_seconds=_SHORT_SECONDS
        )
        return reply.number

    def barrier(self, tag: str, timeout_seconds: float) -> None:
        """Waits until all members have entered the barrier.

        Raises:
            PeerUnavailable: The rendezvous does not answer, or the call was cancelled.
            CallRefused: Some did not come in time, or the world has changed.
        """
        message = Barrier(self.address, tag, timeout_seconds)
        self._wait("Barrier", message, Met, timeout_seconds + _SHORT_SECONDS)

    def synchronize(self, tag: str, data: str, timeout_seconds: float) -> tuple[str, ...]:
        """Brings data, and waits for those of all members.

        Returns:
            By rank.

        Raises:
            PeerUnavailable: The rendezvous does not answer, or the call was cancelled.
            CallRefused: Some did not come in time, or the world has changed.
        """
        message = Synchronize(self.address, tag, data, timeout_seconds)
        return self._wait("Synchronize", message, Met, timeout_seconds + _SHORT_SECONDS).data

    def leave(self) -> None:
        """Goes, for good.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
        """
        self._rpc.call("Leave", Leave(self.address), Empty, deadline_seconds=_SHORT_SECONDS)

    def cancel(self) -> None:
        """Ends the call that waits, and those that would; may be called by any thread."""
        self._cancelled.set()
        pending = self._pending
        if pending is not None:
            pending.cancel()

    def close(self) -> None:
        """Ends the connection, and the call that waits."""
        self.cancel()
        self._rpc.close()

    def _wait(self, method: str, message: object, reply: type[T], deadline_seconds: float) -> T:
        pending = self._rpc.start(
            method, message, reply, deadline_seconds=deadline_seconds, on_done=lambda: None
        )
        self._pending = pending
        # Either `cancel` finds this call, or it came before and is seen here.
        if self._cancelled.is_set():
            pending.cancel()
        return pending.result()
