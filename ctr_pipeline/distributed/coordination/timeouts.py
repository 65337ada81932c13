"""When waiting has lasted too long: a clock that cannot be fooled, usual times, stragglers."""

from dataclasses import dataclass
from statistics import median


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
        weight: Of the newest value, in (0, 1].
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


def patience_seconds(usual_seconds: float | None, *, floor_seconds: float, factor: float) -> float:
    """How long a task may take, or may stand still, before it is taken back.

    Args:
        usual_seconds: That such a task takes; None if none has been seen to end.
        floor_seconds: Never less.
        factor: So many times the usual.
    """
    return max(floor_seconds, factor * (usual_seconds or 0.0))


def is_straggler(speed: float, others: list[float], *, fraction: float = 0.5) -> bool:
    """Whether a worker is slower than that fraction of the others' median; needs two others."""
    return len(others) >= 2 and speed < fraction * median(others)
