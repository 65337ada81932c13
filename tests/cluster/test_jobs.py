"""Jobs as pods: submitted, disturbed and fetched by the command line, as their users do it."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import numpy as np
import pytest
from elastic_demo import load_config
from job_watch import CommandError, MissedError
from pod_faults import FAULTS, FIRST_NODE, SECOND_NODE, undergo
from pod_run import ANY_NODE, PodRun, pod_config

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.distributed.ps.service import SERVICE as PS_SERVICE
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job.control import MASTER_SERVICE
from ctr_pipeline.pipeline.job.replica_progress import load_progress
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history
from tests.cluster.kubernetes_cluster import restricted_pod
from tests.cluster.python_image import CTRPIPE_IMAGE

pytestmark = [
    pytest.mark.faults,
    pytest.mark.cluster,
    pytest.mark.slow,
    # The first one makes the image, which takes what the machine needs for it.
    pytest.mark.timeout(900, func_only=True),
]

CONFIG = Path(__file__).parents[2] / "configs/criteo_elastic.yaml"
EXAMPLE = Path(__file__).parents[2] / "configs/examples/elastic_training.py"
ROWS, EPOCHS, LONG = 40_000, 20, 60
REPLICA_EPOCHS = 30
TRAIN_ROWS = 32_000
AWAY_SECONDS = 60.0
RIGHT_SECONDS = 14.0
"""Once the API server is back, a kubelet tells within 10 s, and a master asks again within 2 s."""
NO_IMAGE = "its image cannot be pulled: "


@pytest.fixture
def prepare(cluster, ctrpipe_image, tmp_path):
    """Makes a job that has not been submitted yet."""
    rows = tmp_path / "rows.txt"
    write_criteo_sample(rows, num_rows=ROWS, seed=1, progress=SilentProgress())
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster.network())

        def make(epochs=EPOCHS, pods=None, **runtime):
            config, name = pod_config(load_config(CONFIG, epochs)), f"test-{uuid.uuid4().hex[:8]}"
            config["runtime"] = runtime or config["runtime"]
            run = PodRun(cluster, tmp_path / "run", config, rows, name=name, pods=pods)
            return stack.enter_context(run)

        yield make


@pytest.fixture
def run(prepare):
    return prepare()


def test_a_job_whose_every_pod_is_killed_loses_no_record(run, tmp_path):
    assert_rows_are_looked_at_where_they_are(run)
    run.call("submit", str(run.config_path))
    with asked_all_the_time(run) as told:
        run.wait_for("training", run.is_training, 240)
        assert_closed_to_other_jobs(run)
        undergo(run, FAULTS["deleted by force"], ("worker",))
        undergo(run, FAULTS["deleted by force"], ("ps",))
        with page_of(run) as look:
            # A checkpoint may be under way.
            run.wait_for("its state", lambda: look("/status.json")["state"] == "training", 60)
            run.cluster.crash_pod(run.name, run.pod("driver"))
            run.wait_for("a page without a master", lambda: "No master answers" in look("/"), 60)
            run.wait_for("the page of the next master", lambda: look("/status.json").get("state"))
            run.wait_for("training", run.is_training, 240)
        # Members outlive the driver, which leads the job.
        assert undergo(run, FAULTS["killed"], ("master",)).others == 0
        run.wait_for("the end", lambda: run.has_ended, 400)
        assert run.summary.state == "finished", run.tail(40)
    changes = [state for state, _ in itertools.groupby(told)]
    # The driver may run before the first question.
    assert changes in (["waiting", "running", "finished"], ["running", "finished"])

    assert_the_job_shows_how_it_did(run)
    assert "finished" in run.call("jobs", "--namespace", run.name)
    fetched = tmp_path / "fetched"
    run.call("fetch", run.address, "--output", str(fetched))
    metrics = run.metrics(fetched)
    runtime = metrics["runtime"]
    assert runtime["records"]["total"] == runtime["records"]["trained"] == TRAIN_ROWS * EPOCHS
    assert runtime["records"]["dropped"] == 0
    assert runtime["restarts"]["worker"] >= 1
    assert runtime["restarts"]["ps"] >= 1
    assert 0.6 < metrics["test"]["auc"] < 0.9
    assert (fetched / "report.html").stat().st_size > 100_000
    assert "Training" in run.call("logs", run.address, "driver")
    assert run.call("logs", run.address, "worker-0")
    assert run.delete() == []


def test_a_node_that_is_drained_of_a_server_and_a_worker_costs_no_record(run, tmp_path):
    run.call("submit", str(run.config_path))
    run.wait_for("training", run.is_training, 240)
    # The driver stays, and the other worker.
    assert undergo(run, FAULTS["drained"], ("ps", "worker")).others == 0
    undergo(run, FAULTS["preempted"], ("worker",))
    # Members go on without the driver.
    assert undergo(run, FAULTS["evicted"], ("master",)).others == 0
    run.wait_for("the end", lambda: run.has_ended, 400)
    assert run.summary.state == "finished", run.tail(40)
    told = run.now.events
    assert "worker 0 was evicted" in [one.what for one in told]
    asked = next(one for one in told if " 0 is asked to end within " in one.what)
    server = next(one for one in told if one.what == "parameter server 0 was evicted")
    assert server.done.startswith("no record is trained again: checkpoint ")
    recovery = next(one for one in told if one.topic == "recovery")
    assert recovery.done == "its work goes on"
    assert recovery.repeated == server.repeated == asked.repeated
    assert_all_is_counted(run, tmp_path / "fetched", EPOCHS)
    assert run.delete() == []


def test_a_job_that_is_stopped_and_resumed_trains_no_record_twice(run, tmp_path):
    run.call("submit", str(run.config_path))
    run.wait_for("training", run.is_training, 240)
    assert run.call("stop", run.address, "--wait", "100") == "stopped\n", run.tail(40)
    run.call("resume", run.address)
    run.wait_for("the end", lambda: run.has_ended, 400)
    assert run.summary.state == "finished", run.tail(40)
    assert_all_is_counted(run, tmp_path / "fetched", EPOCHS)
    assert run.metrics(tmp_path / "fetched")["runtime"]["records"]["repeated"] == 0
    told = [one.what for one in run.now.events]
    assert told.index("the job stops, as asked") < told.index("the job is resumed")
    assert run.delete() == []


@contextlib.contextmanager
def page_of(run):
    """Looks at a page of `ctrpipe ui`, as the browser that opened its address."""
    command = [sys.executable, "-m", "ctr_pipeline", "ui", run.address, "--no-browser"]
    showing = subprocess.Popen(
        command, env=run.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def look(path):
        try:
            with browser.open(origin + path, timeout=30) as answer:
                found = answer.read().decode()
        except urllib.error.HTTPError as error:
            found = error.read().decode()
        return json.loads(found) if path.endswith(".json") else found

    try:
        address = showing.stdout.readline().strip()
        origin, opening, code = address.partition("/open/")
        browser.open(origin + opening + code, timeout=30).close()
        run.wait_for("its page", lambda: look("/status.json").get("state"), 60)
        yield look
    finally:
        showing.send_signal(signal.SIGINT)
        showing.communicate(timeout=30)


def assert_the_job_shows_how_it_did(run):
    """By labels and Events, to people who look with kubectl."""
    labels = run.cluster.get("job", run.name, "--namespace", run.name)["metadata"]["labels"]
    assert labels["ctrpipe.dev/phase"] == "trained"
    assert labels["ctrpipe.dev/percent"] == "100"
    assert 0.6 < float(labels["ctrpipe.dev/auc"]) < 0.9
    events = run.cluster.get("events", "--namespace", run.name)["items"]
    ours = [one for one in events if one["source"].get("component") == "ctrpipe"]
    told = {(one["reason"], one["type"]) for one in ours}
    assert {("MemberLost", "Warning"), ("Recovered", "Normal"), ("Checkpoint", "Normal")} <= told
    assert all(one["involvedObject"]["name"] == run.name for one in ours)


def assert_rows_are_looked_at_where_they_are(run):
    """Its config names rows of the claim, and the command runs elsewhere."""
    assert "Its rows are not here" in run.call("check", str(run.config_path))
    plan = json.loads(run.call("check", str(run.config_path), "--on-cluster", "--json"))
    assert len(plan["rows"]) == 39
    run.wait_for("the end of its pod", lambda: not run.left(), 60)


@contextlib.contextmanager
def asked_all_the_time(run):
    """The states that its user is told, and errors, one call after the other."""
    told, errors, is_over, job = [], [], threading.Event(), run.submitted()

    def ask():
        is_last = False
        while not is_last:
            is_last = is_over.wait(0.2)
            try:
                told.append(job.summary().state)
                job.read_endpoint()
            except CtrPipelineError as error:
                told.append(str(error))

    def call():
        while not is_over.wait(2.0):
            try:
                run.call("status", run.address, "--json")
            except CommandError as error:
                errors.append(str(error))

    askers = [threading.Thread(target=ask), threading.Thread(target=call)]
    for asker in askers:
        asker.start()
    try:
        yield told
    finally:
        is_over.set()
        for asker in askers:
            asker.join()
    assert errors == []


_CALLS = """
import contextlib, json, sys
from pathlib import Path
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable

