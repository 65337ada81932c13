"""How many workers a job is worth: decided from the speeds that it reached with other numbers.

The number grows while each further worker adds at least a fifth of what the workers before it did
on average, and while no parameter server is saturated. It ends at the largest number whose last
worker was worth it, and looks again after `ScalingRules.memory_seconds`, because neighbours on a
cluster come and go. Workers that stay far behind the others are replaced, once in that time.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from ctr_pipeline.distributed.coordination.timeouts import Speeds

_SAMPLES_KEPT = 4096
_NEARLY_IN_STEP = 0.8


@dataclass(frozen=True)
class SpeedSample:
    """What a job did between two looks at it, a second or a few apart.

    Attributes:
        at_seconds: When the second look was taken, on any clock.
        workers: Workers that trained all the while.
        samples_per_second: Records counted in between, of all workers together.
        worker_speeds: Records per second by worker index; absent workers were not measured.
        server_cpu: CPU time of each parameter server, by index, over the time it may have, so
            that 1 is saturated.
    """

    at_seconds: float
    workers: int
    samples_per_second: float
    worker_speeds: Mapping[int, float] = field(default_factory=dict)
    server_cpu: tuple[float, ...] = ()


@dataclass(frozen=True)
class WorkerBounds:
    """Never fewer workers than this, never more."""

    least: int
    most: int


@dataclass(frozen=True)
class ScalingRules:
    """When a worker is worth it.

    Attributes:
        least_gain: How much a further worker must add, as a fraction of the average before it.
        saturated_cpu: A parameter server beyond this: further workers would only wait for it.
        settle_seconds: After a change of the number nothing is believed for so long: processes
            start, compile, and fill their caches.
        least_samples: Before a number of workers counts as measured.
        most_samples: Enough to decide by the mean, however much they vary; older ones of the same
            number are forgotten.
        memory_seconds: Older measurements are forgotten.
        straggler_samples: Samples in a row in which a straggler was below half of the others'
            median.
    """

    least_gain: float = 0.2
    saturated_cpu: float = 0.95
    settle_seconds: float = 15.0
    least_samples: int = 5
    most_samples: int = 60
    memory_seconds: float = 900.0
    straggler_samples: int = 15


@dataclass(frozen=True)
class ScalingDecision:
    """What to do about the number of workers.

    Attributes:
        workers: Wanted from now on.
        reason: For a person.
        stragglers: Workers to be replaced, by index; one at a time.
    """

    workers: int
    reason: str
    stragglers: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Speed:
    """What a number of workers reached.

    Attributes:
        mean: Records per second.
        error: Standard error of the mean.
        is_sure: More samples would not be waited for.
    """

    mean: float
    error: float
    is_sure: bool


def decide_workers(
    samples: Sequence[SpeedSample],
    bounds: WorkerBounds,
    wanted: int,
    *,
    rules: ScalingRules = ScalingRules(),
    replaced_at: Mapping[int, float] | None = None,
) -> ScalingDecision:
    """Decides how many workers are wanted.

    Args:
        samples: Oldest first, of training alone: none of a validation, or across a rollback.
        wanted: Number that is wanted now.
        rules: When a worker is worth it.
        replaced_at: When stragglers were replaced last, by index, on the samples' clock.
    """
    within = min(max(wanted, bounds.least), bounds.most)
    if within != wanted:
        return ScalingDecision(within, f"between {bounds.least} and {bounds.most} are allowed")
    if not samples:
        return ScalingDecision(wanted, "nothing is measured yet")
    now = samples[-1].at_seconds
    recent = [one for one in samples if now - one.at_seconds <= rules.memory_seconds]
    busy = _server_cpu(recent[-rules.least_samples :])
    stragglers = _find_stragglers(recent, rules, replaced_at or {}, now)
    chosen, reason = _choose_number(recent, bounds, wanted, rules, busy)
    return ScalingDecision(max(chosen, bounds.least), reason, stragglers)


def _choose_number(
    recent: Sequence[SpeedSample],
    bounds: WorkerBounds,
    wanted: int,
    rules: ScalingRules,
    busy: Sequence[float],
) -> tuple[int, str]:
    if recent[-1].workers != wanted:
        return wanted, f"{recent[-1].workers} of {wanted} workers train"
    speeds = _measure(recent, rules)
    if wanted not in speeds:
        return wanted, f"{wanted} are being measured"
    worth, too_many, is_sure = _rank(speeds, wanted, rules)
    if not is_sure:
        return wanted, f"{wanted} are being measured on"
    if too_many is not None and too_many - worth == 1:
        gain = _gain(worth, speeds[worth], too_many, speeds[too_many])
        return worth, f"worker {too_many} adds {max(gain, 0):.0%} of the average"
    if too_many is not None:
        middle = (worth + too_many) // 2
        return middle, f"{worth} are worth it and {too_many} may not be"
    if worth == bounds.most:
        return worth, f"no more than {bounds.most} are allowed"
    saturated = [index for index, share in enumerate(busy) if share > rules.saturated_cpu]
    if saturated:
        return worth, f"parameter server {saturated[0]} is saturated"
    # While speed grows nearly in step, half as many again; later one by one.
    lower = max((number for number in speeds if number < worth), default=None)
    grows = (
        lower is not None and _gain(lower, speeds[lower], worth, speeds[worth]) > _NEARLY_IN_STEP
    )
    further = worth + (max(1, worth // 2) if grows else 1)
    return min(further, bounds.most), f"{worth} are worth it"


def _measure(recent: Sequence[SpeedSample], rules: ScalingRules) -> dict[int, _Speed]:
    """Speeds by number of workers, of those numbers that were there long enough."""
    settled: dict[int, deque[float]] = {}
    since, number = recent[0].at_seconds, recent[0].workers
    for one in recent:
        if one.workers != number:
            since, number = one.at_seconds, one.workers
        if one.at_seconds - since >= rules.settle_seconds:
            kept = settled.setdefault(number, deque(maxlen=rules.most_samples))
            kept.append(one.samples_per_second)
    return {
        number: _Speed(
            mean=fmean(values),
            error=stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0,
            is_sure=len(values) >= rules.most_samples,
        )
        for number, values in settled.items()
        if len(values) >= rules.least_samples
    }


def _rank(
    speeds: Mapping[int, _Speed], wanted: int, rules: ScalingRules
) -> tuple[int, int | None, bool]:
    """Largest number worth it, smallest that may not be, and whether more samples would not tell.

    Of numbers that are not at work no more samples come: their means have to do.
    """
    numbers = sorted(speeds)
    worth = numbers[0]
    for number in numbers[1:]:
        lower, upper = speeds[worth], speeds[number]
        gain = _gain(worth, lower, number, upper)
        # Two standard errors of the difference, in the unit of the gain.
        doubt = 2.0 * sqrt(lower.error**2 + upper.error**2) / (number - worth)
        doubt /= lower.mean / worth if lower.mean > 0 else 1.0
        is_close = abs(gain - rules.least_gain) < doubt
        if is_close and wanted in {worth, number} and not speeds[wanted].is_sure:
            return worth, None, False
        # Within a larger step that brought less than it might, some workers may be worth nothing.
        if gain < (rules.least_gain if number - worth == 1 else _NEARLY_IN_STEP):
            return worth, number, True
        worth = number
    return worth, None, True


def _gain(fewer: int, slower: _Speed, more: int, faster: _Speed) -> float:
    """What each further worker added, as a fraction of the average of those before."""
    if slower.mean <= 0:
        return 1.0 if faster.mean > 0 else 0.0
    return (faster.mean - slower.mean) / (more - fewer) / (slower.mean / fewer)


def _server_cpu(samples: Sequence[SpeedSample]) -> tuple[float, ...]:
    """Mean share of each parameter server."""
    count = len(samples[-1].server_cpu)
    alike = [one.server_cpu for one in samples if len(one.server_cpu) == count]
    return tuple(fmean(shares) for shares in zip(*alike, strict=True))


def _find_stragglers(
    recent: Sequence[SpeedSample],
    rules: ScalingRules,
    replaced_at: Mapping[int, float],
    now: float,
) -> tuple[int, ...]:
    """The slowest of those that were far behind all the while, and not replaced of late."""
    window = recent[-rules.straggler_samples :]
    if len(window) < rules.straggler_samples:
        return ()
    compared = [Speeds(sample.worker_speeds) for sample in window]
    behind = [
        index
        for index in window[-1].worker_speeds
        if all(speeds.is_straggler(index) for speeds in compared)
        and (index not in replaced_at or now - replaced_at[index] > rules.memory_seconds)
    ]
    slowest = min(behind, key=lambda index: window[-1].worker_speeds[index], default=None)
    return () if slowest is None else (slowest,)


class SpeedLog:
    """Makes samples of the counters that members report.

    Args:
        every_seconds: Between samples.
    """

    def __init__(self, every_seconds: float = 2.0) -> None:
        self._every_seconds = every_seconds
        self._samples: deque[SpeedSample] = deque(maxlen=_SAMPLES_KEPT)
        self._last: _Counters | None = None

    @property
    def samples(self) -> tuple[SpeedSample, ...]:
        """Oldest first."""
        return tuple(self._samples)

    def interrupt(self) -> None:
        """Training paused, or went back: no sample spans this moment."""
        self._last = None

    def note(
        self,
        now: float,
        *,
        trained: int,
        workers: int,
        worker_speeds: Mapping[int, float],
        server_cpu_seconds: Sequence[float],
        server_cores: Sequence[float],
    ) -> None:
        """Takes in counters; makes a sample when it is time.

        Args:
            now: Any clock, seconds.
            trained: Records counted so far.
            workers: Workers that train.
            worker_speeds: Records per second, by index, of those that are measured.
            server_cpu_seconds: CPU time of each parameter server so far.
            server_cores: Cores that each parameter server may use.
        """
        last = self._last
        current = _Counters(now, trained, workers, tuple(server_cpu_seconds))
        if (
            last is None
            or last.workers != workers
            or len(last.server_cpu_seconds) != len(server_cpu_seconds)
            or trained < last.trained
            or any(
                new < old
                for new, old in zip(server_cpu_seconds, last.server_cpu_seconds, strict=True)
            )
        ):
            self._last = current
            return
        seconds = now - last.now
        if seconds < self._every_seconds:
            return
        shares = (
            (new - old) / seconds / cores
            for new, old, cores in zip(
                server_cpu_seconds, last.server_cpu_seconds, server_cores, strict=True
            )
        )
        self._samples.append(
            SpeedSample(
                at_seconds=now,
                workers=workers,
                samples_per_second=(trained - last.trained) / seconds,
                worker_speeds=dict(worker_speeds),
                server_cpu=tuple(shares),
            )
        )
        self._last = current


@dataclass(frozen=True)
class _Counters:
    now: float
    trained: int
    workers: int
    server_cpu_seconds: tuple[float, ...]
