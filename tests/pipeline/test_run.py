"""One run of a small sample, in this process; every test looks at what it left behind."""

import contextlib
import csv
import html
import json
import math
import re
import shutil
import signal
import threading
from itertools import chain

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.metrics import log_loss, roc_auc_score

import ctr_pipeline
from ctr_pipeline.apps.compare import compare_runs
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.apps.scoring.files import look_at_new
from ctr_pipeline.apps.scoring.predict import predict
from ctr_pipeline.cli.tables import print_run
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOWriter
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.stored_rows import StoredRows
from ctr_pipeline.errors import CheckpointError, DataError, Interrupted, RunFolderError
from ctr_pipeline.pipeline.model.trained_model import TrainedModel
from ctr_pipeline.pipeline.run import analyze, export_model, train
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.report_facts import rewrite_report
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.clicks import CATEGORIES, CODES, COLUMNS, NUMBERS, settings_of, write_clicks

NUM_ROWS, NUM_TRAIN, NUM_TEST = 2000, 1600, 200


class RecordingProgress(SilentProgress):
    def __init__(self):
        self.tasks, self.lines = [], []

    def log(self, text):
        self.lines.append(text)

    def task(self, name, *, total, unit="rows"):
        self.tasks.append(name)
        return super().task(name, total=total, unit=unit)


