import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.models import EarlyStopping
from ctr_pipeline.training.history import EpochRecord
from ctr_pipeline.training.stopping import decide_stop


def epochs(losses, aucs=None):
    aucs = aucs or [0.5] * len(losses)
    return [
        EpochRecord(number, 10 * (number + 1), 0.5, loss, auc, 1.0, 1.0, 100, 1.0)
        for number, (loss, auc) in enumerate(zip(losses, aucs, strict=True))
    ]


BY_LOSS = EarlyStopping(tolerance=0.01, patience=2)
BY_AUC = EarlyStopping(metric="auc", tolerance=0.01, patience=2)


@pytest.mark.parametrize(
    ("losses", "rule", "best", "stop"),
    [
        ([0.5], BY_LOSS, 0, False),
        ([0.5, 0.4, 0.3], BY_LOSS, 2, False),
        ([0.5, 0.505], BY_LOSS, 0, False),
        ([0.5, 0.52], BY_LOSS, 0, True),
        ([0.5, 0.505, 0.504], BY_LOSS, 0, True),
        ([0.5, 0.505, 0.499], BY_LOSS, 2, False),
        ([0.5, 0.5], BY_LOSS, 0, False),
        ([0.5, 0.5, 0.5], BY_LOSS, 0, True),
        ([0.5, 0.9, 0.9, 0.9], None, 0, False),
        ([0.5, 0.4, 0.6, 0.9], None, 1, False),
    ],
)
def test_validation_loss_decides(losses, rule, best, stop):
    decision = decide_stop(epochs(losses), rule, 100)
    assert (decision.best_epoch, decision.stop) == (best, stop)
    assert bool(decision.reason) == stop


@pytest.mark.parametrize(
    ("aucs", "best", "stop"),
    [([0.6, 0.7], 1, False), ([0.7, 0.65], 0, True), ([0.7, 0.695, 0.698], 0, True)],
)
def test_validation_auc_decides_and_larger_is_better(aucs, best, stop):
    decision = decide_stop(epochs([0.5] * len(aucs), aucs), BY_AUC, 100)
    assert (decision.best_epoch, decision.stop) == (best, stop)


def test_reason_names_the_metric_and_the_best_epoch_from_one():
    decision = decide_stop(epochs([0.5, 0.52]), BY_LOSS, 100)
    assert decision.reason == "validation logloss is 0.0200 worse than in epoch 1"
    assert "has not improved for 2 epochs" in decide_stop(epochs([0.5] * 3), BY_LOSS, 9).reason


def test_last_epoch_ends_it():
    assert decide_stop(epochs([0.4, 0.4]), BY_LOSS, 2).reason == "all 2 epochs are done"
    assert "more may help" in decide_stop(epochs([0.5, 0.4]), BY_LOSS, 2).reason
    assert decide_stop(epochs([0.5, 0.4]), None, 2).stop


losses = st.lists(st.floats(0.1, 1.0), min_size=1, max_size=12)


@given(losses, st.integers(1, 4), st.floats(0, 0.3), st.integers(1, 12))
def test_stops_at_the_latest_when_patience_or_epochs_end(values, patience, tolerance, most):
    rule = EarlyStopping(tolerance=tolerance, patience=patience)
    decision = decide_stop(epochs(values), rule, most)
    assert values[decision.best_epoch] == min(values)
    assert decision.best_epoch == values.index(min(values))
    since_best = len(values) - 1 - decision.best_epoch
    worse = values[-1] > min(values) + tolerance
    assert decision.stop == (since_best >= patience or worse or len(values) >= most)
