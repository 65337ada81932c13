"""The image of `ctrpipe image`, in a pod of the restricted standard."""

import json
from pathlib import Path

import pytest

from tests.cluster.built_image import BUILT_IMAGE, build_image, lack_of_builder
from tests.cluster.kubernetes_cluster import restricted_pod

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

CONFIG = Path(__file__).parents[2] / "configs/criteo_elastic.yaml"

# Trains by processes of all roles, while it looks what they have loaded.
PROGRAM = """
import json, os, pathlib, shutil, subprocess, sys, time

os.chdir("/tmp")
call = lambda *command: subprocess.run(["ctrpipe", *command], check=True, stdout=sys.stderr)
call("sample", "criteo", "--rows", "4000", "--output", "rows.txt")
pathlib.Path("config.yaml").write_text(os.environ["CONFIG"])
settings = ["data.train=rows.txt", "train.epochs=1", "model.embedding_dim=4", "output=run"]
arguments = [part for one in settings for part in ("--set", one)]
job = subprocess.Popen(["ctrpipe", "train", "config.yaml", *arguments], stdout=sys.stderr)
with_tensorflow = {}
while job.poll() is None:
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\\0")
            maps = (folder / "maps").read_text()
        except OSError:
            continue
        # Workers are forked from a process that has loaded what they need.
        named = {"ctr_pipeline.cli.fork_server": "worker", "master": "master", "ps": "ps"}
        for role in [named[word] for word in words[:5] if word in named]:
            with_tensorflow[role] = with_tensorflow.get(role, False) or "tensorflow" in maps
    time.sleep(0.1)
kernels = list(pathlib.Path(f"/tmp/ctrpipe-kernels-{os.getuid()}").rglob("*.nbc"))
try:
    pathlib.Path("/opt/ctrpipe/file").touch()
    is_writable = True
except OSError:
    is_writable = False
print(json.dumps({
    "user": os.getuid(),
    "is_writable": is_writable,
    "compilers": [
        one for one in ("cc", "gcc", "g++", "clang", "ld", "as", "make", "go", "rustc", "pip")
        if shutil.which(one)
    ],
    "result": job.returncode,
    "with_tensorflow": with_tensorflow,
    "kernels": len(kernels),
    "compiled_here": [one.name for one in kernels if not one.is_symlink()],
    "sbom": json.loads(pathlib.Path("/opt/ctrpipe/sbom.json").read_text()),
}))
"""


@pytest.fixture(scope="module")
def image(cluster, tmp_path_factory):
    """The first node has the image, as it already may in a cluster that somebody keeps."""
    (node,) = (one for one in cluster.get("nodes")["items"] if one["metadata"]["name"] == "node0")
    if any(BUILT_IMAGE in one["names"] for one in node["status"]["images"]):
        return
    if lack := lack_of_builder():
        pytest.skip(f"no image can be built here: {lack}")
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    build_image(archive)
    cluster.load_image(archive, node="node0")
    archive.unlink()


def test_every_role_starts_warm_without_rights_compilers_and_for_two_of_them_tensorflow(
    cluster, namespace, image
):
    pod = restricted_pod(namespace, "roles", BUILT_IMAGE, PROGRAM, nodeName="node0")
    container = pod["spec"]["containers"][0]
    container["command"], container["args"] = ["python", "-c"], [PROGRAM]
    container["env"] = [{"name": "CONFIG", "value": CONFIG.read_text()}]
    container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108  of the pod
    pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    # As the image says.
    del pod["spec"]["securityContext"]["runAsUser"]
    cluster.apply(pod)
    ended = {"Succeeded", "Failed"}
    read = lambda: cluster.get("pod", "roles", "--namespace", namespace)["status"]["phase"]  # noqa: E731
    cluster.wait_for(lambda: read() in ended, "the end of the pod", 600)
    logs = cluster.kubectl("logs", "roles", "--namespace", namespace)
    assert read() == "Succeeded", logs
    found = json.loads(logs.splitlines()[-1])
    assert found["user"] == 10001
    assert not found["is_writable"]
    assert found["compilers"] == []
    assert found["result"] == 0, logs
    assert found["with_tensorflow"] == {"master": False, "ps": False, "worker": True}
    assert found["kernels"] > 20
    assert found["compiled_here"] == []
    names = {one["name"] for one in found["sbom"]["components"]}
    assert {"tensorflow_cpu", "numba", "kubernetes"} <= names
    assert "pip" not in names
