"""Keeps processes running: when one that ended is started again, and when not.

For processes that no master watches: the master itself, what only serves the launcher, workers that
encode, and replicas. `coordination.job.members` decides for the members of a master by the same
`decide_relaunch`.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.launching import (
    ExitReason,
    LauncherBusyError,
    MemberControl,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch, start_again_seconds

_LOGGER = logging.getLogger(__name__)
_USER_ERROR = 1
"""Exit code of what only the user can mend: starting again would end in the same way."""

STEADY_SECONDS = 60.0
"""A life of this length makes up for the lives before it."""

MAX_CRASHES = 4
"""Crashes in a row; one more is a crash loop."""


@dataclass(frozen=True)
class ShortLives:
    """Short lives of a process in a row.

    Attributes:
        all: Lives that ended for any reason.
        crashes: Lives that the program itself ended by a fault.
    """

    all: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class Restart:
    """What follows an end.

    Attributes:
        after_seconds: Pause before the next start; None: there is none.
        why_not: Why there is none, for a person; empty if there is, or if the process has done its
            work.
        short_lives: Short lives before the next end.
    """

    after_seconds: float | None
    why_not: str
    short_lives: ShortLives


def decide_restart(
    reason: ExitReason, exit_code: int, *, progressed: bool, before: ShortLives
) -> Restart:
    """Decides what follows an end.

    A process that completed, or ended with an error that only the user can mend, stays ended. One
    that was killed from outside is started again however often that happens, one that crashes only
    so many times in a row.

    Args:
        progressed: It lived long enough, or did enough, to make up for the lives before it.
        before: Short lives in a row before this one.
    """
    if progressed:
        before = ShortLives()
    lives = ShortLives(before.all + 1, before.crashes)
    if reason == "completed":
        return Restart(None, "", lives)
    if reason == "error" and exit_code == _USER_ERROR:
        return Restart(None, "ended with an error", lives)
    relaunch = decide_relaunch(reason, registered=True, ends_in_row=lives.all)
    if relaunch.blames_program:
        lives = ShortLives(lives.all, lives.crashes + 1)
    if lives.crashes > MAX_CRASHES:
        return Restart(None, f"crashed {lives.crashes} times in a row", lives)
    return Restart(relaunch.delay_seconds, "", lives)


class KeptRunning:
    """A process that its launcher starts again whenever it ends, by `decide_restart`.

    Attributes:
        restart_at: When it is to be started again, by the launcher's clock; None: it runs, or is
            not started again.
        failure: Why it is not started again, with its last lines; empty otherwise.
        is_wanted: It is kept running, until `stop`.
    """

    def __init__(self, name: str, restart_at: float | None = None) -> None:
        self.restart_at = restart_at
        self.failure = ""
        self._name = name
        self.is_wanted = True
        self._short_lives = ShortLives()

    def start(self) -> None:
        """The process was started on demand: it is kept running from now on."""
        self.is_wanted, self.failure = True, ""

    def stop(self) -> None:
        """The process was stopped on demand: it stays ended."""
        self.is_wanted, self.restart_at = False, None

    def end(
        self,
        reason: ExitReason,
        exit_code: int,
        *,
        lived_seconds: float,
        now: float,
        tail: str,
        progressed: bool = False,
    ) -> None:
        """The process has ended.

        Args:
            lived_seconds: Since its start.
            progressed: Something was done in its life.
            now: By the launcher's clock.
            tail: The last lines that it wrote.
        """
        if not self.is_wanted:
            return
        restart = decide_restart(
            reason,
            exit_code,
            progressed=progressed or lived_seconds >= STEADY_SECONDS,
            before=self._short_lives,
        )
        self._short_lives = restart.short_lives
        if restart.after_seconds is not None:
            self.restart_at = now + restart.after_seconds
        elif restart.why_not:
            self.failure = f"{self._name} {restart.why_not}\n{tail}".rstrip()
            _LOGGER.warning("%s %s and is not started again", self._name, restart.why_not)


@dataclass
class _Worker:
    """One worker of `KeptWorkers`.

    Attributes:
        ended: Incarnation of the process whose end was noticed last.
        progress: Progress of all workers when it ended last.
        refusals_in_row: Starts that the launcher refused.
    """

    kept: KeptRunning
    started_at: float = 0.0
    ended: str = ""
    progress: int = 0
    refusals_in_row: int = 0


class KeptWorkers:
    """Workers that are started, and started again whenever they end.

    Args:
        launcher: Starts and stops them.
        num_workers: As many, until `scale`.
        role: Theirs, where these are other members than workers.
    """

    def __init__(self, launcher: MemberControl, num_workers: int, *, role: Role = "worker") -> None:
        self._launcher = launcher
        self._role: Role = role
        self._workers: dict[int, _Worker] = {}
        self.scale(num_workers, 0.0, grace_seconds=0.0)

    @property
    def failure(self) -> str:
        """Why one of them is not started again, with its last lines; empty if all are."""
        return next((one.kept.failure for one in self._workers.values() if one.kept.failure), "")

    def restart_at(self, index: int) -> float | None:
        """When one of them is started again; None: it runs, or is not started again."""
        return self._workers[index].kept.restart_at

    def take_ended(self, now: float, *, progress: int = 0) -> list[ProcessState]:
        """Workers that have ended since the last call.

        Args:
            now: Seconds on a clock that starts at 0 or later.
            progress: What all have done so far; whoever ends after more of it did not end in vain.
        """
        ended = []
        for process in self._observe():
            worker = self._workers[process.index]
            if process.running or process.incarnation == worker.ended:
                continue
            worker.ended = process.incarnation
            reason = process.reason or "error"
            worker.kept.end(
                # There is work left, so somebody ended it.
                "killed" if reason == "completed" else reason,
                process.exit_code or 0,
                lived_seconds=now - worker.started_at,
                progressed=progress > worker.progress,
                now=now,
                tail=process.traceback,
            )
            worker.progress = progress
            ended.append(process)
        return ended

    def start_missing(self, now: float) -> None:
        """Starts those that do not run and whose pause is over."""
        for index, worker in self._workers.items():
            if worker.kept.restart_at is None or worker.kept.restart_at > now:
                continue
            try:
                self._launcher.start(self._role, index)
            except LauncherBusyError:
                worker.refusals_in_row += 1
                worker.kept.restart_at = now + start_again_seconds(worker.refusals_in_row)
            else:
                worker.kept.restart_at, worker.refusals_in_row = None, 0
                worker.started_at = now

    def scale(self, num_workers: int, now: float, *, grace_seconds: float) -> None:
        """Another number of workers is kept running from now on; those with high numbers leave."""
        ended = {
            one.index: one.incarnation
            for one in self._launcher.observe()
            if one.role == self._role and not one.running
        }
        for index in range(num_workers):
            worker = self._workers.get(index)
            if worker is None:
                # What ended before this process began is no failure of this start of the job.
                self._workers[index] = _Worker(
                    KeptRunning(f"{self._role}-{index}", restart_at=now), ended=ended.get(index, "")
                )
            elif not worker.kept.is_wanted:
                worker.kept.start()
                worker.kept.restart_at = now
        surplus = {index for index in self._workers if index >= num_workers}
        for index in surplus:
            self._workers[index].kept.stop()
        leaving = {one.incarnation for one in self._observe() if one.index in surplus}
        self.stop(leaving, grace_seconds=grace_seconds)

    def stop(self, incarnations: Collection[str] | None = None, *, grace_seconds: float) -> None:
        """Stops processes of them.

        Args:
            incarnations: Workers to stop; None: all.
        """
        for process in self._observe():
            if process.running and (incarnations is None or process.incarnation in incarnations):
                self._launcher.stop(
                    self._role, process.index, process.incarnation, grace_seconds=grace_seconds
                )

    def are_running(self) -> bool:
        """Whether one of them runs."""
        return any(process.running for process in self._observe())

    def _observe(self) -> list[ProcessState]:
        # A launcher may know members of an earlier start of the job, too.
        return [
            one
            for one in self._launcher.observe()
            if one.role == self._role and one.index in self._workers
        ]
