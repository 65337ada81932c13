"""Rows on several servers go by age, and lie beyond a memory limit, as they do in one process."""

import json

import pytest
from watched_run import WatchedRun

from ctr_pipeline.training.history import load_history
from tests.pipeline.days import EMBEDDINGS, settings_of, write_day

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

MEMBERS = {
    "mode": "processes",
    "workers": {"min": 1, "max": 1},
    "parameter_servers": 2,
    "partitions": 7,
}
PAGE_GB = 5e-6


def run(folder, data, embeddings, runtime):
    """Runs the pipeline in a folder of its own; returns its history and what it says of rows."""
    folder.mkdir()
    train = {"embeddings": {**EMBEDDINGS["embeddings"], **embeddings}}
    config = settings_of(data, folder / "unused", epochs=2, deterministic=True, **train)
    config["runtime"] = runtime
    with WatchedRun(folder, config) as watched:
        watched.start("run")
        assert watched.wait(400) == 0, watched.tail(40)
        history = load_history(watched.output / "history.csv")
        metrics = json.loads((watched.output / "metrics.json").read_text())
        return [(one.epoch, one.step, one.valid_logloss) for one in history], metrics["training"]


def test_servers_lose_and_spill_the_rows_that_one_process_does(tmp_path):
    data = write_day(tmp_path / "day.csv", 1500, seed=1)
    limits = {"evict_after": 2, "memory_limit_gb": PAGE_GB}
    local = {"mode": "local"}
    kept, of_all = run(tmp_path / "all", data, {}, local)
    expected, of_one = run(tmp_path / "one", data, limits, local)
    found, of_job = run(tmp_path / "job", data, limits, MEMBERS)

    assert of_job["embedding_rows"] == of_one["embedding_rows"] < of_all["embedding_rows"] - 20
    for one, other in zip(found, expected, strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], abs=1e-5)
    assert expected != kept
    # Each of two servers has a page in memory.
    assert of_one["embedding_spilled_bytes"] > 4096
    spilled = of_one["embedding_spilled_bytes"] - of_job["embedding_spilled_bytes"]
    assert spilled == 4096
