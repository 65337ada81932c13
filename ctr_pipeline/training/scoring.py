"""Scores rows by trained parameters; creates and changes no embedding rows.

A thread reads the rows of a split and gathers their embeddings ahead of TensorFlow.

Axes: B rows of a batch, R rows, F fields, N numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.dataset.encoded import EncodedReader, EncodedRows
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.progress import ProgressTask, SilentTask
from ctr_pipeline.training.batches import Prefetcher, pad
from ctr_pipeline.training.lookup import DenseValues, RowReader

if TYPE_CHECKING:
    from ctr_pipeline.training.compiled import CompiledModel

_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class ScoredRows:
    """Labels and logits of the rows of a split, in their order.

    Attributes:
        labels: float32 [R].
        logits: float32 [R].
    """

    labels: NDArray[np.float32]
    logits: NDArray[np.float32]


@dataclass(frozen=True)
class _Gathered:
    """A batch with the values of its embedding rows.

    Attributes:
        rows: Rows, not padded.
        numbers_BN: Dense inputs; padded to the compiled batch size, as the embeddings are.
        linear_BF1: Linear weight of each field's id.
        embeddings_BFD: Embedding of each field's id.
    """

    rows: EncodedRows
    numbers_BN: NDArray[np.float32]
    linear_BF1: NDArray[np.float32]
    embeddings_BFD: NDArray[np.float32]


class Scorer:
    """Scores any number of rows in padded batches of the compiled size.

    Args:
        compiled: The model.
        embeddings: Its embedding rows.
        dense: Its dense parameters.
    """

    def __init__(
        self, compiled: "CompiledModel", embeddings: RowReader, dense: DenseValues
    ) -> None:
        self._compiled = compiled
        self._embeddings = embeddings
        self._dense = dense

    def score(
        self, ids_RF: NDArray[np.int32], numbers_RN: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Computes logits, float32 [R], in the calling thread alone."""
        size = self._compiled.batch_size
        logits = np.empty(len(ids_RF), dtype=np.float32)
        for first in range(0, len(ids_RF), size):
            last = min(first + size, len(ids_RF))
            labels = np.zeros(last - first, np.float32)
            rows = EncodedRows(ids_RF[first:last], numbers_RN[first:last], labels)
            logits[first:last] = self._logits_of(self._gather(rows))
        return logits

    def score_split(self, reader: EncodedReader, task: ProgressTask | None = None) -> ScoredRows:
        """Computes the logits of all rows of a split, and reads their labels."""
        task = task or SilentTask()
        num_rows = reader.meta.num_rows
        scored = ScoredRows(np.empty(num_rows, np.float32), np.empty(num_rows, np.float32))
        first = 0
        for rows, logits in self._score_in_order(reader):
            last = first + rows.num_rows
            scored.logits[first:last] = logits
            scored.labels[first:last] = rows.labels_B
            task.advance(rows.num_rows)
            first = last
        return scored

    def summarize_split(
        self, reader: EncodedReader, task: ProgressTask | None = None, *, place: str
    ) -> ScoreHistogram:
        """Computes metrics of all rows of a split in bounded memory.

        Args:
            reader: The split.
            task: Progress, in rows scored.
            place: Name of the rows in error messages.

        Raises:
            TrainingError: A logit is not finite.
        """
        task = task or SilentTask()
        histogram = ScoreHistogram.empty()
        for rows, logits in self._score_in_order(reader):
            histogram += ScoreHistogram.of(
                rows.labels_B, logits, weights=rows.weights_B, place=place
            )
            task.advance(rows.num_rows)
        return histogram

    def _score_in_order(
        self, reader: EncodedReader
    ) -> Iterator[tuple[EncodedRows, NDArray[np.float32]]]:
        """Yields all rows of a split with their logits, batch by batch."""
        batches = reader.read_in_order(self._compiled.batch_size)
        with Prefetcher(map(self._gather, batches), num_ahead=_BATCHES_AHEAD) as ahead:
            for batch in ahead:
                yield batch.rows, self._logits_of(batch)

    def _gather(self, rows: EncodedRows) -> _Gathered:
        whole = pad(rows, self._compiled.batch_size)
        prepared = self._embeddings.prepare(whole.ids_BF, rows.num_rows)
        self._embeddings.locate(prepared, create=False)
        linear, embeddings = self._embeddings.gather_parts(prepared, num_leading=1)
        return _Gathered(rows, whole.numbers_BN, linear, embeddings)

    def _logits_of(self, batch: _Gathered) -> NDArray[np.float32]:
        logits = self._compiled.logits(
            parameters_P=self._dense.values,
            linear_BF1=batch.linear_BF1,
            embeddings_BFD=batch.embeddings_BFD,
            numbers_BN=batch.numbers_BN,
        )
        return logits[: batch.rows.num_rows]
