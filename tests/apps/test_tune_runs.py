"""Whole searches with real trainings: the test rows, kills, locks, the best config."""

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml

from ctr_pipeline.apps.tune.search import tune
from ctr_pipeline.config import load_config
from ctr_pipeline.pipeline.run import run_pipeline
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history
from tests.pipeline.clicks import settings_of, write_clicks

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_ROWS = 900
DEADLINE_SECONDS = 400
FEATURES = [
    {"columns": "I1..I3", "number": ["log", "standardize"]},
    {"columns": "C1..C4", "id": [{"vocabulary": {"min_count": 2}}]},
]
TUNE = {
    "trials": 4,
    "startup_trials": 1,
    "seed": 1,
    "space": {
        "train.optimizer.learning_rate": {"low": 1e-4, "high": 0.3, "log": True},
        "model.dropout": {"low": 0.0, "high": 0.5},
        "model.hidden_units": {"choices": [[16], [8, 8]]},
    },
}


class World:
    """Rows to train and to test on, in two files, and configs that name them."""

    def __init__(self, folder):
        self.folder = folder
        rows = folder / "rows.tsv"
        write_clicks(rows, NUM_ROWS)
        lines = rows.read_text().splitlines()
        self.train, self.test = folder / "train.tsv", folder / "test.tsv"
        self.train.write_text("\n".join(lines[:800]) + "\n")
        self.test.write_text("\n".join(lines[800:]) + "\n")

    def config(self, name, *, test=None):
        settings = settings_of(
            self.train,
            self.folder / name,
            features=FEATURES,
            train={"epochs": 2, "batch_size": 64, "deterministic": True},
            report={},
            tune=TUNE,
        )
        settings["data"]["test"] = str(test or self.test)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def search(self, name, *, test=None, **options):
        loaded = load_config(self.config(name, test=test))
        return tune(loaded, progress=SilentProgress(), **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("tune"))


@pytest.fixture(scope="module")
def undisturbed(world):
    return world.search("undisturbed")


def achieved(records):
    """What trials gave, without their clock."""
    return [record.model_copy(update={"seconds": 0.0}) for record in records]


def test_trials_are_runs_and_some_are_stopped(undisturbed):
    assert len(undisturbed.trials) == 4
    assert {one.state for one in undisturbed.trials} == {"complete", "pruned"}
    for one in undisturbed.trials:
        folder = undisturbed.folder / "trials" / f"{one.number:03d}"
        history = load_history(folder / "history.csv")
        assert [record.valid_logloss for record in history] == pytest.approx(
            list(one.epochs), abs=1e-6
        )
        assert (folder / "tensorboard").is_dir()


def test_test_rows_change_nothing(world, undisturbed):
    flipped = world.folder / "flipped.tsv"
    lines = [line.split("\t", 1) for line in world.test.read_text().splitlines()]
    flipped.write_text("".join(f"{1 - int(label)}\t{rest}\n" for label, rest in lines))
    result = world.search("flipped", test=flipped)
    assert achieved(result.trials) == achieved(undisturbed.trials)
    assert result.best.number == undisturbed.best.number


def test_the_best_config_runs_in_the_same_folder_and_gives_the_same(undisturbed):
    encoded = undisturbed.folder / "cache" / "encoded" / "train" / "rows.bin"
    before = encoded.stat().st_mtime_ns
    loaded = load_config(undisturbed.paths["best config"])
    result = run_pipeline(loaded, progress=SilentProgress())
    assert encoded.stat().st_mtime_ns == before
    assert result.metrics["valid"]["logloss"] == pytest.approx(undisturbed.best.value, abs=1e-6)
    assert 0 < result.metrics["test"]["logloss"] < 1
    assert (undisturbed.folder / "trials.csv").exists()


def start(config, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "ctr_pipeline", "tune", str(config), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_search_loses_one_trial_and_goes_on(world, undisturbed):
    config = world.config("killed")
    trials = world.folder / "killed" / "trials"
    process = start(config)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        # The moment: trial 2 has begun.
        while not (trials / "002").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "the moment did not come"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    left = sorted(path.parent.name for path in trials.glob("*/trial.json"))
    assert left[:2] == ["000", "001"]
    assert len(left) < 4, "the search had ended before it was killed"

    process = start(config, "--resume", "--json")
    stdout, stderr = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, stderr
    assert f"Resuming after {len(left)} trials" in stderr
    payload = json.loads(stdout)
    assert [one["values"] for one in payload["trials"]] == [
        one.values for one in undisturbed.trials
    ]
    assert [one["epochs"] for one in payload["trials"]] == [
        list(one.epochs) for one in undisturbed.trials
    ]
    assert payload["best"]["number"] == undisturbed.best.number
