"""How long to wait: a clock that cannot be fooled, usual times, pauses, stragglers."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


class SteadyClock:
    """Seconds that passed while somebody looked.

    A step backwards of the clock behind it counts as none, and a leap forwards as at most
    `most_step_seconds`: after a suspension, or after the master itself was away, no silence is
    held against a member that had no chance to be heard.

    Args:
        now: The clock behind it.
        most_step_seconds: Counted between two looks at most.
    """

    def __init__(self, now: float, most_step_seconds: float) -> None:
        self._last = now
        self._most_step_seconds = most_step_seconds
        self.seconds = 0.0

    def advance(self, now: float) -> float:
        """Takes in the clock behind it; returns the seconds that count as passed."""
        step = min(max(now - self._last, 0.0), self._most_step_seconds)
        self._last = now
        self.seconds += step
        return step


@dataclass
class MovingAverage:
    """An exponentially weighted mean.

    Attributes:
        weight: Weight of the newest value, in (0, 1].
        value: None before the first.
    """

    weight: float = 0.3
    value: float | None = None

    def add(self, value: float) -> None:
        """Takes in one value."""
        if self.value is None:
            self.value = value
        else:
            self.value += self.weight * (value - self.value)


def timeout_seconds(usual_seconds: float | None, *, floor_seconds: float, factor: float) -> float:
    """How long a task may take, or may stand still, before it is taken back.

    Args:
        usual_seconds: How long such a task usually takes; None: none has ended yet.
        floor_seconds: The smallest timeout.
        factor: Times the usual.
    """
    return max(floor_seconds, factor * (usual_seconds or 0.0))


def backoff_seconds(
    failures: int, *, first: float = 1.0, most: float, factor: float = 2.0
) -> float:
    """How long to pause after failures in a row; exponential, without randomness.

    Args:
        failures: In a row, 1 or more.
        first: Seconds after the first.
        most: Longest pause in seconds.
        factor: Growth with each failure, 1 or more.
    """
    # Beyond 64 powers would only overflow one day.
    return min(most, first * factor ** min(failures - 1, 64))


class Speeds:
    """How fast each worker is, to be compared with the others.

    Args:
        by_worker: Records per second of those that were measured, by number.
    """

    def __init__(self, by_worker: Mapping[int, float]) -> None:
        self._by_worker = by_worker
        self._sorted = sorted(by_worker.values())

    def of(self, worker: int) -> float | None:
        """Records per second; None: not measured."""
        return self._by_worker.get(worker)

    def is_straggler(self, worker: int, *, fraction: float = 0.5) -> bool:
        """Whether a worker is slower than that fraction of the others' median; needs two others."""
        speed, num_others = self._by_worker.get(worker), len(self._sorted) - 1
        if speed is None or num_others < 2:
            return False
        own = bisect_left(self._sorted, speed)

        def nth_other(place: int) -> float:
            return self._sorted[place + (place >= own)]

        middle = (nth_other((num_others - 1) // 2) + nth_other(num_others // 2)) / 2
        return speed < fraction * middle