def read_rows(lines):
    """The rows as pandas sees them, an independent parser: categories as text."""
    split = [line.split("\t") for line in lines]
    frame = pd.DataFrame(split, columns=COLUMNS).replace("", None)
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in ("label", *NUMBERS)})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folder, good lines and the result of the run."""
    folder = tmp_path_factory.mktemp("run")
    lines = write_clicks(folder / "rows.tsv", NUM_ROWS, bad_rows=True)
    result = ctr_pipeline.run(settings_of(folder / "rows.tsv", folder / "out"))
    return folder, lines, result


@pytest.fixture(scope="module")
def out(world):
    return world[0] / "out"


@pytest.fixture(scope="module")
def loaded(out):
    return load_config(out / "config.resolved.yaml")


@pytest.fixture(scope="module")
def frame(world):
    return read_rows(world[1])


@pytest.fixture(scope="module")
def predictions(out):
    return pd.read_parquet(out / "predictions.parquet")


@pytest.fixture(scope="module")
def reopened(out):
    return ctr_pipeline.load(out)


@pytest.mark.parametrize(
    "name",
    [
        "config.resolved.yaml",
        "features.json",
        "statistics.json",
        "preprocessing.json",
        "vocabularies",
        "metrics.json",
        "history.csv",
        "tensorboard",
        "checkpoints",
        "export/1/saved_model.pb",
        "export/1/model_card.json",
        "export/1/parity.json",
        "export/1/assets.extra/tf_serving_warmup_requests",
        "predictions.parquet",
        "report.html",
        "report.json",
        "sessions.json",
        "run.log",
    ],
)
def test_run_folder_holds(out, name):
    path = out / name
    assert path.exists()
    assert path.stat().st_size > 0
    if path.is_dir():
        assert any(path.iterdir())


def test_run_leaves_no_temporary_files(out):
    names = [path.name for path in out.rglob("*")]
    assert not [name for name in names if name.endswith(".tmp") or name.startswith("tmp")]


def test_an_unwatched_training_has_no_section_of_its_time(out):
    assert "training-time" not in (out / "report.html").read_text()


def test_metrics_equal_scikit_learn(world, predictions):
    metrics = world[2].metrics["test"]
    labels, probabilities = predictions["label"], predictions["probability"].astype(float)
    assert metrics["num_rows"] == len(predictions) == NUM_TEST
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-6)
    assert metrics["logloss"] == pytest.approx(log_loss(labels, probabilities), abs=1e-6)
    expected = probabilities.sum() / labels.sum()
    assert metrics["calibration"] == pytest.approx(expected, rel=1e-5)
    rate = labels.mean()
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert metrics["normalized_entropy"] == pytest.approx(metrics["logloss"] / entropy, rel=1e-6)


def test_baseline_is_the_click_rate_of_the_training_rows(world, frame):
    metrics = world[2].metrics["test"]
    rate = frame["label"][:NUM_TRAIN].mean()
    assert metrics["baseline_rate"] == pytest.approx(rate)
    constant = np.full(NUM_TEST, rate)
    expected = log_loss(frame["label"][-NUM_TEST:], constant)
    assert metrics["baseline_logloss"] == pytest.approx(expected, abs=1e-9)


def test_gauc_equals_groups_of_scikit_learn(world, frame, predictions):
    users = frame["user"][-NUM_TEST:].to_numpy()
    total = weights = 0.0
    for _, group in predictions.groupby(users):
        if group["label"].nunique() == 2:
            total += len(group) * roc_auc_score(group["label"], group["probability"])
            weights += len(group)
    assert world[2].metrics["test"]["gauc"] == pytest.approx(total / weights, abs=1e-6)


def test_predictions_stand_in_the_order_of_the_rows(predictions, frame, world):
    assert list(predictions.columns) == ["row", "label", "probability"]
    assert list(predictions["row"]) == list(frame["row"][-NUM_TEST:])
    assert list(predictions["label"]) == list(frame["label"][-NUM_TEST:])
    assert world[2].predictions.equals(predictions)


def test_metrics_file_is_the_result(world, out):
    stored = json.loads((out / "metrics.json").read_text())
    assert stored == json.loads(json.dumps(world[2].metrics))
    assert stored["num_rows"] == {"train": NUM_TRAIN, "valid": 200, "test": NUM_TEST}
    stages = ["check", "ingest", "statistics", "transforms", "training", "evaluation"]
    assert list(stored["timings_seconds"])[:6] == stages
    assert {"export", "parity", "report", "importance"} <= set(stored["timings_seconds"])
    assert all(seconds >= 0 for seconds in stored["timings_seconds"].values())
    waited_for = ["command and config", "rows", "TensorFlow", "model", "first step"]
    assert list(stored["start_up_seconds"]) == waited_for
    spent = sum(stored["start_up_seconds"].values())
    assert spent > stored["timings_seconds"]["ingest"] + stored["timings_seconds"]["statistics"]
    assert f"The first step was done {spent:.1f} s after" in (out / "run.log").read_text()
    assert f"The first step was done {spent:.1f} s after" in (out / "report.html").read_text()


def test_the_report_is_written_again_as_it_was(out, tmp_path):
    copy = shutil.copytree(out, tmp_path / "out")
    (copy / "report.html").unlink()
    page, missing = rewrite_report(RunFolder(copy))
    assert missing == ""
    written = page.read_text(encoding="utf-8").replace(str(copy), str(out))
    assert written == (out / "report.html").read_text(encoding="utf-8")


def test_planted_figures_stand_beside_the_metrics(world):
    folder, _, result = world
    truth = json.loads((folder / "rows.truth.json").read_text())
    assert result.metrics["planted"] == truth


def test_bad_rows_are_counted_in_metrics_and_report(world, out):
    bad = world[2].metrics["bad_rows"]
    assert bad["total"] == 2
    assert bad["by_reason"] == {"wrong number of columns": 1, "label not 0 or 1": 1}
    assert [example["row"] for example in bad["examples"]] == [51, 102]
    page = (out / "report.html").read_text()
    for reason in bad["by_reason"]:
        assert reason in page


def test_statistics_are_those_of_the_training_rows(out, frame):
    statistics = json.loads((out / "statistics.json").read_text())
    training = frame[:NUM_TRAIN]
    assert statistics["num_rows"] == NUM_TRAIN
    assert statistics["label_rate"] == pytest.approx(training["label"].mean())
    for name in NUMBERS:
        values, column = training[name].dropna(), statistics["columns"][name]
        assert column["num_missing"] == training[name].isna().sum()
        assert column["moments"]["count"] == len(values)
        assert column["moments"]["mean"] == pytest.approx(values.mean())
        assert column["moments"]["standard_deviation"] == pytest.approx(values.std(ddof=0))
        assert column["moments"]["maximum"] == values.max()
    for name in [*CATEGORIES, "code"]:
        column = statistics["columns"][name]
        assert column["num_missing"] == training[name].isna().sum()
        assert column["num_distinct"] == training[name].nunique()


def vocabulary_of(out, column):
    statistics = json.loads((out / "statistics.json").read_text())
    return pq.read_table(out / statistics["vocabularies"][column]["file"]).to_pandas()


def test_vocabularies_hold_the_values_of_the_training_rows_alone(out, frame):
    num_later = 0
    for name in CATEGORIES:
        counts = frame[name][:NUM_TRAIN].value_counts()
        found = vocabulary_of(out, name)
        expected = counts[counts >= 2]
        assert dict(zip(found["value"], found["count"], strict=True)) == expected.to_dict()
        later = set(frame[name][NUM_TRAIN:].dropna()) - set(counts.index)
        num_later += len(later)
        assert not later & set(found["value"])
    assert num_later > 0


def test_texts_that_look_like_numbers_stay_texts(out, frame):
    found = vocabulary_of(out, "code")
    assert sorted(found["value"]) == sorted(CODES)
    assert "only-late" in set(frame["code"])


def test_dense_inputs_are_standardised_by_the_training_rows(out, frame):
    from ctr_pipeline.dataset.encoded import EncodedReader

    with EncodedReader(out / "cache" / "encoded" / "train") as reader:
        rows = reader.read_range(0, NUM_TRAIN)
    assert np.array_equal(rows.labels_B, frame["label"][:NUM_TRAIN])
    present = frame["I2"][:NUM_TRAIN].notna().to_numpy()
    numbers = rows.numbers_BN[present, NUMBERS.index("I2")].astype(float)
    assert numbers.mean() == pytest.approx(0, abs=1e-4)
    assert numbers.std() == pytest.approx(1, abs=1e-4)


def test_resolved_config_loads_and_is_equal(world, loaded):
    folder = world[0]
    from ctr_pipeline.config.loader import config_from_mapping

    given = config_from_mapping(settings_of(folder / "rows.tsv", folder / "out"))
    assert loaded.config == given.config
    assert yaml.safe_load(loaded.resolved_yaml())["train"]["seed"] == 0


def test_drift_of_the_other_splits_is_measured_and_shown(world):
    drift = world[2].metrics["drift"]
    assert set(drift) == {"valid", "test"}
    for rows in drift.values():
        indexes = [column["psi"] for column in rows["columns"]]
        assert indexes == sorted(indexes, reverse=True)
        assert not [column for column in rows["columns"] if "cells" in column]
    report = world[2].paths["report"].read_text()
    assert '<section id="drift">' in report
    assert '<section id="information">' in report


def test_metrics_terminal_and_report_say_the_same_findings(world, capsys):
    folder, _, result = world
    stored = json.loads((folder / "out" / "metrics.json").read_text())["findings"]
    assert stored == result.metrics["findings"]
    assert {finding["tone"] for finding in stored} >= {"good", "note"}
    print_run(result)
    printed = capsys.readouterr().out
    report = html.unescape(result.paths["report"].read_text())
    for finding in stored:
        assert finding["text"] in printed
        assert finding["text"] in report


def test_importance_names_every_feature_once_and_in_order(world):
    importance = world[2].metrics["importance"]
    assert sorted(row["feature"] for row in importance) == sorted([*NUMBERS, *CATEGORIES, "code"])
    rises = [row["logloss_rise"] for row in importance]
    assert rises == sorted(rises, reverse=True)


def test_history_has_a_line_an_epoch(world, out):
    history = pd.read_csv(out / "history.csv")
    training = world[2].metrics["training"]
    assert len(history) == training["epochs"] == 2
    assert training["steps"] == 2 * math.ceil(NUM_TRAIN / 256)
    best = history["valid_logloss"].idxmin()
    assert training["best_epoch"] == best + 1
    assert world[2].metrics["valid"]["logloss"] == pytest.approx(
        history["valid_logloss"][best], abs=1e-9
    )


def test_parity_is_proved_with_edge_rows_and_stored(out):
    proof = json.loads((out / "export/1/parity.json").read_text())
    assert proof["num_edge_rows"] > 0
    assert proof["num_rows"] == 50 + proof["num_edge_rows"]
    assert max(proof["max_difference"].values()) <= proof["tolerance"]
    assert set(proof["max_difference"]) == {"serving_default", "serving_strings"}


def test_export_scores_raw_rows_as_the_predictions_say(out, frame, predictions):
    import tensorflow as tf

    model = tf.saved_model.load(str(out / "export/1"))
    rows = frame[-NUM_TEST:]
    numbers = {name: tf.constant(rows[name].to_numpy(np.float64)) for name in NUMBERS}
    texts = {
        name: tf.constant([value or "" for value in rows[name].where(rows[name].notna(), "")])
        for name in [*CATEGORIES, "code"]
    }
    scored = model.signatures["serving_default"](**numbers, **texts)
    expected = predictions["probability"].to_numpy()
    assert scored["probability"].numpy() == pytest.approx(expected, abs=1e-5)
    one = {name: values[:1] for name, values in (numbers | texts).items()}
    alone = model.signatures["serving_default"](**one)["probability"].numpy()
    assert alone == pytest.approx(expected[:1], abs=1e-5)
    as_text = {
        name: tf.constant(["" if pd.isna(value) else str(int(value)) for value in rows[name]])
        for name in NUMBERS
    }
    again = model.signatures["serving_strings"](**as_text, **texts)
    assert again["probability"].numpy() == pytest.approx(expected, abs=1e-5)


def variables_of(export):
    """All variables of a servable model, by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    return {
        name.partition("/.ATTRIBUTES")[0]: reader.get_tensor(name)
        for name in reader.get_variable_to_dtype_map()
        if not name.startswith("_CHECKPOINTABLE")
    }


