"""The serving side of a replica: adds what it owns, and hands over its parameters."""

import itertools
import struct
import threading
from collections.abc import Callable, Iterable

from ctr_pipeline.distributed.coordination.codec import decode
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.step_sums import Complete, StepSums, Void
from ctr_pipeline.distributed.replicas.messages import (
    SERVICE,
    ShareRequest,
    StateRequest,
    SumReply,
    add_shares,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

_CHUNK_BYTES = 16 << 20
_STOP_SECONDS = 1.0
_STATE_HEAD = struct.Struct("<Q")
"""Before each part of the parameters: the bytes of the whole."""


class ReplicaServer:
    """Serves one replica to the others.

    Args:
        address: `host:port` to bind; port 0 takes a free one.
        access: Secrets of the job, as of role `worker`.
    """

    def __init__(self, address: str, access: Access) -> None:
        self._lock = threading.Lock()
        self._sums: StepSums[ShareRequest] = StepSums()
        self._calls: dict[int, LaterReply] = {}
        self._numbers = itertools.count()
        self._saving = threading.Lock()
        self._save_state: Callable[[], bytes] | None = None
        self._saved: bytes | None = None
        methods = (
            Method("Share", ShareRequest, SumReply, self.share, callers=("worker",)),
            Method("ReadState", None, None, self._read_state, callers=("worker",)),
            Method("Ping", Empty, Empty, lambda empty: empty, callers=("worker",)),
        )
        self._server = RpcServer(SERVICE, methods, address=address, access=access)
        self.address = self._server.start()

    @property
    def bytes_sent(self) -> int:
        """Payload of answers so far."""
        return self._server.bytes_sent

    def begin(self, version: int, size: int, save_state: Callable[[], bytes]) -> None:
        """A world begins.

        Args:
            save_state: Makes the bytes of the parameters that this replica begins with.
        """
        with self._lock:
            self._save_state, self._saved = save_state, None
            self._void(self._sums.begin(version, size))

    def end(self, version: int) -> None:
        """A world is over, as far as this replica is concerned: nothing of it is added."""
        with self._lock:
            if version == self._sums.version:
                self._save_state = self._saved = None
                self._void(self._sums.end())

    def close(self) -> None:
        """Takes no more calls."""
        self.end(self._sums.version)
        self._server.stop(_STOP_SECONDS)

    def share(self, share: ShareRequest) -> LaterReply:
        """Takes a share; answered with the sum when all members have brought theirs."""
        reply = LaterReply()
        with self._lock:
            call = next(self._numbers)
            self._calls[call] = reply
            outcome = self._sums.bring(
                version=share.world, step=share.step, rank=share.rank, share=share, call=call
            )
            if isinstance(outcome, Void):
                self._void((call,), outcome.reason)
            if not isinstance(outcome, Complete):
                return reply
            calls = [self._calls.pop(one) for one in outcome.calls]
            # All members have the parameters of this step.
            self._save_state = self._saved = None
        total = add_shares(outcome.shares)
        for waiting in calls:
            waiting.give(total)
        return reply

    def _void(self, calls: Iterable[int], reason: str = "the world is over") -> None:
        for call in calls:
            self._calls.pop(call).refuse(Refusal("void", reason))

    def _read_state(self, data: bytes) -> bytes:
        request = decode(StateRequest, data)
        with self._saving:
            saved = self._state_of(request.world)
        head = _STATE_HEAD.pack(len(saved))
        return head + saved[request.first : request.first + _CHUNK_BYTES]

    def _state_of(self, world: int) -> bytes:
        """The parameters of the current world, made once."""
        with self._lock:
            save, saved = self._save_state, self._saved
            self._require_world(world)
        if saved is None:
            if save is None:
                raise Refusal("void", f"world {world} has made a step since")
            saved = save()
            with self._lock:
                # They may have changed meanwhile, if the world is over.
                self._require_world(world)
                self._saved = saved
        return saved

    def _require_world(self, world: int) -> None:
        if not self._sums.is_open or self._sums.version != world:
            # A caller that was told of the next world sooner asks again.
            code = "not_ready" if world > self._sums.version else "void"
            raise Refusal(code, f"this replica is not in world {world}")


def split_state(reply: bytes) -> tuple[int, bytes]:
    """The bytes of the whole, and this part of them."""
    (total,) = _STATE_HEAD.unpack_from(reply)
    return total, reply[_STATE_HEAD.size :]
