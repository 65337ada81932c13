"""One run of rows that were thinned before, with weights that make up for it."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import ctr_pipeline
from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.encoded import load_meta
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.clicks import settings_of

pytestmark = pytest.mark.slow

NUM_ROWS, THINNING = 30_000, 5


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folder, what is known of all rows, the rows that are left, and the result of the run."""
    folder = tmp_path_factory.mktemp("weighted")
    summary = write_criteo_sample(
        folder / "all.tsv", num_rows=NUM_ROWS, seed=3, progress=SilentProgress()
    )
    chance = np.random.default_rng(1)
    lines = []
    for number, line in enumerate((folder / "all.tsv").read_text().splitlines()):
        if line[0] == "1":
            lines.append(f"{line}\tu{number % 20}\t1")
        elif chance.random() < 1 / THINNING:
            lines.append(f"{line}\tu{number % 20}\t{THINNING}")
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    given = settings_of(folder / "rows.tsv", folder / "out")
    given["data"] = {
        "train": str(folder / "rows.tsv"),
        "columns": ["label", "I1..I13", "C1..C26", "user", "times"],
        "weight": "times",
    }
    given["features"] = given["features"][:2]
    frame = pd.read_csv(folder / "rows.tsv", sep="\t", header=None)
    return folder, summary, frame, ctr_pipeline.run(given)


def test_probabilities_are_those_of_all_rows(world):
    _, summary, frame, result = world
    metrics = result.metrics["test"]
    thinned_rate = frame[0].mean()
    assert thinned_rate > 2 * summary.click_rate
    assert 0.9 < metrics["calibration"] < 1.1
    assert metrics["mean_probability"] == pytest.approx(summary.test_click_rate, rel=0.15)
    assert metrics["baseline_rate"] == pytest.approx(summary.click_rate, rel=0.05)


def test_metrics_are_weighted(world):
    _, _, frame, result = world
    test = frame.tail(len(result.predictions))
    labels, weights = test[0].to_numpy(), test.iloc[:, -1].to_numpy()
    probabilities = result.predictions["probability"].to_numpy().astype(float)
    metrics = result.metrics["test"]
    assert metrics["num_rows"] == len(test)
    assert metrics["weight_sum"] == weights.sum()
    expected = roc_auc_score(labels, probabilities, sample_weight=weights)
    assert metrics["auc"] == pytest.approx(expected, abs=1e-6)
    expected = log_loss(labels, probabilities, sample_weight=weights)
    assert metrics["logloss"] == pytest.approx(expected, abs=1e-6)
    total = share = 0.0
    for _, rows in test.assign(probability=probabilities).groupby(40):
        weight = rows.iloc[:, 41].sum()
        total += weight * roc_auc_score(
            rows[0], rows["probability"], sample_weight=rows.iloc[:, 41]
        )
        share += weight
    assert metrics["gauc"] == pytest.approx(total / share, abs=1e-6)


def test_statistics_have_both_click_rates_and_the_model_starts_from_the_weighted_one(world):
    folder, _, frame, _ = world
    train = frame.head(round(len(frame) * 0.8))
    statistics = json.loads((folder / "out" / "statistics.json").read_text())
    assert statistics["label_rate"] == pytest.approx(train[0].mean(), abs=1e-3)
    weighted = np.average(train[0], weights=train.iloc[:, -1])
    assert statistics["weighted_label_rate"] == pytest.approx(weighted, abs=1e-3)
    card = json.loads((folder / "out" / "export" / "1" / "model_card.json").read_text())
    assert card["base_rate"] == statistics["weighted_label_rate"]


def test_the_weight_is_no_input_of_the_model(world):
    folder = world[0]
    assert load_meta(RunFolder(folder / "out").encoded / "train").has_weights
    card = (folder / "out" / "export" / "1" / "model_card.json").read_text()
    assert "times" not in card
    assert "times" in (folder / "out" / "report.html").read_text()
    history = pd.read_csv(folder / "out" / "history.csv")
    assert 0.8 < history["valid_calibration"].iloc[-1] < 1.2


def test_the_same_rows_as_new_ones_measure_the_same(world):
    folder, _, _, result = world
    lines = (folder / "rows.tsv").read_text().splitlines()[-len(result.predictions) :]
    (folder / "new.tsv").write_text("\n".join(lines) + "\n")
    loaded = load_config(folder / "out" / "config.resolved.yaml")
    again = evaluate(loaded, data=str(folder / "new.tsv"), progress=SilentProgress())
    for name in ("auc", "logloss", "weight_sum", "gauc", "calibration"):
        assert again[name] == pytest.approx(result.metrics["test"][name], rel=1e-9), name
