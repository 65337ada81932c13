"""The launcher whose parameter servers and workers are pods; its master is a process beside it.

The pods are the truth: what runs is read from the cluster, also at the start, so that the members
of a driver pod that was lost are those of the next one.
"""

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    Launcher,
    LauncherBusyError,
    LauncherContext,
    MemberStart,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import (
    PodEnd,
    end_of_deleted,
    explain_waiting,
    read_end,
)
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    INCARNATION_ANNOTATION,
    INDEX_LABEL,
    JOB_LABEL,
    LAUNCHER_LABEL,
    RESTARTS_ANNOTATION,
    ROLE_LABEL,
    ClusterJob,
    launcher_label,
    member_pod,
)
from ctr_pipeline.distributed.launchers.kubernetes.watching import PodApi, PodWatch
from ctr_pipeline.distributed.launchers.processes.launcher import ProcessLauncher

_LOGGER = logging.getLogger(__name__)
_CLOSE_SECONDS = 60.0
_POLL_SECONDS = 0.1

_Key = tuple[Role, int]


@dataclass
class _Member:
    """The newest pod of a member.

    Attributes:
        seen: Count at which it was last known to exist; a list asked for before cannot miss it.
    """

    start: MemberStart
    name: str
    uid: str
    restarts: int
    pod: dict[str, Any]
    seen: int
    is_stopped: bool = False
    end: PodEnd | None = None
    waits_for: str = ""


