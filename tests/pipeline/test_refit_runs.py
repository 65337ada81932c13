"""Training once more on training and validation rows: what comes of it, and how it resumes."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import ctr_pipeline
from ctr_pipeline.apps.compare import compare_runs
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.loading import open_trained
from ctr_pipeline.pipeline.refit import discard_refit
from ctr_pipeline.pipeline.run import export_model, train
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.test_crosses import settings_of
from tests.pipeline.visits import write_visits

pytestmark = pytest.mark.slow

NUM_ROWS = 3000
NUM_REFITTED = 2700
FEATURES = [
    {"columns": ["city", "device"], "id": "vocabulary"},
    {"columns": "visited", "sequence": {"max_length": 4}, "id": "vocabulary"},
]
TRAIN = {
    "epochs": 3,
    "batch_size": 64,
    "early_stopping": None,
    "deterministic": True,
    "checkpoint_seconds": 0.01,
    "refit": True,
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("refit") / "visits.csv"
    write_visits(path, NUM_ROWS)
    return path


def config_of(rows, name, **changes):
    settings = settings_of(rows, rows.with_name(name), FEATURES, train=TRAIN | changes, report={})
    settings["model"] |= {"dropout": 0.2}
    return config_from_mapping(settings)


@pytest.fixture(scope="module")
def undisturbed(rows):
    loaded = config_of(rows, "undisturbed")
    return loaded.config.run_folder, ctr_pipeline.run(loaded.config.model_dump(mode="json"))


@pytest.fixture(scope="module")
def chosen(rows):
    """The same without a refit."""
    loaded = config_of(rows, "chosen", refit=False)
    return loaded.config.run_folder, ctr_pipeline.run(loaded.config.model_dump(mode="json"))


class Told(SilentProgress):
    """Remembers what was said; ends the process, as far as a test can, in one task's middle."""

    def __init__(self, task="", num_rows=0):
        self.said = []
        self._task, self._rows = task, num_rows

    def log(self, text):
        self.said.append(text)

    def task(self, name, *, total, unit="rows"):
        task = super().task(name, total=total, unit=unit)
        if self._task and name.startswith(self._task):
            task.advance = self._advance
        return task

    def _advance(self, count):
        self._rows -= count
        if self._rows < 0:
            raise Crash


class Crash(Exception):
    pass


def logits_of(folder):
    probability = pd.read_parquet(folder / "predictions.parquet")["probability"].to_numpy()
    return np.log(probability) - np.log1p(-probability)


def logloss_of_validation_rows(loaded):
    run = RunFolder(loaded.config.run_folder)
    model = open_trained(loaded, run, SilentProgress())
    with EncodedReader(run.encoded / "valid") as reader:
        scored = model.scorer.score_split(reader)
    return np.mean(np.logaddexp(0, scored.logits) - scored.labels * scored.logits)