@pytest.mark.slow
def test_exporting_alone_holds_few_rows_and_writes_the_same(out, tmp_path, monkeypatch):
    shutil.copytree(out, tmp_path / "out")
    loaded = load_config(
        tmp_path / "out/config.resolved.yaml",
        overrides=[f"output={tmp_path / 'out'}", "export.model_version=2"],
    )
    held, append = [0], RowStorage.append

    def watched(rows, keys):
        held.append(rows.num_rows + len(keys))
        return append(rows, keys)

    def refuse(*_arguments, **_more):
        raise AssertionError("all rows would be in memory")

    monkeypatch.setattr(RowStorage, "append", watched)
    monkeypatch.setattr(RowStorage, "adopt", refuse)
    monkeypatch.setattr(RowStorage, "find_or_create", refuse)
    # A batch of 256 rows has some hundred distinct ids.
    few = {"trained_by": 1, "most_held": 10}
    monkeypatch.setattr(StoredRows.__init__, "__kwdefaults__", few)
    result = export_model(loaded, progress=SilentProgress())
    first, second = (variables_of(tmp_path / "out/export" / name) for name in "12")
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name
    num_rows = result.metrics["training"]["embedding_rows"]
    assert len(first["row_keys"]) == num_rows + 1
    assert 10 < max(held) < num_rows / 2
    before = json.loads((out / "metrics.json").read_text())
    assert result.metrics["test"] == before["test"]
    assert result.metrics["importance"] == before["importance"]
    assert result.metrics["training"]["embedding_rows"] == before["training"]["embedding_rows"]
    assert list((tmp_path / "out/cache").glob(".*")) == []


