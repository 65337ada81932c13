"""What a job of a thousand worker pods costs its driver, its master and Kubernetes.

A Kubernetes starts on this machine, as root, with nodes that KWOK plays: pods bound to them count
as running, and nothing runs. The driver is a process in the network of the cluster that opens the
launcher of `runtime.mode: kubernetes` with a client that counts its calls; the launcher starts the
master beside it and creates the pods that the master asks for. Once a pod counts as running, a load
process plays what would run in it, as in `master_load.py`: it registers under the name of the pod's
start, leases tasks, and "trains" by waiting. All is done over gRPC with TLS, and the load processes
give way to the master. A thousand of them need cores of their own: with `--played`, the other pods
count as running, and nobody registers for them.

    export PYTHONPATH=.
    python benchmarks/cluster_load.py [--workers 100 1000] [--nodes 200] [--seconds 30]
"""

import argparse
import contextlib
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import urllib3
from kubernetes import config as client_config
from machine import describe_machine, print_machine, print_table, write_results
from master_load import (
    NICE,
    Tally,
    TimedLink,
    Worker,
    be_server,
    connect,
    open_server,
    prepare_job,
)

from ctr_pipeline.apps.cluster.operation import SubmittedJob
from ctr_pipeline.config import load_config
from ctr_pipeline.distributed.coordination.launching import LauncherContext, ProcessState
from ctr_pipeline.distributed.coordination.messages import Empty, Member
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.launcher import KubernetesLauncher
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob, job_labels
from ctr_pipeline.distributed.launchers.remote import LauncherService
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job.launchers import CommandLines, WorkerPhase
from ctr_pipeline.pipeline.job.members import LOOPBACK_HOST
from ctr_pipeline.pipeline.run_folder import RunFolder
from tests.cluster.cluster_binaries import NoBinaries
from tests.cluster.fake_nodes import ON_FAKE_NODES, fake_nodes
from tests.cluster.kubernetes_cluster import Cluster, ClusterError, restricted_pod
from tests.cluster.namespaces import missing_rights, this_process

_SERVERS = 2
_TASKS = 15_259
_PATIENCE_SECONDS = 600.0
_THERE = {"running", "standby", "silent"}
"""States of workers that have registered; a loaded machine is late with heartbeats."""
_LOOK_SECONDS = 0.2
_DEADLINE_SECONDS = 10.0
_POD = {"image": "localhost/none:1", "image_pull_policy": "Never"}


class OverdueError(Exception):
    """Something did not happen in time, or was left behind."""


# The driver, in a process of its own.


@dataclass
class CallLog:
    """Calls to the API server.

    Attributes:
        calls: How many, by verb and kind of object.
        at: When each was answered, seconds on the clock of the processes' start.
        created_at: When each pod was.
        refused: Calls that the server put off because there were too many.
    """

    calls: Counter[str] = field(default_factory=Counter)
    at: list[float] = field(default_factory=list)
    created_at: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def most_a_second(self) -> int:
        """Most calls within a second."""
        most, first = 0, 0
        for last, time_ in enumerate(self.at):
            while self.at[first] < time_ - 1.0:
                first += 1
            most = max(most, last - first + 1)
        return most