def test_validation_rows_are_trained_on_and_no_longer_evaluated(rows, undisturbed, chosen):
    folder, result = undisturbed
    training, before = result.metrics["training"], chosen[1].metrics["training"]
    same = before.keys() - {"embedding_bytes", "refit"}
    assert {key: training[key] for key in same} == {key: before[key] for key in same}
    refit = training["refit"]
    assert refit["epochs"] == training["best_epoch"]
    assert refit["num_rows"] == NUM_REFITTED
    assert refit["steps"] == refit["epochs"] * -(-NUM_REFITTED // 64)
    assert "valid" not in result.metrics
    assert "valid" in chosen[1].metrics
    assert np.abs(logits_of(folder) - logits_of(chosen[0])).max() > 0.01
    again, earlier = (
        logloss_of_validation_rows(config_of(rows, name, refit=refits))
        for name, refits in (("undisturbed", True), ("chosen", False))
    )
    assert again < earlier - 0.001
    page = (folder / "report.html").read_text()
    assert f"together ({NUM_REFITTED:,})" in page
    assert f"learned from {NUM_REFITTED:,} rows" in page
    card = json.loads((folder / "export/1/model_card.json").read_text())
    assert card["training_rows"] == NUM_REFITTED
    clicks = pd.read_csv(rows)["click"][:NUM_REFITTED]
    assert card["base_rate"] == pytest.approx(clicks.mean(), abs=1e-6)


def test_a_comparison_tells_how_many_rows_each_learned_from(undisturbed, chosen):
    runs = [undisturbed[0], chosen[0]]
    payload = compare_runs(runs, repeats=20, progress=SilentProgress()).to_payload()
    assert [run["num_training_rows"] for run in payload["runs"]] == [NUM_REFITTED, 2400]


def test_refitted_model_is_used_by_what_comes_after(rows, undisturbed, tmp_path):
    folder, result = undisturbed
    frame = pd.read_csv(rows, dtype=str).tail(NUM_ROWS // 10)
    found = ctr_pipeline.load(folder).predict(frame)
    stored = pd.read_parquet(folder / "predictions.parquet")["probability"]
    np.testing.assert_allclose(found.to_numpy(), stored.to_numpy(), atol=1e-6)
    shutil.copytree(folder, tmp_path / "out")
    loaded = load_config(
        folder / "config.resolved.yaml",
        overrides=[f"output={tmp_path / 'out'}", "export.model_version=2"],
    )
    metrics = evaluate(loaded, progress=SilentProgress())
    assert metrics["logloss"] == result.metrics["test"]["logloss"]
    exported = export_model(loaded, progress=SilentProgress())
    assert exported.metrics["training"]["refit"] == result.metrics["training"]["refit"]
    proof = json.loads((tmp_path / "out/export/2/parity.json").read_text())
    assert max(proof["max_difference"].values()) <= proof["tolerance"]


def test_refit_ends_as_undisturbed_after_crashes(rows, undisturbed):
    loaded = config_of(rows, "crashed")
    with pytest.raises(Crash):
        train(loaded, progress=Told("Training, epoch 2", 700))
    told = Told("Training with validation rows, epoch 2", 700)
    with pytest.raises(Crash):
        train(loaded, resume=True, progress=told)
    assert sum(text.startswith("Resuming after step") for text in told.said) == 1
    with pytest.raises(CheckpointError, match=r"not trained to its end.*--resume"):
        evaluate(loaded, progress=SilentProgress())
    told = Told()
    train(loaded, resume=True, progress=told)
    assert sum(text.startswith("Resuming the training with valid") for text in told.said) == 1
    evaluate(loaded, progress=SilentProgress())
    np.testing.assert_allclose(
        logits_of(loaded.config.run_folder), logits_of(undisturbed[0]), atol=1e-6
    )


def test_a_trained_run_is_refitted_and_back(rows, undisturbed, chosen):
    folder = rows.with_name("later")
    shutil.copytree(chosen[0], folder)
    loaded = config_of(rows, "later")
    with pytest.raises(CheckpointError, match="not trained to its end with the validation rows"):
        evaluate(loaded, progress=SilentProgress())
    told = Told()
    train(loaded, resume=True, progress=told)
    assert not [text for text in told.said if text.startswith("Epoch 1: ")]
    told = Told()
    evaluate(loaded, progress=told)
    assert not [text for text in told.said if text.startswith("train.refit is false")]
    np.testing.assert_allclose(logits_of(folder), logits_of(undisturbed[0]), atol=1e-6)
    told = Told()
    evaluate(config_of(rows, "later", refit=False), progress=told)
    assert any(text.startswith("train.refit is false") for text in told.said)
    np.testing.assert_allclose(logits_of(folder), logits_of(chosen[0]), atol=1e-6)


def test_another_best_epoch_is_another_refit(rows, undisturbed):
    folder = rows.with_name("shorter")
    shutil.copytree(undisturbed[0], folder)
    best = undisturbed[1].metrics["training"]["best_epoch"]
    # More epochs may find a better one; the refit is of that one then, from the start.
    loaded = config_of(rows, "shorter", epochs=best + 6)
    told = Told()
    train(loaded, resume=True, progress=told)
    run = RunFolder(folder)
    found = open_trained(loaded, run, SilentProgress()).state
    now = next(one.epoch for one in found.history if one.step == found.best_step) + 1
    assert found.refit.epochs == now > best
    assert any(text.startswith(f"Epoch {now} was the best: training from") for text in told.said)


def test_each_model_of_an_ensemble_is_refitted(rows, undisturbed):
    loaded = config_of(rows, "ensemble", ensemble=2)
    with pytest.raises(Crash):
        # In the second model's, as the first one's has more rows.
        train(
            loaded, progress=Told("Training with validation rows, epoch 1", 2 * NUM_REFITTED - 100)
        )
    told = Told()
    train(loaded, resume=True, progress=told)
    assert any("seed 0) is trained already" in text for text in told.said)
    assert any(text.startswith("Resuming the training with valid") for text in told.said)
    evaluate(loaded, progress=SilentProgress())
    other = config_of(rows, "other", seed=1)
    train(other, progress=SilentProgress())
    evaluate(other, progress=SilentProgress())
    mean = (logits_of(undisturbed[0]) + logits_of(other.config.run_folder)) / 2
    np.testing.assert_allclose(logits_of(loaded.config.run_folder), mean, atol=2e-5)


def test_a_new_run_begins_from_the_refit(rows, undisturbed):
    loaded = config_of(rows, "next", refit=False, init_from=str(undisturbed[0]), epochs=1)
    told = Told()
    train(loaded, progress=told)
    refit = undisturbed[1].metrics["training"]["refit"]
    said = f"epoch {refit['epochs']}, step {refit['steps']:,}"
    assert any(text.startswith("Training begins from") and said in text for text in told.said)


def test_a_refit_of_another_best_epoch_is_not_opened(rows, undisturbed):
    folder = rows.with_name("stale")
    shutil.copytree(undisturbed[0], folder)
    best = undisturbed[1].metrics["training"]["best_epoch"]
    more = {"refit": False, "epochs": best + 6}
    # As a kill between the two trainings leaves it.
    train(config_of(rows, "stale", **more), resume=True, progress=SilentProgress())
    with pytest.raises(CheckpointError, match=r"not trained to its end.*--resume"):
        evaluate(config_of(rows, "stale", epochs=best + 6), progress=SilentProgress())
    next_run = config_of(rows, "after_stale", refit=False, init_from=str(folder), epochs=1)
    # The config beside the checkpoints says which model is the run's own.
    (folder / "config.resolved.yaml").write_text(
        config_of(rows, "stale", epochs=best + 6).resolved_yaml()
    )
    with pytest.raises(CheckpointError, match="not trained to its end"):
        train(next_run, progress=SilentProgress())


def test_a_damaged_refit_is_trained_again(rows, undisturbed):
    folder = rows.with_name("damaged")
    shutil.copytree(undisturbed[0], folder)
    for part in (folder / "refit").rglob("*-rows.bin"):
        part.unlink()
    loaded = config_of(rows, "damaged")
    with pytest.raises(CheckpointError, match="not trained to its end"):
        evaluate(loaded, progress=SilentProgress())
    told = Told()
    train(loaded, resume=True, progress=told)
    assert any(text.startswith("Skipping a checkpoint") for text in told.said)
    told = Told()
    evaluate(loaded, progress=told)
    assert not [text for text in told.said if text.startswith("train.refit is false")]
    np.testing.assert_allclose(logits_of(folder), logits_of(undisturbed[0]), atol=1e-6)


def test_an_old_refit_is_whole_or_gone(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "out")

    def crash(path, **_):
        if path.exists():
            raise Crash

    with run.locked():
        (run.refit.checkpoints / "step-1").mkdir(parents=True)
        with monkeypatch.context() as changed:
            changed.setattr("ctr_pipeline.pipeline.refit.shutil.rmtree", crash)
            with pytest.raises(Crash):
                discard_refit(run)
        assert not run.refit.path.exists()
    with run.locked():
        assert [one.name for one in run.path.iterdir()] == [".lock"]
        discard_refit(run)
    assert list(run.refit.path.iterdir()) == []


NEW_ITEMS = 300


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """Validation and test rows with an item that no training row has, which is always clicked."""
    folder = tmp_path_factory.mktemp("shifted")
    random = np.random.default_rng(4)
    for name, size in (("train", 1200), ("valid", 2 * NEW_ITEMS), ("test", 2 * NEW_ITEMS)):
        frame = pd.DataFrame({"click": random.integers(0, 2, size), "item": "old", "weight": 1.0})
        if name != "train":
            frame.loc[frame.index[:NEW_ITEMS], ["click", "item"]] = [1, "new"]
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def config_of_shifted(folder, name, *, weight=None):
    data = {split: str(folder / f"{split}.csv") for split in ("train", "valid", "test")}
    features = [{"columns": "item", "id": {"hash": {"buckets": 1000}}}]
    settings = settings_of(folder, folder / name, features, report={})
    settings["data"] = data | {"label": "click", "weight": weight}
    settings["train"] |= {
        "epochs": 6,
        "refit": True,
        "deterministic": True,
        "embeddings": {"admit_after": 2, "shrink_by_column": False},
    }
    return config_from_mapping(settings)


def mean_of_new(loaded):
    train(loaded, progress=SilentProgress())
    evaluate(loaded, progress=SilentProgress())
    found = pd.read_parquet(loaded.config.run_folder / "predictions.parquet")
    return found["probability"][:NEW_ITEMS].mean()


def test_ids_of_validation_rows_alone_are_learned(shifted):
    assert mean_of_new(config_of_shifted(shifted, "plain")) > 0.6


def test_weights_of_validation_rows_count_as_much_as_they_say(shifted):
    plain = mean_of_new(config_of_shifted(shifted, "by_weight", weight="weight"))
    light = shifted.parent / "light"
    shutil.copytree(shifted, light, ignore=shutil.ignore_patterns("*_*", "plain"))
    frame = pd.read_csv(light / "valid.csv")
    frame["weight"] = 0.01
    frame.to_csv(light / "valid.csv", index=False)
    assert mean_of_new(config_of_shifted(light, "by_weight", weight="weight")) < plain - 0.1
