"""One call to every parameter server at once."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingCall, RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable

T = TypeVar("T")

_LOOK_EVERY_SECONDS = 0.02
_REPEAT_SECONDS = 0.5


class CallAbandonedError(Exception):
    """Nobody wants the answers any more."""


class ServerRefusedError(Exception):
    """A parameter server answered, and its answer is no."""


class ServerCalls:
    """Calls all parameter servers in parallel; for one thread.

    Args:
        access: Secrets of the job.
        retry_seconds: For so long a request is repeated where nobody answers: a connection may
            break while its server lives, and one that is gone is noticed by its silence.
        connect: Connects to a server's address; as `PsService` with the secrets if None.
    """

    def __init__(
        self,
        access: Access,
        *,
        retry_seconds: float = 10.0,
        connect: Callable[[str], RpcClient] | None = None,
    ) -> None:
        self._connect = connect or (lambda address: RpcClient("PsService", address, access))
        self._retry_seconds = retry_seconds
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
        first_number: int = 0,
        keep: Sequence[str] = (),
    ) -> list[T]:
        """The answers of all servers, by their number.

        A request may arrive at a server more than once.

        Args:
            addresses: By number.
            message: The same for all.
            reply: Type of the answers.
            deadline_seconds: For each, repetitions included.
            abandoned: Asked again and again while they are awaited.
            first_number: The number of the server at the first address.
            keep: Addresses whose connections stay, beside those that are called.

        Raises:
            PeerUnavailable: A server is not there, or did not answer.
            ServerRefusedError: A server did not do it.
            CallAbandonedError: `abandoned` was true.
        """
        self._forget_all_but((*addresses, *keep))
        data = encode(message)
        deadline = time.monotonic() + deadline_seconds

        def ask(number: int) -> PendingCall:
            address = addresses[number - first_number]
            if not address:
                raise PeerUnavailable("has not registered", place=f"parameter server {number}")
            left = max(deadline - time.monotonic(), _LOOK_EVERY_SECONDS)
            return self._client(address).start_bytes(method, data, deadline_seconds=left)

        pending: dict[int, PendingCall] = {}
        try:
            numbers = range(first_number, first_number + len(addresses))
            for number in numbers:
                pending[number] = ask(number)
            found = self._collect(pending, ask, abandoned, deadline)
            return [_answer(found[number], number, reply) for number in numbers]
        finally:
            for call in pending.values():
                call.cancel()

    def close(self) -> None:
        """Ends all connections."""
        self._forget_all_but(())

    def _collect(
        self,
        pending: dict[int, PendingCall],
        ask: Callable[[int], PendingCall],
        abandoned: Callable[[], bool],
        deadline: float,
    ) -> dict[int, bytes]:
        """The answers, once all are there or one has failed; repeats what nobody answered."""
        found: dict[int, bytes] = {}
        last_try: dict[int, float] = {}
        again_at: dict[int, float] = {}
        while len(found) < len(pending):
            if abandoned():
                raise CallAbandonedError
            now = time.monotonic()
            for number in pending.keys() - found.keys():
                if number in again_at:
                    if now >= again_at[number]:
                        del again_at[number]
                        pending[number] = ask(number)
                elif pending[number].done():
                    try:
                        found[number] = _read(pending[number], number)
                    except PeerUnavailable:
                        limit = min(now + self._retry_seconds, deadline)
                        if now >= last_try.setdefault(number, limit):
                            raise
                        again_at[number] = now + _REPEAT_SECONDS
            if len(found) < len(pending):
                time.sleep(_LOOK_EVERY_SECONDS)
        return found

    def _client(self, address: str) -> RpcClient:
        if address not in self._clients:
            self._clients[address] = self._connect(address)
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


def _answer(data: bytes, number: int, reply: type[T]) -> T:
    try:
        return decode(reply, data)
    except MalformedMessage as error:
        raise ServerRefusedError(f"parameter server {number}: {error}") from error
