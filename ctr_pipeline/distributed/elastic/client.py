"""Asks the rendezvous; used by one agent."""

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from ctr_pipeline.distributed.coordination.messages import Empty, MemberReport
from ctr_pipeline.distributed.coordination.rendezvous import Met, NodeRange, World
from ctr_pipeline.distributed.elastic.messages import (
    SERVICE,
    Barrier,
    GetClusterSpec,
    GetWaitingNodes,
    Leave,
    RecordsTaken,
    ReportRecords,
    ScaleNodes,
    Synchronize,
    TakeRecords,
    WaitingNodes,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingReply, RpcClient
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable

T = TypeVar("T")

_SHORT_SECONDS = 5.0
"""Deadline of calls that are answered at once, and of the answer to one that has timed out."""

_RETRY_SECONDS = 0.5


class RendezvousClient:
    """The rendezvous as one node sees it. Every method but `cancel` is called by one thread.

    Attributes:
        address: `host:port` of this node.
        place: `host:port` of the rendezvous.

    Args:
        rendezvous: `host:port` of the rendezvous.
        address: `host:port` of this node, by which the others know it.
        access: Secrets of the job, as of role `worker`.

    Raises:
        CtrPipelineError: The rendezvous is beyond this machine, and the job has no TLS.
    """

    def __init__(self, rendezvous: str, address: str, access: Access) -> None:
        self.address = address
        self.place = rendezvous
        self._rpc = RpcClient(SERVICE, rendezvous, access)
        self._cancelled = threading.Event()
        self._pending: PendingReply[Any] | None = None

    def get_cluster_spec(
        self,
        nodes: NodeRange,
        *,
        reset: bool = False,
        has_failed: bool = False,
        unreachable: Sequence[str] = (),
        timeout_seconds: float,
    ) -> World:
        """Waits for the next world; asks again while the rendezvous cannot be reached.

        Args:
            has_failed: This node began a step that nobody can finish without it.
            unreachable: Members of the current world that this one cannot reach.

        Raises:
            PeerUnavailable: There is none within the timeout, or the call was cancelled.
            CallRefused: The answer is no.
        """
        deadline = time.monotonic() + timeout_seconds
        message = GetClusterSpec(
            self.address, nodes.least, nodes.most, reset, has_failed, tuple(unreachable)
        )
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
            Negative: so many members were lost or failed; positive: so many nodes may join.

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

    def take_records(self, name: str, content: str, version: int) -> int:
        """Takes records for a world that this node is a member of.

        Args:
            content: What they are, in words.
            version: Version of the world.

        Returns:
            How many of them are finished.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
            CallRefused: The world is over, or records of this name have another content.
        """
        message = TakeRecords(self.address, version, name, content)
        reply = self._rpc.call(
            "TakeRecords", message, RecordsTaken, deadline_seconds=_SHORT_SECONDS
        )
        return reply.position

    def report_records(self, name: str, version: int, position: int, *, begins: bool) -> None:
        """Says that the first `position` records are finished.

        Args:
            begins: The world has finished none of them, and begins there.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
            CallRefused: The world is over.
        """
        message = ReportRecords(version, name, position, begins)
        self._rpc.call("ReportRecords", message, Empty, deadline_seconds=_SHORT_SECONDS)

    def leave(self) -> None:
        """Goes, for good.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
        """
        self._rpc.call("Leave", Leave(self.address), Empty, deadline_seconds=_SHORT_SECONDS)

    def scale(self, number: int) -> None:
        """Asks for so many nodes; called with the secrets of role `client`.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
            CallRefused: There cannot be so many.
        """
        self._rpc.call("Scale", ScaleNodes(number), Empty, deadline_seconds=_SHORT_SECONDS)

    def report(self, report: MemberReport) -> None:
        """Says that a member is there, and how it does.

        Raises:
            PeerUnavailable: The rendezvous does not answer.
            CallRefused: Nobody there asks for reports.
        """
        self._rpc.call("Report", report, Empty, deadline_seconds=_SHORT_SECONDS)

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
