"""Whether the LocalQueue of Kueue in which the pods of a job wait for quota is there."""

from ctr_pipeline.apps.cluster.quota import QuotaFinding
from ctr_pipeline.apps.cluster.rights import Right
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi

_GROUP, _VERSION = "kueue.x-k8s.io", "v1beta2"
_RIGHT = Right(_GROUP, "localqueues", "get")

HOLD_PODS_BACK = "Have 'pod' listed under integrations.frameworks in the configuration of Kueue"
"""Remedy where pods with a queue are not held back for it."""


def examine_queue(api: KubernetesApi, name: str) -> QuotaFinding | None:
    """What keeps jobs from waiting in a queue of the namespace, or waiting; None: nothing does.

    Raises:
        ApiError: The cluster does not answer.
    """
    if not _has_kueue(api):
        return QuotaFinding(
            f"no Kueue of version 0.15 or later runs here, to which the queue '{name}' belongs",
            True,
            "Have Kueue installed, or remove kubernetes.queue",
        )
    try:
        queue = api.get("LocalQueue", name)
    except ApiError as error:
        if error.status == 403:
            unknown = f"you may not {_RIGHT}, so whether there is a queue '{name}' is not known"
            return QuotaFinding(unknown, False, f"Ask for the right to {_RIGHT}")
        if error.status != 404:
            raise
        return QuotaFinding(
            f"there is no LocalQueue '{name}'",
            True,
            "'kubectl get localqueues' shows those that there are; set kubernetes.queue to one",
        )
    for condition in queue.get("status", {}).get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("Active", "False"):
            closed = f"the queue '{name}' admits no pods now: {condition.get('message', '')}"
            return QuotaFinding(closed, False, "The job waits; ask whoever runs the queue")
    return None


def _has_kueue(api: KubernetesApi) -> bool:
    try:
        group = api.get("APIGroup", _GROUP)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return _VERSION in {one["version"] for one in group["versions"]}
