"""Submits a config to a cluster: checks first, then creates one Job and what belongs to it.

The Job is created suspended, everything else is owned by it, and then it is let go. So a submission
that fails halfway, and a job that is deleted, leave nothing behind.
"""

import base64
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from ctr_pipeline.config import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    CONFIG_FOLDER,
    CONTAINER,
    JOB_LABEL,
    ClusterJob,
    Manifest,
    driver_environment,
    job_labels,
    pod_template,
)
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.distributed.rpc.certificates import ROLES
from ctr_pipeline.errors import CtrPipelineError

DRIVER = "driver"
FOLDER_ANNOTATION = "ctrpipe.dev/run-folder"

_LONGEST_NAME = 32
"""With role, number and name of a start, a pod's name is its host name: at most 63 characters."""
_DRIVER_GRACE_SECONDS = 180
_RESTARTS = 20
_USER_ERROR = 1
_TERMINATED = 128 + signal.SIGTERM
_POD_VERBS = ("create", "delete", "get", "list", "watch")
_RIGHTS = (
    *(("create", "batch", "jobs"), ("patch", "batch", "jobs"), ("delete", "batch", "jobs")),
    *(("create", "", kind) for kind in ("configmaps", "secrets", "serviceaccounts")),
    *(("create", "rbac.authorization.k8s.io", kind) for kind in ("roles", "rolebindings")),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("get", "", "persistentvolumeclaims"),
    *((verb, "", "pods") for verb in _POD_VERBS),
)
"""A user can only give the driver rights that are the user's own."""


def name_job(config: Config) -> str:
    """The name of a config as Kubernetes takes it."""
    name = re.sub(r"[^a-z0-9]+", "-", config.name.lower()).strip("-")
    return name[:_LONGEST_NAME].strip("-") or "ctrpipe"


