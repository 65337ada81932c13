"""Metrics of the rows of each value of a column, and the AUC within groups."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from ctr_pipeline.evaluation.auc import auc_interval, exact_auc, run_starts
from ctr_pipeline.evaluation.calibration import Interval, calibration_ratio
from ctr_pipeline.evaluation.checks import (
    require_binary_labels,
    require_finite_scores,
    require_weights,
)
from ctr_pipeline.evaluation.likelihood import logloss_of_logits, mean_of, probabilities_of

if TYPE_CHECKING:
    import pyarrow as pa

NUM_SHOWN = 20
"""Values that are measured each by itself; the rows of all others are measured together."""

_MOST_LETTERS = 200
_FEWEST_OF_A_CLASS = 10
_WIDEST_CERTAIN = 0.1
"""Width of an AUC's interval; of a wider one, or with fewer rows of a class, a group is small."""


def _from_ends(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"low": value[0], "high": value[1]}
    return value


JsonInterval = Annotated[
    Interval,
    BeforeValidator(_from_ends),
    PlainSerializer(lambda interval: [interval.low, interval.high], when_used="json"),
]
"""An interval that is a list of its ends in JSON."""

Groups: TypeAlias = "pa.Array | pa.ChunkedArray | npt.NDArray[Any]"
"""One group value per row; NULL (Arrow), None or NaN (NumPy) is no group."""


@dataclass(frozen=True)
class GroupAuc:
    """AUC within groups, and how much of the data it speaks of.

    Attributes:
        value: Mean AUC weighted by rows, over groups that hold both classes; None if none does.
        num_groups: Groups in the data.
        num_groups_counted: Groups that hold both classes.
        num_rows_counted: Rows of those groups.
    """

    value: float | None
    num_groups: int
    num_groups_counted: int
    num_rows_counted: int


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
    auc_interval: JsonInterval | None
    logloss: float | None
    calibration: float | None
    calibration_interval: JsonInterval | None
    hint: str


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


def group_auc(
    labels: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    groups: Groups,
    *,
    weights: npt.NDArray[Any] | None = None,
    place: str = "predictions",
) -> GroupAuc:
    """GAUC: AUC inside each group, averaged with the groups' row counts as weights.

    Zhu et al. 2017, "Optimized cost per click in Taobao display advertising", equation 11, with
    impressions as weights. Groups of one class have no AUC and are left out, as are rows without
    a group; the result says how many remain. Where rows have weights, a group's is their sum, and
    rows of weight 0 are as good as absent.

    Args:
        labels: [N] zeros and ones.
        scores: [N] float.
        groups: [N] values of any type.
        weights: [N], 0 or more; None: all rows count alike.
        place: What the rows are, for error messages.

    Raises:
        DataError: Only one class in all.
        ValueError: No rows, labels other than 0 and 1, or lengths that differ.
        TrainingError: Scores that are not finite.
    """
    positive = require_binary_labels(labels, place=place)
    require_finite_scores(scores, positive.size, place=place)
    codes, _ = group_codes(groups)
    if codes.size != positive.size:
        raise ValueError(f"{codes.size} groups for {positive.size} rows")
    if weights is None:
        # Whole numbers, so that pairs are counted exactly.
        counts: npt.NDArray[Any] = np.ones(positive.size, np.int64)
    else:
        counts = require_weights(weights, positive, place=place)
    grouped = (codes >= 0) & (counts > 0)
    if not grouped.any():
        return GroupAuc(value=None, num_groups=0, num_groups_counted=0, num_rows_counted=0)
    chosen = np.flatnonzero(grouped)
    order = chosen[np.lexsort((scores[chosen], codes[chosen]))]
    codes, scores, positive, counts = codes[order], scores[order], positive[order], counts[order]

    group_changes = codes[1:] != codes[:-1]
    tie_starts = run_starts(group_changes | (scores[1:] != scores[:-1]))
    tie_positives = np.add.reduceat(np.where(positive, counts, 0), tie_starts)
    tie_negatives = np.add.reduceat(np.where(positive, 0, counts), tie_starts)
    negatives_before = np.cumsum(tie_negatives) - tie_negatives

    group_starts = run_starts(group_changes)
    # Every group starts a run of ties, so the search is exact.
    first_tie = np.searchsorted(tie_starts, group_starts)
    ties_per_group = np.diff(first_tie, append=tie_starts.size)
    below = negatives_before - np.repeat(negatives_before[first_tie], ties_per_group)
    twice_right = np.add.reduceat(tie_positives * (2 * below + tie_negatives), first_tie)
    num_positive = np.add.reduceat(tie_positives, first_tie)
    num_negative = np.add.reduceat(tie_negatives, first_tie)

    both = (num_positive > 0) & (num_negative > 0)
    rows = np.diff(group_starts, append=positive.size)[both]
    pairs = 2.0 * num_positive[both] * num_negative[both]
    share = (num_positive + num_negative)[both]
    value = float(np.average(twice_right[both] / pairs, weights=share)) if rows.size else None
    return GroupAuc(
        value=value,
        num_groups=int(group_starts.size),
        num_groups_counted=int(rows.size),
        num_rows_counted=int(rows.sum()),
    )


def group_codes(groups: Groups) -> "tuple[npt.NDArray[np.int64], pa.Array]":
    """One integer per row, -1 where the value is missing; and the value of each integer."""
    # Reports read what was measured and do without Arrow.
    import pyarrow as pa
    import pyarrow.compute as pc

    column = (
        groups
        if isinstance(groups, pa.Array | pa.ChunkedArray)
        else pa.array(groups, from_pandas=True)
    )
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.DictionaryArray):
        column = column.dictionary_encode()
    codes: npt.NDArray[np.int64] = (
        pc.fill_null(column.indices.cast(pa.int64()), -1)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64, copy=False)
    )
    return codes, column.dictionary


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
