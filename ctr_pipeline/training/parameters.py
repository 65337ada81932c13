"""Trained parameters in a checkpoint: embedding rows, dense parameters and optimizer state."""

import threading
from collections.abc import Callable
from typing import IO

from ctr_pipeline.training.checkpoint import Checkpoint
from ctr_pipeline.training.lookup import DenseRows, SavedRows

_ROWS_FILE = "rows.bin"
_DENSE_FILE = "dense.bin"


def parameter_writers(
    embeddings: SavedRows, dense: DenseRows, locating: threading.Lock
) -> dict[str, Callable[[IO[bytes]], None]]:
    """Returns the writers of a checkpoint's parts, by name.

    Args:
        locating: Lock that is held while rows are written or created.
    """

    def save_rows(file: IO[bytes]) -> None:
        with locating:
            embeddings.save(file)

    return {_ROWS_FILE: save_rows, _DENSE_FILE: dense.save}


def load_parameters(checkpoint: Checkpoint, embeddings: SavedRows, dense: DenseRows) -> None:
    """Loads embedding rows and dense parameters from a checkpoint.

    Raises:
        CheckpointError: The checkpoint belongs to another model.
    """
    with open_rows(checkpoint) as file:
        embeddings.load(file)
    load_dense(checkpoint, dense)


def load_dense(checkpoint: Checkpoint, dense: DenseRows) -> None:
    """Loads the dense parameters from a checkpoint.

    Raises:
        CheckpointError: The checkpoint belongs to another model.
    """
    with checkpoint.open(_DENSE_FILE) as file:
        dense.load(file)


def open_rows(checkpoint: Checkpoint) -> IO[bytes]:
    """Opens the embedding rows that `SavedRows.save` wrote."""
    return checkpoint.open(_ROWS_FILE)
