"""A real Kubernetes on this machine, for tests: control plane and nodes in namespaces of their own.

Each machine of the cluster (`control`, `node0`, …) is a set of Linux namespaces. The nodes hang on
a bridge in the namespace of the control plane, and nothing leads out of these networks, so several
clusters run side by side with the same addresses. `state.json` in the cluster's folder names what
runs, so that any later process can stop it.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ctr_pipeline.distributed.launchers.kubernetes.api import parse_quantity
from tests.cluster.cluster_binaries import cache_folder, find_binaries
from tests.cluster.cluster_certificates import make_certificates
from tests.cluster.namespaces import (
    Machine,
    make_control_groups,
    remove_control_groups,
    start_machine,
)
from tests.cluster.oci_image import write_image

CONTROL = "control"
_CONTROL_ADDRESS = "10.250.0.1"
_FIRST_SERVICE_ADDRESS = "10.96.0.1"
_MAX_NODES = 16
PAUSE_IMAGE = "localhost/pause:1"
# Users of tests with their groups. Only the first may do anything before RBAC says so.
_USERS = {"admin": "system:masters", "alice": "", "bob": ""}
_START_SECONDS = 120.0
_PROCESSES = Path("/proc")


class ClusterError(Exception):
    """The cluster does not do what it should; holds the end of the log that says why."""


@dataclass
class _MachineState:
    """What runs on a machine: commands by the program's name, and ids inside the machine."""

    machine: Machine
    commands: dict[str, list[str]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)


