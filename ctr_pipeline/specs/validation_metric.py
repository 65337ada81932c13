"""The metric of the validation rows that is watched: `train.early_stopping`, `tune`, schedules."""

from typing import Literal

ValidationMetric = Literal["logloss", "auc"]


def cost_of(metric: ValidationMetric, *, logloss: float, auc: float) -> float:
    """What is to become smaller."""
    return logloss if metric == "logloss" else -auc
