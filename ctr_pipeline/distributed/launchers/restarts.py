"""When the launcher itself starts a process again, and when it gives up.

It does so for the master alone, and for what only serves the launcher; the master decides for the
others.
"""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.launching import ExitReason
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch

_USER_ERROR = 1
"""Exit code of what only the user can mend: starting again would end in the same way."""

STEADY_SECONDS = 60.0
"""A life of this length makes up for the ends before it."""

MAX_CRASHES = 4
"""In a row; one more is a crash loop."""


@dataclass(frozen=True)
class Ends:
    """Short lives in a row.

    Attributes:
        all: Lives that ended for any reason.
        crashes: Lives that ended by a fault of its own.
    """

    all: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class Restart:
    """What follows an end.

    Attributes:
        after_seconds: Pause before the next start; None: there is none.
        why_not: Why there is none, as a person says it; empty if there is, or if the process has
            done its work.
        ends: To be given with the next end.
    """

    after_seconds: float | None
    why_not: str
    ends: Ends


def decide_restart(
    reason: ExitReason, exit_code: int, *, lived_seconds: float, before: Ends
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
        before = Ends()
    ends = Ends(before.all + 1, before.crashes)
    if reason == "completed":
        return Restart(None, "", ends)
    if reason == "error" and exit_code == _USER_ERROR:
        return Restart(None, "ended with an error", ends)
    relaunch = decide_relaunch(reason, registered=True, ends_in_row=ends.all)
    if relaunch.blames_program:
        ends = Ends(ends.all, ends.crashes + 1)
    if ends.crashes > MAX_CRASHES:
        return Restart(None, f"crashed {ends.crashes} times in a row", ends)
    return Restart(relaunch.delay_seconds, "", ends)
