"""How large the image of `ctrpipe image` is, and how soon each role starts in it.

The image is built by buildah and loaded into a Kubernetes of one node that starts on this machine,
as root. In a pod of the restricted standard, members start as in `startup.py`, and `ctrpipe train`
takes its first step with the kernels of the image and without any.

    export PYTHONPATH=.
    python benchmarks/image.py
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import Spread, describe_machine, print_machine, print_table, write_results

from tests.cluster.built_image import BUILT_IMAGE, NoBuilder, build_image
from tests.cluster.cluster_binaries import NoBinaries
from tests.cluster.kubernetes_cluster import Cluster, ClusterError
from tests.cluster.namespaces import missing_rights, this_process

_TREE = Path(__file__).resolve().parents[1]
_CLAIM = "scripts"
_MOST_SECONDS = 1800
_PROGRAM = """
import json, sys, tempfile
from pathlib import Path

sys.path.insert(0, "benchmarks")
import startup
from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress

repeats = int(sys.argv[1])
with tempfile.TemporaryDirectory() as made:
    folder = Path(made)
    rows = folder / "rows.tsv"
    write_criteo_sample(rows, num_rows=20_000, seed=0, progress=SilentProgress())
    warm = [startup.time_first_step(rows, folder / f"warm{n}", None) for n in range(repeats + 1)]
    cold = [
        startup.time_first_step(rows, folder / f"cold{n}", folder / f"kernels{n}")
        for n in range(repeats)
    ]
    members = startup.time_members(startup.prepare_job(rows, folder / "job"), repeats)
figures = {
    f"ctrpipe {role}: {'registered' if role == 'worker' else 'serves'}": [
        one.seconds for one in starts
    ]
    for role, starts in members.items()
}
figures["ctrpipe train: first step done"] = warm[1:]
figures["the same without compiled kernels"] = cold
print(json.dumps(figures))
"""


@contextlib.contextmanager
def cluster_with_image(name: str | None) -> Iterator[Cluster]:
    """A cluster of one node with the image, which is stopped at the end.

    Args:
        name: Of one that runs and has the image, which is used instead, and left running.
    """
    if name is not None:
        yield Cluster(name)
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        build_image(archive)
        cluster = Cluster(f"image-{os.getpid()}")
        cluster.start(nodes=1, owner=this_process())
        try:
            cluster.load_image(archive)
            archive.unlink()
            yield cluster
        finally:
            cluster.stop()


def time_starts(cluster: Cluster, folder: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds by what starts, in a pod."""
    for name in ("benchmarks", "configs"):
        shutil.copytree(_TREE / name, folder / name)
    namespace = "image"
    cluster.make_namespace(namespace)
    cluster.make_host_volume(namespace, _CLAIM, folder)
    mounts = [("tmp", "/tmp"), (_CLAIM, "/work")]  # noqa: S108  of the pod
    container = {
        "name": "main",
        "image": BUILT_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", _PROGRAM, str(repeats)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "starts", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": _CLAIM, "persistentVolumeClaim": {"claimName": _CLAIM}},
            ],
        },
    }
    try:
        cluster.apply(pod)

        def phase() -> str:
            found = cluster.get("pod", "starts", "--namespace", namespace)
            return str(found["status"]["phase"])

        cluster.wait_for(
            lambda: phase() in {"Succeeded", "Failed"}, "the end of the pod", _MOST_SECONDS
        )
        logs = cluster.kubectl("logs", "starts", "--namespace", namespace)
        if phase() == "Failed":
            raise ClusterError(f"the pod failed: {logs}")
    finally:
        cluster.remove_host_volume(namespace, _CLAIM)
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    figures: dict[str, list[float]] = json.loads(logs.splitlines()[-1])
    return figures


def size_of_image(cluster: Cluster) -> int:
    """Bytes of the image as the node keeps it."""
    (node,) = cluster.get("nodes")["items"]
    images: list[dict[str, Any]] = node["status"]["images"]
    return next(int(one["sizeBytes"]) for one in images if BUILT_IMAGE in one["names"])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="Starts of each.")
    parser.add_argument("--cluster", help=f"One that runs and has the image {BUILT_IMAGE}.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    if lack := missing_rights():
        sys.exit(f"No Kubernetes can be started here: {lack}")
    machine = describe_machine()
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        # Pods run as a user of their own.
        folder.chmod(0o755)
        cluster = stack.enter_context(cluster_with_image(arguments.cluster))
        starts = time_starts(cluster, folder, arguments.repeats)
        num_bytes = size_of_image(cluster)
    spreads = {name: Spread.of(values) for name, values in starts.items()}
    print_machine(machine)
    print(f"The image takes {num_bytes / 1e9:.2f} GB")
    print_table(["what", "seconds"], [[name, one.show(1)] for name, one in spreads.items()])
    results = {"bytes": num_bytes, "seconds": spreads}
    write_results(arguments.json, benchmark="image", machine=machine, results=results)


if __name__ == "__main__":
    try:
        main()
    except (ClusterError, NoBinaries, NoBuilder) as error:
        sys.exit(str(error))
