"""Finished runs beside each other, and `ctrpipe compare` as it is called."""

import json
import random

import numpy as np
import paired_interval
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.apps.compare import (
    ScoredTest,
    compare_runs,
    differing_settings,
    distinct_names,
    explain_difference,
    logits_of,
)
from ctr_pipeline.cli.main import main
from ctr_pipeline.config import load_config
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.evaluation.likelihood import probabilities_of
from ctr_pipeline.pipeline.run import analyze
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.fake_runs import scored_rows, write_run


def compare(*folders, repeats=100, **options):
    return compare_runs(list(folders), repeats=repeats, progress=SilentProgress(), **options).shown


def scored(labels=(0, 1, 1, 0), weights=None, **keys):
    size = len(labels)
    return ScoredTest(
        np.array(labels, np.int8),
        np.linspace(0.1, 0.9, size),
        pa.table(keys),
        None if weights is None else np.array(weights, float),
    )


@pytest.fixture
def good(tmp_path):
    return write_run(tmp_path / "good", *scored_rows(0.1))


@pytest.fixture
def noisy(tmp_path):
    return write_run(tmp_path / "noisy", *scored_rows(2.0), model__name="dcnv2")


class TestSameRows:
    def test_the_same_rows_may_be_compared(self):
        same = scored(user=[1, 2, 3, 4], weights=[1, 2, 1, 0])
        assert explain_difference(same, scored(user=[1, 2, 3, 4], weights=[1, 2, 1, 0])) is None

    @pytest.mark.parametrize(
        ("first", "other", "reason"),
        [
            (scored(), scored((0, 1, 1)), "3 rows beside 4"),
            (scored(), scored((0, 1, 0, 1)), "labels differ, first in row 3"),
            (
                scored(user=[1, 2, 3, 4]),
                scored(user=[1, 2, 4, 3]),
                "key column 'user' differs, first in row 3",
            ),
            (scored(), scored(weights=[1, 1, 1, 1]), "only one of the two counts rows by weight"),
            (
                scored(weights=[1, 1, 1, 1]),
                scored(weights=[1, 2, 1, 1]),
                "weights differ, first in row 2",
            ),
        ],
    )
    def test_difference_between_rows_is_explained(self, first, other, reason):
        assert explain_difference(first, other) == reason

    def test_keys_are_compared_by_value_whatever_their_type(self):
        whole = scored(user=pa.array([1, 2, None, 4], pa.int64()))
        assert explain_difference(whole, scored(user=pa.array(["1", "2", None, "4"]))) is None
        floats = scored(user=pa.array([1.0, 2.0, float("nan"), 4.0]))
        again = scored(user=pa.chunked_array([[1.0, 2.0], [float("nan"), 4.0]]))
        assert explain_difference(floats, again) is None
        reason = explain_difference(whole, scored(user=pa.array(["1", "2", "", "4"])))
        assert reason == "key column 'user' differs, first in row 3"

    def test_keys_that_only_one_run_has_decide_nothing(self):
        assert explain_difference(scored(user=[1, 2, 3, 4]), scored(row=[4, 3, 2, 1])) is None


class TestSettings:
    def test_settings_are_told_by_their_path_only_where_they_differ(self):
        first = {"name": "a", "output": "a", "train": {"epochs": 1, "shuffle": True}, "x": [1, 2]}
        other = {"name": "b", "output": "b", "train": {"epochs": 2, "shuffle": True}, "x": [1]}
        found = {one.key: one.values for one in differing_settings([first, other])}
        assert found == {"train.epochs": (1, 2), "x": ([1, 2], [1])}

    def test_lists_of_one_length_are_gone_into(self):
        first = {"features": [{"columns": "a"}, {"columns": "b", "id": "hash"}]}
        other = {"features": [{"columns": "a"}, {"columns": "b", "id": "vocabulary"}]}
        (one,) = differing_settings([first, other, first])
        assert (one.key, one.values) == ("features[1].id", ("hash", "vocabulary", "hash"))

    @pytest.mark.parametrize("value", [0, "1", 1.0, None, [], {}])
    def test_a_value_of_another_type_differs(self, value):
        (one,) = differing_settings([{"a": {"b": 1}}, {"a": {"b": value}}])
        assert (one.key, one.values) == ("a.b", (1, value))
        assert differing_settings([{"a": True}, {"a": 1}])

    def test_an_absent_key_is_none(self):
        (one,) = differing_settings([{"a": {"b": 1}}, {"a": {}}])
        assert one.values == (1, None)


