"""Training by replicas in real processes: as in one process, and when workers are killed."""

import json
import os
import signal
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from job_watch import CommandError
from watched_run import WatchedRun, wait_until_gone

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.pipeline.job.replica_progress import load_progress
from ctr_pipeline.pipeline.job.replicas import load_members
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.history import load_history

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_ROWS = 20_000
NUM_TRAINING_ROWS = 16_000
PATIENCE_SECONDS = 300.0
MANY = 10_000
"""Epochs: the run is stopped before them."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.txt"
    write_criteo_sample(path, num_rows=NUM_ROWS, seed=1, progress=SilentProgress())
    return path


def config_of(data, *, epochs, num_workers=0, num_servers=0):
    runtime = {"mode": "local"}
    if num_workers:
        workers = {"min": 1, "max": num_workers}
        runtime = {"mode": "processes", "strategy": "allreduce", "workers": workers}
    if num_servers:
        runtime |= {"embeddings": "hybrid", "parameter_servers": num_servers, "tls": "always"}
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


def finish(run, command="run", *arguments):
    run.start(command, *arguments)
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


def newest_of(run, index):
    """The newest process of a worker."""
    return [one for one in load_members(RunFolder(run.output)) if one.index == index][-1]


def kill(run, index):
    run.send(newest_of(run, index).pid, signal.SIGKILL)


def test_one_worker_trains_the_bits_of_one_process(data, tmp_path):
    scores, histories = [], []
    for name, num_workers, num_servers in (("alone", 0, 0), ("worker", 1, 0), ("servers", 1, 2)):
        config = config_of(data, epochs=2, num_workers=num_workers, num_servers=num_servers)
        with WatchedRun(tmp_path / name, config) as run:
            finish(run)
        scores.append(pd.read_parquet(run.output / "predictions.parquet"))
        histories.append(
            [
                (row.train_logloss, row.valid_logloss)
                for row in load_history(run.output / "history.csv")
            ]
        )
    assert histories[0] == histories[1] == histories[2]
    for other in scores[1:]:
        pd.testing.assert_frame_equal(scores[0], other, check_exact=True)


@pytest.mark.nightly
def test_two_workers_with_rows_on_servers_train_what_one_process_does_with_the_doubled_batch(
    data, tmp_path
):
    scores = []
    for name, num_workers, num_servers in (("alone", 0, 0), ("servers", 2, 2)):
        config = config_of(data, epochs=2, num_workers=num_workers, num_servers=num_servers)
        # Units are dropped by the number of a batch.
        config["model"]["dropout"] = 0.0
        config["train"] |= {"shuffle": False, "batch_size": 64 if num_workers else 128}
        if num_workers:
            config["runtime"]["workers"] = {"min": 2, "max": 2}
        with WatchedRun(tmp_path / name, config) as run:
            finish(run)
        scores.append(pd.read_parquet(run.output / "predictions.parquet"))
    pd.testing.assert_frame_equal(*scores, rtol=0, atol=1e-6)


def pids(run):
    members = load_members(RunFolder(run.output))
    return {one.index: one.pid for one in members if psutil.pid_exists(one.pid)}


def test_workers_come_and_go_while_the_others_train(data, tmp_path):
    """Killed, stopped for a moment and for long, taken away, added, cut off: one run goes on."""
    cut = tmp_path / "cut"
    here = Path(__file__).parent
    paths = (here / "behind_proxies", here.parents[1])
    environment = {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
        "CUT_REPLICAS": str(cut),
    }
    config = config_of(data, epochs=MANY, num_workers=2)
    with WatchedRun(tmp_path, config, environment=environment) as run:
        run.start("train")

        def wait_for_both(num_worlds=0):
            return wait_until(
                run,
                lambda seen: len(seen.worlds) > num_worlds and seen.worlds[-1].size == 2,
            )

        def wait_until_alone(both):
            num_worlds = len(both.worlds)
            # Both may be together again when it looks.
            wait_until(run, lambda seen: any(one.size == 1 for one in seen.worlds[num_worlds:]))
            return num_worlds

        both = wait_until(run, lambda seen: seen.worlds[-1].size == 2 and seen.step > 100)
        for index in (1, 0):
            kill(run, index)
            both = wait_for_both(wait_until_alone(both))
        for index in (0, 1):
            stopped = pids(run)[index]
            os.kill(stopped, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(stopped, signal.SIGCONT)
            before = told(run).step
            still = wait_until(run, lambda seen, before=before: seen.step > before + 100)
            assert len(still.worlds) == len(both.worlds)
            os.kill(stopped, signal.SIGSTOP)
            alone = wait_until_alone(both)
            run.send(stopped, signal.SIGCONT)
            both = wait_for_both(alone)
        with pytest.raises(CommandError, match=r"runtime\.workers allows 1 to 2"):
            run.call("scale", str(run.output), "--workers", "3")
        assert "1 worker is wanted" in run.call("scale", str(run.output), "--workers", "1")
        alone = wait_until_alone(both)
        run.call("scale", str(run.output), "--workers", "2")
        both = wait_for_both(alone)
        # The younger one reaches the older one, but not the other way round.
        cut.write_text(newest_of(run, 1).address)
        both = wait_for_both(wait_until_alone(both))
        assert (
            "Worker 1 and worker 0 cannot reach each other: worker 1 is started again, and the "
            "others go on"
        ) in run.log.read_text()
        run.send(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE_SECONDS) == 143, run.tail(40)
    worlds = both.worlds
    assert [world.size for world in worlds][-13:] == [2, 1] * 6 + [2]
    assert all(world.steps_repeated <= 1 for world in worlds)
    history = load_history(run.output / "history.csv")
    assert len(history) > 1
    assert {row.num_rows for row in history} == {NUM_TRAINING_ROWS}


def test_a_run_goes_on_from_its_checkpoints_whoever_was_killed(data, tmp_path):
    """All workers at once; then the process that started them; at last the user stops it."""
    with WatchedRun(tmp_path, config_of(data, epochs=MANY, num_workers=2)) as run:

        def wait_for_epoch():
            # Steps after a checkpoint of the epoch before.
            begun = told(run)
            done = len(begun.history) if begun else 0
            return wait_until(
                run, lambda seen: len(seen.history) > done and seen.worlds[-1].size == 2
            )

        run.start("train")
        seen = wait_for_epoch()
        killed = pids(run)
        assert len(killed) == 2
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)
        back = wait_until(run, lambda later: later.worlds[-1].version > seen.worlds[-1].version)
        assert back.worlds[-1].step >= seen.history[-1].step
        seen = wait_for_epoch()

        workers = pids(run)
        run.send(run.pid, signal.SIGKILL)
        assert run.wait(PATIENCE_SECONDS) != 0
        # They do not outlive what started them.
        assert wait_until_gone(list(workers.values()), PATIENCE_SECONDS)
        run.start("train", "--resume")
        # There may be fewer worlds: the last checkpoint does not know those after it.
        back = wait_until(run, lambda later: later.worlds[-1].version > seen.worlds[-1].version)
        assert back.worlds[-1].step >= seen.history[-1].step
        wait_for_epoch()

        run.send(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE_SECONDS) == 143
        stopped, newest = told(run), newest_checkpoint(run)
        epochs = len(newest.state["history"]) + 2
        finish(run, "train", "--resume", "--set", f"train.epochs={epochs}")
    known = len(newest.state["worlds"])
    assert stopped.step <= newest.step == told(run).worlds[known].step
    history = load_history(run.output / "history.csv")
    assert [row.num_rows for row in history] == [NUM_TRAINING_ROWS] * epochs


def newest_checkpoint(run):
    return Checkpoints(RunFolder(run.output).checkpoint_storage).load_newest(print)


def status_of(run):
    """What `ctrpipe status` says."""
    return json.loads(run.call("status", str(run.output), "--json"))


def members_told(run):
    """What it says of each member."""
    return {one["name"]: one for one in status_of(run)["members"]}


def test_rows_on_servers_outlive_workers_and_go_back_with_a_server_that_hangs(data, tmp_path):
    config = config_of(data, epochs=MANY, num_workers=2, num_servers=2)
    with WatchedRun(tmp_path, config) as run:
        run.start("train")
        both = wait_until(run, lambda seen: seen.worlds[-1].size == 2 and seen.step > 100)
        kill(run, 0)
        num_worlds = len(both.worlds)
        back = wait_until(
            run, lambda seen: len(seen.worlds) > num_worlds + 1 and seen.worlds[-1].size == 2
        )
        alone = back.worlds[num_worlds]
        assert (alone.size, alone.steps_repeated <= 1) == (1, True)

        begun = back.worlds[-1].step
        wait_until(run, lambda seen: seen.step > begun + 100 and seen.history)

        # Members report once a second, and that is told once a second.
        def all_have_reported():
            found = members_told(run)
            return (
                sorted(found) == ["ps-0", "ps-1", "worker-0", "worker-1"]
                and {one["state"] for one in found.values()} == {"running"}
                and all(found[f"ps-{index}"]["stats"]["rows_held"] > 0 for index in range(2))
            )

        wait_until(run, lambda _: all_have_reported())
        before = members_told(run)
        assert before["worker-0"]["restarts"] == 1
        assert all(one["stats"]["rss_bytes"] > 0 for one in before.values())
        os.kill(before["ps-1"]["pid"], signal.SIGSTOP)
        num_worlds = len(back.worlds)
        again = wait_until(run, lambda seen: len(seen.worlds) > num_worlds).worlds[num_worlds]
        assert again.step > 0
        seen = wait_until(run, lambda seen: seen.step > again.step + again.steps_repeated)
        hung = "arameter server 1 was not heard for 5 s"
        what = f"P{hung}: parameter server 1 is started again, and all go back to"
        assert what in run.log.read_text()

        def is_another():
            found = members_told(run)["ps-1"]
            return found["state"] == "running" and found["pid"] != before["ps-1"]["pid"]

        wait_until(run, lambda _: is_another())
        after = members_told(run)["ps-1"]
        assert after["restarts"] == 1
        assert after["last_end"]["why"] == f"p{hung}"
        shown = run.call("status", str(run.output))
        assert all(name in shown for name in (*before, "rows held", "Last events"))
        assert f"p{hung}" in [event["what"] for event in status_of(run)["events"]]
        wait_until(run, lambda later: len(later.history) > len(seen.history))
        run.send(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE_SECONDS) == 143, run.tail(40)
    # The first worker has saved the step at which it was stopped.
    assert newest_checkpoint(run).step >= told(run).step
    history = load_history(run.output / "history.csv")
    assert {row.num_rows for row in history} == {NUM_TRAINING_ROWS}
    steps = [row.step for row in history]
    assert steps == sorted(set(steps))
