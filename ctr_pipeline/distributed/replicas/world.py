"""The other replicas of a model, as the trainer of one sees them.

The rendezvous says who trains together. In a step, each replica sends every other one its share of
what that one owns: a range of the dense vector, and the keys that fall to it.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise

import numpy as np

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.rendezvous import NodeRange, World
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.replicas.messages import (
    SERVICE,
    ShareRequest,
    StateRequest,
    SumReply,
)
from ctr_pipeline.distributed.replicas.service import ReplicaServer, split_state
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingCall, RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable, Refusal
from ctr_pipeline.distributed.worker import value_kernels
from ctr_pipeline.distributed.worker.batch_keys import PreparedKeys, divide_keys
from ctr_pipeline.embeddings.arrays import Float32Array
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.training.replicas import Joined, Share, Total, WorldChanged

_LOGGER = logging.getLogger(__name__)
_JOIN_SECONDS = 600.0
_ASK_SECONDS = 3.0
_MEET_SECONDS = 3600.0
_SHARE_SECONDS = 3600.0
"""The watch ends a call much sooner, when the rendezvous counts a member as lost."""
_STATE_SECONDS = 60.0
_WATCH_SECONDS = 0.2
_RETRY_SECONDS = 0.05


class ReplicaWorld:
    """The `Replicas` of one process; a context manager that leaves at its end.

    Args:
        rendezvous: `host:port` of the rendezvous.
        access: Secrets of the job, as of role `worker`.
        nodes: How many replicas may train together.
        num_dense: Dense parameters of the model.
        width: Values of a row.
        host: Address that the others reach this one by.
        is_stopping: Whether this replica is not to wait for a world any more.
    """

    def __init__(
        self,
        rendezvous: str,
        access: Access,
        *,
        nodes: NodeRange,
        num_dense: int,
        width: int,
        host: str = "127.0.0.1",
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._access = access
        self._nodes = nodes
        self._num_dense = num_dense
        self._width = width
        self._is_stopping = is_stopping
        self._server = ReplicaServer(f"{host}:0", access)
        self.address = self._server.address
        self._rendezvous = RendezvousClient(rendezvous, self.address, access)
        self._watched = RendezvousClient(rendezvous, self.address, access)
        self._has_asked = False
        self._members: tuple[str, ...] = ()
        self._clients: dict[str, RpcClient] = {}
        self._version = self._rank = 0
        # What the thread that watches the rendezvous and the trainer's thread tell each other.
        self._lock = threading.Lock()
        self._waiting_nodes = 0
        self._pending: list[PendingCall] = []
        self._leaving = threading.Event()
        self._watch = threading.Thread(target=self._watch_world, name="watch-world", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Leaves the world, for good."""
        self._leaving.set()
        self._watch.join()
        try:
            self._rendezvous.leave()
        except (PeerUnavailable, CallRefused) as error:
            _LOGGER.warning("The rendezvous cannot be told that this replica leaves: %s", error)
        self._rendezvous.close()
        self._watched.close()
        for client in self._clients.values():
            client.close()
        self._server.close()

    def join(self, held: str, save_state: Callable[[], bytes]) -> Joined:
        """Waits for a world, and for the parameters of a member that is further.

        Raises:
            CtrPipelineError: None was formed, or the rendezvous refuses this replica.
        """
        while True:
            self._server.end(self._version)
            world = self._await_world()
            for address in set(self._clients) - set(world.addresses):
                self._clients.pop(address).close()
            with self._lock:
                self._version, self._rank = world.version, world.rank
                self._members, self._waiting_nodes = world.addresses, 0
            self._server.begin(world.version, len(world.addresses), save_state)
            try:
                everyone = self._rendezvous.synchronize("held", held, _STATE_SECONDS)
                newest = max(everyone)
                source = everyone.index(newest)
                state = None if held == newest else self._read_state(source)
            except (PeerUnavailable, CallRefused, WorldChanged) as error:
                _LOGGER.info("World %d ends before it trains: %s", world.version, error)
                continue
            return Joined(world.version, world.rank, len(everyone), state, is_first=not newest)

    def _await_world(self) -> World:
        """Waits for the next world; looks up now and then whether it is still to be waited for."""
        until = time.monotonic() + _JOIN_SECONDS
        while True:
            try:
                reset, self._has_asked = not self._has_asked, True
                return self._rendezvous.get_cluster_spec(
                    self._nodes, reset=reset, timeout_seconds=_ASK_SECONDS
                )
            except PeerUnavailable:
                if self._is_stopping():
                    raise WorldChanged("this replica is to leave") from None
                if time.monotonic() > until:
                    raise

    def require_unchanged(self) -> None:
        """Raises `WorldChanged` if others wait to join, or some are lost."""
        if self._waiting_nodes:
            raise WorldChanged

    def meet(self, tag: str) -> None:
        """Returns when all members have come to the same place; raises `WorldChanged`."""
        try:
            self._rendezvous.barrier(tag, _MEET_SECONDS)
        except (PeerUnavailable, CallRefused) as error:
            raise WorldChanged(str(error)) from None

    def add(self, step: int, share: Share) -> Total:
        """Brings a share to its owners, and waits for their sums; raises `WorldChanged`."""
        size = len(self._members)
        bounds = np.linspace(0, self._num_dense, size + 1).astype(int).tolist()
        ranges = tuple(pairwise(bounds))
        keys, sums_UW = self._sum_gradients(share, Placement(0, tuple(range(size)), ranges))

        def for_owner(owner: int) -> ShareRequest:
            first, last = (0, 0) if keys is None else keys.bounds[owner : owner + 2]
            low, high = ranges[owner]
            return ShareRequest(
                world=self._version,
                step=step,
                rank=self._rank,
                num_examples=share.num_examples,
                loss_sum=share.loss_sum,
                keys=np.empty(0, np.int64) if keys is None else keys.keys_U[first:last],
                num_occurrences=np.empty(0, np.int32)
                if keys is None
                else keys.num_occurrences_U[first:last],
                sums=sums_UW[first:last],
                dense=share.parameters_P[low:high],
            )

        try:
            pending = {
                owner: self._start_share(owner, for_owner(owner))
                for owner in range(size)
                if owner != self._rank
            }
            own: Future[SumReply] = Future()
            self._server.share(for_owner(self._rank)).send_with(lambda make: _settle(own, make))
            with self._lock:
                self._pending = list(pending.values())
                is_lost = self._waiting_nodes < 0
            if is_lost:
                self._end_calls()
            replies = [
                own.result() if owner == self._rank else SumReply.decode(pending[owner].result())
                for owner in range(size)
            ]
        except (PeerUnavailable, CallRefused, Refusal) as error:
            self._server.end(self._version)
            raise WorldChanged(str(error)) from None
        finally:
            with self._lock:
                self._pending = []
        return Total(
            num_batches=replies[0].num_batches,
            num_examples=replies[0].num_examples,
            loss_sum=replies[0].loss_sum,
            parameters_P=np.concatenate([one.dense for one in replies]),
            keys_U=np.concatenate([one.keys for one in replies]),
            num_occurrences_U=np.concatenate([one.num_occurrences for one in replies]),
            sums_UW=np.concatenate([one.sums for one in replies]),
        )

    def _start_share(self, owner: int, share: ShareRequest) -> PendingCall:
        call = self._client(owner).start_bytes(
            "Share", share.encode(), deadline_seconds=_SHARE_SECONDS
        )

        def end_if_failed() -> None:
            try:
                call.result()
            except (PeerUnavailable, CallRefused):
                # Not before: the trainer's thread may wait for what this replica owns.
                self._server.end(share.world)

        call.add_done_callback(end_if_failed)
        return call

    def _sum_gradients(
        self, share: Share, placement: Placement
    ) -> tuple[PreparedKeys | None, Float32Array]:
        """The gradients of each key of the batch, by owner."""
        if share.prepared is None or share.gradients is None or not share.prepared.num_unique:
            return None, np.empty((0, self._width), np.float32)
        keys = divide_keys(share.prepared, placement, placement.num_servers)
        leading, trailing = (np.ascontiguousarray(part, np.float32) for part in share.gradients)
        num_places = len(share.prepared.inverse_P)
        sums_UW = np.empty((len(keys.keys_U), self._width), np.float32)
        value_kernels.sum_gradients(
            keys.order_U,
            share.prepared.offsets,
            share.prepared.occurrences,
            leading.reshape(num_places, leading.shape[-1]),
            trailing.reshape(num_places, trailing.shape[-1]),
            sums_UW,
            0,
            len(sums_UW),
        )
        return keys, sums_UW

    def _client(self, rank: int) -> RpcClient:
        address = self._members[rank]
        if address not in self._clients:
            self._clients[address] = RpcClient(SERVICE, address, self._access)
        return self._clients[address]

    def _read_state(self, source: int) -> bytes:
        """Streams the parameters of another member."""
        parts: list[bytes] = []
        length, total = 0, 1
        while length < total:
            self._require_members()
            message = encode(StateRequest(self._version, length))
            try:
                reply = self._client(source).call_bytes(
                    "ReadState", message, deadline_seconds=_STATE_SECONDS
                )
            except CallRefused as error:
                if error.code != "not_ready":
                    raise
                time.sleep(_RETRY_SECONDS)
                continue
            total, part = split_state(reply)
            parts.append(part)
            length += len(part)
        return b"".join(parts)

    def _require_members(self) -> None:
        if self._waiting_nodes < 0:
            raise WorldChanged("a member was lost")

    def _watch_world(self) -> None:
        """Renews the lease, and ends calls that wait for members that are lost."""
        while not self._leaving.wait(_WATCH_SECONDS):
            version = self._version
            if not version:
                continue
            try:
                waiting_nodes = self._watched.get_waiting_nodes(version)
            except CtrPipelineError as error:
                _LOGGER.warning("The rendezvous does not answer: %s", error)
                continue
            with self._lock:
                if version != self._version:
                    continue
                self._waiting_nodes = waiting_nodes
            if waiting_nodes < 0:
                self._end_calls()

    def _end_calls(self) -> None:
        with self._lock:
            version, pending = self._version, list(self._pending)
        if pending:
            self._server.end(version)
        for call in pending:
            call.cancel()


def _settle(future: "Future[SumReply]", make: Callable[[], object]) -> None:
    try:
        future.set_result(make())  # type: ignore[arg-type]
    except Refusal as error:
        future.set_exception(error)
