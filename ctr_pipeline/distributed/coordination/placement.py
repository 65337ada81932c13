"""What each parameter server holds: rows by partition, the dense parameters by ranges."""

from dataclasses import dataclass, replace
from itertools import pairwise

from ctr_pipeline.distributed.coordination.spec import JobSpec

_UNDIVIDED = frozenset({"rowwise_adagrad"})
"""Optimizers with one accumulator for all values: split, they would train otherwise."""

Range = tuple[int, int]


@dataclass(frozen=True)
class Placement:
    """Which server holds what; every change of it has a version of its own.

    Attributes:
        version: Grows with every change; 0: as the job began.
        owners: Server of each partition.
        dense: Each server's first dense parameter and the one after its last; some ranges
            may be empty.
    """

    version: int
    owners: tuple[int, ...]
    dense: tuple[Range, ...]

    @property
    def num_servers(self) -> int:
        """Servers that hold something, or did."""
        return len(self.dense)

    def partitions_of(self, server: int) -> tuple[int, ...]:
        """Partitions that a server holds, ascending."""
        return tuple(partition for partition, owner in enumerate(self.owners) if owner == server)

    def range_of(self, server: int) -> Range:
        """Dense parameters of a server; an empty range for one that is not among the servers."""
        last = max((high for _, high in self.dense), default=0)
        return self.dense[server] if server < len(self.dense) else (last, last)

    def moved(
        self,
        partitions: tuple[int, ...],
        target: int,
        *,
        version: int,
        dense_from: int | None = None,
    ) -> "Placement":
        """The placement after a move.

        Args:
            partitions: Partitions that the target holds from then on.
            target: May be a server that has held nothing so far.
            version: Version of the new placement.
            dense_from: A server whose whole dense range goes to the target; the two have to touch
                unless one is empty.
        """
        goes = frozenset(partitions)
        owners = tuple(
            target if partition in goes else owner for partition, owner in enumerate(self.owners)
        )
        dense = [self.range_of(server) for server in range(max(self.num_servers, target + 1))]
        if dense_from is not None:
            (low, high), (first, last) = dense[dense_from], dense[target]
            dense[target] = (low, high)
            if first < last:
                dense[target] = (min(low, first), max(high, last))
            dense[dense_from] = (high, high)
        return replace(self, version=version, owners=owners, dense=tuple(dense))

    def without_idle(self, least: int) -> "Placement":
        """The placement without its last servers that hold nothing, down to `least` servers."""
        num_servers = self.num_servers
        used = {*self.owners, *(n for n, (low, high) in enumerate(self.dense) if low < high)}
        while num_servers > least and num_servers - 1 not in used:
            num_servers -= 1
        return replace(self, dense=self.dense[:num_servers])


def balanced_placement(spec: JobSpec) -> Placement:
    """The placement that a job begins with: partitions in turn, ranges of near equal length."""
    return even_placement(
        spec.num_partitions,
        spec.num_dense,
        spec.num_parameter_servers,
        is_divided=spec.dense_optimizer.name not in _UNDIVIDED,
    )


def even_placement(
    num_partitions: int, num_dense: int, num_servers: int, *, is_divided: bool
) -> Placement:
    """Partitions in turn, the dense parameters in ranges of near equal length, or all at the first.

    Args:
        num_dense: Dense parameters.
        num_servers: There are.
        is_divided: Whether the dense parameters may lie at several servers.
    """
    owners = tuple(partition % num_servers for partition in range(num_partitions))
    if not is_divided:
        rest = ((num_dense, num_dense),) * (num_servers - 1)
        return Placement(0, owners, ((0, num_dense), *rest))
    bounds = [num_dense * server // num_servers for server in range(num_servers + 1)]
    return Placement(0, owners, tuple(pairwise(bounds)))
