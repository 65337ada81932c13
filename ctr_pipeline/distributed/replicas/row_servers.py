"""Calls from a replica to the servers of embedding rows."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ctr_pipeline.distributed.coordination.codec import decode, encode
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.replicas.messages import ROW_SERVICE
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingCall, RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable

_CALL_SECONDS = 60.0
_PING_SECONDS = 5.0

T = TypeVar("T")


class RowServers:
    """Calls to the servers of rows, from the trainer's thread.

    Args:
        find: Addresses, `host:port`, by server; empty where one is not there.
        access: Secrets of the job, as of role `worker`.

    Attributes:
        number: How many there are.
    """

    def __init__(self, find: Callable[[], Sequence[str]], access: Access) -> None:
        self._find = find
        self._access = access
        self.number = len(find())
        self._clients: list[RpcClient | None] = [None] * self.number
        self._lock = threading.Lock()
        self._pending: set[PendingCall] = set()

    def close(self) -> None:
        """Ends all connections."""
        for client in self._clients:
            if client is not None:
                client.close()

    def end_calls(self) -> None:
        """Ends calls that wait for other members; in any thread."""
        with self._lock:
            pending = list(self._pending)
        for call in pending:
            call.cancel()

    def answers(self, address: str) -> bool:
        """Whether the server at an address that was called is there, whatever else it does."""
        return any(
            one is not None and one.address == address and _answers(one) for one in self._clients
        )

    def look_up(self) -> None:
        """Finds servers that were started again."""
        for server, address in enumerate(self._find()):
            client = self._clients[server]
            if client is not None and client.address != address:
                client.close()
                self._clients[server] = None

    def _client(self, server: int) -> RpcClient:
        client = self._clients[server]
        if client is None:
            address = self._find()[server]
            if not address:
                raise PeerUnavailable(f"server {server} of embedding rows has not begun")
            client = self._clients[server] = RpcClient(ROW_SERVICE, address, self._access)
        return client

    def call_all(
        self,
        method: str,
        message: object,
        reply: type[T],
        seconds: float = _CALL_SECONDS,
        *,
        ends_with_world: bool = True,
    ) -> list[T]:
        """Sends all servers the same; returns their answers, by server."""
        data = encode(message)
        requests = [(server, data) for server in range(self.number)]
        answers = self.call(method, requests, seconds, ends_with_world=ends_with_world)
        return [decode(reply, answer) for answer in answers]

    def call(
        self,
        method: str,
        requests: Sequence[tuple[int, bytes]],
        seconds: float = _CALL_SECONDS,
        *,
        ends_with_world: bool = True,
    ) -> list[bytes]:
        """Calls servers at once; returns their answers, in the order of the requests.

        Args:
            ends_with_world: Whether `end_calls` ends it.

        Raises:
            PeerUnavailable, CallRefused: One failed; the others are not waited for.
        """
        calls: list[PendingCall] = []
        try:
            for server, data in requests:
                call = self._client(server).start_bytes(method, data, deadline_seconds=seconds)
                calls.append(call)
                if ends_with_world:
                    with self._lock:
                        self._pending.add(call)
            return [call.result() for call in calls]
        finally:
            with self._lock:
                self._pending.difference_update(calls)
            for call in calls:
                # Nothing happens to those that were answered.
                call.cancel()


def _answers(client: RpcClient) -> bool:
    """Whether a server is there, whatever else it does."""
    try:
        client.call("Ping", Empty(), Empty, deadline_seconds=_PING_SECONDS)
    except (PeerUnavailable, CallRefused):
        return False
    return True
