"""A run that is kept in a storage: `output: s3://…`.

Its run folder is scratch space on the disk of whoever works on it. One process at a time commits
what lies there to the storage, again and again while it works; whoever wants to read the run, or
to go on with it, fetches the newest commit. Checkpoints are written to the storage at once, below
`checkpoints/`.

Each process that takes over has a higher generation, and the storage refuses the commits of those
before. A process that commits nothing for `SILENT_SECONDS` counts as lost: others may take over.
"""

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.models import Config
from ctr_pipeline.errors import CtrPipelineError, FolderInUseError, StorageError
from ctr_pipeline.pipeline.timing import start_of_process
from ctr_pipeline.storage.commit_log import FencedError
from ctr_pipeline.storage.commits import MANIFESTS, PARTS, PINS, Manifest, commit_id_of
from ctr_pipeline.storage.folder_commits import FILES, FolderCommits
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import Storage, StorageAwayError

_LOGGER = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
COMMIT_SECONDS = 10.0
SILENT_SECONDS = 45.0
LOOK_SECONDS = 3.0
_GROWING_SECONDS = 60.0
_SLOW_SECONDS = 15.0
"""Time for which a store may not answer before that is told."""

_FETCH_LOCK = ".fetching"
_JOB_FILES = ("job/spec.json", "job/counts.npy")


def is_left_out(name: str) -> bool:
    """Whether a file of a run folder stays in scratch space.

    So do caches, which are made again from the data; the secrets, addresses and ledger of a job;
    and what lies in folders of checkpoints, as checkpoints are elsewhere.
    """
    parts = Path(name).parts
    if parts[0] in {"job", "replicas"}:
        return len(parts) > 1 and name not in {*_JOB_FILES, "replicas/progress.json"}
    return parts[0] in {"cache", "scoring", "scores"} or CHECKPOINTS in parts[:-1]


def find_stored_runs(address: str) -> list[str]:
    """The addresses of runs at an address and below it, in their order.

    Raises:
        StorageError: The storage cannot be used.
    """
    runs: set[str] = set()
    for one in open_storage(address).list(""):
        folder, found, name = one.key.rpartition(f"{MANIFESTS}/")
        if found and commit_id_of(f"{MANIFESTS}/{name}") is not None:
            runs.add(folder)
    # Checkpoints of a run are committed below it.
    inner = {run for run in runs for other in runs - {run} if run.startswith(other)}
    return [f"{address.rstrip('/')}/{run}".rstrip("/") for run in sorted(runs - inner)]


def _survives(name: str) -> bool:
    return Path(name).parts[0] == "cache"


def _grows(name: str) -> bool:
    """Whether a file is appended to, so that each commit of it writes all of it again."""
    return name.endswith(".log") or Path(name).parts[0] == "tensorboard"