class KubernetesLauncher:
    """A `Launcher` whose members but the master are pods.

    Args:
        api: The namespace; None: this pod's, by its service account.
        job: Whose pods they are; None: that of this pod.
        master: Keeps the master running; None: as a process of this pod.
    """

    def __init__(
        self,
        context: LauncherContext,
        *,
        api: PodApi | None = None,
        job: ClusterJob | None = None,
        master: Launcher | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._context = context
        self._options: KubernetesConfig = context.options or KubernetesConfig()
        self._job = job or ClusterJob.of_this_pod()
        self._api: PodApi = api or KubernetesApi.in_pod(self._job.namespace)
        self._pause = pause
        self._counter = itertools.count(1)
        self._lock = threading.RLock()
        self._members: dict[_Key, _Member] = {}
        self._planned: dict[_Key, MemberStart] = {}
        self._ending = False
        selector = {
            JOB_LABEL: self._job.name,
            LAUNCHER_LABEL: launcher_label(context.logs_folder),
        }
        self._watch = PodWatch(
            self._api,
            ",".join(f"{key}={value}" for key, value in selector.items()),
            on_list=self._replace,
            on_change=self._change,
            count=lambda: next(self._counter),
        )
        self._watch.start()
        self._master: Launcher = master or ProcessLauncher(context)

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs; a master is kept running from then on.

        Raises:
            LauncherBusyError: The API server or a quota does not let it be created now.
            CannotLaunchError: The cluster refuses such a pod.
        """
        if role == "master":
            self._master.start(role, index)
            return
        key = (role, index)
        with self._lock:
            earlier = self._members.get(key)
            if self._ending or (earlier is not None and earlier.end is None):
                return
            # A start whose answer was lost is asked for again under the same name.
            start = self._planned.setdefault(
                key, MemberStart(role, index, incarnation=secrets.token_hex(8))
            )
        restarts = 0 if earlier is None else earlier.restarts + 1
        manifest = member_pod(
            self._options,
            self._job,
            start,
            self._context.commands.member(start),
            logs_folder=self._context.logs_folder,
            working_folder=Path.cwd(),
            environment=self._context.environment,
            restarts=restarts,
        )
        pod = self._create(manifest)
        with self._lock:
            self._planned.pop(key, None)
            self._change(pod, True)
        if earlier is not None:
            # What it wrote is in its log; only its end was still needed.
            self._forget(earlier)

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one pod to end (SIGTERM), kills it after the grace."""
        if role == "master":
            self._master.stop(role, index, incarnation, grace_seconds=grace_seconds)
            return
        with self._lock:
            member = self._members.get((role, index))
            if member is None or member.start.incarnation != incarnation or member.end:
                return
            member.is_stopped = True
        self._delete(member, grace_seconds)

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest pod of every member that was ever started, and the master."""
        with self._lock:
            pods = tuple(_state(member) for member in self._members.values())
        return (*self._master.observe(), *pods)

    def failure(self) -> str:
        """Why the master is not started again, with its last lines; empty while all is well."""
        return self._master.failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._master.__exit__(kind, error, trace)
        with self._lock:
            self._ending = True
        until = time.monotonic() + _CLOSE_SECONDS
        asked: set[str] = set()
        while time.monotonic() < until:
            with self._lock:
                running = [one for one in self._members.values() if one.end is None]
                for one in running:
                    one.is_stopped = True
            if not running:
                break
            for one in running:
                if one.uid not in asked:
                    try:
                        self._delete(one, 5.0)
                        asked.add(one.uid)
                    except LauncherBusyError as refused:
                        _LOGGER.warning("%s is deleted later: %s", one.name, refused)
            self._pause(_POLL_SECONDS)
        self._watch.close()
        self._sweep_ended()

    def _create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        try:
            return self._api.create(manifest)
        except ApiError as error:
            if error.status == 409:
                # An earlier call created it, and its answer was lost.
                return self._get(name)
            if error.may_pass:
                raise LauncherBusyError(error.message) from error
            raise CannotLaunchError(error.message) from error

    def _get(self, name: str) -> dict[str, Any]:
        try:
            return self._api.get("Pod", name)
        except ApiError as error:
            raise LauncherBusyError(error.message) from error

    def _delete(self, member: _Member, grace_seconds: float) -> None:
        # With a grace of 0 the API server would forget a pod that may still run.
        grace = max(1, round(grace_seconds))
        try:
            self._api.delete("Pod", member.name, uid=member.uid, grace_seconds=grace)
        except ApiError as error:
            raise LauncherBusyError(error.message) from error

    def _sweep_ended(self) -> None:
        with self._lock:
            members = list(self._members.values())
        for member in members:
            self._forget(member)

    def _forget(self, member: _Member) -> None:
        """Deletes a pod that has ended."""
        try:
            self._delete(member, 1.0)
        except LauncherBusyError as error:
            # The Job owns it and takes it along.
            _LOGGER.warning("%s stays until its job is deleted: %s", member.name, error)

    def _replace(self, pods: tuple[dict[str, Any], ...], asked: int) -> None:
        """Takes over a list of all pods that was asked for at that count."""
        with self._lock:
            for pod in sorted(pods, key=lambda one: one["metadata"]["creationTimestamp"]):
                self._change(pod, True)
            listed = {pod["metadata"]["uid"] for pod in pods}
            for member in self._members.values():
                if member.uid not in listed and member.seen < asked and member.end is None:
                    self._end(member, end_of_deleted(member.pod, stopped=member.is_stopped))

    def _change(self, pod: dict[str, Any], exists: bool) -> None:
        """Takes over one pod."""
        with self._lock:
            found = self._find(pod)
            if found is None:
                return
            found.pod, found.seen = pod, next(self._counter)
            if found.end is not None:
                return
            end = read_end(pod, stopped=found.is_stopped)
            if end is None and not exists:
                end = end_of_deleted(pod, stopped=found.is_stopped)
            if end is not None:
                self._end(found, end)
                return
            waits_for = explain_waiting(pod)
            if waits_for and waits_for != found.waits_for:
                _LOGGER.info("%s waits: %s", found.name, waits_for)
            found.waits_for = waits_for

    def _find(self, pod: dict[str, Any]) -> _Member | None:
        """The member that the pod is of; None: an older pod of it, or no member's."""
        metadata = pod["metadata"]
        labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
        role, index = labels.get(ROLE_LABEL), labels.get(INDEX_LABEL, "")
        if role not in {"ps", "worker"} or not index.isdigit():
            return None
        key: _Key = (role, int(index))
        member = self._members.get(key)
        if member is not None and member.uid == metadata["uid"]:
            return member
        restarts = int(annotations.get(RESTARTS_ANNOTATION, 0))
        if member is not None and restarts <= member.restarts:
            return None
        start = MemberStart(role, int(index), annotations[INCARNATION_ANNOTATION])
        made = _Member(start, metadata["name"], metadata["uid"], restarts, pod, seen=0)
        self._members[key] = made
        return made

    def _end(self, member: _Member, end: PodEnd) -> None:
        member.end = end
        level = logging.INFO if member.is_stopped or end.exit_code == 0 else logging.WARNING
        _LOGGER.log(level, "%s has ended: %s", member.name, end.reason)


def _state(member: _Member) -> ProcessState:
    end = member.end
    return ProcessState(
        role=member.start.role,
        index=member.start.index,
        incarnation=member.start.incarnation,
        pid=0,
        running=end is None,
        exit_code=None if end is None else end.exit_code,
        reason=None if end is None else end.reason,
        traceback=member.waits_for if end is None else end.message,
        restarts=member.restarts,
    )
