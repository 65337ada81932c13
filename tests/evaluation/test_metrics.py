import json

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.evaluation.metrics import EvaluationResult, evaluate_predictions


def rows(num_rows=3000, seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 1, num_rows).astype(np.float32)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.uint8)
    return labels, logits, random.integers(0, 50, num_rows)


def test_every_metric_of_one_call():
    labels, logits, groups = rows()
    result = evaluate_predictions(
        labels, logits, groups=pa.array(groups), bins=10, baseline_rate=0.4
    )
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert result.auc == pytest.approx(roc_auc_score(labels, logits))
    assert result.logloss == pytest.approx(log_loss(labels, probabilities))
    assert result.baseline_logloss == pytest.approx(log_loss(labels, np.full(labels.size, 0.4)))
    assert result.calibration == pytest.approx(probabilities.sum() / labels.sum())
    assert result.calibration_interval.contains(1.0)
    assert result.gauc_num_groups == result.gauc_num_groups_total == 50
    assert result.gauc_num_rows == result.num_rows == 3000
    assert len(result.calibration_bins) == 10
    assert EvaluationResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("label_dtype", [np.uint8, np.float32, np.int64, np.bool_])
def test_metrics_are_json_without_nan(label_dtype):
    labels, logits, _ = rows(200)
    metrics = evaluate_predictions(labels.astype(label_dtype), logits).to_metrics()
    assert {
        "auc",
        "logloss",
        "normalized_entropy",
        "calibration",
        "calibration_interval",
        "gauc",
        "num_rows",
        "num_positive",
        "label_rate",
        "baseline_logloss",
    } <= set(metrics)
    assert metrics["gauc"] is None
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_huge_logits_and_constant_logits_stay_finite():
    labels = np.array([0, 1, 0, 1])
    # A wrong logit costs its size, a right one of such a size nothing.
    softplus = np.log1p(np.exp([1, -2]))
    for logits, auc, logloss in (
        ([3e38, -3e38, 1, 2], 0.25, (3e38 + 3e38 + softplus.sum()) / 4),
        ([0, 0, 0, 0], 0.5, np.log(2)),
        ([-800, -800, -800, -800], 0.5, 400),
    ):
        result = evaluate_predictions(labels, np.array(logits, dtype=np.float32))
        json.dumps(result.model_dump(), allow_nan=False)
        assert result.auc == auc
        assert result.logloss == pytest.approx(logloss, rel=1e-6)


def test_one_class_and_nan_are_refused():
    logits = np.zeros(3, dtype=np.float32)
    with pytest.raises(DataError, match="valid rows: all 3 labels are 0"):
        evaluate_predictions(np.zeros(3), logits, place="valid rows")
    with pytest.raises(TrainingError, match="learning rates"):
        evaluate_predictions(np.array([0, 1]), np.array([np.nan, 0.0]))
