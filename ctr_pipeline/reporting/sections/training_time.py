"""Where the time of training went: a bar a thread, on one scale."""

from dataclasses import dataclass

from ctr_pipeline.reporting.data import ReportData, StageUse, ThreadUse
from ctr_pipeline.reporting.formats import duration_text, percent_text, shorten
from ctr_pipeline.reporting.section import Section


@dataclass(frozen=True)
class StagePart:
    """A stage of a bar.

    Attributes:
        css: Class of its colour; waiting is hatched.
        width: Percent of the longest bar.
        time: Spent on it.
        share: Share of the thread's time.
        each: Milliseconds each time.
    """

    name: str
    css: str
    width: float
    time: str
    share: str
    each: str


@dataclass(frozen=True)
class ThreadBar:
    """A thread: its name, how busy it was, its stages by descending time."""

    name: str
    busy: str
    parts: tuple[StagePart, ...]


def section(data: ReportData) -> Section | None:
    """None where nothing was watched."""
    training = data.training_time
    if training is None:
        return None
    longest = max([training.seconds, *map(_seconds, training.threads)]) or 1.0
    bars = [_bar(thread, longest) for thread in training.threads if thread.stages]
    if not bars:
        return None
    values = {"training_threads": bars}
    return Section("training-time", "Training time", "training_time.html.j2", values)


def _bar(thread: ThreadUse, longest: float) -> ThreadBar:
    total = _seconds(thread) or 1.0
    work = [one for one in thread.stages if not one.is_waiting]
    colours = {one.name: f"part{number % 8}" for number, one in enumerate(work)}
    return ThreadBar(
        name=shorten(thread.name, 60),
        busy=percent_text(sum(one.seconds for one in work) / total, 0),
        parts=tuple(
            _part(one, colours.get(one.name, "waiting"), total, longest) for one in thread.stages
        ),
    )


def _part(stage: StageUse, css: str, total: float, longest: float) -> StagePart:
    return StagePart(
        name=shorten(stage.name, 60),
        css=css,
        width=round(100 * stage.seconds / longest, 2),
        time=duration_text(stage.seconds),
        share=percent_text(stage.seconds / total),
        each=f"{1e3 * stage.seconds / max(stage.times, 1):.2f}",
    )


def _seconds(thread: ThreadUse) -> float:
    return sum(one.seconds for one in thread.stages)
