"""Submits a config to a cluster: checks first, then creates one Job and what belongs to it.

The Job is created suspended, everything else is owned by it, and then it is let go. So a submission
that fails halfway, and a job that is deleted, leave nothing behind.
"""

import base64
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Literal

import yaml

from ctr_pipeline.apps.cluster.idle_pods import await_start, idle_pod, shrink, temporary_pod
from ctr_pipeline.apps.cluster.local_queue import HOLD_PODS_BACK, examine_queue
from ctr_pipeline.apps.cluster.quota import PodNeed, QuotaFinding, examine_quotas
from ctr_pipeline.apps.cluster.rights import (
    COMMANDS,
    QUOTA_RIGHT,
    RBAC_GROUP,
    driver_rules,
    require_rights,
    superfluous_rights,
)
from ctr_pipeline.apps.cluster.transfer import FoundFile, PodFolder, list_folder
from ctr_pipeline.config import LoadedConfig
from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.config.models import Config, working_copy
from ctr_pipeline.distributed.coordination.launching import MemberStart
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.drivers import FINAL_EXITS, MOST_FAILURES
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import DISRUPTIONS, escapes_queue
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    CONFIG_FOLDER,
    CONTAINER,
    DRIVER,
    JOB_LABEL,
    METRICS_PORT,
    WORK,
    ClusterJob,
    Manifest,
    driver_environment,
    job_labels,
    member_pod,
    pod_template,
)
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.distributed.rpc.certificates import ROLES
from ctr_pipeline.errors import CtrPipelineError, NoSuchFileError
from ctr_pipeline.interruption import EXIT_TERMINATED
from ctr_pipeline.progress import Progress

FOLDER_ANNOTATION = "ctrpipe.dev/run-folder"
STRATEGY_ANNOTATION = "ctrpipe.dev/strategy"
NODES_ANNOTATION = "ctrpipe.dev/nodes"
"""Annotation of the Job of a driver: the name of the Job of its nodes."""
OWNER_ROLE = "job"
"""Role in labels of what is no pod."""

_LONGEST_NAME = 32
"""Characters: with role, number and name of a start, a pod's name is its host name, 63 at most."""
_DRIVER_GRACE_SECONDS = 180
_SCRATCH = "scratch"
"""Folder in the claim for working copies of runs at an address."""
_CONFIG_FILE = "config.yaml"
_CHECK_SECONDS = 600.0
"""Time for the first pod of an image on a node, which takes gigabytes."""

_ACCOUNT_SECONDS, _ACCOUNT_PAUSE_SECONDS = 30, 1
"""Time for the service account that a namespace is given after it was made."""


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
    require_keys(options, loaded.path)
    folder = config.output
    if config.stored_at is not None:
        folder = str(working_copy(config.stored_at, _scratch(config)))
    command = [*_ctrpipe("run", loaded), "--resume"]
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
    job = driver_job(
        name,
        namespace,
        template,
        {FOLDER_ANNOTATION: folder, STRATEGY_ANNOTATION: config.runtime.strategy},
    )
    files = _config_files(loaded)
    return [job, *owned_objects(options, job, driver_rules(name), files, secrets)]


def require_keys(options: KubernetesConfig, path: Path | None) -> None:
    """Raises CtrPipelineError if a key is missing without which no pod runs."""
    for key, value in (("image", options.image), ("claim", options.claim)):
        if value is None:
            raise CtrPipelineError(
                f"kubernetes.{key} is missing",
                place=str(path or "config"),
                remedy=f"Give it in the config, or with --set kubernetes.{key}=NAME",
            )


def driver_job(
    name: str, namespace: str, template: Manifest, annotations: Mapping[str, str]
) -> Manifest:
    """The Job of a driver, which owns everything else, suspended.

    Args:
        template: The template of its pods.
    """
    job = named_object("batch/v1", "Job", name, namespace)
    job["metadata"]["annotations"] = dict(annotations)
    job["spec"] = {
        "suspend": True,
        "backoffLimit": MOST_FAILURES,
        # Never two drivers: the next one starts when the one before has ended.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": list(FINAL_EXITS),
                    },
                },
                # A driver that was asked to end has left its members to the next one, or has taken
                # a checkpoint: that is no failure.
                {
                    "action": "Ignore",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [EXIT_TERMINATED],
                    },
                },
                ignore_disruptions(),
            ]
        },
        "template": template,
    }
    return job


