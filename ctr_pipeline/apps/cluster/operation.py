"""Jobs that were submitted to a cluster: their state, logs, and ends."""

import base64
import contextlib
import functools
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any, Literal

from ctr_pipeline.apps.cluster.idle_pods import await_start, idle_pod, shrink, temporary_pod
from ctr_pipeline.apps.cluster.submission import (
    FOLDER_ANNOTATION,
    NODES_ANNOTATION,
    OWNER_ROLE,
    STRATEGY_ANNOTATION,
)
from ctr_pipeline.apps.cluster.transfer import (
    CHECKPOINTS,
    DamagedStreamError,
    FoundFile,
    Piece,
    PodFolder,
    find_missing,
)
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.drivers import (
    MOST_FAILURES,
    count_failures,
    ended_in_order,
    explain_driver_end,
    has_final_end,
    in_order,
    pause_before_next,
)
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import explain_waiting, read_end
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    DRIVER,
    INDEX_LABEL,
    JOB_LABEL,
    PHASE_LABEL,
    ROLE_LABEL,
    WORK,
    ClusterJob,
    Manifest,
    job_labels,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, parse_endpoint
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.progress import Progress

JobState = Literal["waiting", "running", "stopping", "stopped", "finished", "failed"]

_ALL = "app.kubernetes.io/name=ctrpipe"
_NODE_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_ADDRESS = re.compile(r"k8s:(?:(?P<namespace>[a-z0-9-]+)/)?(?P<name>[a-z0-9-]+)")
_MEMBER = re.compile(r"(ps|worker)-([0-9]+)")
_ALL_LINES = 1_000_000
_POLL_SECONDS = 1.0
_QUEUE_SECONDS = 0.1
_END_SECONDS = 15
"""Within which Kubernetes tells of the end of a container that takes no commands any more."""
_NAMES_SHOWN = 8
"""Names of members that wait for the same."""
_ENDED = frozenset({"finished", "failed", "stopped"})

READER = "reader"
"""The role of a pod that reads the run folder of a job without a driver."""
_READER_SECONDS = 120.0
_FETCH_TRIES = 3
"""One after the other, that bring no byte."""

_SHOW_FILE = "import sys; sys.stdout.write(open(sys.argv[1]).read())"

ALL_MEMBERS = "all"
MASTER = "master-0"


@dataclass(frozen=True)
class JobSummary:
    """One job of a namespace.

    Attributes:
        pods: How many pods of the job run now, by role.
        reason: Why it, or a member of it, waits, or why it failed; empty otherwise.
        next_driver_seconds: Until Kubernetes starts another driver in place of one that failed;
            0: nothing is waited for.
    """

    name: str
    namespace: str
    state: JobState
    folder: str
    pods: dict[str, int]
    reason: str
    next_driver_seconds: int = 0


