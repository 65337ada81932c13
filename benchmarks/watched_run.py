"""A run of `ctrpipe` in several processes, watched from outside while things are done to it.

What is known of it is what its master tells anyone (`ctrpipe status`), asked ten times a second;
its processes are found by a mark in their environment, which children inherit, so that not one of
them can be forgotten, whoever its parent is. Everything that still runs at the end is killed, by
its number.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml
from job_watch import CTRPIPE, JobWatch, MissedError, OverdueError

from ctr_pipeline.config.models import working_copy
from ctr_pipeline.distributed.coordination.messages import Empty, Role
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job.control import Job, MasterConnection, read_status

MARK = "CTRPIPE_WATCHED_RUN"
_KILL_ROUNDS = 5
_SLICE_SECONDS = 0.02
_PREPARED = (
    "cache",
    "statistics.json",
    "vocabularies",
    "features.json",
    "preprocessing.json",
    "config.resolved.yaml",
)


def command_of(process: psutil.Process) -> list[str]:
    """The words of its command line; none if it has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def with_word(processes: Iterable[psutil.Process], word: str) -> list[psutil.Process]:
    """Processes whose command line has the word."""
    return [one for one in processes if word in command_of(one)]


def command_lines(processes: Iterable[psutil.Process]) -> list[str]:
    """Command lines of processes that have not ended meanwhile."""
    return [" ".join(words) for one in processes if (words := command_of(one))]


