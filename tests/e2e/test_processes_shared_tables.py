"""Features that share an embedding table, or have one of their own make, train in several processes
what they train in one."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from watched_run import WatchedRun

from ctr_pipeline.training.history import load_history

sys.path.append(str(Path(__file__).parents[1] / "pipeline"))
from feeds import write_feeds

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]


def config_of(data, mode):
    members = {"workers": {"min": 1, "max": 1}, "parameter_servers": 2}
    return {
        "name": "members",
        "data": {"train": str(data), "label": "click"},
        "features": [
            {"columns": "item", "id": {"vocabulary": {"min_count": 2}}},
            {
                "columns": "clicked_items",
                "sequence": {"max_length": 4},
                "id": {"vocabulary": {"min_count": 2}},
                "embedding": {
                    "share": "item",
                    "vector": {
                        "optimizer": {"name": "adagrad", "learning_rate": 0.05},
                        "initial_range": 0.1,
                        "l2": {"strength": 2.0},
                    },
                },
            },
            {
                "columns": "hour",
                "id": {"round_identity": {"num_buckets": 24}},
                "embedding": {
                    "dimension": "auto",
                    "linear": {"reduction": "mean", "l2": {"count_power": 2}},
                },
            },
        ],
        "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [16]},
        "train": {"epochs": 2, "batch_size": 64, "early_stopping": None, "deterministic": True},
        "export": {"parity_rows": 50},
        "runtime": {"mode": mode, **(members if mode == "processes" else {})},
    }


def test_shared_tables_in_processes_end_as_in_one(tmp_path):
    write_feeds(tmp_path / "feeds.csv", 2000)
    runs = {}
    for mode in ("local", "processes"):
        folder = tmp_path / mode
        folder.mkdir()
        with WatchedRun(folder, config_of(tmp_path / "feeds.csv", mode)) as run:
            run.start("run")
            assert run.wait(300) == 0, run.tail(40)
        runs[mode] = run
    histories = [load_history(run.output / "history.csv") for run in runs.values()]
    assert len(histories[0]) == len(histories[1]) == 2
    for alone, together in zip(*histories, strict=True):
        assert together.valid_logloss == pytest.approx(alone.valid_logloss, abs=1e-6)
        assert together.train_logloss == pytest.approx(alone.train_logloss, abs=1e-6)
    scores = [pd.read_parquet(run.output / "predictions.parquet") for run in runs.values()]
    pd.testing.assert_frame_equal(*scores, atol=1e-6)