@dataclass(frozen=True)
class Fetched:
    """What a fetch found.

    Attributes:
        num_files: Files that the job has, among those that were asked for.
        num_new: Files among them that were not here in the same state.
        num_bytes: Bytes that came.
    """

    num_files: int
    num_new: int
    num_bytes: int


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
        return summarize(
            self._job(), self._pods(), lambda: read_refusals(self._api), now=time.time()
        )

    def run_in_driver(self, arguments: Sequence[str]) -> tuple[str, str, int] | None:
        """Runs a subcommand in the driver pod; None: no driver runs.

        Args:
            arguments: The subcommand, then what follows the run folder.

        Returns:
            Its stdout, stderr and exit code.
        """
        subcommand, *rest = arguments
        found = self._execute(["python", "-m", "ctr_pipeline", subcommand, self._folder(), *rest])
        return None if found is None else found[1]

    def read_endpoint(self) -> tuple[str, Endpoint] | None:
        """The driver pod and the master that announced itself there; None while there is none."""
        place = f"{self._folder()}/job/endpoint.json"
        # An image need not have other programs.
        answer = self._execute(["python", "-I", "-S", "-c", _SHOW_FILE, place])
        if answer is None:
            return None
        driver, (found, _, code) = answer
        endpoint = parse_endpoint(found.encode()) if code == 0 else None
        return None if endpoint is None else (driver, endpoint)

    def _execute(self, command: Sequence[str]) -> tuple[str, tuple[str, str, int]] | None:
        """Runs a command in the driver pod; its name and what came of it; None: no driver runs.

        A container that has ended takes no command, and its pod is said to run a little longer.
        """
        for _ in range(_END_SECONDS):
            driver = self._running_driver()
            if driver is None:
                return None
            try:
                return driver, self._api.execute(driver, command)
            except ApiError as error:
                if not error.may_pass and error.status != 404:
                    raise
                refused = error
            self._pause(_POLL_SECONDS)
        raise refused

    def connect(self, driver: str, port: int) -> socket.socket:
        """A connection to a port of the driver pod."""
        return self._api.connect(driver, port)

    def read_access(self) -> Access:
        """The secrets of the job, for a command of its user."""
        data = self._api.get("Secret", self.name)["data"]
        return Access.of_files({name: base64.b64decode(value) for name, value in data.items()})

    def read_log(self, member: str, *, num_lines: int, follow: bool) -> Iterator[bytes]:
        """What the newest pod of a member wrote, or else the file of its log.

        Args:
            member: `driver`, or for example `worker-0`; `master` is a process beside the driver.

        Raises:
            CtrPipelineError: There is no such member.
        """
        if member == "master":
            member = MASTER
        masters = {MASTER} if self._has_master() else set[str]()
        pod = self._driver() if member == DRIVER else self._member(member)
        if pod is not None:
            name = pod["metadata"]["name"]
            return self._api.read_log(name, num_lines=num_lines, follow=follow)
        if member not in masters and not _MEMBER.fullmatch(member):
            names = sorted(masters | {_member_name(one) for one in self._pods()})
            raise CtrPipelineError(
                f"there is no member '{member}'",
                place=f"k8s:{self._api.namespace}/{self.name}",
                remedy=f"There are {', '.join(names)}; 'all' shows all of them",
            )
        return self._read_log_file(member, num_lines=num_lines, follow=follow)

    def read_all_logs(self, *, num_lines: int, follow: bool) -> Iterator[tuple[str, bytes]]:
        """Lines of all members with the member that wrote them; those that come later join.

        Args:
            num_lines: How many of the last lines of each member.
            follow: Until the job has ended.
        """
        lines: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        threads: dict[str, threading.Thread] = {}
        has_master = self._has_master()

        def read(member: str, open_log: Callable[[], Iterator[bytes]]) -> None:
            try:
                for line in _whole_lines(open_log()):
                    lines.put((member, line))
            except CtrPipelineError as error:
                # Of a member that ends meanwhile, or has written nothing yet.
                lines.put((member, f"[{error}]".encode()))

        def add(key: str, member: str, open_log: Callable[[], Iterator[bytes]]) -> None:
            if key not in threads:
                thread = threading.Thread(target=read, args=(member, open_log), daemon=True)
                threads[key] = thread
                thread.start()

        while True:
            is_last = not follow or self.summary().state in _ENDED
            for pod in sorted(self._pods(), key=_member_name):
                name, member = pod["metadata"]["name"], _member_name(pod)
                if pod["status"].get("phase") == "Pending" or member == READER:
                    continue
                add(
                    name,
                    member,
                    functools.partial(self._api.read_log, name, num_lines=num_lines, follow=follow),
                )
                is_beside_master = member == DRIVER and has_master
                if is_beside_master and pod["status"].get("phase") == "Running":
                    command = self._log_command(MASTER, num_lines=num_lines, follow=follow)
                    add(f"{name} master", MASTER, functools.partial(self._read_in, name, command))
            until = time.monotonic() + _POLL_SECONDS
            while (is_last and any(one.is_alive() for one in threads.values())) or (
                not is_last and time.monotonic() < until
            ):
                with contextlib.suppress(queue.Empty):
                    yield lines.get(timeout=_QUEUE_SECONDS)
            while not lines.empty():
                yield lines.get()
            if is_last:
                return

    def fetch(
        self, target: Path, parts: Sequence[str] = (), *, overwrite: bool, progress: Progress
    ) -> Fetched:
        """Copies files of the run folder of a job that runs, or has ended, to this machine.

        Files that are here in the same state stay, and a transfer that breaks off goes on.

        Args:
            target: A folder.
            parts: Names of files, with or without their endings, and folders of the run folder;
                none: all but the checkpoints.
            overwrite: Files of the same names are replaced.

        Raises:
            CtrPipelineError: There is no run folder yet, or no such part, other files of the same
                names are here, no pod can read the folder, or the transfer breaks again and again.
        """
        run_folder, tries = self._folder(), 0
        while True:
            moved = 0

            def count(num_bytes: int) -> None:
                nonlocal moved
                moved += num_bytes
                task.advance(num_bytes)

            with self._reader() as pod:
                there = PodFolder(self._api, pod, run_folder)
                found = there.list_files()
                if found is None:
                    raise CtrPipelineError(
                        f"there is no run folder '{run_folder}' on the claim of the job yet",
                        place=f"k8s:{self._api.namespace}/{self.name}",
                    )
                files = _select(found, parts)
                pieces = find_missing(target, files)
                if not overwrite:
                    _require_free(target, pieces)
                total = sum(one.num_bytes for one in pieces)
                try:
                    with progress.task("fetch", total=total, unit="bytes") as task:
                        there.fetch(pieces, target, on_bytes=count)
                except (ApiError, DamagedStreamError) as error:
                    tries = 0 if moved else tries + 1
                    if tries == _FETCH_TRIES:
                        raise
                    progress.log(f"{error}; going on where it was")
                else:
                    return Fetched(len(files), len(pieces), total)
            self._pause(_POLL_SECONDS)

    def suspend(self, *, wait_seconds: float) -> JobState:
        """Has the job take a checkpoint and give back all pods; returns the last state seen."""
        self._suspend(True)
        until = time.monotonic() + wait_seconds
        while (pods := _living(self._pods())) and time.monotonic() < until:
            if all(pod["metadata"]["labels"].get(ROLE_LABEL) != DRIVER for pod in pods):
                # A driver that was killed or evicted has left its members.
                for pod in pods:
                    self._api.delete("Pod", pod["metadata"]["name"], uid=pod["metadata"]["uid"])
            self._pause(_POLL_SECONDS)
        return self.summary().state

    def resume(self) -> None:
        """Lets a stopped job go on from its last checkpoint."""
        self._suspend(False)

    def _suspend(self, suspended: bool) -> None:
        """Suspends the driver's Job, and that of nodes if there is one, or lets them go on."""
        nodes = self._job()["metadata"].get("annotations", {}).get(NODES_ANNOTATION)
        for name in (self.name, *([] if nodes is None else [nodes])):
            self._api.patch("Job", name, {"spec": {"suspend": suspended}})

    def delete(self) -> None:
        """Deletes the job and all that belongs to it; the run folder stays."""
        uid = self._job()["metadata"]["uid"]
        self._api.delete("Job", self.name, uid=uid)

    def follow(
        self, show: Callable[[bytes], None], *, on_wait: Callable[[str], None]
    ) -> JobSummary:
        """Shows what its drivers write until the job has ended; returns how.

        Args:
            show: Takes what a driver writes.
            on_wait: Takes why no driver runs, whenever that changes.
        """
        shown: set[str] = set()
        told = ""
        while True:
            summary = self.summary()
            if not summary.pods.get(DRIVER) and summary.reason not in {"", told}:
                told = summary.reason
                on_wait(told)
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
            if summary.state in _ENDED:
                return summary
            self._pause(_POLL_SECONDS)

    def _read_log_file(self, member: str, *, num_lines: int, follow: bool) -> Iterator[bytes]:
        """What a member whose pods are gone wrote, or one that has none."""
        command = self._log_command(member, num_lines=num_lines, follow=follow)
        with self._reader() as pod:
            yield from self._read_in(pod, command)

    def _log_command(self, member: str, *, num_lines: int, follow: bool) -> list[str]:
        command = ["python", "-m", "ctr_pipeline", "logs", self._folder(), member]
        return [*command, f"--lines={num_lines}", *(["--follow"] if follow else [])]

    def _read_in(self, pod: str, command: Sequence[str]) -> Iterator[bytes]:
        with self._api.run(pod, command) as running:
            yield from running
        if running.exit_code != 0:
            raise CtrPipelineError(_last_line(running.errors).removeprefix("error: "))

    @contextlib.contextmanager
    def _reader(self) -> Iterator[str]:
        """The name of a pod that sees the run folder: the driver's, or one that is made for it."""
        driver = self._running_driver()
        if driver is not None:
            yield driver
            return
        with temporary_pod(self._api, reader_pod(self._job(), suffix=token_hex(4))) as created:
            name = created["metadata"]["name"]
            await_start(self._api, name, _READER_SECONDS, pause=self._pause)
            yield name

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

    def _folder(self) -> str:
        return _folder_of(self._job())

    def _has_master(self) -> bool:
        annotations = self._job()["metadata"].get("annotations", {})
        return bool(annotations.get(STRATEGY_ANNOTATION) != "allreduce")

    def _pods(self, **labels: str) -> tuple[dict[str, Any], ...]:
        """Pods of the job with further labels; a job may have a thousand."""
        wanted = {JOB_LABEL: self.name, **labels}
        selector = ",".join(f"{key}={value}" for key, value in wanted.items())
        return self._api.list("Pod", selector).items

    def _driver(self) -> dict[str, Any] | None:
        return _newest(self._pods(**{ROLE_LABEL: DRIVER}))

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
        pods = self._pods(**{ROLE_LABEL: match[1]})
        return _newest([one for one in pods if _index_of(one) == str(int(match[2]))])