@pytest.mark.slow
def test_an_export_that_is_stopped_while_rows_are_released_is_gone(out, tmp_path, monkeypatch):
    shutil.copytree(out, tmp_path / "out")
    loaded = load_config(
        tmp_path / "out/config.resolved.yaml",
        overrides=[f"output={tmp_path / 'out'}", "export.model_version=2"],
    )

    def stop(_model):
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(TrainedModel, "release_rows", stop)
    with pytest.raises(Interrupted):
        export_model(loaded, progress=SilentProgress())
    assert [path.name for path in (tmp_path / "out/export").iterdir()] == ["1"]


def read_duckdb_table(address):
    file, _, table = address.removeprefix("duckdb://").rpartition("/")
    with duckdb.connect(file, read_only=True) as connection:
        return connection.execute(f'SELECT * FROM "{table}"').df()


def test_predicting_a_file_without_labels_gives_the_same(world, loaded, predictions, tmp_path):
    unlabelled = [line.partition("\t")[2] for line in world[1][-NUM_TEST:]]
    (tmp_path / "new.tsv").write_text("\n".join(["\t".join(COLUMNS[1:]), *unlabelled]) + "\n")
    places = {
        str(tmp_path / "p.parquet"): pd.read_parquet,
        str(tmp_path / "p.csv"): pd.read_csv,
        f"duckdb://{tmp_path / 'p.duckdb'}/scores": read_duckdb_table,
    }
    for output, read in places.items():
        result = predict(
            loaded, data=str(tmp_path / "new.tsv"), output=output, progress=SilentProgress()
        )
        found = read(output)
        assert list(found.columns) == ["row", "probability"]
        assert result.num_rows == len(found) == NUM_TEST
        assert found["probability"].to_numpy() == pytest.approx(
            predictions["probability"].to_numpy(), abs=1e-6
        )
        assert result.mean_probability == pytest.approx(found["probability"].mean(), rel=1e-5)


