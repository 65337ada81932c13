import inspect
import json
import logging
import pydoc
import random
import shutil
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import ctr_pipeline
from ctr_pipeline.errors import CheckpointError, ConfigError, DataError, RunFolderError
from ctr_pipeline.pipeline.results import RunResult
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.storage.commit_log import CommitWriter
from ctr_pipeline.storage.commits import Part


@pytest.fixture
def calls(monkeypatch):
    """Calls of the pipeline, which does nothing."""
    seen = []

    def run_pipeline(loaded, **options):
        seen.append((loaded.config, options))
        return RunResult(loaded.config.run_folder, {}, {}, {})

    monkeypatch.setattr("ctr_pipeline.pipeline.run.run_pipeline", run_pipeline)
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
    from ctr_pipeline.pipeline.run import train

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


def test_a_value_is_the_same_in_any_type(trained):
    # The zip code 1 is no other than 1.0, and both are another than 00001.
    variants = [
        pd.DataFrame({"price": price, "zip": zip_code})
        for price in ([3, 1], [3.0, 1.0], ["3", "1.0"], [3.0, True])
        for zip_code in (
            [1, 2],
            [1.0, 2.0],
            ["1", "2.0"],
            pd.array([1, 2], "Int32"),
            pd.Categorical([1, 2]),
            np.array([1, 2], np.float32),
            [True, "2"],
            [Decimal("1.0000000000"), Decimal(2)],
        )
    ]
    expected = trained.predict(variants[0])
    assert all(trained.predict(rows).equals(expected) for rows in variants)
    huge = pd.DataFrame({"price": [0.1, 1], "zip": [str(2**64), "5"]})
    expected = trained.predict(huge)
    assert trained.predict(huge.assign(zip=[2**64, 5])).equals(expected)
    for narrow in (np.float32, np.float16):
        assert trained.predict(huge.astype({"price": narrow})).equals(expected)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("price", ["3", "dear"], "row b, column 'price': not a number: 'dear'"),
        ("zip", [1.0, 1.5], "row b, column 'zip': a float without one text, .*'1.5'"),
        ("zip", [["00001"], []], "the rows, column 'zip': has the type list"),
        ("zip", [2**64, []], "column 'zip': cannot be read"),
    ],
)
def test_prediction_refuses_a_value_its_column_cannot_hold(trained, column, values, message):
    rows = pd.DataFrame({"price": [1.0, 1.0], "zip": ["00001", "00001"]}, index=["a", "b"])
    with pytest.raises(DataError, match=message):
        trained.predict(rows.assign(**{column: values}))


def test_a_text_that_is_no_unicode_is_refused(trained):
    with pytest.raises(DataError, match=r"column 'zip': cannot be read: .*surrogates"):
        trained.predict([{"price": 1.0, "zip": "\ud800"}])


def test_a_list_of_rows_is_scored_as_a_frame(trained, csv):
    rows = csv[1].head(6)[["price", "zip"]]
    found = trained.predict(rows.to_dict("records"))
    assert found.tolist() == trained.predict(rows).tolist()
    # A price that is absent in one row makes floats neither of it nor of the others' texts.
    found = trained.predict([{"price": 3, "zip": "00001"}, {"zip": "00001"}])
    expected = pd.DataFrame({"price": [3.0, None], "zip": ["00001", "00001"]})
    assert found.tolist() == trained.predict(expected).tolist()


@pytest.mark.parametrize("rows", [{"price": 3, "zip": "00001"}, [1, 2], "rows.csv", None])
def test_prediction_refuses_input_that_is_no_rows(trained, rows):
    with pytest.raises(DataError, match=r"neither a DataFrame nor a list of dict.*Give \[row\]"):
        trained.predict(rows)


def test_evaluates_as_scikit_learn_does(trained, csv):
    rows = csv[1].head(300)
    probabilities = trained.predict(rows).astype(float)
    metrics = trained.evaluate(rows, by=["zip"])
    assert metrics["num_rows"] == 300
    assert metrics["auc"] == pytest.approx(roc_auc_score(rows["label"], probabilities), abs=1e-6)
    assert metrics["logloss"] == pytest.approx(log_loss(rows["label"], probabilities), abs=1e-6)
    groups = metrics["by_column"]["zip"]["groups"]
    assert {one["value"]: one["num_rows"] for one in groups} == dict(rows["zip"].value_counts())
    for one in groups:
        own = rows["zip"] == one["value"]
        expected = roc_auc_score(rows["label"][own], probabilities[own])
        assert one["auc"] == pytest.approx(expected, abs=1e-6)
    assert isinstance(metrics["findings"], list)
    flags = rows.assign(label=rows["label"] == 1)
    assert trained.evaluate(flags)["auc"] == metrics["auc"]
    assert trained.evaluate(rows.to_dict("records"))["auc"] == metrics["auc"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="label"), "the rows have no column 'label'"),
        (lambda rows: rows.assign(label=[*rows["label"][:4], 2]), "row 4, column 'label': the lab"),
        (lambda rows: rows.assign(label=[None, *rows["label"][1:]]), "row 0, column 'label'"),
        (lambda rows: rows.assign(label=1), "all 5 labels are 1"),
        (lambda rows: rows[:0], "there are no rows"),
    ],
)
def test_rows_that_cannot_be_evaluated_are_refused(trained, csv, change, message):
    with pytest.raises(DataError, match=message):
        trained.evaluate(change(csv[1].head(5)))
    with pytest.raises(DataError, match="no column 'city'"):
        trained.evaluate(csv[1].head(5), by=["city"])