@dataclass
class StoredRun:
    """The run at an address.

    Attributes:
        address: An address such as `s3://bucket/runs/clicks`.
        folder: Its scratch space.
        name: Name of its config.
        patience_seconds: Longest wait, at the end of the work, for a storage that is away.
        log: Tells people what is waited for.
    """

    address: str
    folder: Path
    name: str = ""
    patience_seconds: float = 600.0
    log: Callable[[str], None] = _LOGGER.info
    _asked_at: datetime | None = field(default=None, init=False, repr=False)
    _error: str = field(default="", init=False, repr=False)
    _commits: FolderCommits | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, config: Config) -> "StoredRun | None":
        """The stored run of a config; None: the run folder is all there is."""
        if config.stored_at is None:
            return None
        seconds = config.runtime.storage_timeout_seconds
        return cls(config.stored_at, config.run_folder, config.name, seconds)

    @cached_property
    def _storage(self) -> Storage:
        return open_storage(self.address)

    def _commits_there(self) -> FolderCommits:
        """The commits as the scratch space knows them now."""
        return FolderCommits(self._storage, self.folder, left_out=is_left_out, survives=_survives)

    @property
    def generation(self) -> int:
        """Generation of the commits of this process; higher than that of all processes before."""
        return 0 if self._commits is None else self._commits.generation

    @property
    def trouble(self) -> str:
        """Why what was done last is not in the storage yet; empty where it is."""
        asked = self._asked_at
        if asked is None or (datetime.now(UTC) - asked).total_seconds() < _SLOW_SECONDS:
            return ""
        why = self._error or "it has not answered yet"
        return f"not kept there since {asked.astimezone():%H:%M:%S}: {why}"

    def note_commit(self, error: CtrPipelineError | None = None) -> None:
        """Notes that a commit begins or could not be made."""
        self._asked_at = self._asked_at or datetime.now(UTC)
        if error is not None and not self._error:
            self._error = str(error)
            self.log(f"{error}. The run goes on, and is kept there as soon as that works")

    def note_kept(self) -> None:
        """Notes that all is in the storage."""
        if self._error:
            self.log(f"{self.address} has all of the run again")
        self._asked_at, self._error = None, ""

    def fetch(self, *, is_used: Callable[[], bool]) -> None:
        """Makes the scratch space the run as it was last committed.

        Args:
            is_used: Whether a process of this machine works on the run; then there is no need to.

        Raises:
            StorageError: There is no run, or it cannot be read at this moment.
            CheckpointError: Something in it is damaged.
        """
        with self._alone():
            if not is_used() and self._commits_there().fetch() is None:
                self._require_empty()
                raise StorageError(
                    "there is no run here",
                    place=self.address,
                    remedy="Name the 'output' of a run, or its config",
                )

    def places(self) -> Mapping[str, str]:
        """Where files of the newest commit lie, by their names in the run folder."""
        newest = self._commits_there().newest()
        files: Mapping[str, str] = {} if newest is None else newest.state[FILES]
        return {name: f"{self.address}/{key}" for name, key in files.items()}

    def copy(self, names: Collection[str]) -> None:
        """Copies some files of the newest commit into the scratch space, and no others.

        Raises:
            StorageError: The run cannot be read at this moment.
            CheckpointError: One of them is damaged.
        """
        self._commits_there().copy(names)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Commits what happens in the scratch space inside; the caller has locked it.

        Raises:
            FolderInUseError: Another process works on the run.
            FencedError: Another process has taken over, and what this one did last does not count.
            StorageError: Something else lies at the address, or it cannot be used.
        """
        with self._alone():
            commits = self._commits_there()
            keeper = _Keeper(self, commits)
            self._require_unused(commits)
            keeper.begin()
        self._commits = commits
        self.log(f"The run is kept at {self.address}; its working copy is {self.folder}")
        with keeper:
            yield

    def _require_unused(self, commits: FolderCommits) -> None:
        newest = commits.newest()
        if newest is None:
            self._require_empty()
        elif not (newest.state["over"] or commits.has_written(newest)):
            # What was written from here was by the process whose lock of the folder we have now.
            self._await_silence(commits, newest)

    def _require_empty(self) -> None:
        known = (MANIFESTS, PARTS, PINS, CHECKPOINTS)
        for one in self._storage.list(""):
            if one.key.partition("/")[0] not in known:
                raise StorageError(
                    f"holds other objects, such as '{one.key}', and no run",
                    place=self.address,
                    remedy="Choose an 'output' that is new or empty",
                )

    def _await_silence(self, commits: FolderCommits, newest: Manifest) -> None:
        owner = newest.state["owner"]
        if owner["host"] == socket.gethostname():
            start = owner["process_start"]
            if start is not None and start_of_process(owner["process"]) == start:
                raise self._in_use(owner)
            return
        self.log(
            f"{_describe(owner)} worked on {self.address} and has not said that it ended: waiting "
            f"{SILENT_SECONDS:.0f} s to see whether it still does"
        )
        until = time.monotonic() + SILENT_SECONDS
        while time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            later = commits.newest()
            if later is not None and later.commit_id != newest.commit_id:
                if later.state["over"]:
                    return
                raise self._in_use(later.state["owner"])

    def _in_use(self, owner: Mapping[str, Any]) -> FolderInUseError:
        return FolderInUseError(
            f"{_describe(owner)} works on this run",
            place=self.address,
            remedy="Wait for it, stop it, or choose another 'output'",
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of this machine at a time fetches into the scratch space."""
        with durable.os_errors_explained(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = str(self.folder / _FETCH_LOCK)
            descriptor = durable.not_through_links(lock, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _Keeper:
    """Commits a run again and again while a process works on it; a context manager."""

    def __init__(self, run: StoredRun, commits: FolderCommits) -> None:
        self._run = run
        self._commits = commits
        self._owner = {
            "name": run.name,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "process_start": start_of_process(os.getpid()),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._over = threading.Event()
        self._lost: FencedError | None = None
        self._thread = threading.Thread(target=self._repeat, name="stored-run", daemon=True)

    def begin(self) -> None:
        """Takes over, and says so."""
        with self._naming_who_took_over():
            self._commits.begin()
            self._commit(over=False)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._lost is not None:
            if error is not self._lost:
                raise self._lost
        elif isinstance(error, FencedError):
            # Whoever saves checkpoints noticed first.
            with self._naming_who_took_over():
                raise error
        elif error is None:
            self._finish()
        else:
            self._keep_after_error()

    def _repeat(self) -> None:
        grown_at = time.monotonic()
        while not self._over.wait(COMMIT_SECONDS):
            holds_back = time.monotonic() - grown_at < _GROWING_SECONDS
            try:
                with self._naming_who_took_over():
                    self._commit(over=False, holds_back=holds_back)
            except FencedError as error:
                self._lost = error
                interruption.end_with(error)
                return
            except CtrPipelineError as error:
                self._run.note_commit(error)
            else:
                grown_at = grown_at if holds_back else time.monotonic()

    def _commit(self, *, over: bool, holds_back: bool = False) -> None:
        self._run.note_commit()
        self._commits.commit(
            {"owner": self._owner, "over": over},
            holds_back=_grows if holds_back else lambda _: False,
        )
        self._run.note_kept()

    @contextmanager
    def _naming_who_took_over(self) -> Iterator[None]:
        try:
            yield
        except FencedError as error:
            raise FencedError(
                f"{self._describe_other()} has taken over this run, and what this process did last "
                "does not count",
                place=self._run.address,
                remedy="Let one process at a time write a run",
            ) from error

    def _describe_other(self) -> str:
        """The process that has taken over, which may be about to say so."""
        until = time.monotonic() + 5 * LOOK_SECONDS
        while True:
            newest = self._commits.newest()
            if newest is not None and newest.state["owner"] != self._owner:
                return _describe(newest.state["owner"])
            if time.monotonic() >= until:
                return "another process"
            time.sleep(LOOK_SECONDS / 10)

    def _finish(self) -> None:
        """Commits what there is, and that nobody works on it any more."""
        run = self._run
        until = time.monotonic() + run.patience_seconds
        while True:
            try:
                with self._naming_who_took_over():
                    self._commit(over=True)
                    self._commits.retain()
            except FencedError:
                raise
            except StorageError as error:
                # Only what does not answer may answer later.
                if not isinstance(error, StorageAwayError) or time.monotonic() >= until:
                    raise type(error)(
                        f"{error.message}, so what the run did last lies in {run.folder} alone",
                        place=error.place,
                        remedy="; then ".join(
                            filter(None, (error.remedy, "--resume on this machine keeps it there"))
                        ),
                    ) from error
                run.note_commit(error)
                time.sleep(LOOK_SECONDS)
            else:
                return

    def _keep_after_error(self) -> None:
        """As `_finish`, once, and without errors: the work has one already."""
        run = self._run
        try:
            self._commit(over=True)
            self._commits.retain()
        except CtrPipelineError as another:
            run.log(f"{another}. What the run did last lies in {run.folder} alone")


def _describe(owner: Mapping[str, Any]) -> str:
    return (
        f"the run '{owner['name']}' (process {owner['process']} on {owner['host']}, since "
        f"{owner['since']})"
    )
