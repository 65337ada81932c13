"""A job of real processes, watched, scaled, hurt and stopped by the commands that a user has."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

CONFIG = """
data:
  train: rows.tsv
  format: tsv
  columns: [label, I1..I13, C1..C26]
  label: label
model: {name: deepfm, embedding_dim: 4, hidden_units: [16]}
train: {epochs: 100000, batch_size: 256, early_stopping: null, checkpoint_seconds: 2}
runtime: {mode: processes, workers: {min: 1, max: 1}}
output: runs/x
"""
PATIENCE_SECONDS = 300.0


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

    def __init__(self, folder, *arguments):
        self.folder = folder
        self.output = (folder / "output.txt").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ctr_pipeline", "run", "config.yaml", *arguments],
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
def job(tmp_path, data, request):
    (tmp_path / "rows.tsv").symlink_to(data)
    (tmp_path / "config.yaml").write_text(CONFIG)
    job = RunningJob(tmp_path, *getattr(request, "param", ()))
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
            and any(member["pid"] != master["pid"] for member in running(view, "master"))
            and view["records"]["trained"] > trained
            # All have told the new master of themselves.
            and len(running(view, "worker")) == 2
            and len(running(view, "ps")) == 1
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

    def times_registered():
        return ctrpipe("logs", "runs/x", name, folder=job.folder).stdout.count("Registered")

    job.wait_for(lambda _: times_registered() > 1)
    assert times_registered() == 2

    found = ctrpipe("stop", "runs/x", folder=job.folder)
    assert found.stdout == "stopped\n"
    assert job.process.wait(timeout=PATIENCE_SECONDS) == 143
    assert not any(is_alive(member["pid"]) for member in view["members"])
    assert job.status()["state"] == "stopped"
    assert not job.status()["answering"]
    token = (job.folder / "runs/x/job/token").read_text().strip()
    for log in [*(job.folder / "runs/x/logs").iterdir(), job.folder / "runs/x/run.log"]:
        assert token not in log.read_text()


def test_job_processes_end_when_the_process_the_user_started_is_killed(job):
    view = job.wait_for(lambda view: view["answering"] and view["records"]["trained"] > 0)
    pids = [member["pid"] for member in view["members"]]
    # Of every thread: the launcher's own thread has the members, and the fork server.
    for children in Path(f"/proc/{job.process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            pids += [int(pid) for pid in children.read_text().split()]
    assert len(set(pids)) > len(view["members"])
    assert all(is_alive(pid) for pid in pids)
    job.process.kill()
    job.process.wait()
    until = time.monotonic() + PATIENCE_SECONDS
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


LONG_EPOCHS = ("--set", "train.batch_size=16")


def go_on_for_an_epoch(job):
    """Resumes a job until the epoch in which it was stopped has ended; what was repeated in all."""
    records = job.status()["records"]
    rows = records["total"] // job.status()["epochs"]
    epochs = records["trained"] // rows + 1
    ctrpipe("run", "runs/x", "--resume", "--set", f"train.epochs={epochs}", folder=job.folder)
    view = job.status()
    assert view["state"] == "finished"
    assert view["records"]["trained"] == epochs * rows
    return view["records"]["repeated"]


@pytest.mark.parametrize("job", [(*LONG_EPOCHS, "--set", "runtime.workers.max=2")], indirect=True)
def test_a_stop_and_its_resumption_train_no_record_twice(job):
    job.wait_for(lambda view: len(running(view, "worker")) == 2 and view["records"]["trained"] > 0)
    assert ctrpipe("stop", "runs/x", folder=job.folder).stdout == "stopped\n"
    job.process.wait()
    assert go_on_for_an_epoch(job) == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "job", [(*LONG_EPOCHS, "--set", "runtime.silence_seconds=600")], indirect=True
)
def test_a_worker_that_hangs_does_not_keep_a_stop_from_its_checkpoint(job):
    while True:
        view = job.wait_for(lambda view: view["state"] == "training" and view["records"]["trained"])
        (worker,) = running(view, "worker")
        os.kill(worker["pid"], signal.SIGSTOP)
        # While the job trains, its only worker holds a task.
        if job.status()["state"] == "training":
            break
        os.kill(worker["pid"], signal.SIGCONT)
    assert ctrpipe("stop", "runs/x", folder=job.folder).stdout == "stopped\n"
    job.process.wait()
    stopped = job.status()
    (told,) = (one for one in stopped["events"] if one["what"] == "the job stops, as asked")
    assert told["done"] == f"it can go on from checkpoint {stopped['checkpoint']['number']}"
    assert stopped["step"] == stopped["checkpoint"]["step"]
    # Batches that it had not reported yet are trained again, and servers apply none of them twice.
    go_on_for_an_epoch(job)