class WatchedRun(JobWatch):
    """One run and all its processes; a context manager that leaves none behind.

    Args:
        folder: Config, output and log of the run go there.
        config: The YAML file as a mapping; `output` is set here.
        stored_at: Address that the run is kept at, as `output`; None: only in the folder.
        program: That starts the run; other commands are always those of `ctrpipe`.
        environment: Added to ours.
        watch_seconds: Between looks at its status; a look costs the run's machine about 3 ms.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        stored_at: str | None = None,
        program: Sequence[str] = CTRPIPE,
        environment: Mapping[str, str] | None = None,
        watch_seconds: float = 0.1,
    ) -> None:
        self._watch_seconds = watch_seconds
        self._program = tuple(program)
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.output = folder / "run"
        content = {**config, "output": str(self.output)}
        if stored_at is not None:
            # Not by runtime.scratch, which would travel with the config to other machines.
            cache = folder / "cache"
            self.output = working_copy(stored_at, str(cache / "ctrpipe" / "runs"))
            content["output"] = stored_at
            environment = {**(environment or {}), "XDG_CACHE_HOME": str(cache)}
        self.config_path = folder / "config.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        super().__init__(
            {
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **os.environ,
                **(environment or {}),
                MARK: self.mark,
            }
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_error: object) -> None:
        super().__exit__(*_error)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.kill_what_is_left()

    # Starting and ending.

    @property
    def job(self) -> Job:
        """The job for `pipeline.job.control`."""
        return Job(self.output)

    @property
    def pid(self) -> int:
        """Id of the process that the user started: it launches the others."""
        return self._started.pid

    @property
    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("the run has not been started")
        return self._process

    @property
    def log(self) -> Path:
        """What the user's terminal would show."""
        return self.folder / "terminal.log"

    def adopt_preparation(self, prepared: Path) -> None:
        """Begins with data read, counted and encoded by an earlier run of the same rows."""
        shutil.copytree(prepared, self.output, dirs_exist_ok=True)

    def keep_preparation(self, prepared: Path) -> None:
        """Copies what a later run of the same rows need not do again."""
        prepared.mkdir(parents=True)
        for name in _PREPARED:
            path = self.output / name
            if path.is_dir():
                shutil.copytree(path, prepared / name)
            else:
                shutil.copy2(path, prepared / name)

    def start(self, command: str = "run", *arguments: str) -> None:
        """Starts `ctrpipe COMMAND config.yaml ARGUMENTS`."""
        self._earlier_restarts = dict(self.restarts)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._program, command, str(self.config_path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def member(self, role: Role, *arguments: str) -> "subprocess.Popen[bytes]":
        """Starts a member by hand."""
        name = "-".join([role, *(word for word in arguments if word.isdigit())])
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*CTRPIPE, role, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def wait(self, timeout_seconds: float) -> int:
        """The exit code of the run.

        Raises:
            OverdueError: It goes on.
        """
        try:
            return self._started.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise OverdueError(
                f"the run goes on after {timeout_seconds:.0f} s: {self.tail()}"
            ) from None

    @property
    def has_ended(self) -> bool:
        """Whether the process that the user started has."""
        return self._process is None or self._process.poll() is not None

    def tail(self, num_lines: int = 15) -> str:
        """The last lines of the terminal."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-num_lines:])

    def metrics(self) -> dict[str, Any]:
        """`metrics.json` of the run."""
        found: dict[str, Any] = json.loads((self.output / "metrics.json").read_text("utf-8"))
        return found

    def _watch(self) -> None:
        with MasterConnection(self.job) as line:
            while not self._over.wait(self._watch_seconds):
                try:
                    self.take_in(line.ask("Status", Empty(), JobView))
                except CtrPipelineError:
                    self.take_in(None)

    def final_view(self) -> JobView:
        """What the job says of itself after its end."""
        return read_status(self.job)

    # Processes.

    def processes(self) -> list[psutil.Process]:
        """Every process of the run that lives, zombies left out."""
        needle = self.mark
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get(MARK) == needle
                ):
                    found.append(process)
            except psutil.Error:
                continue  # it ended meanwhile, or is another user's
        return found

    def kill_what_is_left(self) -> None:
        """Kills every process of the run that lives, and waits for their ends."""
        # Again, since a process that becomes another program is not found at that very moment.
        for _ in range(_KILL_ROUNDS):
            living = self.processes()
            for process in living:
                with contextlib.suppress(psutil.Error):  # it may end by itself
                    process.kill()
            if not living:
                break
            wait_until_gone([process.pid for process in living], 5.0)

    def leaves_none(self, timeout_seconds: float = 30.0) -> bool:
        """Whether all of its processes end in time."""
        return wait_until_gone([process.pid for process in self.processes()], timeout_seconds)

    def hold_workers_when(
        self, what: str, is_so: Callable[[], object], word: str, timeout_seconds: float
    ) -> list[psutil.Process]:
        """Waits for what may last hundredths of a second: workers stand still while it looks.

        Args:
            word: Of the command lines of the workers; one of them runs at a time.

        Returns:
            The worker that runs, if one does; it stands still.

        Raises:
            OverdueError: It is not in time, or the run ended before.
        """
        held: list[psutil.Process] = []
        pause = threading.Event()
        give_up = time.monotonic() + timeout_seconds
        while not is_so():
            if time.monotonic() > give_up or self.has_ended:
                raise OverdueError(f"never came: {what}; {self.tail()}")
            held = [one for one in held if _has_moved(one, psutil.Process.resume)]
            pause.wait(_SLICE_SECONDS)
            held = held or with_word(self.processes(), word)
            held = [one for one in held if _has_moved(one, psutil.Process.suspend)]
        return held

    @contextlib.contextmanager
    def paced(self, most: Callable[[], float]) -> Iterator[None]:
        """Lets workers stand still for most of the time while more than a part of the job is done.

        Whoever does something to the run has time for it, however fast it is.

        Args:
            most: The part, which may become larger.
        """

        def send_to(pids: Iterable[int], number: signal.Signals) -> None:
            for pid in pids:
                with contextlib.suppress(MissedError):
                    self.send(pid, number)

        def pace(over: threading.Event) -> None:
            while not over.wait(0.01):
                view = self.view
                if view is None or view.records.trained <= most() * view.records.total:
                    over.wait(0.09)
                    continue
                workers = [one.pid for one in view.members if one.role == "worker" and one.pid]
                send_to(workers, signal.SIGSTOP)
                over.wait(0.09)
                send_to(workers, signal.SIGCONT)

        with _meanwhile(pace):
            yield

    def send(self, pid: int, number: signal.Signals) -> None:
        """Sends a signal to a process of this run.

        Raises:
            MissedError: It is gone, or is none of ours.
        """
        try:
            process = psutil.Process(pid)
            environment = process.environ()
            while not environment and process.is_running():
                # It is becoming another program at this very moment.
                time.sleep(0.001)
                environment = process.environ()
            if environment.get(MARK) != self.mark:
                raise MissedError(f"process {pid} is none of this run")
            os.kill(pid, number)
        except (psutil.Error, ProcessLookupError) as error:
            raise MissedError(f"process {pid} was gone already") from error


def _has_moved(process: psutil.Process, move: Callable[[psutil.Process], None]) -> bool:
    """Suspends or resumes a process; False if it has ended."""
    with contextlib.suppress(psutil.Error):
        move(process)
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def _meanwhile(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """A thread acts until the block ends; it is given the event that tells it so."""
    over = threading.Event()
    thread = threading.Thread(target=act, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def slowed(pid: int, fraction: float) -> Iterator[None]:
    """A process stands still for a fraction of every tenth of a second, too short to be missed."""

    def slow(over: threading.Event) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.1 * fraction)
                os.kill(pid, signal.SIGCONT)
                over.wait(0.1 * (1 - fraction))

    try:
        with _meanwhile(slow):
            yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def wait_until_gone(pids: Sequence[int], timeout_seconds: float) -> bool:
    """Whether all of them end in time."""
    give_up = time.monotonic() + timeout_seconds
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True
