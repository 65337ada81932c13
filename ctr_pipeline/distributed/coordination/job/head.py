"""What a job has one of: where it is, its counters, its parameter servers."""

from dataclasses import dataclass, field
from typing import ClassVar

from ctr_pipeline.distributed.coordination.events import Phase, SplitTotals
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.recorded import Recorded


@dataclass(frozen=True)
class Servers:
    """The parameter servers; a rollback does not take it back.

    Attributes:
        placement: Which parameter server holds what.
        wanted: How many parameter servers there are to be.
        is_balancing: Partitions move until all of these have as many.
    """

    placement: Placement
    wanted: int
    is_balancing: bool = False

    @property
    def number(self) -> int:
        """Servers that are needed now: those that hold something, and those that are to."""
        return max(self.wanted, self.placement.num_servers)


@dataclass
class JobHead(Recorded):
    """What a job has one of, and does not take back in a rollback.

    Attributes:
        min_workers: Training starts when so many have registered.
        max_workers: There are never more.
        target_workers: Wanted now.
        phase: Where the job is.
        reason: Why it failed; empty otherwise.
        traceback: Traceback of the member whose failure failed it.
        generation: Rollbacks and restores so far.
        attempt: The newest lease; numbers are never used twice.
        next_cut: Number of the next cut; never used twice either.
        chain_intact: The parameter servers know what changed since the last cut.
        is_restored: They hold what the ledger counts.
        has_started: There were enough workers once.
        training_over: The best cut is what is left to be scored.
        repeated: Records executed beyond those counted, by epoch; of tasks on the board,
            the board counts them.
        seconds: Spent training, by epoch.
        best_trained: The most records that were ever counted at a time.
        errors_in_row: Ends of members by their own fault, without progress between them.
        stalls_in_row: Times that nothing was counted any more, without progress between them.
        refused_reports: Reports of older attempts and generations.
        final_scores: Scores of the final splits, once all are scored.
    """

    durable: ClassVar[frozenset[str]] = frozenset(
        {
            "min_workers",
            "max_workers",
            "target_workers",
            "phase",
            "reason",
            "traceback",
            "generation",
            "attempt",
            "next_cut",
            "is_restored",
            "has_started",
            "training_over",
            "final_scores",
        }
    )
    lazy: ClassVar[frozenset[str]] = frozenset({"chain_intact", "errors_in_row", "stalls_in_row"})

    min_workers: int
    max_workers: int
    target_workers: int
    phase: Phase = "waiting"
    reason: str = ""
    traceback: str = ""
    generation: int = 0
    attempt: int = 0
    next_cut: int = 1
    chain_intact: bool = True
    is_restored: bool = False
    has_started: bool = False
    training_over: bool = False
    repeated: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    best_trained: int = 0
    errors_in_row: int = 0
    stalls_in_row: int = 0
    refused_reports: int = 0
    final_scores: tuple[SplitTotals, ...] = ()
