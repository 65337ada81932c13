"""Kueue in a cluster: it holds pods with a queue back until their queue has quota."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster_binaries import find_kueue
from tests.cluster.kubernetes_cluster import Cluster
from tests.cluster.oci_image import write_image

_IMAGE = "localhost/kueue:1"
_NAMESPACE = "kueue-system"
_WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_CONFIG = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": False},
    "integrations": {"frameworks": ["batch/job", "pod"]},
}
_KINDS_LEFT_OUT = frozenset({"APIService"})
"""Of no use here, and a cluster deletes no namespace while their server is away."""


@contextlib.contextmanager
def installed_kueue(cluster: Cluster) -> Iterator[None]:
    """Kueue runs on the first node, as its own manifests say.

    At the end it is removed but for its custom resource definitions, which disturb nobody.

    Raises:
        ClusterError: It does not become ready.
        NoBinaries: It has not been built.
    """
    program = find_kueue()
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "kueue.tar"
        write_image(
            archive,
            _IMAGE,
            lambda layer: layer.add(program, "manager"),
            entrypoint=["/manager"],
            environment={},
        )
        cluster.load_image(archive, node="node0")
    rendered = cluster.kubectl("kustomize", str(program.with_name("config") / "default"))
    # Only the C parser reads megabytes of definitions in time.
    objects = [one for one in yaml.load_all(rendered, yaml.CSafeLoader) if _is_used(one)]
    for one in objects:
        _adapt(one)
    try:
        # A definition does not fit into the annotation that the client writes when it applies.
        apply = ("apply", "--server-side", "--force-conflicts", "--filename", "-")
        cluster.kubectl(*apply, standard_input=yaml.dump_all(objects, Dumper=yaml.CSafeDumper))
        cluster.wait_for(lambda: _is_ready(cluster), "Kueue", 180)
        yield
    finally:
        for kind in _WEBHOOKS:
            selector = "--selector=app.kubernetes.io/name=kueue"
            cluster.kubectl("delete", kind, selector)
        cluster.kubectl("delete", "namespace", _NAMESPACE, "--wait=false", "--ignore-not-found")


def _is_used(found: dict[str, Any] | None) -> bool:
    return found is not None and found["kind"] not in _KINDS_LEFT_OUT


def _adapt(manifest: dict[str, Any]) -> None:
    """Changes what a small cluster without a registry has to have otherwise."""
    if manifest["kind"] == "ConfigMap":
        manifest["data"] = {"controller_manager_config.yaml": yaml.safe_dump(_CONFIG)}
    if manifest["kind"] == "Deployment":
        spec = manifest["spec"]["template"]["spec"]
        spec["nodeSelector"] = {"kubernetes.io/hostname": "node0"}
        spec["securityContext"]["runAsUser"] = 65532
        (container,) = spec["containers"]
        container |= {"image": _IMAGE, "imagePullPolicy": "Never"}
        container["resources"] = {"requests": {"cpu": "50m", "memory": "256Mi"}}


def _is_ready(cluster: Cluster) -> bool:
    deployment = cluster.get("deployment", "kueue-controller-manager", "--namespace", _NAMESPACE)
    return bool(deployment["status"].get("readyReplicas"))
