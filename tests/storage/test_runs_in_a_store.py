"""Runs whose checkpoints lie in a real S3 server, killed and resumed without their folders."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from watched_run import WatchedRun

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import StorageError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.storage.commit_log import CommitReader
from ctr_pipeline.storage.commits import Manifest
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.history import load_history
from tests.e2e.both_modes import assert_same_epochs
from tests.pipeline.clicks import settings_of, write_clicks
from tests.storage.store_servers import SERVERS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 300.0
EPOCHS = 8
MODES = {
    "local": {"mode": "local"},
    "processes": {
        "mode": "processes",
        "parameter_servers": 2,
        "workers": {"min": 1, "max": 1},
        "partitions": 8,
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    write_clicks(path, 20_000)
    return path


def config_of(data, mode, address=None):
    return settings_of(
        data,
        "run",
        features=[
            {"columns": "I1..I6", "number": ["log", "standardize"]},
            {"columns": "C1..C8", "id": [{"vocabulary": {"min_count": 2}}]},
        ],
        train={
            "epochs": EPOCHS,
            "batch_size": 32,
            "deterministic": True,
            "checkpoint_seconds": 0.25,
            "early_stopping": None,
        },
        report={},
        runtime={**MODES[mode], "checkpoints": address},
    )


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """Epochs of one process, checkpoints on its disk."""
    with WatchedRun(tmp_path_factory.mktemp("undisturbed"), config_of(data, "local")) as run:
        finish(run, "train")
    return load_history(run.output / "history.csv")


def finish(run, *arguments):
    run.start(*arguments)
    assert run.wait(PATIENCE_SECONDS) == 0, run.tail(40)


def committed(store):
    """The commits in a store, oldest first."""
    return [one for one in CommitReader(store).manifests() if isinstance(one, Manifest)][::-1]


def kill_and_lose_the_folder(run, store):
    """Kills a run once some checkpoints are in the store, and deletes its folder."""
    run.start("run")
    run.wait_for("two checkpoints", lambda: len(committed(store)) >= 2, PATIENCE_SECONDS)
    os.kill(run.pid, signal.SIGKILL)
    run.wait(PATIENCE_SECONDS)
    run.kill_what_is_left()
    # Of the checkpoints nothing lies in it.
    assert not any((run.output / "checkpoints").iterdir())
    shutil.rmtree(run.output)


@pytest.mark.parametrize(
    ("mode", "server"),
    [
        ("local", "moto"),
        pytest.param("processes", "seaweedfs", marks=pytest.mark.nightly),
    ],
)
def test_a_killed_run_goes_on_from_the_store_alone(
    data, undisturbed, open_store, tmp_path, mode, server
):
    _, store = open_store(server)
    with WatchedRun(tmp_path, config_of(data, mode, store.address)) as run:
        kill_and_lose_the_folder(run, store)
        with pytest.raises(RuntimeError, match="holds the checkpoints of an earlier run"):
            run.call("run", str(run.config_path), timeout_seconds=120)
        finish(run, "run", "--resume")
        if mode == "local":
            assert "Resuming after step" in run.tail(1000)
        else:
            log = (run.output / "logs" / "master-0.log").read_text()
            assert "there is no ledger: the job goes on from checkpoint" in log
            assert run.final_view().state == "finished"
        assert not any((run.output / "checkpoints").iterdir())
        found = load_history(run.output / "history.csv")
        assert [one.epoch for one in found] == list(range(EPOCHS))
        assert_same_epochs(found, undisturbed, tolerance=1e-6 if mode == "local" else 1e-3)
        predict = run.folder / "scores.parquet"
        run.call(
            "predict", str(run.output), "--data", str(data), "--output", str(predict),
            timeout_seconds=PATIENCE_SECONDS,
        )  # fmt: skip
        assert predict.stat().st_size > 20_000
        metrics = json.loads(
            run.call("evaluate", str(run.output), "--json", timeout_seconds=PATIENCE_SECONDS)
        )
        assert np.isclose(run.metrics()["test"]["auc"], find_auc(metrics), atol=1e-6)


def find_auc(metrics):
    """The AUC in what `evaluate --json` prints."""
    if "auc" in metrics:
        return metrics["auc"]
    return find_auc(next(one for one in metrics.values() if isinstance(one, dict)))


@pytest.mark.nightly
def test_a_checkpoint_that_was_cut_short_in_the_store_is_passed_over(data, open_store, tmp_path):
    _, store = open_store("moto")
    with WatchedRun(tmp_path, config_of(data, "processes", store.address)) as run:
        kill_and_lose_the_folder(run, store)
        newest = committed(store)[-1]
        number = newest.state["number"]
        victim = newest.parts[-1].key
        store.write(victim, store.read(victim)[:-1])
        finish(run, "train", "--resume")
        log = (run.output / "logs" / "master-0.log").read_text()
        assert f"skipping a checkpoint: checkpoint {number}: {store.address}/{victim}" in log


def claim(address):
    settings = config_of("rows.tsv", "local", address)
    loaded = config_from_mapping(settings, [])
    RunFolder.of(loaded.config).claim(loaded, resume=False, overwrite=False)


def test_a_bucket_that_is_not_there_is_told_before_any_row_is_read(open_store):
    open_store("moto")
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/run: the bucket is not there"):
        claim("s3://no-such-bucket/run")


def test_credentials_that_are_refused_are_told_before_any_row_is_read(open_store, monkeypatch):
    _, store = open_store("seaweedfs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StorageError, match=r"the store refuses it .* Check the credentials"):
        claim(store.address)


@pytest.mark.parametrize("server", SERVERS)
def test_job_is_refused_when_another_began_in_the_same_place(open_store, server):
    _, store = open_store(server)
    cuts = CutStorage(store)
    cuts.begin("job-1")
    cuts.begin("job-1")
    with pytest.raises(StorageError, match="another job keeps its checkpoints here"):
        CutStorage(open_storage(store.address)).begin("job-2")
    assert cuts.job() == "job-1"
