"""The test cluster does what tests of ctrpipe rest on."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cluster.kubernetes_cluster import Cluster, ClusterError, remove_abandoned, restricted_pod
from tests.cluster.namespaces import Machine

pytestmark = [pytest.mark.faults, pytest.mark.cluster, pytest.mark.slow]

_SERVER = """
import http.server, sys
print("serving", flush=True)
http.server.HTTPServer(("", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def test_a_restricted_pod_runs_is_logged_and_is_deleted(cluster, namespace, python_image):
    script = """
import os
print("user", os.getuid())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("capabilities", int(status["CapEff"], 16), "seccomp", int(status["Seccomp"]))
try:
    open("/written", "w")
except OSError as error:
    print("errno", error.errno)
"""
    cluster.apply(restricted_pod(namespace, "short", python_image, script))
    cluster.wait_for_phase(namespace, "short", "Succeeded")
    log = cluster.kubectl("logs", "short", "--namespace", namespace)
    assert log == "user 1000\ncapabilities 0 seccomp 2\nerrno 30\n"
    cluster.kubectl("delete", "pod", "short", "--namespace", namespace)
    assert cluster.get("pods", "--namespace", namespace)["items"] == []


def test_the_namespace_refuses_a_pod_that_runs_as_root(cluster, namespace, python_image):
    pod = restricted_pod(namespace, "root", python_image, "pass")
    pod["spec"]["securityContext"] = {}
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        cluster.apply(pod)


def test_pods_reach_services_and_pods_of_other_nodes(cluster, namespace, python_image):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    web = restricted_pod(namespace, "web", python_image, _SERVER, nodeName="node0")
    cluster.apply(service, web)
    server = cluster.wait_for_phase(namespace, "web", "Running")
    address = server["status"]["podIP"]
    script = f"""
import os, time, urllib.request
for url in ("http://{address}:8080", "http://" + os.environ["WEB_SERVICE_HOST"]):
    for _ in range(100):
        try:
            print(urllib.request.urlopen(url, timeout=1).status)
            break
        except OSError:
            time.sleep(0.1)
"""
    cluster.apply(restricted_pod(namespace, "client", python_image, script, nodeName="node1"))
    cluster.wait_for_phase(namespace, "client", "Succeeded")
    assert cluster.kubectl("logs", "client", "--namespace", namespace) == "200\n200\n"


def test_a_lost_node_is_known_and_comes_back(cluster):
    cluster.kill_node(1)
    cluster.wait_for(lambda: not cluster.node_is_ready("node1"), "loss of node1", 30)
    cluster.start_node(1)
    cluster.wait_for(lambda: cluster.node_is_ready("node1"), "node1 back")


def test_a_node_without_network_is_known_and_runs_on(cluster, namespace, python_image):
    script = "import time; time.sleep(600)"
    cluster.apply(restricted_pod(namespace, "zombie", python_image, script, nodeName="node1"))
    cluster.wait_for_phase(namespace, "zombie", "Running")
    cluster.cut_node(1)
    try:
        cluster.wait_for(lambda: not cluster.node_is_ready("node1"), "loss of node1", 30)
    finally:
        cluster.heal_node(1)
    cluster.wait_for(lambda: cluster.node_is_ready("node1"), "node1 back")
    pod = cluster.wait_for_phase(namespace, "zombie", "Running")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_the_api_server_is_killed_and_started_again(cluster):
    cluster.signal_program("control", "kube-apiserver", signal.SIGKILL)

    def is_away() -> bool:
        try:
            cluster.kubectl("get", "--raw", "/readyz")
        except ClusterError:
            return True
        return False

    cluster.wait_for(is_away, "end of the API server", 10)
    cluster.start_again("control", "kube-apiserver")
    cluster.wait_for(lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok", "API server")


def test_users_of_tests_may_do_nothing_without_a_role(cluster, namespace):
    with pytest.raises(ClusterError, match=r"alice.*cannot list"):
        cluster.kubectl("get", "pods", "--namespace", namespace, user="alice")


def test_cluster_networks_lead_nowhere_and_a_thread_comes_back_out(cluster):
    namespace_of_thread = Path("/proc/thread-self/ns/net")
    outside = namespace_of_thread.readlink()
    with cluster.network():
        assert namespace_of_thread.readlink() != outside
        with pytest.raises(urllib.error.HTTPError) as inside:
            urllib.request.urlopen("http://10.250.0.1:6443", timeout=5)
    inside.value.close()
    assert inside.value.code == 400  # the API server's answer to HTTP without TLS
    assert namespace_of_thread.readlink() == outside
    routes = subprocess.check_output(cluster.inside(["ip", "route"]), text=True)
    assert "default" not in routes
    assert all(line.startswith(("10.250.0.", "10.244.")) for line in routes.splitlines()), routes


def test_a_crashed_owner_leaves_nothing_after_the_next_start(cluster):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.cluster.kubernetes_cluster import Cluster
from tests.cluster.namespaces import this_process
Cluster("test-crash").start(nodes=1, owner=this_process())
print("started", flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    folder = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "started\n", done.stderr
    left = Cluster("test-crash")
    assert left.running
    assert left.abandoned
    assert cluster.running, "two clusters run side by side"
    machines = [Machine(**state) for state in _machines(left)]
    remove_abandoned()
    assert not any(machine.alive for machine in machines)
    assert not left.folder.exists()
    assert not list(Path("/sys/fs/cgroup").glob("*/ctrpipe-test-crash-*"))
    assert cluster.running


def _machines(cluster: Cluster) -> list[dict[str, int]]:
    content = json.loads((cluster.folder / "state.json").read_text())
    return [state["machine"] for state in content["machines"].values()]
