"""Which partitions are busy, from the counters that servers report, and which of them move."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.messages import MemberStats, PartitionLoads
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds

MOST_PARTITIONS_A_MOVE = 64
_MOST_RETRY_SECONDS = 60.0
# A byte of rows, which have to be found, takes a server about three times as long as one of dense
# parameters (`benchmarks/ps_speed.py` with 1,000 and 2,000,000 of them), and longer where rows are
# short. With too high a number a move takes too few partitions along and another follows; with too
# low a number it would have to be undone.
_WORK_A_BYTE_OF_ROWS = 4


@dataclass(frozen=True)
class BusyPartition:
    """A partition and what it served.

    Attributes:
        partition: Its number.
        share: Share of the keys that its server served, pulled and pushed, 0 … 1.
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
        takes_dense: The source's whole dense range moves.
        reason: For a person.
    """

    source: int
    target: int
    partitions: tuple[int, ...]
    takes_dense: bool
    reason: str = ""

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
    """
    held = [len(placement.partitions_of(server)) for server in range(num_servers)]
    reason = f"{num_servers} parameter servers are asked for"
    for source in reversed(range(num_servers, placement.num_servers)):
        partitions = placement.partitions_of(source)
        if partitions:
            target = held.index(min(held))
            moving = partitions[-most_partitions:]
            return PlannedMove(source, target, moving, takes_dense=False, reason=reason)
        low, high = placement.dense[source]
        if low < high:
            target = _neighbour(placement, source)
            return PlannedMove(source, target, (), takes_dense=True, reason=reason)
    most, fewest = max(held), min(held)
    if most - fewest <= 1:
        return None
    source, target = held.index(most), held.index(fewest)
    fair = len(placement.owners) // num_servers
    number = min(most - fair, max(1, fair - fewest), most_partitions)
    partitions = placement.partitions_of(source)[-number:]
    return PlannedMove(source, target, partitions, takes_dense=False, reason=reason)


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
        """The version that the move under way makes; the last move's if there is none."""
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
        """The move is over."""
        self.planned = None
        self._failures_in_row = 0

    def fail(self, now: float) -> None:
        """The move did not come about; the next waits longer each time."""
        self.planned = None
        self._failures_in_row += 1
        self._next_at = now + backoff_seconds(self._failures_in_row, most=_MOST_RETRY_SECONDS)

    def give_up(self) -> None:
        """The job went back to a cut: what was copied counts no more."""
        self.planned = None


@dataclass(frozen=True)
class HeatRules:
    """When a parameter server is hot, and what is done about it.

    Attributes:
        may_move: Partitions of a hot server move; otherwise it is only told of.
        hot_seconds: A server is hot that was above `hot_share` for so long, on average. For as long
            nothing is measured after a move: caches fill, and workers are faster than before.
        hot_share: CPU time over that of its cores.
        warm_share: No move makes its target busier than this, so that it is not the next hot one.
        least_gain: How much less busy a move has to make the busier of the two, as a fraction of
            its cores.
        rest_seconds: A partition that has moved stays for so long.
        told_seconds: Where no move helps, that is told of once in so long.
    """

    may_move: bool = True
    hot_seconds: float = 30.0
    hot_share: float = 0.9
    warm_share: float = 0.8
    least_gain: float = 0.05
    rest_seconds: float = 600.0
    told_seconds: float = 900.0


@dataclass(frozen=True)
class HotServer:
    """A parameter server that works near its limit, where no move helps.

    Attributes:
        server: Its number.
        what: How busy it is, and with what.
    """

    server: int
    what: str
    remedy: str


@dataclass(frozen=True)
class _Look:
    at: float
    servers: tuple[MemberStats, ...]


