"""A job whose pods wait in a queue of Kueue, which gives it quota for a part of them first."""

import contextlib
import json
import uuid
from pathlib import Path

import pytest
import yaml
from elastic_demo import load_config
from job_watch import CommandError
from pod_run import PodRun, pod_config

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress
from tests.cluster.cluster_binaries import NoBinaries, find_kueue
from tests.cluster.kueue_installation import installed_kueue

pytestmark = [
    pytest.mark.faults,
    pytest.mark.cluster,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

CONFIG = Path(__file__).parents[2] / "configs/criteo_elastic.yaml"
ROWS, EPOCHS = 40_000, 40
TRAIN_ROWS = 32_000
QUEUE = "nightly"
WAITS = f"it waits for quota in the queue '{QUEUE}'"
CORES = {"master": "100m", "parameter_servers": "100m", "workers": "200m"}
"""With three workers, 800m: half of it is for the driver, the server and one of them."""


@pytest.fixture
def run(cluster, ctrpipe_image, tmp_path):
    """A job that has not been submitted yet, where Kueue is installed."""
    try:
        find_kueue()
    except NoBinaries as error:
        pytest.skip(str(error))
    rows = tmp_path / "rows.txt"
    write_criteo_sample(rows, num_rows=ROWS, seed=1, progress=SilentProgress())
    config, name = pod_config(load_config(CONFIG, EPOCHS)), f"test-{uuid.uuid4().hex[:8]}"
    config["runtime"]["workers"] = {"min": 1, "max": 3}
    with (
        installed_kueue(cluster),
        cluster.network(),
        PodRun(cluster, tmp_path / "run", config, rows, name=name) as made,
    ):
        content = yaml.safe_load(made.config_path.read_text())
        pods = content["kubernetes"] | {"queue": QUEUE}
        for role, cores in CORES.items():
            pods[role] = {**pods[role], "cpu": cores}
        made.config_path.write_text(yaml.safe_dump(content | {"kubernetes": pods}))
        yield made


@contextlib.contextmanager
def queue(run):
    """The queue of the job's namespace; gives what sets its quota of cores."""
    version = "kueue.x-k8s.io/v1beta2"

    def set_quota(cores):
        quotas = [
            {"name": "cpu", "nominalQuota": cores},
            {"name": "memory", "nominalQuota": "100Gi"},
        ]
        group = {
            "coveredResources": ["cpu", "memory"],
            "flavors": [{"name": run.name, "resources": quotas}],
        }
        run.cluster.apply(
            {
                "apiVersion": version,
                "kind": "ClusterQueue",
                "metadata": {"name": run.name},
                "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
            }
        )

    run.cluster.apply(
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": run.name}},
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": run.name},
            "spec": {"clusterQueue": run.name},
        },
    )
    try:
        yield set_quota
    finally:
        for kind in ("clusterqueue", "resourceflavor"):
            run.cluster.kubectl("delete", kind, run.name, "--wait=false", "--ignore-not-found")


def evict(run, pod):
    """Kueue takes the quota of a pod back."""
    workloads = run.cluster.get("workloads", "--namespace", run.name)["items"]
    (name,) = (
        one["metadata"]["name"]
        for one in workloads
        if one["metadata"]["ownerReferences"][0]["name"] == pod
    )
    patch = json.dumps({"spec": {"active": False}})
    options = ("--namespace", run.name, "--type=merge", f"--patch={patch}")
    run.cluster.kubectl("patch", "workload", name, *options)


def workers(run, state):
    return [one for one in run.now.members if one.role == "worker" and one.state == state]


def test_a_job_trains_with_the_workers_that_have_quota_and_takes_in_the_others(run, tmp_path):
    with pytest.raises(CommandError, match="there is no LocalQueue 'nightly'"):
        run.call("submit", str(run.config_path))
    with queue(run) as set_quota:
        set_quota("400m")
        run.call("submit", str(run.config_path))
        run.wait_for("training", run.is_training, 400)

        def two_wait():
            return [one.waits_for for one in workers(run, "pending")] == [WAITS] * 2

        run.wait_for("workers without quota", two_wait, 60)
        assert len(workers(run, "running")) == 1
        assert WAITS in run.call("status", run.address, "--json")

        set_quota("800m")
        run.wait_for("all workers", lambda: len(workers(run, "running")) == 3, 300)

        before = run.member_view("worker", 0).incarnation
        evict(run, run.pod("worker", 0))

        def is_replaced():
            worker = run.member_view("worker", 0)
            return worker.incarnation not in {"", before} and worker.state == "running"

        run.wait_for("another worker in its place", is_replaced, 300)
        assert "worker 0 was evicted" in [event.what for event in run.now.events]
        assert run.member_view("worker", 1).restarts == 0

        run.wait_for("the end", lambda: run.has_ended, 900)
        assert run.summary.state == "finished", run.tail(40)
        run.call("fetch", run.address, "--output", str(tmp_path / "fetched"))
        records = run.metrics(tmp_path / "fetched")["runtime"]["records"]
        assert records["total"] == records["trained"] == TRAIN_ROWS * EPOCHS
        assert records["dropped"] == 0
        assert run.delete() == []


def test_a_driver_whose_quota_is_taken_back_leaves_a_checkpoint_and_the_next_goes_on_from_it(run):
    with queue(run) as set_quota:
        set_quota("800m")
        run.call("submit", str(run.config_path))
        run.wait_for("training", run.is_training, 400)
        before = run.master_address
        evict(run, run.pod("driver"))
        run.wait_for("another driver", lambda: run.master_address != before, 300)
        run.wait_for("training", run.is_training, 300)
        told = [(event.what, event.done) for event in run.now.events]
        assert any(
            what == "the job is resumed" and done.startswith("it goes on from checkpoint ")
            for what, done in told
        ), told
        assert run.now.records.repeated == 0
        assert "failed" not in run.cluster.get("job", run.name, "--namespace", run.name)["status"]
