"""What elastic jobs gain where they share a cluster: with each other, and with an online service.

A Kubernetes of one node starts on this machine, as root. A pod that does nothing leaves so many
cores of it that two jobs do not fit beside each other, and each member may use no more than it has
asked for.

`jobs`: two equal jobs, submitted one after the other. *Elastic*: the second begins with the workers
that there is room for, and gets the others when the first has ended. *Gang*: the second waits until
there is room for all of it, which is when the first has ended. As the first experiment of ElasticDL
(580 seconds instead of 795): a job asks for 13 of 24 there, for 7 of 13 here.

`service`: a deployment of higher priority grows and shrinks over a job whose workers give way.

    export PYTHONPATH=.
    python benchmarks/cluster_sharing.py jobs service
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from elastic_demo import load_config
from job_watch import CommandError, OverdueError
from machine import Spread, describe_machine, print_machine, print_table, write_results
from pod_run import PodRun, cluster_with_rows, pod_config

from tests.cluster.cluster_binaries import NoBinaries
from tests.cluster.kubernetes_cluster import Cluster, ClusterError, cpu_millis_of, waiting_pod
from tests.cluster.namespaces import missing_rights
from tests.cluster.python_image import CTRPIPE_IMAGE

_CONFIG = Path(__file__).parents[1] / "configs" / "criteo_elastic.yaml"
_ROWS = 40_000
_NODE = "node0"
_UNIT_MILLIS = 100
_CAPACITY = 13
_MASTER, _SERVER, _WORKERS = 2, 1, 4
_HIGH, _LOW = "sharing-high", "sharing-low"
_END_SECONDS = 1800.0
_SAMPLE_SECONDS = 0.5
_SERVICE_STEPS = (1, 4, 2, 4, 1)
"""Pods of the service, one number after the other."""
_STEP_SECONDS = 30.0

Figures = dict[str, float]


class Use(contextlib.AbstractContextManager["Use"]):
    """A thread that notes how many cores of the room the pods that run have asked for.

    Args:
        namespaces: Whose pods count.
    """

    def __init__(self, cluster: Cluster, namespaces: Sequence[str]) -> None:
        self._cluster, self._namespaces = cluster, namespaces
        self.samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="use", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def share_between(self, first: float, last: float) -> float:
        """The mean share of the room in use between two moments."""
        taken = [share for at, share in self.samples if first <= at <= last]
        return sum(taken) / len(taken)

    def _watch(self) -> None:
        running = "--field-selector=status.phase=Running"
        while not self._over.wait(_SAMPLE_SECONDS):
            pods = self._cluster.get("pods", "--all-namespaces", running)["items"]
            counted = [one for one in pods if one["metadata"]["namespace"] in self._namespaces]
            share = sum(map(cpu_millis_of, counted)) / (_CAPACITY * _UNIT_MILLIS)
            self.samples.append((time.monotonic(), share))


@contextlib.contextmanager
def bounded_room(cluster: Cluster, name: str) -> Iterator[None]:
    """A node with room for `_CAPACITY` units, and classes of priority; `name` is a namespace."""
    cluster.make_namespace(name)
    account = ("serviceaccount/default", "--namespace", name)
    cluster.kubectl("wait", "--for=create", *account, "--timeout=30s")
    cluster.make_priority_class(_HIGH, 1000)
    cluster.make_priority_class(_LOW, -10)
    taken = cluster.free_cpu_millis(_NODE) - _CAPACITY * _UNIT_MILLIS
    on_node = {"kubernetes.io/hostname": _NODE}
    cluster.apply(waiting_pod(name, "rest", taken, priorityClassName=_HIGH, nodeSelector=on_node))
    cluster.wait_for_phase(name, "rest", "Running")
    try:
        yield
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=true")
        cluster.kubectl("delete", "priorityclass", _HIGH, _LOW)


def make_job(cluster: Cluster, folder: Path, rows: Path, name: str, epochs: int) -> PodRun:
    """A job of `_WORKERS` workers at most, which has not been submitted."""
    config = pod_config(load_config(_CONFIG, epochs))
    config["runtime"]["workers"] = {"min": 1, "max": _WORKERS}

    def units(number: int) -> dict[str, str]:
        cores = f"{number * _UNIT_MILLIS}m"
        return {"cpu": cores, "cpu_limit": cores}

    pods = {
        "master": units(_MASTER),
        "parameter_servers": units(_SERVER),
        "workers": {**units(1), "priority_class": _LOW},
    }
    own = folder / name
    own.mkdir()
    return PodRun(cluster, own, config, rows, name=name, pods=pods)


def submit(run: PodRun) -> float:
    """Submits a job; when it did, monotonic."""
    run.call("submit", str(run.config_path))
    return time.monotonic()


def await_end(run: PodRun) -> float:
    """Waits until a job has finished; when it had, monotonic."""
    run.wait_for("the end", lambda: run.has_ended, _END_SECONDS)
    if run.summary.state != "finished":
        raise OverdueError(f"{run.name} {run.summary.state}: {run.tail(40)}")
    return time.monotonic()


def time_jobs(
    cluster: Cluster, folder: Path, rows: Path, name: str, epochs: int, *, elastic: bool
) -> Figures:
    """Two jobs that do not fit beside each other."""
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(make_job(cluster, folder, rows, f"{name}-{one}", epochs))
            for one in ("first", "second")
        )
        use = stack.enter_context(Use(cluster, (first.name, second.name)))
        began = submit(first)
        if elastic:
            first.wait_for(
                "all workers", lambda: first.summary.pods.get("worker") == _WORKERS, _END_SECONDS
            )
        else:
            await_end(first)
        asked = submit(second)
        second.wait_for("a first step", lambda: second.now.records.trained, _END_SECONDS)
        stepped = time.monotonic()
        ends = [await_end(one) for one in (first, second)] if elastic else [await_end(second)]
        return {
            "both have ended after, s": max(ends) - began,
            "second job's first step after its submission, s": stepped - asked,
            "share of the cores asked for, %": 100 * use.share_between(began, max(ends)),
        }


def scale_service(cluster: Cluster, name: str, number: int) -> float:
    """Changes the pods of the service; seconds until as many run."""
    began = time.monotonic()
    cluster.kubectl("scale", "deployment/service", f"--replicas={number}", "--namespace", name)

    def runs() -> bool:
        found = cluster.get("deployment", "service", "--namespace", name)
        return int(found["status"].get("readyReplicas", 0)) == number

    cluster.wait_for(runs, f"{number} pods of the service", 120.0)
    return time.monotonic() - began


def make_service(cluster: Cluster, name: str) -> None:
    """A deployment of one pod of a unit, of high priority."""
    pod = waiting_pod(
        name,
        "service",
        _UNIT_MILLIS,
        priorityClassName=_HIGH,
        restartPolicy="Always",
        nodeSelector={"kubernetes.io/hostname": _NODE},
    )
    labels = pod["metadata"]["labels"]
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "service", "namespace": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
            },
        }
    )


def time_service(cluster: Cluster, folder: Path, rows: Path, name: str, room: str) -> Figures:
    """A service of higher priority that grows and shrinks over a job.

    Args:
        room: Namespace of the service.
    """
    make_service(cluster, room)
    others = (_CAPACITY - _MASTER - _SERVER - _WORKERS - 1) * _UNIT_MILLIS
    on_node = {"kubernetes.io/hostname": _NODE}
    # So that the service and the job fill the room.
    cluster.apply(
        waiting_pod(room, "others", others, priorityClassName=_HIGH, nodeSelector=on_node)
    )
    with (
        make_job(cluster, folder, rows, name, 1_000) as run,
        Use(cluster, (name, room)) as use,
    ):
        submit(run)
        run.wait_for("training", run.is_training, _END_SECONDS)
        run.wait_for(
            "all workers", lambda: run.summary.pods.get("worker") == _WORKERS, _END_SECONDS
        )
        began, waits, before = time.monotonic(), [], 1
        for number in _SERVICE_STEPS:
            seconds = scale_service(cluster, room, number)
            if number > before:
                waits.append(seconds)
            before = number
            time.sleep(_STEP_SECONDS)
        ended = time.monotonic()
        rest = cpu_millis_of(cluster.get("pod", "rest", "--namespace", room))
        outside = rest / (_CAPACITY * _UNIT_MILLIS)
        figures = {
            "the service runs after, s": max(waits),
            "share of the cores asked for, %": 100 * (use.share_between(began, ended) - outside),
            "records computed again": float(run.now.records.repeated),
            "records dropped": float(run.now.records.dropped),
        }
        if left := run.delete():
            raise OverdueError(f"the deleted job left {', '.join(left)}")
    return figures


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="+", choices=("jobs", "service"))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8, help="Of each of two jobs.")
    parser.add_argument("--cluster", help=f"One that runs and has the image {CTRPIPE_IMAGE}.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    if lack := missing_rights():
        sys.exit(f"No Kubernetes can be started here: {lack}")
    machine = describe_machine()
    found: dict[str, list[Mapping[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        cluster, rows = stack.enter_context(cluster_with_rows(arguments.cluster, _ROWS))
        folder = rows.parent
        stack.enter_context(bounded_room(cluster, "sharing"))
        for turn in range(arguments.turns):
            if "jobs" in arguments.experiments:
                for side in ("elastic", "gang"):
                    figures = time_jobs(
                        cluster,
                        folder,
                        rows,
                        f"{side}-{os.getpid()}-{turn}",
                        arguments.epochs,
                        elastic=side == "elastic",
                    )
                    found.setdefault(side, []).append(figures)
                    print(f"{side}: {figures}", flush=True)
            if "service" in arguments.experiments:
                figures = time_service(
                    cluster, folder, rows, f"shared-{os.getpid()}-{turn}", "sharing"
                )
                found.setdefault("service", []).append(figures)
                cluster.kubectl("delete", "deployment/service", "pod/others", "-n", "sharing")
    print_machine(machine)
    results: dict[str, Any] = {
        side: {name: Spread.of([one[name] for one in turns]) for name in turns[0]}
        for side, turns in found.items()
    }
    for side, figures_of in results.items():
        print_table([side, ""], [[name, spread.show(1)] for name, spread in figures_of.items()])
    if "gang" in found:
        total = "both have ended after, s"
        ratios = [
            one[total] / other[total]
            for one, other in zip(found["elastic"], found["gang"], strict=True)
        ]
        results["elastic / gang"] = Spread.of(ratios)
        print(f"Both jobs, elastic / gang: {results['elastic / gang'].show(2)}")
    write_results(arguments.json, benchmark="cluster_sharing", machine=machine, results=results)


if __name__ == "__main__":
    try:
        main()
    except (ClusterError, CommandError, NoBinaries, OverdueError) as error:
        sys.exit(str(error))
