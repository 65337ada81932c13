"""The interface between the trainer and the embedding rows.

`embeddings.EmbeddingStore` implements it in this process, a client of parameter servers across
processes. Axes: B batch, F fields, A leading values of a row (the linear weight), D the other
values (the embedding).
"""

from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray


class RowReader(Protocol):
    """Reads the embedding rows of a batch."""

    def prepare(self, ids_BF: NDArray[np.int32], num_valid: int) -> Any:
        """Computes what does not depend on the rows' values; runs ahead in a thread."""

    def locate(self, prepared: Any, *, create: bool) -> None:
        """Finds the batch's rows and, if allowed, creates the absent ones."""

    def gather_parts(
        self, prepared: Any, num_leading: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Gathers the values [B, F, A] and [B, F, D]; zeros for absent rows and for padding."""


class EmbeddingLookup(RowReader, Protocol):
    """Reads the embedding rows of a batch and updates them by its gradients."""

    def update(
        self,
        prepared: Any,
        gradients: tuple[NDArray[np.float32], NDArray[np.float32]],
        *,
        step: int,
        learning_rate_factor: float,
        num_examples: int,
    ) -> None:
        """Updates the batch's rows by the gradients of the loss sum."""


class SavedRows(EmbeddingLookup, Protocol):
    """Embedding rows that this process can save."""

    def save(self, file: IO[bytes]) -> None:
        """Writes all rows."""

    def evict(self, oldest_step: int) -> int:
        """Removes rows last updated before a step; batches must then be located again.

        Returns:
            The number of removed rows.
        """


class DenseValues(Protocol):
    """Dense parameters.

    Attributes:
        values: All parameters, one after another.
    """

    @property
    def values(self) -> NDArray[np.float32]:
        """All parameters, one after another."""
