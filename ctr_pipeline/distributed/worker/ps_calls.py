"""Calls to the parameter servers: routed, tried again until a deadline, all servers at once.

What cannot be mended by trying again is raised: `RolledBack` (drop everything, go where the master
says), `Superseded` (another worker has the task), and `PeerUnavailable` after the deadline.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.rpc.backoff import delays
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.distributed.rpc.packed import Status

_FIRST_PAUSE_SECONDS = 0.05
_PAUSE_GROWTH = 1.6
_LONGEST_PAUSE_SECONDS = 1.0


class RolledBack(Exception):  # noqa: N818
    """The job is in another generation: leases and pulled values are void.

    Args:
        generation: Generation of the job, as far as it is known here.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        super().__init__(f"the job is in generation {generation}")


class Superseded(Exception):  # noqa: N818
    """A later attempt at the batch's task has begun: the lease is another worker's."""


class Moved(Exception):  # noqa: N818
    """Partitions lie elsewhere by now: what is to be asked has to be divided anew."""


class PsTransport(Protocol):
    """How bytes get to one server; `RpcClient` is one."""

    def call_bytes(self, method: str, data: bytes, *, deadline_seconds: float) -> bytes:
        """Sends bytes and waits for the answer."""

    def close(self) -> None:
        """Ends the connection."""


class PsReply(Protocol):
    """What every answer says."""

    @property
    def status(self) -> Status:
        """How the server answers."""

    @property
    def generation(self) -> int:
        """The server's generation."""


R = TypeVar("R", bound=PsReply)
T = TypeVar("T")


@dataclass(frozen=True)
class CallTimeouts:
    """How long calls may take.

    Attributes:
        deadline_seconds: A call is tried again for so long.
        call_seconds: For one try.
    """

    deadline_seconds: float
    call_seconds: float


@dataclass(frozen=True)
class _Route:
    """Where the servers are."""

    generation: int
    addresses: tuple[str, ...]
    transports: tuple[PsTransport | None, ...]


