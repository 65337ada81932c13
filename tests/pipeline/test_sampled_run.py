"""Training on a tenth of the negatives: what is predicted, exported and stopped by is corrected."""

import json
import math

import numpy as np
import pytest

import ctr_pipeline
from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.encoded import load_meta
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.errors import ConfigError, RunFolderError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.clicks import settings_of

pytestmark = pytest.mark.slow

NUM_ROWS, SHARE = 30_000, 0.1


def settings(folder, **data):
    given = settings_of(folder / "rows.tsv", folder / "out")
    given["data"] = {
        "train": str(folder / "rows.tsv"),
        "columns": ["label", "I1..I13", "C1..C26"],
        "sample": {"negatives": SHARE},
        **data,
    }
    given["features"] = given["features"][:2]
    given["evaluation"] = {}
    return given


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    summary = write_criteo_sample(
        folder / "rows.tsv", num_rows=NUM_ROWS, seed=3, progress=SilentProgress()
    )
    return folder, summary, ctr_pipeline.run(settings(folder))


def test_probabilities_are_those_of_the_planted_rate(world):
    _, summary, result = world
    predicted = result.predictions["probability"].to_numpy().astype(float)
    assert predicted.mean() == pytest.approx(summary.test_click_rate, rel=0.1)
    assert 0.9 < result.metrics["test"]["calibration"] < 1.1
    logits = np.log(predicted / (1 - predicted))
    uncorrected = 1 / (1 + np.exp(-(logits - math.log(SHARE))))
    assert uncorrected.mean() / summary.test_click_rate > 2.5


def test_epochs_are_compared_by_corrected_probabilities(world):
    folder = world[0]
    lines = (folder / "out" / "history.csv").read_text().splitlines()
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    assert 0.9 < float(last["valid_calibration"]) < 1.1


def test_sampling_draws_only_rows_trained_on_and_statistics_are_of_all(world):
    folder, _, result = world
    run = RunFolder(folder / "out")
    ingested = load_ingested(run.ingested)
    for split in ("valid", "test"):
        assert load_meta(run.encoded / split).num_rows == ingested.splits[split].num_rows
    drawn, all_rows = load_meta(run.encoded / "train"), ingested.splits["train"]
    assert drawn.num_positive == all_rows.num_positive
    num_negative = all_rows.num_rows - all_rows.num_positive
    assert (drawn.num_rows - drawn.num_positive) / num_negative == pytest.approx(SHARE, rel=0.1)
    statistics = json.loads((folder / "out" / "statistics.json").read_text())
    assert statistics["num_rows"] == all_rows.num_rows
    baseline = result.metrics["test"]["baseline_rate"]
    assert baseline == pytest.approx(all_rows.num_positive / all_rows.num_rows)


def test_the_export_is_proved_and_a_later_evaluation_finds_the_same(world):
    folder, _, result = world
    proof = json.loads((folder / "out" / "export" / "1" / "parity.json").read_text())
    assert proof["num_rows"] > 0
    loaded = load_config(folder / "out" / "config.resolved.yaml")
    again = evaluate(loaded, progress=SilentProgress())
    assert again["logloss"] == result.metrics["test"]["logloss"]


def test_another_share_is_another_model(world):
    folder = world[0]
    with pytest.raises(RunFolderError, match=r"data\.sample\.negatives"):
        ctr_pipeline.run(settings(folder, sample={"negatives": 0.2}))


def test_a_share_that_draws_nothing_is_refused(world, tmp_path):
    given = settings(world[0], sample={"negatives": 1e-12}) | {"output": str(tmp_path / "out")}
    with pytest.raises(ConfigError, match=r"draws none of the training rows of label 0"):
        ctr_pipeline.run(given)