answers = {}
for whose in ("own", "other"):
    found = [one for one in Path("/secrets", whose).iterdir() if one.is_file()]
    files = {one.name: one.read_bytes() for one in found}
    access = Access.of_files(files)
    for service, method, address in CALLED:
        with contextlib.closing(RpcClient(service, address, access)) as client:
            try:
                client.call(method, Empty(), JobView, deadline_seconds=5.0)
                answer = "answered"
            except (CallRefused, PeerUnavailable) as refused:
                answer = type(refused).__name__
            answers[f"{method} with {whose} certificates"] = answer
print(json.dumps(answers))
"""


def assert_closed_to_other_jobs(run):
    """A pod of another namespace with the certificates of another job gets no answer.

    It knows the addresses of this job and its token, and no policy of the network keeps it away.
    """
    called = (
        (MASTER_SERVICE, "Status", run.master_address),
        (PS_SERVICE, "Snapshot", run.member_view("ps", 0).address),
    )
    own = run.cluster.get("secret", run.name, "--namespace", run.name)["data"]
    made = {name: base64.b64encode(value).decode() for name, value in make_secrets().items()}
    secrets = {"own": own, "other": made | {"token": own["token"]}}
    namespace = f"{run.name}-other"
    run.cluster.make_namespace(namespace)
    pod = restricted_pod(
        namespace,
        "caller",
        CTRPIPE_IMAGE,
        _CALLS.replace("CALLED", repr(called)),
        nodeName="node0",
        volumes=[{"name": name, "secret": {"secretName": name}} for name in secrets],
    )
    pod["spec"]["containers"][0]["volumeMounts"] = [
        {"name": name, "mountPath": f"/secrets/{name}"} for name in secrets
    ]
    run.cluster.apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "data": data,
            }
            for name, data in secrets.items()
        ),
        pod,
    )
    run.cluster.wait_for_phase(namespace, "caller", "Succeeded")
    # gRPC tells of a handshake that failed, too.
    told = run.cluster.kubectl("logs", "caller", "--namespace", namespace).splitlines()
    answers = json.loads(next(line for line in told if line.startswith("{")))
    run.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    assert answers == {
        "Status with own certificates": "answered",
        # It is reached, and says that this is for the master alone.
        "Snapshot with own certificates": "CallRefused",
        "Status with other certificates": "PeerUnavailable",
        "Snapshot with other certificates": "PeerUnavailable",
    }


def assert_submit_says_that_the_image_is_missing(run, folder):
    name, written = f"{run.name}-typo", folder / "submit.txt"
    options = ("--name", name, "--set", "kubernetes.image=localhost/ctrpipe:typo", "--wait")
    with written.open("w") as file:
        following = subprocess.Popen(
            [sys.executable, "-m", "ctr_pipeline", "submit", str(run.config_path), *options],
            env=run.environment,
            stdout=file,
            stderr=file,
        )

        def says_why():
            return "waits: its image cannot be pulled: " in " ".join(written.read_text().split())

        run.wait_for("the reason", says_why, 60)
        run.call("delete", f"k8s:{run.name}/{name}")
        assert following.wait(60) == 1


def assert_submit_says_that_no_container_can_start(run):
    name = f"{run.name}-no-python"
    options = ("--name", name, "--set", "kubernetes.environment.PATH=/nowhere", "--wait")
    with pytest.raises(CommandError, match=r"failed: .*executable file not found"):
        run.call("submit", str(run.config_path), *options)
    assert "executable file not found" in run.call("status", f"k8s:{run.name}/{name}")
    run.call("delete", f"k8s:{run.name}/{name}")


def test_a_missing_image_is_waited_for_and_a_lost_node_is_done_without(prepare, tmp_path):
    """A worker whose node lacks the image; then one that is on a lost node, with the server."""
    run = prepare(pods=ANY_NODE)
    cluster = run.cluster
    assert_submit_says_that_the_image_is_missing(run, tmp_path)
    assert_submit_says_that_no_container_can_start(run)
    with cluster.only_on(FIRST_NODE):
        run.call("submit", str(run.config_path))
        run.wait_for("training", run.is_training, 240)
        is_next = run.watch_for_next("worker")
        with FAULTS["no image"].strike(run, ("worker",)):

            def waits_for_its_image():
                return run.member_view("worker").waits_for.startswith(NO_IMAGE)

            run.wait_for("a worker without its image", waits_for_its_image, 60)
            run.wait_for("training", run.is_training, 60)
            # Its kubelet has tried again, and again the worker has not failed.
            time.sleep(5)
            waiting = run.member_view("worker")
            assert (waiting.state, waiting.restarts) == ("pending", 1)
            told = json.loads(run.call("status", run.address, "--json"))["members"]
            assert any(one["waits_for"].startswith(NO_IMAGE) for one in told)
            assert f"worker-0 waits: {NO_IMAGE}" in run.call("logs", run.address, "driver")
        run.wait_for("a worker with its image", is_next, 120)
    undergo(run, FAULTS["node cut off"], ("ps", "worker"))
    run.wait_for("the end", lambda: run.has_ended, 400)
    assert run.summary.state == "finished", run.tail(40)
    assert "parameter server 0 was not heard for 5 s" in [one.what for one in run.now.events]
    assert_all_is_counted(run, tmp_path / "fetched", EPOCHS)
    assert run.delete() == []


@pytest.mark.nightly
def test_a_job_outlives_a_poor_api_server_a_cut_watch_and_two_drivers(prepare, tmp_path):
    run = prepare(epochs=LONG, pods=ANY_NODE)
    cluster = run.cluster
    with cluster.only_on(FIRST_NODE):
        run.call("submit", str(run.config_path))
        run.wait_for("training", run.is_training, 240)
    before, began = run.incarnations(), time.monotonic()
    (victim,) = cluster.find_processes(run.name, run.pod("worker", 1))
    # It hangs, is killed, and is back after a minute, in which a worker dies.
    cluster.signal_program("control", "kube-apiserver", signal.SIGSTOP)
    try:
        time.sleep(AWAY_SECONDS / 4)
        os.kill(victim, signal.SIGKILL)
        time.sleep(AWAY_SECONDS / 4)
        cluster.signal_program("control", "kube-apiserver", signal.SIGKILL)
        time.sleep(AWAY_SECONDS / 2)
        run.wait_for("training", run.is_training, 30)
        pause = run.progress_seconds(began, time.monotonic())[0]
        assert run.now.master_errors.count == 0
    finally:
        cluster.signal_program("control", "kube-apiserver", signal.SIGKILL)
        cluster.start_again("control", "kube-apiserver")
    cluster.wait_for(lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok", "API server")
    back = time.monotonic()
    run.wait_for("another worker", lambda: run.member_view("worker", 1).restarts == 1, 60)
    right = time.monotonic() - back
    told = json.loads(run.call("status", run.address, "--json"))
    restarts = {f"{one['role']}-{one['index']}": one["restarts"] for one in told["members"]}
    assert restarts == {"master-0": 0, "ps-0": 0, "worker-0": 0, "worker-1": 1}
    assert pause < 10
    assert right < RIGHT_SECONDS
    run.wait_for(
        "another worker", lambda: run.incarnations()["worker-1"] not in before.values(), 120
    )
    assert run.incarnations()["ps-0"] == before["ps-0"]
    events = cluster.get("events", "--namespace", run.name)["items"]
    assert any("orker 1 was not heard for 5 s" in one["message"] for one in events)

    # The launcher's watch ends; it lists again.
    cluster.cut_connections(run.name, run.pod("driver"))
    force = ("--namespace", run.name, "--grace-period=0", "--force")
    cluster.kubectl("delete", "pod", run.pod("worker", 0), *force)
    lost = time.monotonic()
    run.wait_for("another worker", lambda: run.member_view("worker", 0).restarts == 1, 60)
    assert time.monotonic() - lost < 10
    run.wait_for("training", run.is_training, 60)

    (victim,) = cluster.find_processes(run.name, run.pod("worker", 1))
    with slow_api_server(cluster):
        os.kill(victim, signal.SIGKILL)
        lost = time.monotonic()
        run.wait_for("another worker", lambda: run.member_view("worker", 1).restarts == 2, 60)
        run.wait_for("training", run.is_training, 60)
        assert run.progress_seconds(lost, time.monotonic())[0] < 10
        told = json.loads(run.call("status", run.address, "--json"))
        assert told["state"] == "training"

    # Somebody deletes the driver by force while its node does not hear of it: it goes on.
    with cluster.only_on(SECOND_NODE):
        first, led_at = run.pod("driver"), run.master_address
        cluster.signal_program("node0", "kubelet", signal.SIGKILL)
        try:
            cluster.kubectl("delete", "pod", first, *force, "--wait=false")
            time.sleep(5)
            with pytest.raises(MissedError):
                run.pod("driver")
            # Its Job starts no other one before it is known to have ended, unless somebody takes
            # off what holds the pod, as people do with one that stays.
            free = ("--type=merge", '--patch={"metadata": {"finalizers": null}}')
            cluster.kubectl("patch", "pod", first, "--namespace", run.name, *free)

            def waits_for_the_first():
                told = cluster.kubectl("logs", run.pod("driver"), "--namespace", run.name)
                return f"on {first} has ended" in told

            run.wait_for("a second driver that waits", waits_for_the_first, 60)
            run.wait_for("training", run.is_training, 30)
            assert run.master_address == led_at
        finally:
            cluster.start_again("node0", "kubelet")
        run.wait_for("another master", lambda: run.master_address != led_at, 120)
        run.wait_for("training", run.is_training, 120)
    run.wait_for("the end", lambda: run.has_ended, 400)
    assert run.summary.state == "finished", run.tail(40)
    assert_all_is_counted(run, tmp_path / "fetched", LONG)


@contextlib.contextmanager
def slow_api_server(cluster):
    """The API server answers in a fifth of each second only."""
    is_over = threading.Event()

    def hold_up():
        while not is_over.is_set():
            cluster.signal_program("control", "kube-apiserver", signal.SIGSTOP)
            is_over.wait(0.8)
            cluster.signal_program("control", "kube-apiserver", signal.SIGCONT)
            is_over.wait(0.2)

    holder = threading.Thread(target=hold_up)
    holder.start()
    try:
        yield
    finally:
        is_over.set()
        holder.join()


def assert_all_is_counted(run, fetched, epochs):
    run.call("fetch", run.address, "--output", str(fetched))
    records = run.metrics(fetched)["runtime"]["records"]
    assert records["total"] == records["trained"] == TRAIN_ROWS * epochs
    assert records["dropped"] == 0


def test_a_worker_that_runs_out_of_memory_gets_a_larger_pod(prepare, tmp_path):
    """Of a job whose rows come from the user's machine, where its report goes."""
    # TensorFlow alone needs more.
    run = prepare(epochs=1, pods={"workers": {"memory": "180Mi", "max_memory": "3Gi"}})
    (run.work / "rows.txt").unlink()
    options = ("--upload", "rows.txt", "--wait")
    run.call("submit", str(run.config_path), *options, folder=tmp_path, timeout_seconds=500)
    fetched = tmp_path / "runs" / run.name
    assert sorted(one.name for one in fetched.iterdir()) == [
        "metrics.json",
        "report.html",
        "report.json",
    ]
    told = run.call("fetch", run.address, "report", "logs", folder=tmp_path)
    assert ", 2 of them before" in told
    assert (fetched / "logs" / "worker-0.log").exists()
    events = run.cluster.get("events", "--namespace", run.name)["items"]
    told = [one["message"] for one in events if "ran out of memory" in one["message"]]
    assert any("its next pod may use 270Mi" in one for one in told), told


