"""A job that `ctrpipe submit` starts on a test cluster, watched while things are done to its pods.

Its master is asked ten times a second over the network of the pods, by the secrets that the user of
the job may read. Everything is called inside `Cluster.network()`.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from job_watch import JobWatch, MissedError
from kubernetes import config as client_config

from ctr_pipeline.apps.cluster.operation import JobSummary, SubmittedJob
from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.distributed.coordination.messages import Empty, Role
from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    DRIVER,
    INDEX_LABEL,
    JOB_LABEL,
    ROLE_LABEL,
)
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.interruption import EXIT_TERMINATED
from ctr_pipeline.pipeline.job.control import MASTER_SERVICE
from ctr_pipeline.progress import SilentProgress
from tests.cluster.kubernetes_cluster import Cluster
from tests.cluster.namespaces import this_process
from tests.cluster.python_image import CTRPIPE_IMAGE, load_python_image

CLAIM = "runs"
_WATCH_SECONDS = 0.1
_SUMMARY_SECONDS = 0.25
_DEADLINE_SECONDS = 3.0
_DELETE_SECONDS = 60.0
ANY_NODE: Mapping[str, Mapping[str, Any]] = {
    role: {"node_selector": {}} for role in ("master", "parameter_servers", "workers")
}
"""Keys of the config's pods that may run on all nodes of the cluster."""


@contextlib.contextmanager
def started_cluster(name: str | None, nodes: int = 1) -> Iterator[Cluster]:
    """A cluster with the image that is stopped at the end, also by SIGTERM.

    Args:
        name: Of one that runs and has the image, which is used instead, and left running.
        nodes: Of one that is started.
    """
    # What was done to nodes is undone as after an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    if name is not None:
        yield Cluster(name)
        return
    cluster = Cluster(f"pods-{os.getpid()}")
    print("starting Kubernetes, and making an image of this environment: minutes", flush=True)
    cluster.start(nodes=nodes, owner=this_process())
    try:
        load_python_image(cluster, packages=True)
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def volume_folder() -> Iterator[Path]:
    """A temporary folder for a `PodRun`; made before the cluster, whose pods may write there."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        # Pods run as a user of their own.
        folder.chmod(0o755)
        yield folder


@contextlib.contextmanager
def cluster_with_rows(
    name: str | None, num_rows: int, nodes: int = 1
) -> Iterator[tuple[Cluster, Path]]:
    """A cluster as of `started_cluster`, in its network, and rows in a folder for volumes."""
    with volume_folder() as folder:
        rows = folder / "rows.txt"
        write_criteo_sample(rows, num_rows=num_rows, seed=1, progress=SilentProgress())
        with started_cluster(name, nodes) as cluster, cluster.network():
            yield cluster, rows


def pod_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config for a small machine, with `rows.txt` of the volume as its rows."""
    return {
        **config,
        "data": {**config["data"], "train": "rows.txt"},
        "train": {**config["train"], "batch_size": 128},
        "runtime": {
            "parameter_servers": 1,
            "workers": {"min": 1, "max": 2},
            # All of them compile kernels at once, beside a cluster.
            "startup_timeout_seconds": 600.0,
        },
    }