def test_values_that_the_model_does_not_know_are_told(world, loaded, out, reopened, tmp_path):
    def rows_with(code):
        lines = [line.rpartition("\t")[0] + "\t" + code(line) for line in world[1][-NUM_TEST:]]
        path = tmp_path / "new.tsv"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    known = rows_with(lambda line: line.rpartition("\t")[2])
    progress, place = RecordingProgress(), tmp_path / "p.csv"
    predict(loaded, data=known, output=str(place), strict=True, progress=progress)
    evaluate(loaded, data=known, strict=True, progress=progress)
    assert progress.lines == []
    place.unlink()
    shares = json.loads((out / "metrics.json").read_text())["unknown_values"]
    assert shares["code"] == 0.005
    assert {"C1", "C26", "code"} <= set(shares)
    changed = rows_with(lambda line: f"code {len(line) % 2}")
    sentence = (
        "100.0% of the values of 'code' are unknown to the model, and 0.5% of those that training "
        "held out, such as 'code [01]' and 'code [01]'"
    )
    for strict in (False, True):
        with pytest.raises(DataError, match=sentence) if strict else contextlib.nullcontext():
            predict(loaded, data=changed, output=str(place), strict=strict, progress=progress)
        assert place.exists() != strict
        place.unlink(missing_ok=True)
        with pytest.raises(DataError, match=sentence) if strict else contextlib.nullcontext():
            evaluate(loaded, data=changed, strict=strict, progress=progress)
    assert len(progress.lines) == 2
    assert all(re.match(f"warning: {sentence}", line) for line in progress.lines)
    with pytest.warns(UserWarning, match=sentence):
        reopened.predict(pd.read_csv(changed, sep="\t", names=COLUMNS, dtype=str))
    # A run that has been trained and not yet evaluated has its encoded rows.
    metrics = (out / "metrics.json").rename(out / "metrics.away")
    with pytest.raises(DataError, match=sentence):
        predict(loaded, data=changed, output=str(place), strict=True, progress=progress)
    metrics.rename(out / "metrics.json")


def write_recordio(rows, path):
    with path.open("wb") as file, RecordIOWriter(file) as writer:
        for line in rows.to_csv(sep="|", index=False).splitlines():
            writer.write(line.encode())


@pytest.mark.parametrize(
    ("name", "write", "settings"),
    [
        ("rows.parquet", lambda rows, path: rows.to_parquet(path, index=False), []),
        (
            "rows.csv",
            lambda rows, path: rows.to_csv(path, index=False),
            ["data.format=parquet"],
        ),
        (
            "rows.csv.gz",
            lambda rows, path: rows.to_csv(path, sep=";", header=False, index=False),
            ["data.delimiter='\t'"],
        ),
        ("rows", lambda rows, path: rows.to_csv(path, sep="|", index=False), []),
        ("rows.recordio", write_recordio, ["data.format=parquet"]),
    ],
)
def test_new_rows_may_come_in_another_format(
    loaded, out, frame, world, tmp_path, name, write, settings
):
    assert loaded.config.data.format == "tsv"
    write(frame[-NUM_TEST:], tmp_path / name)
    found = evaluate(
        load_config(out, settings), data=str(tmp_path / name), progress=SilentProgress()
    )
    assert found["logloss"] == pytest.approx(world[2].metrics["test"]["logloss"], abs=1e-6)


