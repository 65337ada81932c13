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


def assert_both_end_alike(folder, data, features):
    """Runs in folders below this one; their epochs and the scores of each row are the same."""
    histories, scores = [], []
    for mode in ("local", "processes"):
        with WatchedRun(folder / mode, config_of(data, features, mode)) as run:
            run.start("run")
            assert run.wait(300) == 0, run.tail(40)
        histories.append(load_history(run.output / "history.csv"))
        scores.append(pd.read_parquet(run.output / "predictions.parquet"))
    assert len(histories[0]) == len(histories[1]) == EPOCHS
    for alone, together in zip(*histories, strict=True):
        assert together.valid_logloss == pytest.approx(alone.valid_logloss, abs=1e-6)
        assert together.train_logloss == pytest.approx(alone.train_logloss, abs=1e-6)
    pd.testing.assert_frame_equal(*scores, atol=1e-6)
