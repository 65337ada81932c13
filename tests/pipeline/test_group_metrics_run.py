"""Metrics by the values of columns, of a run and after it, also of columns it has not read."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import ctr_pipeline
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.cli.tables import print_metrics, print_run
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.parts import column_names
from ctr_pipeline.errors import CheckpointError, ConfigError, DataError
from ctr_pipeline.pipeline.run import run_pipeline
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.clicks import COLUMNS, settings_of, write_clicks

pytestmark = pytest.mark.slow

NUM_ROWS, NUM_TEST = 4000, 400
FEATURES = [
    {"columns": "I1..I3", "number": ["log", "standardize"]},
    {"columns": "C1..C3", "id": "vocabulary"},
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folder, the test rows as pandas reads them, and the result of a run by C1 and I1."""
    folder = tmp_path_factory.mktemp("groups")
    lines = write_clicks(folder / "rows.tsv", NUM_ROWS)
    result = ctr_pipeline.run(
        settings_of(
            folder / "rows.tsv",
            folder / "out",
            features=FEATURES,
            evaluation={"group_by": ["C1", "I1"]},
        )
    )
    cells = [line.split("\t") for line in lines]
    frame = pd.DataFrame(cells, columns=COLUMNS).replace("", None)
    return folder, frame[-NUM_TEST:].reset_index(drop=True), result


@pytest.fixture
def copied(world, tmp_path):
    """The run folder and its config, free to be changed."""
    out = shutil.copytree(world[0] / "out", tmp_path / "out")
    return lambda *overrides: load_config(out, overrides)


def assert_groups_are_those_of(found, values, predictions):
    """Each group's figures are those of pandas and scikit-learn on the rows of the value."""
    counts = values.value_counts(dropna=False)
    assert found["num_values"] == len(counts)
    assert [group["num_rows"] for group in found["groups"]] == list(counts[:20])
    for group in found["groups"]:
        value = group["value"]
        rows = predictions[values.isna() if value is None else values == value]
        labels, probabilities = rows["label"], rows["probability"].astype(float)
        assert (group["num_rows"], group["num_positive"]) == (len(rows), labels.sum())
        expected = log_loss(labels, probabilities, labels=[0, 1])
        assert group["logloss"] == pytest.approx(expected, abs=1e-6)
        if labels.nunique() == 2:
            expected = roc_auc_score(labels, probabilities)
            assert group["auc"] == pytest.approx(expected, abs=1e-6)
        else:
            assert group["auc"] is None
            assert group["hint"].endswith("no AUC")
    shown = sum(group["num_rows"] for group in found["groups"])
    if len(counts) > 20:
        assert found["others"]["num_rows"] == len(values) - shown > 0
    else:
        assert found["others"] is None
        assert shown == len(values)


@pytest.mark.parametrize("column", ["C1", "I1"])
def test_groups_of_a_run_equal_pandas_and_scikit_learn(world, column):
    _, frame, result = world
    found = result.metrics["test"]["by_column"][column]
    assert len(found["groups"]) == 20
    assert_groups_are_those_of(found, frame[column], result.predictions)
    stored = json.loads((result.folder / "metrics.json").read_text())
    assert stored["test"]["by_column"][column] == found
    assert stored["valid"]["by_column"][column]["num_values"] > 0


def test_terminal_and_report_show_groups(world, capsys):
    result = world[2]
    print_run(result)
    text = capsys.readouterr().out
    found = result.metrics["test"]["by_column"]["C1"]
    assert "By C1" in text
    assert found["groups"][0]["value"] in text
    assert found["groups"][5]["value"] not in text
    assert f"and {found['num_values'] - 5:,} more values" in text
    page = (result.folder / "report.html").read_text()
    section = page[page.index('id="groups"') : page.index('id="learning"')]
    for group in found["groups"]:
        assert group["value"] in section
        assert f"{group['logloss']:.4f}" in section
    assert f"{found['num_values'] - 20} other values" in section
    assert "few rows" in section
    print_metrics(result.metrics["test"])
    text = capsys.readouterr().out
    assert found["groups"][5]["value"] in text
    assert f"{found['num_values'] - 20:,} others" in text