class CountedApi(KubernetesApi):
    """A client that notes its calls."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = CallLog()
        self._guard = threading.Lock()

    def _call(self, method: str, path: str, *rest: Any, **options: Any) -> urllib3.HTTPResponse:
        try:
            response = super()._call(method, path, *rest, **options)
        except ApiError as error:
            with self._guard:
                self.log.refused += error.status == 429
            raise
        kind = path.partition("/namespaces/")[2].split("/")[1]
        watches = ("watch", "true") in next(iter(rest), ())
        with self._guard:
            self.log.calls[f"{'WATCH' if watches else method} {kind}"] += 1
            self.log.at.append(time.monotonic())
            if method == "POST" and kind == "pods":
                self.log.created_at.append(time.monotonic())
        return response


def be_driver(run_folder: Path, kubeconfig: str, job: ClusterJob, channel: Connection) -> None:
    """Opens the launcher, starts the master, and answers the channel until it says stop."""
    folder, access = RunFolder(run_folder), Access.load(run_folder / "job", "launcher")
    client = client_config.new_client_from_config(config_file=kubeconfig)
    api = CountedApi(client, job.namespace)
    with closing(LauncherService(access, LOOPBACK_HOST)) as service:
        context = LauncherContext(
            commands=CommandLines(
                folder.config,
                launcher_address=service.address,
                phase=WorkerPhase(),
                with_fork_server=False,
            ),
            logs_folder=folder.logs,
            options=load_config(folder.config).config.kubernetes,
        )
        with KubernetesLauncher(context, api=api, job=job) as launcher:
            service.serve(launcher)
            launcher.start("master", 0)
            while (question := channel.recv()) != "stop":
                if question == "members":
                    channel.send((launcher.observe(), launcher.failure()))
                else:
                    channel.send((time.process_time(), api.log))
    channel.send(api.log)


# What would run in pods, many in a process.


def play_pods(run_folder: Path, batch_seconds: float, channel: Connection) -> None:
    """Is the members that the channel names, until it says stop."""
    os.nice(NICE)
    server, address = open_server(Access.load(run_folder / "job", "ps"))
    stop, calls, leases = threading.Event(), Tally(), list[float]()
    workers: list[Worker] = []

    def train() -> None:
        due = time.monotonic()
        while not stop.is_set():
            playing = workers[:]
            if not playing:
                stop.wait(_LOOK_SECONDS)
                due = time.monotonic()
            for worker in playing:
                due += batch_seconds / len(playing)
                stop.wait(max(0.0, due - time.monotonic()))
                worker.step(batch_seconds)

    threading.Thread(target=train, daemon=True).start()
    while (told := channel.recv()) != "stop":
        for process in told:
            member = Member(process.role, process.index, process.incarnation, secrets.token_hex(16))
            if process.role == "ps":
                threading.Thread(
                    target=be_server,
                    args=(run_folder, member, address, stop, calls),
                    daemon=True,
                ).start()
                continue
            worker = Worker(member, lambda: TimedLink(connect(run_folder, "worker"), calls, leases))
            worker.session.__enter__()
            # Those of this process come one after the other: on one machine, a thousand that
            # connect at once would starve the master, which has the cores of a node in a cluster.
            worker.session.wait_registered()
            workers.append(worker)
    stop.set()
    server.stop(0)


# The measurement.


class Players:
    """Load processes, and which members they play.

    Args:
        most: Workers that are played: those of the lowest numbers.
        processes: How many.
    """

    def __init__(
        self,
        run_folder: Path,
        batch_seconds: float,
        most: int,
        processes: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._most = most
        self._channels = [
            stack.enter_context(_started(play_pods, run_folder, batch_seconds))[1]
            for _ in range(processes)
        ]
        self._played: set[str] = set()

    def take(self, members: Sequence[ProcessState]) -> None:
        """Plays those whose pods run and whom nobody plays yet."""
        new = [
            one
            for one in members
            if one.role != "master"
            and one.running
            and not one.waits_for
            and one.index < self._most
            and one.incarnation not in self._played
        ]
        self._played.update(one.incarnation for one in new)
        for number, channel in enumerate(self._channels):
            share = [one for one in new if one.index % len(self._channels) == number]
            if share:
                channel.send(share)

    def stop(self) -> None:
        """Plays nobody any more."""
        for channel in self._channels:
            channel.send("stop")


@contextlib.contextmanager
def _started(target: Callable[..., None], *arguments: object) -> Iterator[tuple[Any, Connection]]:
    """A process with a channel to it; it is killed at last."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def measure(
    cluster: Cluster,
    name: str,
    *,
    workers: int,
    played: int,
    batch_seconds: float,
    seconds: float,
    processes: int,
) -> dict[str, Any]:
    """Figures of one job in a namespace of its own, from its start to its deletion."""
    cluster.make_namespace(name)
    job = _make_job(cluster, name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        run_folder = Path(made) / "run"
        prepare_job(
            run_folder,
            servers=_SERVERS,
            workers=workers,
            tasks=_TASKS,
            mode="kubernetes",
            kubernetes=_pod_config(name),
        )
        with contextlib.ExitStack() as stack:
            driver, channel = stack.enter_context(
                _started(be_driver, run_folder, str(cluster.kubeconfig()), job)
            )
            players = Players(run_folder, batch_seconds, played, processes, stack)
            figures = _measure_start(channel, players, run_folder, workers, played)
            submitted = SubmittedJob(_user(cluster, name), name)
            figures |= _measure_work(channel, players, submitted, run_folder, seconds)
            players.stop()
            figures |= _measure_end(driver, channel, workers)
    figures["pods left by the launcher"] = len(_pods(cluster, name))
    cluster.kubectl("delete", "job", name, "--namespace", name, "--wait=false")
    cluster.wait_for(lambda: not _jobs(cluster, name), "end of the job", _PATIENCE_SECONDS)
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    return figures


def _measure_start(
    channel: Connection, players: Players, run_folder: Path, workers: int, played: int
) -> dict[str, Any]:
    """Seconds from the creation of the first pod until all played workers have registered.

    Raises:
        OverdueError: They have not within ten minutes.
    """
    figures: dict[str, Any] = {}
    client: RpcClient | None = None
    give_up = time.monotonic() + _PATIENCE_SECONDS
    began = 0.0
    while "workers that are played registered, s" not in figures:
        if time.monotonic() > give_up:
            raise OverdueError(f"after {_PATIENCE_SECONDS:g} s there is only {figures}")
        time.sleep(_LOOK_SECONDS)
        members = _ask_members(channel)
        players.take(members)
        pods = [one for one in members if one.role == "worker" and one.running]
        if len(pods) == workers and not figures:
            cpu, log = _ask(channel, "used")
            times = sorted(log.created_at)
            began = times[0]
            figures["pods created, s"] = times[-1] - began
            figures["pods created a second"] = (len(times) - 1) / (times[-1] - began)
            figures["most calls a second"] = log.most_a_second
            figures["driver's CPU seconds until then"] = cpu
            figures["master's CPU seconds until then"] = _cpu_of_master(members)
        if figures and sum(not one.waits_for for one in pods) == workers:
            figures.setdefault("all pods run, s", time.monotonic() - began)
        if client is None and (run_folder / "job" / "endpoint.json").exists():
            client = connect(run_folder, "client")
        if client is not None and "all pods run, s" in figures:
            view = client.call("Status", Empty(), JobView, deadline_seconds=_DEADLINE_SECONDS)
            there = sum(one.role == "worker" and one.state in _THERE for one in view.members)
            if there >= played:
                figures["workers that are played registered, s"] = time.monotonic() - began
    if client is not None:
        client.close()
    return figures


def _measure_work(
    channel: Connection,
    players: Players,
    submitted: SubmittedJob,
    run_folder: Path,
    seconds: float,
) -> dict[str, Any]:
    """While all workers train."""
    client = connect(run_folder, "client")
    cpu_before, log_before = _ask(channel, "used")
    master_before = _cpu_of_master(_ask_members(channel))
    view = client.call("Status", Empty(), JobView, deadline_seconds=_DEADLINE_SECONDS)
    rows_before, began = view.records.trained, time.monotonic()
    answers, summaries = list[float](), list[float]()
    while time.monotonic() < began + seconds:
        players.take(_ask_members(channel))
        asked = time.perf_counter()
        view = client.call("Status", Empty(), JobView, deadline_seconds=_DEADLINE_SECONDS)
        answers.append(time.perf_counter() - asked)
        time.sleep(1.0)
    took = time.monotonic() - began
    cpu, log = _ask(channel, "used")
    master = _cpu_of_master(_ask_members(channel))
    client.close()
    for _ in range(3):
        asked = time.perf_counter()
        submitted.summary()
        summaries.append(time.perf_counter() - asked)
    command = [sys.executable, "-m", "ctr_pipeline", "status", str(run_folder)]
    asked = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    told = time.perf_counter() - asked
    states = Counter(one.state for one in view.members if one.role == "worker")
    return {
        "master's cores": (master - master_before) / took,
        "driver's cores": (cpu - cpu_before) / took,
        "driver's calls a second": (len(log.at) - len(log_before.at)) / took,
        "rows a second": (view.records.trained - rows_before) / took,
        "states of workers": dict(states),
        "master answers status, s": max(answers),
        "Kubernetes answers status, s": max(summaries),
        "ctrpipe status, s": told,
        "load": psutil.getloadavg()[0],
    }


def _measure_end(driver: Any, channel: Connection, workers: int) -> dict[str, Any]:
    """The launcher is closed."""
    asked = time.monotonic()
    channel.send("stop")
    log: CallLog = channel.recv()
    took = time.monotonic() - asked
    driver.join(_DEADLINE_SECONDS)
    of_pods = {verb: count for verb, count in log.calls.items() if verb.endswith(" pods")}
    return {
        "launcher closes, s": took,
        "calls by kind": dict(log.calls),
        "calls for a pod": (of_pods["POST pods"] + of_pods["DELETE pods"]) / (workers + _SERVERS),
        "calls that were put off": log.refused,
    }


def _ask(channel: Connection, question: str) -> Any:
    channel.send(question)
    return channel.recv()


def _ask_members(channel: Connection) -> tuple[ProcessState, ...]:
    members, failure = _ask(channel, "members")
    if failure:
        raise OverdueError(f"the master has failed: {failure}")
    return tuple(members)


def _cpu_of_master(members: Sequence[ProcessState]) -> float:
    (pid,) = (one.pid for one in members if one.role == "master")
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _pod_config(namespace: str) -> dict[str, Any]:
    pods = {"cpu": "100m", "memory": "256Mi", **ON_FAKE_NODES}
    return {"namespace": namespace, **_POD, "parameter_servers": pods, "workers": pods}


def _make_job(cluster: Cluster, name: str) -> ClusterJob:
    """A Job that owns the pods and starts none itself."""
    spec = restricted_pod(name, name, _POD["image"], "")["spec"]
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": name, "labels": job_labels(name, "job")},
        "spec": {"suspend": True, "template": {"spec": spec}},
    }
    cluster.apply(manifest)
    uid = cluster.get("job", name, "--namespace", name)["metadata"]["uid"]
    return ClusterJob(name, name, uid)


