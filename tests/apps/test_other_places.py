"""A run folder is used from other places than it was made at."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.apps.scoring.predict import predict
from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.errors import FolderInUseError, StatisticsError
from ctr_pipeline.pipeline.run import train
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.clicks import settings_of, write_clicks

pytestmark = pytest.mark.slow

SILENT = SilentProgress()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with rows, new rows, and a run that decided on its features."""
    folder = tmp_path_factory.mktemp("project")
    write_clicks(folder / "rows.tsv", 900)
    write_clicks(folder / "other.tsv", 1200)
    settings = settings_of(Path("rows.tsv"), Path("runs/first"), features="auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(config_from_mapping(settings), progress=SILENT)
    return folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def scores(run, data, output):
    predict(load_config(run), data=str(data), output=str(output), progress=SILENT)
    return pd.read_parquet(output)["probability"]


def test_config_of_a_run_makes_the_same_model_elsewhere(project, elsewhere):
    first = project / "runs" / "first"
    again = load_config(first / "config.resolved.yaml", ["output=again"])
    assert again.config.features != "auto"
    train(again, progress=SILENT)
    rows = project / "rows.tsv"
    expected = scores(first, rows, elsewhere / "first.parquet")
    assert scores(elsewhere / "again", rows, elsewhere / "again.parquet").equals(expected)


def test_feature_decisions_of_a_run_hold_for_other_rows(project, elsewhere):
    overrides = ["output=other", f"data.train={project / 'other.tsv'}"]
    train(load_config(project / "runs" / "first", overrides), progress=SILENT)

    def chains(folder):
        found = pd.read_json(folder / "features.json")
        return found[["column", "column_type", "number", "id"]].astype(str).to_dict("records")

    assert chains(elsewhere / "other") == chains(project / "runs" / "first")


def test_rows_of_a_run_are_found_from_elsewhere(project, elsewhere):
    metrics = evaluate(load_config(project / "runs" / "first"), progress=SILENT)
    assert metrics["num_rows"] == 90


def test_a_moved_run_scores_with_its_own_model(project, elsewhere):
    shutil.copytree(project / "runs" / "first", elsewhere / "moved")
    rows = project / "other.tsv"
    expected = scores(project / "runs" / "first", rows, elsewhere / "first.parquet")
    assert scores(elsewhere / "moved", rows, elsewhere / "moved.parquet").equals(expected)
    assert scores(
        elsewhere / "moved" / "config.resolved.yaml", rows, elsewhere / "named.parquet"
    ).equals(expected)


def test_any_number_may_score_at_once_in_a_folder_that_a_run_holds(project, elsewhere):
    folder = shutil.copytree(project / "runs" / "first", elsewhere / "held")
    rows = project / "other.tsv"
    expected = scores(folder, rows, elsewhere / "first.parquet")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "ctr_pipeline", "predict", str(folder), "--data", str(rows)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def score(number):
        output = elsewhere / f"{number}.parquet"
        subprocess.run(
            [*command, "--output", str(output), "-q"], env=environment, check=True, timeout=300
        )
        return pd.read_parquet(output)["probability"]

    with RunFolder(folder).locked(), ThreadPoolExecutor(2) as pool:
        for found in pool.map(score, range(2)):
            assert found.equals(expected)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    logs = {folder / "run.log", folder / ".lock"}
    assert {path: time for path, time in after.items() if path not in logs} == {
        path: time for path, time in before.items() if path not in logs
    }


def test_a_model_that_is_being_replaced_is_said_to_be(project, elsewhere):
    folder = shutil.copytree(project / "runs" / "first", elsewhere / "retrained")
    (folder / "statistics.json").unlink()
    output = elsewhere / "p.parquet"
    with pytest.raises(StatisticsError):
        scores(folder, project / "other.tsv", output)
    with (
        RunFolder(folder).locked(),
        pytest.raises(
            FolderInUseError, match=f"process {os.getpid()}.*replaces the model"
        ) as error,
    ):
        scores(folder, project / "other.tsv", output)
    assert "Try again" in error.value.remedy


def test_a_model_that_may_still_train_is_said_to(project, elsewhere):
    class Said(SilentProgress):
        lines = ()

        def log(self, text):
            self.lines += (text,)

    folder = shutil.copytree(project / "runs" / "first", elsewhere / "training")
    said = Said()
    with RunFolder(folder).locked():
        predict(
            load_config(folder),
            data=str(project / "other.tsv"),
            output=str(elsewhere / "p.parquet"),
            progress=said,
        )
    assert [line for line in said.lines if f"process {os.getpid()}" in line]


MODEL = """
import keras

def build_model(inputs, options):
    return keras.layers.Dense(1)(inputs.flat_BK)[:, 0]
"""


def test_a_run_with_a_model_of_ones_own_goes_on_from_elsewhere(tmp_path, monkeypatch):
    """Its model and the run that it began from are named by relative paths."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    write_clicks(project / "rows.tsv", 900)
    (project / "own.py").write_text(MODEL)
    monkeypatch.chdir(project)
    settings = settings_of(
        Path("rows.tsv"),
        Path("first"),
        features=[
            {"columns": "I1", "number": ["log", "standardize"]},
            {"columns": ["C1", "code"], "id": [{"vocabulary": {"min_count": 2}}]},
        ],
        model={"name": "custom", "embedding_dim": 4, "file": "own.py"},
        train={"epochs": 1, "batch_size": 256},
    )
    train(config_from_mapping(settings), progress=SILENT)
    settings["train"] |= {"init_from": "first"}
    settings["output"] = "second"
    train(config_from_mapping(settings), progress=SILENT)
    expected = evaluate(config_from_mapping(settings), progress=SILENT)["auc"]
    assert evaluate(load_config(project / "second"), progress=SILENT)["auc"] == expected
    monkeypatch.chdir(elsewhere)
    assert evaluate(load_config(project / "second"), progress=SILENT)["auc"] == expected
    train(load_config(project / "second", ["train.epochs=2"]), resume=True, progress=SILENT)
    # What the run began with is its own: the earlier one may go.
    shutil.rmtree(project / "first" / "checkpoints")
    monkeypatch.chdir(project)
    settings["train"] |= {"epochs": 2}
    assert evaluate(config_from_mapping(settings), progress=SILENT)["num_rows"] == 90
    assert evaluate(load_config(Path("second")), progress=SILENT)["num_rows"] == 90
