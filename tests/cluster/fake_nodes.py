"""Nodes that KWOK plays: pods that are bound to them count as running, and nothing runs.

They are for what many pods cost whoever manages them. Only pods that tolerate it are bound there.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from tests.cluster.cluster_binaries import KWOK_SOURCES, obtain_kwok
from tests.cluster.kubernetes_cluster import CONTROL, Cluster

_TAINT = "kwok.x-k8s.io/node"
_LABEL = "type"
_LEASE_SECONDS = 24
"""KWOK renews it after a quarter: the cluster misses a node after eight seconds."""

ON_FAKE_NODES: dict[str, Any] = {
    "node_selector": {_LABEL: "kwok"},
    "tolerations": ({"key": _TAINT, "operator": "Exists", "effect": "NoSchedule"},),
}
"""What pods of a config need so that they are bound there, and nowhere else."""


@contextlib.contextmanager
def fake_nodes(cluster: Cluster, number: int) -> Iterator[None]:
    """A cluster has so many more nodes, of 8 cores, 64 GiB and 110 pods each.

    Raises:
        ClusterError: They do not become ready.
        NoBinaries: KWOK cannot be built.
    """
    cluster.start_program(
        CONTROL,
        "kwok",
        [
            str(obtain_kwok()),
            f"--kubeconfig={cluster.kubeconfig()}",
            f"--config={KWOK_SOURCES / 'stages.yaml'}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-label-selector={_LABEL}=kwok",
            f"--node-lease-duration-seconds={_LEASE_SECONDS}",
        ],
    )
    try:
        cluster.apply(*(_node(index) for index in range(number)))
        cluster.wait_for(lambda: _count_ready(cluster) == number, f"{number} ready fake nodes")
        yield
    finally:
        cluster.signal_program(CONTROL, "kwok", signal.SIGKILL)
        cluster.kubectl("delete", "nodes", f"--selector={_LABEL}=kwok", "--wait=false")


def _node(index: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"fake{index}", "labels": {_LABEL: "kwok"}},
        "spec": {"taints": [{"key": _TAINT, "value": "fake", "effect": "NoSchedule"}]},
    }


def _count_ready(cluster: Cluster) -> int:
    nodes = cluster.get("nodes", f"--selector={_LABEL}=kwok")["items"]
    return sum(
        any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        for node in nodes
        if (conditions := node.get("status", {}).get("conditions", ()))
    )
