"""What has become of a pod: pure readings of the object that the API server gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.distributed.coordination.launching import ExitReason
from ctr_pipeline.distributed.launchers.exits import classify_exit
from ctr_pipeline.distributed.launchers.kubernetes.pods import CONTAINER, QUEUE_LABEL

DISRUPTIONS = ("DisruptionTarget", "TerminationTarget")
"""Conditions of a pod that ends by no fault of its own; the second is of Kueue, for quota."""
_LOST = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
_LOST_TO: Mapping[str, ExitReason] = {
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
    "EvictionByEvictionAPI": "evicted",
    "PreemptionByScheduler": "preempted",
    "TerminationByKubelet": "evicted",
}
"""Reasons of the condition `DisruptionTarget`."""
_ADMISSION_GATE = "kueue.x-k8s.io/admission"
_NEVER_STARTS = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and image_pull_policy is Never",
    "InvalidImageName": "the name of its image is invalid",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
}
_PULL_FAILED = "ErrImagePull: "
"""Between two attempts, what the last one said comes after this."""


@dataclass(frozen=True)
class PodEnd:
    """How a pod ended.

    Attributes:
        exit_code: How its container exited; None: unknown.
        message: The last lines that it wrote, or what Kubernetes says.
    """

    reason: ExitReason
    exit_code: int | None
    message: str


def read_end(pod: dict[str, Any], *, stopped: bool = False) -> PodEnd | None:
    """How a pod ended; None: it has not.

    A disruption counts before the exit code: a pod that is evicted ends by a signal, as a killed
    one does. Only a program's own fault is one whatever happens around it.

    Args:
        stopped: The launcher had deleted it.
    """
    status = pod.get("status", {})
    ended = _terminated(pod)
    if not ended and status.get("phase") not in {"Succeeded", "Failed"}:
        return None
    message = ended.get("message") or status.get("message") or ""
    disrupted = None if stopped else _disruption(status)
    if not ended:
        # Evicted or lost before its container left a status.
        reason: ExitReason = disrupted or ("killed" if stopped else "not_started")
        return PodEnd(reason, None, message)
    exit_code = int(ended.get("exitCode", 0))
    if ended.get("reason") == "OOMKilled":
        return PodEnd("out_of_memory", exit_code, message)
    if ended.get("reason") in {"StartError", "ContainerCannotRun"}:
        return PodEnd("not_started", exit_code, message)
    reason = classify_exit(exit_code, stopped=stopped, oom_kills=0)
    if disrupted is not None and reason in {"killed", "completed"}:
        reason = disrupted
    return PodEnd(reason, exit_code, message)


def read_finish(pod: dict[str, Any]) -> str:
    """When the container of a pod ended, as Kubernetes writes it; empty: nobody says."""
    return str(_terminated(pod).get("finishedAt") or "")


def was_disrupted(pod: dict[str, Any]) -> bool:
    """Whether a pod ended, or ends, by no fault of its own."""
    return _disruption(pod.get("status", {})) is not None


def end_of_deleted(pod: dict[str, Any], *, stopped: bool) -> PodEnd:
    """How a pod that is gone ended, by the last that was seen of it."""
    end = read_end(pod, stopped=stopped)
    if end is not None:
        return end
    reason = None if stopped else _disruption(pod.get("status", {}))
    return PodEnd(reason or "killed", None, "" if stopped else "its pod was deleted")


def explain_waiting(pod: dict[str, Any]) -> str:
    """Why a pod does not run yet, one clause; empty if it runs or nothing is known."""
    status = pod.get("status", {})
    if status.get("phase") != "Pending":
        return ""
    if is_faulty(pod):
        waiting = _waiting(status)
        detail = waiting.get("message", "").rpartition(_PULL_FAILED)[2]
        return _NEVER_STARTS[waiting["reason"]] + (f": {detail}" if detail else "")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason, message = condition.get("reason", ""), condition.get("message", "")
            if reason == "SchedulingGated":
                queue = pod["metadata"].get("labels", {}).get(QUEUE_LABEL)
                return f"it waits for quota in the queue '{queue}'" if queue else "it is held back"
            return f"no node can take it: {message}" if message else "no node can take it"
    return "it is being started" if status.get("conditions") else "it waits for a node"


def escapes_queue(pod: dict[str, Any]) -> bool:
    """Whether a pod that was just created has a queue, and nothing holds it back for that."""
    gates = {one["name"] for one in pod["spec"].get("schedulingGates") or ()}
    return QUEUE_LABEL in pod["metadata"].get("labels", {}) and _ADMISSION_GATE not in gates


def is_faulty(pod: dict[str, Any]) -> bool:
    """Whether a pod has a node and will not run there before somebody mends something."""
    status = pod.get("status", {})
    return status.get("phase") == "Pending" and _waiting(status).get("reason") in _NEVER_STARTS


def _waiting(status: dict[str, Any]) -> dict[str, Any]:
    return dict(_container(status).get("state", {}).get("waiting") or {})


def _terminated(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(_container(pod.get("status", {})).get("state", {}).get("terminated") or {})


def _container(status: dict[str, Any]) -> dict[str, Any]:
    for one in status.get("containerStatuses") or ():
        if one.get("name") == CONTAINER:
            return dict(one)
    return {}


def _disruption(status: dict[str, Any]) -> ExitReason | None:
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in DISRUPTIONS:
            return _LOST_TO.get(condition.get("reason", ""), "evicted")
    reason = status.get("reason", "")
    if reason in _LOST:
        return "node_lost"
    if reason in {"Preempting", "Preempted"}:
        return "preempted"
    return "evicted" if reason == "Evicted" else None
