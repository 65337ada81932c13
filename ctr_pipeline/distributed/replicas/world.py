"""The other replicas of a model, as the trainer of one sees them.

The rendezvous says who trains together. In a step, each replica sends every other one its share of
what that one owns: a range of the dense vector, and the keys that fall to it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise

import numpy as np

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.exit_codes import EXIT_CUT_OFF
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.rendezvous import NodeRange, World
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.messages import CUT_OFF
from ctr_pipeline.distributed.ps.merging import RowGradients, merge_dense, merge_rows
from ctr_pipeline.distributed.replicas.messages import (
    SERVICE,
    ShareRequest,
    StateRequest,
    SumReply,
)
from ctr_pipeline.distributed.replicas.served_rows import ServedRows, gradients_by_owner
from ctr_pipeline.distributed.replicas.service import ReplicaServer, split_state
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import PendingCall, RpcClient
from ctr_pipeline.distributed.rpc.endpoint import reachable_address
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable, Refusal
from ctr_pipeline.distributed.worker.batch_keys import divide_keys
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.training.replicas import Joined, Pace, Share, Total, WorldChanged

_LOGGER = logging.getLogger(__name__)
_JOIN_SECONDS = 600.0
_ASK_SECONDS = 3.0
_MEET_SECONDS = 3600.0
_SHARE_SECONDS = 3600.0
"""The watch ends a call much sooner, when a member is lost or its step has failed."""
_STATE_SECONDS = 60.0
_WATCH_SECONDS = 0.2
_RETRY_SECONDS = 0.05
_PROBE_SECONDS = 2.0
"""A member whose call got no answer is asked for so long whether it is there. With the 3 s that it
took to notice, that is as long as a lease: one that was stopped for a while has come back by then,
or is lost."""

_STUCK_SECONDS = 30.0
"""Within which a step ends once another world is wanted, unless who left could not say so."""


class CutOffError(CtrPipelineError):
    """This replica and another one cannot reach each other, and it is this one that has to go."""

    exit_code = EXIT_CUT_OFF


class ReplicaWorld:
    """The `Replicas` of one process; a context manager that leaves at its end.

    Args:
        rendezvous: Finds `host:port` of the rendezvous, which is looked up again when it does not
            answer.
        access: Secrets of the job, as of role `worker`.
        nodes: How many replicas may train together.
        num_dense: Dense parameters of the model.
        width: Values of a row.
        rows: Rows on servers; None: each replica holds all rows.
        host: Address of this machine to serve the others on.
        is_stopping: Whether this replica is not to wait for a world any more.
    """

    def __init__(
        self,
        rendezvous: Callable[[], str],
        access: Access,
        *,
        nodes: NodeRange,
        num_dense: int,
        width: int,
        rows: ServedRows | None = None,
        host: str = "127.0.0.1",
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._access = access
        self._nodes = nodes
        self._num_dense = num_dense
        self._width = width
        self._rows = rows
        self._is_stopping = is_stopping
        self._server = ReplicaServer(f"{host}:0", access)
        self.address = reachable_address(self._server.address)
        self._find_rendezvous = rendezvous
        self._rendezvous = RendezvousClient(rendezvous(), self.address, access)
        self._watched = RendezvousClient(rendezvous(), self.address, access)
        self._has_asked = False
        # Whether the newest step was begun and not made.
        self._has_failed = False
        # Members whose calls got no answer, and those of them that do not answer at all.
        self._suspects: set[str] = set()
        self._unreachable: tuple[str, ...] = ()
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

    @property
    def members(self) -> tuple[str, ...]:
        """Addresses of those that train together, by rank."""
        return self._members

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
            CutOffError: This replica is left out of it.
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
                self._probe_suspects()
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
        has_failed, self._has_failed = self._has_failed, False
        unreachable, self._unreachable = self._unreachable, ()
        while True:
            self._rendezvous = self._look_up(self._rendezvous)
            try:
                reset, self._has_asked = not self._has_asked, True
                return self._rendezvous.get_cluster_spec(
                    self._nodes,
                    reset=reset,
                    has_failed=has_failed,
                    unreachable=unreachable,
                    timeout_seconds=_ASK_SECONDS,
                )
            except CallRefused as error:
                if error.code != CUT_OFF:
                    raise
                raise CutOffError(str(error), remedy="It is started again") from error
            except PeerUnavailable:
                if self._is_stopping():
                    raise WorldChanged("this replica is to leave") from None
                if time.monotonic() > until:
                    raise

    def _probe_suspects(self) -> None:
        """Asks members whose calls got no answer whether they are there.

        Raises:
            WorldChanged: Some do not answer, which the rendezvous is told with the next question;
                or the world is over.
        """
        until = time.monotonic() + _PROBE_SECONDS
        # Those that are in no world with this replica any more were lost.
        self._suspects &= set(self._members)
        while self._suspects:
            pings = [
                (address, self._start_ping(address, until - time.monotonic()))
                for address in self._suspects
            ]
            for address, ping in pings:
                with suppress(PeerUnavailable):
                    ping.result()
                    self._suspects.discard(address)
            if self._waiting_nodes:
                raise WorldChanged
            if not self._suspects:
                return
            if time.monotonic() + _RETRY_SECONDS >= until:
                self._unreachable, self._suspects = tuple(self._suspects), set()
                raise WorldChanged(f"{', '.join(self._unreachable)} cannot be reached")
            time.sleep(_RETRY_SECONDS)

    def _start_ping(self, address: str, seconds: float) -> PendingCall:
        client = self._client(self._members.index(address))
        return client.start_bytes("Ping", encode(Empty()), deadline_seconds=max(seconds, 0.0))

    def _look_up(self, client: RendezvousClient) -> RendezvousClient:
        """The rendezvous where it is served now: as before, or by a process that came after."""
        try:
            place = self._find_rendezvous()
        except CtrPipelineError as error:
            _LOGGER.warning("Where the rendezvous is served cannot be read: %s", error)
            return client
        if place == client.place:
            return client
        client.close()
        return RendezvousClient(place, self.address, self._access)

    def require_unchanged(self) -> None:
        """Raises `WorldChanged` if others wait to join, or some are lost."""
        if self._waiting_nodes:
            raise WorldChanged

    def meet(self, tag: str, text: str = "") -> tuple[str, ...]:
        """As `Replicas.meet`."""
        try:
            return self._rendezvous.synchronize(tag, text, _MEET_SECONDS)
        except (PeerUnavailable, CallRefused) as error:
            raise WorldChanged(str(error)) from None

    def add(self, pace: Pace, shares: Sequence[Share]) -> Total:
        """Brings shares to their owners, and waits for the sums; raises `WorldChanged`."""
        size = len(self._members)
        self._has_failed = True
        if self._rows is not None:
            # Only when all servers have the gradients of their rows is there a dense sum.
            self._rows.share(pace, self._rank, shares)
        bounds = np.linspace(0, self._num_dense, size + 1).astype(int).tolist()
        ranges = tuple(pairwise(bounds))
        placement = Placement(0, tuple(range(size)), ranges)
        by_owner = [
            _sum_gradients(share, placement, self._width)
            if self._rows is None
            else [RowGradients.none(self._width)] * size
            for share in shares
        ]
        examples = [share.num_examples for share in shares]

        def for_owner(owner: int) -> ShareRequest:
            low, high = ranges[owner]
            rows = (
                merge_rows([of_share[owner] for of_share in by_owner])
                if shares
                else RowGradients.none(self._width)
            )
            dense = (
                merge_dense([share.parameters_P[low:high] for share in shares], examples)
                if shares
                else np.zeros(high - low, np.float32)
            )
            return ShareRequest(
                world=self._version,
                step=pace.step,
                rank=self._rank,
                num_examples=sum(examples),
                loss_sum=sum(share.loss_sum for share in shares),
                keys=rows.keys,
                num_occurrences=rows.num_occurrences,
                sums=rows.sums,
                dense=dense,
            )

        pending: dict[int, PendingCall] = {}
        try:
            for owner in range(size):
                if owner != self._rank:
                    pending[owner] = self._start_share(owner, for_owner(owner))
            own: Future[SumReply] = Future()
            self._server.share(for_owner(self._rank)).send_with(lambda make: _settle(own, make))
            with self._lock:
                self._pending = list(pending.values())
                is_over = self._waiting_nodes < 0
            if is_over:
                self._end_calls()
            replies = [
                own.result() if owner == self._rank else SumReply.decode(pending[owner].result())
                for owner in range(size)
            ]
        except (PeerUnavailable, CallRefused, Refusal) as error:
            self._server.end(self._version)
            self._suspects |= {
                self._members[owner] for owner, call in pending.items() if _got_no_answer(call)
            }
            raise WorldChanged(str(error)) from None
        finally:
            with self._lock:
                self._pending = []
        if self._rows is not None:
            self._rows.count_step(pace.step)
        self._has_failed = False
        return Total(
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
            except PeerUnavailable:
                self._suspects.add(self._members[source])
                raise
            total, part = split_state(reply)
            parts.append(part)
            length += len(part)
        return b"".join(parts)

    def _require_members(self) -> None:
        if self._waiting_nodes < 0:
            raise WorldChanged("a member was lost, or has failed")

    def _watch_world(self) -> None:
        """Renews the lease, and ends calls that wait for members that are lost or have failed."""
        stuck_at = math.inf
        while not self._leaving.wait(_WATCH_SECONDS):
            version = self._version
            if not version:
                continue
            try:
                waiting_nodes = self._watched.get_waiting_nodes(version)
            except CtrPipelineError as error:
                _LOGGER.warning("The rendezvous does not answer: %s", error)
                self._watched = self._look_up(self._watched)
                if (waiting := self._rendezvous).place != self._watched.place:
                    # The trainer's thread may wait for an answer that cannot come any more.
                    waiting.cancel()
                continue
            with self._lock:
                if version != self._version:
                    continue
                self._waiting_nodes = waiting_nodes
            now = time.monotonic()
            stuck_at = min(stuck_at, now + _STUCK_SECONDS) if waiting_nodes else math.inf
            if waiting_nodes < 0 or now > stuck_at:
                self._end_calls()
                stuck_at = math.inf

    def _end_calls(self) -> None:
        if self._rows is not None:
            self._rows.end_calls()
        with self._lock:
            version, pending = self._version, list(self._pending)
        if pending:
            self._server.end(version)
        for call in pending:
            call.cancel()


def _got_no_answer(call: PendingCall) -> bool:
    """Whether a call has ended without an answer, or was ended because nobody waits for it."""
    if not call.done():
        return False
    try:
        call.result()
    except PeerUnavailable:
        return True
    except CallRefused:
        pass
    return False


def _sum_gradients(share: Share, placement: Placement, width: int) -> list[RowGradients]:
    """The gradients of each key of a batch, by owner."""
    if not share.prepared.num_unique:
        return [RowGradients.none(width)] * placement.num_servers
    keys = divide_keys(share.prepared, placement, placement.num_servers)
    return gradients_by_owner(keys, share.gradients, width)


def _settle(future: "Future[SumReply]", make: Callable[[], object]) -> None:
    try:
        future.set_result(make())  # type: ignore[arg-type]
    except Refusal as error:
        future.set_exception(error)
