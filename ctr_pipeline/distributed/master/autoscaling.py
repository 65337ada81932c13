"""Runs `coordination.scaling` on a live job: `runtime.workers: auto`, hot servers of any."""

from collections.abc import Callable
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.events import ScaleAsked
from ctr_pipeline.distributed.coordination.job import JobStatus, MemberStatus
from ctr_pipeline.distributed.coordination.messages import PartitionLoads
from ctr_pipeline.distributed.coordination.moves import BusyPartition, rank_partitions
from ctr_pipeline.distributed.coordination.scaling import (
    ScalingRules,
    SpeedLog,
    WorkerBounds,
    decide_workers,
)


@dataclass(frozen=True)
class ScalingStep:
    """What autoscaling asks for.

    Attributes:
        scale: Another number of workers; None leaves it.
        reason: Of that number.
        hot_servers: Parameter servers that are newly near their limit, and what is busiest there;
            None: nobody knows.
        stragglers: Workers to be replaced.
    """

    scale: ScaleAsked | None
    reason: str
    hot_servers: tuple[tuple[int, BusyPartition | None], ...]
    stragglers: tuple[int, ...]


class Autoscaler:
    """Looks at a job every now and then and says what to change.

    Where a person asks for another number meanwhile, that is the most from then on.

    Args:
        bounds: Of the number of workers; None: people choose it, and only servers near their limit
            are told of.
        clock: Seconds.
        rules: When a worker is worth it; None: as `ScalingRules` says by itself.
    """

    def __init__(
        self,
        bounds: WorkerBounds | None,
        clock: Callable[[], float],
        rules: ScalingRules | None = None,
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._rules = rules or ScalingRules()
        self._asked: int | None = None
        self._log = SpeedLog()
        self._generation = -1
        self._replaced_at: dict[int, float] = {}
        self._hot_at: dict[int, float] = {}
        # The last two reports of each server.
        self._loads: dict[int, tuple[PartitionLoads | None, PartitionLoads]] = {}

    def look(self, status: JobStatus) -> ScalingStep | None:
        """Takes in how the job is; None: nothing is to be changed."""
        now = self._clock()
        if self._bounds is not None and self._asked not in {None, status.target_workers}:
            self._bounds = WorkerBounds(self._bounds.least, status.target_workers)
        self._asked = status.target_workers
        if status.phase != "training" or status.generation != self._generation:
            self._generation = status.generation
            self._log.interrupt()
            if (
                self._bounds is not None
                and status.trained == 0
                and status.target_workers > self._bounds.least
            ):
                # A new job begins with as few as may be and grows.
                return self._step(self._bounds.least, "a job begins with the fewest", (), ())
            return None
        workers = [one for one in status.members if one.role == "worker" and _trains(one)]
        servers = sorted(
            (one for one in status.members if one.role == "ps"), key=lambda one: one.index
        )
        self._log.note(
            now,
            trained=status.trained,
            workers=len(workers),
            worker_speeds={
                one.index: one.stats.samples_per_second
                for one in workers
                if one.stats.samples_per_second > 0
            },
            server_cpu_seconds=[one.stats.cpu_seconds for one in servers],
            server_cores=[one.stats.cores for one in servers],
        )
        for one in servers:
            self._note_loads(one)
        decision = decide_workers(
            self._log.samples,
            self._bounds or WorkerBounds(status.target_workers, status.target_workers),
            status.target_workers,
            rules=self._rules,
            replaced_at=self._replaced_at,
        )
        hot = tuple(
            (server, self._busiest(server))
            for server in decision.hot_servers
            if self._is_news(server, now)
        )
        if self._bounds is None:
            return self._step(None, decision.reason, hot, ()) if hot else None
        self._replaced_at.update(dict.fromkeys(decision.stragglers, now))
        wanted = decision.workers if decision.workers != status.target_workers else None
        if wanted is None and not hot and not decision.stragglers:
            return None
        return self._step(wanted, decision.reason, hot, decision.stragglers)

    def _step(
        self,
        wanted: int | None,
        reason: str,
        hot: tuple[tuple[int, BusyPartition | None], ...],
        stragglers: tuple[int, ...],
    ) -> ScalingStep:
        scale = None
        if wanted is not None:
            self._asked = wanted
            scale = ScaleAsked(target_workers=wanted)
        return ScalingStep(scale, reason, hot, stragglers)

    def _note_loads(self, server: MemberStatus) -> None:
        loads = server.stats.loads
        _, last = self._loads.get(server.index, (None, None))
        if loads is not None and loads is not last:
            self._loads[server.index] = (last, loads)

    def _busiest(self, server: int) -> BusyPartition | None:
        if server not in self._loads:
            return None
        earlier, loads = self._loads[server]
        return next(iter(rank_partitions(loads, earlier)), None)

    def _is_news(self, server: int, now: float) -> bool:
        last = self._hot_at.get(server)
        if last is not None and now - last < self._rules.memory_seconds:
            return False
        self._hot_at[server] = now
        return True


def _trains(member: MemberStatus) -> bool:
    return member.state == "running" and member.leases > 0
