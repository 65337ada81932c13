"""What each parameter server holds: rows by partition, the dense parameters by ranges."""

from itertools import pairwise

from ctr_pipeline.distributed.coordination.spec import JobSpec

_UNDIVIDED = frozenset({"rowwise_adagrad"})
"""Optimizers with one accumulator for all values: split, they would train otherwise."""


def owner_of(partition: int, num_parameter_servers: int) -> int:
    """The server that holds a partition."""
    return partition % num_parameter_servers


def owned_partitions(spec: JobSpec, server: int) -> tuple[int, ...]:
    """Partitions that a server holds, ascending."""
    return tuple(range(server, spec.num_partitions, spec.num_parameter_servers))


def dense_ranges(spec: JobSpec, num_parameter_servers: int) -> tuple[tuple[int, int], ...]:
    """Of each server, its first dense parameter and the one after its last.

    Ranges are consecutive and of near equal length; some may be empty.
    """
    if spec.dense_optimizer.name in _UNDIVIDED:
        size = spec.num_dense
        return ((0, size), *(((size, size),) * (num_parameter_servers - 1)))
    bounds = [
        spec.num_dense * server // num_parameter_servers
        for server in range(num_parameter_servers + 1)
    ]
    return tuple(pairwise(bounds))
