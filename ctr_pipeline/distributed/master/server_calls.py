"""One call to every parameter server at once."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingCall, RpcClient
from ctr_pipeline.distributed.rpc.control import decode, encode
from ctr_pipeline.distributed.rpc.failures import CallRefused, MalformedMessage, PeerUnavailable

T = TypeVar("T")

_LOOK_EVERY_SECONDS = 0.02


class CallAbandonedError(Exception):
    """Nobody wants the answers any more."""


class ServerRefusedError(Exception):
    """A parameter server answered, and its answer is no."""


class ServerCalls:
    """Calls all parameter servers in parallel; for one thread.

    Args:
        access: Secrets of the job.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._clients: dict[str, RpcClient] = {}

    def call_all(
        self,
        method: str,
        addresses: Sequence[str],
        message: object,
        reply: type[T],
        *,
        deadline_seconds: float,
        abandoned: Callable[[], bool],
    ) -> list[T]:
        """The answers of all servers, by their number.

        Args:
            method: Of `PsService`.
            addresses: By number.
            message: The same for all.
            reply: Type of the answers.
            deadline_seconds: For each.
            abandoned: Asked again and again while they are awaited.

        Raises:
            PeerUnavailable: A server is not there, or did not answer.
            ServerRefusedError: A server did not do it.
            CallAbandonedError: `abandoned` was true.
        """
        self._forget_all_but(addresses)
        data = encode(message)
        pending: list[PendingCall] = []
        try:
            for number, address in enumerate(addresses):
                if not address:
                    raise PeerUnavailable("has not registered", place=f"parameter server {number}")
                client = self._client(address)
                pending.append(client.start_bytes(method, data, deadline_seconds=deadline_seconds))
            self._wait(pending, abandoned)
            return [_answer(call, number, reply) for number, call in enumerate(pending)]
        finally:
            for call in pending:
                call.cancel()

    def close(self) -> None:
        """Ends all connections."""
        self._forget_all_but(())

    def _wait(self, pending: Sequence[PendingCall], abandoned: Callable[[], bool]) -> None:
        """Until all have answered, or one has failed."""
        waiting = list(enumerate(pending))
        while waiting:
            if abandoned():
                raise CallAbandonedError
            done = [(number, call) for number, call in waiting if call.done()]
            for number, call in done:
                _read(call, number)
            waiting = [entry for entry in waiting if entry not in done]
            if waiting:
                time.sleep(_LOOK_EVERY_SECONDS)

    def _client(self, address: str) -> RpcClient:
        if address not in self._clients:
            self._clients[address] = RpcClient("PsService", address, self._access)
        return self._clients[address]

    def _forget_all_but(self, addresses: Sequence[str]) -> None:
        for address in set(self._clients) - set(addresses):
            self._clients.pop(address).close()


def _read(call: PendingCall, number: int) -> bytes:
    try:
        return call.result()
    except PeerUnavailable as error:
        raise PeerUnavailable(f"parameter server {number}: {error}") from error
    except CallRefused as error:
        raise ServerRefusedError(f"parameter server {number}: {error}") from error


def _answer(call: PendingCall, number: int, reply: type[T]) -> T:
    try:
        return decode(reply, _read(call, number))
    except MalformedMessage as error:
        raise ServerRefusedError(f"parameter server {number}: {error}") from error