def ignore_disruptions() -> Manifest:
    """A rule of a Job: pods that end by no fault of their own are no failures."""
    conditions = [{"type": one, "status": "True"} for one in DISRUPTIONS]
    return {"action": "Ignore", "onPodConditions": conditions}


def owned_objects(
    options: KubernetesConfig,
    job: Manifest,
    rules: Sequence[Manifest],
    files: Mapping[str, str],
    secrets: Mapping[str, bytes],
) -> list[Manifest]:
    """What belongs to every job: account, config, secrets, and who may reach its pods.

    Args:
        job: The Job of the driver.
        rules: What the driver may do.
        files: Contents of the files of `CONFIG_FOLDER`, by name.
        secrets: Contents of the secret files, by name.
    """
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    encoded = {key: base64.b64encode(value).decode() for key, value in secrets.items()}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    ours = {"podSelector": {"matchLabels": {JOB_LABEL: name}}}
    return [
        named_object("v1", "ServiceAccount", name, namespace)
        | {"automountServiceAccountToken": False},
        named_object(f"{RBAC_GROUP}/v1", "Role", name, namespace) | {"rules": [*rules]},
        named_object(f"{RBAC_GROUP}/v1", "RoleBinding", name, namespace)
        | {
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
            "subjects": [subject],
        },
        named_object("v1", "ConfigMap", name, namespace) | {"data": dict(files)},
        named_object("v1", "Secret", name, namespace) | {"type": "Opaque", "data": encoded},
        named_object("networking.k8s.io/v1", "NetworkPolicy", name, namespace)
        | {"spec": {**ours, "policyTypes": ["Ingress"], "ingress": _ingress(ours, options)}},
    ]


def _config_files(loaded: LoadedConfig) -> dict[str, str]:
    """The files of `CONFIG_FOLDER`, by name."""
    files = {_CONFIG_FILE: loaded.text}
    code = loaded.config.model.code_file
    if code is not None:
        path = Path(code)
        files[path.name] = _read_model(path)
    return files


def _ctrpipe(subcommand: str, loaded: LoadedConfig) -> list[str]:
    """The command line of a pod on the config in `CONFIG_FOLDER`."""
    config, overrides = loaded.config, [*loaded.overrides]
    if config.model.code_file is not None:
        overrides.append(f"model.file={CONFIG_FOLDER}/{Path(config.model.code_file).name}")
    if config.stored_at is not None:
        overrides.append(f"runtime.scratch={_scratch(config)}")
    options = [part for one in overrides for part in ("--set", one)]
    return ["python", "-m", "ctr_pipeline", subcommand, f"{CONFIG_FOLDER}/{_CONFIG_FILE}", *options]


def _scratch(config: Config) -> str:
    """The folder of working copies: all pods see the claim, and no other disk of each other."""
    return config.runtime.scratch or _SCRATCH


def _ingress(ours: Manifest, options: KubernetesConfig) -> list[Manifest]:
    """Rules of who may reach the pods: each other; and whoever reads their metrics, only these."""
    rules: list[Manifest] = [{"from": [ours]}]
    if options.metrics_from is not None:
        labels = {"kubernetes.io/metadata.name": options.metrics_from}
        rules.append(
            {
                "from": [{"namespaceSelector": {"matchLabels": labels}}],
                "ports": [{"protocol": "TCP", "port": METRICS_PORT}],
            }
        )
    return rules


def render_manifests(loaded: LoadedConfig, *, name: str) -> str:
    """The manifests as YAML, without the secrets that a submission draws."""
    namespace = loaded.config.kubernetes.namespace or "default"
    objects = plan_objects(loaded, name=name, namespace=namespace, secrets={})
    return yaml.safe_dump_all(objects, sort_keys=False, width=100)


