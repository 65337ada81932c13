"""Permutation importance through a whole run: a planted decisive feature and a useless one."""

import random

import pytest

import ctr_pipeline
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.config.models import ReportConfig
from ctr_pipeline.pipeline.run import export_model
from ctr_pipeline.pipeline.stages.evaluate import decide_importance
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.test_crosses import settings_of

NUM_ROWS, NUM_TEST = 4000, 400
UNCLICKED = 100
"""The first test rows, all without a click."""


@pytest.mark.parametrize(
    ("asked", "seconds", "training_seconds", "measured"),
    [
        ("auto", 4.9, 1.0, True),
        ("auto", 5.1, 1.0, False),
        ("auto", 9.9, 100.0, True),
        ("auto", 10.1, 100.0, False),
        (True, 1e9, 1.0, True),
        (False, 0.1, 1000.0, False),
    ],
)
def test_unasked_it_is_measured_where_it_is_cheap(asked, seconds, training_seconds, measured):
    report = ReportConfig(importance=asked)
    found = decide_importance(report, seconds=seconds, training_seconds=training_seconds)
    assert found is measured


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Folder and result of a run in which one column decides and another is noise."""
    folder = tmp_path_factory.mktemp("planted")
    chance = random.Random(7)
    lines = ["click,decisive,useless"]
    for number in range(NUM_ROWS):
        is_high = chance.random() < 0.4
        click = int(chance.random() < (0.8 if is_high else 0.1))
        if 0 <= number - (NUM_ROWS - NUM_TEST) < UNCLICKED:
            click = 0
        lines.append(f"{click},{'high' if is_high else 'low'},n{chance.randrange(20)}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    features = [{"columns": ["decisive", "useless"], "id": "vocabulary"}]
    settings = settings_of(folder / "rows.csv", folder / "out", features, report={})
    return folder / "out", ctr_pipeline.run(settings)


@pytest.mark.slow
def test_the_decisive_feature_is_first_and_the_useless_one_is_worth_nothing(planted):
    folder, result = planted
    first, second = result.metrics["importance"]
    assert (first["feature"], second["feature"]) == ("decisive", "useless")
    assert first["auc_drop"] > 0.2
    assert first["logloss_rise"] > 0.1
    assert abs(second["auc_drop"]) < 0.03
    assert abs(second["logloss_rise"]) < 0.02
    assert first["repeats"] == second["repeats"] == 3
    assert 0 < first["auc_drop_std"] < first["auc_drop"] / 5
    assert "over 3 shuffles" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_rows_of_one_class_leave_it_out_and_end_no_run(planted):
    folder, _ = planted
    loaded = load_config(
        folder / "config.resolved.yaml",
        overrides=["report.importance=true", f"report.importance_rows={UNCLICKED}"],
    )
    assert export_model(loaded, progress=SilentProgress()).metrics["importance"] == []
    assert "first 100 test rows are of one class" in (folder / "run.log").read_text()