class Cluster:
    """One cluster, running or not.

    Args:
        name: Small letters, digits and dashes. Clusters of different names do not meet.
    """

    def __init__(self, name: str = "default") -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", name):
            raise ValueError(f"'{name}' is not of small letters, digits and dashes")
        self.name = name
        self.folder = clusters_folder() / name
        self._machines: dict[str, _MachineState] = {}
        self._owner: Machine | None = None
        with contextlib.suppress(FileNotFoundError):
            self._load()

    @property
    def running(self) -> bool:
        """Whether its control plane's machine is there."""
        return CONTROL in self._machines and self._machines[CONTROL].machine.alive

    def start(self, nodes: int = 2, *, owner: Machine | None = None) -> None:
        """Starts it; returns when all nodes are ready. Removes what crashed owners left.

        Args:
            nodes: How many.
            owner: The process without which nobody needs this cluster.

        Raises:
            ClusterError: It runs already, or does not start.
            NoBinaries: Its programs have not been built.
        """
        if not 1 <= nodes <= _MAX_NODES:
            raise ClusterError(f"a cluster has 1 to {_MAX_NODES} nodes, not {nodes}")
        find_binaries()
        remove_abandoned()
        if self.running:
            raise ClusterError(f"cluster '{self.name}' runs already")
        self.stop()
        (self.folder / "logs").mkdir(parents=True)
        self._owner = owner
        try:
            self._save()
            addresses = [_CONTROL_ADDRESS, _FIRST_SERVICE_ADDRESS, "127.0.0.1"]
            make_certificates(self.folder / "certificates", addresses)
            self._write_users()
            self._start_control_plane()
            for index in range(nodes):
                self.start_node(index)
            names = [f"node{index}" for index in range(nodes)]
            self.wait_for(lambda: all(self.node_is_ready(name) for name in names), "ready nodes")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops it and removes everything of it; a cluster that does not run is none."""
        for state in self._machines.values():
            state.machine.kill()
        for name in [*self._machines, *(f"node{index}" for index in range(_MAX_NODES))]:
            remove_control_groups(self._control_group(name))
        self._machines = {}
        if self.folder.exists():
            # A mount is in a private namespace that is gone, so this never reaches through one.
            shutil.rmtree(self.folder)

    def kubeconfig(self, user: str = "admin") -> Path:
        """The kubeconfig of a user: `admin`, or `alice` and `bob`, whom RBAC allows nothing yet."""
        return self.folder / f"{user}.kubeconfig"

    def network(self) -> contextlib.AbstractContextManager[None]:
        """The calling thread uses the cluster's network inside: clients reach the API server."""
        return self._machines[CONTROL].machine.network()

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command in the cluster's network, with the files of the host."""
        return self._machines[CONTROL].machine.command(command, "net")

    def kubectl(self, *arguments: str, user: str = "admin", standard_input: str = "") -> str:
        """Runs kubectl and returns what it prints.

        Raises:
            ClusterError: It failed; holds what it wrote to standard error.
        """
        program = [str(self._bin / "kubernetes"), "kubectl", "--kubeconfig"]
        done = subprocess.run(
            self.inside([*program, str(self.kubeconfig(user)), *arguments]),
            input=standard_input,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get` shows as JSON."""
        content: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output", "json"))
        return content

    def apply(self, *objects: dict[str, Any]) -> None:
        """Creates or changes objects."""
        text = yaml.safe_dump_all(objects)
        self.kubectl("apply", "--filename", "-", standard_input=text)

    def make_namespace(self, name: str) -> None:
        """Makes a namespace that enforces the restricted pod security standard."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def make_priority_class(self, name: str, value: int) -> None:
        """Pods that name it go before those of a lower value."""
        self.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )

    def make_host_volume(self, namespace: str, name: str, folder: Path) -> None:
        """Makes a claim that stands for a folder of this machine, the same on all nodes."""
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = f"{namespace}-{name}"
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    **spec,
                    "capacity": {"storage": "10Gi"},
                    "hostPath": {"path": str(folder), "type": "Directory"},
                    "claimRef": {"namespace": namespace, "name": name},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    **spec,
                    "volumeName": volume,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        )

    def remove_host_volume(self, namespace: str, name: str) -> None:
        """Removes what `make_host_volume` made, as soon as nothing uses it; the folder stays."""
        claim = ("persistentvolumeclaim", name, "--namespace", namespace)
        for words in (claim, ("persistentvolume", f"{namespace}-{name}")):
            self.kubectl("delete", *words, "--wait=false", "--ignore-not-found")

    def load_image(self, archive: Path, *, node: str | None = None) -> None:
        """Imports an OCI archive on a node; None: on every node that runs."""
        for name, state in self._machines.items():
            if name == node or (node is None and name != CONTROL and state.machine.alive):
                self._import(state.machine, archive)

    def node_is_ready(self, name: str) -> bool:
        """Whether the API server holds the node ready."""
        for node in self.get("nodes")["items"]:
            if node["metadata"]["name"] == name:
                conditions = node["status"]["conditions"]
                return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return False

    def wait_for(
        self, condition: Callable[[], bool], what: str, seconds: float = _START_SECONDS
    ) -> None:
        """Returns when the condition holds.

        Raises:
            ClusterError: It does not within the time.
        """
        deadline = time.monotonic() + seconds
        error: ClusterError | None = None
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except ClusterError as passing:
                error = passing
            time.sleep(0.2)
        logs = "\n".join(
            f"{path.name}: {lines[-1]}"
            for path in sorted((self.folder / "logs").iterdir())
            if (lines := path.read_text(errors="replace").splitlines())
        )
        raise ClusterError(f"no {what} within {seconds:.0f} s; {error or ''}\n{logs}")

    def wait_for_phase(self, namespace: str, name: str, phase: str) -> dict[str, Any]:
        """The pod once it is in a phase.

        Raises:
            ClusterError: It is not within a minute.
        """
        pod: dict[str, Any] = {}

        def is_reached() -> bool:
            nonlocal pod
            pod = self.get("pod", name, "--namespace", namespace)
            return bool(pod["status"]["phase"] == phase)

        self.wait_for(is_reached, f"pod {name} in phase {phase}", 60)
        return pod

    # Faults ----------------------------------------------------------------------------------

    def free_cpu_millis(self, node: str) -> int:
        """Thousandths of cores of a node that no pod on it has asked for."""
        running = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        pods = self.get("pods", "--all-namespaces", f"--field-selector={running}")["items"]
        there = self.get("node", node)["status"]["allocatable"]["cpu"]
        return round(1000 * parse_quantity(there)) - sum(map(cpu_millis_of, pods))

    def kill_node(self, index: int) -> None:
        """A machine is lost: the kubelet and all pods on it end at once."""
        name = f"node{index}"
        self._machines.pop(name).machine.kill()
        remove_control_groups(self._control_group(name))
        self._save()

    def cut_node(self, index: int) -> None:
        """The node's network ends at the bridge; its pods run on."""
        self._control_machine.run(["ip", "link", "set", f"to-node{index}", "down"])

    def heal_node(self, index: int) -> None:
        """Undoes `cut_node`."""
        self._control_machine.run(["ip", "link", "set", f"to-node{index}", "up"])

    @contextlib.contextmanager
    def only_on(self, node: str) -> Iterator[None]:
        """New pods go to no other node."""
        names = [one["metadata"]["name"] for one in self.get("nodes")["items"]]
        others = [name for name in names if name != node]
        if others:
            self.kubectl("cordon", *others)
        try:
            yield
        finally:
            if others:
                self.kubectl("uncordon", *others)

    def evict_pod(self, namespace: str, name: str) -> None:
        """Asks for the end of a pod as those do who respect disruption budgets."""
        address = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        self.kubectl(
            "create", "--raw", address, "--filename", "-", standard_input=json.dumps(eviction)
        )

    def crash_pod(self, namespace: str, name: str) -> None:
        """Ends the containers of a pod by SIGKILL: a deletion would ask them first.

        Raises:
            ClusterError: None of its processes is seen.
        """
        for pid in self.find_processes(namespace, name):
            os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def without_image(self, node: str, name: str) -> Iterator[None]:
        """A node does not find an image, which it has, under its name."""
        images = [*self._ctr, "images"]
        machine = self._machines[node].machine
        machine.run([*images, "tag", "--force", name, f"{name}-hidden"])
        machine.run([*images, "remove", name])
        try:
            yield
        finally:
            machine.run([*images, "tag", "--force", f"{name}-hidden", name])

    def find_processes(self, namespace: str, name: str) -> list[int]:
        """The first process of each container of a pod, by its id on this machine.

        Raises:
            ClusterError: None is seen.
        """
        pod = self.get("pod", name, "--namespace", namespace)
        folder = f"pod{pod['metadata']['uid']}"
        first = [path for path in _PROCESSES.glob("[0-9]*") if _is_first_of(path, folder)]
        if not first:
            raise ClusterError(f"no process of pod {name} is seen on this machine")
        return [int(path.name) for path in first]

    def cut_connections(self, namespace: str, name: str) -> None:
        """Breaks off all connections of a pod to the API server, as a load balancer may."""
        pid = self.find_processes(namespace, name)[0]
        command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ss", "--kill", "--tcp", "--no-header"]
        done = subprocess.run(
            [*command, "dst", _FIRST_SERVICE_ADDRESS], capture_output=True, text=True, check=False
        )
        if not done.stdout.strip():
            raise ClusterError(f"no connection of pod {name} was broken off: {done.stderr}")

    def start_program(self, machine: str, program: str, command: list[str]) -> None:
        """Starts a program on a machine, with a log of its own."""
        state = self._machines[machine]
        path = f"PATH={self._bin}:{os.environ['PATH']}"
        log = self.folder / "logs" / f"{machine}-{program}.log"
        state.commands[program] = command
        state.pids[program] = state.machine.start_program(["env", path, *command], log)
        self._save()

    def signal_program(self, machine: str, program: str, number: signal.Signals) -> None:
        """Sends a signal to a program such as `kube-apiserver` of `control`."""
        state = self._machines[machine]
        state.machine.send_signal(state.pids[program], number)

    def start_again(self, machine: str, program: str) -> None:
        """Starts a program that was killed, as it was started before."""
        self.start_program(machine, program, self._machines[machine].commands[program])

    # Parts -----------------------------------------------------------------------------------

    @property
    def _bin(self) -> Path:
        return find_binaries() / "bin"

    @property
    def _control_machine(self) -> Machine:
        return self._machines[CONTROL].machine

    def _control_group(self, machine: str) -> str:
        return f"ctrpipe-{self.name}-{machine}"

    def _write_users(self) -> None:
        users = {
            **_USERS,
            "system:kube-controller-manager": "",
            "system:kube-scheduler": "",
            "system:kube-proxy": "",
            **{f"system:node:node{index}": "system:nodes" for index in range(_MAX_NODES)},
        }
        authority = self.folder / "certificates" / "ca.crt"
        tokens = []
        for user, group in users.items():
            token = secrets.token_urlsafe(24)
            tokens.append(f'{token},{user},{user},"{group}"\n')
            server = {
                "server": f"https://{_CONTROL_ADDRESS}:6443",
                "certificate-authority": str(authority),
            }
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": self.name, "cluster": server}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user}}],
                "current-context": self.name,
            }
            self._write(f"{user.rpartition(':')[2]}.kubeconfig", yaml.safe_dump(content))
        self._write("tokens.csv", "".join(tokens))

    def _write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)
        return path

    def _start_control_plane(self) -> None:
        machine = self._start_machine(CONTROL)
        machine.run(["ip", "link", "set", "lo", "up"])
        machine.run(["ip", "link", "add", "nodes", "type", "bridge"])
        machine.run(["ip", "address", "add", f"{_CONTROL_ADDRESS}/24", "dev", "nodes"])
        machine.run(["ip", "link", "set", "nodes", "up"])
        self._add_pod_routes(machine, None)
        certificates = self.folder / "certificates"
        service_accounts = certificates / "service-accounts.key"
        etcd = "http://127.0.0.1:2379"
        self._run_kubernetes(
            CONTROL,
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._run_kubernetes(
            CONTROL,
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--advertise-address={_CONTROL_ADDRESS}",
            "--secure-port=6443",
            f"--tls-cert-file={certificates / 'apiserver.crt'}",
            f"--tls-private-key-file={certificates / 'apiserver.key'}",
            f"--client-ca-file={certificates / 'ca.crt'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # Webhooks are called at their pods: no kube-proxy runs on this machine.
            "--enable-aggregator-routing",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={service_accounts}",
            f"--service-account-signing-key-file={service_accounts}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={certificates / 'kubelet-client.crt'}",
            f"--kubelet-client-key={certificates / 'kubelet-client.key'}",
        )
        self.wait_for(lambda: self.kubectl("get", "--raw", "/readyz") == "ok", "API server")
        manager = self.kubeconfig("kube-controller-manager")
        self._run_kubernetes(
            CONTROL,
            "kube-controller-manager",
            f"--kubeconfig={manager}",
            f"--service-account-private-key-file={service_accounts}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--root-ca-file={certificates / 'ca.crt'}",
            # A lost node is known soon, so that a test does not wait for minutes.
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
        )
        scheduler = self.kubeconfig("kube-scheduler")
        self._run_kubernetes(
            CONTROL,
            "kube-scheduler",
            f"--kubeconfig={scheduler}",
            f"--authentication-kubeconfig={scheduler}",
            f"--authorization-kubeconfig={scheduler}",
            "--leader-elect=false",
        )
        self.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "kube-proxy"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "system:node-proxier",
                },
                "subjects": [{"kind": "User", "name": "system:kube-proxy"}],
            }
        )

    def start_node(self, index: int) -> None:
        """Starts a node, or starts again one that was killed, with its images and an old name."""
        name = f"node{index}"
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        machine = self._start_machine(name)
        # Sockets, links of logs and the like stay inside and vanish with the machine.
        for private in ("/run", "/var/log"):
            machine.run(["mount", "-t", "tmpfs", "tmpfs", private])
        self._connect_node(machine, index)
        make_control_groups(self._control_group(name))
        self.start_program(name, "containerd", self._containerd_command(folder, index))
        self.wait_for(lambda: self._containerd_answers(machine), f"containerd on {name}")
        self._import(machine, self._pause_image())
        self._run_kubernetes(
            name,
            "kubelet",
            f"--config={self._kubelet_config(folder, name)}",
            f"--kubeconfig={self.kubeconfig(name)}",
            f"--hostname-override={name}",
            f"--node-ip={_node_address(index)}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet-certificates'}",
        )
        self._run_kubernetes(
            name,
            "kube-proxy",
            f"--kubeconfig={self.kubeconfig('kube-proxy')}",
            f"--hostname-override={name}",
            "--proxy-mode=nftables",
            "--cluster-cidr=10.244.0.0/16",
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
        )

    def _connect_node(self, machine: Machine, index: int) -> None:
        control = self._control_machine
        port = f"to-node{index}"
        control.run(["ip", "link", "add", port, "type", "veth", "peer", "name", "node"])
        # Only a process outside the PID namespaces knows both ids.
        move = ["ip", "link", "set", "node", "netns", str(machine.pid)]
        subprocess.run(control.command(move, "net"), check=True)
        control.run(["ip", "link", "set", port, "master", "nodes", "up"])
        machine.run(["ip", "link", "set", "lo", "up"])
        machine.run(["ip", "address", "add", f"{_node_address(index)}/24", "dev", "node"])
        machine.run(["ip", "link", "set", "node", "up"])
        machine.run(["ip", "route", "add", "default", "via", _CONTROL_ADDRESS])
        self._add_pod_routes(machine, index)

    def _add_pod_routes(self, machine: Machine, own: int | None) -> None:
        machine.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        script = "; ".join(
            f"ip route add 10.244.{index}.0/24 via {_node_address(index)}"
            for index in range(_MAX_NODES)
            if index != own
        )
        machine.run(["sh", "-ec", script])

    def _containerd_command(self, folder: Path, index: int) -> list[str]:
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/pod-addresses",
                        "ranges": [[{"subnet": f"10.244.{index}.0/24"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (folder / "network").mkdir(exist_ok=True)
        (folder / "network" / "pods.conflist").write_text(json.dumps(network))
        config = folder / "containerd.toml"
        # The socket of NRI is at a fixed path. Without CAP_SYS_RESOURCE no score of the
        # out-of-memory killer may be lowered.
        config.write_text(
            f"""version = 3
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd.sock"
[ttrpc]
  address = "/run/containerd.sock.ttrpc"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{self._bin}/runc"
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{self._bin}"]
  conf_dir = "{folder}/network"
"""
        )
        return [str(self._bin / "containerd"), "--config", str(config)]

    def _kubelet_config(self, folder: Path, name: str) -> Path:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.folder / "certificates" / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._control_group(name)}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": "unix:///run/containerd.sock",
            "resolvConf": "",
            "podLogsDir": str(folder / "pod-logs"),
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 6,
            "evictionHard": {"memory.available": "200Mi"},
            "imageGCHighThresholdPercent": 100,
        }
        path = folder / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def _pause_image(self) -> Path:
        archive = self.folder / "pause.tar"
        if not archive.exists():
            program = self._bin / "pause"
            write_image(
                archive,
                PAUSE_IMAGE,
                lambda layer: layer.add(program, "pause"),
                entrypoint=["/pause"],
                environment={},
            )
        return archive

    def _containerd_answers(self, machine: Machine) -> bool:
        try:
            machine.run([*self._ctr, "version"])
        except RuntimeError:
            return False
        return True

    def _import(self, machine: Machine, archive: Path) -> None:
        machine.run([*self._ctr, "images", "import", str(archive.resolve())])

    @property
    def _ctr(self) -> list[str]:
        socket = "/run/containerd.sock"
        return [str(self._bin / "ctr"), "--address", socket, "--namespace", "k8s.io"]

    def _start_machine(self, name: str) -> Machine:
        machine = start_machine(self._bin / "pause", self.folder / "logs" / f"{name}.log")
        self._machines[name] = _MachineState(machine)
        self._save()
        return machine

    def _run_kubernetes(self, machine: str, program: str, *arguments: str) -> None:
        self.start_program(machine, program, [str(self._bin / "kubernetes"), program, *arguments])

    # State -----------------------------------------------------------------------------------

    def _save(self) -> None:
        content = {
            "owner": None if self._owner is None else asdict(self._owner),
            "machines": {name: asdict(state) for name, state in self._machines.items()},
        }
        new = self._write("state.json.new", json.dumps(content, indent=1))
        new.replace(self.folder / "state.json")

    def _load(self) -> None:
        content = json.loads((self.folder / "state.json").read_text())
        self._owner = None if content["owner"] is None else Machine(**content["owner"])
        self._machines = {
            name: _MachineState(**{**state, "machine": Machine(**state["machine"])})
            for name, state in content["machines"].items()
        }

    @property
    def abandoned(self) -> bool:
        """Whether the process that it was started for has ended."""
        return self._owner is not None and not self._owner.alive


def restricted_pod(
    namespace: str, name: str, image: str, script: str, **spec: Any
) -> dict[str, Any]:
    """A pod that the restricted standard admits and that runs a Python script."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "args": ["-c", script],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    "workingDir": "/tmp",  # noqa: S108
                }
            ],
            **spec,
        },
    }


def waiting_pod(namespace: str, name: str, cpu_millis: int, **spec: Any) -> dict[str, Any]:
    """A pod that the restricted standard admits and that asks for cores and does nothing."""
    pod = restricted_pod(namespace, name, PAUSE_IMAGE, "", **spec)
    (container,) = pod["spec"]["containers"]
    del container["args"], container["workingDir"]
    container["resources"]["requests"]["cpu"] = f"{cpu_millis}m"
    return pod


def cpu_millis_of(pod: Mapping[str, Any]) -> int:
    """Thousandths of cores that a pod has asked for."""
    requests = [one.get("resources", {}).get("requests", {}) for one in pod["spec"]["containers"]]
    return round(1000 * sum(parse_quantity(one.get("cpu", "0")) for one in requests))


def clusters_folder() -> Path:
    """The folder with one folder for each cluster."""
    return cache_folder() / "clusters"


def known_clusters() -> Iterator[Cluster]:
    """Clusters with a folder, running or crashed."""
    if clusters_folder().exists():
        for folder in sorted(clusters_folder().iterdir()):
            yield Cluster(folder.name)


def remove_abandoned() -> None:
    """Stops the clusters whose owners have ended without stopping them."""
    for cluster in known_clusters():
        if cluster.abandoned:
            cluster.stop()


def _is_first_of(process: Path, folder: str) -> bool:
    """Whether a process of this machine is the first one of a container of a pod, but not `pause`.

    Args:
        folder: Control group of the pod.
    """
    try:
        status = (process / "status").read_text()
        inside = status.partition("NSpid:")[2].splitlines()[0].split()
        is_in_pod = f"/{folder}/" in (process / "cgroup").read_text()
        return is_in_pod and inside[-1] == "1" and "Name:\tpause" not in status
    except (OSError, IndexError):
        return False


def _node_address(index: int) -> str:
    return f"10.250.0.{10 + index}"
