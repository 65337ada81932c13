"""What an epoch achieved, from the sums of its tasks, and whether it was the last; pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.distributed.coordination.events import DecideEpoch, EpochDecided
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.training.history import EpochRecord
from ctr_pipeline.training.stopping import decide_stop


def decide_epoch(action: DecideEpoch, train: TrainConfig, *, step: int) -> EpochDecided:
    """Computes the epoch's line of the history and decides whether to go on.

    Args:
        action: Sums of the epoch.
        train: The user's wishes.
        step: Batches until its end, those of dropped tasks among them.

    Raises:
        TrainingError: The loss is not finite, no record was trained, or there is nothing to
            validate with.
        DataError: The validation rows are of one class.
    """
    totals, valid = action.totals, action.valid
    if valid is None:
        raise TrainingError(
            "there are no validation rows to choose the best epoch by",
            remedy="Split some off with data.split",
        )
    if not totals.trained:
        raise TrainingError(f"no record of epoch {totals.epoch + 1} could be trained")
    train_logloss = totals.loss_sum / totals.trained
    if not math.isfinite(train_logloss):
        raise TrainingError(
            f"the loss of epoch {totals.epoch + 1} is {train_logloss}",
            remedy="Most likely the learning rate is too high: lower train.optimizer.learning_rate "
            "or train.embeddings, or set train.gradient_clip_norm",
        )
    scores = ScoreHistogram.from_sparse(
        valid.scores.positives,
        valid.scores.negatives,
        loss_sum=valid.scores.loss_sum,
        probability_sum=valid.scores.probability_sum,
    )
    auc = scores.auc(place="validation rows")
    record = EpochRecord(
        epoch=totals.epoch,
        step=step,
        train_logloss=train_logloss,
        valid_logloss=scores.logloss(),
        valid_auc=auc.value,
        valid_calibration=scores.calibration(),
        learning_rate_factor=train.learning_rate_schedule.factor(step, action.history),
        num_rows=totals.trained,
        seconds=totals.seconds,
    )
    history = [*(read_record(line) for line in action.history), record]
    decision = decide_stop(history, train.early_stopping, train.epochs)
    return EpochDecided(
        epoch=totals.epoch,
        record=asdict(record),
        stop=decision.stop,
        best_epoch=decision.best_epoch,
        reason=decision.reason,
    )


def read_record(line: Mapping[str, Any]) -> EpochRecord:
    """A line of the history as `EpochDecided.record` gave it."""
    return EpochRecord(**line)