def test_new_rows_may_be_read_by_rules_of_their_own(out, frame, world, tmp_path):
    rows = frame[-NUM_TEST:].astype({"I1": object}).fillna({"I1": "NULL", "C2": "NULL"})
    rows["label"] = rows["label"].map({0: "no", 1: "yes"})
    rows.to_csv(tmp_path / "rows.csv", index=False, quotechar="'", quoting=csv.QUOTE_ALL)
    own = ["data.missing_values=['NULL']", "data.positive=yes", 'data.quote="\'"']
    new = str(tmp_path / "rows.csv")
    found = evaluate(load_config(out, own), data=new, progress=SilentProgress())
    assert found["logloss"] == pytest.approx(world[2].metrics["test"]["logloss"], abs=1e-6)
    strict = load_config(out, [*own[1:], "data.bad_rows=fail"])
    with pytest.raises(DataError, match=r"'NULL'.*write data.missing_values: \['NULL'\]"):
        evaluate(strict, data=new, progress=SilentProgress())
    with pytest.raises(RunFolderError, match="trained with another config: data\\.quote"):
        evaluate(load_config(out, own[2:]), progress=SilentProgress())


def test_scoring_takes_no_lock_and_leaves_the_run_as_it_is(world, out, tmp_path):
    """So any number may score at once, from a folder that cannot be written as well."""

    def written():
        files = (path for path in out.rglob("*") if path.is_file() and path.name != "run.log")
        return {path: path.stat().st_mtime_ns for path in files}

    rows = tmp_path / "rows.tsv"
    rows.write_text("\n".join(world[1][-300:]) + "\n")
    before = written()
    loaded = load_config(out)
    with RunFolder(out).locked(sweeps=False):
        before[out / ".lock"] = (out / ".lock").stat().st_mtime_ns
        predict(loaded, data=str(rows), output=str(tmp_path / "p.csv"), progress=SilentProgress())
        evaluate(loaded, data=str(rows), progress=SilentProgress())
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 301
    assert written() == before


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_predictions_have_the_columns_to_keep(world, loaded, frame, tmp_path, name):
    (tmp_path / "new.tsv").write_text("\n".join(world[1][:50]) + "\n")
    # One that no feature reads, a key column, the label, a text of a feature, and numbers.
    keep = ["user", "row", "label", "code", "I1", "user"]
    predict(
        loaded,
        data=str(tmp_path / "new.tsv"),
        output=str(tmp_path / name),
        keep=keep,
        progress=SilentProgress(),
    )
    texts = dict.fromkeys(keep, str)
    path = tmp_path / name
    found = pd.read_parquet(path) if name == "p.parquet" else pd.read_csv(path, dtype=texts)
    assert list(found.columns) == ["row", "user", "label", "code", "I1", "probability"]
    expected = frame[:50]
    for column in ("user", "row", "label", "code"):
        assert list(found[column]) == [str(value) for value in expected[column]], column
    numbers = pd.to_numeric(found["I1"], errors="coerce").to_numpy()
    np.testing.assert_array_equal(numbers, expected["I1"].to_numpy(np.float64))


def test_files_that_turn_bad_leave_neither_predictions_nor_threads(world, loaded, tmp_path):
    good = world[1][:100]
    (tmp_path / "a.tsv").write_text("\n".join(good) + "\n")
    (tmp_path / "b.tsv").write_text("\n".join([good[0], *["no row"] * 900]) + "\n")
    before = set(threading.enumerate())
    with pytest.raises(DataError, match="max_bad_fraction"):
        predict(
            loaded,
            data=str(tmp_path / "*.tsv"),
            output=str(tmp_path / "p.parquet"),
            progress=SilentProgress(),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "b.tsv"]
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in left if name.startswith(("prefetch", "stream"))]


def test_prediction_refuses_other_endings(loaded, tmp_path):
    with pytest.raises(DataError, match=r"Parquet or CSV"):
        predict(loaded, data="x", output=str(tmp_path / "p.txt"), progress=SilentProgress())


def test_loaded_run_predicts_a_dataframe(reopened, frame, predictions):
    rows = frame[-NUM_TEST:]
    found = reopened.predict(rows)
    assert found.name == "probability"
    assert found.index.equals(rows.index)
    assert found.to_numpy() == pytest.approx(predictions["probability"].to_numpy(), abs=1e-6)
    assert reopened.predict(rows[:0]).empty
    assert reopened.predict([]).empty
    assert reopened.config.name == "clicks"


