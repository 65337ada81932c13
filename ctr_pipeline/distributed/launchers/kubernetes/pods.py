"""Manifests of pods: what all pods of a job have in common, and those of members."""

import copy
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr_pipeline.config.kubernetes import (
    KubernetesConfig,
    MemberPodConfig,
    PodConfig,
    Quantity,
)
from ctr_pipeline.distributed.coordination.launching import MemberStart
from ctr_pipeline.distributed.rpc.access import SECRETS_VARIABLE
from ctr_pipeline.distributed.rpc.certificates import ROLES, Role
from ctr_pipeline.distributed.rpc.endpoint import HOST_VARIABLE
from ctr_pipeline.distributed.rpc.metrics_server import PORT_VARIABLE
from ctr_pipeline.errors import CtrPipelineError

Manifest = dict[str, Any]

CONTAINER = "ctrpipe"
WORK = "work"
"""The volume of the claim that all pods share."""
CONFIG_FOLDER = "/etc/ctrpipe/config"
SECRETS_FOLDER = "/etc/ctrpipe/secrets"
TERMINATION_LOG = "/dev/termination-log"

METRICS_PORT = "metrics"
"""Name of the port of every pod that Prometheus asks."""
_METRICS_PORT = 9464

DRIVER = "driver"
"""The driver's role in labels and names."""
CONTROLLER_LABEL = "batch.kubernetes.io/controller-uid"
"""Label of drivers: the UID of their Job."""
PHASE_LABEL = "ctrpipe.dev/phase"
"""Label of a Job: what its driver does; it has none before the first one tells."""

JOB_LABEL = "app.kubernetes.io/instance"
ROLE_LABEL = "app.kubernetes.io/component"
INDEX_LABEL = "ctrpipe.dev/index"
LAUNCHER_LABEL = "ctrpipe.dev/launcher"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
INCARNATION_ANNOTATION = "ctrpipe.dev/incarnation"
RESTARTS_ANNOTATION = "ctrpipe.dev/restarts"

_JOB_VARIABLE = "CTRPIPE_JOB"
_NAMESPACE_VARIABLE = "CTRPIPE_NAMESPACE"
_OWNER_VARIABLE = "CTRPIPE_OWNER_UID"
_WORKER_GRACE_SECONDS = 30


@dataclass(frozen=True)
class ClusterJob:
    """The job that a driver pod leads.

    Attributes:
        name: Name of the Job that owns everything.
        owner_uid: UID of that Job.
    """

    name: str
    namespace: str
    owner_uid: str

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str] = os.environ) -> "ClusterJob":
        """The job by the environment that `driver_environment` gives.

        Raises:
            CtrPipelineError: This is no driver pod.
        """
        if not is_driver(environment):
            raise CtrPipelineError(
                "runtime.mode: kubernetes runs in a pod of the cluster only",
                remedy="Start the job with 'ctrpipe submit CONFIG'",
            )
        return cls(*(environment[name] for name in _OF_THE_JOB))

    @property
    def owner_reference(self) -> Manifest:
        """Ties an object to the Job: it is deleted with it."""
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": self.name,
            "uid": self.owner_uid,
            "controller": False,
            "blockOwnerDeletion": False,
        }


_OF_THE_JOB = (_JOB_VARIABLE, _NAMESPACE_VARIABLE, _OWNER_VARIABLE)


