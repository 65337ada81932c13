"""Real processes, stopped at bad moments; what they left must lead to the same end."""

import functools
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
import yaml

from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.checkpoint import Checkpoints
from tests.pipeline.clicks import settings_of, write_clicks

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_ROWS = 20_000
DEADLINE_SECONDS = 240
FEATURES = [
    {"columns": "I1..I6", "number": ["log", "standardize"]},
    {"columns": "C1..C8", "id": [{"vocabulary": {"min_count": 2}}]},
]
TRAIN = {
    "epochs": 4,
    "batch_size": 32,
    "deterministic": True,
    "checkpoint_seconds": 0.05,
    "early_stopping": None,
}


class World:
    """One data file, one config file a run folder, and the processes on them."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder / "rows.tsv"
        write_clicks(self.data, NUM_ROWS)
        self.processes = []

    def config(self, name, **train):
        path = self.folder / f"{name}.yaml"
        settings = settings_of(
            self.data,
            self.folder / name,
            features=FEATURES,
            train=TRAIN | train,
            report={},
        )
        path.write_text(yaml.safe_dump(settings))
        return path

    def start(self, config, *options, command="train"):
        process = subprocess.Popen(
            [sys.executable, "-m", "ctr_pipeline", command, str(config), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def finish(self, config, *options, command="train"):
        """Runs to the end: exit code, stdout, stderr."""
        process = self.start(config, *options, command=command)
        stdout, stderr = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, stdout, stderr

    def stop_when(self, condition, config, number, *options, command="train"):
        """Starts a run and signals it once the condition holds: exit code and stderr."""
        process = self.start(config, *options, command=command)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert process.poll() is None, f"ended before: {process.stderr.read()}"
            assert time.monotonic() < deadline, "the moment did not come"
            time.sleep(0.005)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, stderr

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("kill"))
    yield world
    world.end()


@functools.cache
def metrics_of(folder):
    """Of the trained model, whose predictions of the test rows are written by the way."""
    loaded = load_config(folder.with_suffix(".yaml"), [])
    return evaluate(loaded, progress=SilentProgress())


@pytest.fixture(scope="module")
def undisturbed(world):
    code, _, stderr = world.finish(world.config("undisturbed"))
    assert code == 0, stderr
    return world.folder / "undisturbed"


def assert_same_end(folder, undisturbed):
    found, expected = metrics_of(folder), metrics_of(undisturbed)
    for name, value in expected.items():
        is_number = isinstance(value, int | float)
        assert found[name] == (pytest.approx(value, abs=1e-6) if is_number else value), name
    predictions, others = (
        pd.read_parquet(path / "predictions.parquet") for path in (folder, undisturbed)
    )
    assert predictions["probability"].to_numpy() == pytest.approx(
        others["probability"].to_numpy(), abs=1e-6
    )
    history, other_history = (
        pd.read_csv(path / "history.csv").drop(columns="seconds") for path in (folder, undisturbed)
    )
    pd.testing.assert_frame_equal(history, other_history, atol=1e-6)


def newest_step(folder):
    return max(Checkpoints(RunFolder(folder).checkpoint_storage).steps(), default=0)


STEPS_AN_EPOCH = NUM_ROWS * 8 // 10 // 32

MOMENTS = {
    "ingest": lambda folder: (folder / "cache" / "ingested").exists(),
    "encoding": lambda folder: (folder / "cache" / "encoded").exists(),
    "export": lambda folder: (folder / "export").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed_ends_as_undisturbed(world, undisturbed, moment):
    name = f"killed-{moment}"
    folder, config = world.folder / name, world.config(name)
    command = "run" if moment == "export" else "train"
    code, _ = world.stop_when(
        lambda: MOMENTS[moment](folder), config, signal.SIGKILL, command=command
    )
    assert code == -signal.SIGKILL
    assert not (folder / "metrics.json").exists()
    assert not (folder / "export" / "1").exists()
    code, _, stderr = world.finish(config, "--resume", command=command)
    assert code == 0, stderr
    assert_same_end(folder, undisturbed)
    assert not list(folder.rglob("*.tmp"))


def test_killed_in_the_first_epoch_and_in_the_third(world, undisturbed):
    folder, config = world.folder / "twice", world.config("twice")
    for steps in (20, 2 * STEPS_AN_EPOCH + 20):
        options = () if steps == 20 else ("--resume",)
        code, _ = world.stop_when(
            lambda steps=steps: newest_step(folder) > steps, config, signal.SIGKILL, *options
        )
        assert code == -signal.SIGKILL
    code, _, stderr = world.finish(config, "--resume")
    assert code == 0, stderr
    assert "Resuming after step" in stderr
    assert_same_end(folder, undisturbed)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGTERM, 143, "SIGTERM"),
        pytest.param(signal.SIGINT, 130, "Ctrl-C", marks=pytest.mark.nightly),
    ],
)
def test_asked_to_stop_leaves_a_checkpoint_and_goes_on(world, undisturbed, number, code, word):
    name = f"asked-{word}"
    # No checkpoint but those of the ends of epochs and the one that the signal makes.
    folder, config = world.folder / name, world.config(name, checkpoint_seconds=1e6)
    found, stderr = world.stop_when(lambda: newest_step(folder) >= STEPS_AN_EPOCH, config, number)
    assert found == code
    assert f"stopped by {word}" in stderr
    assert f"ctrpipe train {config} --resume" in stderr
    assert "Traceback" not in stderr
    # The same step if the signal came before the first batch of the second epoch.
    assert newest_step(folder) >= STEPS_AN_EPOCH
    assert not (folder / "metrics.json").exists()
    assert world.finish(config, "--resume")[0] == 0
    assert_same_end(folder, undisturbed)


def test_second_run_in_the_same_folder_is_refused(world):
    folder, config = world.folder / "shared", world.config("shared")
    first = world.start(config)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while newest_step(folder) == 0:
        assert first.poll() is None, first.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # It does not end before the second one looks.
    first.send_signal(signal.SIGSTOP)
    code, _, stderr = world.finish(config)
    first.send_signal(signal.SIGCONT)
    assert code == 1
    assert f"another run (process {first.pid}) uses this folder" in stderr
    assert "Traceback" not in stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=DEADLINE_SECONDS)
    assert first.returncode == 143
    # The lock went with its owner; the refused run has changed nothing.
    assert world.finish(config, "--resume")[0] == 0


def test_damaged_newest_checkpoint_falls_back_and_says_so(world, undisturbed):
    folder, config = world.folder / "damaged", world.config("damaged")
    world.stop_when(lambda: newest_step(folder) > STEPS_AN_EPOCH + 20, config, signal.SIGTERM)
    newest = max((folder / "checkpoints" / "parts").glob("*-rows.bin"))
    os.truncate(newest, newest.stat().st_size // 2)
    code, _, stderr = world.finish(config, "--resume")
    assert code == 0, stderr
    assert "Skipping a checkpoint" in stderr
    assert newest.name in stderr
    assert_same_end(folder, undisturbed)


def test_resuming_with_another_model_is_refused_and_names_the_key(world):
    folder, config = world.folder / "changed", world.config("changed")
    world.stop_when(lambda: newest_step(folder) > 0, config, signal.SIGTERM)
    before = sorted((folder / "checkpoints").rglob("*"))
    code, _, stderr = world.finish(config, "--resume", "--set", "model.embedding_dim=8")
    assert code == 1
    assert "cannot be resumed: model.embedding_dim differ" in stderr
    assert "Traceback" not in stderr
    assert sorted((folder / "checkpoints").rglob("*")) == before


def test_resuming_with_more_epochs_is_allowed(world, undisturbed):
    config = world.config("shorter", epochs=2)
    assert world.finish(config, command="train")[0] == 0
    code, _, stderr = world.finish(config, "--resume", "--set", "train.epochs=4")
    assert code == 0, stderr
    assert_same_end(world.folder / "shorter", undisturbed)
