"""Where the time of training goes: seconds of each stage, and what bounds the run.

The training thread gathers values, has TensorFlow compute, updates, validates and saves. Another
thread reads rows ahead of it, makes their ids unique and finds or creates their embedding rows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ctr_pipeline import durable

# Any two threads that meet at a queue wait for less than this share.
_WAIT_THAT_BOUNDS = 0.1
_ALL_CORES_BUSY = 0.85


class Stage(StrEnum):
    """A stage of training; the value is its name in tables."""

    AWAIT_BATCH = "wait for a batch"
    GATHER = "gather values"
    COMPILE = "first step (compiles)"
    TENSORFLOW = "TensorFlow step"
    DENSE_UPDATE = "dense update"
    SPARSE_UPDATE = "sparse update"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    OTHER = "progress and events"
    READ = "read ahead: rows"
    UNIQUE = "read ahead: unique ids"
    LOCATE = "read ahead: find or make rows"
    AWAIT_VALUES = "wait for values of the servers"
    AWAIT_UPDATES = "wait for updates by the servers"
    SEND = "sum and send gradients"
    SCORE = "score rows"

    @property
    def is_ahead(self) -> bool:
        """Whether the thread that reads ahead does it, beside all other stages."""
        return self in {Stage.READ, Stage.UNIQUE, Stage.LOCATE}


_OUTSIDE_STEPS = (Stage.COMPILE, Stage.VALIDATION, Stage.CHECKPOINT)


@dataclass(frozen=True)
class StageTime:
    """The seconds of a stage in all, and how often it was done."""

    stage: Stage
    seconds: float
    times: int

    @property
    def milliseconds_each(self) -> float:
        """Mean of one time: for a stage of every step, milliseconds per step."""
        return 1e3 * self.seconds / self.times


class StageClock:
    """Attributes the time of one thread to its stages.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[Stage, float] = {}
        self.times: dict[Stage, int] = {}
        self._clock = clock
        self._last = 0.0

    def start(self) -> None:
        """Starts the clock, or goes on without counting the time since the last lap."""
        self._last = self._clock()

    def lap(self, stage: Stage) -> None:
        """Attributes the time since the last lap to the stage that has just ended."""
        now = self._clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self.times[stage] = self.times.get(stage, 0) + 1
        self._last = now

    def stages(self) -> tuple[StageTime, ...]:
        """The stages so far, by descending time."""
        found = [StageTime(one, self.seconds[one], times) for one, times in self.times.items()]
        return tuple(sorted(found, key=lambda one: -one.seconds))


@dataclass(frozen=True)
class TrainingProfile:
    """Where the time of one training went; of a resumed one, since it was resumed.

    Attributes:
        num_steps: Steps done.
        num_rows: Rows trained in them.
        processor_seconds: Processor seconds of all threads of the process meanwhile.
        cores: Threads that the config or the machine allows.
        stages: Stages of the training thread, then those of the thread that reads ahead, each by
            descending time.
    """

    num_steps: int
    num_rows: int
    processor_seconds: float
    cores: int
    stages: tuple[StageTime, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first epoch to the best parameters."""
        return sum(one.seconds for one in self.stages if not one.stage.is_ahead)

    @property
    def step_seconds(self) -> float:
        """Seconds of the steps but the first, which compiles."""
        return self.seconds - sum(map(self.seconds_of, _OUTSIDE_STEPS))

    @property
    def rows_per_second(self) -> float:
        """Rows per second of the steps but the first; 0 if there is no other."""
        if self.num_steps < 2 or self.step_seconds <= 0:
            return 0.0
        return self.num_rows * (1 - 1 / self.num_steps) / self.step_seconds

    @property
    def busy_cores(self) -> float:
        """Cores busy on average."""
        return self.processor_seconds / self.seconds if self.seconds > 0 else 0.0

    def seconds_of(self, stage: Stage) -> float:
        """Seconds of one stage; 0 if it was never done."""
        return next((one.seconds for one in self.stages if one.stage is stage), 0.0)


def describe_bound(profile: TrainingProfile) -> str:
    """Says what bounds the run, and whether more cores would help.

    The training thread is the critical path. Where it spends most of its time outside the steps,
    that is the bound; else waiting for batches, if that is above a tenth of the steps' time; else
    the steps themselves.
    """
    steps = profile.step_seconds
    waiting = profile.seconds_of(Stage.AWAIT_BATCH)
    if steps < profile.seconds / 2:
        longest = max(_OUTSIDE_STEPS, key=profile.seconds_of)
        share = profile.seconds_of(longest) / profile.seconds
        return f"Steps are less than half of the time: {longest} takes {share:.0%} of it."
    if waiting > _WAIT_THAT_BOUNDS * steps:
        ahead = [one for one in profile.stages if one.stage.is_ahead]
        text = f"Input bounds training: steps wait for batches {waiting / steps:.0%} of their time"
        text += f", most of it for '{ahead[0].stage}'." if ahead else "."
    else:
        inside = [
            one
            for one in profile.stages
            if not one.stage.is_ahead and one.stage not in {*_OUTSIDE_STEPS, Stage.AWAIT_BATCH}
        ]
        text = "The step bounds training."
        if inside:
            share = inside[0].seconds / steps if steps else 0.0
            text = f"The step bounds training: '{inside[0].stage}' takes {share:.0%} of it."
    if profile.busy_cores >= _ALL_CORES_BUSY * profile.cores:
        text += " All cores are busy: more of them would help."
    return text


def profile_lines(profile: TrainingProfile) -> list[str]:
    """The profile as lines of text: a summary, the table of stages, what bounds the run."""
    return [
        f"Training took {profile.seconds:.1f} s, {profile.num_steps:,} steps: "
        f"{profile.rows_per_second:,.0f} rows/s in steps, "
        f"{profile.busy_cores:.1f} of {profile.cores} cores busy",
        *stage_lines(profile.stages),
        describe_bound(profile),
    ]


def stage_lines(stages: tuple[StageTime, ...]) -> list[str]:
    """A table of stages as lines of text; shares are of the time of the thread that waits."""
    total = sum(one.seconds for one in stages if not one.stage.is_ahead)
    rows = [
        (
            str(one.stage),
            f"{one.seconds:.2f}",
            f"{one.seconds / total:.1%}" if total else "",
            f"{one.milliseconds_each:.2f}",
        )
        for one in stages
    ]
    return [
        f"{name:<36}" + "".join(f"{value:>10}" for value in values)
        for name, *values in (("stage", "seconds", "share", "ms each"), *rows)
    ]


def save_profile(path: Path, profile: TrainingProfile) -> None:
    """Writes the profile as JSON."""
    text = TypeAdapter(TrainingProfile).dump_json(profile, indent=2).decode()
    durable.write_text(path, text + "\n")


def load_profile(path: Path) -> TrainingProfile | None:
    """Reads the profile that `save_profile` wrote; None if there is none that can be read."""
    try:
        return TypeAdapter(TrainingProfile).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
