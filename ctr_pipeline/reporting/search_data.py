"""The data of the page of a search; no layout."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.specs.validation_metric import ValidationMetric


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchedKey(_Frozen):
    """A key whose values were searched.

    Attributes:
        name: Key, with dots.
        is_range: Whether it has a range, and not choices.
        is_log: Whether its axis is one of orders of magnitude.
        choices: Their texts, in order; empty for a range.
    """

    name: str
    is_range: bool
    is_log: bool = False
    choices: tuple[str, ...] = ()


class SearchTrial(_Frozen):
    """One trial.

    Attributes:
        number: From 0.
        state: How it ended.
        value: The metric at the best epoch; None if no epoch ended.
        best_epoch: From 1.
        num_epochs: Epochs trained.
        seconds: Seconds from start to end.
        reason: Why it ended.
        is_best: Whether it is the best of those that were trained to their end.
        values: Per key, the number itself, or the place of the choice from 0.
        texts: Per key, the value as text.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    value: float | None
    best_epoch: int | None
    num_epochs: int
    seconds: float
    reason: str
    is_best: bool
    values: tuple[float, ...]
    texts: tuple[str, ...]


class SearchData(_Frozen):
    """Everything the page of a search shows.

    Attributes:
        created: With a time zone.
        metric: The metric of the validation rows that decides.
        num_planned: Trials that were asked for.
        keys: Keys that were searched.
        trials: In their order.
    """

    name: str
    created: datetime
    metric: ValidationMetric
    num_planned: int
    keys: tuple[SearchedKey, ...]
    trials: tuple[SearchTrial, ...]