class PodRun(JobWatch):
    """One job in a namespace of its own; a context manager that removes both.

    Args:
        cluster: Runs, with the image on its first node.
        folder: Config, and the volume that all pods share, go there; `work` is that volume.
        config: As of `pod_config`; `output` and `kubernetes` are set here.
        rows: Training rows.
        name: Of the job and of its namespace.
        pods: Keys of the config's pods beside the usual ones, by role.
    """

    call_seconds = 120.0

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        config: Mapping[str, Any],
        rows: Path,
        *,
        name: str,
        pods: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._kubeconfig = str(cluster.kubeconfig())
        super().__init__({**os.environ, "KUBECONFIG": self._kubeconfig})
        self.cluster, self.folder, self.name = cluster, folder, name
        self.work = folder / "work"
        # Kernels that one member compiled serve the others.
        for path in (self.work, self.work / "kernels"):
            path.mkdir(parents=True, exist_ok=True)
            # Pods run as a user of their own.
            path.chmod(0o777)
        copied = Path(shutil.copyfile(rows, self.work / "rows.txt"))
        copied.chmod(0o644)
        # The node that has the image for certain.
        node = {"node_selector": {"kubernetes.io/hostname": "node0"}}
        usual = {
            "master": {"cpu": "300m", "memory": "3Gi", **node},
            "parameter_servers": {"cpu": "150m", "memory": "2Gi", **node},
            "workers": {"cpu": "150m", "memory": "2Gi", **node},
        }
        section = {
            "namespace": name,
            "image": CTRPIPE_IMAGE,
            "claim": CLAIM,
            "environment": {"NUMBA_CACHE_DIR": f"{KubernetesConfig().folder}/kernels"},
            **{role: {**keys, **(pods or {}).get(role, {})} for role, keys in usual.items()},
        }
        content = {**config, "name": name, "output": f"runs/{name}", "kubernetes": section}
        self.config_path = folder / "config.yaml"
        self.config_path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        self.address = f"k8s:{name}/{name}"
        self.master_address = ""
        self._summary: JobSummary | None = None
        # The API server may be away while the master answers.
        self._asker = threading.Thread(target=self._ask_kubernetes, name="asker", daemon=True)

    def __enter__(self) -> "PodRun":
        self.cluster.make_namespace(self.name)
        self.cluster.make_host_volume(self.name, CLAIM, self.work)
        self._asker.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._asker.join()
        self.cluster.remove_host_volume(self.name, CLAIM)
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    @property
    def summary(self) -> JobSummary:
        """What Kubernetes knew of it a moment ago."""
        if self._summary is None:
            raise MissedError("the job has not been submitted")
        return self._summary

    @property
    def has_ended(self) -> bool:
        """Whether its Job has finished or failed."""
        return self._summary is not None and self._summary.state in {"finished", "failed"}

    def tail(self, num_lines: int = 15) -> str:
        """What Kubernetes knows of its pods, and the last lines of its driver."""
        shown = self.cluster.kubectl("get", "pods", "--namespace", self.name)
        selector = "--selector=app.kubernetes.io/component=driver"
        lines = f"--tail={num_lines}"
        return shown + self.cluster.kubectl("logs", selector, "--namespace", self.name, lines)

    def pod(self, role: str, index: int | None = None) -> str:
        """The name of the pod of a member, or of the `driver`, that runs.

        Raises:
            MissedError: There is none.
        """
        return str(self._running_pod(role, index)["metadata"]["name"])

    def first_pod(self, role: Role) -> str:
        """The pod of the first member of a role; that of the master is the driver's.

        Raises:
            MissedError: It does not run.
        """
        return self.pod(*_component(role))

    def node_of(self, role: Role) -> str:
        """The node of that pod."""
        return str(self._running_pod(*_component(role))["spec"]["nodeName"])

    def placed_at(self, role: Role) -> float:
        """When that pod got its node: Unix time, of which Kubernetes tells full seconds."""
        for condition in self._running_pod(*_component(role))["status"]["conditions"]:
            if condition["type"] == "PodScheduled":
                return datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
        raise MissedError(f"nobody says when the pod of {role} 0 got its node")

    def labels_of(self, role: Role) -> dict[str, str]:
        """Labels that tell the pods of the first member of a role."""
        component, index = _component(role)
        labels = {JOB_LABEL: self.name, ROLE_LABEL: component}
        return labels if index is None else labels | {INDEX_LABEL: str(index)}

    def pods_on(self, node: str) -> set[str]:
        """Names of its pods on a node, also of those that are to end."""
        return {pod["metadata"]["name"] for pod in self._pods_on(node)}

    def members_on(self, node: str) -> list[tuple[Role, int]]:
        """Which members have pods that run there; the master's is that of the driver."""
        found: list[tuple[Role, int]] = []
        for pod in self._pods_on(node):
            if pod["status"]["phase"] != "Running":
                continue
            labels = pod["metadata"]["labels"]
            role, index = labels[ROLE_LABEL], int(labels.get(INDEX_LABEL, 0))
            found.append(("master" if role == DRIVER else role, index))
        return found

    def delete_pods(self, roles: Sequence[Role], *options: str) -> None:
        """Deletes the first pod of each role; returns before they have ended."""
        pods = [self.first_pod(role) for role in roles]
        where = ("--namespace", self.name, "--wait=false")
        self.cluster.kubectl("delete", "pod", *pods, *where, *options)

    def incarnations(self) -> dict[str, str]:
        """Servers and workers, and which start of each it is."""
        return {one.name: one.incarnation for one in self.now.members if one.role != "master"}

    def watch_for_next(self, role: Role, index: int = 0) -> Callable[[], bool]:
        """As of `JobWatch`; another master is told by its address."""
        if role != "master":
            return super().watch_for_next(role, index)
        address = self.master_address
        return lambda: self.master_address != address

    def delete(self) -> list[str]:
        """Deletes the job; returns what is left in the namespace after a minute at most."""
        self.call("delete", self.address)
        give_up = time.monotonic() + _DELETE_SECONDS
        while (left := self.left()) and time.monotonic() < give_up:
            time.sleep(0.5)
        return left

    def left(self) -> list[str]:
        """What lies in the namespace beside that which every namespace has."""
        kinds = "jobs,pods,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies"
        found = self.cluster.get(kinds, "--namespace", self.name)["items"]
        names = {f"{one['kind']} {one['metadata']['name']}" for one in found}
        return sorted(names - {"ConfigMap kube-root-ca.crt", "ServiceAccount default"})

    def metrics(self, fetched: Path) -> dict[str, Any]:
        """`metrics.json` of a folder that was fetched."""
        found: dict[str, Any] = json.loads((fetched / "metrics.json").read_text("utf-8"))
        return found

    def _pods_on(self, node: str) -> list[dict[str, Any]]:
        on_node = f"--field-selector=spec.nodeName={node}"
        found: list[dict[str, Any]] = self.cluster.get("pods", "--namespace", self.name, on_node)[
            "items"
        ]
        return found

    def _running_pod(self, component: str, index: int | None) -> dict[str, Any]:
        labels = {ROLE_LABEL: component} | ({} if index is None else {INDEX_LABEL: index})
        selector = "--selector=" + ",".join(f"{key}={value}" for key, value in labels.items())
        for pod in self.cluster.get("pods", "--namespace", self.name, selector)["items"]:
            found: dict[str, Any] = pod
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                return found
        raise MissedError(f"no pod of {component} {'' if index is None else index} runs")

    def submitted(self) -> SubmittedJob:
        """The job, by a client of its own: one is not shared between threads."""
        client = client_config.new_client_from_config(config_file=self._kubeconfig)
        return SubmittedJob(KubernetesApi(client, self.name), self.name)

    def _ask_kubernetes(self) -> None:
        job = self.submitted()
        while not self._over.wait(_SUMMARY_SECONDS):
            # It is not submitted yet, or deleted, or the API server is away.
            with contextlib.suppress(CtrPipelineError):
                self._summary = job.summary()

    def _watch(self) -> None:
        job = self.submitted()
        line: RpcClient | None = None
        while not self._over.wait(_WATCH_SECONDS):
            try:
                endpoint = load_endpoint(self.work / "runs" / self.name / "job")
                if endpoint is None:
                    continue
                if line is None or line.address != endpoint.address:
                    if line is not None:
                        line.close()
                    line = RpcClient(MASTER_SERVICE, endpoint.address, job.read_access())
                view = line.call("Status", Empty(), JobView, deadline_seconds=_DEADLINE_SECONDS)
                self.master_address = endpoint.address
                self.take_in(view)
            except CtrPipelineError:
                # Not submitted yet, deleted, or no master answers.
                if self.view is not None:
                    self.take_in(None)
        if line is not None:
            line.close()


def _component(role: Role) -> tuple[str, int | None]:
    """What the pod of the first member of a role is called, and its index if it has one."""
    return ("driver", None) if role == "master" else (role, 0)
