import random
import shutil

import pandas as pd
import pytest

import ctr_pipeline
from ctr_pipeline import notebook
from ctr_pipeline.errors import CheckpointError, ConfigError, DataError, RunFolderError
from ctr_pipeline.pipeline.results import RunResult
from ctr_pipeline.progress import SilentProgress


@pytest.fixture
def calls(monkeypatch):
    """Calls of the pipeline, which does nothing."""
    seen = []

    def run_pipeline(loaded, **options):
        seen.append((loaded.config, options))
        return RunResult(loaded.config.run_folder, {}, {}, {})

    monkeypatch.setattr(notebook, "run_pipeline", run_pipeline)
    return seen


SETTINGS = {"data": {"train": "rows.csv"}, "output": "runs/x"}


def test_runs_a_mapping_and_leaves_it_alone(calls):
    settings = {**SETTINGS, "features": [{"columns": "I1..I3"}]}
    ctr_pipeline.run(settings, overrides=["train.epochs=3"], resume=True)
    ((config, options),) = calls
    assert config.train.epochs == 3
    assert settings["features"] == [{"columns": "I1..I3"}]
    assert options["resume"] is True
    assert options["overwrite"] is False
    assert isinstance(options["progress"], SilentProgress)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_runs_a_file(calls, tmp_path, kind):
    (tmp_path / "c.yaml").write_text("data: {train: rows.csv}\ntrain: {epochs: 2}\n")
    ctr_pipeline.run(kind(tmp_path / "c.yaml"), overwrite=True)
    assert calls[0][0].train.epochs == 2
    assert calls[0][1]["overwrite"] is True


def test_wrong_config_is_told_with_all_problems(calls):
    with pytest.raises(ConfigError) as error:
        ctr_pipeline.run({**SETTINGS, "model": {"name": "deepfn"}, "trian": {}})
    assert {problem.suggestion for problem in error.value.problems} >= {"train"}
    assert "deepfm" in str(error.value)
    assert calls == []


def test_front_door_names_what_there_is():
    assert {"run", "load"} <= set(ctr_pipeline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = ctr_pipeline.walk


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    chance = random.Random(2)
    rows = [
        {
            "label": int(chance.random() < 0.4),
            "price": round(chance.lognormvariate(1, 1), 2),
            "zip": f"{chance.randrange(5):05d}",
        }
        for _ in range(600)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "rows.csv", index=False)
    return folder, frame


@pytest.fixture(scope="module")
def trained(csv):
    """A run trained on the rows, without export and report."""
    from ctr_pipeline.config.loader import config_from_mapping
    from ctr_pipeline.pipeline import train

    folder, _ = csv
    settings = {
        "data": {"train": str(folder / "rows.csv")},
        "features": [
            {"columns": "price", "number": ["log", "standardize"]},
            {"columns": "zip", "id": "vocabulary"},
        ],
        "model": {"embedding_dim": 2, "hidden_units": [4]},
        "train": {"epochs": 1, "batch_size": 64},
        "output": str(folder / "out"),
    }
    train(config_from_mapping(settings), progress=SilentProgress())
    return ctr_pipeline.load(folder / "out")


def test_predicts_with_the_index_of_the_rows(trained, csv):
    rows = csv[1].sample(20, random_state=0)
    found = trained.predict(rows)
    assert found.index.equals(rows.index)
    assert found.between(0, 1).all()
    assert found.dtype == "float32"


def test_missing_and_unseen_values_are_predicted(trained):
    rows = pd.DataFrame({"price": [None, float("nan"), 3.0], "zip": [None, "99999", ""]})
    found = trained.predict(rows)
    assert found.notna().all()


def test_integers_serve_as_numbers_and_not_as_text(trained):
    by_int = trained.predict(pd.DataFrame({"price": [3], "zip": ["00001"]}))
    by_float = trained.predict(pd.DataFrame({"price": [3.0], "zip": ["00001"]}))
    assert by_int.equals(by_float)


def test_column_of_another_kind_is_refused(trained):
    with pytest.raises(DataError, match="column 'price' is not numbers"):
        trained.predict(pd.DataFrame({"price": ["dear"], "zip": ["00001"]}))


def test_missing_column_is_refused(trained):
    with pytest.raises(DataError, match=r"no column 'zip'\. Add it, or NaN for all"):
        trained.predict(pd.DataFrame({"price": [1.0]}))


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"holds no run\. Give the 'output' folder"):
        ctr_pipeline.load(tmp_path)


def test_checkpoint_passed_over_is_a_warning(trained, csv, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    (newest,) = (tmp_path / "copy" / "checkpoints").iterdir()
    later = newest.with_name("step-000000999999")
    shutil.copytree(newest, later)
    (later / "dense.bin").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"passed over: .*'dense\.bin' is missing or cut short"):
        run = ctr_pipeline.load(tmp_path / "copy")
    rows = csv[1].head(5)
    assert run.predict(rows).equals(trained.predict(rows))


def test_folder_without_training_is_refused(csv, tmp_path):
    (tmp_path / "config.resolved.yaml").write_text(f"data: {{train: {csv[0] / 'rows.csv'}}}\n")
    with pytest.raises(CheckpointError, match="holds no trained model"):
        ctr_pipeline.load(tmp_path)
