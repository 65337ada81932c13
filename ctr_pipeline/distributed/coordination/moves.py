"""Which partitions are busy, from the counters that servers report, and which of them move."""

import math
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.messages import PartitionLoads
from ctr_pipeline.distributed.coordination.placement import Placement

MOST_PARTITIONS_A_MOVE = 64
_FIRST_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class BusyPartition:
    """A partition and what it served.

    Attributes:
        partition: Its number.
        share: Of the keys that its server served, pulled and pushed, 0 … 1.
    """

    partition: int
    share: float


def rank_partitions(
    loads: PartitionLoads, earlier: PartitionLoads | None
) -> tuple[BusyPartition, ...]:
    """Partitions of one server, the busiest first; none if it served nothing.

    Args:
        loads: Now.
        earlier: Only what was served since then counts; None, or counters that have gone back, as
            those of a new process: all.
    """
    before = {} if earlier is None else dict(zip(earlier.partitions, _keys(earlier), strict=True))
    now = dict(zip(loads.partitions, _keys(loads), strict=True))
    if any(keys < before.get(partition, 0) for partition, keys in now.items()):
        before = {}
    served = {partition: keys - before.get(partition, 0) for partition, keys in now.items()}
    total = sum(served.values())
    if not total:
        return ()
    ranked = sorted(served, key=lambda partition: (-served[partition], partition))
    return tuple(BusyPartition(partition, served[partition] / total) for partition in ranked)


def _keys(loads: PartitionLoads) -> list[int]:
    return [
        pulled + pushed for pulled, pushed in zip(loads.pulled_keys, loads.pushed_keys, strict=True)
    ]


@dataclass(frozen=True)
class PlannedMove:
    """A move of partitions, or of a dense range, from one server to another.

    Attributes:
        source: Holds them.
        target: Is to.
        partitions: That move.
        takes_dense: The source's whole dense range moves.
    """

    source: int
    target: int
    partitions: tuple[int, ...]
    takes_dense: bool

    def applied_to(self, placement: Placement, version: int) -> Placement:
        """The placement after it."""
        source = self.source if self.takes_dense else None
        return placement.moved(self.partitions, self.target, version=version, dense_from=source)


def plan_balance(
    placement: Placement, num_servers: int, *, most_partitions: int = MOST_PARTITIONS_A_MOVE
) -> PlannedMove | None:
    """The next move towards so many servers with as many partitions each; None: there they are.

    Servers that are to leave are emptied first, the last one before the others. A few partitions
    move at a time, so that updates are never held for long.

    Args:
        placement: Now.
        num_servers: Wanted; servers from this number on are to leave.
        most_partitions: Of one move.
    """
    held = [len(placement.partitions_of(server)) for server in range(num_servers)]
    for source in reversed(range(num_servers, placement.num_servers)):
        partitions = placement.partitions_of(source)
        if partitions:
            target = held.index(min(held))
            return PlannedMove(source, target, partitions[-most_partitions:], takes_dense=False)
        low, high = placement.dense[source]
        if low < high:
            return PlannedMove(source, _neighbour(placement, source), (), takes_dense=True)
    most, fewest = max(held), min(held)
    if most - fewest <= 1:
        return None
    source, target = held.index(most), held.index(fewest)
    fair = len(placement.owners) // num_servers
    number = min(most - fair, max(1, fair - fewest), most_partitions)
    partitions = placement.partitions_of(source)[-number:]
    return PlannedMove(source, target, partitions, takes_dense=False)


def _neighbour(placement: Placement, source: int) -> int:
    """A server of lower number whose dense range the source's follows, or that has none."""
    low, _ = placement.dense[source]
    for server in range(source):
        first, last = placement.dense[server]
        if first < last == low:
            return server
    return 0


class MoveSchedule:
    """Which move is under way, and when the next one may begin."""

    def __init__(self) -> None:
        self.planned: PlannedMove | None = None
        self.version = 0
        """Of the placement that the move under way makes; the last one's if there is none."""
        self._next_at = -math.inf
        self._failures_in_row = 0

    @property
    def in_flight(self) -> int:
        """Version that the move under way makes; 0: there is none."""
        return 0 if self.planned is None else self.version

    def may_begin(self, now: float) -> bool:
        """Whether a move may begin now."""
        return self.planned is None and now >= self._next_at

    def begin(self, planned: PlannedMove, placement: Placement) -> None:
        """A move begins; its version was never used before, also by one that failed."""
        self.planned = planned
        self.version = max(self.version, placement.version) + 1

    def succeed(self) -> None:
        """It is over."""
        self.planned = None
        self._failures_in_row = 0

    def fail(self, now: float) -> None:
        """It did not come about; the next waits longer each time."""
        self.planned = None
        self._next_at = now + min(_FIRST_RETRY_SECONDS * 2.0**self._failures_in_row, 60.0)
        self._failures_in_row = min(self._failures_in_row + 1, 10)

    def give_up(self) -> None:
        """The job went back to a cut: what was copied counts no more."""
        self.planned = None
