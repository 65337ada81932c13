"""A worker's way to the parameter servers: one pull and one push a batch and server, in parallel.

Axes: B examples, F fields, U distinct keys of a batch in the order of the servers that own them,
W values of a row, A the leading ones, D the others, P dense parameters.

Every call is tried again until its deadline, see `ps_calls`: a pull changes nothing that matters
twice, and a push that was applied before is answered as such.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ctr_pipeline.distributed.coordination.placement import Placement, balanced_placement
from ctr_pipeline.distributed.coordination.rounds import (
    ROUND_TIMEOUT_SECONDS,
    BatchId,
    worker_number,
)
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.packed import (
    DenseReply,
    DenseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    Status,
)
from ctr_pipeline.distributed.worker.batch_keys import (
    PreparedKeys,
    batch_without_keys,
    common_positions,
    divide_keys,
    sum_gradients,
)
from ctr_pipeline.distributed.worker.exchanges import (
    AGAIN,
    Pull,
    Push,
    PushAnswer,
    PushOutcome,
    Refreshed,
)
from ctr_pipeline.distributed.worker.known_dense import DensePart, KnownDense
from ctr_pipeline.distributed.worker.ps_calls import (
    CallTimeouts,
    Moved,
    PsCalls,
    PsTransport,
    malformed,
)
from ctr_pipeline.embeddings.arrays import (
    Float32Array,
    IdArray,
    Int64Array,
)
from ctr_pipeline.embeddings.unique import BatchPreparer
from ctr_pipeline.kernels.ranges import RangeRunner

_LOGGER = logging.getLogger(__name__)
_SERVICE = "PsService"
_DEADLINE_SECONDS = 30.0
_CALL_SECONDS = 10.0

_MOVED_BEFORE = PushReply(Status.MOVED, 0, 0, np.empty(0, np.float32), np.empty((0, 0), np.float32))


class PsClient:
    """Pulls, pushes and reads rows; one thread trains, `prepare` and `route` may run beside it.

    Args:
        access: Secrets of the job.
        incarnation: Incarnation of the worker; servers of a synchronous job count workers by it.
        threads: Threads that copy values and sum gradients.
        deadline_seconds: A call is tried again for so long.
        call_seconds: For one try.
        connect: Makes the connection to an address; None: gRPC.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        spec: JobSpec,
        access: Access,
        *,
        incarnation: str = "",
        threads: int = 1,
        deadline_seconds: float = _DEADLINE_SECONDS,
        call_seconds: float = _CALL_SECONDS,
        connect: Callable[[str], PsTransport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._width = sum(segment.dim for segment in spec.segments)
        position_tables = spec.position_tables or range(len(spec.tables))
        self._preparer = BatchPreparer(spec.tables, position_tables) if spec.tables else None
        self._worker = worker_number(incarnation)
        self._runner = RangeRunner(threads)
        self._deadline_seconds = deadline_seconds
        self._call_seconds = call_seconds
        self._calls = PsCalls(
            spec.num_parameter_servers,
            connect=connect or (lambda address: RpcClient(_SERVICE, address, access)),
            timeouts=CallTimeouts(deadline_seconds, call_seconds),
            clock=clock,
            seed=self._worker,
        )
        timeouts = CallTimeouts(deadline_seconds, call_seconds)
        # For what waits for other workers first.
        long_timeouts = CallTimeouts(
            deadline_seconds + ROUND_TIMEOUT_SECONDS, call_seconds + ROUND_TIMEOUT_SECONDS
        )
        self._push_timeouts = long_timeouts if spec.update_rule.update == "sync" else timeouts
        self._pull_timeouts = long_timeouts if spec.update_rule.update == "bounded" else timeouts
        self._known = KnownDense(
            spec.num_dense,
            balanced_placement(spec),
            lambda placement: self._calls.follow(placement.version, placement.num_servers),
        )
        # Batches that some server may have while others do not, and whether they were repeated.
        self._unfinished: dict[BatchId, bool] = {}

    @property
    def generation(self) -> int:
        """The generation that calls are made in; -1 before the first route."""
        return self._calls.generation

    @property
    def bytes_sent(self) -> int:
        """Payload of requests so far."""
        return self._calls.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Payload of answers so far."""
        return self._calls.bytes_received

    def route(self, generation: int, addresses: Sequence[str]) -> None:
        """Where the servers are from now on, in any thread; calls of another generation end.

        Dense values of another generation are forgotten. Servers that nobody gave dense values yet
        answer no pull that asks for them: `init_dense` comes first in every generation.

        Args:
            addresses: By server; empty where one is not there yet.
        """
        self._calls.route(generation, addresses)
        # The servers say what is otherwise.
        if self._known.begin(generation, balanced_placement(self._spec)):
            self._unfinished = {}

    def close(self) -> None:
        """Ends all connections; calls under way are `PeerUnavailable`."""
        self._calls.close()

    def prepare(self, ids_BF: IdArray, num_valid: int) -> PreparedKeys:
        """Makes the ids of a batch unique and finds their owners; in any thread.

        Args:
            ids_BF: int32 or int64 [B, F].
            num_valid: The first so many rows count; the others are padding of any content.

        Raises:
            ValueError: An id is not in its table, or the array does not fit.
        """
        if self._preparer is None:
            batch = batch_without_keys(ids_BF, num_valid)
        else:
            batch = self._preparer.prepare(ids_BF, num_valid)
        return divide_keys(batch, self._known.placement, self._spec.num_partitions)

    def start_pull(
        self,
        prepared: PreparedKeys,
        *,
        create: bool,
        batch: BatchId | None,
        dense: bool = True,
        after: Push | None = None,
    ) -> Pull:
        """Asks all servers for the values of a batch.

        Args:
            prepared: The batch.
            create: Make the missing rows, as training does; else they read as zeros.
            batch: The batch to train with the values; None for scoring.
            dense: Bring the dense values too, if there are newer ones than those known here; not
                needed for a pull ahead of a push that brings them.
            after: The values are to know of this push, wherever it succeeds.
        """
        generation = self.generation
        placement, known = self._known.versions()
        if prepared.placement != placement:
            prepared = divide_keys(prepared.batch, placement, self._spec.num_partitions)
        pull = Pull(prepared, generation, self._width)

        def fetch(server: int) -> None:
            if after is not None:
                after.wait_server(server)
            first, last = prepared.bounds[server], prepared.bounds[server + 1]
            request = PullRequest(
                generation=generation,
                batch=batch,
                worker=self._worker,
                create=create,
                # Those of a range that has moved nobody else brings.
                dense_version=known[server] if dense or known[server] < 0 else None,
                keys=prepared.keys_U[first:last],
                placement=placement.version,
            )
            reply, _ = self._calls.ask(
                server,
                "Pull",
                request.encode(),
                PullReply.decode,
                generation=generation,
                placement=placement.version,
                timeouts=self._pull_timeouts,
            )
            if reply.status is Status.MOVED:
                self._learn_placement(server, generation)
                raise Moved
            if reply.values.shape != (last - first, self._width):
                raise malformed(server, f"{reply.values.shape} values")
            pull.values_UW[first:last] = reply.values
            pull.versions[server] = reply.version
            if reply.dense is not None:
                part = DensePart(reply.version, reply.dense)
                self._known.adopt(generation, placement, server, part)

        pull.started_by(self._calls.start(fetch, placement.num_servers))
        return pull

    def gather_parts(self, pull: Pull, num_leading: int) -> tuple[Float32Array, Float32Array]:
        """Values of every place, the first values of a row apart; waits for them.

        Returns:
            float32 [B, F, A] and [B, F, D], aligned; zeros for absent rows and for padding.

        Raises:
            RolledBack, Superseded, PeerUnavailable: As `Pull.wait`.
        """
        pull.wait()
        return pull.values_by_place(num_leading, self._runner)

    def dense(self, pull: Pull) -> Float32Array:
        """The newest known dense values, float32 [P], not to be written; waits for the pull.

        Raises:
            RolledBack, Superseded, PeerUnavailable: As `Pull.wait`.
        """
        pull.wait()
        return self._known.for_pull(pull)

    def start_push(
        self,
        pull: Pull,
        gradients: tuple[Float32Array, Float32Array],
        dense_gradient: Float32Array,
        batch: BatchId,
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
        refresh: Pull | None,
    ) -> Push:
        """Sums the gradients of each key and hands them to its owner; brings fresh dense values.

        Trying again after `PeerUnavailable`, or after the reply was lost, applies nothing twice.
        One push is waited for before the next one is started.

        Args:
            pull: Values that the gradients were computed with.
            gradients: float32 [B, F, A] and [B, F, D] of the loss sum; padding is not read.
            dense_gradient: float32 [P].
            step: Step of the batch, from 1.
            learning_rate_factor: The schedule's.
            refresh: A pull ahead, whose values are brought up to date with this push; in
                synchronous mode with all of its round.
        """
        prepared, placement = pull.prepared, pull.prepared.placement
        sums_UW = sum_gradients(prepared, gradients, self._width, self._runner)
        refreshed = self._keys_to_refresh(pull, refresh)
        no_keys: Int64Array = np.empty(0, np.int64)

        def send(server: int) -> PushAnswer:
            first, last = prepared.bounds[server], prepared.bounds[server + 1]
            low, high = placement.dense[server]
            request = PushRequest(
                generation=pull.generation,
                batch=batch,
                worker=self._worker,
                step=step,
                learning_rate_factor=learning_rate_factor,
                num_examples=num_examples,
                version=pull.version_of(server),
                keys=prepared.keys_U[first:last],
                num_occurrences=prepared.num_occurrences_U[first:last],
                sums=sums_UW[first:last],
                dense=dense_gradient[low:high],
                fresh_keys=no_keys if refreshed is None else refreshed.keys_of(server),
                placement=placement.version,
            )
            try:
                reply, num_tries = self._calls.ask(
                    server,
                    "Push",
                    request.encode(),
                    PushReply.decode,
                    generation=pull.generation,
                    placement=placement.version,
                    timeouts=self._push_timeouts,
                )
            except Moved:
                return _MOVED_BEFORE, 1
            if reply.status is Status.MOVED:
                self._learn_placement(server, pull.generation)
            if reply.status not in AGAIN:
                expected = (len(request.fresh_keys), self._width), request.dense.shape
                if (reply.fresh.shape, reply.dense.shape) != expected:
                    raise malformed(server, f"values of {reply.fresh.shape}, {reply.dense.shape}")
            return reply, num_tries

        started_before = batch in self._unfinished
        self._unfinished.setdefault(batch, False)

        def settle(answers: Sequence[PushAnswer | None]) -> PushOutcome:
            repeated, is_stale = self._unfinished.get(batch, False), False
            for server, answer in enumerate(answers):
                if answer is None:
                    continue
                reply, num_tries = answer
                is_stale |= reply.status in AGAIN
                # A second try may find what the first one did.
                is_first = not started_before and num_tries == 1
                repeated |= is_first and reply.status is Status.REPEATED
                if refreshed is not None:
                    refreshed.write(server, reply)
                if reply.status not in AGAIN:
                    part = DensePart(reply.version, reply.dense)
                    self._known.adopt(pull.generation, placement, server, part)
            if is_stale:
                self._unfinished[batch] = repeated
            else:
                self._unfinished.pop(batch, None)
            return PushOutcome("stale" if is_stale else "applied", repeated)

        # A worker whose push is too old at one server must not wait for a round of another one:
        # who is to complete it may be waiting for that worker. The push stays there, and the one
        # that is computed again finds it.
        decides = _is_stale if _has_rounds(self._spec) else None
        return Push(self._calls.start(send, placement.num_servers), settle, decides)

    def init_dense(self, values: Float32Array) -> None:
        """Gives the servers initial dense values; those that have some keep theirs.

        Args:
            values: float32 [P].

        Raises:
            CallRefused: Another worker gave those of another model.
            RolledBack: The generation is over.
            PeerUnavailable: A server did not answer until the deadline.
        """
        if values.shape != (self._spec.num_dense,):
            raise ValueError(f"{values.shape} dense values of {self._spec.num_dense}")
        generation = self.generation
        while True:
            placement = self._known.placement
            send = partial(self._send_dense, values, generation, placement)
            try:
                self._calls.on_all_servers(send, placement.num_servers)
            except Moved:
                continue
            return

    def _send_dense(
        self, values: Float32Array, generation: int, placement: Placement, server: int
    ) -> None:
        first, last = placement.dense[server]
        request = DenseRequest(generation, first, values[first:last], placement.version)
        reply, _ = self._calls.ask(
            server,
            "InitDense",
            request.encode(),
            DenseReply.decode,
            generation=generation,
            placement=placement.version,
        )
        if reply.status is Status.MOVED:
            self._learn_placement(server, generation)
            raise Moved
        if reply.differs:
            _LOGGER.warning(
                "Initial dense values computed here differ in their last bits from those that "
                "ps-%d was given first, which are used: workers run on unlike processors",
                server,
            )

    def _learn_placement(self, server: int, generation: int) -> None:
        """Asks a server that knows a newer placement, unless it is known by now."""
        self._known.learn(generation, self._calls.placement_of(server, generation))

    def _keys_to_refresh(self, pull: Pull, ahead: Pull | None) -> Refreshed | None:
        """Waits for the pull ahead: a late one could know of this push and be counted as if not."""
        if ahead is None or ahead.failed or ahead.generation != pull.generation:
            return None
        if ahead.prepared.placement != pull.prepared.placement:
            return None
        if _has_rounds(self._spec):
            # Other pushes of the round change rows as well, so that all are asked for.
            return Refreshed(ahead, None)
        return Refreshed(ahead, common_positions(pull.prepared.keys_U, ahead.prepared.keys_U))


def _has_rounds(spec: JobSpec) -> bool:
    """Whether an update waits for pushes of several workers."""
    return spec.update_rule.update == "sync" and spec.update_rule.grads_to_wait > 1


def _is_stale(answer: PushAnswer) -> bool:
    return answer[0].status in AGAIN