class TestNames:
    def test_the_last_part_is_enough_where_it_differs(self, tmp_path):
        assert distinct_names([tmp_path / "x" / "a", tmp_path / "y" / "b"]) == ["a", "b"]

    def test_otherwise_as_many_parts_as_tell_them_apart(self, tmp_path):
        paths = [tmp_path / place for place in ("x/1/run", "x/2/run", "y/1/run")]
        assert distinct_names(paths) == ["x/1/run", "x/2/run", "y/1/run"]


def test_logits_come_back_and_stay_finite():
    logits = np.array([-30.0, -3.0, 0.0, 2.5, 25.0])
    assert logits_of(probabilities_of(logits)) == pytest.approx(logits, rel=1e-4)
    assert np.isfinite(logits_of(np.array([0.0, 1.0]))).all()


def test_differences_are_those_of_an_independent_bootstrap(good, noisy):
    shown = compare(noisy, good, repeats=1000)
    first, second = shown.runs
    assert first.auc_difference is first.logloss_difference is first.not_compared is None
    labels, good_logits = scored_rows(0.1)
    _, noisy_logits = scored_rows(2.0)
    probabilities = [probabilities_of(logits) for logits in (good_logits, noisy_logits)]
    areas = [roc_auc_score(labels, one) for one in probabilities]
    losses = [log_loss(labels, one) for one in probabilities]
    auc, logloss = second.auc_difference, second.logloss_difference
    assert auc.difference == pytest.approx(areas[0] - areas[1], abs=1e-9)
    assert logloss.difference == pytest.approx(losses[0] - losses[1], abs=1e-6)
    assert (auc.verdict, logloss.verdict) == ("ahead", "ahead")
    # Another implementation with other draws: ends agree to a part of the interval's width.
    ours, base = (paired_interval.Scored.of(labels.astype(float), one) for one in probabilities)
    expected = paired_interval.compare([ours], [base], seed=5)
    for interval, sign, other in (
        (auc.interval, 1, expected.auc_ahead),
        (logloss.interval, -1, expected.logloss_ahead),
    ):
        ends = sorted((sign * interval.low, sign * interval.high))
        near = 0.1 * (other.high - other.low)
        assert ends == pytest.approx([other.low, other.high], abs=near)
    mirrored = compare(good, noisy).runs[1]
    assert (mirrored.auc_difference.verdict, mirrored.logloss_difference.verdict) == (
        "behind",
        "behind",
    )


def test_a_model_is_not_told_from_itself(tmp_path, good):
    again = write_run(tmp_path / "again", *scored_rows(0.1), train__seed=7)
    shown = compare(good, again)
    assert shown.runs[1].auc_difference.verdict == "open"
    assert shown.runs[1].auc_difference.interval.high == 0
    assert [(one.key, one.values) for one in shown.config_differences] == [("train.seed", (0, 7))]


def test_runs_of_other_rows_only_stand_beside(tmp_path, good, noisy):
    other = write_run(tmp_path / "other", *scored_rows(0.1, rows_seed=5))
    fewer = write_run(tmp_path / "fewer", *scored_rows(0.1, num_rows=500))
    _, swapped, cut, compared = compare(good, other, fewer, noisy).runs
    assert swapped.not_compared.startswith("scored other test rows than 'good' (labels differ")
    assert "500 rows beside 2,000" in cut.not_compared
    for run in (swapped, cut):
        assert run.auc_difference is None
        assert run.roc == run.calibration_bins == ()
        assert run.test.auc > 0.5
        assert len(run.history) == 3
    assert compared.not_compared is None
    assert compared.auc_difference.verdict == "behind"