def test_a_job_that_is_deleted_while_its_pods_start_leaves_nothing(run):
    run.call("submit", str(run.config_path))
    worker = f"Pod {run.name}-worker"
    run.wait_for("a worker", lambda: any(one.startswith(worker) for one in run.left()), 240)
    assert run.delete() == []


def test_replicas_go_on_when_pods_are_deleted_and_when_the_driver_is_killed(prepare, tmp_path):
    run = prepare(
        epochs=REPLICA_EPOCHS,
        strategy="allreduce",
        embeddings="hybrid",
        parameter_servers=1,
        workers={"min": 1, "max": 2},
    )
    folder = RunFolder(run.work / "runs" / run.name)

    def worlds():
        seen = load_progress(folder)
        return () if seen is None else seen.worlds

    def two_train():
        return bool(worlds()) and worlds()[-1].size == 2

    def delete(pod):
        force = ("--grace-period=0", "--force")
        run.cluster.kubectl("delete", "pod", pod, "--namespace", run.name, *force)

    run.call("submit", str(run.config_path))
    run.wait_for("two replicas", two_train, 240)
    # The first step compiles kernels.
    run.wait_for("steps", lambda: load_progress(folder).step > 20, 240)
    before = len(worlds())
    delete(run.pod("worker", 0))
    run.wait_for("a world of one", lambda: len(worlds()) > before, 60)
    run.wait_for("a new replica", two_train, 240)
    assert [world.size for world in worlds()[before:]] == [1, 2]
    assert all(world.steps_repeated <= 1 for world in worlds())

    # Embedding rows are lost: all go back to the last checkpoint, and nobody is started again.
    pods = [run.pod("worker", index) for index in (0, 1)]
    before, server = len(worlds()), run.pod("ps", 0)
    delete(server)
    run.wait_for("a world after the loss of the server", lambda: len(worlds()) > before, 240)
    run.wait_for("two replicas", two_train, 240)
    assert run.pod("ps", 0) != server
    led = worlds()[-1]
    run.wait_for("steps of this world", lambda: load_progress(folder).step > led.step, 240)

    # The replicas outlive the driver.
    before = len(worlds())
    run.cluster.crash_pod(run.name, run.pod("driver"))
    run.wait_for("a world at the new driver", lambda: len(worlds()) > before, 240)
    assert [run.pod("worker", index) for index in (0, 1)] == pods
    run.wait_for("the end", lambda: run.has_ended, 400)
    assert run.summary.state == "finished", run.tail(40)

    fetched = tmp_path / "fetched"
    run.call("fetch", run.address, "--output", str(fetched))
    metrics = run.metrics(fetched)
    told = metrics["training"]["worlds"]
    # The numbers go on, and nobody began anew.
    assert [world["version"] for world in told] == sorted({world["version"] for world in told})
    # One that forms as the first of two replicas is back may be followed before its first step.
    since = [world["step"] for world in told if world["version"] > led.version]
    assert min(since) > led.step, told
    rows = [record.num_rows for record in load_history(fetched / "history.csv")]
    assert rows == [TRAIN_ROWS] * REPLICA_EPOCHS
    assert 0.6 < metrics["test"]["auc"] < 0.9
    assert run.delete() == []


