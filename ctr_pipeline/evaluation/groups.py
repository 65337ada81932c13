"""Metrics of the rows of each value of a column: where a model is good, and where it is not."""

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ctr_pipeline.evaluation.calibration import Interval, calibration_ratio
from ctr_pipeline.evaluation.likelihood import logloss_of_logits, mean_of, probabilities_of
from ctr_pipeline.evaluation.ranking import Groups, auc_interval, exact_auc, group_codes

NUM_SHOWN = 20
"""Values that are measured each by itself; the rows of all others are measured together."""

_MOST_LETTERS = 200
_FEWEST_OF_A_CLASS = 10
_WIDEST_CERTAIN = 0.1
"""Of the interval of an AUC; wider, or with fewer rows of a class, a group has few rows."""


class GroupMetrics(BaseModel):
    """Metrics of predictions on the rows of one value.

    Attributes:
        value: The value as text, cut off after 200 characters; None: it is missing, or these are
            the rows of several values.
        num_rows: Rows of the group.
        num_positive: Rows with label 1 among these.
        label_rate: Mean label, weighted if rows have weights, as all that follows; None if all
            weigh 0, as all that follows.
        mean_probability: Mean prediction.
        auc: Exact, ties one half; None where one class alone has rows or weighs anything.
        auc_interval: Its 95 % interval.
        logloss: Nats a row.
        calibration: Sum of predictions over sum of labels; None without a click.
        calibration_interval: Its 95 % interval.
        hint: Why the figures tell little, in a few words; empty if they tell something.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    value: str | None = None
    num_rows: int
    num_positive: int
    label_rate: float | None
    mean_probability: float | None
    auc: float | None
    auc_interval: Interval | None
    logloss: float | None
    calibration: float | None
    calibration_interval: Interval | None
    hint: str

    def to_metrics(self) -> dict[str, Any]:
        """The entry of `metrics.json`, without NaN and infinity; an interval is a list."""
        metrics = self.model_dump()
        for name in ("auc_interval", "calibration_interval"):
            interval: Interval | None = getattr(self, name)
            metrics[name] = None if interval is None else [interval.low, interval.high]
        return metrics


class ColumnMetrics(BaseModel):
    """The metrics of some rows by the values of one column.

    Attributes:
        column: Its name.
        num_values: Different values among the rows, a missing one included.
        groups: Groups of the most frequent values, by descending number of rows.
        others: The group of all other rows; None if there are none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    column: str
    num_values: int
    groups: tuple[GroupMetrics, ...]
    others: GroupMetrics | None = None

    def to_metrics(self) -> dict[str, Any]:
        """As `GroupMetrics.to_metrics`, without the column's name."""
        return {
            "num_values": self.num_values,
            "groups": [group.to_metrics() for group in self.groups],
            "others": None if self.others is None else self.others.to_metrics(),
        }


def measure_groups(
    column: str,
    values: Groups,
    labels: npt.NDArray[Any],
    logits: npt.NDArray[Any],
    *,
    weights: npt.NDArray[np.float64] | None = None,
    num_shown: int = NUM_SHOWN,
) -> ColumnMetrics:
    """Measures the rows of each of the most frequent values, and those of all others together.

    Args:
        column: Name of the column.
        values: [N] its values; a missing one is a value like others.
        labels: [N] zeros and ones.
        logits: [N] float, finite.
        weights: [N], 0 or more; None: all rows count alike. Which values are the most frequent is
            decided by rows.
        num_shown: How many values are measured each by itself, at most.

    Raises:
        ValueError: There is not one value per row.
    """
    codes, texts = _encode(values)
    if codes.size != labels.size:
        raise ValueError(f"{codes.size} values of '{column}' for {labels.size} rows")
    counts = np.bincount(codes, minlength=len(texts))
    # Ties by the value, so that the order of the rows decides nothing.
    ranked = sorted(
        np.flatnonzero(counts).tolist(), key=lambda code: (-counts[code], texts[code] or "")
    )
    shown, rest = ranked[:num_shown], ranked[num_shown:]

    def measure(rows: npt.NDArray[np.int64], value: str | None) -> GroupMetrics:
        own = None if weights is None else weights[rows]
        return _measure(labels[rows] == 1, logits[rows], own, value)

    return ColumnMetrics(
        column=column,
        num_values=len(ranked),
        groups=tuple(measure(np.flatnonzero(codes == code), texts[code]) for code in shown),
        others=measure(np.flatnonzero(np.isin(codes, rest)), None) if rest else None,
    )


def _measure(
    positive: npt.NDArray[np.bool_],
    logits: npt.NDArray[Any],
    weights: npt.NDArray[np.float64] | None,
    value: str | None,
) -> GroupMetrics:
    counting = np.ones(positive.size, np.bool_) if weights is None else weights > 0
    probabilities = probabilities_of(logits)
    has_rows = bool(counting.any())
    has_clicks = bool(positive[counting].any())
    has_both = has_clicks and not positive[counting].all()
    auc, interval = None, None
    if has_both:
        auc = exact_auc(positive, logits, weights=weights, place="a group")
        interval = auc_interval(auc, positive, weights)
    ratio, ratio_interval = None, None
    if has_clicks:
        ratio, ratio_interval = calibration_ratio(positive, probabilities, weights)
    return GroupMetrics(
        value=value,
        num_rows=positive.size,
        num_positive=int(np.count_nonzero(positive)),
        label_rate=mean_of(positive, weights) if has_rows else None,
        mean_probability=mean_of(probabilities, weights) if has_rows else None,
        auc=auc,
        auc_interval=interval,
        logloss=logloss_of_logits(positive, logits, weights) if has_rows else None,
        calibration=ratio,
        calibration_interval=ratio_interval,
        hint=_hint_on(positive, interval),
    )


def _hint_on(positive: npt.NDArray[np.bool_], interval: Interval | None) -> str:
    num_positive = int(np.count_nonzero(positive))
    num_negative = positive.size - num_positive
    if num_positive == 0:
        return "no clicks: no AUC"
    if num_negative == 0:
        return "clicks only: no AUC"
    if interval is None:
        return "one class weighs nothing: no AUC"
    is_wide = interval.high - interval.low > _WIDEST_CERTAIN
    return "few rows" if is_wide or min(num_positive, num_negative) < _FEWEST_OF_A_CLASS else ""


def _encode(values: Groups) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """A code per row, and the text of each code; the last code is that of missing values."""
    codes, distinct = group_codes(values)
    texts: list[str | None] = [_as_text(value) for value in distinct.to_pylist()]
    return np.where(codes < 0, len(texts), codes), [*texts, None]


def _as_text(value: Any) -> str:
    """A value as text; 7.0 is shown as 7, since all numbers are read as float64."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
