"""Serves the rendezvous. A call that waits for others holds no thread."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.rendezvous import (
    Answer,
    Met,
    Refused,
    Rendezvous,
    RendezvousTimes,
    World,
)
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
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

_STOP_SECONDS = 1.0


class RendezvousServer:
    """The rendezvous of one job on an address; a context manager that serves while it is open.

    Args:
        address: `host:port` to bind; port 0 takes a free one.
        access: Secrets of the job, as of role `master`.
        times: How long the rendezvous waits.

    Raises:
        CtrPipelineError: The address cannot be served.
    """

    def __init__(self, address: str, access: Access, times: RendezvousTimes) -> None:
        self._rendezvous = Rendezvous(times)
        self._calls: dict[int, LaterReply] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._ticker = threading.Thread(target=self._tick, name="rendezvous ticker", daemon=True)
        self._server = RpcServer(SERVICE, self._methods(), address=address, access=access)
        self.address = self._server.start()
        self._ticker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._ticker.join()
        self._server.stop(_STOP_SECONDS)

    def wait_until_finished(self, timeout_seconds: float | None = None) -> bool:
        """Returns when the job has finished and all nodes have left, or the timeout is over.

        Returns:
            Whether it has finished.
        """

        def is_over() -> bool:
            return self._rendezvous.finished and self._rendezvous.is_idle

        with self._changed:
            return self._changed.wait_for(is_over, timeout_seconds)

    def _methods(self) -> tuple[Method, ...]:
        def method(name: str, request: type, reply: type, call: Callable[[Any], object]) -> Method:
            return Method(name, request, reply, call, callers=("worker",))

        return (
            method("GetClusterSpec", GetClusterSpec, World, self._get_cluster_spec),
            method("GetWaitingNodes", GetWaitingNodes, WaitingNodes, self._get_waiting_nodes),
            method("Barrier", Barrier, Met, self._barrier),
            method("Synchronize", Synchronize, Met, self._synchronize),
            method("Leave", Leave, Empty, self._leave),
        )

    def _get_cluster_spec(self, ask: GetClusterSpec) -> LaterReply:
        return self._answer_later(
            lambda call, now: self._rendezvous.get_cluster_spec(
                ask.address, ask.least, ask.most, reset=ask.reset, call=call, now=now
            )
        )

    def _get_waiting_nodes(self, ask: GetWaitingNodes) -> WaitingNodes:
        with self._changed:
            number = self._rendezvous.get_waiting_nodes(ask.address, ask.version, time.monotonic())
        return WaitingNodes(number)

    def _barrier(self, ask: Barrier) -> LaterReply:
        return self._answer_later(
            lambda call, now: self._rendezvous.barrier(
                ask.address, ask.tag, ask.timeout_seconds, call=call, now=now
            )
        )

    def _synchronize(self, ask: Synchronize) -> LaterReply:
        return self._answer_later(
            lambda call, now: self._rendezvous.synchronize(
                ask.address, ask.tag, ask.data, ask.timeout_seconds, call=call, now=now
            )
        )

    def _leave(self, ask: Leave) -> Empty:
        with self._changed:
            self._perform(self._rendezvous.leave(ask.address, time.monotonic()))
        return Empty()

    def _answer_later(self, decide: Callable[[int, float], list[Answer]]) -> LaterReply:
        with self._changed:
            call = next(self._numbers)
            reply = self._calls[call] = LaterReply(lambda _: self._abandon(call))
            self._perform(decide(call, time.monotonic()))
        return reply

    def _abandon(self, call: int) -> None:
        with self._changed:
            if self._calls.pop(call, None) is not None:
                self._perform(self._rendezvous.abandon(call, time.monotonic()))

    def _perform(self, answers: Iterable[Answer]) -> None:
        """Gives answers; the caller holds the lock."""
        for answer in answers:
            call = self._calls.pop(answer.call, None)
            if call is None:
                continue
            if isinstance(answer.reply, Refused):
                call.refuse(Refusal(answer.reply.code, answer.reply.reason))
            else:
                call.give(answer.reply)
        self._changed.notify_all()

    def _tick(self) -> None:
        with self._changed:
            while not self._stopping:
                left = self._rendezvous.next_deadline() - time.monotonic()
                self._changed.wait(None if math.isinf(left) else max(left, 0.0))
                # Not on each call that came meanwhile, but when there is something to do.
                now = time.monotonic()
                if now >= self._rendezvous.next_deadline():
                    self._perform(self._rendezvous.tick(now))
