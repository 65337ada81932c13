"""The driver of a job on Kubernetes trains with members that are killed; the pods are processes."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from watched_run import command_of

from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.pipeline.job.replica_progress import load_progress
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.training.history import load_history

# `make cluster-test` has the same with real pods; this is for a machine without the rights for it.
pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[2]
DRIVER = "tests.distributed.launchers.driver_here"
CONFIG = """
data:
  train: rows.tsv
  format: tsv
  columns: [label, I1..I13, C1..C26]
  label: label
model: {name: deepfm, embedding_dim: 4, hidden_units: [16]}
train: {epochs: 30, batch_size: 64, checkpoint_seconds: 2, early_stopping: null}
runtime:
  mode: kubernetes
  workers: {min: 1, max: 2}
output: run
"""


@pytest.fixture
def folder(tmp_path):
    rows = tmp_path / "rows.tsv"
    assert main(["sample", "criteo", "--rows", "6000", "--seed", "1", "--output", str(rows)]) == 0
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "secrets" / "tls").mkdir(parents=True)
    for name, content in make_secrets().items():
        path = tmp_path / "secrets" / ("token" if name == "token" else f"tls/{name}")
        path.write_bytes(content)
        path.chmod(0o400)
    return tmp_path


def program_of(driver, role):
    """The process of a member, below the one that keeps its log; None: there is none now."""
    for one in psutil.Process(driver.pid).children(recursive=True):
        if command_of(one)[1:4] == ["-m", "ctr_pipeline", role]:
            return one.pid
    return None


def kill_program(driver, role):
    """Kills the process of a member, as soon as there is one."""
    os.kill(wait(lambda: program_of(driver, role), driver), signal.SIGKILL)


def num_trained(folder):
    """Finished epochs."""
    history = folder / "run" / "history.csv"
    return len(history.read_text().splitlines()) - 1 if history.exists() else 0


def wait(condition, driver, seconds=240):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert driver.poll() is None, f"the driver has ended with {driver.returncode}"
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


@contextmanager
def started_driver(folder, *overrides):
    environment = {
        **os.environ,
        "CTRPIPE_SECRETS": str(folder / "secrets"),
        "CTRPIPE_JOB": "clicks",
        "CTRPIPE_NAMESPACE": "ads",
        "CTRPIPE_OWNER_UID": "0a1b",
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    command = [sys.executable, "-m", DRIVER, "pods", "run", "config.yaml"]
    with (
        (folder / "driver.log").open("w") as log,
        subprocess.Popen(
            [*command, "--resume", *(part for one in overrides for part in ("--set", one))],
            cwd=folder,
            env=environment,
            stderr=log,
            stdout=subprocess.DEVNULL,
        ) as driver,
    ):
        try:
            yield driver
        finally:
            driver.kill()


def expect_end(folder, driver, code):
    """Waits until a driver has ended with this exit code."""
    found = driver.wait(300)
    assert found == code, (folder / "driver.log").read_text()[-4000:]


def records_of(folder):
    return json.loads((folder / "run" / "metrics.json").read_text())["runtime"]["records"]


def test_a_driver_that_was_asked_to_end_goes_on_where_it_starts_again(folder):
    """As when its node is drained: the secrets are those of before."""
    with started_driver(folder, "train.epochs=10000") as driver:
        wait(lambda: num_trained(folder) >= 1, driver)
        driver.send_signal(signal.SIGTERM)
        expect_end(folder, driver, 143)
    assert not (folder / "run" / "metrics.json").exists()
    with started_driver(folder, f"train.epochs={num_trained(folder) + 2}") as driver:
        expect_end(folder, driver, 0)
    records = records_of(folder)
    assert records["trained"] == records["total"] > 0


def test_no_record_is_lost_when_a_worker_and_a_server_are_killed(folder):
    with started_driver(folder) as driver:
        log = folder / "run" / "logs"
        for role in ("worker", "ps"):
            wait(lambda: (log / "worker-0.log").exists() and num_trained(folder) >= 1, driver)
            kill_program(driver, role)
        expect_end(folder, driver, 0)
    runtime = json.loads((folder / "run" / "metrics.json").read_text())["runtime"]
    assert runtime["mode"] == "kubernetes"
    assert runtime["records"]["trained"] == runtime["records"]["total"] > 0
    assert runtime["restarts"]["ps"] >= 1
    assert runtime["restarts"]["worker"] >= 1
    # The job's own secrets were used, and none is written into the run folder.
    assert not (folder / "run" / "job" / "token").exists()


def test_replicas_go_on_when_one_is_killed_and_when_the_driver_is_asked_to_end(folder):
    def worlds():
        seen = load_progress(RunFolder(folder / "run"))
        return [] if seen is None else seen.worlds

    def newest():
        """Version and size of the newest world; none is known yet where a driver has begun."""
        seen = worlds()
        return (seen[-1].version, seen[-1].size) if seen else (0, 0)

    def wait_for_one(num_worlds, driver):
        """Waits for a world of one worker; it may be the newest no more when it looks."""
        wait(lambda: any(one.size == 1 for one in worlds()[num_worlds:]), driver)

    options = ("runtime.strategy=allreduce", "runtime.embeddings=hybrid")
    endless = (*options, "train.epochs=100000")
    with started_driver(folder, *endless) as driver:
        wait(lambda: newest()[1] == 2, driver)
        num_worlds = len(worlds())
        kill_program(driver, "worker")
        wait_for_one(num_worlds, driver)
        wait(lambda: newest()[1] == 2, driver)
        num_worlds = len(worlds())
        kill_program(driver, "ps")
        wait(lambda: len(worlds()) > num_worlds, driver)
        driver.send_signal(signal.SIGTERM)
        expect_end(folder, driver, 143)
    stopped, _ = newest()
    with started_driver(folder, *endless) as driver:
        wait(lambda: newest()[0] > stopped and newest()[1] == 2, driver)
        num_worlds = len(worlds())
        # As `ctrpipe scale k8s:clicks` does in the driver pod.
        subprocess.run(
            [sys.executable, "-m", "ctr_pipeline", "scale", "run", "--workers", "1"],
            cwd=folder,
            env={**os.environ, "CTRPIPE_SECRETS": str(folder / "secrets")},
            check=True,
        )
        wait_for_one(num_worlds, driver)
        driver.send_signal(signal.SIGTERM)
        expect_end(folder, driver, 143)
    with started_driver(folder, *options, f"train.epochs={num_trained(folder) + 2}") as driver:
        expect_end(folder, driver, 0)
    training = json.loads((folder / "run" / "metrics.json").read_text())["training"]
    assert training["worlds"][-1]["version"] > stopped
    rows = [record.num_rows for record in load_history(folder / "run" / "history.csv")]
    assert len(rows) > 1
    assert len(set(rows)) == 1
    # The job's own secrets were used, and none is written into the run folder.
    assert not list((folder / "run").rglob("token"))
