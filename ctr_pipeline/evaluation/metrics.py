"""All metrics of one set of predictions, as one frozen result."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, field_serializer, field_validator

from ctr_pipeline.evaluation.auc import RocPoint, exact_auc, roc_points
from ctr_pipeline.evaluation.calibration import (
    CalibrationBin,
    calibration_bins,
    calibration_ratio,
    expected_calibration_error,
)
from ctr_pipeline.evaluation.checks import (
    require_binary_labels,
    require_finite_scores,
    require_weights,
)
from ctr_pipeline.evaluation.groups import (
    ColumnMetrics,
    Groups,
    JsonInterval,
    group_auc,
    measure_groups,
)
from ctr_pipeline.evaluation.likelihood import (
    constant_logloss,
    logloss_of_logits,
    mean_of,
    normalized_entropy,
    probabilities_of,
)


class MeasuredRows(BaseModel):
    """Metrics of predictions on one set of rows, as `metrics.json` has them; all are finite.

    Attributes:
        num_rows: Rows evaluated.
        num_positive: Rows with label 1.
        weight_sum: Sum of the rows' weights; None without weights. With weights, all metrics are
            weighted, but numbers of rows are not.
        label_rate: Mean label.
        mean_probability: Mean prediction.
        auc: Exact, ties one half.
        logloss: Nats a row.
        normalized_entropy: Logloss over the entropy of `label_rate`.
        baseline_rate: The constant that the baseline predicts.
        baseline_logloss: Logloss of that constant.
        calibration: Sum of predictions over sum of labels.
        calibration_interval: Its 95 % interval.
        expected_calibration_error: Mean distance of prediction and observation over the bins.
        gauc: AUC within groups; None without a group column or without a group of both classes.
        gauc_num_groups: Groups counted in `gauc`.
        gauc_num_groups_total: Groups there are.
        gauc_num_rows: Rows counted in `gauc`.
        by_column: Metrics by the values of columns, if asked for; in JSON by column.
    """

    # Those of another version may be more.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
    num_rows: int
    num_positive: int
    weight_sum: float | None = None
    label_rate: float
    mean_probability: float
    auc: float
    logloss: float
    normalized_entropy: float
    baseline_rate: float
    baseline_logloss: float
    calibration: float
    calibration_interval: JsonInterval
    expected_calibration_error: float
    gauc: float | None = None
    gauc_num_groups: int | None = None
    gauc_num_groups_total: int | None = None
    gauc_num_rows: int | None = None
    by_column: tuple[ColumnMetrics, ...] = ()

    @field_validator("by_column", mode="before")
    @classmethod
    def _of_json(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return tuple({"column": name, **metrics} for name, metrics in value.items())
        return value

    @field_serializer("by_column", when_used="json")
    def _to_json(self, columns: tuple[ColumnMetrics, ...]) -> dict[str, Any]:
        return {one.column: one.model_dump(mode="json", exclude={"column"}) for one in columns}


class EvaluationResult(MeasuredRows):
    """The same with the curves that a report draws.

    Attributes:
        calibration_bins: By ascending prediction.
        roc: From (0, 0) to (1, 1), at most 400 points.
    """

    model_config = ConfigDict(extra="forbid")
    calibration_bins: tuple[CalibrationBin, ...]
    roc: tuple[RocPoint, ...]

    def to_metrics(self) -> dict[str, Any]:
        """The entry of `metrics.json`: all but the curves."""
        return self.model_dump(mode="json", include=set(MeasuredRows.model_fields))


def evaluate_predictions(
    labels: npt.NDArray[Any],
    logits: npt.NDArray[Any],
    *,
    weights: npt.NDArray[Any] | None = None,
    groups: "Groups | None" = None,
    by: Mapping[str, Groups] | None = None,
    bins: int = 20,
    baseline_rate: float | None = None,
    place: str = "predictions",
) -> EvaluationResult:
    """Measures predictions against labels.

    Args:
        labels: [N] uint8 or float, zeros and ones.
        logits: [N] float32 or float64, before the sigmoid.
        weights: [N], 0 or more; None: all rows count alike.
        groups: [N] group of each row for GAUC; missing values belong to no group.
        by: Columns [N] by whose values the rows are measured apart as well.
        bins: Calibration bins asked for.
        baseline_rate: What the constant baseline predicts, best the label rate of the training
            rows; None: the label rate of these rows.
        place: What the rows are, for error messages, such as `test rows`.

    Raises:
        DataError: Only one class, or one whose rows all weigh 0: AUC and baseline have no meaning.
        ValueError: No rows, labels other than 0 and 1, or lengths that differ.
        TrainingError: Logits that are not finite.
    """
    positive = require_binary_labels(labels, place=place)
    require_finite_scores(logits, positive.size, place=place)
    if weights is not None:
        weights = require_weights(weights, positive, place=place)
    label_rate = mean_of(positive, weights)
    reference_rate = label_rate if baseline_rate is None else baseline_rate
    probabilities = probabilities_of(logits)
    logloss = logloss_of_logits(labels, logits, weights)
    ratio, interval = calibration_ratio(labels, probabilities, weights)
    in_bins = calibration_bins(labels, probabilities, bins, weights)
    by_group = None
    if groups is not None:
        by_group = group_auc(labels, logits, groups, weights=weights, place=place)
    return EvaluationResult(
        num_rows=positive.size,
        num_positive=int(np.count_nonzero(positive)),
        weight_sum=None if weights is None else float(np.sum(weights)),
        label_rate=label_rate,
        mean_probability=mean_of(probabilities, weights),
        auc=exact_auc(labels, logits, weights=weights, place=place),
        logloss=logloss,
        normalized_entropy=normalized_entropy(logloss, label_rate),
        baseline_rate=reference_rate,
        baseline_logloss=constant_logloss(label_rate, reference_rate),
        calibration=ratio,
        calibration_interval=interval,
        expected_calibration_error=expected_calibration_error(in_bins),
        gauc=None if by_group is None else by_group.value,
        gauc_num_groups=None if by_group is None else by_group.num_groups_counted,
        gauc_num_groups_total=None if by_group is None else by_group.num_groups,
        gauc_num_rows=None if by_group is None else by_group.num_rows_counted,
        by_column=tuple(
            measure_groups(name, values, labels, logits, weights=weights)
            for name, values in (by or {}).items()
        ),
        calibration_bins=in_bins,
        roc=roc_points(labels, logits, weights=weights, place=place),
    )