def reader_pod(job: dict[str, Any], *, suffix: str) -> Manifest:
    """A pod that sees the claim of a job and no other volume, and needs little.

    Args:
        job: The Job, as the API server gives it.
        suffix: Makes its name unique.
    """
    metadata = job["metadata"]
    pod = idle_pod(
        job,
        f"{metadata['name']}-{READER}-{suffix}",
        labels=job_labels(metadata["name"], READER),
        volumes={WORK, "tmp"},
        variables={"HOME"},
    )
    owner = ClusterJob(metadata["name"], metadata["namespace"], metadata["uid"])
    pod["metadata"]["ownerReferences"] = [owner.owner_reference]
    return shrink(pod)


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


def _select(files: Sequence[FoundFile], parts: Sequence[str]) -> list[FoundFile]:
    """The files of parts of a run folder; none named: all parts but checkpoints."""
    tops = {file.name: PurePosixPath(file.name).parts[0] for file in files}
    stems = {top: top.partition(".")[0] for top in tops.values()}
    for part in parts:
        if part not in stems and part not in stems.values():
            raise CtrPipelineError(
                f"the run folder has no '{part}'",
                remedy="It has " + (", ".join(sorted({*stems.values()})) or "no files yet"),
            )
    wanted = parts or [top for top in stems if top != CHECKPOINTS]
    return [file for file in files if {top := tops[file.name], stems[top]} & {*wanted}]


