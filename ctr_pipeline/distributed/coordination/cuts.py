"""When a cut is taken, whether it holds all rows, and which cuts are kept."""

from collections.abc import Mapping
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds

_MOST_RETRY_SECONDS = 30.0
# The first cut holds few rows and comes early: without one a lost server means the beginning.
_FIRST_CUT_FRACTION = 1 / 6


@dataclass(frozen=True)
class CutRecord:
    """A cut that can be restored.

    Attributes:
        cut: Its number.
        parent: The cut that its deltas build on; 0: it holds all rows.
        depth: Deltas between it and the last cut with all rows.
        best_cut: The job's best cut when this one was taken; 0: none yet. A rollback to this cut
            makes it the best again.
    """

    cut: int
    parent: int
    depth: int
    best_cut: int


class CutSchedule:
    """When the next cut is due.

    Args:
        interval_seconds: From one cut to the next.
        now: On the job's clock.
    """

    def __init__(self, interval_seconds: float, now: float) -> None:
        self._interval_seconds = interval_seconds
        self._retry_at = now
        self.last_at = now
        self.failures_in_row = 0
        self._has_succeeded = False
        self.in_flight = 0
        """Number of the cut that is being taken; 0: none."""

    def is_due(self, now: float, *, at_once: bool) -> bool:
        """Whether to take one now.

        Args:
            now: On the job's clock.
            at_once: Something waits for it.
        """
        if self.in_flight or now < self._retry_at:
            return False
        share = 1.0 if self._has_succeeded else _FIRST_CUT_FRACTION
        return at_once or now - self.last_at >= share * self._interval_seconds

    def begin(self, cut: int) -> None:
        """A cut is being taken."""
        self.in_flight = cut

    def succeed(self, now: float) -> None:
        """The cut is durable."""
        self._has_succeeded = True
        self.in_flight = self.failures_in_row = 0
        self.last_at = now

    def fail(self, now: float) -> None:
        """The cut did not come about; the next waits longer each time."""
        self.in_flight = 0
        self.failures_in_row += 1
        self._retry_at = now + backoff_seconds(self.failures_in_row, most=_MOST_RETRY_SECONDS)

    def start_over(self, now: float) -> None:
        """The job went back to a cut; one that is being taken no longer counts."""
        self.in_flight = self.failures_in_row = 0
        self.last_at = self._retry_at = now


def decide_full(parent: CutRecord | None, *, chain_intact: bool, full_every: int) -> bool:
    """Whether the next cut holds all rows instead of those touched since its parent.

    Args:
        parent: The cut before it, or the one last restored; None: there is none.
        chain_intact: The parameter servers know which rows were touched since the parent. After
            a failed or forgotten snapshot they do not: it may have reset what was touched.
        full_every: One cut in so many holds all rows.
    """
    return parent is None or not chain_intact or parent.depth + 1 >= full_every


def cuts_to_keep(cuts: Mapping[int, CutRecord], keep: int, pinned: set[int]) -> tuple[int, ...]:
    """The newest cuts, the pinned ones, and for each kept one the best of its time, ascending.

    Args:
        cuts: By number.
        keep: Newest ones to keep, at least one.
        pinned: Kept whatever their age, if they are there.
    """
    newest = sorted(cuts)[-max(keep, 1) :]
    kept = {*newest, *(cut for cut in pinned if cut in cuts)}
    kept.update(cuts[cut].best_cut for cut in newest)
    return tuple(sorted(cut for cut in kept if cut in cuts))
