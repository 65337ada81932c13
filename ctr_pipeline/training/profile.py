"""Where the time of training goes: what each thread does, what it waits for, what bounds the run.

Two threads share the work. The reading thread reads rows, makes their ids unique and finds or
creates their embedding rows. The training thread gathers values, has TensorFlow compute, applies
the updates, and validates and saves from time to time. Every moment of a thread belongs to one of
its stages, waiting included, so the stages add up to the thread's lifetime.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ctr_pipeline import durable

# A wait below this share of the loop is what any two threads that meet at a queue have.
_WAIT_THAT_BOUNDS = 0.1
_ALL_CORES_BUSY = 0.85


class Stage(StrEnum):
    """A stage of a thread; the value is its name for people."""

    READ = "read rows"
    UNIQUE = "unique ids"
    LOCATE = "find or make rows"
    AWAIT_ROOM = "waits: enough batches are ready"
    AWAIT_CHECKPOINT = "waits for the checkpoint"
    AWAIT_BATCH = "waits for a batch"
    AWAIT_LOCK = "waits for the other thread's rows"
    GATHER = "gather values"
    COMPILE = "first step (compiles)"
    TENSORFLOW = "TensorFlow step"
    DENSE_UPDATE = "dense update"
    SPARSE_UPDATE = "sparse update"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    AWAIT_VALUES = "waits for values of the servers"
    AWAIT_UPDATES = "waits for updates by the servers"
    SEND = "sum and send gradients"
    SCORE = "score rows"
    OTHER = "the rest (progress, events)"

    @property
    def is_waiting(self) -> bool:
        """Whether the thread does nothing meanwhile."""
        return self in _WAITING


_WAITING = frozenset(
    {
        Stage.AWAIT_ROOM,
        Stage.AWAIT_CHECKPOINT,
        Stage.AWAIT_BATCH,
        Stage.AWAIT_LOCK,
        Stage.AWAIT_VALUES,
        Stage.AWAIT_UPDATES,
    }
)
_OUTSIDE_THE_LOOP = frozenset({Stage.COMPILE, Stage.VALIDATION, Stage.CHECKPOINT})


class StageClock(Protocol):
    """Attributes the time of one thread to its stages."""

    def start(self) -> None:
        """Starts the clock; called in the thread that it measures."""

    def lap(self, stage: Stage, *, lock: bool = False) -> None:
        """Attributes the time since the last lap to `stage`.

        Args:
            stage: The stage that has just ended.
            lock: Whether to count the time spent waiting for the rows' lock as a stage of its own.
        """


class SilentClock:
    """Counts nothing, at the cost of a call."""

    def start(self) -> None:
        """Nothing to begin."""

    def lap(self, stage: Stage, *, lock: bool = False) -> None:
        """Nothing to count."""


class LapClock:
    """Counts seconds and laps of each stage.

    Args:
        clock: Seconds, monotonic.
        lock_waits: Seconds that the calling thread has waited for the lock of the rows so far.
    """

    def __init__(self, clock: Callable[[], float], lock_waits: Callable[[], float]) -> None:
        self.seconds: dict[Stage, float] = {}
        self.laps: dict[Stage, int] = {}
        self._clock = clock
        self._lock_waits = lock_waits
        self._last = 0.0
        self._waited = 0.0

    def start(self) -> None:
        """Begins to count, in the thread whose time it is."""
        self._waited = self._lock_waits()
        self._last = self._clock()

    def lap(self, stage: Stage, *, lock: bool = False) -> None:
        """Says that what was done since the last lap was `stage`."""
        now = self._clock()
        spent, self._last = now - self._last, now
        if lock:
            waited = self._lock_waits()
            held_up, self._waited = min(waited - self._waited, spent), waited
            if held_up:
                self._add(Stage.AWAIT_LOCK, held_up)
                spent -= held_up
        self._add(stage, spent)

    def _add(self, stage: Stage, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.laps[stage] = self.laps.get(stage, 0) + 1


@dataclass(frozen=True)
class StageTime:
    """A stage of a thread: seconds in all, and how often it was done."""

    stage: Stage
    seconds: float
    times: int


@dataclass(frozen=True)
class ThreadTime:
    """A thread: its name for people, and its stages by descending time."""

    name: str
    stages: tuple[StageTime, ...]

    @property
    def seconds(self) -> float:
        """How long the thread lived."""
        return sum(one.seconds for one in self.stages)

    def of(self, stage: Stage) -> float:
        """Seconds of one stage; 0 if it was never done."""
        return next((one.seconds for one in self.stages if one.stage is stage), 0.0)


@dataclass(frozen=True)
class TrainingProfile:
    """Where the time of one training went; of a resumed one, since it went on.

    Attributes:
        first_step: Steps that were done before.
        num_steps: Steps done since.
        num_rows: Rows trained in them.
        seconds: From the start of the first epoch to the best parameters.
        processor_seconds: Processor seconds of all threads of the process meanwhile.
        cores: Threads that the config or the machine allows.
        training: The thread that trains.
        ahead: The thread that reads ahead; it lives only while an epoch trains.
    """

    first_step: int
    num_steps: int
    num_rows: int
    seconds: float
    processor_seconds: float
    cores: int
    training: ThreadTime
    ahead: ThreadTime

    @property
    def loop_seconds(self) -> float:
        """Time of the training thread in its steps, the first one, which compiles, left out."""
        return self.training.seconds - sum(map(self.training.of, _OUTSIDE_THE_LOOP))

    @property
    def rows_per_second(self) -> float:
        """Of the steps but the first, whose rows are as many as any other's."""
        if self.num_steps < 2 or self.loop_seconds <= 0:
            return 0.0
        return self.num_rows * (1 - 1 / self.num_steps) / self.loop_seconds

    @property
    def busy_cores(self) -> float:
        """Cores busy on average."""
        return self.processor_seconds / self.seconds if self.seconds > 0 else 0.0