def _require_free(target: Path, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if (target / piece.file.name).exists():
            raise CtrPipelineError(
                "is here already, and is not as that of the job",
                place=str(target / piece.file.name),
                remedy="Give --overwrite to replace files of the same names, or another --output",
            )


def list_jobs(namespace: str | None) -> list[JobSummary]:
    """All jobs of a namespace; None: of that of the current context."""
    api = KubernetesApi.of_user(namespace)
    pods = api.list("Pod", _ALL).items
    refusals = functools.cache(lambda: read_refusals(api))
    found = []
    for job in api.list("Job", f"{_ALL},{ROLE_LABEL}={OWNER_ROLE}").items:
        name = job["metadata"]["name"]
        theirs = [one for one in pods if one["metadata"]["labels"].get(JOB_LABEL) == name]
        found.append(summarize(job, theirs, refusals, now=time.time()))
    return sorted(found, key=lambda one: one.name)


def read_refusals(api: KubernetesApi) -> tuple[dict[str, Any], ...]:
    """Events of drivers that could not be created; none where the user may not list events."""
    try:
        return api.list("Event", fields="reason=FailedCreate,involvedObject.kind=Job").items
    except ApiError as error:
        if error.status == 403:
            return ()
        raise


def summarize(
    job: dict[str, Any],
    pods: Sequence[dict[str, Any]],
    refusals: Callable[[], Sequence[dict[str, Any]]],
    *,
    now: float,
) -> JobSummary:
    """The state of a job by its Job and its pods.

    Args:
        refusals: Events of drivers that were refused, read only while a job waits for its driver.
        now: Unix time.
    """
    metadata, status = job["metadata"], job.get("status", {})
    ends = {
        one["type"]: one for one in status.get("conditions") or () if one.get("status") == "True"
    }
    running: dict[str, int] = {}
    for pod in pods:
        if pod["status"].get("phase") == "Running":
            role = _role_of(pod)
            running[role] = running.get(role, 0) + 1
    drivers = [one for one in pods if _role_of(one) == DRIVER]
    newest = _newest(drivers)
    state: JobState
    reason, pause = "", 0
    failed = ends.get("Failed") or ends.get("FailureTarget")
    if "Complete" in ends or (newest and newest["status"].get("phase") == "Succeeded"):
        state = "finished"
    elif failed or (newest and has_final_end(newest)):
        state = "failed"
        reason = _last_words(newest) or (failed or {}).get("message", "")
    elif job["spec"].get("suspend"):
        state = "stopping" if _living(pods) else "stopped"
    elif running.get(DRIVER):
        state, reason = "running", _explain_members(pods)
    else:
        # Members run on without a driver.
        state = "running" if _has_begun(job, pods) else "waiting"
        reason, pause = _explain_driver(job, drivers, refusals, now)
    name, namespace = metadata["name"], metadata["namespace"]
    return JobSummary(name, namespace, state, _folder_of(job), running, reason, pause)


def _has_begun(job: dict[str, Any], pods: Sequence[dict[str, Any]]) -> bool:
    """Whether a driver has run so far."""
    return (
        PHASE_LABEL in job["metadata"].get("labels", {})
        or any(_index_of(one) is not None for one in _living(pods))
        or any((end := read_end(one)) and end.reason != "not_started" for one in pods)
    )


def _explain_driver(
    job: dict[str, Any],
    drivers: Sequence[dict[str, Any]],
    refusals: Callable[[], Sequence[dict[str, Any]]],
    now: float,
) -> tuple[str, int]:
    """Why no driver runs, and the seconds until Kubernetes starts the next one."""
    newest, ended = _newest(drivers), ended_in_order(drivers)
    starting = newest if newest is not None and read_end(newest) is None else None
    if starting is not None:
        why = explain_waiting(starting) or "it is being started"
    else:
        why = _explain_creation(job, refusals())
    if not ended:
        return why, 0
    failures = count_failures(job, drivers)
    why = why.replace("its driver ", "it ", 1)
    start = f"start {failures + 1} of {MOST_FAILURES + 1}" if failures else "the next one"
    pause = 0 if starting else pause_before_next(drivers, now)
    return f"{explain_driver_end(ended[-1])}; {start}" + ("" if pause else f": {why}"), pause


def _role_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get(ROLE_LABEL, ""))


