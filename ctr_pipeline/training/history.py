"""The history of epochs, in memory and in `history.csv`; a refit has no line there."""

import csv
import io
from collections.abc import Mapping, Sequence
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
        train_logloss: Mean over its batches as they were trained, with dropout.
        valid_logloss: Logloss of all validation rows at its end.
        valid_auc: AUC of all validation rows at its end, from a histogram of their logits; about
            1e-5 off the exact one (`evaluation.histogram` bounds the error).
        valid_calibration: Sum of predictions over sum of labels, on the validation rows.
        learning_rate_factor: Learning rate factor of its last step.
        num_rows: Rows trained.
        seconds: Seconds of training, without validation.
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
class WorldRecord:
    """Replicas that trained together, from one change of their number to the next.

    Attributes:
        version: Number of the world.
        size: Replicas.
        step_rows: Rows of a step, which all of them train together: the global batch.
        step: Steps done when it began.
        seconds: From when a replica stopped training in the world before until it could go on.
        steps_repeated: Steps that were computed in the world before and not applied, 0 or 1; where
            a server of embedding rows was lost, all since the checkpoint.
    """

    version: int
    size: int
    step_rows: int
    step: int
    seconds: float
    steps_repeated: int


@dataclass(frozen=True)
class RefitRecord:
    """The progress of a refit: training on training and validation rows, without validation.

    Attributes:
        epochs: Epochs to train: the number that was best on the validation rows.
        num_rows: Training and validation rows of an epoch.
        steps: Steps done.
        train_logloss: Logloss of the last finished epoch, as in `EpochRecord`; None before the
            first.
        seconds: Seconds of training of the finished epochs.
    """

    epochs: int
    num_rows: int
    steps: int = 0
    train_logloss: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class ModelSummary:
    """How the training of one model went, in a few figures.

    Attributes:
        model: Name of its architecture, as in the config.
        seed: Seed of its initial values, of the order of rows and of dropout.
        epochs: Epochs trained.
        best_epoch: The epoch whose parameters were kept, from 1; None if none was the best.
        steps: Steps trained in these epochs.
        valid_logloss: Logloss of all validation rows at the end of the best epoch.
        valid_auc: Their AUC.
        stopped_because: Why training ended.
        refit: The training on training and validation rows, if there was one.
    """

    model: str
    seed: int = 0
    epochs: int = 0
    best_epoch: int | None = None
    steps: int = 0
    valid_logloss: float | None = None
    valid_auc: float | None = None
    stopped_because: str = ""
    refit: RefitRecord | None = None


def load_history(path: Path) -> list[EpochRecord]:
    """Loads the records that `save_history` wrote; an absent file has none.

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
        # Each epoch has a line, so the line's position is the epoch, counted from 0.
        return [replace(record, epoch=number) for number, record in enumerate(found)]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"is damaged ({error})", place=str(path), remedy="Train again, or restore the file"
        ) from error


def judged_history(state: Mapping[str, Any], path: Path) -> list[EpochRecord]:
    """The epochs until a checkpoint, with one that was validated after it.

    Args:
        state: The checkpoint's, as JSON.
        path: `history.csv` of the training.

    Raises:
        CheckpointError: The file is damaged.
    """
    known, num_epochs = state["history"], state["position"]["epoch"]
    # A job takes the checkpoint at the end of an epoch before the epoch is validated.
    if len(known) < num_epochs:
        found = load_history(path)
        if len(known) < len(found) <= num_epochs:
            return found
    return [EpochRecord(**record) for record in known]


def save_history(path: Path, history: Sequence[EpochRecord]) -> None:
    """Rewrites `history.csv`, so that it rolls back with the checkpoint.

    Epochs count from 1 in the file, as everywhere that people read them.
    """
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [field.name for field in fields(EpochRecord)], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(asdict(replace(record, epoch=record.epoch + 1)) for record in history)
    durable.write_text(path, text.getvalue())
