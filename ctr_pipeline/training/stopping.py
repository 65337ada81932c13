"""Early stopping: when to stop, and which epoch was the best."""

from collections.abc import Sequence
from dataclasses import dataclass

from ctr_pipeline.config.models import EarlyStopping
from ctr_pipeline.specs.validation_metric import ValidationMetric, cost_of
from ctr_pipeline.training.history import EpochRecord


@dataclass(frozen=True)
class StopDecision:
    """The decision after an epoch.

    Attributes:
        best_epoch: The epoch with the best watched metric, the earliest of equals.
        stop: Whether to stop.
        reason: Why training stops, as one sentence; empty while it goes on.
    """

    best_epoch: int
    stop: bool
    reason: str


def decide_stop(
    history: Sequence[EpochRecord], stopping: EarlyStopping | None, num_epochs: int
) -> StopDecision:
    """Decides after each epoch.

    Args:
        history: Epochs so far, at least one.
        stopping: The rule; None watches validation logloss and never stops early.
        num_epochs: Maximum number of epochs.
    """
    metric: ValidationMetric = stopping.metric if stopping else "logloss"
    costs = [
        cost_of(metric, logloss=record.valid_logloss, auc=record.valid_auc) for record in history
    ]
    best = min(range(len(costs)), key=costs.__getitem__)
    best_epoch = history[best].epoch
    if stopping:
        if costs[-1] > costs[best] + stopping.tolerance:
            worse = costs[-1] - costs[best]
            return StopDecision(
                best_epoch,
                True,
                f"validation {metric} is {worse:.4f} worse than in epoch {best_epoch + 1}",
            )
        epochs_since = len(costs) - 1 - best
        if epochs_since >= stopping.patience:
            return StopDecision(
                best_epoch, True, f"validation {metric} has not improved for {epochs_since} epochs"
            )
    if history[-1].epoch + 1 >= num_epochs:
        reason = f"all {num_epochs} epochs are done"
        if best_epoch == history[-1].epoch and num_epochs > 1:
            reason += ", and the last one was the best: more may help (train.epochs, --resume)"
        return StopDecision(best_epoch, True, reason)
    return StopDecision(best_epoch, False, "")
