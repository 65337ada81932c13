"""Threads that a run may use."""

import logging

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.machine import (
    ThreadShares,
    affinity_cores,
    available_cores,
    cgroup_quota,
    decide_threads,
)

_LOGGER = logging.getLogger(__name__)


def num_threads(runtime: RuntimeConfig) -> int:
    """Threads to use: the config's number, or the cores that the system and cgroup allow."""
    return runtime.threads or available_cores()


def thread_shares(runtime: RuntimeConfig) -> ThreadShares:
    """The same, divided among the libraries."""
    return decide_threads(num_threads(runtime))


def bound_libraries(runtime: RuntimeConfig) -> None:
    """Bounds the pools that stand before any stage; says in the log how cores are shared.

    Arrow makes as many threads as the machine has cores, whatever the process may use of them.
    TensorFlow and the pools of stages are bounded where they are made.
    """
    import pyarrow as pa

    shares = thread_shares(runtime)
    pa.set_cpu_count(shares.arrow)
    quota = cgroup_quota()
    _LOGGER.info(
        "Threads: %d (cores here %d, of the container %s, runtime.threads %s); TensorFlow %d, "
        "embedding rows %d",
        shares.total,
        affinity_cores(),
        "unbounded" if quota is None else f"{quota:g}",
        runtime.threads or "not set",
        shares.tensorflow,
        shares.rows,
    )