def test_a_script_runs_on_nodes_that_kubernetes_replaces(prepare, tmp_path):
    run, name, num_records = prepare(), "mirrored", 6_400
    address = f"k8s:{run.name}/{name}"
    shutil.copy(EXAMPLE, tmp_path / "train.py")
    features = np.random.default_rng(1).normal(size=(num_records, 8)).round(4)
    rows = np.column_stack([features, features.sum(axis=1) > 0])
    np.savetxt(tmp_path / "rows.csv", rows, fmt="%.4f", delimiter=",")

    def pods():
        selector = "--selector=app.kubernetes.io/component=worker"
        found = run.cluster.get("pods", "--namespace", run.name, selector)["items"]
        return [one["metadata"]["name"] for one in found if one["status"]["phase"] == "Running"]

    def position():
        return saved_position(run.work / "saved" / "checkpoint.npz")

    (run.work / "saved").mkdir()
    (run.work / "saved").chmod(0o777)
    run.call(
        *("elastic-run", "--nodes", "1:2", "--on-cluster", str(run.config_path), "--name", name),
        *("--upload", "train.py", "--upload", "rows.csv", "--"),
        *("python", "train.py", "rows.csv", "saved"),
        folder=tmp_path,
    )
    run.cluster.wait_for(lambda: position() > 0, "a checkpoint", 240)
    run.cluster.wait_for(lambda: len(pods()) == 2, "two nodes", 60)
    assert f"{address}  running  driver 1" in run.call("status", address)
    run.cluster.crash_pod(run.name, pods()[0])
    run.cluster.wait_for(lambda: "finished" in run.call("status", address), "the end", 400)
    assert position() == 2 * num_records
    assert "world " in run.call("logs", address, "all")
    run.call("delete", address)
    run.cluster.wait_for(lambda: not run.left(), "the end of all", 60)


def saved_position(checkpoint):
    """How far a script has read its records; 0 before its first checkpoint."""
    if not checkpoint.exists():
        return 0
    with np.load(checkpoint) as kept:
        return int(kept["position"])