def test_evaluate_by_a_column_that_the_run_has_not_read(world, copied):
    _, frame, result = world
    loaded = copied()
    run = RunFolder(loaded.config.run_folder)
    before = {name: result.metrics["test"][name] for name in ("auc", "logloss")}
    steps = sorted(path.name for path in run.checkpoints.iterdir())
    metrics = evaluate(loaded, by=["code", "user"], progress=SilentProgress())
    assert {name: metrics[name] for name in before} == before
    assert list(metrics["by_column"]) == ["code", "user"]
    for column in ("code", "user"):
        assert_groups_are_those_of(metrics["by_column"][column], frame[column], result.predictions)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == steps
    kept = column_names(sorted((run.ingested / "test").iterdir()))
    assert {"code", "user", "row"} <= set(kept)


def test_evaluate_new_rows_by_a_column(world, copied):
    folder, frame, result = world
    lines = (folder / "rows.tsv").read_text().splitlines(keepends=True)
    (folder / "new.tsv").write_text("".join(lines[-NUM_TEST:]))
    data = str(folder / "new.tsv")
    metrics = evaluate(copied(), data=data, by=["code"], progress=SilentProgress())
    found = metrics["by_column"]["code"]
    assert_groups_are_those_of(found, frame["code"], result.predictions)
    assert metrics["auc"] == pytest.approx(result.metrics["test"]["auc"], abs=1e-6)
    with pytest.raises(DataError, match=r"no column 'cod', which evaluation.group_by \(or --by\)"):
        evaluate(copied(), data=data, by=["cod"], progress=SilentProgress())


def test_an_unknown_column_is_named_with_its_option(copied):
    with pytest.raises(ConfigError) as error:
        evaluate(copied(), by=["use"], progress=SilentProgress())
    (problem,) = error.value.problems
    assert str(problem) == (
        "--by: evaluation.group_by: the data has no column 'use' (did you mean 'user'?)"
    )
    with pytest.raises(ConfigError, match="'label' is the label"):
        evaluate(copied(), by=["label"], progress=SilentProgress())


def test_a_run_is_resumed_with_groups_that_it_did_not_have(world, copied):
    _, frame, result = world
    history = (result.folder / "history.csv").read_text()
    resumed = run_pipeline(
        copied("evaluation.group_by=[user]", "evaluation.gauc_column=user"),
        resume=True,
        progress=SilentProgress(),
    )
    assert (resumed.folder / "history.csv").read_text() == history
    assert resumed.metrics["test"]["auc"] == result.metrics["test"]["auc"]
    assert np.isfinite(resumed.metrics["test"]["gauc"])
    assert list(resumed.metrics["test"]["by_column"]) == ["user"]
    found = resumed.metrics["test"]["by_column"]["user"]
    assert_groups_are_those_of(found, frame["user"], result.predictions)


def test_a_column_that_makes_other_rows_bad_cannot_be_added(tmp_path):
    data, output = tmp_path / "rows.tsv", tmp_path / "out"
    write_clicks(data, 1000)
    lines = data.read_bytes().splitlines(keepends=True)
    lines[10] = lines[10].rstrip(b"\n") + b"\xff\n"
    data.write_bytes(b"".join(lines))
    settings = settings_of(data, output, features=FEATURES, evaluation={})
    ctr_pipeline.run(settings | {"train": {"epochs": 1, "batch_size": 256}})
    loaded = load_config(output, ["evaluation.group_by=[code]"])
    with pytest.raises(CheckpointError, match="the data changed since the model was trained"):
        run_pipeline(loaded, resume=True, progress=SilentProgress())