def submit(
    loaded: LoadedConfig,
    *,
    name: str,
    uploads: Sequence[Path] = (),
    progress: Progress,
    pause: Callable[[float], None] = time.sleep,
) -> ClusterJob:
    """Checks what a cluster can refuse, uploads, then starts the job.

    Args:
        uploads: Files and folders below the current one that are copied to the claim.
        progress: Told also of what lets the job run, but not as the config says.
        pause: Waits seconds.

    Raises:
        CtrPipelineError: A key, a right, the claim, the queue, room, a file or the cluster's
            consent is missing, or there is a job of this name.
    """
    options = loaded.config.kubernetes
    files = list_uploads(uploads)
    api = KubernetesApi.of_user(options.namespace)
    objects = plan_objects(loaded, name=name, namespace=api.namespace, secrets=make_secrets())
    pods = plan_pods(loaded.config, objects[0])
    return start_job(
        api, options, objects, pods, "submit", files=files, progress=progress, pause=pause
    )


def start_job(
    api: KubernetesApi,
    options: KubernetesConfig,
    objects: Sequence[Manifest],
    pods: Sequence["PlannedPod"],
    command: str,
    *,
    files: Sequence[FoundFile],
    progress: Progress,
    pause: Callable[[float], None],
    complete: Callable[[Mapping[str, Manifest]], None] = lambda _created: None,
) -> ClusterJob:
    """Checks what a cluster can refuse, uploads, and creates a job.

    Args:
        objects: The Job of the driver, then what it owns.
        pods: One of each kind of the job.
        command: The command whose rights are needed, one of `COMMANDS`.
        files: Files of the current folder that are copied to the claim.
        complete: Changes objects that are still to be created by those that are, by kind.
    """

    def warn(sentence: str) -> None:
        progress.log(f"warning: {sentence}")

    name = objects[0]["metadata"]["name"]
    require_rights(api, (*COMMANDS[command], *(COMMANDS["submit --upload"] if files else ())))
    _require_claim(api, str(options.claim))
    if options.queue is not None and (found := examine_queue(api, options.queue)):
        for sentence in _sentences([found], api.namespace):
            warn(sentence)
    for manifest in objects:
        _check_object(api, manifest)
    needs = [_check_pod(api, one, pause) for one in pods]
    for sentence in _check_quotas(api, needs):
        warn(sentence)
    if superfluous := superfluous_rights(api, name):
        warn(
            f"the account of the job may also {'; '.join(superfluous)}: roles that are bound to "
            f"all accounts of the namespace '{api.namespace}' allow it, and the job needs none"
        )
    if files:
        _upload(api, objects[0], files, progress=progress, pause=pause)
    return create_objects(api, objects, complete)


def list_uploads(paths: Sequence[Path]) -> list[FoundFile]:
    """The files that paths name, by their paths from the current folder."""
    found: dict[str, FoundFile] = {}
    for path in paths:
        name = PurePosixPath(path.as_posix())
        if name.is_absolute() or ".." in name.parts:
            raise CtrPipelineError(
                "has no place on the claim",
                place=str(path),
                remedy="Give a path that leads down from the current folder",
            )
        if path.is_dir():
            for file in list_folder(path):
                below = str(name / file.name)
                found[below] = replace(file, name=below)
        elif path.is_file():
            found[str(name)] = FoundFile.of(str(name), path.stat())
        else:
            raise NoSuchFileError("there is no such file or folder", place=str(path))
    return list(found.values())


def _upload(
    api: KubernetesApi,
    job: Manifest,
    files: Sequence[FoundFile],
    *,
    progress: Progress,
    pause: Callable[[float], None],
) -> None:
    """Copies files of the current folder to the claim, by a pod that sees nothing else.

    Args:
        job: The Job as it is planned.
    """
    name = f"{job['metadata']['name']}-upload-{token_hex(4)}"
    # It is no pod of the job that may run under that name.
    labels = job_labels(name, "upload")
    pod = shrink(
        idle_pod(job, name, labels=labels, volumes={WORK, "tmp"}, variables={"HOME"}, writes=True)
    )
    (container,) = pod["spec"]["containers"]
    with temporary_pod(api, pod):
        await_start(
            api,
            name,
            _CHECK_SECONDS,
            pause=pause,
            on_wait=lambda why: progress.log(f"The pod waits: {why}"),
        )
        claim = PodFolder(api, name, container["workingDir"])
        pieces = claim.find_missing(files)
        total = sum(one.num_bytes for one in pieces)
        with progress.task("upload", total=total, unit="bytes") as task:
            claim.upload(Path(), pieces, on_bytes=task.advance)


