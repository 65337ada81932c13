"""What each epoch achieved, in memory and in `history.csv`; and a refit, which has no lines."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.errors import CheckpointError


@dataclass(frozen=True)
class EpochRecord:
    """One epoch.

    Attributes:
        epoch: Its number, from 0.
        step: Steps done when it ended.
        train_logloss: Mean over its batches while they trained, dropout on.
        valid_logloss: Over all validation rows at its end.
        valid_auc: Over all validation rows at its end, from a histogram of their logits; some 1e-5
            off the exact one (`evaluation.histogram` bounds it).
        valid_calibration: Sum of predictions over sum of labels, on the validation rows.
        learning_rate_factor: Learning rate factor of its last step.
        num_rows: Rows trained.
        seconds: Spent training, evaluation left out.
    """

    epoch: int
    step: int
    train_logloss: float
    valid_logloss: float
    valid_auc: float
    valid_calibration: float
    learning_rate_factor: float
    num_rows: int
    seconds: float


@dataclass(frozen=True)
class RefitRecord:
    """A training on training and validation rows together, which nothing validates.

    Attributes:
        epochs: That it takes: as many as were best on the validation rows.
        num_rows: Rows of an epoch, training and validation rows together.
        steps: Done so far.
        train_logloss: Logloss of the last epoch done, as in `EpochRecord`; None before the first.
        seconds: Spent training, of the epochs done.
    """

    epochs: int
    num_rows: int
    steps: int = 0
    train_logloss: float | None = None
    seconds: float = 0.0


def load_history(path: Path) -> list[EpochRecord]:
    """The records that `save_history` wrote; none if there is no such file.

    Raises:
        CheckpointError: The file is damaged.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except FileNotFoundError:
        return []
    readers: list[tuple[str, Any]] = [
        (field.name, int if field.type is int else float) for field in fields(EpochRecord)
    ]
    try:
        found = [
            EpochRecord(**{name: read(line[name]) for name, read in readers}) for line in lines
        ]
        # Each epoch has a line, so its place says which it is, whatever a file begins to count at.
        return [replace(record, epoch=number) for number, record in enumerate(found)]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"is damaged ({error})", place=str(path), remedy="Train again, or restore the file"
        ) from error


def save_history(path: Path, history: Sequence[EpochRecord]) -> None:
    """Writes `history.csv` as a whole, so that it rolls back with the checkpoint.

    Epochs count from 1 there, as wherever people read them.
    """
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [field.name for field in fields(EpochRecord)], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(asdict(replace(record, epoch=record.epoch + 1)) for record in history)
    durable.write_text(path, text.getvalue())