def _folder_of(job: dict[str, Any]) -> str:
    return str(job["metadata"].get("annotations", {}).get(FOLDER_ANNOTATION, ""))


def _explain_creation(job: dict[str, Any], refusals: Sequence[dict[str, Any]]) -> str:
    uid = job["metadata"]["uid"]
    of_job = [one for one in refusals if one["involvedObject"].get("uid") == uid]
    if not of_job:
        return "its driver is being created"
    newest = max(of_job, key=lambda one: one.get("lastTimestamp") or "")
    # "Error creating: pods "clicks-x2x" is forbidden: exceeded quota: …"
    why = newest.get("message", "").rpartition(" is forbidden: ")[2]
    return f"its driver cannot be created: {why.removeprefix('Error creating: ')}"


def _explain_members(pods: Sequence[dict[str, Any]]) -> str:
    """Why members have no pod that runs, the same for several said once; empty if all have."""
    waiting: dict[str, list[str]] = {}
    for pod in pods:
        if _index_of(pod) is not None and (why := explain_waiting(pod)):
            waiting.setdefault(why, []).append(_member_name(pod))
    return "; ".join(f"{_enumerate(sorted(who))}: {why}" for why, who in waiting.items())


def _enumerate(names: Sequence[str]) -> str:
    """The first few of many."""
    shown, num_others = names[:_NAMES_SHOWN], len(names) - _NAMES_SHOWN
    return ", ".join(shown) + (f" and {num_others} others" if num_others > 0 else "")


def _last_words(pod: dict[str, Any] | None) -> str:
    if pod is None:
        return ""
    for one in pod["status"].get("containerStatuses") or ():
        message = one.get("state", {}).get("terminated", {}).get("message", "")
        if message:
            return str(message).strip().splitlines()[-1]
    return ""


def _last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "no message")


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _living(pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pods that have not ended; a Job keeps the pods of drivers that failed."""
    return [pod for pod in pods if pod["status"].get("phase") not in {"Succeeded", "Failed"}]


def _newest(pods: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next(reversed(in_order(pods)), None)


def _member_name(pod: dict[str, Any]) -> str:
    role, index = _role_of(pod), _index_of(pod)
    return role if index is None else f"{role}-{index}"


def _index_of(pod: dict[str, Any]) -> str | None:
    """The number of a member; Kubernetes itself gives those of nodes; None: it is none."""
    labels = pod["metadata"]["labels"]
    found = labels.get(INDEX_LABEL, labels.get(_NODE_INDEX_LABEL))
    return None if found is None else str(found)
