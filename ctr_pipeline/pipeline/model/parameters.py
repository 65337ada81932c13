"""The parameters of a model in this process: embedding rows and dense parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.pipeline.model.embedding_rows import build_store
from ctr_pipeline.preprocessing.plan import PreprocessingPlan


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model, with their optimizer state.

    Attributes:
        rows: Embedding rows; a store of no tables where the model has no fields.
        dense: Dense parameters.
    """

    rows: EmbeddingStore
    dense: DenseParameters


def build_parameters(
    config: Config,
    plan: PreprocessingPlan,
    counts: Sequence[IdCounts] | None,
    dense_values: NDArray[np.float32],
    *,
    threads: int,
    memory_limit: MemoryLimit | None,
) -> Parameters:
    """Builds an empty store and dense parameters without optimizer state.

    Args:
        config: What rows are made of, and the optimizers.
        plan: Fitted transforms.
        counts: Occurrences of each id in the training rows; None where nothing is trained.
        dense_values: Values of the dense parameters, float32.
        threads: Threads that work on rows.
        memory_limit: The limit of this run, whichever run `config` is of.
    """
    rows = build_store(plan, counts, config=config, threads=threads, memory_limit=memory_limit)
    return Parameters(rows, DenseParameters(dense_values, config.train.optimizer))
