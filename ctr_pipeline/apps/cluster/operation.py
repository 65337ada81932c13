"""Jobs that were submitted to a cluster: their state, logs, and ends."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ctr_pipeline.apps.cluster.submission import DRIVER, FOLDER_ANNOTATION
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import explain_waiting
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    INDEX_LABEL,
    JOB_LABEL,
    ROLE_LABEL,
    ClusterJob,
)
from ctr_pipeline.errors import CtrPipelineError

JobState = Literal["waiting", "running", "stopping", "stopped", "finished", "failed"]

_ALL_JOBS = "app.kubernetes.io/name=ctrpipe"
_ADDRESS = re.compile(r"k8s:(?:(?P<namespace>[a-z0-9-]+)/)?(?P<name>[a-z0-9-]+)")
_MEMBER = re.compile(r"(ps|worker)-([0-9]+)")
_ALL_LINES = 1_000_000
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class JobSummary:
    """One job of a namespace.

    Attributes:
        pods: How many pods of the job run now, by role.
        reason: Why it waits or failed; empty otherwise.
    """

    name: str
    namespace: str
    state: JobState
    folder: str
    pods: dict[str, int]
    reason: str


class SubmittedJob:
    """A job by its address.

    Args:
        api: The namespace of the job.
        pause: Waits seconds.
    """

    def __init__(
        self, api: KubernetesApi, name: str, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._api, self.name, self._pause = api, name, pause

    def summary(self) -> JobSummary:
        """What Kubernetes knows of it.

        Raises:
            CtrPipelineError: There is no such job.
        """
        return summarize(self._job(), self._pods())

    def run_in_driver(self, arguments: Sequence[str]) -> tuple[str, str, int] | None:
        """Runs a subcommand in the driver pod; None: no driver runs.

        Args:
            arguments: The subcommand, then what follows the run folder.

        Returns:
            Its stdout, stderr and exit code.
        """
        folder = self.summary().folder
        driver = self._running_driver()
        if driver is None:
            return None
        subcommand, *rest = arguments
        command = ["python", "-m", "ctr_pipeline", subcommand, folder, *rest]
        try:
            return self._api.execute(driver, command)
        except ApiError:
            # It may have ended between the two calls.
            if self._running_driver() == driver:
                raise
            return None

    def read_log(self, member: str, *, num_lines: int, follow: bool) -> Iterator[bytes]:
        """What the newest pod of a member wrote.

        Args:
            member: `driver`, or for example `worker-0`.

        Raises:
            CtrPipelineError: There is no pod of such a member.
        """
        pod = self._driver() if member == DRIVER else self._member(member)
        if pod is None:
            names = sorted({_member_name(one) for one in self._pods()})
            raise CtrPipelineError(
                f"there is no pod of '{member}'",
                place=f"k8s:{self._api.namespace}/{self.name}",
                remedy=f"There are {', '.join(names)}" if names else "The job has no pods now",
            )
        return self._api.read_log(pod["metadata"]["name"], num_lines=num_lines, follow=follow)

    def suspend(self, *, wait_seconds: float) -> JobState:
        """Has the job take a checkpoint and give back all pods; returns the last state seen."""
        self._job()
        self._api.patch("Job", self.name, {"spec": {"suspend": True}})
        until = time.monotonic() + wait_seconds
        while self._pods() and time.monotonic() < until:
            if self._driver() is None:
                # A driver that was killed has left its members.
                for pod in self._pods():
                    self._api.delete("Pod", pod["metadata"]["name"], uid=pod["metadata"]["uid"])
            self._pause(_POLL_SECONDS)
        return self.summary().state

    def resume(self) -> None:
        """Lets a stopped job go on from its last checkpoint."""
        self._job()
        self._api.patch("Job", self.name, {"spec": {"suspend": False}})

    def delete(self) -> None:
        """Deletes the job and all that belongs to it; the run folder stays."""
        uid = self._job()["metadata"]["uid"]
        self._api.delete("Job", self.name, uid=uid)

    def follow(self, show: Callable[[bytes], None]) -> JobSummary:
        """Shows what its drivers write until the job has ended; returns how."""
        shown: set[str] = set()
        while (summary := self.summary()).state not in {"finished", "failed", "stopped"}:
            driver = self._driver()
            name = "" if driver is None else driver["metadata"]["name"]
            started = driver is not None and driver["status"].get("phase") != "Pending"
            if started and name not in shown:
                try:
                    for data in self._api.read_log(name, num_lines=_ALL_LINES, follow=True):
                        shown.add(name)
                        show(data)
                except ApiError as error:
                    if not error.may_pass and error.status != 404:
                        raise
            self._pause(_POLL_SECONDS)
        return summary

    def _job(self) -> dict[str, Any]:
        try:
            return self._api.get("Job", self.name)
        except ApiError as error:
            if error.status != 404:
                raise
            raise CtrPipelineError(
                f"there is no job '{self.name}'",
                place=f"namespace {self._api.namespace}",
                remedy="'ctrpipe jobs' lists those that there are",
            ) from error

    def _pods(self) -> tuple[dict[str, Any], ...]:
        return self._api.list("Pod", f"{JOB_LABEL}={self.name}").items

    def _driver(self) -> dict[str, Any] | None:
        return _newest(self._pods(), lambda labels: labels.get(ROLE_LABEL) == DRIVER)

    def _running_driver(self) -> str | None:
        """The name of the driver pod that runs."""
        driver = self._driver()
        if driver is None or driver["status"].get("phase") != "Running":
            return None
        return str(driver["metadata"]["name"])

    def _member(self, member: str) -> dict[str, Any] | None:
        match = _MEMBER.fullmatch(member)
        if match is None:
            return None
        wanted = {ROLE_LABEL: match[1], INDEX_LABEL: str(int(match[2]))}
        return _newest(self._pods(), lambda labels: wanted.items() <= labels.items())


def open_job(run: Path) -> SubmittedJob:
    """The job that `k8s:NAME` or `k8s:NAMESPACE/NAME` names.

    Raises:
        CtrPipelineError: It is no such address, or there are no credentials for a cluster.
    """
    match = _ADDRESS.fullmatch(str(run))
    if match is None:
        raise CtrPipelineError(
            f"'{run}' names no job on Kubernetes", remedy="Write k8s:NAME or k8s:NAMESPACE/NAME"
        )
    return SubmittedJob(KubernetesApi.of_user(match["namespace"]), match["name"])


def open_submitted(job: ClusterJob) -> SubmittedJob:
    """A job that was just submitted."""
    return SubmittedJob(KubernetesApi.of_user(job.namespace), job.name)


def list_jobs(namespace: str | None) -> list[JobSummary]:
    """All jobs of a namespace; None: of that of the current context."""
    api = KubernetesApi.of_user(namespace)
    pods = api.list("Pod", _ALL_JOBS).items
    found = []
    for job in api.list("Job", _ALL_JOBS).items:
        name = job["metadata"]["name"]
        theirs = [one for one in pods if one["metadata"]["labels"].get(JOB_LABEL) == name]
        found.append(summarize(job, theirs))
    return sorted(found, key=lambda one: one.name)


def summarize(job: dict[str, Any], pods: Sequence[dict[str, Any]]) -> JobSummary:
    """The state of a job by its Job and its pods."""
    metadata, status = job["metadata"], job.get("status", {})
    ends = {
        one["type"]: one for one in status.get("conditions") or () if one.get("status") == "True"
    }
    running: dict[str, int] = {}
    for pod in pods:
        if pod["status"].get("phase") == "Running":
            role = pod["metadata"]["labels"].get(ROLE_LABEL, "")
            running[role] = running.get(role, 0) + 1
    driver = _newest(pods, lambda labels: labels.get(ROLE_LABEL) == DRIVER)
    state: JobState
    reason = ""
    if "Complete" in ends:
        state = "finished"
    elif "Failed" in ends:
        state, reason = "failed", _last_words(driver) or ends["Failed"].get("message", "")
    elif job["spec"].get("suspend"):
        state = "stopping" if pods else "stopped"
    elif running.get(DRIVER):
        state = "running"
    else:
        state = "waiting"
        reason = "its driver is being created" if driver is None else explain_waiting(driver)
    folder = metadata.get("annotations", {}).get(FOLDER_ANNOTATION, "")
    return JobSummary(metadata["name"], metadata["namespace"], state, folder, running, reason)


def _last_words(pod: dict[str, Any] | None) -> str:
    if pod is None:
        return ""
    for one in pod["status"].get("containerStatuses") or ():
        message = one.get("state", {}).get("terminated", {}).get("message", "")
        if message:
            return str(message).strip().splitlines()[-1]
    return ""


def _newest(
    pods: Sequence[dict[str, Any]], wanted: Callable[[dict[str, str]], bool]
) -> dict[str, Any] | None:
    found = [pod for pod in pods if wanted(pod["metadata"].get("labels", {}))]
    return max(found, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)


def _member_name(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    index = labels.get(INDEX_LABEL)
    return labels[ROLE_LABEL] if index is None else f"{labels[ROLE_LABEL]}-{index}"