METRICS = {
    "test": {"auc": 0.71234, "logloss": 0.41234, "calibration": 1.01, "gauc": None, "num_rows": 9},
    "importance": [{"feature": "zip", "auc_drop": 0.1, "logloss_rise": 0.2, "repeats": 3}],
    "big": [*range(5000)],
}


def test_a_result_is_shown_short(tmp_path):
    result = RunResult(tmp_path / "a<b>", METRICS, {}, {"report": tmp_path / "report.html"})
    assert repr(result) == (
        f"<RunResult {tmp_path}/a<b>: test AUC 0.7123, logloss 0.4123, calibration 1.010>"
    )
    page = result._repr_html_()
    assert len(page) < 1000
    for text in ("a&lt;b&gt;", "<td>0.7123</td>", "<td>9</td>", "report.html"):
        assert text in page
    assert "GAUC" not in page
    empty = RunResult(tmp_path, {}, {}, {})
    assert "not evaluated yet" in repr(empty)
    assert "not evaluated yet" in empty._repr_html_()


def test_a_loaded_run_has_metrics_and_importance(trained, tmp_path):
    assert trained.metrics == {}
    assert trained.importance.empty
    assert repr(trained) == f"<LoadedRun {trained.folder}: deepfm, not evaluated yet>"
    copy = shutil.copytree(trained.folder, tmp_path / "copy")
    (copy / "metrics.json").write_text(json.dumps(METRICS))
    run = ctr_pipeline.load(copy)
    assert run.metrics == METRICS
    assert run.importance["feature"].tolist() == ["zip"]
    assert "auc_drop_std" in run.importance
    assert repr(run) == (
        f"<LoadedRun {copy}: deepfm, test AUC 0.7123, logloss 0.4123, calibration 1.010>"
    )
    assert "<td>0.7123</td>" in run._repr_html_()
    (copy / "metrics.json").write_text("[")
    with pytest.raises(RunFolderError, match=r"metrics\.json: is damaged"):
        ctr_pipeline.load(copy)


def test_help_shows_what_there_is():
    text = pydoc.plain(pydoc.render_doc(ctr_pipeline))
    for name in ("run", "load"):
        signature = inspect.signature(getattr(ctr_pipeline, name))
        assert f"{name}({next(iter(signature.parameters))}" in text
    assert "Runs the whole pipeline." in text


def test_the_log_of_a_run_is_not_shown_by_handlers_of_the_root(trained, monkeypatch):
    from ctr_pipeline.pipeline.run_folder import RunFolder
    from ctr_pipeline.pipeline.trained_run import logged

    seen = []
    root, ours = logging.getLogger(), logging.getLogger("ctr_pipeline.pipeline")
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    # As in a notebook: the command line has not been at work in this process.
    monkeypatch.setattr(logging.getLogger("ctr_pipeline"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("ctr_pipeline"), "level", logging.NOTSET)
    root.addHandler(handler)
    try:
        with logged(RunFolder(trained.folder)):
            ours.info("for the file")
            ours.warning("for all")
        assert logging.getLogger("ctr_pipeline").propagate
    finally:
        root.removeHandler(handler)
    assert seen == ["for all"]
    text = (trained.folder / "run.log").read_text()
    assert "for the file" in text
    assert "for all" in text


def test_missing_column_is_refused(trained):
    with pytest.raises(DataError, match=r"no column 'zip'\. Add it, or NaN for all"):
        trained.predict(pd.DataFrame({"price": [1.0]}))


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"holds no run\. Give the 'output' folder"):
        ctr_pipeline.load(tmp_path)


def test_checkpoint_passed_over_is_a_warning(trained, csv, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    writer = CommitWriter(RunFolder(tmp_path / "copy").checkpoint_storage)
    lost = Part("parts/000009-000000000000-ab-dense.bin", 1, 0)
    writer.commit([lost], writer.newest().state)
    with pytest.warns(UserWarning, match=r"Skipping a checkpoint: .*-dense\.bin: is missing"):
        run = ctr_pipeline.load(tmp_path / "copy")
    rows = csv[1].head(5)
    assert run.predict(rows).equals(trained.predict(rows))


def test_folder_without_training_is_refused(csv, tmp_path):
    (tmp_path / "config.resolved.yaml").write_text(f"data: {{train: {csv[0] / 'rows.csv'}}}\n")
    with pytest.raises(CheckpointError, match="holds no trained model"):
        ctr_pipeline.load(tmp_path)
