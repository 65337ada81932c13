"""`sessions.json`: every command that worked on a run, with the seconds of each stage.

A resumed run has several. Other commands read from it what a run in one process does now, and the
report what the run took in all.
"""

import json
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ctr_pipeline import durable
from ctr_pipeline.errors import CtrPipelineError, Interrupted, RunFolderError
from ctr_pipeline.pipeline.timing import StageTimes, start_of_process

_LOGGER = logging.getLogger(__name__)
_SECONDS_BETWEEN = 15.0
"""After which the time of a long stage is written again: at most that much is lost to a kill."""

_SILENT_AFTER = timedelta(seconds=4 * _SECONDS_BETWEEN)
"""A session on another host that wrote nothing for so long may be gone."""

FINISHED = "finished"
STOPPED = "stopped"
FAILED = "failed"


class ChangedKey(BaseModel):
    """A key that the config of a resumed training sets to another value.

    Attributes:
        key: Dotted.
        before: Its value until then, as JSON.
        after: Its value from then on.
        step: Steps trained before.
        model: The model of an ensemble that has these steps, counted from 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str
    before: Any
    after: Any
    step: int
    model: int | None = None

    @property
    def sentence(self) -> str:
        """What it is, from when, and what it was."""
        after, before = (json.dumps(value) for value in (self.after, self.before))
        of_model = "" if self.model is None else f" of model {self.model}"
        return f"From step {self.step + 1:,}{of_model} on, {self.key} is {after} ({before} before)"


class RunSession(BaseModel):
    """One command that worked on a run.

    Attributes:
        command: "run", "train", or "prepare" where people start the members.
        resumed: Whether it resumed the run.
        process: Process id.
        host: Name of its host.
        process_start: When the process was started, in ticks of `start_of_process`.
        started: When the session started.
        seen: When this was written.
        stage_since: When the current stage began.
        stage: The current stage, or the last one; empty before the first.
        seconds: Seconds of each stage until `seen`.
        ended: `FINISHED`, `STOPPED` (a signal, 'ctrpipe stop') or `FAILED`; None: it still runs, or
            was killed.
        reason: Why it stopped or failed, as a sentence; else empty.
        trouble: Why what it did last is not where the run is kept; else empty.
        changes: What it trained otherwise than the sessions before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: str
    resumed: bool
    process: int
    host: str = ""
    process_start: int | None = None
    started: datetime
    seen: datetime
    stage_since: datetime | None = None
    stage: str = ""
    seconds: dict[str, float] = {}
    ended: str | None = None
    reason: str = ""
    trouble: str = ""
    changes: tuple[ChangedKey, ...] = ()


_SESSIONS = TypeAdapter(tuple[RunSession, ...])


def load_sessions(path: Path) -> tuple[RunSession, ...]:
    """The sessions of a run, in the order of time; none if the file is absent.

    Raises:
        RunFolderError: It is damaged.
    """
    try:
        return _SESSIONS.validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "is damaged, or is not what a run wrote",
            place=str(path),
            remedy="Delete it: then it is not known how long earlier sessions took",
        ) from error


def decide_alive(
    session: RunSession, *, lock_holder: int | None, host: str, now: datetime
) -> bool | None:
    """Whether the process of a session still runs; None: on another host, which wrote nothing.

    Args:
        lock_holder: Process that holds the lock of the run folder; 0: its id is unknown.
        host: Name of this host.
        now: The current time.
    """
    if session.ended is not None:
        return False
    if lock_holder in {0, session.process}:
        return True
    if session.host != host:
        return True if now - session.seen < _SILENT_AFTER else None
    start = session.process_start
    return start is not None and start_of_process(session.process) == start


def total_seconds(sessions: Sequence[RunSession]) -> dict[str, float]:
    """Seconds of each stage over all sessions, in the order of their first start."""
    total: Counter[str] = Counter()
    for session in sessions:
        total.update(session.seconds)
    return dict(total)


class SessionLog:
    """Keeps `sessions.json` while a command works; a context manager around the work.

    Args:
        times: Times of the stages; those of earlier sessions are added.
        command: As in `RunSession`.
        resumes: Whether the command resumes the run; else earlier sessions are dropped with the
            run that this one replaces.
        trouble: Returns what `RunSession.trouble` is now.
        changes: As in `RunSession`; more may come.
        clock: Returns the current time.
    """

    def __init__(
        self,
        path: Path,
        times: StageTimes,
        *,
        command: str,
        resumes: bool,
        trouble: Callable[[], str] = lambda: "",
        changes: Iterable[ChangedKey] = (),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._times = times
        self._command = command
        self._trouble = trouble
        self._changes = changes
        self._clock = clock
        self._earlier = load_sessions(path) if resumes else ()
        self._started = clock()
        self._stage_since: datetime | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        times.earlier = total_seconds(self._earlier)

    def __enter__(self) -> None:
        self._write(None, "")
        self._times.on_stage = self._write_stage
        self._writer = threading.Thread(target=self._repeat, name="session-log", daemon=True)
        self._writer.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._times.on_stage = None
        self._over.set()
        self._writer.join()
        if error is None:
            self._write(FINISHED, "")
            return
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        # A bug's text may hold anything; its log has it.
        known = isinstance(error, CtrPipelineError | Interrupted)
        self._try_to_write(STOPPED if stopped else FAILED, str(error) if known else "")

    def _session(self, ended: str | None, reason: str) -> RunSession:
        return RunSession(
            command=self._command,
            resumed=bool(self._earlier),
            process=os.getpid(),
            host=socket.gethostname(),
            process_start=start_of_process(os.getpid()),
            started=self._started,
            seen=self._clock(),
            stage_since=self._stage_since,
            stage=self._times.stage_now,
            seconds=self._times.seconds_so_far(),
            ended=ended,
            reason=reason,
            trouble=self._trouble(),
            changes=tuple(self._changes),
        )

    def _write(self, ended: str | None, reason: str) -> None:
        with self._lock:
            sessions = (*self._earlier, self._session(ended, reason))
            content = [session.model_dump(mode="json") for session in sessions]
            durable.write_text(self._path, json.dumps(content, indent=1) + "\n")

    def _write_stage(self) -> None:
        self._stage_since = self._clock()
        self._write(None, "")

    def _try_to_write(self, ended: str | None, reason: str) -> None:
        """As `_write`, without its errors: what causes them makes the work itself fail, too."""
        try:
            self._write(ended, reason)
        except CtrPipelineError as error:
            _LOGGER.info("%s", error)

    def _repeat(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN):
            self._try_to_write(None, "")