@dataclass(frozen=True)
class PlannedPod:
    """A pod of a job, and how many like it there will be.

    Attributes:
        key: The config key that describes it.
    """

    key: str
    manifest: Manifest
    least: int
    most: int


def plan_pods(config: Config, job: Manifest) -> list[PlannedPod]:
    """The pods of a job, one of each kind, as its Job and its driver will make them.

    Args:
        job: The Job as `plan_objects` planned it.
    """
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    workers = config.runtime.workers
    least, most = (1, 1) if workers == "auto" else (workers.min, workers.max)
    # Workers of the one priority, then of the other.
    high = min(config.kubernetes.workers.high, most)
    members: list[tuple[Literal["ps", "worker"], int, int, int]] = [
        ("worker", 0, min(least, high), high),
        ("worker", high, max(least - high, 0), most - high),
    ]
    if number := config.runtime.num_servers:
        members.insert(0, ("ps", 0, number, number))
    keys = {"ps": "kubernetes.parameter_servers", "worker": "kubernetes.workers"}
    return [
        PlannedPod("kubernetes.master", pod_of(job), 1, 1),
        *(
            PlannedPod(
                keys[role], _planned_member(config, role, index, name, namespace), least, most
            )
            for role, index, least, most in members
            if most > 0
        ),
    ]


def pod_of(job: Manifest) -> Manifest:
    """A pod as a Job will make it, but for the account, which does not exist yet."""
    template = job["spec"]["template"]
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    metadata = template["metadata"] | {"name": f"{job['metadata']['name']}-{DRIVER}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _planned_member(
    config: Config, role: Literal["ps", "worker"], index: int, job: str, namespace: str
) -> Manifest:
    folder = PurePosixPath(config.kubernetes.folder)
    return member_pod(
        config.kubernetes,
        ClusterJob(job, namespace, "unknown"),
        MemberStart(role, index, incarnation="planned"),
        ["-m", "ctr_pipeline", role],
        logs_folder=Path(folder / config.output / "job/logs"),
        working_folder=Path(folder),
        environment={},
        restarts=0,
        server_grace_seconds=config.runtime.termination_grace_seconds,
    )


def _check_object(api: KubernetesApi, manifest: Manifest) -> None:
    try:
        api.create(manifest, dry_run=True)
    except ApiError as error:
        if error.may_pass and not error.exceeds_quota:
            raise
        # The Role that is bound has only been checked so far.
        if error.status != 404 or manifest["kind"] != "RoleBinding":
            raise _explain_refusal(error, manifest) from error


def _check_pod(api: KubernetesApi, planned: PlannedPod, pause: Callable[[float], None]) -> PodNeed:
    """Has the server admit a pod: a Job, and a driver, whose pods are refused say nothing here."""
    admitted = planned.manifest
    try:
        # What the namespace gives by default, and what it adds, counts against its quotas.
        admitted = _admit(api, admitted, pause)
    except ApiError as error:
        if error.lacks_account:
            raise CtrPipelineError(
                f"the pods of {planned.key} have no service account: {error.message}",
                place=f"namespace {api.namespace}",
                remedy="Kubernetes makes 'default' with each namespace; 'kubectl get "
                "serviceaccounts' shows those that there are",
            ) from error
        if error.may_pass and not error.exceeds_quota:
            raise
        # `_check_quotas` says more about a quota that has no room now.
        if not error.exceeds_quota:
            raise CtrPipelineError(
                f"the cluster refuses the pods of {planned.key}: {error.message}",
                remedy=f"Change {planned.key} or the keys that all pods share",
            ) from error
    else:
        if escapes_queue(admitted):
            raise CtrPipelineError(
                f"Kueue does not hold back the pods of {planned.key}: they would not wait in the "
                "queue",
                remedy=HOLD_PODS_BACK,
            )
    return PodNeed(planned.key, admitted["spec"], planned.least, planned.most)


