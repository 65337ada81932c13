"""Seconds a stage, and seconds from the command to the first step."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FIRST_STEP = "first step"
_START_TIME_FIELD = 22


class StageTimes:
    """Seconds spent in each stage of a run, in the order of their first start.

    Args:
        seconds_before: Seconds from the command to this moment.
        clock: Seconds, monotonic.

    Attributes:
        earlier: Seconds of each stage in earlier sessions of the same run.
        stage_now: The current stage, or the last one; empty before the first.
        on_stage: Called when a stage has begun.
        start_up: Seconds of each part of the start-up, in order. The last one is `FIRST_STEP`,
            once that is done; it is absent where this process does not train.
    """

    def __init__(
        self, seconds_before: float = 0.0, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.seconds: dict[str, float] = {}
        self.earlier: dict[str, float] = {}
        self.stage_now = ""
        self.on_stage: Callable[[], None] | None = None
        self._stage_began: float | None = None
        self.start_up: dict[str, float] = {}
        self._clock = clock
        self._last = clock() - seconds_before

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time inside; the same stage may be entered again."""
        started = self._clock()
        self.stage_now, self._stage_began = name, started
        if self.on_stage is not None:
            self.on_stage()
        try:
            yield
        finally:
            self._stage_began = None
            spent = self._clock() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def seconds_so_far(self) -> dict[str, float]:
        """Seconds of each stage of this session, the current one included."""
        seconds, name, began = dict(self.seconds), self.stage_now, self._stage_began
        if began is not None:
            seconds[name] = seconds.get(name, 0.0) + self._clock() - began
        return seconds

    def take_over(self, seconds: Mapping[str, float], *, within: str) -> None:
        """Counts stages of another process, for which this one waited in the stage `within`."""
        for name, spent in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.seconds[within] = max(0.0, self.seconds[within] - spent)

    def of_all_sessions(self) -> dict[str, float]:
        """Seconds of each stage, earlier sessions included, in the order of their first start."""
        names = dict.fromkeys([*self.earlier, *self.seconds])
        return {name: self.earlier.get(name, 0.0) + self.seconds.get(name, 0.0) for name in names}

    def reach(self, name: str) -> None:
        """Counts the time since the last call as the part `name` of the start-up.

        Nothing counts after the first step.
        """
        if FIRST_STEP in self.start_up:
            return
        now = self._clock()
        self.start_up[name] = self.start_up.get(name, 0.0) + now - self._last
        self._last = now


def start_up_sentence(start_up: dict[str, float]) -> str:
    """The time until the first step and its parts, as a sentence; empty if there was none."""
    if FIRST_STEP not in start_up:
        return ""
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in start_up.items())
    return f"The first step was done {sum(start_up.values()):.1f} s after the command: {parts}"


def process_age_seconds() -> float:
    """Seconds since this process was started; 0 where the system cannot tell to a hundredth."""
    ticks = start_of_process(os.getpid())
    try:
        started = (ticks or 0) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started) if ticks else 0.0
    except (OSError, ValueError, AttributeError):
        return 0.0


def start_of_process(process: int) -> int | None:
    """When a process was started, in ticks since boot; None if it is absent or that is unknown.

    Process ids are reused; an id with its start time is not.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        # The name of the program, in brackets, may hold spaces and brackets.
        return int(text.rpartition(")")[2].split()[_START_TIME_FIELD - 3])
    except (OSError, ValueError, IndexError):
        return None
