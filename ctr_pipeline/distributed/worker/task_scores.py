"""What a task that scores rows finds."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline import durable
from ctr_pipeline.dataset.encoded import EncodedRows
from ctr_pipeline.distributed.coordination.messages import LeasedTask, ScoreSummary
from ctr_pipeline.evaluation.histogram import ScoreHistogram


class TaskScores:
    """Scores of one task, batch by batch.

    Attributes:
        task: The lease.
    """

    def __init__(self, task: LeasedTask) -> None:
        self.task = task
        self._histogram = ScoreHistogram.empty()
        self._logits: list[NDArray[np.float32]] = []
        self.seconds = 0.0
        """Spent on it."""

    def add(self, rows: EncodedRows, logits: NDArray[np.float32]) -> None:
        """Takes in the first rows of a batch, one for each of the logits, float32 [n].

        Raises:
            TrainingError: A logit is no number.
        """
        split = self.task.key.split
        place = "validation rows" if split == "valid" else f"{split} rows"
        weights = None if rows.weights_B is None else rows.weights_B[: len(logits)]
        self._histogram += ScoreHistogram.of(
            rows.labels_B[: len(logits)], logits, weights=weights, place=place
        )
        self._logits.append(logits)

    def finish(self, root: Path) -> ScoreSummary:
        """Writes the logits where the task wants them.

        Args:
            root: Where relative names of files begin.
        """
        if self.task.scores_file:
            path = root / self.task.scores_file
            path.parent.mkdir(parents=True, exist_ok=True)
            with durable.durable_write(path) as file:
                file.write(np.ascontiguousarray(np.concatenate(self._logits), "<f4").data)
        return ScoreSummary(
            positives=self._histogram.sparse_positives,
            negatives=self._histogram.sparse_negatives,
            loss_sum=self._histogram.loss_sum,
            probability_sum=self._histogram.probability_sum,
        )
