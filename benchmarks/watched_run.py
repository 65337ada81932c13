"""A run of `ctrpipe` in several processes, watched from outside while things are done to it.

What is known of it is what its master tells anyone (`ctrpipe status`), asked ten times a second;
its processes are found by a mark in their environment, which children inherit, so that not one of
them can be forgotten, whoever its parent is. Everything that still runs at the end is killed, by
its number.
"""

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.messages import Empty, Role
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.pipeline.job.control import Job, MasterConnection, read_status

MARK = "CTRPIPE_WATCHED_RUN"
CTRPIPE = (sys.executable, "-m", "ctr_pipeline")
_KILL_ROUNDS = 5
_PREPARED = (
    "cache",
    "statistics.json",
    "vocabularies",
    "features.json",
    "preprocessing.json",
    "config.resolved.yaml",
)
_TRAINING = frozenset({"training", "checkpointing", "restoring", "waiting"})


class MissedError(Exception):
    """A fault did not hit what it was meant for; the measurement is void."""


class OverdueError(Exception):
    """Something did not happen in time."""


@dataclass(frozen=True)
class Moment:
    """One look at the run.

    Attributes:
        at: Monotonic clock, seconds.
        state: As `status` says it; empty where no master answered.
        trained: Records counted.
        repeated: Executions beyond that.
        samples_per_second: As `status` says it.
        restarts: Of members.
    """

    at: float
    state: str
    trained: int
    repeated: int
    samples_per_second: float
    restarts: int = 0


