"""A job of real processes, watched, scaled, hurt and stopped by the commands that a user has."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

CONFIG = """
data:
  train: rows.tsv
  format: tsv
  columns: [label, I1..I13, C1..C26]
  label: label
model: {name: deepfm, embedding_dim: 4, hidden_units: [16]}
train: {epochs: 1000, batch_size: 256, early_stopping: null, checkpoint_seconds: 2}
runtime: {mode: processes, workers: {min: 1, max: 1}}
output: runs/x
"""
PATIENCE_SECONDS = 120.0


def ctrpipe(*arguments, folder, check=True):
    return subprocess.run(
        [sys.executable, "-m", "ctr_pipeline", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=check,
        timeout=PATIENCE_SECONDS,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    ctrpipe("sample", "criteo", "--rows", 6000, "--output", "rows.tsv", folder=folder)
    return folder / "rows.tsv"


class RunningJob:
    """`ctrpipe run` in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.output = (folder / "output.txt").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ctr_pipeline", "run", "config.yaml"],
            cwd=folder,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def status(self):
        found = ctrpipe("status", "runs/x", "--json", folder=self.folder, check=False)
        payload = json.loads(found.stdout) if found.returncode == 0 else {}
        # Before there is a job, it is that of any run.
        return payload if "answering" in payload else None

    def wait_for(self, condition):
        """The first status that a condition is true of."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            assert self.process.poll() is None, (self.folder / "output.txt").read_text()
            view = self.status()
            if view is not None and condition(view):
                return view
            time.sleep(0.2)
        raise AssertionError(f"never came: {view}\n{(self.folder / 'output.txt').read_text()}")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.output.close()


@pytest.fixture
def job(tmp_path, data):
    (tmp_path / "rows.tsv").symlink_to(data)
    (tmp_path / "config.yaml").write_text(CONFIG)
    job = RunningJob(tmp_path)
    yield job
    job.close()


def running(view, role):
    return [
        member
        for member in view["members"]
        if member["role"] == role and member["state"] == "running"
    ]


def is_alive(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


def test_watched_scaled_hurt_and_stopped(job):
    view = job.wait_for(lambda view: view["answering"] and view["records"]["trained"] > 0)
    assert [member["role"] for member in view["members"]] == ["master", "ps", "worker"]
    assert len({member["pid"] for member in view["members"]}) == 3

    found = ctrpipe("scale", "config.yaml", "--workers", 2, folder=job.folder)
    assert found.stdout == "2 workers are wanted from now on\n"
    view = job.wait_for(lambda view: len(running(view, "worker")) == 2)

    # A master that is killed is back, with its ledger; nobody else notices more than its absence.
    (master,) = running(view, "master")
    others = {member["pid"] for member in view["members"] if member["role"] != "master"}
    trained = view["records"]["trained"]
    os.kill(master["pid"], signal.SIGKILL)
    view = job.wait_for(
        lambda view: (
            view["answering"]
            and running(view, "master")[0]["pid"] != master["pid"]
            and view["records"]["trained"] > trained
        )
    )
    assert running(view, "master")[0]["restarts"] == 1
    assert {member["pid"] for member in view["members"] if member["role"] != "master"} == others

    # A worker that is killed is forked again by the fork server.
    victim = running(view, "worker")[0]
    os.kill(victim["pid"], signal.SIGKILL)
    job.wait_for(
        lambda view: any(
            member["pid"] != victim["pid"] and member["restarts"] == 1
            for member in running(view, "worker")
        )
    )
    name = f"worker-{victim['index']}"
    text = ctrpipe("logs", "runs/x", name, folder=job.folder).stdout
    assert text.count("Registered") == 2

    found = ctrpipe("stop", "runs/x", folder=job.folder)
    assert found.stdout == "stopped\n"
    assert job.process.wait(timeout=60) == 143
    assert not any(is_alive(member["pid"]) for member in view["members"])
    assert job.status()["state"] == "stopped"
    assert not job.status()["answering"]
    token = (job.folder / "runs/x/job/token").read_text().strip()
    for log in [*(job.folder / "runs/x/logs").iterdir(), job.folder / "runs/x/run.log"]:
        assert token not in log.read_text()


def test_nothing_survives_the_process_that_the_user_started(job):
    view = job.wait_for(lambda view: view["answering"] and view["records"]["trained"] > 0)
    pids = [member["pid"] for member in view["members"]]
    # Of every thread: the launcher's own thread has the members, and the fork server.
    for children in Path(f"/proc/{job.process.pid}/task").glob("*/children"):
        pids += [int(pid) for pid in children.read_text().split()]
    assert len(set(pids)) > len(view["members"])
    assert all(is_alive(pid) for pid in pids)
    job.process.kill()
    job.process.wait()
    until = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)
    found = ctrpipe("scale", "runs/x", "-w", 2, folder=job.folder, check=False)
    assert found.returncode == 1
    assert "the job does not run" in found.stderr

    text = " ".join(ctrpipe("status", "runs/x", folder=job.folder).stdout.split())
    assert f"(the launcher, process {job.process.pid}, is gone: nothing trains)" in text
    run = job.status()["run"]
    assert (run["state"], run["alive"]) == ("killed", False)
    assert run["resume"] == "ctrpipe run runs/x --resume"
    assert run["resume"] in text
    _, *words = run["resume"].split()
    ctrpipe(*words, "--set", "train.epochs=1", folder=job.folder)
    view = job.status()
    assert (view["state"], view["run"]["state"]) == ("finished", "finished")
    assert {(one["state"], one["last_end"]) for one in view["members"]} == {("finished", None)}
    assert "the job is resumed" in [event["what"] for event in view["events"]]