class HeatWatch:
    """Finds hot parameter servers, and the moves that would cool them.

    A server's processor time, but for that of dense parameters, which stay where they are, is
    divided among its partitions by the keys that they served. The hottest partitions of the busiest
    server go to the idlest one, as long as that makes the busier of the two less busy. So each move
    brings the two nearer to each other, and none is undone.

    Args:
        rules: When and what.
    """

    _LOOKS = 6

    def __init__(self, rules: HeatRules) -> None:
        self._rules = rules
        self._looks: deque[_Look] = deque(maxlen=self._LOOKS + 1)
        self._not_before = -math.inf
        self._rests_until: dict[int, float] = {}
        self._told_at: dict[int, float] = {}

    def interrupt(self) -> None:
        """Training paused, went back, or partitions are moving: nothing spans this moment."""
        self._looks.clear()

    def end_move(self, now: float, partitions: Sequence[int]) -> None:
        """A move is over; these have moved."""
        self.interrupt()
        self._not_before = now + self._rules.hot_seconds
        rest_until = now + self._rules.rest_seconds
        self._rests_until = {
            **{partition: until for partition, until in self._rests_until.items() if until > now},
            **dict.fromkeys(partitions, rest_until),
        }

    def poll(self, now: float, servers: Sequence[MemberStats]) -> PlannedMove | HotServer | None:
        """Takes in what servers say of themselves; None: there is nothing to do, or to tell.

        Args:
            now: The clock, seconds.
            servers: All that hold something, by their number.
        """
        is_due = (
            not self._looks or now - self._looks[-1].at >= self._rules.hot_seconds / self._LOOKS
        )
        if now < self._not_before or not is_due:
            return None
        if self._looks and not _follow(self._looks[-1].servers, servers):
            self.interrupt()
        self._looks.append(_Look(now, tuple(servers)))
        if now - self._looks[0].at < self._rules.hot_seconds:
            return None
        shares = self._shares()
        for server in sorted(range(len(shares)), key=lambda number: (-shares[number], number)):
            if shares[server] <= self._rules.hot_share:
                return None
            found = self._plan_cooling(now, server, shares)
            if isinstance(found, PlannedMove):
                return found
            if now - self._told_at.get(server, -math.inf) >= self._rules.told_seconds:
                self._told_at[server] = now
                return found
        return None

    def _shares(self) -> list[float]:
        """CPU time of each server since the first look over that of its cores."""
        first, last = self._looks[0], self._looks[-1]
        return [
            (now.cpu_seconds - before.cpu_seconds) / (last.at - first.at) / now.cores
            for before, now in zip(first.servers, last.servers, strict=True)
        ]

    def _dense_share(self, server: int) -> float:
        """What the dense parameters took of a server's processor time since the first look."""
        first, last = self._looks[0].servers[server], self._looks[-1].servers[server]
        dense = last.dense_bytes - first.dense_bytes
        others = last.bytes_received + last.bytes_sent - first.bytes_received - first.bytes_sent
        work = dense + _WORK_A_BYTE_OF_ROWS * (others - dense)
        return min(max(dense / work, 0.0), 1.0) if work > 0 else 0.0

    def _plan_cooling(
        self, now: float, source: int, shares: Sequence[float]
    ) -> PlannedMove | HotServer:
        rules, last = self._rules, self._looks[-1].servers
        busy = (
            f"parameter server {source} was at {shares[source]:.0%} of its cores for "
            f"{rules.hot_seconds:g} s"
        )
        loads = last[source].loads
        ranked = (
            () if loads is None else rank_partitions(loads, self._looks[0].servers[source].loads)
        )
        if ranked:
            busiest = ranked[0]
            served = f"; partition {busiest.partition} served {busiest.share:.0%} of its keys"
        else:
            served = ""
        dense_share = self._dense_share(source)
        if dense_share >= 0.01:
            served += f"; dense parameters took about {dense_share:.0%} of that"
        if not rules.may_move:
            remedy = "partitions stay, as runtime.move_partitions_after_seconds is null"
            return HotServer(source, busy + served, remedy)
        if len(shares) == 1:
            remedy = "there is none to move partitions to: more would help (ctrpipe scale)"
            return HotServer(source, busy + served, remedy)
        others = [server for server in range(len(shares)) if server != source]
        target = min(others, key=lambda server: (shares[server], server))
        chosen: list[BusyPartition] = []
        cooler, warmer = shares[source], shares[target]
        for one in ranked:
            if self._rests_until.get(one.partition, -math.inf) > now:
                continue
            heat = shares[source] * (1.0 - dense_share) * one.share
            then = warmer + heat * last[source].cores / last[target].cores
            if one.share > 0 and then <= min(cooler - rules.least_gain, rules.warm_share):
                chosen.append(one)
                cooler, warmer = cooler - heat, then
            if len(chosen) == MOST_PARTITIONS_A_MOVE:
                break
        idlest = f"parameter server {target}, the idlest other, at {shares[target]:.0%}"
        if shares[source] - max(cooler, warmer) < rules.least_gain:
            what = f"{busy} and {idlest}{served}"
            remedy = _remedy_where_no_move_helps(ranked, dense_share, shares, rules)
            return HotServer(source, what, remedy)
        moved = sum(one.share for one in chosen)
        return PlannedMove(
            source,
            target,
            tuple(sorted(one.partition for one in chosen)),
            takes_dense=False,
            reason=f"{busy} and {idlest}; they served {moved:.0%} of its keys",
        )


def _follow(before: Sequence[MemberStats], now: Sequence[MemberStats]) -> bool:
    """Whether both are of the same processes."""
    return len(before) == len(now) and all(
        new.cpu_seconds >= old.cpu_seconds for old, new in zip(before, now, strict=True)
    )


def _remedy_where_no_move_helps(
    ranked: Sequence[BusyPartition],
    dense_share: float,
    shares: Sequence[float],
    rules: HeatRules,
) -> str:
    if min(shares) > rules.warm_share - rules.least_gain:
        return "all are busy, so that no move helps: more would (ctrpipe scale)"
    if dense_share >= 0.5:
        return "no move helps, as its dense parameters are most of its work"
    if ranked and ranked[0].share * (1.0 - dense_share) >= 0.5:
        return f"no move helps, as partition {ranked[0].partition} alone is most of its work"
    return (
        "no move helps, as each would make the other server as busy, or take back one made lately"
    )
