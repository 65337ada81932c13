"""Status, stop, scale and logs of a job, for commands outside of it.

Everything here finds the job by its run folder and asks its master; nothing is ever changed in the
folder itself.
"""

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, TypeVar

from ctr_pipeline.distributed.coordination.messages import Empty, ScaleRequest
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import Role
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from ctr_pipeline.pipeline.run_folder import RunFolder, find_run
from ctr_pipeline.specs.launchers import MODES_WITH_MEMBERS

T = TypeVar("T")

MASTER_SERVICE = "MasterService"
ENDED_STATES = frozenset({"finished", "stopped", "failed"})
"""States that a job does not leave by itself."""

_DEADLINE_SECONDS = 3.0
_POLL_SECONDS = 0.2
_LOG_POLL_SECONDS = 1.0
_SCALE_SECONDS = 2.0
_MEMBER = re.compile(r"(master|ps|worker)-[0-9]+|fork-server")
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Job:
    """A job by its run folder.

    Attributes:
        run_folder: Folder of the run that started it.
        role: Role of the caller, whose certificate is used.
    """

    run_folder: Path
    role: Role = "client"

    @property
    def folder(self) -> Path:
        """What its members agree on."""
        return self.run_folder / "job"

    @property
    def logs(self) -> Path:
        """What its members wrote."""
        return self.run_folder / "logs"


def find_job(run: Path) -> Job:
    """The job of a run, whose master can be asked.

    Raises:
        CtrPipelineError: As `find_logs`; or the run has no master.
    """
    job = find_logs(run)
    if not job.folder.is_dir():
        raise RunFolderError(
            "was trained with runtime.strategy: allreduce, which has no master to ask",
            place=str(job.run_folder),
            remedy="Ctrl-C in the 'ctrpipe run' that started its workers stops them after a "
            "checkpoint; 'ctrpipe scale --workers' changes their number",
        )
    return job


def find_logs(run: Path) -> Job:
    """The job of a run, with a master or without.

    Args:
        run: As of `find_run`.

    Raises:
        CtrPipelineError: There is no such run, or no job in it; or the config has problems.
    """
    folder = find_run(run).path
    job = Job(folder)
    if not job.folder.is_dir() and not RunFolder(folder).replicas.is_dir():
        raise RunFolderError(
            "holds no job of several processes",
            place=str(folder),
            remedy=f"Only runs with runtime.mode: {MODES_WITH_MEMBERS} have members, once "
            "their rows are read",
        )
    return job


def read_status(job: Job) -> JobView:
    """The status that the master reports; or, where none answers, the one in its ledger.

    Raises:
        CtrPipelineError: No master answers and the ledger cannot be read; or the master refuses.
    """
    try:
        return ask_master(job, "Status", Empty(), JobView)
    except PeerUnavailable:
        # The master's own view of the ledger, which needs the code of the job machine.
        from ctr_pipeline.distributed.master import reading

        return reading.read_status(job.run_folder)


class MasterConnection:
    """Calls to the master of a job, over one connection for as long as it answers there.

    A context manager that closes the connection.

    Args:
        address: `host:port` of its master; None: as announced in the run folder.
    """

    def __init__(self, job: Job, address: str | None = None) -> None:
        self._job = job
        self._address = address
        self._client: RpcClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._disconnect()

    def ask(self, method: str, message: object, reply: type[T]) -> T:
        """Calls.

        Raises:
            PeerUnavailable: No master answers.
            CtrPipelineError: It refuses, or the secrets of the job cannot be read.
        """
        address = self._address or self._announced_address()
        if self._client is None or self._client.address != address:
            self._disconnect()
            self._client = RpcClient(
                MASTER_SERVICE, address, Access.load(self._job.folder, self._job.role)
            )
        try:
            return self._client.call(method, message, reply, deadline_seconds=_DEADLINE_SECONDS)
        except PeerUnavailable as error:
            # The next one may have other secrets.
            self._disconnect()
            raise PeerUnavailable(
                f"the master at {address} does not answer: the job does not run",
                place=str(self._job.run_folder),
                remedy=_NOT_RUNNING,
            ) from error

    def _announced_address(self) -> str:
        endpoint = load_endpoint(self._job.folder)
        if endpoint is None:
            raise PeerUnavailable(
                "no master has announced itself",
                place=str(self._job.run_folder),
                remedy=_NOT_RUNNING,
            )
        return endpoint.address

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def ask_master(
    job: Job, method: str, message: object, reply: type[T], *, address: str | None = None
) -> T:
    """Asks the master of a job once; arguments and errors as of `MasterConnection`."""
    with MasterConnection(job, address) as line:
        return line.ask(method, message, reply)


def _request_change(job: Job, method: str, message: object) -> None:
    """Asks the master of a job to change something; the error of a job that has ended says so."""
    try:
        ask_master(job, method, message, Empty)
    except PeerUnavailable as error:
        try:
            state = read_status(job).state
        except CtrPipelineError:
            raise error from None
        if state not in ENDED_STATES:
            raise
        verb = "was" if state == "stopped" else "has"
        raise RunFolderError(
            f"the job does not run: it {verb} {state} already",
            place=str(job.run_folder),
            remedy=_NOT_RUNNING,
        ) from error


_NOT_RUNNING = "'ctrpipe run CONFIG --resume' goes on from its last checkpoint"


