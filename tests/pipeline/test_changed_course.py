"""A training that is resumed with other learning rates, clipping or lengths of its course."""

import shutil

import pytest

from ctr_pipeline import run
from ctr_pipeline.errors import RunFolderError, TrainingError
from ctr_pipeline.pipeline.run_folder import RunFolder
from tests.pipeline.clicks import settings_of, write_clicks

RATE = "train.optimizer.learning_rate"
PATIENCE = "train.early_stopping.patience"
PROCESSES = {"mode": "processes", "workers": {"min": 1, "max": 1}, "parameter_servers": 1}
REPLICAS = {**PROCESSES, "strategy": "allreduce"}
del REPLICAS["parameter_servers"]


@pytest.fixture
def train(tmp_path):
    data = tmp_path / "rows.tsv"
    write_clicks(data, 4_000)

    def run_with(*overrides, runtime=None, **options):
        settings = settings_of(
            data,
            tmp_path / "run",
            features=[{"columns": "C1..C4", "id": [{"hash": {"buckets": 50}}]}],
            train={"epochs": 1, "batch_size": 256, "early_stopping": {"patience": 9}},
            runtime=runtime or {},
            report={"importance": False},
        )
        return run(settings, overrides=overrides, **options)

    run_with.folder = tmp_path / "run"
    return run_with


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param({}, id="one process"),
        pytest.param(PROCESSES, id="processes", marks=pytest.mark.e2e),
        pytest.param(REPLICAS, id="replicas", marks=pytest.mark.e2e),
    ],
)
def test_a_diverged_training_goes_on_as_its_error_advises(train, runtime):
    """Another rate, and more epochs: the report says from which step on."""
    train(runtime=runtime)
    kept = RunFolder(train.folder).config.read_bytes()
    with pytest.raises(RunFolderError, match=rf"{RATE} would change nothing") as refused:
        train(f"{RATE}=1e30", runtime=runtime, resume=True)
    assert "all 1 epochs are done" in str(refused.value)
    assert RunFolder(train.folder).config.read_bytes() == kept
    # As it advises.
    with pytest.raises(TrainingError, match="loss") as diverged:
        train("train.epochs=2", f"{RATE}=1e30", runtime=runtime, resume=True)
    for advised in (RATE, "train.gradient_clip_norm", "--resume"):
        assert advised in str(diverged.value)
    result = train(
        "train.epochs=2",
        f"{RATE}=0.002",
        "train.gradient_clip_norm=1.0",
        f"{PATIENCE}=8",
        runtime=runtime,
        resume=True,
    )
    changes = result.metrics["training"]["changes"]
    step = changes[0]["step"]
    assert step == 13
    assert {(one["key"], one["before"], one["after"], one["step"]) for one in changes} == {
        ("train.epochs", 1, 2, step),
        (RATE, 0.001, 1e30, step),
        (RATE, 1e30, 0.002, step),
        ("train.gradient_clip_norm", None, 1.0, step),
        (PATIENCE, 9, 8, step),
    }
    assert result.metrics["training"]["epochs"] == 2
    report = (train.folder / "report.html").read_text("utf-8")
    assert f"From step 14 on, {RATE} is 0.002 (1e+30 before)." in report


@pytest.mark.slow
def test_the_next_models_of_an_ensemble_are_trained_otherwise(train):
    train("train.ensemble=2")
    with pytest.raises(RunFolderError, match="would change nothing"):
        train("train.ensemble=2", f"{RATE}=0.01", resume=True)
    shutil.rmtree(train.folder / "members" / "1")
    result = train("train.ensemble=2", f"{RATE}=0.01", resume=True)
    (change,) = result.metrics["training"]["changes"]
    assert (change["step"], change["model"], change["after"]) == (13, 1, 0.01)
