"""When a launcher itself starts a process again, and when it gives up.

It does so for the master alone, and for what only serves the launcher; the master decides for the
other members.
"""

import logging
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.launching import ExitReason
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch

_LOGGER = logging.getLogger(__name__)
_USER_ERROR = 1
"""Exit code of what only the user can mend: starting again would end in the same way."""

STEADY_SECONDS = 60.0
"""A life of this length makes up for the ends before it."""

MAX_CRASHES = 4
"""In a row; one more is a crash loop."""


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
        short_lives: Those before the next end.
    """

    after_seconds: float | None
    why_not: str
    short_lives: ShortLives


def decide_restart(
    reason: ExitReason, exit_code: int, *, lived_seconds: float, before: ShortLives
) -> Restart:
    """Decides what follows an end.

    A process that completed, or ended with an error that only the user can mend, stays ended. One
    that was killed from outside is started again however often that happens, one that crashes only
    so many times in a row.

    Args:
        lived_seconds: Since its start.
        before: Short lives in a row before this one.
    """
    if lived_seconds >= STEADY_SECONDS:
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
    """

    def __init__(self, name: str) -> None:
        self.restart_at: float | None = None
        self.failure = ""
        self._name = name
        self._is_wanted = True
        self._short_lives = ShortLives()

    def start(self) -> None:
        """It was started on demand: it is kept running from now on."""
        self._is_wanted, self.failure = True, ""

    def stop(self) -> None:
        """It was stopped on demand: it stays ended."""
        self._is_wanted, self.restart_at = False, None

    def end(
        self, reason: ExitReason, exit_code: int, *, lived_seconds: float, now: float, tail: str
    ) -> None:
        """It has ended.

        Args:
            lived_seconds: Since its start.
            now: By the launcher's clock.
            tail: The last lines that it wrote.
        """
        if not self._is_wanted:
            return
        restart = decide_restart(
            reason, exit_code, lived_seconds=lived_seconds, before=self._short_lives
        )
        self._short_lives = restart.short_lives
        if restart.after_seconds is not None:
            self.restart_at = now + restart.after_seconds
        elif restart.why_not:
            self.failure = f"{self._name} {restart.why_not}\n{tail}".rstrip()
            _LOGGER.warning("%s %s and is not started again", self._name, restart.why_not)
