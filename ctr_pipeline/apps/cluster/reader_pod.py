"""A short-lived pod in which commands can read the run folder of a job that has no driver now."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import explain_waiting, read_end
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    CONTAINER,
    WORK,
    ClusterJob,
    Manifest,
    job_labels,
)
from ctr_pipeline.errors import CtrPipelineError

READER = "reader"
"""Its role in labels and names."""

_START_SECONDS = 120.0
_POLL_SECONDS = 0.25
_LIFE_SECONDS = 3600
_NEEDS = {"cpu": "100m", "memory": "512Mi"}
_VOLUMES = frozenset({WORK, "tmp"})


@contextlib.contextmanager
def open_reader(
    api: KubernetesApi, job: dict[str, Any], *, pause: Callable[[float], None]
) -> Iterator[str]:
    """Starts the pod, gives its name once it runs, and deletes it.

    Raises:
        CtrPipelineError: It does not start; the message says why.
    """
    created = api.create(reader_pod(job, suffix=secrets.token_hex(4)))
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    try:
        until = time.monotonic() + _START_SECONDS
        while (pod := api.get("Pod", name))["status"].get("phase") != "Running":
            if time.monotonic() > until or read_end(pod) is not None:
                raise CtrPipelineError(
                    f"no pod can read the claim of the job: {_why_not(pod)}",
                    place=f"k8s:{api.namespace}/{job['metadata']['name']}",
                )
            pause(_POLL_SECONDS)
        yield name
    finally:
        api.delete("Pod", name, uid=uid, grace_seconds=1)


def reader_pod(job: dict[str, Any], *, suffix: str) -> Manifest:
    """A pod that sees the claim of a job, read-only, and neither its secrets nor its account.

    Args:
        job: The Job, as the API server gives it.
        suffix: Makes its name unique.
    """
    metadata, template = job["metadata"], job["spec"]["template"]["spec"]
    (container,) = (one for one in template["containers"] if one["name"] == CONTAINER)
    volumes = [
        _read_only(one) if one["name"] == WORK else one
        for one in template["volumes"]
        if one["name"] in _VOLUMES
    ]
    mounts = [
        one | {"readOnly": one["name"] == WORK}
        for one in container["volumeMounts"]
        if one["name"] in _VOLUMES
    ]
    resources = container.get("resources", {})
    # A quota may want to see the same limits as those of other pods.
    little = {
        kind: {key: _NEEDS.get(key, value) for key, value in amounts.items()}
        for kind, amounts in resources.items()
        if isinstance(amounts, dict)
    }
    kept = {
        key: template[key]
        for key in ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
        if key in template
    }
    owner = ClusterJob(metadata["name"], metadata["namespace"], metadata["uid"]).owner_reference
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{READER}-{suffix}",
            "namespace": metadata["namespace"],
            "labels": job_labels(metadata["name"], READER),
            "ownerReferences": [owner],
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
                    "env": [one for one in container.get("env", ()) if one["name"] == "HOME"],
                    "resources": little,
                    "securityContext": container["securityContext"],
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _read_only(volume: Manifest) -> Manifest:
    claim = volume["persistentVolumeClaim"]["claimName"]
    return volume | {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _why_not(pod: dict[str, Any]) -> str:
    end = read_end(pod)
    return explain_waiting(pod) or (end.message or end.reason if end else "it does not start")
