"""A pull and a push of a batch while they are under way, and after.

Axes: U distinct keys of a batch in the order of the servers that own them, W values of a row, A the
leading ones, D the others, B examples, F fields.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ctr_pipeline.distributed.rpc.packed import PushReply, Status
from ctr_pipeline.distributed.worker import value_kernels
from ctr_pipeline.distributed.worker.batch_keys import PreparedKeys
from ctr_pipeline.distributed.worker.ps_calls import gather
from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array, empty_aligned
from ctr_pipeline.kernels.ranges import RangeRunner

# What was pushed has to be pulled, computed and pushed again where it was not applied.
AGAIN = frozenset({Status.STALE, Status.MOVED})

PushVerdict = Literal["applied", "stale"]
PushAnswer = tuple[PushReply, int]


@dataclass(frozen=True)
class PushOutcome:
    """What became of a push.

    Attributes:
        verdict: `applied`: all servers have the batch. `stale`: some do not, because their
            rounds did not fill or partitions have moved; pull again, compute again, push again.
        repeated: Some server had applied the batch before this worker first pushed it.
    """

    verdict: PushVerdict
    repeated: bool


class Pull:
    """Values of a batch, on their way or here.

    Attributes:
        prepared: The batch.
        generation: The generation of the request.
        versions: Versions of each server, the updates that its values know of.
    """

    def __init__(self, prepared: PreparedKeys, generation: int, width: int) -> None:
        self.prepared = prepared
        self.generation = generation
        self.versions = [0] * (len(prepared.bounds) - 1)
        self.values_UW: Float32Array = np.empty((len(prepared.keys_U), width), np.float32)
        self._dense_versions: list[int] | None = None
        self._futures: list[Future[None]] = []

    def wait(self) -> None:
        """Returns when all values are here; returns at once when called again.

        Raises:
            RolledBack: The generation is over.
            Moved: Partitions lie elsewhere by now.
            Superseded: Another worker has the task.
            PeerUnavailable: A server did not answer until the deadline.
        """
        for future in self._futures:
            future.result()

    @property
    def failed(self) -> bool:
        """Waits; whether there are no values."""
        return any(future.exception() is not None for future in self._futures)

    def values_by_place(
        self, num_leading: int, runner: RangeRunner
    ) -> tuple[Float32Array, Float32Array]:
        """Values of every place, the first values of a row apart; they are here.

        Returns:
            float32 [B, F, A] and [B, F, D], aligned; zeros for absent rows and for padding.
        """
        batch, width = self.prepared.batch, self.values_UW.shape[1]
        leading = empty_aligned((*batch.shape, num_leading))
        trailing = empty_aligned((*batch.shape, width - num_leading))
        num_places = len(batch.inverse_P)
        leading_PA = leading.reshape(num_places, num_leading)
        trailing_PD = trailing.reshape(num_places, width - num_leading)

        def work(first: int, last: int) -> None:
            value_kernels.spread_values(
                self.values_UW,
                self.prepared.positions_U,
                batch.inverse_P,
                leading_PA,
                trailing_PD,
                first,
                last,
            )

        runner.run(work, num_places)
        return leading, trailing

    def started_by(self, futures: list[Future[None]]) -> None:
        """Notes what to wait for."""
        self._futures = futures

    def computed_with(self, dense_versions: Sequence[int]) -> None:
        """Notes the dense values that go with these."""
        self._dense_versions = list(dense_versions)

    def version_of(self, server: int) -> int:
        """Updates that gradients computed with these values know of."""
        if self._dense_versions is None:
            return self.versions[server]
        return min(self.versions[server], self._dense_versions[server])


class Push:
    """Gradients of a batch, on their way or with the servers.

    Args:
        futures: Futures of each server, its answer and the number of tries.
        settle: Takes over what the answers bring.
        decides: Whether an answer makes those of the other servers not worth waiting for.
    """

    def __init__(
        self,
        futures: Sequence[Future[PushAnswer]],
        settle: Callable[[Sequence[PushAnswer | None]], PushOutcome],
        decides: Callable[[PushAnswer], bool] | None,
    ) -> None:
        self._futures = futures
        self._settle = settle
        self._decides = decides

    def wait(self) -> PushOutcome:
        """What became of it; by the thread that started it, once.

        Raises:
            RolledBack: The generation is over.
            Superseded: Another worker has the task.
            PeerUnavailable: A server did not answer until the deadline.
        """
        answers = gather(self._futures, self._decides)
        return self._settle(answers)

    def wait_server(self, server: int) -> None:
        """Returns when one server has answered or will not be asked any more; in any thread."""
        # One that it did not ask has its rows from those that it did.
        wait((self._futures[server],) if server < len(self._futures) else self._futures)


class Refreshed:
    """Keys of a pull ahead whose values come with the reply to a push.

    Args:
        ahead: The pull.
        chosen_U: int32, which of its keys, ascending; None: all.
    """

    def __init__(self, ahead: Pull, chosen_U: Int32Array | None) -> None:
        self._ahead = ahead
        self._chosen_U = chosen_U
        bounds = ahead.prepared.bounds
        self._bounds = bounds if chosen_U is None else np.searchsorted(chosen_U, bounds).tolist()

    def keys_of(self, server: int) -> Int64Array:
        """The keys of one server."""
        return self._ahead.prepared.keys_U[self._places(server)]

    def write(self, server: int, reply: PushReply) -> None:
        """Takes over what a server sent."""
        if reply.status in AGAIN:
            return
        self._ahead.values_UW[self._places(server)] = reply.fresh
        if self._chosen_U is None:
            self._ahead.versions[server] = reply.version
        elif reply.status is Status.DONE:
            # Values of other keys were not changed by this push, so they know of it too.
            self._ahead.versions[server] += 1

    def _places(self, server: int) -> slice | Int32Array:
        first, last = self._bounds[server], self._bounds[server + 1]
        return slice(first, last) if self._chosen_U is None else self._chosen_U[first:last]
