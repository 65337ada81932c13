"""Training by replicas in real processes: as in one process, and when workers are killed."""

import os
import signal
import time

import pandas as pd
import psutil
import pytest
from watched_run import WatchedRun

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.pipeline.job.replica_progress import load_progress
from ctr_pipeline.pipeline.job.replicas import load_members
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_ROWS = 20_000
NUM_TRAINING_ROWS = 16_000
PATIENCE_SECONDS = 300.0
LONG = 12
LONGER = 80
"""Epochs; a worker that is started again needs some to be back in time."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.txt"
    write_criteo_sample(path, num_rows=NUM_ROWS, seed=1, progress=SilentProgress())
    return path


def config_of(data, *, epochs, num_workers=0):
    runtime = {"mode": "local"}
    if num_workers:
        workers = {"min": 1, "max": num_workers}
        runtime = {"mode": "processes", "strategy": "allreduce", "workers": workers}
    return {
        "name": "replicas",
        "data": {
            "train": str(data),
            "format": "tsv",
            "columns": ["label", "I1..I13", "C1..C26"],
            "key_columns": ["C1"],
        },
        "features": [
            {"columns": "I1..I6", "number": ["log", "standardize"]},
            {"columns": "C1..C10", "id": {"vocabulary": {"min_count": 2}}},
        ],
        "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [16]},
        "train": {
            "epochs": epochs,
            "batch_size": 64,
            "early_stopping": None,
            "deterministic": True,
            "checkpoint_seconds": 1,
        },
        "export": {"parity_rows": 50},
        "runtime": runtime,
    }


def finish(run, *arguments):
    run.start("run", *arguments)
    assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)


def told(run):
    return load_progress(RunFolder(run.output))


def wait_until(run, holds):
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        assert not run.has_ended, run.tail(40)
        seen = told(run)
        if seen is not None and holds(seen):
            return seen
        time.sleep(0.02)
    raise AssertionError(run.tail(40))


def kill(run, index):
    pid = [one.pid for one in load_members(RunFolder(run.output)) if one.index == index][-1]
    assert psutil.Process(pid).is_running()
    os.kill(pid, signal.SIGKILL)


def test_one_worker_trains_the_bits_of_one_process(data, tmp_path):
    scores, histories = [], []
    for name, num_workers in (("alone", 0), ("worker", 1)):
        config = config_of(data, epochs=2, num_workers=num_workers)
        with WatchedRun(tmp_path / name, config) as run:
            finish(run)
        scores.append(pd.read_parquet(run.output / "predictions.parquet"))
        histories.append(
            [
                (row.train_logloss, row.valid_logloss)
                for row in load_history(run.output / "history.csv")
            ]
        )
    assert histories[0] == histories[1]
    pd.testing.assert_frame_equal(*scores, check_exact=True)


@pytest.mark.parametrize("index", [0, 1])
def test_the_others_go_on_when_a_worker_is_killed_and_it_comes_back(data, tmp_path, index):
    with WatchedRun(tmp_path, config_of(data, epochs=LONGER, num_workers=2)) as run:
        run.start("run")
        both = wait_until(run, lambda seen: seen.worlds[-1].size == 2 and seen.step > 100)
        kill(run, index)
        wait_until(run, lambda seen: len(seen.worlds) > len(both.worlds))
        assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)
    worlds = run.metrics()["training"]["worlds"]
    sizes = [world["size"] for world in worlds]
    place = len(both.worlds)
    assert sizes[place] == 1
    assert 2 in sizes[place + 1 :]
    assert all(world["steps_repeated"] <= 1 for world in worlds)
    assert worlds[place]["seconds"] <= 1.0
    history = load_history(run.output / "history.csv")
    assert [row.num_rows for row in history] == [NUM_TRAINING_ROWS] * LONGER


def test_a_run_whose_workers_all_stopped_is_resumed(data, tmp_path):
    with WatchedRun(tmp_path, config_of(data, epochs=LONG, num_workers=2)) as run:
        run.start("run")
        wait_until(run, lambda seen: seen.step > 100)
        run.send(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE_SECONDS) != 0
        stopped = told(run)
        finish(run, "--resume")
    worlds = run.metrics()["training"]["worlds"]
    assert 0 < worlds[-1]["step"] <= stopped.step + 100
    history = load_history(run.output / "history.csv")
    assert [row.num_rows for row in history] == [NUM_TRAINING_ROWS] * LONG
