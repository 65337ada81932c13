"""`ctrpipe elastic-run` as pods: an indexed Job of nodes, and a driver that serves the rendezvous.

Kubernetes replaces nodes that are lost; those that stay form the next world meanwhile. The Job of
the driver owns everything, and ends as that of the nodes does.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex

from ctr_pipeline.apps.cluster.rights import nodes_rules
from ctr_pipeline.apps.cluster.submission import (
    FOLDER_ANNOTATION,
    NODES_ANNOTATION,
    PlannedPod,
    driver_job,
    ignore_disruptions,
    list_uploads,
    named_object,
    owned_objects,
    pod_of,
    require_keys,
    start_job,
)
from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.distributed.coordination.rendezvous import NodeRange
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.drivers import MOST_FAILURES
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    CONTAINER,
    DRIVER,
    JOB_LABEL,
    ROLE_LABEL,
    SECRETS_FOLDER,
    ClusterJob,
    Manifest,
    driver_environment,
    pod_template,
)
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.distributed.rpc.endpoint import HOST_VARIABLE
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.progress import Progress

NODES = "nodes"
"""The role, in labels, of the Job of nodes; their pods are workers."""
_RENDEZVOUS_PORT, _NODE_PORT = 7100, 7200
_GRACE_SECONDS = 30
_POLL_SECONDS = 5.0
_ASKED_TO_END = (137, 143)
"""Exit codes by SIGKILL and SIGTERM: others take the node's place."""
_NO_ADDRESS = "ADDRESS"
"""Until the Service has one."""


def submit_nodes(
    options: KubernetesConfig,
    path: Path,
    script: Sequence[str],
    nodes: NodeRange,
    *,
    name: str,
    agent_options: Sequence[str],
    uploads: Sequence[Path],
    progress: Progress,
    pause: Callable[[float], None] = time.sleep,
) -> ClusterJob:
    """Checks what a cluster can refuse, uploads, then starts the nodes of an elastic run.

    Args:
        path: The file of `options`.
        agent_options: Further ones of `ctrpipe elastic-run` on each node.
        uploads: Files and folders below the current one that are copied to the claim.
        pause: Waits seconds.

    Raises:
        CtrPipelineError: As of `submission.submit`.
    """
    require_keys(options, path)
    _refuse_keys(options, path)
    files = list_uploads(uploads)
    api = KubernetesApi.of_user(options.namespace)
    objects = plan_nodes(
        options,
        script,
        nodes,
        name=name,
        namespace=api.namespace,
        agent_options=agent_options,
        secrets=make_secrets(),
    )
    job, node_job = objects[0], objects[-1]
    pods = [
        PlannedPod("kubernetes.master", pod_of(job), 1, 1),
        PlannedPod("kubernetes.workers", pod_of(node_job), nodes.least, nodes.most),
    ]

    def complete(created: Mapping[str, Manifest]) -> None:
        """Tells the nodes where the rendezvous is, once that is known."""
        if "Service" in created:
            (container,) = node_job["spec"]["template"]["spec"]["containers"]
            place = f"{created['Service']['spec']['clusterIP']}:{_RENDEZVOUS_PORT}"
            container["command"] = [
                place if part == f"{_NO_ADDRESS}:{_RENDEZVOUS_PORT}" else part
                for part in container["command"]
            ]

    return start_job(
        api,
        options,
        objects,
        pods,
        "elastic-run --on-cluster",
        files=files,
        progress=progress,
        pause=pause,
        complete=complete,
    )


def _refuse_keys(options: KubernetesConfig, path: Path) -> None:
    """Raises CtrPipelineError if a key is given that pods of one Job cannot have."""
    workers = options.workers
    for key, value in (("high", workers.high or None), ("max_memory", workers.max_memory)):
        if value is not None:
            raise CtrPipelineError(
                f"kubernetes.workers.{key} has no effect on nodes: one Job makes them, all alike",
                place=str(path),
                remedy="Leave it out for elastic-run",
            )


