"""Trained parameters of a checkpoint: embedding rows, dense parameters and optimizer state."""

from pathlib import Path

from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.dense_log import restore_range
from ctr_pipeline.embeddings.row_log import KeyFilter, restore_rows
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.stored_rows import StoredRows, open_stored_rows
from ctr_pipeline.training.checkpoint import Checkpoint


def load_rows(
    checkpoint: Checkpoint, store: EmbeddingStore, *, only: KeyFilter | None = None
) -> None:
    """Replaces all rows of a store.

    Args:
        only: Which are wanted; None: all.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another model.
    """
    files = checkpoint.files
    restore_rows(
        store,
        checkpoint.storage,
        files.chains,
        num_partitions=files.num_partitions,
        cut=checkpoint.number,
        only=only,
    )


def open_rows(checkpoint: Checkpoint, store: EmbeddingStore, workspace: Path) -> StoredRows:
    """The rows, which stay on disk; see `open_stored_rows`.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another model.
    """
    return open_stored_rows(store, checkpoint.storage, checkpoint.files, workspace)


def load_dense(checkpoint: Checkpoint, dense: DenseParameters) -> None:
    """Replaces the dense parameters and their optimizer state.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another model.
    """
    restore_range(
        dense, checkpoint.storage, checkpoint.files.dense, first=0, num_dense=len(dense.values)
    )
