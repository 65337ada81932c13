"""A namespace whose pods are processes of this machine: the calls that a launcher makes, no more.

It keeps objects as the API server gives them, so that what reads them is what runs in a cluster.
"""

import copy
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, Listed
from ctr_pipeline.distributed.launchers.kubernetes.pods import SECRETS_FOLDER, TERMINATION_LOG
from ctr_pipeline.distributed.rpc.access import SECRETS_VARIABLE


class LocalPods:
    """What `KubernetesApi` does with pods.

    Args:
        folder: For termination messages.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.pods = {}
        self.refusals = []  # raised by the next creations, in order
        self.patches, self.events = [], []
        # Its pods end with the process that holds them: a driver that goes takes them with it.
        self.job = {"metadata": {"name": "clicks"}, "spec": {"suspend": True}}
        self.watches_are_silent = False  # changes are noted and nobody hears of them
        self.node_is_lost = False  # what runs goes on, whatever becomes of its pod
        self._processes = {}
        self._versions = itertools.count(1)
        self._watches = []
        self._lock = threading.RLock()

    def list(self, _kind, selector):
        with self._lock:
            return Listed(tuple(self._matching(selector)), str(next(self._versions)))

    def watch(self, _kind, selector, version, *, seconds):
        changes = queue.Queue()
        with self._lock:
            self._watches.append(changes)
            for pod in self._matching(selector):
                if int(pod["metadata"]["resourceVersion"]) > int(version):
                    changes.put(("MODIFIED", pod))
        while (change := changes.get()) is not None:
            yield change

    def cut_watches(self):
        """Ends all streams without a word."""
        with self._lock:
            watches, self._watches = self._watches, []
        for one in watches:
            one.put(None)

    def change(self, name, status):
        """What the kubelet says of a pod from now on."""
        with self._lock:
            self.pods[name]["status"] = status
            self._changed(self.pods[name], "MODIFIED")

    def patch(self, kind, name, patch):
        self.patches.append((kind, name, patch))
        return self.job

    def create(self, manifest):
        if manifest["kind"] == "Event":
            self.events.append(manifest)
            return manifest
        with self._lock:
            if self.refusals:
                raise self.refusals.pop(0)
            name = manifest["metadata"]["name"]
            if name in self.pods:
                raise ApiError(409, f'pods "{name}" already exists')
            pod = copy.deepcopy(manifest)
            pod["metadata"]["uid"] = f"uid-{next(self._versions)}"
            pod["metadata"]["creationTimestamp"] = f"{next(self._versions):012d}"
            pod["spec"]["nodeName"] = "node1"
            pod["status"] = {"phase": "Running", "containerStatuses": [_status("running", {})]}
            self.pods[name] = pod
            self._changed(pod, "ADDED")
            self._start(pod)
            return copy.deepcopy(pod)

    def get(self, _kind, name):
        with self._lock:
            if name not in self.pods:
                raise ApiError(404, f'pods "{name}" not found')
            return copy.deepcopy(self.pods[name])

    def delete(self, _kind, name, *, uid=None, grace_seconds=None):
        with self._lock:
            pod = self.pods.get(name)
            if pod is None or uid not in {None, pod["metadata"]["uid"]}:
                return
            process = self._processes[name]
            pod["metadata"]["deletionTimestamp"] = f"{next(self._versions):012d}"
            pod["metadata"]["deletionGracePeriodSeconds"] = grace_seconds
            self._changed(pod, "MODIFIED")
            if self.node_is_lost:
                return
            if process.poll() is not None:
                self._gone(pod)
                return
            process.send_signal(signal.SIGTERM)
            timer = threading.Timer(grace_seconds, self.kill, (name,))
            timer.daemon = True
            timer.start()

    def kill(self, name):
        """As the kubelet, at the end of the grace."""
        try:
            os.killpg(self._processes[name].pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _start(self, pod):
        name = pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]
        message = self.folder / f"{name}.message"
        places = {"python": sys.executable, TERMINATION_LOG: str(message)}
        mounted = {SECRETS_FOLDER: os.environ.get(SECRETS_VARIABLE, SECRETS_FOLDER)}
        given = {
            one["name"]: mounted.get(one["value"], one["value"])
            for one in container["env"]
            if "value" in one
        }
        process = subprocess.Popen(
            [places.get(part, part) for part in container["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **given},
            start_new_session=True,
        )
        self._processes[name] = process
        threading.Thread(target=self._await, args=(pod, process, message), daemon=True).start()

    def _await(self, pod, process, message):
        code = process.wait()
        with self._lock:
            state = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error"}
            if message.exists():
                state["message"] = message.read_text()
            phase = "Failed" if code else "Succeeded"
            pod["status"] = {"phase": phase, "containerStatuses": [_status("terminated", state)]}
            self._changed(pod, "MODIFIED")
            if "deletionTimestamp" in pod["metadata"]:
                self._gone(pod)

    def _gone(self, pod):
        if self.pods.pop(pod["metadata"]["name"], None) is not None:
            self._changed(pod, "DELETED")

    def _changed(self, pod, kind):
        pod["metadata"]["resourceVersion"] = str(next(self._versions))
        for one in () if self.watches_are_silent else self._watches:
            one.put((kind, copy.deepcopy(pod)))

    def _matching(self, selector):
        wanted = dict(part.split("=") for part in selector.split(","))
        for pod in self.pods.values():
            if wanted.items() <= pod["metadata"]["labels"].items():
                yield copy.deepcopy(pod)


def _status(state, facts):
    return {"name": "ctrpipe", "state": {state: facts}}
