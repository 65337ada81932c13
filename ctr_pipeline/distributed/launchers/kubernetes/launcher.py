"""The launcher whose parameter servers and workers are pods; its master is a process beside it.

The pods are the truth: what runs is read from the cluster, also at the start, so that the members
of a driver pod that was lost are those of the next one.
"""

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
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
from ctr_pipeline.distributed.coordination.news import JobNews
from ctr_pipeline.distributed.launchers.kubernetes.api import (
    ApiError,
    KubernetesApi,
)
from ctr_pipeline.distributed.launchers.kubernetes.memory import NextMemory
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import (
    PodEnd,
    end_of_deleted,
    explain_waiting,
    is_faulty,
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
    member_options,
    member_pod,
    memory_of,
)
from ctr_pipeline.distributed.launchers.kubernetes.publishing import JobPublisher
from ctr_pipeline.distributed.launchers.kubernetes.watching import PodWatch
from ctr_pipeline.distributed.launchers.processes.launcher import ProcessLauncher
from ctr_pipeline.errors import HandedOver

_LOGGER = logging.getLogger(__name__)
_CLOSE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_CALLS_AT_ONCE = 8
"""Calls to the API server, when many pods are deleted."""
_UNCONFIRMED_SECONDS = 10.0
"""A node that is well confirms the end of a pod so soon after its grace period."""

_Key = tuple[Role, int]


@dataclass
class _Member:
    """The newest pod of a member.

    Attributes:
        seen: Count at which it was last known to exist; a list asked for before cannot miss it.
        deleted_at: Its `deletionTimestamp`; empty while nobody has asked it to end. Never compared
            with a clock: that of the API server may be another one.
        gone_by: When its end is to be confirmed, on the launcher's clock; None: it is not to end.
        exists: Kubernetes still has it.
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
    deleted_at: str = ""
    gone_by: float | None = None
    exists: bool = True

    @property
    def is_to_go(self) -> bool:
        """Whether somebody has deleted it, and it is there until its node confirms its end."""
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether that is how it ended."""
        return self.end is not None and self.end.reason == "out_of_memory"

    def note_deletion(self, now: float) -> None:
        """Somebody has asked it to end, or has given it another time to do so."""
        metadata = self.pod["metadata"]
        asked = metadata.get("deletionTimestamp", "")
        if asked != self.deleted_at:
            grace = metadata.get("deletionGracePeriodSeconds") or 0
            self.deleted_at, self.gone_by = asked, now + grace + _UNCONFIRMED_SECONDS


