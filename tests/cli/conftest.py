"""A pipeline that does nothing but remember how it was called."""

import os
from pathlib import Path

import pytest

from ctr_pipeline.apps.tune.proposals import TrialRecord
from ctr_pipeline.apps.tune.search import TuneResult
from ctr_pipeline.pipeline.results import CheckResult, PredictResult, RunResult
from ctr_pipeline.reporting.data import PlanRow
from ctr_pipeline.specs.columns import ColumnType


class FakePipeline:
    """Stands in for what the pipeline and the applications do."""

    def __init__(self):
        self.calls = []
        self.error = None
        self.result = RunResult(
            folder=Path("runs/x"),
            metrics={
                "test": {"auc": 0.75, "logloss": 0.45, "calibration": 1.01, "gauc": float("nan")}
            },
            timings_seconds={"statistics": 1.5, "training": 75.0},
            paths={"report": Path("runs/x/report.html"), "export": Path("runs/x/export")},
            num_rows={"train": 8000, "test": 1000},
        )
        self.plan = CheckResult(
            rows=(
                PlanRow("I1", ColumnType.NUMBER, number="log > standardize", statistics=("mean",)),
                PlanRow(
                    "C1",
                    ColumnType.TEXT,
                    id="vocabulary",
                    statistics=("counts",),
                    num_ids=1234,
                    dimension=9,
                    max_bytes=98_720,
                    reason="config",
                ),
            ),
            left_out=(("C2", "one value only"),),
            exact=False,
            num_fields=1,
            num_numbers=1,
            max_embedding_bytes=98_720,
        )

    def _answer(self, name, result, loaded, **keywords):
        self.calls.append((name, loaded.config, keywords))
        if self.error is not None:
            raise self.error
        with keywords["progress"].task(name, total=10) as task:
            task.advance(10)
        return result

    def run_pipeline(self, loaded, **keywords):
        return self._answer("run", self.result, loaded, **keywords)

    def train(self, loaded, **keywords):
        return self._answer("train", self.result, loaded, **keywords)

    def prepare_job(self, loaded, **keywords):
        return self._answer("prepare_job", self.result, loaded, **keywords)

    def tune(self, loaded, **keywords):
        found = [("complete", 0.45), ("complete", 0.44), ("pruned", 0.5)]
        trials = tuple(
            TrialRecord(
                number=number,
                values={"model.dropout": number * 0.0002, "model.hidden_units": [32, 16]},
                state=state,
                value=value,
                best_epoch=1,
                epochs=(value,),
            )
            for number, (state, value) in enumerate(found)
        )
        paths = {"best config": Path("runs/x/config.best.yaml")}
        result = TuneResult(Path("runs/x"), "logloss", trials, trials[1], paths)
        return self._answer("tune", result, loaded, **keywords)

    def export_model(self, loaded, **keywords):
        return self._answer("export", self.result, loaded, **keywords)

    def check_config(self, loaded, **keywords):
        return self._answer("check", self.plan, loaded, **keywords)

    def evaluate(self, loaded, **keywords):
        return self._answer(
            "evaluate", {"num_rows": 9, **self.result.metrics["test"]}, loaded, **keywords
        )

    def predict(self, loaded, **keywords):
        result = PredictResult(keywords["output"], 9, 1, 0.25, 0.5)
        return self._answer("predict", result, loaded, **keywords)

    def analyze(self, loaded, **keywords):
        from ctr_pipeline.statistics import ColumnStatistics, Moments, Statistics

        moments = Moments(count=8, mean=1.5, standard_deviation=1.0, minimum=0.0, maximum=3.0)
        column = ColumnStatistics(
            column="I1",
            column_type="number",
            count=10,
            num_missing=2,
            num_distinct=4,
            moments=moments,
        )
        statistics = Statistics(
            fingerprint="f", num_rows=10, label_rate=0.3, columns={"I1": column}, notes=("a note",)
        )
        return self._answer("analyze", statistics, loaded, **keywords)


COMMANDS = {
    "analyze": "pipeline.run",
    "check_config": "apps.check",
    "evaluate": "apps.scoring.evaluate",
    "export_model": "pipeline.run",
    "predict": "apps.scoring.predict",
    "prepare_job": "pipeline.run",
    "run_pipeline": "pipeline.run",
    "train": "pipeline.run",
    "tune": "apps.tune.search",
}


@pytest.fixture
def pipeline(monkeypatch):
    fake = FakePipeline()
    for name, module in COMMANDS.items():
        monkeypatch.setattr(f"ctr_pipeline.{module}.{name}", getattr(fake, name))
    return fake


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_text("data:\n  train: rows.csv\noutput: runs/x\n")
    return Path("c.yaml")


@pytest.fixture(autouse=True)
def unchanged_environment():
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