class PsCalls:
    """Calls servers by number; safe to use from several threads.

    Args:
        num_servers: There are.
        connect: Makes the connection to an address.
        timeouts: Unless a call says otherwise.
        clock: Seconds, monotonic.
        seed: Seed of the pauses between tries.
    """

    def __init__(
        self,
        num_servers: int,
        *,
        connect: Callable[[str], PsTransport],
        timeouts: CallTimeouts,
        clock: Callable[[], float],
        seed: int,
    ) -> None:
        self._num_servers = num_servers
        self._connect = connect
        self._timeouts = timeouts
        self._clock = clock
        self._seed = seed
        # Waiting for the network takes no processor: two pulls and a push of each at once, and
        # pushes that nobody waits for any more.
        self._pool = _pool_for(num_servers)
        self._routed = threading.Condition()
        self._route = _Route(-1, ("",) * num_servers, (None,) * num_servers)
        self._newest_generation = -1
        self._placement = 0
        self._closed = False
        self._count_lock = threading.Lock()
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def generation(self) -> int:
        """The generation that calls are made in; -1 before the first route."""
        return self._route.generation

    def route(self, generation: int, addresses: Sequence[str]) -> None:
        """Where the servers are from now on; calls of another generation end."""
        with self._routed:
            old = self._route
            if (generation, tuple(addresses)) == (old.generation, old.addresses) or self._closed:
                return
            kept = dict(zip(enumerate(old.addresses), old.transports, strict=True))
            transports = [
                kept[place] if place in kept else (self._connect(place[1]) if place[1] else None)
                for place in enumerate(addresses)
            ]
            self._route = _Route(generation, tuple(addresses), tuple(transports))
            self._routed.notify_all()
        for transport in old.transports:
            if transport is not None and transport not in transports:
                transport.close()

    def close(self) -> None:
        """Ends all connections; calls under way are `PeerUnavailable`."""
        with self._routed:
            self._closed = True
            self._routed.notify_all()
        for transport in self._route.transports:
            if transport is not None:
                transport.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def follow(self, placement: int, num_servers: int) -> None:
        """Calls of an older version of the placement end, from now on.

        Args:
            placement: The version.
        """
        with self._routed:
            self._placement = placement
            if num_servers > self._num_servers:
                self._pool.shutdown(wait=False)
                self._pool = _pool_for(num_servers)
            self._num_servers = max(num_servers, self._num_servers)
            self._routed.notify_all()

    def start(self, call: Callable[[int], T], num_servers: int) -> list[Future[T]]:
        """Begins a call for each server."""
        with self._routed:
            return [self._pool.submit(call, server) for server in range(num_servers)]

    def on_all_servers(self, call: Callable[[int], T], num_servers: int) -> None:
        """Calls for each server, all at once; waits for all, then raises the first error."""
        gather(self.start(call, num_servers), None)

    def placement_of(self, server: int, generation: int) -> Placement:
        """The placement, as a server knows it.

        Raises:
            RolledBack: The generation is over.
            PeerUnavailable: It does not answer.
        """
        transport = self._transport_to(server, generation, None)
        if transport is None:
            raise PeerUnavailable("has not started yet", place=f"ps-{server}")
        answer = transport.call_bytes(
            "Placement", encode(Empty()), deadline_seconds=self._timeouts.call_seconds
        )
        return _decoded(server, partial(decode, Placement), answer)

    def ask(
        self,
        server: int,
        method: str,
        data: bytes,
        decode: Callable[[bytes], R],
        *,
        generation: int,
        placement: int,
        timeouts: CallTimeouts | None = None,
    ) -> tuple[R, int]:
        """Calls until there is an answer that says something; and how many tries it took.

        Raises:
            RolledBack: The generation is over.
            Moved: The version of the placement is.
            Superseded: Another worker has the task.
            PeerUnavailable: There was no answer until the deadline.
            CallRefused: The server says no to what was sent, or what cannot be read.
        """
        timeouts = timeouts or self._timeouts
        deadline = self._clock() + timeouts.deadline_seconds
        pauses = self._pauses(server)
        num_tries = 0
        while True:
            num_tries += 1
            problem = PeerUnavailable("has not started yet", place=f"ps-{server}")
            transport = self._transport_to(server, generation, placement)
            if transport is not None:
                try:
                    answer = transport.call_bytes(
                        method, data, deadline_seconds=timeouts.call_seconds
                    )
                except PeerUnavailable as error:
                    problem = error
                except CallRefused as error:
                    if not error.is_fault_of_peer:
                        raise
                    problem = PeerUnavailable(f"failed ({error})", place=f"ps-{server}")
                else:
                    self._count(len(data), len(answer))
                    reply = _decoded(server, decode, answer)
                    if self._is_answer(reply, generation):
                        return reply, num_tries
                    problem = PeerUnavailable("is not restored yet", place=f"ps-{server}")
            self._pause(next(pauses), deadline, generation, problem)

    def _is_answer(self, reply: PsReply, generation: int) -> bool:
        if reply.status is Status.ROLLED_BACK:
            with self._routed:
                # Calls to other servers need not wait until these are back to know it too.
                self._newest_generation = max(self._newest_generation, reply.generation)
                self._routed.notify_all()
            raise RolledBack(max(reply.generation, generation + 1))
        if reply.status is Status.SUPERSEDED:
            raise Superseded("a later attempt at the task has begun")
        return reply.status is not Status.NOT_READY

    def _count(self, num_sent: int, num_received: int) -> None:
        with self._count_lock:
            self.bytes_sent += num_sent
            self.bytes_received += num_received

    def _transport_to(
        self, server: int, generation: int, placement: int | None
    ) -> PsTransport | None:
        with self._routed:
            newest = max(self._route.generation, self._newest_generation)
            if newest != generation:
                raise RolledBack(newest)
            if placement is not None and placement != self._placement:
                raise Moved
            transports = self._route.transports
            return transports[server] if server < len(transports) else None

    def _pause(
        self, seconds: float, deadline: float, generation: int, problem: PeerUnavailable
    ) -> None:
        """Waits before another try, or until something is known; raises after the deadline."""
        with self._routed:
            remaining = deadline - self._clock()
            if remaining <= 0 or self._closed:
                raise problem
            route, placement = self._route, self._placement

            def is_over() -> bool:
                return (
                    self._route is not route
                    or self._newest_generation > generation
                    or self._placement != placement
                    or self._closed
                )

            self._routed.wait_for(is_over, min(seconds, remaining))

    def _pauses(self, server: int) -> Iterator[float]:
        seed = (self._seed + server) & 0xFFFF
        return delays(_FIRST_PAUSE_SECONDS, _PAUSE_GROWTH, _LONGEST_PAUSE_SECONDS, seed)


def _pool_for(num_servers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(6 * num_servers, thread_name_prefix="ps-calls")


def gather(futures: Sequence[Future[T]], decides: Callable[[T], bool] | None) -> Sequence[T | None]:
    """Waits for all answers, then raises the first error; or for one answer that decides.

    With `decides`, the first error is raised at once; calls under way go on by themselves.

    Returns:
        The answers, None where there is none yet.
    """
    waiting = set(futures)
    while waiting and decides is not None:
        ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        if any(decides(future.result()) for future in ended):
            return [future.result() if future.done() else None for future in futures]
    wait(futures)
    return [future.result() for future in futures]


def malformed(server: int, what: str) -> CallRefused:
    """A server answers what cannot be."""
    return CallRefused("malformed", f"answered what cannot be read: {what}", place=f"ps-{server}")


def _decoded(server: int, decode: Callable[[bytes], T], answer: bytes) -> T:
    try:
        return decode(answer)
    except MalformedMessage as error:
        raise malformed(server, str(error)) from None
