"""Logits that workers wrote, as the evaluation takes them."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.training.scoring import ScoredRows

_READ_ROWS = 65_536


@dataclass(frozen=True)
class ScoreFiles:
    """Logits that workers wrote, a file a task.

    Attributes:
        folder: `<split>-<task>.f32` of each.
    """

    folder: Path

    def load(self, split: str, encoded: Path) -> ScoredRows:
        """Logits and labels of a split, in the order of its rows.

        Raises:
            TrainingError: A file is missing.
        """
        files = sorted(self.folder.glob(f"{split}-*.f32"), key=_task_of)
        numbers = [_task_of(file) for file in files]
        parts = [np.fromfile(file, "<f4") for file in files]
        logits = np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32, copy=False)
        with EncodedReader(encoded) as reader:
            num_rows = reader.meta.num_rows
            if numbers != list(range(len(files))) or len(logits) != num_rows:
                raise TrainingError(
                    f"{len(logits):,} of {num_rows:,} {split} rows are scored",
                    place=str(self.folder),
                    remedy="Run again with --resume",
                )
            labels = np.concatenate(
                [
                    np.empty(0, np.float32),
                    *(rows.labels_B for rows in reader.read_in_order(_READ_ROWS)),
                ]
            )
        return ScoredRows(labels, logits)


def _task_of(file: Path) -> int:
    with contextlib.suppress(ValueError):
        return int(file.stem.rpartition("-")[2])
    return -1
