"""A run goes on in another mode than it was begun in, and ends as one that nobody disturbed."""

import itertools
import signal

import pandas as pd
import pytest
import yaml
from watched_run import WatchedRun

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history
from tests.e2e.both_modes import MEMBERS, assert_same_epochs, config_of

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 300.0
EPOCHS = 3
RUNTIMES = {
    "local": {"mode": "local"},
    "job": {"mode": "processes", **MEMBERS},
    "replicas": {
        "mode": "processes",
        "strategy": "allreduce",
        "workers": {"min": 1, "max": 1},
    },
}
PAIRS = list(itertools.permutations(RUNTIMES, 2))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.txt"
    write_criteo_sample(path, num_rows=20_000, seed=1, progress=SilentProgress())
    return path


def configured(data, mode, epochs=EPOCHS):
    features = [
        {"columns": "I1..I6", "number": ["log", "standardize"]},
        {"columns": "C1..C10", "id": {"vocabulary": {"min_count": 2}}},
    ]
    config = config_of(data, features, "local")
    config["data"] = {
        "train": str(data),
        "format": "tsv",
        "columns": ["label", "I1..I13", "C1..C26"],
        "key_columns": ["C1"],
    }
    config["train"]["epochs"] = epochs
    return config | {"runtime": RUNTIMES[mode]}


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """History and predictions of one process."""
    with WatchedRun(tmp_path_factory.mktemp("undisturbed"), configured(data, "local")) as run:
        finish(run, "run")
        return results_of(run)


def finish(run, *arguments):
    run.start(*arguments)
    assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)


def results_of(run):
    history = load_history(run.output / "history.csv")
    return history, pd.read_parquet(run.output / "predictions.parquet")


def go_on(run, data, mode, undisturbed):
    run.config_path.write_text(yaml.safe_dump(configured(data, mode) | {"output": str(run.output)}))
    finish(run, "run", "--resume")
    assert run.metrics()["training"]["epochs"] == EPOCHS
    history, predictions = results_of(run)
    assert_same_epochs(history, undisturbed[0])
    pd.testing.assert_frame_equal(predictions, undisturbed[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_run_continues_in_another_mode_after_an_epoch(data, undisturbed, tmp_path, first, second):
    with WatchedRun(tmp_path, configured(data, first, epochs=1)) as run:
        finish(run, "train")
        go_on(run, data, second, undisturbed)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_run_continues_in_another_mode_in_the_middle_of_an_epoch(
    data, undisturbed, tmp_path, first, second
):
    with WatchedRun(tmp_path, configured(data, first)) as run:
        run.start("train")
        run.wait_for("an epoch", (run.output / "history.csv").exists, PATIENCE_SECONDS)
        run.send(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM, run.tail(40)
        assert len(load_history(run.output / "history.csv")) < EPOCHS
        go_on(run, data, second, undisturbed)


def test_run_continues_after_a_switch_of_modes_there_and_back_again(data, undisturbed, tmp_path):
    with WatchedRun(tmp_path, configured(data, "job", epochs=1)) as run:
        finish(run, "train")
        for epochs, mode in ((2, "local"), (2, "job")):
            config = configured(data, mode, epochs) | {"output": str(run.output)}
            run.config_path.write_text(yaml.safe_dump(config))
            finish(run, "train", "--resume")
        go_on(run, data, "replicas", undisturbed)
