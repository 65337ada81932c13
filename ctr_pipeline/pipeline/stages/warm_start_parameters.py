"""The parameters that a run takes over from an earlier one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.row_transfer import incompatible_tables, transfer_rows
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.embedding_rows import memory_limit_of
from ctr_pipeline.pipeline.model.parameters import Parameters, build_parameters
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.stages.vocabulary_extension import table_moves
from ctr_pipeline.pipeline.stages.warm_start import WarmStart, reopen
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.parameters import load_dense, load_rows


def load_earlier(
    warm_start: WarmStart,
    *,
    num_dense: int,
    threads: int,
    memory_limit: MemoryLimit | None,
    progress: Progress,
) -> Parameters:
    """The parameters of the earlier run, as it had them.

    Args:
        warm_start: What the run takes over.
        num_dense: Dense parameters that the model has.
        memory_limit: The store's limit, from the run that begins.
        progress: Shows damages.

    Raises:
        CheckpointError: The earlier run has changed, or its dense parameters do not fit.
    """
    found = reopen(warm_start.record, progress)
    parameters = build_parameters(
        found.config,
        warm_start.plan,
        None,
        np.zeros(num_dense, np.float32),
        threads=threads,
        memory_limit=memory_limit,
    )
    load_rows(found.checkpoint, parameters.rows)
    load_dense(found.checkpoint, parameters.dense)
    return parameters


def fill_from_earlier(
    parameters: Parameters,
    plan: PreprocessingPlan,
    warm_start: WarmStart,
    *,
    threads: int,
    memory_limit: MemoryLimit | None,
    progress: Progress,
) -> None:
    """Gives fresh parameters the values and the optimizer state of the earlier run.

    Memory: the rows twice, until the earlier ones have been read, each up to the limit.

    Raises:
        CheckpointError: As `load_earlier`.
    """
    earlier = load_earlier(
        warm_start,
        num_dense=len(parameters.dense.values),
        threads=threads,
        memory_limit=memory_limit,
        progress=progress,
    )
    moves = table_moves(warm_start.plan, plan)
    different = incompatible_tables(earlier.rows, parameters.rows, moves)
    if different:
        raise CheckpointError(
            f"has embeddings of another length or optimizer in table '{different[0]}'",
            place=warm_start.record.run,
            remedy="Set the feature's `embedding` as it was there; in place of dimension: auto, "
            "which goes by the number of ids, give the number",
        )
    transfer_rows(earlier.rows, parameters.rows, moves)
    earlier.rows.release()
    parameters.dense.values[:] = earlier.dense.values
    parameters.dense.slots[:] = earlier.dense.slots


def build_from_earlier(
    config: Config,
    plan: PreprocessingPlan,
    counts: Sequence[IdCounts],
    warm_start: WarmStart,
    *,
    num_dense: int,
    folder: Path,
    progress: Progress,
) -> Parameters:
    """The parameters that a run of a config begins with, without a model around them.

    Rows beyond the config's memory limit lie in a file in `folder`.

    Raises:
        CheckpointError: As `load_earlier`.
    """
    threads = num_threads(config.runtime)
    limit = memory_limit_of(config, folder)
    parameters = build_parameters(
        config,
        plan,
        counts,
        np.zeros(num_dense, np.float32),
        threads=threads,
        memory_limit=limit,
    )
    fill_from_earlier(
        parameters, plan, warm_start, threads=threads, memory_limit=limit, progress=progress
    )
    return parameters
