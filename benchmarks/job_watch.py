"""What a job says of itself, looked at again and again while things are done to it."""

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.master.status import JobView

CTRPIPE = (sys.executable, "-m", "ctr_pipeline")
_TRAINING = frozenset({"training", "checkpointing", "restoring", "waiting"})


class MissedError(Exception):
    """A fault did not hit what it was meant for; the measurement is void."""


class OverdueError(Exception):
    """Something did not happen in time."""


class CommandError(RuntimeError):
    """A command failed; holds the end of what it wrote to standard error."""


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


class JobWatch(ABC):
    """A thread that looks at a job; a context manager. Subclasses say how, and whether it ended.

    Args:
        environment: Of the commands of its user.
    """

    call_seconds: ClassVar[float] = 60.0
    """A command of its user takes no longer, where nothing else is said."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.moments: list[Moment] = []
        self.view: JobView | None = None
        self.restarts: dict[tuple[Role, int], int] = {}
        # A run that is resumed counts from nought again.
        self._earlier_restarts: dict[tuple[Role, int], int] = {}
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._watcher.join()

    @abstractmethod
    def _watch(self) -> None:
        """Calls `take_in` with what is seen, until `_over` is set."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""

    @abstractmethod
    def tail(self, num_lines: int = 15) -> str:
        """The last lines of what it tells its user."""

    def call(
        self, *arguments: str, timeout_seconds: float | None = None, folder: Path | None = None
    ) -> str:
        """Runs a `ctrpipe` command as the user of the job does; its stdout.

        Args:
            timeout_seconds: None: `call_seconds`.
            folder: It is called there; None: in the current one.

        Raises:
            CommandError: It failed.
        """
        done = subprocess.run(
            [*CTRPIPE, *arguments],
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout_seconds or self.call_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(f"ctrpipe {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout

    def take_in(self, view: JobView | None) -> None:
        """Keeps a look; None: no master answered."""
        if view is None:
            self.moments.append(Moment(time.monotonic(), "", *self._last_counts()))
            return
        self.view = view
        for member in view.members:
            place = (member.role, member.index)
            restarts = self._earlier_restarts.get(place, 0) + member.restarts
            self.restarts[place] = max(restarts, self.restarts.get(place, 0))
        self.moments.append(
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

    def moment_at(self, at: float) -> Moment | None:
        """The last look until then at which a master answered."""
        return next((one for one in reversed(self.moments) if one.at <= at and one.state), None)

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

    def watch_for_next(self, role: Role, index: int = 0) -> Callable[[], bool]:
        """Whether another process is in the place of the member that runs now."""
        before = self.member_view(role, index).incarnation

        def is_there() -> bool:
            member = self.member_view(role, index)
            return member.incarnation not in {"", before} and member.state == "running"

        return is_there

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
        """Seconds from the first record counted to the last, validation left out."""
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