def stop_job(
    job: Job,
    *,
    wait_seconds: float,
    on_asked: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Has a job take a last checkpoint and end.

    Args:
        wait_seconds: Longest wait for its end; 0: only asks.
        on_asked: Called once the master has agreed.
        clock: Seconds, monotonic.
        pause: Waits seconds.

    Returns:
        The last known state: of `ENDED_STATES` if the end was seen.

    Raises:
        CtrPipelineError: It does not run.
    """
    _request_change(job, "Stop", Empty())
    on_asked()
    state = "stopping"
    until = clock() + wait_seconds
    while clock() < until and state not in ENDED_STATES:
        pause(_POLL_SECONDS)
        try:
            state = ask_master(job, "Status", Empty(), JobView).state
        except PeerUnavailable:
            # It may be on its way back, or have ended between two questions; its ledger knows.
            state = read_status(job).state
    return state


def scale_job(
    job: Job,
    *,
    workers: int | None,
    min_workers: int | None,
    max_workers: int | None,
    parameter_servers: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Asks for another number of workers.

    Args:
        workers: Wanted from now on, and never more, unless `max_workers` says otherwise.
        min_workers: Training needs so many; None leaves the bound.
        max_workers: There are never more; None leaves the bound.
        parameter_servers: Wanted from now on; None leaves their number.
        clock: Seconds, monotonic.
        pause: Waits seconds.

    Returns:
        Workers wanted now; other than asked where a bound forbids it.

    Raises:
        CtrPipelineError: It does not run, or the numbers contradict each other.
    """
    request = ScaleRequest(
        min_workers=min_workers,
        max_workers=workers if max_workers is None else max_workers,
        target_workers=workers,
        parameter_servers=parameter_servers,
    )
    _request_change(job, "Scale", request)
    expected = workers if max_workers is None else workers or max_workers
    until = clock() + _SCALE_SECONDS
    while True:
        # The master acts on it after it has answered.
        wanted = ask_master(job, "Status", Empty(), JobView).workers_wanted
        if expected in {None, wanted} or clock() >= until:
            return wanted
        pause(_POLL_SECONDS)


def find_log(job: Job, member: str) -> Path:
    """The log of a member.

    Raises:
        RunFolderError: There is no such member; the message names those that there are.
    """
    path = job.logs / f"{member}.log"
    if _MEMBER.fullmatch(member) and path.is_file():
        return path
    members = sorted((one.stem for one in job.logs.glob("*.log")), key=_by_role_and_index)
    near = difflib.get_close_matches(member, members, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    found = ", ".join(members) if members else "no member has started yet"
    raise RunFolderError(
        f"there is no member '{member}'{hint}",
        place=str(job.run_folder),
        remedy=f"There are {found}" if members else f"{found.capitalize()}; -f waits for it",
    )


def await_log(
    job: Job,
    member: str,
    *,
    on_wait: Callable[[str], None],
    is_over: Callable[[], bool] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """The log of a member, once it has one.

    Args:
        member: For example `worker-3`.
        on_wait: Called once, with a message, if there is no log yet.
        is_over: Whether no more members will start; None: asks the job.
        pause: Waits seconds; whatever it raises ends the waiting.

    Raises:
        RunFolderError: No member can have that name, or the job is over and it has none.
    """
    path = job.logs / f"{member}.log"
    is_logged = False
    while not path.is_file():
        # A job without a state may be about to begin.
        over = find_state(job) in ENDED_STATES if is_over is None else is_over()
        if over or not _MEMBER.fullmatch(member):
            return find_log(job, member)
        if not is_logged:
            is_logged = True
            on_wait(f"{member} has not started yet: waiting for what it writes")
        pause(_LOG_POLL_SECONDS)
    return path


def find_state(job: Job) -> str | None:
    """The state of a job; None: neither its master nor its ledger can be read."""
    try:
        return read_status(job).state
    except CtrPipelineError:
        return None


def _by_role_and_index(name: str) -> tuple[str, int]:
    role, _, index = name.partition("-")
    return role, int(index) if index.isdigit() else 0


def read_log(
    path: Path, num_lines: int, *, follow: bool, pause: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """The last lines of a log, and then what is appended to it, for ever.

    A log that is moved away while it is followed is read to its end, then the new one.

    Args:
        path: The log.
        num_lines: Last lines to begin with.
        follow: Whether to go on.
        pause: Waits seconds; whatever it raises ends the following.
    """
    file = path.open("rb")
    try:
        file.seek(_find_last_lines(file, num_lines))
        while True:
            while data := file.read(BLOCK_BYTES):
                yield data
            if not follow:
                return
            if _is_another_file(path, file.fileno()):
                # What was written between our read and the move is still to be read.
                yield file.read()
                file.close()
                file = path.open("rb")
            else:
                pause(_POLL_SECONDS)
    finally:
        file.close()


def _find_last_lines(file: IO[bytes], num_lines: int) -> int:
    """Where the last lines of a file begin; a last line without an end counts."""
    place = end = file.seek(0, os.SEEK_END)
    if num_lines == 0:
        return end
    ends_left = num_lines
    while place > 0:
        size = min(BLOCK_BYTES, place)
        place -= size
        file.seek(place)
        block = file.read(size)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            # The end of the last line begins no other.
            if place + at + 1 < end:
                ends_left -= 1
            if ends_left == 0:
                return place + at + 1
    return 0


def _is_another_file(path: Path, descriptor: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino)