class Profiler(Protocol):
    """Watches one training.

    Attributes:
        training: Clock of the thread that trains.
        ahead: Clock of the thread that reads ahead.
    """

    @property
    def training(self) -> StageClock:
        """Clock of the thread that trains."""

    @property
    def ahead(self) -> StageClock:
        """Clock of the thread that reads ahead."""

    def start(self, step: int) -> None:
        """Training begins, after so many steps."""

    def count(self, num_rows: int) -> None:
        """A step with so many rows was done."""

    def stop(self) -> None:
        """Training is over."""


class SilentProfiler:
    """Watches nothing."""

    training: StageClock = SilentClock()
    ahead: StageClock = SilentClock()

    def start(self, step: int) -> None:
        """Nothing to begin."""

    def count(self, num_rows: int) -> None:
        """Nothing to count."""

    def stop(self) -> None:
        """Nothing to end."""


class TrainingProfiler:
    """Watches one training.

    Args:
        cores: Threads that the config or the machine allows.
        lock_waits: Seconds that the calling thread has waited for the lock of the rows so far.
        clock: Seconds, monotonic.
        processor_clock: Processor seconds of this process.
    """

    def __init__(
        self,
        *,
        cores: int,
        lock_waits: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._training = LapClock(clock, lock_waits)
        self._ahead = LapClock(clock, lock_waits)
        self._cores = cores
        self._clock = clock
        self._processor_clock = processor_clock
        self._first_step = self._num_steps = self._num_rows = 0
        self._seconds = self._processor_seconds = 0.0

    @property
    def training(self) -> StageClock:
        """Clock of the thread that trains."""
        return self._training

    @property
    def ahead(self) -> StageClock:
        """Clock of the thread that reads ahead."""
        return self._ahead

    def start(self, step: int) -> None:
        """Training begins, after so many steps; called in the thread that trains."""
        self._first_step = step
        self._seconds, self._processor_seconds = -self._clock(), -self._processor_clock()
        self._training.start()

    def count(self, num_rows: int) -> None:
        """A step with so many rows was done."""
        self._num_steps += 1
        self._num_rows += num_rows

    def stop(self) -> None:
        """Training is over."""
        self._seconds += self._clock()
        self._processor_seconds += self._processor_clock()

    def profile(self) -> TrainingProfile:
        """What was seen."""
        return TrainingProfile(
            first_step=self._first_step,
            num_steps=self._num_steps,
            num_rows=self._num_rows,
            seconds=self._seconds,
            processor_seconds=self._processor_seconds,
            cores=self._cores,
            training=time_of_thread("training thread", self._training),
            ahead=time_of_thread("thread that reads ahead", self._ahead),
        )


def time_of_thread(name: str, clock: LapClock) -> ThreadTime:
    """What a clock has counted."""
    stages = [
        StageTime(stage, seconds, clock.laps[stage]) for stage, seconds in clock.seconds.items()
    ]
    return ThreadTime(name, tuple(sorted(stages, key=lambda one: -one.seconds)))


class Bound(StrEnum):
    """What keeps training from being faster."""

    STEP = "step"
    INPUT = "input"
    LOCK = "lock"
    OUTSIDE = "outside"


def decide_bound(profile: TrainingProfile) -> Bound:
    """What the critical path spends its time on.

    The training thread is the critical path. Where it spends most of its time outside the steps,
    that is the bound; else what it waits for, if that is above a tenth of its steps' time; else
    the steps themselves.
    """
    loop = profile.loop_seconds
    if loop < profile.training.seconds / 2:
        return Bound.OUTSIDE
    waits = {
        Bound.INPUT: profile.training.of(Stage.AWAIT_BATCH),
        Bound.LOCK: profile.training.of(Stage.AWAIT_LOCK),
    }
    longest = max(waits, key=lambda bound: waits[bound])
    return longest if waits[longest] > _WAIT_THAT_BOUNDS * loop else Bound.STEP


def describe_bound(profile: TrainingProfile) -> str:
    """The same as a sentence, with what could be done about it."""
    loop, training = profile.loop_seconds, profile.training
    match decide_bound(profile):
        case Bound.OUTSIDE:
            longest = max(_OUTSIDE_THE_LOOP, key=training.of)
            share = training.of(longest) / training.seconds
            return f"Steps are less than half of the time: {longest} takes {share:.0%} of it."
        case Bound.INPUT:
            share = training.of(Stage.AWAIT_BATCH) / loop
            longest = _longest_work(profile.ahead, Stage.READ)
            part = profile.ahead.of(longest) / profile.ahead.seconds
            text = (
                f"Input bounds training: steps wait for batches {share:.0%} of their time; "
                f"'{longest}' takes {part:.0%} of the thread that reads ahead."
            )
        case Bound.LOCK:
            share = training.of(Stage.AWAIT_LOCK) / loop
            text = (
                "New embedding rows bound training: updates wait "
                f"{share:.0%} of the steps' time while the other thread finds or makes rows."
            )
        case Bound.STEP:
            longest = _longest_work(training, Stage.TENSORFLOW)
            waits = training.of(Stage.AWAIT_BATCH) / loop if loop else 0.0
            part = training.of(longest) / loop if loop else 0.0
            text = (
                f"The step bounds training: '{longest}' takes {part:.0%} of it, and it waits for "
                f"batches {waits:.0%} of the time."
            )
    if profile.busy_cores >= _ALL_CORES_BUSY * profile.cores:
        text += " All cores are busy: more of them would help."
    return text


def _longest_work(thread: ThreadTime, otherwise: Stage) -> Stage:
    work = [
        one
        for one in thread.stages
        if not one.stage.is_waiting and one.stage not in _OUTSIDE_THE_LOOP
    ]
    return max(work, key=lambda one: one.seconds).stage if work else otherwise


def profile_lines(profile: TrainingProfile) -> list[str]:
    """The profile as a table of plain text, the bound in its last line."""
    lines = [
        f"Training took {profile.seconds:.1f} s, {profile.num_steps:,} steps: "
        f"{profile.rows_per_second:,.0f} rows/s in steps, "
        f"{profile.busy_cores:.1f} of {profile.cores} cores busy"
    ]
    for thread in (profile.training, profile.ahead):
        lines += thread_lines(thread)
    return [*lines, describe_bound(profile)]


def thread_lines(thread: ThreadTime) -> list[str]:
    """The stages of a thread as a table of plain text."""
    return [
        _line(thread.name, "seconds", "share", "ms each"),
        *(
            _line(
                f"  {one.stage}",
                f"{one.seconds:.2f}",
                f"{one.seconds / thread.seconds:.1%}" if thread.seconds else "",
                f"{1e3 * one.seconds / one.times:.2f}",
            )
            for one in thread.stages
        ),
    ]


def _line(name: str, *values: str) -> str:
    return f"{name:<36}" + "".join(f"{value:>10}" for value in values)


def save_profile(path: Path, profile: TrainingProfile) -> None:
    """Writes the profile as JSON, with the bound as a sentence."""
    values = asdict(profile) | {"bound": describe_bound(profile)}
    durable.write_text(path, json.dumps(values, indent=2) + "\n")


def load_profile(path: Path) -> TrainingProfile | None:
    """The profile that `save_profile` wrote; None if there is none that can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        del values["bound"]
        for name in ("training", "ahead"):
            thread = values[name]
            stages = [
                StageTime(Stage(one["stage"]), one["seconds"], one["times"])
                for one in thread["stages"]
            ]
            values[name] = ThreadTime(thread["name"], tuple(stages))
        return TrainingProfile(**values)
    except (OSError, ValueError, TypeError, KeyError):
        return None