def test_loaded_run_refuses_rows_that_do_not_fit(reopened, frame):
    rows = frame[-5:]
    with pytest.raises(DataError, match="the rows have no column 'C3'"):
        reopened.predict(rows.drop(columns="C3"))
    with pytest.raises(DataError, match="column 'I1': not a number: 'many'"):
        reopened.predict(rows.assign(I1="many"))


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        ctr_pipeline.load(tmp_path)


def test_evaluating_the_test_rows_as_a_new_file_gives_the_same(world, loaded, tmp_path):
    (tmp_path / "new.tsv").write_text("\n".join(world[1][-NUM_TEST:]) + "\n")
    found = evaluate(loaded, data=str(tmp_path / "new.tsv"), progress=SilentProgress())
    expected = world[2].metrics["test"]
    for name in ("auc", "logloss", "calibration", "gauc", "num_rows"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6)
    assert [one["text"] for one in found["findings"] if "on the given rows" in one["text"]]


def test_a_column_that_some_new_files_lack_is_told(loaded, tmp_path):
    table = pa.table({"label": [0], "I1": [1], "code": ["a"]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.drop_columns("code"), tmp_path / "b.parquet")
    progress = RecordingProgress()
    look_at_new(loaded, str(tmp_path / "*.parquet"), progress)
    (line,) = progress.lines
    assert re.match(r"warning: Columns are absent .*'code' in 1, such as .*b\.parquet", line)


def test_evaluating_again_gives_the_same_and_reuses_everything(world, loaded, predictions, out):
    progress = RecordingProgress()
    found = evaluate(loaded, progress=progress)
    assert found["auc"] == world[2].metrics["test"]["auc"]
    assert progress.tasks == ["Scoring valid", "Scoring test"]
    assert pd.read_parquet(out / "predictions.parquet").equals(predictions)


def test_results_of_another_config_are_not_overwritten(world, out):
    folder = world[0]
    before = (out / "metrics.json").read_bytes()
    other = settings_of(folder / "rows.tsv", out, model={"name": "deepfm", "embedding_dim": 2})
    with pytest.raises(RunFolderError, match=r"model\.embedding_dim, model\.hidden_units differ"):
        ctr_pipeline.run(other)
    assert (out / "metrics.json").read_bytes() == before


# The runs below stop after training or analysis and use columns few enough to be quick.

SMALL = {
    "features": [
        {"columns": "I1..I3", "number": ["log", "standardize"]},
        {"columns": ["C1", "code"], "id": [{"vocabulary": {"min_count": 1}}]},
    ],
    "model": {"name": "deepfm", "embedding_dim": 2, "hidden_units": [4]},
    "train": {"epochs": 1, "batch_size": 256},
}


def small(world, output, *overrides, **sections):
    from ctr_pipeline.config.loader import config_from_mapping

    settings = settings_of(world[0] / "rows.tsv", output, **{**SMALL, **sections})
    return config_from_mapping(settings, overrides)


def test_second_training_reads_and_encodes_nothing(world, tmp_path):
    loaded = small(world, tmp_path / "out")
    first, second = RecordingProgress(), RecordingProgress()
    train(loaded, progress=first)
    history = (tmp_path / "out/history.csv").read_text().split(",")[:-1]
    result = train(loaded, overwrite=True, progress=second)
    assert any(name.startswith("Encoding") for name in first.tasks)
    assert second.tasks == ["Training, epoch 1 of 1", "Validation"]
    assert (tmp_path / "out/history.csv").read_text().split(",")[:-1] == history
    assert "metrics" not in result.paths
    resumed = RecordingProgress()
    train(loaded, resume=True, progress=resumed)
    assert resumed.tasks == []


class Listening(SilentProgress):
    """Remembers what was said."""

    def __init__(self):
        self.said = []

    def log(self, text):
        self.said.append(text)


@pytest.mark.slow
def test_a_watched_training_says_and_keeps_where_its_time_went(world, tmp_path):
    loaded, progress = small(world, tmp_path / "out"), Listening()
    result = train(loaded, profile=True, progress=progress)
    kept = json.loads(result.paths["profile"].read_text())
    assert "bounds training" in progress.said[-1] or "of the time" in progress.said[-1]
    assert kept["num_rows"] == NUM_TRAIN
    assert any("TensorFlow step" in line for line in progress.said)
    assert "TensorFlow step" in (tmp_path / "out/run.log").read_text()
    report = export_model(loaded, progress=SilentProgress()).paths["report"].read_text()
    assert 'id="training-time"' in report
    assert "another thread reads ahead" in report
    kept = result.paths["profile"].read_bytes()
    again = Listening()
    train(loaded, resume=True, profile=True, progress=again)
    assert "Nothing was left to train" in again.said[-1]
    assert result.paths["profile"].read_bytes() == kept
    assert "profile" not in train(loaded, overwrite=True, progress=SilentProgress()).paths


@pytest.mark.slow
def test_automatic_features(world, tmp_path):
    loaded = small(world, tmp_path / "out", features="auto")
    train(loaded, progress=SilentProgress())
    features = json.loads((tmp_path / "out/features.json").read_text())
    by_column = {feature["column"]: feature for feature in features}
    assert "row" not in by_column
    assert "label" not in by_column
    assert by_column["I2"]["column_type"] == "number"
    assert by_column["code"]["column_type"] == "text"
    assert all(feature["reason"] for feature in features)


def values_by_split(out, column):
    found = {}
    for split in ("train", "valid", "test"):
        files = sorted((out / "cache" / "ingested" / split).iterdir())
        values = read_columns(files, [column]).column(column).to_pylist()
        found[split] = [str(value) for value in values]
    return found


def test_random_split(world, tmp_path):
    loaded = small(world, tmp_path / "out", "data.split={by: random, valid: 0.2, test: 0.2}")
    analyze(loaded, progress=SilentProgress())
    rows = values_by_split(tmp_path / "out", "row")
    assert sorted(chain.from_iterable(rows.values())) == [f"{n:06d}" for n in range(NUM_ROWS)]
    for split, share in (("train", 0.6), ("valid", 0.2), ("test", 0.2)):
        assert len(rows[split]) == pytest.approx(share * NUM_ROWS, rel=0.2)
        assert np.mean([int(row) for row in rows[split]]) == pytest.approx(NUM_ROWS / 2, rel=0.15)


def test_hash_split_keeps_the_rows_of_a_user_together(world, tmp_path):
    split = "data.split={by: hash, column: user, valid: 0.2, test: 0.2}"
    loaded = small(world, tmp_path / "out", split)
    analyze(loaded, progress=SilentProgress())
    users = {name: set(found) for name, found in values_by_split(tmp_path / "out", "user").items()}
    assert set.union(*users.values()) == {f"u{n}" for n in range(20)}
    assert sum(map(len, users.values())) == 20


def test_resuming_on_other_data_is_refused(world, tmp_path):
    rows = tmp_path / "rows.tsv"
    text = (world[0] / "rows.tsv").read_text()
    rows.write_text(text)
    loaded = small(world, tmp_path / "out", f"data.train={rows}")
    train(loaded, progress=SilentProgress())
    rests_on = ["statistics.json", "preprocessing.json", "cache/encoded/train/rows.bin"]
    before = [(tmp_path / "out" / name).read_bytes() for name in rests_on]
    lines = text.splitlines(keepends=True)
    rows.write_text("".join([*lines[1:], lines[0]]))
    with pytest.raises(CheckpointError, match="the data changed since the model was trained"):
        train(loaded, resume=True, progress=SilentProgress())
    assert [(tmp_path / "out" / name).read_bytes() for name in rests_on] == before
    with pytest.raises(CheckpointError, match=r"the data changed|other transforms"):
        evaluate(loaded, progress=SilentProgress())


def test_a_run_may_be_compared_by_what_it_left(out, world, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    for name in ("config.resolved.yaml", "metrics.json", "predictions.parquet", "history.csv"):
        shutil.copy(out / name, again)
    found = compare_runs([out, again], repeats=100, progress=SilentProgress())
    metrics = world[2].metrics
    for run in found.shown.runs:
        assert run.not_compared is None
        assert run.test.auc == metrics["test"]["auc"]
        assert run.training_seconds == metrics["timings_seconds"]["training"]
        assert run.num_training_rows == NUM_TRAIN
        assert run.num_embedding_rows == metrics["training"]["embedding_rows"] > 0
        assert len(run.history) == metrics["training"]["epochs"]
        assert sum(one.num_rows for one in run.calibration_bins) == NUM_TEST
    assert found.shown.runs[1].auc_difference.difference == 0
    assert found.shown.config_differences == ()
