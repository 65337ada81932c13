"""The driver of a job on Kubernetes trains with members that are killed; the pods are processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.rpc.access import make_secrets

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

LAUNCHERS = Path(__file__).parents[1] / "distributed" / "launchers"
CONFIG = """
data:
  train: rows.tsv
  format: tsv
  columns: [label, I1..I13, C1..C26]
  label: label
model: {name: deepfm, embedding_dim: 4, hidden_units: [16]}
train: {epochs: 6, batch_size: 64, checkpoint_seconds: 2}
runtime:
  mode: kubernetes
  parameter_servers: 1
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
        try:
            words = one.cmdline()
        except psutil.Error:
            continue
        if words[1:4] == ["-m", "ctr_pipeline", role]:
            return one.pid
    return None


def num_trained(folder):
    """Finished epochs."""
    history = folder / "run" / "history.csv"
    return len(history.read_text().splitlines()) - 1 if history.exists() else 0


def wait(condition, driver, seconds=240):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def start_driver(folder):
    environment = {
        **os.environ,
        "CTRPIPE_SECRETS": str(folder / "secrets"),
        "CTRPIPE_JOB": "clicks",
        "CTRPIPE_NAMESPACE": "ads",
        "CTRPIPE_OWNER_UID": "0a1b",
        "PYTHONPATH": os.pathsep.join((str(LAUNCHERS), os.environ.get("PYTHONPATH", ""))),
    }
    command = [sys.executable, LAUNCHERS / "driver_here.py", "pods", "run", "config.yaml"]
    return subprocess.Popen(
        [*command, "--resume"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def records_of(folder):
    return json.loads((folder / "run" / "metrics.json").read_text())["runtime"]["records"]


def test_a_driver_that_was_asked_to_end_goes_on_where_it_starts_again(folder):
    """As when its node is drained: the secrets are those of before."""
    with start_driver(folder) as driver:
        wait(lambda: num_trained(folder) >= 1, driver)
        driver.send_signal(signal.SIGTERM)
        _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 143, errors[-4000:]
    assert not (folder / "run" / "metrics.json").exists()
    with start_driver(folder) as driver:
        _, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors[-4000:]
    records = records_of(folder)
    assert records["trained"] == records["total"] > 0


def test_no_record_is_lost_when_a_worker_and_a_server_are_killed(folder):
    with start_driver(folder) as driver:
        log = folder / "run" / "logs"
        for role in ("worker", "ps"):
            wait(lambda: (log / "worker-0.log").exists() and num_trained(folder) >= 1, driver)
            os.kill(wait(lambda role=role: program_of(driver, role), driver), signal.SIGKILL)
        _, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors[-4000:]
    runtime = json.loads((folder / "run" / "metrics.json").read_text())["runtime"]
    assert runtime["mode"] == "kubernetes"
    assert runtime["records"]["trained"] == runtime["records"]["total"] > 0
    assert runtime["restarts"]["ps"] >= 1
    assert runtime["restarts"]["worker"] >= 1
    # The job's own secrets were used, and none is written into the run folder.
    assert not (folder / "run" / "job" / "token").exists()