def test_keys_tell_rows_apart_that_labels_do_not(tmp_path):
    labels, logits = scored_rows(0.1)
    users = np.arange(len(labels))
    first = write_run(tmp_path / "a", labels, logits, keys={"user": users})
    same = write_run(tmp_path / "b", labels, logits, keys={"user": users})
    other = write_run(tmp_path / "c", labels, logits, keys={"user": users[::-1]})
    runs = compare(first, same, other).runs
    assert runs[1].not_compared is None
    assert "key column 'user' differs, first in row 1" in runs[2].not_compared


def test_predictions_that_were_not_measured_are_not_compared(good, noisy):
    labels, logits = scored_rows(0.7)
    table = pa.table({"label": labels, "probability": probabilities_of(logits)})
    pq.write_table(table, noisy / "predictions.parquet")
    run = compare(good, noisy).runs[1]
    assert "is not the one its metrics.json measured" in run.not_compared
    # And if they are those of the first run, nothing is.
    first, other = compare(noisy, good).runs
    assert "is not the one" in first.not_compared
    assert "is not compared, for 'noisy' has a predictions.parquet" in other.not_compared


def test_runs_without_test_rows(good, noisy):
    metrics = json.loads((noisy / "metrics.json").read_text())
    del metrics["test"]
    (noisy / "metrics.json").write_text(json.dumps(metrics))
    (noisy / "predictions.parquet").unlink()
    run = compare(good, noisy).runs[1]
    assert (run.not_compared, run.test) == ("has no test rows", None)
    assert run.valid.num_rows == 2000


def test_an_ensemble_has_the_curve_of_its_first_model(tmp_path, good):
    folder = write_run(tmp_path / "both", *scored_rows())
    for number in range(2):
        member = folder / "members" / str(number)
        (member / "checkpoints").mkdir(parents=True)
        text = (folder / "history.csv").read_text()
        (member / "history.csv").write_text(text if number == 0 else text.splitlines()[0] + "\n")
    (folder / "history.csv").unlink()
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["training"]["members"] = [{"model": "deepfm"}, {"model": "dcn"}]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    shown = compare_runs([good, folder], progress=SilentProgress()).shown
    assert len(shown.runs[1].history) == len(shown.runs[0].history) == 3
    (note,) = shown.notes
    assert note.startswith("both is an ensemble of 2 models: its learning curve is that of the")


def test_other_validation_rows_are_noted(tmp_path, good):
    other = write_run(tmp_path / "b", *scored_rows(0.1), valid=scored_rows(num_rows=100))
    (note,) = compare(good, other).notes
    assert "Learning curves of b and good are of different validation rows: 100 with" in note


def test_weights_come_from_the_rows_that_were_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(4)
    rows = [(int(chance.random() < 0.3), chance.choice("ab"), 1 + n % 7) for n in range(600)]
    text = "".join(f"{click},{city},{weight}\n" for click, city, weight in rows)
    (tmp_path / "rows.csv").write_text(f"click,city,w\n{text}")
    labels = np.array([row[0] for row in rows[-60:]], np.uint8)
    weights = np.array([row[2] for row in rows[-60:]], float)
    folders = []
    for number, noise in enumerate((0.1, 0.5)):
        logits = np.random.default_rng(number).normal(labels * 2.0, 1 + noise)
        folder = write_run(
            tmp_path / f"run-{number}",
            labels,
            logits.astype(np.float32),
            weights=weights,
            data__weight="w",
            data__split={"valid": 0.1, "test": 0.1, "by": "order"},
            features=[{"columns": "city", "id": "vocabulary"}],
        )
        analyze(load_config(folder / "config.resolved.yaml"), progress=SilentProgress())
        folders.append(folder)
    first, second = compare(*folders).runs
    assert second.not_compared is None
    expected = [
        roc_auc_score(
            labels,
            pq.read_table(folder / "predictions.parquet")["probability"],
            sample_weight=weights,
        )
        for folder in folders
    ]
    assert first.test.auc == pytest.approx(expected[0])
    assert second.auc_difference.difference == pytest.approx(expected[1] - expected[0])
    for file in (folders[1] / "cache").rglob("*.json"):
        file.unlink()
    assert "no longer holds" in compare(*folders).runs[1].not_compared


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.resolved.yaml", "a: [b"),
        ("config.resolved.yaml", "- a"),
        ("metrics.json", "{"),
        ("metrics.json", "[]"),
        ("metrics.json", '{"test": {"auc": NaN}}'),
        ("metrics.json", '{"training": {"epochs": "many"}}'),
        ("predictions.parquet", "PAR1"),
    ],
)
def test_damaged_files_are_named(good, noisy, file, content):
    (noisy / file).write_text(content)
    with pytest.raises(RunFolderError, match=rf"noisy/{file}: is damaged"):
        compare(good, noisy)