def plan_objects(
    loaded: LoadedConfig, *, name: str, namespace: str, secrets: Mapping[str, bytes]
) -> list[Manifest]:
    """The Job, then what belongs to it, as it is created.

    Args:
        secrets: Contents of the secret files, by name.

    Raises:
        CtrPipelineError: A key that a cluster needs is missing, or the model's file is.
    """
    config, options = loaded.config, loaded.config.kubernetes
    for key, value in (("image", options.image), ("claim", options.claim)):
        if value is None:
            raise CtrPipelineError(
                f"kubernetes.{key} is missing",
                place=str(loaded.path or "config"),
                remedy=f"Give it in the config, or with --set kubernetes.{key}=NAME",
            )
    files = {"config.yaml": loaded.text}
    overrides = [*loaded.overrides]
    if config.model.file is not None:
        path = Path(config.model.file)
        files[path.name] = _read_model(path)
        overrides.append(f"model.file={CONFIG_FOLDER}/{path.name}")
    arguments = [part for one in overrides for part in ("--set", one)]
    command = [
        *("python", "-m", "ctr_pipeline", "run", f"{CONFIG_FOLDER}/config.yaml"),
        *(*arguments, "--resume"),
    ]
    template = pod_template(
        options,
        options.master,
        job=name,
        role=DRIVER,
        command=command,
        working_folder=options.folder,
        environment=driver_environment(name),
        secret_roles=ROLES,
        grace_seconds=_DRIVER_GRACE_SECONDS,
        service_account=name,
    )
    job = _object("batch/v1", "Job", name, namespace)
    job["metadata"]["annotations"] = {FOLDER_ANNOTATION: config.output}
    job["spec"] = {
        "suspend": True,
        "backoffLimit": _RESTARTS,
        # Never two drivers: the next one starts when the one before has ended.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [_USER_ERROR],
                    },
                },
                # A driver that was asked to end has taken a checkpoint: that is no failure.
                {
                    "action": "Ignore",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [_TERMINATED],
                    },
                },
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
            ]
        },
        "template": template,
    }
    encoded = {key: base64.b64encode(value).decode() for key, value in secrets.items()}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    ours = {"podSelector": {"matchLabels": {JOB_LABEL: name}}}
    return [
        job,
        _object("v1", "ServiceAccount", name, namespace) | {"automountServiceAccountToken": False},
        _object(f"{rbac}/v1", "Role", name, namespace)
        | {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": list(_POD_VERBS)}]},
        _object(f"{rbac}/v1", "RoleBinding", name, namespace)
        | {
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [subject],
        },
        _object("v1", "ConfigMap", name, namespace) | {"data": files},
        _object("v1", "Secret", name, namespace) | {"type": "Opaque", "data": encoded},
        _object("networking.k8s.io/v1", "NetworkPolicy", name, namespace)
        | {"spec": {**ours, "policyTypes": ["Ingress"], "ingress": [{"from": [ours]}]}},
    ]


def render_manifests(loaded: LoadedConfig, *, name: str) -> str:
    """The manifests as YAML, without the secrets that a submission draws."""
    namespace = loaded.config.kubernetes.namespace or "default"
    objects = plan_objects(loaded, name=name, namespace=namespace, secrets={})
    return yaml.safe_dump_all(objects, sort_keys=False, width=100)


def submit(loaded: LoadedConfig, *, name: str) -> ClusterJob:
    """Checks what a cluster can refuse, then starts the job.

    Raises:
        CtrPipelineError: A key, a right, the claim or the cluster's consent is missing, or there is
            a job of this name.
    """
    options = loaded.config.kubernetes
    api = KubernetesApi.of_user(options.namespace)
    objects = plan_objects(loaded, name=name, namespace=api.namespace, secrets=make_secrets())
    _require_rights(api)
    _require_claim(api, str(options.claim))
    for manifest in (*objects, _driver_pod(objects[0])):
        try:
            api.create(manifest, dry_run=True)
        except ApiError as error:
            raise _explain_refusal(error, manifest) from error
    return create_objects(api, objects)


def create_objects(api: KubernetesApi, objects: Sequence[Manifest]) -> ClusterJob:
    """Creates what `plan_objects` planned and lets the Job go.

    Raises:
        ApiError: Something could not be created; nothing is left.
    """
    manifest, *owned = objects
    name = manifest["metadata"]["name"]
    created = api.create(manifest)
    job = ClusterJob(name, api.namespace, created["metadata"]["uid"])
    try:
        for one in owned:
            metadata = one["metadata"] | {"ownerReferences": [job.owner_reference]}
            api.create(one | {"metadata": metadata})
        api.patch("Job", name, {"spec": {"suspend": False}})
    except BaseException:
        api.delete("Job", name, uid=job.owner_uid)
        raise
    return job


def _object(version: str, kind: str, name: str, namespace: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": job_labels(name, "job")}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _driver_pod(job: Manifest) -> Manifest:
    """The pod that the Job will make: a Job whose pods are refused is created without a word."""
    template = job["spec"]["template"]
    metadata = template["metadata"] | {"name": f"{job['metadata']['name']}-{DRIVER}"}
    # Its account does not exist yet.
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _read_model(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise CtrPipelineError(
            f"the model's file cannot be read: {reason}", place=str(path)
        ) from error


def _require_rights(api: KubernetesApi) -> None:
    missing = [
        f"{verb} {resource}"
        for verb, group, resource in _RIGHTS
        if not api.may(verb, group, resource)
    ]
    if missing:
        raise CtrPipelineError(
            f"you may not {', '.join(missing)}",
            place=f"namespace {api.namespace}",
            remedy="Ask for a role with these rights in this namespace, or choose another one with "
            "kubernetes.namespace",
        )


def _require_claim(api: KubernetesApi, name: str) -> None:
    try:
        api.get("PersistentVolumeClaim", name)
    except ApiError as error:
        if error.status != 404:
            raise
        raise CtrPipelineError(
            f"there is no PersistentVolumeClaim '{name}'",
            place=f"namespace {api.namespace}",
            remedy="Create one that several nodes can mount (ReadWriteMany), or set "
            "kubernetes.claim to its name",
        ) from error


def _explain_refusal(error: ApiError, manifest: Manifest) -> CtrPipelineError:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if error.status == 409 and kind == "Job":
        return CtrPipelineError(
            f"there is a job '{name}' already",
            remedy=f"'ctrpipe status k8s:{name}' shows it, 'ctrpipe delete k8s:{name}' deletes it; "
            "or give this one another --name",
        )
    return CtrPipelineError(f"the cluster refuses the {kind} '{name}': {error.message}")