class WatchedRun:
    """One run and all its processes; a context manager that leaves none behind.

    Args:
        folder: Config, output and log of the run go there.
        config: The YAML file as a mapping; `output` is set here.
        program: That starts the run; other commands are always those of `ctrpipe`.
        environment: Added to ours.
        watch_seconds: Between looks at its status; a look costs the run's machine about 3 ms.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        program: Sequence[str] = CTRPIPE,
        environment: Mapping[str, str] | None = None,
        watch_seconds: float = 0.1,
    ) -> None:
        self._watch_seconds = watch_seconds
        self._program = tuple(program)
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.output = folder / "run"
        self.config_path = folder / "config.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        content = {**config, "output": str(self.output)}
        self.config_path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        self._environment = {**os.environ, **(environment or {}), MARK: self.mark}
        self._environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self.moments: list[Moment] = []
        self.view: JobView | None = None
        self.restarts: dict[tuple[Role, int], int] = {}
        # A run that is resumed counts from nought again.
        self._earlier_restarts: dict[tuple[Role, int], int] = {}
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> "WatchedRun":
        self._watcher.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._watcher.join()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        # Again, since a process that becomes another program is not found at that very moment.
        for _ in range(_KILL_ROUNDS):
            living = self.processes()
            for process in living:
                with contextlib.suppress(psutil.Error):  # it may end by itself
                    process.kill()
            if not living:
                break
            wait_until_gone([process.pid for process in living], 5.0)

    # Starting and ending.

    @property
    def job(self) -> Job:
        """For `pipeline.job.control`."""
        return Job(self.output)

    @property
    def pid(self) -> int:
        """Of the process that the user started: it launches the others."""
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
                env=self._environment,
                start_new_session=True,
            )

    def call(self, *arguments: str, timeout_seconds: float = 60.0) -> str:
        """Runs another `ctrpipe` command on the run; its stdout."""
        done = subprocess.run(
            [*CTRPIPE, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"ctrpipe {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout

    def member(self, role: Role, *arguments: str) -> "subprocess.Popen[bytes]":
        """Starts a member by hand."""
        name = "-".join([role, *(word for word in arguments if word.isdigit())])
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*CTRPIPE, role, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
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

    def moment_at(self, at: float) -> Moment | None:
        """The last look until then at which a master answered."""
        return next((one for one in reversed(self.moments) if one.at <= at and one.state), None)

    # Looking.

    def _watch(self) -> None:
        with MasterConnection(self.job) as line:
            while not self._ended.wait(self._watch_seconds):
                self._look(line)

    def _look(self, line: MasterConnection) -> None:
        try:
            view = line.ask("Status", Empty(), JobView)
        except CtrPipelineError:
            self._note(Moment(time.monotonic(), "", *self._last_counts()))
            return
        self.view = view
        for member in view.members:
            place = (member.role, member.index)
            restarts = self._earlier_restarts.get(place, 0) + member.restarts
            self.restarts[place] = max(restarts, self.restarts.get(place, 0))
        self._note(
            Moment(
                time.monotonic(),
                view.state,
                view.records.trained,
                view.records.repeated,
                view.samples_per_second,
                sum(self.restarts.values()),
            )
        )

    def _last_counts(self) -> tuple[int, int, float]:
        if not self.moments:
            return 0, 0, 0.0
        last = self.moments[-1]
        return last.trained, last.repeated, 0.0

    def _note(self, moment: Moment) -> None:
        self.moments.append(moment)

    def final_view(self) -> JobView:
        """What the job says of itself after its end."""
        return read_status(self.job)

    def wait_for(
        self, what: str, condition: Callable[[], object], timeout_seconds: float = 120.0
    ) -> None:
        """Waits until something is so.

        Raises:
            OverdueError: It is not in time, or the run ended before.
        """

        def holds() -> bool:
            with contextlib.suppress(MissedError):
                return bool(condition())
            return False  # what it asks about is not there yet

        give_up = time.monotonic() + timeout_seconds
        while not holds():
            if time.monotonic() > give_up:
                raise OverdueError(f"{what}: not within {timeout_seconds:.0f} s; {self.tail()}")
            if self.has_ended and not holds():
                raise OverdueError(f"{what}: the run ended before; {self.tail()}")
            time.sleep(0.01)

    @property
    def now(self) -> JobView:
        """What the master said last."""
        if self.view is None:
            raise MissedError("no master has answered yet")
        return self.view

    def member_view(self, role: Role, index: int = 0) -> MemberStatus:
        """A member as the master said last."""
        for member in self.now.members:
            if (member.role, member.index) == (role, index):
                return member
        raise MissedError(f"there is no {role} {index}")

    def is_training(self) -> bool:
        """Whether steps are running at this moment: records were counted within a second."""
        recent = [one for one in self.moments[-15:] if time.monotonic() - one.at < 1.5]
        return (
            len(recent) > 1
            and recent[-1].state == "training"
            and recent[-1].trained > recent[0].trained
        )

    def progress_seconds(self, since: float, until: float) -> list[float]:
        """Pauses between counts of records, longest first; validation is left out of them.

        Of each the part that lies between `since` and `until`: what is next to them belongs to
        what happened there.
        """
        pauses = []
        last_at, last_trained, excused, before = 0.0, -1, 0.0, 0.0
        for one in self.moments:
            if before and one.state and one.state not in _TRAINING:
                excused += max(min(one.at, until) - max(before, since), 0.0)
            before = one.at
            if one.trained != last_trained:
                if last_at and one.trained > last_trained and one.at > since and last_at < until:
                    pause = min(one.at, until) - max(last_at, since)
                    pauses.append(max(pause - excused, 0.0))
                # A rollback makes the count fall: no progress, and no longer pause either.
                if one.trained > last_trained:
                    last_at, excused = one.at, 0.0
                last_trained = one.trained
        return sorted(pauses, reverse=True)

    def training_seconds(self) -> float:
        """From the first record counted to the last, validation left out."""
        at = [one for one in self.moments if one.trained > 0]
        if not at:
            return 0.0
        most = max(one.trained for one in at)
        end = next(one.at for one in at if one.trained == most)
        excused = sum(
            later.at - sooner.at
            for sooner, later in itertools.pairwise(at)
            if later.at <= end and later.state and later.state not in _TRAINING
        )
        return end - at[0].at - excused

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


@contextlib.contextmanager
def slowed(pid: int, fraction: float) -> Iterator[None]:
    """A process stands still for a fraction of every tenth of a second, too short to be missed."""
    over = threading.Event()

    def slow() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.1 * fraction)
                os.kill(pid, signal.SIGCONT)
                over.wait(0.1 * (1 - fraction))

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
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