def _admit(api: KubernetesApi, pod: Manifest, pause: Callable[[float], None]) -> Manifest:
    """A pod as the server would create it; the account of a new namespace is waited for."""
    for _ in range(_ACCOUNT_SECONDS // _ACCOUNT_PAUSE_SECONDS):
        try:
            return api.create(pod, dry_run=True)
        except ApiError as error:
            if not error.lacks_account:
                raise
        pause(_ACCOUNT_PAUSE_SECONDS)
    return api.create(pod, dry_run=True)


def _check_quotas(api: KubernetesApi, needs: Sequence[PodNeed]) -> list[str]:
    """Sentences about quotas that have no room now.

    Raises:
        CtrPipelineError: One never has.
    """
    try:
        quotas = api.list("ResourceQuota").items
    except ApiError as error:
        if error.status != 403:
            raise
        return [f"you may not {QUOTA_RIGHT}, so whether the job fits into a quota is not known"]
    return _sentences(examine_quotas(quotas, needs), api.namespace)


def _sentences(found: Sequence[QuotaFinding], namespace: str) -> list[str]:
    """What a job has to wait for.

    Raises:
        CtrPipelineError: It would wait for ever.
    """
    for one in found:
        if one.is_final:
            raise CtrPipelineError(one.message, place=f"namespace {namespace}", remedy=one.remedy)
    return [f"{one.message}. {one.remedy}" for one in found]


def check_in_pod(
    loaded: LoadedConfig,
    options: Sequence[str],
    *,
    on_wait: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> tuple[str, str, int]:
    """Runs `ctrpipe check` in a pod that sees what the driver of a job would, read-only.

    Args:
        options: Further ones of `ctrpipe check`.
        on_wait: Takes why the pod does not run yet.
        pause: Waits seconds.

    Returns:
        Its stdout, the last of its stderr, and its exit code.

    Raises:
        CtrPipelineError: A key, a right or the claim is missing, or the pod does not start.
    """
    settings = loaded.config.kubernetes
    api = KubernetesApi.of_user(settings.namespace)
    name = f"{name_job(loaded.config)}-check-{token_hex(4)}"
    objects = plan_objects(loaded, name=name, namespace=api.namespace, secrets={})
    planned = {one["kind"]: one for one in objects}
    job, config_map = planned["Job"], planned["ConfigMap"]
    require_rights(api, COMMANDS["check --on-cluster"])
    _require_claim(api, str(settings.claim))
    seen = {one["name"] for one in job["spec"]["template"]["spec"]["volumes"]} - {"secrets"}
    # It is no pod of the job that may run under that name.
    labels = job_labels(name, "check")
    pod = idle_pod(
        job, name, labels=labels, volumes=seen, variables={"HOME", *settings.environment}
    )
    if settings.environment_from_secrets:
        (container,) = pod["spec"]["containers"]
        container["envFrom"] = [
            {"secretRef": {"name": one}} for one in settings.environment_from_secrets
        ]
    with temporary_pod(api, pod) as created:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": created["metadata"]["uid"]}
        config_map["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
        api.create(config_map)
        await_start(api, name, _CHECK_SECONDS, pause=pause, on_wait=on_wait)
        return api.execute(name, [*_ctrpipe("check", loaded), *options])


def create_objects(
    api: KubernetesApi,
    objects: Sequence[Manifest],
    complete: Callable[[Mapping[str, Manifest]], None] = lambda _created: None,
) -> ClusterJob:
    """Creates what `plan_objects` planned and lets the Job go.

    Raises:
        ApiError: Something could not be created; nothing is left.
    """
    manifest, *owned = objects
    name = manifest["metadata"]["name"]
    created = api.create(manifest)
    job = ClusterJob(name, api.namespace, created["metadata"]["uid"])
    made = {manifest["kind"]: created}
    try:
        for one in owned:
            complete(made)
            metadata = one["metadata"] | {"ownerReferences": [job.owner_reference]}
            made[one["kind"]] = api.create(one | {"metadata": metadata})
        api.patch("Job", name, {"spec": {"suspend": False}})
    except BaseException:
        api.delete("Job", name, uid=job.owner_uid)
        raise
    return job


def named_object(version: str, kind: str, name: str, namespace: str) -> Manifest:
    """An object of a job, without what it is for."""
    metadata = {"name": name, "namespace": namespace, "labels": job_labels(name, OWNER_ROLE)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _read_model(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise CtrPipelineError(
            f"the model's file cannot be read: {reason}", place=str(path)
        ) from error


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