def plan_nodes(
    options: KubernetesConfig,
    script: Sequence[str],
    nodes: NodeRange,
    *,
    name: str,
    namespace: str,
    agent_options: Sequence[str],
    secrets: Mapping[str, bytes],
) -> list[Manifest]:
    """The Job of the driver, what belongs to it, and at last the Job of nodes."""
    folder = f"runs/{name}"
    ledger = f"{folder}/records-{token_hex(4)}.sqlite"
    serve = ("elastic-rendezvous", "--bind", f"0.0.0.0:{_RENDEZVOUS_PORT}", "--ledger", ledger)
    template = pod_template(
        options,
        options.master,
        job=name,
        role=DRIVER,
        command=["python", "-m", "ctr_pipeline", *serve, "--access", SECRETS_FOLDER],
        working_folder=options.folder,
        environment=driver_environment(name),
        secret_roles=("master",),
        grace_seconds=_GRACE_SECONDS,
        service_account=name,
    )
    annotations = {FOLDER_ANNOTATION: folder, NODES_ANNOTATION: f"{name}-{NODES}"}
    job = driver_job(name, namespace, template, annotations)
    service = named_object("v1", "Service", name, namespace)
    service["spec"] = {
        "selector": {JOB_LABEL: name, ROLE_LABEL: DRIVER},
        "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT}],
    }
    owned = owned_objects(options, job, nodes_rules(f"{name}-{NODES}"), {}, secrets)
    return [job, *owned, service, _node_job(options, script, nodes, agent_options, job)]


def _node_job(
    options: KubernetesConfig,
    script: Sequence[str],
    nodes: NodeRange,
    agent_options: Sequence[str],
    job: Manifest,
) -> Manifest:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    command = [
        *("python", "-m", "ctr_pipeline", "elastic-run"),
        *("--nodes", f"{nodes.least}:{nodes.most}"),
        *("--rendezvous", f"{_NO_ADDRESS}:{_RENDEZVOUS_PORT}", "--access", SECRETS_FOLDER),
        *("--address", f"$({HOST_VARIABLE}):{_NODE_PORT}", *agent_options, "--"),
        # Kubernetes would put variables in place of `$(NAME)`.
        *(part.replace("$(", "$$(") for part in script),
    ]
    template = pod_template(
        options,
        options.workers,
        job=name,
        role="worker",
        command=command,
        working_folder=options.folder,
        environment=(),
        secret_roles=("worker",),
        grace_seconds=_GRACE_SECONDS,
    )
    made = named_object("batch/v1", "Job", f"{name}-{NODES}", namespace)
    made["metadata"]["labels"] |= {JOB_LABEL: name, ROLE_LABEL: NODES}
    made["spec"] = {
        "completionMode": "Indexed",
        "completions": nodes.most,
        "parallelism": nodes.most,
        # A node that has ended well has seen the end of the job.
        "successPolicy": {"rules": [{"succeededCount": 1}]},
        "backoffLimit": MOST_FAILURES,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                ignore_disruptions(),
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "NotIn",
                        "values": list(_ASKED_TO_END),
                    },
                },
            ]
        },
        "template": template,
    }
    return made


def follow_nodes(
    rendezvous: RendezvousServer, job: ClusterJob, api: KubernetesApi, report: Callable[[str], None]
) -> None:
    """Serves until the script has succeeded on all nodes.

    Args:
        api: The namespace of the job.
        report: Takes why Kubernetes cannot be asked, whenever that changes.

    Raises:
        CtrPipelineError: The Job of nodes has failed.
    """
    name, told = f"{job.name}-{NODES}", ""
    while not rendezvous.wait_until_finished(_POLL_SECONDS):
        try:
            status = api.get("Job", name).get("status", {})
            why = ""
        except ApiError as error:
            status, why = {}, str(error)
        if why != told:
            report(why or "Kubernetes answers again")
            told = why
        ends = {
            one["type"]: one for one in status.get("conditions") or () if one["status"] == "True"
        }
        if "Complete" in ends:
            return
        if "Failed" in ends:
            raise CtrPipelineError(
                f"the nodes have failed: {ends['Failed'].get('message', 'nobody says why')}",
                place=f"k8s:{job.namespace}/{job.name}",
                remedy=f"'ctrpipe logs k8s:{job.namespace}/{job.name} all' shows what they wrote",
            )