def _user(cluster: Cluster, namespace: str) -> KubernetesApi:
    client = client_config.new_client_from_config(config_file=str(cluster.kubeconfig()))
    return KubernetesApi(client, namespace)


def _pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    return list(cluster.get("pods", "--namespace", namespace)["items"])


def _jobs(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    return list(cluster.get("jobs,pods", "--namespace", namespace)["items"])


def _print(found: Mapping[str, Mapping[str, Any]]) -> None:
    names = [
        name for name, value in next(iter(found.values())).items() if isinstance(value, int | float)
    ]
    rows = [[name, *(f"{figures[name]:.2f}" for figures in found.values())] for name in names]
    print_table(["", *(f"{workers} workers" for workers in found)], rows)
    for workers, figures in found.items():
        print(f"{workers} workers: {figures['calls by kind']}, {figures['states of workers']}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--nodes", type=int, default=200, help="that KWOK plays")
    parser.add_argument(
        "--played", type=int, default=10_000, help="workers that are played, at most"
    )
    parser.add_argument("--batch-seconds", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=30.0, help="while all workers train")
    parser.add_argument("--processes", type=int, default=4, help="that play members")
    parser.add_argument("--quick", action="store_true", help="8 workers on 4 nodes")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    options = parser.parse_args()
    if lack := missing_rights():
        sys.exit(f"No Kubernetes can be started here: {lack}")
    numbers, nodes, seconds = options.workers, options.nodes, options.seconds
    if options.quick:
        numbers, nodes, seconds = [8], 4, 5.0
    machine = describe_machine()
    cluster = Cluster(f"load-{os.getpid()}")
    found = {}
    cluster.start(nodes=1, owner=this_process())
    try:
        with fake_nodes(cluster, nodes), cluster.network():
            for number in numbers:
                found[str(number)] = measure(
                    cluster,
                    f"load-{number}",
                    workers=number,
                    played=min(number, options.played),
                    batch_seconds=options.batch_seconds,
                    seconds=seconds,
                    processes=options.processes,
                )
    finally:
        cluster.stop()
    print_machine(machine)
    _print(found)
    write_results(options.json, benchmark="cluster_load", machine=machine, results=found)


if __name__ == "__main__":
    try:
        main()
    except (ClusterError, CtrPipelineError, NoBinaries, OverdueError) as error:
        sys.exit(str(error))
