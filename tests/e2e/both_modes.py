"""A model of some features, trained by one process and by several: both must end alike."""

import pandas as pd
import pytest
from watched_run import WatchedRun

from ctr_pipeline.training.history import load_history

EPOCHS = 2
MEMBERS = {"workers": {"min": 1, "max": 1}, "parameter_servers": 2}


def config_of(data, features, mode):
    return {
        "name": "members",
        "data": {"train": str(data), "label": "click"},
        "features": features,
        "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [16]},
        "train": {
            "epochs": EPOCHS,
            "batch_size": 64,
            "early_stopping": None,
            "deterministic": True,
        },
        "export": {"parity_rows": 50},
        "runtime": {"mode": mode, **(MEMBERS if mode == "processes" else {})},
    }


def assert_same_epochs(found, expected, *, tolerance=1e-6):
    """The same epochs with the same results; times may differ.

    A batch that a cut holds and its ledger does not yet count is computed again after the cut, by a
    model that knows it, and applied no second time: the model is the same, the loss it showed while
    it trained is not. There may be as many of them as batches between two heartbeats.
    """
    assert [one.epoch for one in found] == [one.epoch for one in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.step == theirs.step
        assert mine.num_rows == theirs.num_rows
        for name in ("valid_logloss", "valid_auc", "valid_calibration", "learning_rate_factor"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=tolerance), name
        shown = tolerance if tolerance < 1e-5 else 10 * tolerance
        assert mine.train_logloss == pytest.approx(theirs.train_logloss, abs=shown)


def assert_both_end_alike(folder, data, features):
    """Runs in folders below this one; their epochs and the scores of each row are the same."""
    histories, scores = [], []
    for mode in ("local", "processes"):
        with WatchedRun(folder / mode, config_of(data, features, mode)) as run:
            run.start("run")
            assert run.wait(300) == 0, run.tail(40)
        histories.append(load_history(run.output / "history.csv"))
        scores.append(pd.read_parquet(run.output / "predictions.parquet"))
    alone, together = histories
    assert len(alone) == EPOCHS
    assert_same_epochs(together, alone)
    pd.testing.assert_frame_equal(*scores, atol=1e-6)
