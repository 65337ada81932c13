"""A job whose members people start, each on a host of its own.

The hosts share the run folder, which holds the encoded rows, the secrets and the checkpoints, and
the program. Each has its own copy of the config and its own folder for temporary files; the file of
rows is on none of them.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest
import yaml
from watched_run import slowed

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job.control import Job, read_status
from ctr_pipeline.progress import SilentProgress
from tests.e2e.hosts import HostsUnavailableError, LoopbackHosts, NamespaceHosts

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_ROWS = 6_000
EPOCHS = 2
MEMBERS = (("master", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
PATIENCE_SECONDS = 180.0
CTRPIPE = (sys.executable, "-m", "ctr_pipeline")


@pytest.fixture(params=[NamespaceHosts, LoopbackHosts], ids=["namespaces", "loopback addresses"])
def hosts(request):
    try:
        found = NamespaceHosts(len(MEMBERS))
    except HostsUnavailableError as error:
        if request.param is NamespaceHosts:
            pytest.skip(f"no hosts of their own here, only loopback addresses: {error}")
        found = LoopbackHosts(len(MEMBERS))
    else:
        if request.param is LoopbackHosts:
            found.close()
            pytest.skip("members have hosts of their own here, which shows more")
    yield found
    found.close()


class JobByHand:
    """A job, and the members that were started for it."""

    def __init__(self, folder, hosts):
        self.folder, self.hosts = folder, hosts
        self.output = folder / "shared" / "run"
        self.rows = folder / "rows.txt"
        self.members = {}
        self.output.parent.mkdir()
        write_criteo_sample(self.rows, num_rows=NUM_ROWS, seed=1, progress=SilentProgress())
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(self.content()))

    def content(self):
        return {
            "data": {
                "train": str(self.rows),
                "format": "tsv",
                "columns": ["label", "I1..I13", "C1..C26"],
            },
            "features": [
                {"columns": "I1..I6", "number": ["log", "standardize"]},
                {"columns": "C1..C10", "id": {"vocabulary": {"min_count": 2}}},
            ],
            "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [8]},
            "train": {
                "epochs": EPOCHS,
                "batch_size": 8,
                "early_stopping": None,
                "checkpoint_seconds": 2,
            },
            "export": {"parity_rows": 20},
            "runtime": {
                "mode": "processes",
                "parameter_servers": 2,
                "workers": {"min": 1, "max": 2},
            },
            "output": str(self.output),
        }

    def call(self, *arguments):
        """A command of whoever looks after the job."""
        done = subprocess.run(
            [*CTRPIPE, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done

    def start(self, number, *arguments):
        """Starts a member on its host, with what that host has."""
        role, index = MEMBERS[number]
        own = self.folder / f"host-{number}"
        own.mkdir()
        config = own / "mine.yaml"
        config.write_text(self.config.read_text())
        command = [*CTRPIPE, role, "--config", str(config), *arguments]
        if role != "master":
            command += ["--index", str(index), "--master", f"{self.hosts.address(0)}:7000"]
        with (own / "output.txt").open("w") as output:
            self.members[role, index] = subprocess.Popen(
                self.hosts.command(number, *command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=own,
                env={**os.environ, "TMPDIR": str(own)},
            )

    def start_all(self):
        # In no order: who comes before the master waits for it.
        for number in reversed(range(len(MEMBERS))):
            role, _ = MEMBERS[number]
            address = self.hosts.address(number)
            self.start(
                number,
                *{
                    "master": ("--bind", f"{address}:7000"),
                    "ps": ("--bind", f"{address}:0"),
                    "worker": ("--metrics-host", address),
                }[role],
            )

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE_SECONDS
        view = None
        while time.monotonic() < until:
            for (role, index), process in self.members.items():
                # A member leaves when nothing is left to do.
                assert process.poll() in {None, 0}, self.said_by(role, index)
            try:
                view = read_status(Job(self.output))
            except CtrPipelineError:
                view = None
            if view is not None and condition(view):
                return view
            time.sleep(0.1)
        raise AssertionError(f"it did not come to that: {view}")

    def slowed(self, role, index):
        """A member stands still for most of the time."""
        process = psutil.Process(self.members[role, index].pid)
        # Below what puts it on its host.
        programs = (process, *process.children(recursive=True))
        (program,) = (one for one in programs if one.cmdline()[:1] == [sys.executable])
        return slowed(program.pid, 0.9)

    def said_by(self, role, index):
        number = MEMBERS.index((role, index))
        return (self.folder / f"host-{number}" / "output.txt").read_text()

    def close(self):
        for process in self.members.values():
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path, hosts):
    found = JobByHand(tmp_path, hosts)
    yield found
    found.close()


def figures_at(address):
    """What Prometheus would read."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return answer.read().decode()


def test_members_started_by_hand_on_hosts_of_their_own_train_to_the_end(job):
    prepared = job.call("train", job.config, "--prepare-only")
    assert "ctrpipe master --config" in prepared.stderr
    away = job.rows.rename(job.rows.with_name("away.txt"))
    job.start_all()

    def all_train(view):
        workers = [one for one in view.members if one.role == "worker"]
        return len(workers) == 2 and all(one.leases for one in workers)

    job.wait_for(lambda view: any(one.role == "worker" and one.pid for one in view.members))
    # Both are to train at one time, and until all questions are answered.
    with job.slowed("worker", 0), job.slowed("worker", 1):
        view = job.wait_for(all_train)
        for one in view.members:
            address = job.hosts.address(MEMBERS.index((one.role, one.index)))
            assert one.metrics_address.startswith(f"{address}:")
            assert "ctrpipe_" in figures_at(one.metrics_address)
            assert one.role == "worker" or one.address.startswith(f"{address}:")

        # The folder belongs to the job as long as its master lives.
        early = subprocess.run(
            [*CTRPIPE, "train", str(job.config), "--prepare-only", "--overwrite"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert early.returncode == 1
        assert "uses this folder" in early.stderr

    view = job.wait_for(lambda view: view.state == "finished")
    assert view.records.trained == view.records.total == EPOCHS * NUM_ROWS * 8 // 10
    assert view.records.dropped == 0
    assert not [event for event in view.events if "lost" in event.what]
    assert [process.wait(60) for process in job.members.values()] == [0] * len(MEMBERS)

    # What it takes to evaluate and to export is as at any other time.
    away.rename(job.rows)
    job.call("run", job.config, "--resume")
    metrics = json.loads((job.output / "metrics.json").read_text())
    assert metrics["training"]["epochs"] == EPOCHS
    assert metrics["test"]["auc"] > 0.55
    assert (job.output / "report.html").exists()
