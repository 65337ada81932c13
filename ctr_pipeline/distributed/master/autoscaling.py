"""Runs `coordination.scaling` on a live job: `runtime.workers: auto`."""

from collections.abc import Callable
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.events import ScaleAsked
from ctr_pipeline.distributed.coordination.job.status import JobStatus, MemberStatus
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
        stragglers: Workers to be replaced.
    """

    scale: ScaleAsked | None
    reason: str
    stragglers: tuple[int, ...]


class Autoscaler:
    """Looks at a job every now and then and says what to change.

    Where a person asks for another number meanwhile, that is the most from then on.

    Args:
        bounds: Bounds of the number of workers.
        clock: Seconds.
        rules: When a worker is worth it; None: as `ScalingRules` says by itself.
    """

    def __init__(
        self,
        bounds: WorkerBounds,
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

    def poll(self, status: JobStatus) -> ScalingStep | None:
        """Takes in how the job is; None: nothing is to be changed."""
        now = self._clock()
        if self._asked not in {None, status.target_workers}:
            self._bounds = WorkerBounds(self._bounds.least, status.target_workers)
        self._asked = status.target_workers
        if status.phase != "training" or status.generation != self._generation:
            self._generation = status.generation
            self._log.interrupt()
            if status.trained == 0 and status.target_workers > self._bounds.least:
                # A new job begins with as few as may be and grows.
                return self._step(self._bounds.least, "a job begins with the fewest", ())
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
                if one.stats and one.stats.samples_per_second > 0
            },
            server_cpu_seconds=[one.stats.cpu_seconds for one in servers if one.stats],
            server_cores=[one.stats.cores for one in servers if one.stats],
        )
        decision = decide_workers(
            self._log.samples,
            self._bounds,
            status.target_workers,
            rules=self._rules,
            replaced_at=self._replaced_at,
        )
        self._replaced_at.update(dict.fromkeys(decision.stragglers, now))
        wanted = decision.workers if decision.workers != status.target_workers else None
        if wanted is None and not decision.stragglers:
            return None
        return self._step(wanted, decision.reason, decision.stragglers)

    def _step(self, wanted: int | None, reason: str, stragglers: tuple[int, ...]) -> ScalingStep:
        scale = None
        if wanted is not None:
            self._asked = wanted
            scale = ScaleAsked(target_workers=wanted)
        return ScalingStep(scale, reason, stragglers)


def _trains(member: MemberStatus) -> bool:
    return member.state == "running" and member.leases > 0
