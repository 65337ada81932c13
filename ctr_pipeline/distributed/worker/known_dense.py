"""Where the parts of a model lie, and the newest dense values, as a worker knows them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.worker.exchanges import Pull
from ctr_pipeline.distributed.worker.ps_calls import Moved, RolledBack
from ctr_pipeline.embeddings.arrays import Float32Array, empty_aligned


@dataclass(frozen=True)
class DensePart:
    """Dense values of one server, as it sent them."""

    version: int
    values: Float32Array


class KnownDense:
    """Dense values by server; may be used by many threads.

    Args:
        num_dense: Values of the model.
        placement: Before any server says otherwise.
        follow: Told of every placement.
    """

    def __init__(
        self, num_dense: int, placement: Placement, follow: Callable[[Placement], None]
    ) -> None:
        self._num_dense = num_dense
        self._follow = follow
        self._lock = threading.Lock()
        self._generation = -1
        self._placement = placement
        self._parts: list[DensePart | None] = [None] * placement.num_servers
        self._values: Float32Array | None = None

    @property
    def placement(self) -> Placement:
        """The newest that is known."""
        return self._placement

    def versions(self) -> tuple[Placement, list[int]]:
        """The placement, and by server the version of the values that are known; -1: of none."""
        with self._lock:
            return self._placement, [-1 if one is None else one.version for one in self._parts]

    def begin(self, generation: int, placement: Placement) -> bool:
        """Forgets what is of another generation; whether there was anything to forget."""
        with self._lock:
            if generation == self._generation:
                return False
            self._generation = generation
            self._place(placement, keep=False)
            return True

    def learn(self, generation: int, placement: Placement) -> None:
        """Goes along with a move, unless a newer one is known."""
        with self._lock:
            if placement.version > self._placement.version and generation == self._generation:
                self._place(placement, keep=True)

    def adopt(self, generation: int, placement: Placement, server: int, part: DensePart) -> None:
        """Keeps dense values, unless newer ones are known, or they lie elsewhere by now."""
        with self._lock:
            if placement.range_of(server) != self._placement.range_of(server):
                return
            known = self._parts[server]
            if generation == self._generation and (known is None or known.version <= part.version):
                self._parts[server] = part
                self._values = None

    def for_pull(self, pull: Pull) -> Float32Array:
        """The newest known values, float32 [P], not to be written; the pull has been waited for.

        Raises:
            RolledBack: The pull is of another generation.
            Moved: It is of another placement.
        """
        with self._lock:
            if pull.generation != self._generation:
                raise RolledBack(self._generation)
            parts = [part for part in self._parts if part is not None]
            if pull.prepared.placement != self._placement:
                raise Moved
            if len(parts) < self._placement.num_servers:
                raise ValueError("dense values were never asked for")
            if self._values is None:
                self._values = empty_aligned((self._num_dense,))
                for part, (low, high) in zip(parts, self._placement.dense, strict=True):
                    self._values[low:high] = part.values
            pull.computed_with([part.version for part in parts])
            return self._values

    def _place(self, placement: Placement, *, keep: bool) -> None:
        before, parts = self._placement, self._parts
        self._placement, self._values = placement, None
        self._parts = [
            parts[server]
            if keep and server < before.num_servers and before.dense[server] == bounds
            else None
            for server, bounds in enumerate(placement.dense)
        ]
        self._follow(placement)
