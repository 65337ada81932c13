"""Trained parameters in a checkpoint: embedding rows and dense ones, optimizer state included."""

from pathlib import Path
from typing import IO

from ctr_pipeline.training.checkpoint import Checkpoint
from ctr_pipeline.training.lookup import DenseRows, SavedRows

_ROWS_FILE = "rows.bin"
_DENSE_FILE = "dense.bin"


def save_parameters(folder: Path, embeddings: SavedRows, dense: DenseRows) -> None:
    """Writes both into a checkpoint in the making."""
    with (folder / _ROWS_FILE).open("wb") as file:
        embeddings.save(file)
    with (folder / _DENSE_FILE).open("wb") as file:
        dense.save(file)


def load_parameters(checkpoint: Checkpoint, embeddings: SavedRows, dense: DenseRows) -> None:
    """Replaces both by those of a checkpoint.

    Raises:
        CheckpointError: They are of another model.
    """
    with open_rows(checkpoint) as file:
        embeddings.load(file)
    load_dense(checkpoint, dense)


def load_dense(checkpoint: Checkpoint, dense: DenseRows) -> None:
    """Replaces the dense parameters by those of a checkpoint.

    Raises:
        CheckpointError: They are of another model.
    """
    with (checkpoint.folder / _DENSE_FILE).open("rb") as file:
        dense.load(file)


def open_rows(checkpoint: Checkpoint) -> IO[bytes]:
    """The file of the embedding rows, as `SavedRows.save` wrote it."""
    return (checkpoint.folder / _ROWS_FILE).open("rb")
