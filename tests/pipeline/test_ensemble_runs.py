"""Ensembles through whole runs: what they score, and how they go on after a crash."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import ctr_pipeline
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.apps.tune.search import require_search
from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.errors import CheckpointError, ConfigError
from ctr_pipeline.pipeline.run import export_model, train
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.test_crosses import settings_of
from tests.pipeline.visits import write_visits

pytestmark = pytest.mark.slow

NUM_ROWS = 3000
FEATURES = [
    {"columns": ["city", "device"], "id": "vocabulary"},
    {"columns": "visited", "sequence": {"max_length": 4}, "id": "vocabulary"},
]
KINDS = ["wide_and_deep", "dcn"]
TRAIN = {
    "epochs": 3,
    "batch_size": 64,
    "early_stopping": None,
    "deterministic": True,
    "checkpoint_seconds": 0.01,
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("ensemble") / "visits.csv"
    write_visits(path, NUM_ROWS)
    return path


def config_of(rows, name, kind="wide_and_deep", **changes):
    settings = settings_of(rows, rows.with_name(name), FEATURES, train=TRAIN | changes, report={})
    settings["model"] = {"name": kind, "embedding_dim": 2, "hidden_units": [4], "dropout": 0.2}
    return config_from_mapping(settings)


ENSEMBLE = {"ensemble": 2, "ensemble_models": KINDS}


@pytest.fixture(scope="module")
def undisturbed(rows):
    loaded = config_of(rows, "undisturbed", **ENSEMBLE)
    return loaded.config.run_folder, ctr_pipeline.run(loaded.config.model_dump(mode="json"))


def logits_of(folder):
    probability = pd.read_parquet(folder / "predictions.parquet")["probability"].to_numpy()
    return np.log(probability) - np.log1p(-probability)


def test_ensemble_scores_the_mean_of_models_that_were_trained_alone(rows, undisturbed):
    alone = []
    for seed, kind in enumerate(KINDS):
        loaded = config_of(rows, f"alone-{kind}", kind=kind, seed=seed)
        train(loaded, progress=SilentProgress())
        evaluate(loaded, progress=SilentProgress())
        alone.append(logits_of(loaded.config.run_folder))
    assert np.abs(alone[0] - alone[1]).max() > 0.05
    folder, result = undisturbed
    np.testing.assert_allclose(logits_of(folder), np.mean(alone, axis=0), atol=2e-5)
    # The exported model is held to the same logits by its proof, on these and on hostile rows.
    parity = json.loads((folder / "export/1/parity.json").read_text())
    assert parity["num_rows"] > parity["num_edge_rows"] > 10
    assert max(parity["max_difference"].values()) <= parity["tolerance"]
    card = json.loads((folder / "export/1/model_card.json").read_text())
    assert card["architecture"] == "ensemble of wide_and_deep, dcn"
    assert card["members"] == [
        {"model": "wide_and_deep", "seed": 0},
        {"model": "dcn", "seed": 1},
    ]
    assert card["embedding_dim"] == 2
    training = result.metrics["training"]
    assert [one["model"] for one in training["members"]] == KINDS
    assert training["epochs"] == 6
    assert training["steps"] == sum(one["steps"] for one in training["members"])
    assert "Ensemble of Wide &amp; Deep, DCN" in (folder / "report.html").read_text()


def test_exporting_alone_reads_the_rows_of_all_models_where_they_lie(undisturbed, tmp_path):
    folder, result = undisturbed
    shutil.copytree(folder, tmp_path / "out")
    loaded = load_config(
        folder / "config.resolved.yaml",
        overrides=[f"output={tmp_path / 'out'}", "export.model_version=2"],
    )
    again = export_model(loaded, progress=SilentProgress())
    assert again.metrics["test"] == result.metrics["test"]
    num_rows = result.metrics["training"]["embedding_rows"]
    assert again.metrics["training"]["embedding_rows"] == num_rows
    np.testing.assert_array_equal(logits_of(tmp_path / "out"), logits_of(folder))
    proof = json.loads((tmp_path / "out/export/2/parity.json").read_text())
    assert max(proof["max_difference"].values()) <= proof["tolerance"]


def test_new_rows_are_scored_as_the_test_rows(rows, undisturbed):
    folder, _ = undisturbed
    frame = pd.read_csv(rows, dtype=str).tail(NUM_ROWS // 10)
    found = ctr_pipeline.load(folder).predict(frame)
    stored = pd.read_parquet(folder / "predictions.parquet")["probability"]
    np.testing.assert_allclose(found.to_numpy(), stored.to_numpy(), atol=1e-6)


class Crash(Exception):
    pass


class CrashingProgress(SilentProgress):
    """Ends the process, as far as a test can, in training task `number`, from 1."""

    def __init__(self, number, num_rows):
        self.said = []
        self._left, self._rows = number, num_rows

    def log(self, text):
        self.said.append(text)

    def task(self, name, *, total, unit="rows"):
        task = super().task(name, total=total, unit=unit)
        if name.startswith("Training"):
            self._left -= 1
            if self._left == 0:
                task.advance = self._advance
        return task

    def _advance(self, count):
        self._rows -= count
        if self._rows < 0:
            raise Crash


def test_ensemble_ends_as_undisturbed_after_crashes(rows, undisturbed):
    loaded = config_of(rows, "crashed", **ENSEMBLE)
    # In the second epoch of the first model, then in the second epoch of the second one.
    with pytest.raises(Crash):
        train(loaded, progress=CrashingProgress(2, 700))
    folder = loaded.config.run_folder
    assert [one.name for one in (folder / "members").iterdir()] == ["0"]
    with pytest.raises(CheckpointError, match="to train the rest of the ensemble"):
        evaluate(loaded, progress=SilentProgress())
    # What is left: the rest of that epoch, the third one, and the second model's.
    progress = CrashingProgress(4, 700)
    with pytest.raises(Crash):
        train(loaded, resume=True, progress=progress)
    assert sum(text.startswith("Resuming after step") for text in progress.said) == 1
    progress = CrashingProgress(0, 0)
    train(loaded, resume=True, progress=progress)
    assert "Model 1 of 2 (wide_and_deep, seed 0) is trained already" in progress.said
    assert "Model 2 of 2 (dcn, seed 1)" in progress.said
    assert sum(text.startswith("Resuming after step") for text in progress.said) == 1
    evaluate(loaded, progress=SilentProgress())
    np.testing.assert_allclose(logits_of(folder), logits_of(undisturbed[0]), atol=1e-6)
    for number in ("0", "1"):
        ours, theirs = (
            pd.read_csv(place / "members" / number / "history.csv").drop(columns="seconds")
            for place in (folder, undisturbed[0])
        )
        pd.testing.assert_frame_equal(ours, theirs, atol=1e-6)


def test_ensemble_is_restored_from_checkpoints_elsewhere_without_its_folder(rows):
    settings = config_of(rows, "elsewhere", **ENSEMBLE).config.model_dump(mode="json")
    settings["runtime"]["checkpoints"] = str(rows.with_name("store"))
    loaded = config_from_mapping(settings)
    folder = loaded.config.run_folder
    train(loaded, progress=SilentProgress())
    histories = [path.read_text() for path in sorted(folder.glob("members/*/history.csv"))]
    assert len(histories) == 2
    shutil.rmtree(folder)
    progress = CrashingProgress(0, 0)
    train(loaded, resume=True, progress=progress)
    assert "Model 2 of 2 (dcn, seed 1) is trained already" in progress.said
    assert [path.read_text() for path in sorted(folder.glob("members/*/history.csv"))] == histories
    evaluate(loaded, progress=SilentProgress())


def test_another_ensemble_is_refused_in_its_folder(rows, undisturbed):
    loaded = config_of(rows, "undisturbed", ensemble=3, ensemble_models=KINDS)
    with pytest.raises(ctr_pipeline.errors.RunFolderError, match=r"train\.ensemble differs"):
        evaluate(loaded, progress=SilentProgress())


def test_a_search_trains_one_model_a_trial(rows):
    settings = config_of(rows, "search", **ENSEMBLE).config.model_dump(mode="json")
    settings["tune"] = {"space": {"model.dropout": {"low": 0, "high": 0.5}}}
    with pytest.raises(ConfigError, match="trains one model a trial"):
        require_search(config_from_mapping(settings))