def is_driver(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the driver pod of a job."""
    return all(name in environment for name in _OF_THE_JOB)


def driver_environment(job: str) -> list[Manifest]:
    """What the driver pod knows of itself."""
    return [
        {"name": _JOB_VARIABLE, "value": job},
        _from_field(_NAMESPACE_VARIABLE, "metadata.namespace"),
        _from_field(_OWNER_VARIABLE, f"metadata.labels['{CONTROLLER_LABEL}']"),
    ]


def job_labels(job: str, role: str) -> dict[str, str]:
    """Labels of everything that belongs to a job."""
    return {"app.kubernetes.io/name": "ctrpipe", JOB_LABEL: job, ROLE_LABEL: role}


def launcher_label(logs_folder: Path) -> str:
    """Tells members of one launcher from those of another in the same job, as of a scoring job."""
    return f"{zlib.crc32(str(logs_folder).encode()):08x}"


def member_pod(
    options: KubernetesConfig,
    job: ClusterJob,
    start: MemberStart,
    arguments: Sequence[str],
    *,
    logs_folder: Path,
    working_folder: Path,
    environment: Mapping[str, str],
    restarts: int,
    server_grace_seconds: float,
    memory: Quantity | None = None,
    lost_node: str | None = None,
) -> Manifest:
    """The pod of a parameter server or a worker; its name is never used again.

    Args:
        arguments: What follows `python` on the command line.
        logs_folder: Where its output goes as a file, on a volume of the job.
        working_folder: Where it runs.
        environment: Variables beside those of every pod.
        restarts: Starts of this member before this one.
        server_grace_seconds: For a parameter server to end by itself.
        memory: In place of that of the config.
        lost_node: One that does not answer; another one is preferred, as the scheduler may hear of
            it later than the job.
    """
    name = f"{start.role}-{start.index}"
    is_server = start.role == "ps"
    # With a grace of 0 the API server would forget a pod that may still run.
    grace_seconds = max(1, math.ceil(server_grace_seconds)) if is_server else _WORKER_GRACE_SECONDS
    command = [
        *("python", "-m", "ctr_pipeline.distributed.launchers.kubernetes.logged"),
        *(str(logs_folder / f"{name}.log"), TERMINATION_LOG, "python", *arguments),
    ]
    manifest = pod_template(
        options,
        _with_priority(options, start),
        job=job.name,
        role=start.role,
        command=command,
        working_folder=str(working_folder),
        environment=[{"name": key, "value": value} for key, value in environment.items()],
        secret_roles=(start.role,),
        grace_seconds=grace_seconds,
    )
    metadata = manifest["metadata"]
    metadata["name"] = f"{job.name}-{name}-{start.incarnation}"
    metadata["namespace"] = job.namespace
    metadata["ownerReferences"] = [job.owner_reference]
    metadata["labels"] |= {
        INDEX_LABEL: str(start.index),
        LAUNCHER_LABEL: launcher_label(logs_folder),
    }
    metadata["annotations"] = metadata.get("annotations", {}) | {
        INCARNATION_ANNOTATION: start.incarnation,
        RESTARTS_ANNOTATION: str(restarts),
    }
    if memory is not None:
        (container,) = [one for one in manifest["spec"]["containers"] if one["name"] == CONTAINER]
        for amounts in (container["resources"]["requests"], container["resources"]["limits"]):
            amounts["memory"] = str(memory)
    if lost_node is not None:
        _avoid_node(manifest["spec"], lost_node)
    return {"apiVersion": "v1", "kind": "Pod", **manifest}


def _with_priority(options: KubernetesConfig, start: MemberStart) -> MemberPodConfig:
    """What the config says of a member's pod, with the priority of its place."""
    workers = options.workers
    if start.role == "worker" and start.index < workers.high:
        return workers.model_copy(update={"priority_class": workers.high_priority_class})
    return member_options(options, start.role)


def _avoid_node(spec: Manifest, node: str) -> None:
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    field = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(
        {"weight": 100, "preference": {"matchFields": [field]}}
    )


def member_options(options: KubernetesConfig, role: Role) -> MemberPodConfig:
    """What the config says of the pods of servers or workers."""
    return options.parameter_servers if role == "ps" else options.workers


def memory_of(pod: Manifest) -> str | None:
    """The memory that the container of a pod may use, as Kubernetes writes it; None: any."""
    for container in pod["spec"]["containers"]:
        if container["name"] == CONTAINER:
            found = container.get("resources", {}).get("limits", {}).get("memory")
            return None if found is None else str(found)
    return None


def pod_template(
    options: KubernetesConfig,
    pod: PodConfig,
    *,
    job: str,
    role: str,
    command: Sequence[str],
    working_folder: str,
    environment: Sequence[Manifest],
    secret_roles: Sequence[Role],
    grace_seconds: int,
    service_account: str | None = None,
) -> Manifest:
    """Metadata and spec of a pod as the restricted security standard of Kubernetes wants it.

    Args:
        role: `driver`, or that of a member.
        secret_roles: Roles whose certificates it sees.
        service_account: None: it cannot talk to the API.
    """
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "config", "configMap": {"name": job}},
        {
            "name": "secrets",
            "secret": {
                "secretName": job,
                "defaultMode": 0o440,
                "items": [{"key": key, "path": path} for key, path in secret_items(secret_roles)],
            },
        },
    ]
    mounts: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  a volume of the pod's own
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True},
    ]
    if options.claim is not None:
        volumes.append({"name": WORK, "persistentVolumeClaim": {"claimName": options.claim}})
        mounts.append({"name": WORK, "mountPath": options.folder})
    for number, (folder, volume) in enumerate(options.volumes.items()):
        name = f"volume-{number}"
        volumes.append({"name": name, **_source(volume)})
        mounts.append({"name": name, "mountPath": folder, "readOnly": True})
    container: Manifest = {
        "name": CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.image_pull_policy,
        "command": list(command),
        "workingDir": working_folder,
        "env": [
            _from_field(HOST_VARIABLE, "status.podIP"),
            {"name": SECRETS_VARIABLE, "value": SECRETS_FOLDER},
            {"name": PORT_VARIABLE, "value": str(_METRICS_PORT)},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108  a volume of the pod's own
            *({"name": key, "value": value} for key, value in options.environment.items()),
            *environment,
        ],
        "ports": [{"name": METRICS_PORT, "containerPort": _METRICS_PORT}],
        "resources": _resources(pod),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if options.environment_from_secrets:
        container["envFrom"] = [
            {"secretRef": {"name": name}} for name in options.environment_from_secrets
        ]
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": service_account is not None,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.user,
            "runAsGroup": options.user,
            "fsGroup": options.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    if service_account is not None:
        spec["serviceAccountName"] = service_account
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if pod.node_selector:
        spec["nodeSelector"] = dict(pod.node_selector)
    if pod.tolerations:
        spec["tolerations"] = [dict(one) for one in pod.tolerations]
    if pod.priority_class is not None:
        spec["priorityClassName"] = pod.priority_class
    metadata: Manifest = {"labels": job_labels(job, role)}
    if options.queue is not None:
        metadata["labels"] |= {QUEUE_LABEL: options.queue, "kueue.x-k8s.io/managed": "true"}
        # Kueue then holds the pod back whatever it manages by itself, and puts no finalizer on it.
        metadata["annotations"] = {"kueue.x-k8s.io/pod-suspending-parent": "ctrpipe"}
    manifest = {"metadata": metadata, "spec": spec}
    return merge_patch(manifest, pod.patch) if pod.patch else manifest


def secret_items(roles: Sequence[Role] = ROLES) -> list[tuple[str, str]]:
    """Keys of the job's Secret that these roles see, and where `Access.load` looks for them."""
    names = ["ca.pem", *(f"{role}.{kind}" for role in roles for kind in ("pem", "key"))]
    return [("token", "token"), *((name, f"tls/{name}") for name in names)]


def merge_patch(value: Any, patch: Any) -> Any:
    """Merges a patch: mappings key by key, lists of named entries by name, null deletes a key."""
    if isinstance(value, dict) and isinstance(patch, dict):
        merged = dict(value)
        for key, new in patch.items():
            if new is None:
                merged.pop(key, None)
            else:
                merged[key] = merge_patch(merged.get(key), new)
        return merged
    if _has_names(value) and _has_names(patch):
        merged = {one["name"]: one for one in value}
        for one in patch:
            merged[one["name"]] = merge_patch(merged.get(one["name"]), one)
        return list(merged.values())
    return copy.deepcopy(patch)


def _has_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(one, dict) and "name" in one for one in value
    )


def _source(volume: str) -> Manifest:
    kind, _, name = volume.partition(":")
    if kind == "claim":
        return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
    return {"secret": {"secretName": name}} if kind == "secret" else {"configMap": {"name": name}}


def _resources(pod: PodConfig) -> Manifest:
    limits = {"memory": str(pod.memory)}
    if pod.cpu_limit is not None:
        limits["cpu"] = str(pod.cpu_limit)
    return {"requests": {"cpu": str(pod.cpu), "memory": str(pod.memory)}, "limits": limits}


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