@pytest.mark.parametrize(
    "columns",
    [
        {"label": [0, 1]},
        {"label": [0, 2], "probability": [0.1, 0.2]},
        {"label": [0, None], "probability": [0.1, 0.2]},
        {"label": [0, 1], "probability": [0.1, float("nan")]},
        {"label": [0, 1], "probability": [0.1, 1.5]},
        {"label": ["0", "1"], "probability": [0.1, 0.5]},
    ],
)
def test_predictions_that_no_run_wrote_are_refused(good, noisy, columns):
    pq.write_table(pa.table(columns), noisy / "predictions.parquet")
    with pytest.raises(RunFolderError, match=r"predictions\.parquet: is damaged"):
        compare(good, noisy)


def call(capsys, *arguments):
    code = main([str(argument) for argument in ("compare", *arguments, "-q")])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_comparison_is_printed_as_json(good, noisy, capsys):
    code, out, _ = call(capsys, noisy, good, "--json", "--repeats", "100")
    assert code == 0
    found = json.loads(out)
    first, second = found["runs"]
    assert (first["name"], first["model"], first["auc_difference"]) == ("noisy", "dcnv2", None)
    assert second["auc_difference"]["verdict"] == "ahead"
    assert 0 < second["auc_difference"]["interval"]["low"] < second["auc_difference"]["difference"]
    assert second["logloss_difference"]["interval"]["high"] < 0
    assert (second["training_seconds"], second["num_embedding_rows"]) == (75.0, 1234)
    assert (second["best_epoch"], second["num_dense_parameters"]) == (2, 567)
    assert found["config_differences"][0] == {"key": "model.name", "values": ["dcnv2", "deepfm"]}
    assert {one["key"] for one in found["config_differences"][1:]} == {"model.cross_layers"}
    assert found["repeats"] == 100
    assert "roc" not in out


def test_comparison_is_printed_as_tables(tmp_path, good, noisy, capsys):
    other = write_run(tmp_path / "[red]other", *scored_rows(0.1, rows_seed=5))
    code, out, _ = call(capsys, noisy, good, other, "--repeats", "100")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("│")]
    labels, logits = scored_rows(0.1)
    assert f"{roc_auc_score(labels, logits):.4f}" in lines[1]
    assert "DCN v2" in lines[0]
    assert "not compared" in lines[2]
    assert "2 of 3" in out
    assert "model.name" in out
    assert "[red]other scored other test rows than 'noisy'" in out


def test_comparison_is_written_as_a_page_and_finds_a_run_by_its_config(
    good, noisy, tmp_path, capsys
):
    config = tmp_path / "c.yaml"
    config.write_text((good / "config.resolved.yaml").read_text())
    code, out, _ = call(capsys, noisy, config, "--html", tmp_path / "p.html", "--repeats", "100")
    assert code == 0
    assert "p.html" in out
    html = (tmp_path / "p.html").read_text()
    assert "good is ahead of noisy" in html
    assert html.count("<svg") == 4