class KubernetesLauncher:
    """A `Launcher` whose members but the master are pods.

    Args:
        api: The namespace; None: this pod's, by its service account.
        job: The job whose pods they are; None: that of this pod.
        master: Keeps the master running; None: as a process of this pod.
        clock: Seconds; only differences count.
    """

    def __init__(
        self,
        context: LauncherContext,
        *,
        api: KubernetesApi | None = None,
        job: ClusterJob | None = None,
        master: Launcher | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._options: KubernetesConfig = context.options or KubernetesConfig()
        self._job = job or ClusterJob.of_this_pod()
        self._api = api or KubernetesApi.in_pod(self._job.namespace)
        self._pause, self._clock = pause, clock
        self._counter = itertools.count(1)
        self._lock = threading.RLock()
        self._members: dict[_Key, _Member] = {}
        self._planned: dict[_Key, MemberStart] = {}
        self._said: set[tuple[Role, str]] = set()
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
        self._publisher = JobPublisher(self._api, self._job)
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
        memory = None if earlier is None else self._memory_after(earlier).wanted
        manifest = member_pod(
            self._options,
            self._job,
            start,
            self._context.commands.member(start),
            logs_folder=self._context.logs_folder,
            working_folder=Path.cwd(),
            environment=self._context.environment,
            restarts=restarts,
            server_grace_seconds=self._context.server_grace_seconds,
            memory=memory,
            lost_node=None if earlier is None else _lost_node(earlier),
        )
        pod = self._create(manifest)
        with self._lock:
            self._planned.pop(key, None)
            self._change(pod, True)
        if earlier is not None and earlier.exists:
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
        try:
            self._delete(member, grace_seconds)
        except ApiError as error:
            raise LauncherBusyError(error.message) from error

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest pod of every member that was ever started, and the master."""
        with self._lock:
            self._give_up_unconfirmed()
            pods = tuple(self._state(member) for member in self._members.values())
        return (*self._master.observe(), *pods)

    def failure(self) -> str:
        """Why the master is not started again, with its last lines; empty while all is well."""
        return self._master.failure()

    def is_followed(self) -> bool:
        """Whether the Job starts another driver, and the pods may be there without one.

        In a queue they may not: they would hold quota that the next driver waits for.
        """
        if self._options.queue is not None:
            return False
        try:
            # The answer shows the Job, and the driver may patch it, not get it.
            job = self._api.patch("Job", self._job.name, {"metadata": {}})
        except ApiError as error:
            _LOGGER.warning("whether another driver follows cannot be read: %s", error)
            return False
        return not job["spec"].get("suspend") and "deletionTimestamp" not in job["metadata"]

    def publish(self, news: JobNews) -> None:
        """Shows it by labels and Events of the Job."""
        self._publisher.publish(news)

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
        stay = isinstance(error, HandedOver)
        if not stay:
            self._end_all()
        self._watch.close()
        self._publisher.close()
        if not stay:
            self._sweep_ended()

    def _end_all(self) -> None:
        """Deletes all pods, and waits a while until they are gone."""
        until = time.monotonic() + _CLOSE_SECONDS
        asked: set[str] = set()
        while time.monotonic() < until:
            with self._lock:
                self._give_up_unconfirmed()
                running = [one for one in self._members.values() if one.end is None]
                for one in running:
                    one.is_stopped = True
            if not running:
                return
            missing = [one for one in running if one.uid not in asked]
            refusals = self._delete_all(missing, self._context.closing_seconds)
            asked.update(one.uid for one in missing if one.uid not in refusals)
            final = [refused for refused in refusals.values() if not refused.may_pass]
            if final:
                _LOGGER.warning("the pods end with their job: %s", final[0])
                return
            if refusals:
                first = next(iter(refusals.values()))
                _LOGGER.warning("%d pods are deleted later: %s", len(refusals), first)
            self._pause(_POLL_SECONDS)

    def _create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        try:
            return self._api.create(manifest)
        except ApiError as error:
            if error.status == 409:
                # An earlier call created it, and its answer was lost.
                return self._get(name)
            # It had the right when the job was submitted.
            if error.may_pass or error.lacks_right:
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
        self._api.delete("Pod", member.name, uid=member.uid, grace_seconds=grace)

    def _delete_all(self, members: Iterable[_Member], grace_seconds: float) -> dict[str, ApiError]:
        """Deletes pods side by side; whose deletion failed, by UID, and why.

        Once one is refused for good, the others are not asked for.
        """
        refusals: dict[str, ApiError] = {}
        is_refused = threading.Event()

        def delete(member: _Member) -> None:
            if is_refused.is_set():
                return
            try:
                self._delete(member, grace_seconds)
            except ApiError as error:
                refusals[member.uid] = error
                if not error.may_pass:
                    is_refused.set()

        with ThreadPoolExecutor(_CALLS_AT_ONCE) as calls:
            list(calls.map(delete, members))
        return refusals

    def _sweep_ended(self) -> None:
        with self._lock:
            members = list(self._members.values())
        # Those that were asked to end go by themselves.
        self._forget(*(one for one in members if one.exists and not one.is_to_go))

    def _forget(self, *members: _Member) -> None:
        """Deletes pods that have ended."""
        refusals = self._delete_all(members, 1.0)
        if refusals:
            # The Job owns them and takes them along.
            _LOGGER.warning(
                "%d pods stay until their job is deleted: %s",
                len(refusals),
                next(iter(refusals.values())),
            )

    def _replace(self, pods: tuple[dict[str, Any], ...], asked: int) -> None:
        """Takes over a list of all pods that was asked for at that count."""
        with self._lock:
            for pod in sorted(pods, key=lambda one: one["metadata"]["creationTimestamp"]):
                self._change(pod, True)
            listed = {pod["metadata"]["uid"] for pod in pods}
            for member in self._members.values():
                if member.uid in listed or member.seen >= asked:
                    continue
                member.exists = False
                if member.end is None:
                    self._end(member, end_of_deleted(member.pod, stopped=member.is_stopped))

    def _change(self, pod: dict[str, Any], exists: bool) -> None:
        """Takes over one pod."""
        with self._lock:
            found = self._find(pod)
            if found is None:
                return
            found.pod, found.seen, found.exists = pod, next(self._counter), exists
            if found.end is not None:
                return
            end = read_end(pod, stopped=found.is_stopped)
            if end is None and not exists:
                end = end_of_deleted(pod, stopped=found.is_stopped)
            if end is not None:
                self._end(found, end)
                return
            found.note_deletion(self._clock())
            waits_for = explain_waiting(pod)
            if waits_for and waits_for != found.waits_for:
                self._say_waiting(found, waits_for)
            found.waits_for = waits_for

    def _say_waiting(self, member: _Member, why: str) -> None:
        """Logs it; what somebody has to mend once for all members of a role, as a warning."""
        said = (member.start.role, why)
        if is_faulty(member.pod) and said not in self._said:
            self._said.add(said)
            _LOGGER.warning("%s-%d waits: %s", member.start.role, member.start.index, why)
        else:
            _LOGGER.info("%s waits: %s", member.name, why)

    def _give_up_unconfirmed(self) -> None:
        """Pods that were to end, and of whose end their nodes say nothing, count as ended.

        Kubernetes keeps such a pod until its node is back or is deleted, and it may still run. Its
        calls are refused, as another process has its place; its node ends it once it is back.
        """
        now = self._clock()
        for member in self._members.values():
            if member.end is None and member.gone_by is not None and now > member.gone_by:
                self._end(member, PodEnd("node_lost", None, "its node does not confirm its end"))

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

    def _state(self, member: _Member) -> ProcessState:
        end = member.end
        memory = self._memory_after(member) if member.ran_out_of_memory else None
        return ProcessState(
            role=member.start.role,
            index=member.start.index,
            incarnation=member.start.incarnation,
            pid=0,
            running=end is None,
            exit_code=None if end is None else end.exit_code,
            reason=None if end is None else end.reason,
            traceback="" if end is None else end.message,
            restarts=member.restarts,
            waits_for=member.waits_for if end is None else "",
            remedy=memory.remedy if memory else "",
            advice=memory.advice if memory else "",
        )

    def _memory_after(self, member: _Member) -> NextMemory:
        role = member.start.role
        options = member_options(self._options, role)
        return NextMemory(options, role, memory_of(member.pod), member.ran_out_of_memory)


def _lost_node(member: _Member) -> str | None:
    """The node that a member was lost with; None: it was not."""
    if member.end is None or member.end.reason != "node_lost":
        return None
    node = member.pod["spec"].get("nodeName")
    return None if node is None else str(node)
