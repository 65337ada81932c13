"""Threads and memory that a run may use."""

import logging

from ctr_pipeline.config.key_facts import keys_with
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.machine import (
    ThreadShares,
    affinity_cores,
    available_cores,
    cgroup_quota,
    decide_threads,
    memory_bytes,
)
from ctr_pipeline.specs.course import WorkersConfig
from ctr_pipeline.specs.model_kinds import ModelConfig
from ctr_pipeline.specs.section import LayerWidths

_BYTES_A_PARAMETER = 8
"""Bytes of a value and its gradient, both float32; optimizers keep more."""

_LOGGER = logging.getLogger(__name__)


def num_threads(runtime: RuntimeConfig) -> int:
    """Threads to use: the config's number, or the cores that the system and cgroup allow."""
    return runtime.threads or available_cores()


def threads_of_worker(runtime: RuntimeConfig) -> int:
    """Threads of one worker: its share of those that the config allows."""
    if isinstance(runtime.workers, WorkersConfig):
        return max(1, num_threads(runtime) // runtime.workers.max)
    # Workers are added as long as cores are idle.
    return 1


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


def find_huge_layers(
    model: ModelConfig, *, num_inputs: int = 0, available_bytes: int | None = None
) -> tuple[str, str] | None:
    """The key whose layers alone need more memory than there is, and what is wrong with it.

    Args:
        model: The section of the config.
        num_inputs: Inputs of the first layer, at least; 0 leaves that layer out.
        available_bytes: Bytes of memory; None: what this process may use of the machine.

    Returns:
        None if training may fit; the rest of a model and its rows are not looked at.
    """
    available = memory_bytes() if available_bytes is None else available_bytes
    for key, kind in keys_with(type(model), LayerWidths).items():
        widths = getattr(model, key)
        if not widths:
            continue
        first = num_inputs if kind.on_inputs else 0
        parameters = sum(wide * deep for wide, deep in zip((first, *widths), widths, strict=False))
        needed = parameters * _BYTES_A_PARAMETER
        if needed > available:
            message = (
                f"layers of these widths have {parameters:,} parameters, and training them takes "
                f"at least {needed / 1e9:,.1f} GB of memory; this machine has "
                f"{available / 1e9:,.1f} GB: make them narrower"
            )
            return key, message
    return None


def refuse_huge_layers(loaded: LoadedConfig, *, num_inputs: int = 0) -> None:
    """Raises ConfigError for what `find_huge_layers` finds."""
    huge = find_huge_layers(loaded.config.model, num_inputs=num_inputs)
    if huge is not None:
        key, message = huge
        raise ConfigError([loaded.problem_at(f"model.{key}", message)])
