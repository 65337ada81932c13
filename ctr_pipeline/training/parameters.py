"""Trained parameters in a checkpoint: embedding rows, dense parameters and optimizer state."""

from pathlib import Path
from typing import IO

from ctr_pipeline.training.checkpoint import Checkpoint
from ctr_pipeline.training.lookup import DenseRows, SavedRows

_ROWS_FILE = "rows.bin"
_DENSE_FILE = "dense.bin"


def save_parameters(folder: Path, embeddings: SavedRows, dense: DenseRows) -> None:
    """Writes embedding rows and dense parameters into a checkpoint that is being written."""
    with (folder / _ROWS_FILE).open("wb") as file:
        embeddings.save(file)
    with (folder / _DENSE_FILE).open("wb") as file:
        dense.save(file)


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
    with (checkpoint.folder / _DENSE_FILE).open("rb") as file:
        dense.load(file)


def open_rows(checkpoint: Checkpoint) -> IO[bytes]:
    """Opens the file of embedding rows that `SavedRows.save` wrote."""
    return (checkpoint.folder / _ROWS_FILE).open("rb")
