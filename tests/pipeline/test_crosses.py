"""A cross of columns through a whole run, up to the proof of its export."""

import json
from pathlib import Path

import pandas as pd
import pytest

import ctr_pipeline
from ctr_pipeline.config.loader import load_config
from tests.pipeline.visits import write_visits

CROSS = {"cross": ["city", "device", "hour"], "id": {"hash": {"buckets": 5000}}, "name": "place"}


def settings_of(data: Path, output: Path, features: list, **sections) -> dict:
    return {
        "name": "visits",
        "data": {"train": str(data), "label": "click"},
        "features": features,
        "model": {"name": "wide_and_deep", "embedding_dim": 2, "hidden_units": [4], "dropout": 0.0},
        "train": {
            "epochs": 3,
            "batch_size": 64,
            "early_stopping": None,
            "embeddings": {
                "linear": {
                    "optimizer": {"name": "adagrad", "learning_rate": 0.3},
                    "reduction": "sum",
                },
            },
        },
        "report": {"importance": True, "importance_rows": 400},
        "export": {"parity_rows": 100},
        "output": str(output),
        **sections,
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    write_visits(path, 6000)
    return path


@pytest.fixture(scope="module")
def crossed(rows):
    """Folder and result of a run with a cross, whose label depends on city and device together."""
    features = [
        {"columns": ["city", "device"], "id": "vocabulary"},
        {"columns": "hour", "id": {"bucketize": {"boundaries": [12.0]}}},
        CROSS,
    ]
    folder = rows.with_name("crossed")
    return folder, ctr_pipeline.run(settings_of(rows, folder, features))


@pytest.mark.slow
def test_a_cross_learns_what_its_columns_do_not_tell_alone(rows, crossed):
    features = [{"columns": ["city", "device"], "id": "vocabulary"}]
    alone = ctr_pipeline.run(settings_of(rows, rows.with_name("alone"), features))
    assert crossed[1].metrics["test"]["auc"] > alone.metrics["test"]["auc"] + 0.08


@pytest.mark.slow
def test_the_export_scores_as_the_trainer(crossed):
    parity = json.loads((crossed[0] / "export/1/parity.json").read_text())
    assert parity["num_rows"] > parity["num_edge_rows"] > 30
    assert max(parity["max_difference"].values()) <= parity["tolerance"]
    card = json.loads((crossed[0] / "export/1/model_card.json").read_text())
    # The cross is no input of the served model, its columns are.
    assert {one["column"] for one in card["inputs"]} == {"city", "device", "hour"}
    (described,) = [one for one in card["features"] if one["column"] == "place"]
    assert described["cross"] == ["city", "device", "hour"]


@pytest.mark.slow
def test_a_cross_is_a_feature_of_its_own(crossed):
    folder, result = crossed
    importance = {row["feature"]: row for row in result.metrics["importance"]}
    assert set(importance) == {"city", "device", "hour", "place"}
    assert importance["place"]["auc_drop"] == max(row["auc_drop"] for row in importance.values())
    assert "place" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_the_resolved_config_and_new_rows(crossed, rows):
    folder, _ = crossed
    loaded = load_config(folder / "config.resolved.yaml")
    assert loaded.config.features[2].features == ("place",)
    assert "place" in loaded.resolved_yaml()
    frame = pd.read_csv(rows, dtype=str, keep_default_na=False).head(50)
    predicted = ctr_pipeline.load(folder).predict(frame.assign(hour=frame["hour"].astype(float)))
    assert len(predicted) == 50
