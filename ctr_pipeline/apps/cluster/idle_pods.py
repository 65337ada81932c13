"""Short-lived pods that wait for commands, and see what the driver of a job sees, or less of it."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import explain_waiting, read_end
from ctr_pipeline.distributed.launchers.kubernetes.pods import CONTAINER, WORK, Manifest
from ctr_pipeline.errors import CtrPipelineError

_POLL_SECONDS = 0.25
_LIFE_SECONDS = 3600
_LITTLE = {"cpu": "100m", "memory": "512Mi"}


def idle_pod(
    job: dict[str, Any],
    name: str,
    *,
    labels: dict[str, str],
    volumes: Collection[str],
    variables: Collection[str],
    writes: bool = False,
) -> Manifest:
    """A pod like the driver of a job, without its secrets and its account.

    Args:
        job: The Job, as it was planned, or as the API server gives it.
        name: The pod's name.
        volumes: Names of those of the driver that it sees.
        variables: Names of those of the driver's environment that it has.
        writes: Whether it may write to the claim.
    """
    template = job["spec"]["template"]["spec"]
    (container,) = (one for one in template["containers"] if one["name"] == CONTAINER)
    read_only = set() if writes else {WORK}
    mounts = [
        one | {"readOnly": True} if one["name"] in read_only else one
        for one in container["volumeMounts"]
        if one["name"] in volumes
    ]
    kept = {
        key: template[key]
        for key in ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
        if key in template
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
        },
        "spec": {
            **kept,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # It is deleted after use; this is for a user whose machine is lost meanwhile.
            "activeDeadlineSeconds": _LIFE_SECONDS,
            "containers": [
                {
                    "name": CONTAINER,
                    "image": container["image"],
                    "imagePullPolicy": container.get("imagePullPolicy", "IfNotPresent"),
                    "command": ["python", "-c", "import signal; signal.pause()"],
                    "workingDir": container["workingDir"],
                    "env": [one for one in container.get("env", ()) if one["name"] in variables],
                    "resources": container.get("resources", {}),
                    "securityContext": container["securityContext"],
                    "volumeMounts": mounts,
                }
            ],
            "volumes": [
                _read_only(one) if one["name"] in read_only else one
                for one in template["volumes"]
                if one["name"] in volumes
            ],
        },
    }


def shrink(pod: Manifest) -> Manifest:
    """Has a pod ask for little, under all keys under which it asked: a quota may want to see them.

    Returns:
        The same pod.
    """
    (container,) = pod["spec"]["containers"]
    container["resources"] = {
        kind: {key: _LITTLE.get(key, value) for key, value in amounts.items()}
        for kind, amounts in container["resources"].items()
        if isinstance(amounts, dict)
    }
    return pod


@contextlib.contextmanager
def temporary_pod(api: KubernetesApi, pod: Manifest) -> Iterator[dict[str, Any]]:
    """Creates a pod, gives it as the API server does, and deletes it."""
    created = api.create(pod)
    try:
        yield created
    finally:
        metadata = created["metadata"]
        api.delete("Pod", metadata["name"], uid=metadata["uid"], grace_seconds=1)


def await_start(
    api: KubernetesApi,
    name: str,
    seconds: float,
    *,
    pause: Callable[[float], None],
    on_wait: Callable[[str], None] = lambda _why: None,
) -> None:
    """Waits until a pod runs.

    Args:
        name: The pod's name.
        seconds: It may take so long.
        pause: Waits seconds.
        on_wait: Takes why it does not run yet, whenever that changes.

    Raises:
        CtrPipelineError: It does not start; the message says why.
    """
    told, until = "", time.monotonic() + seconds
    while (pod := api.get("Pod", name))["status"].get("phase") != "Running":
        if time.monotonic() > until or read_end(pod) is not None:
            raise CtrPipelineError(
                f"the pod '{name}', which sees the claim, does not start: {_why_not(pod)}",
                place=f"namespace {api.namespace}",
            )
        if (why := explain_waiting(pod)) not in {"", told}:
            told = why
            on_wait(why)
        pause(_POLL_SECONDS)


def _read_only(volume: Manifest) -> Manifest:
    claim = volume["persistentVolumeClaim"]["claimName"]
    return volume | {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _why_not(pod: dict[str, Any]) -> str:
    end = read_end(pod)
    return explain_waiting(pod) or (end.message or end.reason if end else "nobody says why")
