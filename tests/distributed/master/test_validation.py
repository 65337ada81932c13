import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.config.models import EarlyStopping, TrainConfig
from ctr_pipeline.distributed.coordination.events import DecideEpoch, EpochTotals, SplitTotals
from ctr_pipeline.distributed.coordination.messages import ScoreSummary
from ctr_pipeline.distributed.coordination.tasks import merge_scores
from ctr_pipeline.distributed.master.validation import decide_epoch, read_record
from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.specs.learning_rate import ExponentialDecay

RANDOM = np.random.default_rng(3)
LABELS = RANDOM.integers(0, 2, 4000)
LOGITS = (LABELS - 0.5 + RANDOM.normal(0, 1, 4000)).astype(np.float32)


def summary(labels, logits):
    counted = ScoreHistogram.of(labels, logits)
    return ScoreSummary(
        counted.sparse_positives,
        counted.sparse_negatives,
        counted.loss_sum,
        counted.probability_sum,
    )


def valid(labels=LABELS, logits=LOGITS, parts=7):
    pieces = zip(np.array_split(labels, parts), np.array_split(logits, parts), strict=True)
    return SplitTotals("valid", len(labels), merge_scores([summary(*piece) for piece in pieces]))


def totals(epoch=0, trained=1000, loss_sum=600.0):
    return EpochTotals(epoch, trained, 5, 0, loss_sum, 12.5)


def decide(scores, history=(), train=None, **changes):
    action = DecideEpoch(totals(epoch=len(history), **changes), scores, tuple(history))
    return decide_epoch(action, train or TrainConfig(), step=94 * (action.totals.epoch + 1))


def test_metrics_of_parts_are_those_of_all_rows():
    record = read_record(decide(valid()).record)
    probabilities = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    assert record.valid_logloss == pytest.approx(log_loss(LABELS, probabilities), abs=1e-9)
    assert record.valid_auc == pytest.approx(roc_auc_score(LABELS, LOGITS), abs=2e-4)
    assert record.valid_calibration == pytest.approx(probabilities.sum() / LABELS.sum(), abs=1e-9)
    assert record.train_logloss == 0.6
    assert (record.epoch, record.step, record.num_rows, record.seconds) == (0, 94, 1000, 12.5)


def test_the_division_into_parts_changes_nothing():
    assert decide(valid(parts=1)).record == decide(valid(parts=11)).record


def test_worse_epochs_stop_the_job_and_the_best_is_named():
    train = TrainConfig(epochs=10, early_stopping=EarlyStopping(tolerance=0.001, patience=2))
    first = decide(valid(), train=train)
    assert (first.stop, first.best_epoch, first.reason) == (False, 0, "")
    worse = decide(valid(logits=-LOGITS), history=[first.record], train=train)
    assert (worse.stop, worse.best_epoch) == (True, 0)
    assert "worse than in epoch 1" in worse.reason


def test_the_last_epoch_ends_it():
    train = TrainConfig(epochs=2, early_stopping=None)
    first = decide(valid(), train=train)
    last = decide(valid(logits=1.1 * LOGITS), history=[first.record], train=train)
    assert last.stop
    assert last.record["step"] == 188
    assert "all 2 epochs are done" in last.reason


def test_the_learning_rate_is_that_of_the_last_step():
    schedule = ExponentialDecay(decay_steps=94, decay_rate=0.5)
    train = TrainConfig(learning_rate_schedule=schedule)
    assert decide(valid(), train=train).record["learning_rate_factor"] == pytest.approx(0.5)


def test_one_class_says_so():
    with pytest.raises(DataError, match="all 10 labels are 1"):
        decide(valid(labels=np.ones(10, int), logits=np.ones(10, np.float32), parts=1))


def test_no_validation_rows_say_so():
    with pytest.raises(TrainingError, match="no validation rows"):
        decide(None)


def test_a_loss_that_is_not_finite_says_so():
    with pytest.raises(TrainingError, match=r"loss of epoch 1 is nan.*learning rate"):
        decide(valid(), loss_sum=math.nan)


def test_an_epoch_without_a_record_says_so():
    with pytest.raises(TrainingError, match="no record of epoch 1"):
        decide(valid(), trained=0, loss_sum=0.0)
