"""Showing a job while it runs: what is told to a `Progress`, and what a terminal may do better."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from ctr_pipeline.progress import Progress, ProgressTask

if TYPE_CHECKING:
    from ctr_pipeline.distributed.master.status import JobEvent, JobView


class JobDisplay(Protocol):
    """Shows a job for as long as it is open; a context manager."""

    def show(self, view: "JobView") -> None:
        """Shows the job as it is now; to be called whenever it is known anew."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class ShowsJobs(Protocol):
    """A `Progress` with a display of its own for jobs."""

    def job_display(self) -> JobDisplay:
        """A display, not open yet."""


def display_job(progress: Progress) -> JobDisplay:
    """The display of whoever listens; a bar or lines, and a line an event, if it has none.

    For example:

        with display_job(progress) as display:
            while job_runs:
                display.show(read_status(job))
    """
    if isinstance(progress, ShowsJobs):
        return progress.job_display()
    return TaskDisplay(progress)


class TaskDisplay:
    """A `JobDisplay` that tells a `Progress` what it would be told of training in one process."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: ProgressTask | None = None
        self._events = NewEvents()
        self._shown = 0

    def show(self, view: "JobView") -> None:
        """Advances the bar, and says what is new."""
        if self._task is None:
            self._task = self._progress.task("training", total=view.records.total or None)
            self._task.__enter__()
        # After a rollback fewer records count than before; no bar goes backwards.
        self._task.advance(max(0, view.records.trained - self._shown))
        self._shown = max(self._shown, view.records.trained)
        self._task.note(spoken_progress(view))
        for event in self._events.of(view):
            self._progress.say(spoken_event(event))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.__exit__(kind, error, trace)
            self._task = None


class NewEvents:
    """Tells which events of a job were not seen before."""

    def __init__(self) -> None:
        self._seen: set[tuple[float, str, str]] = set()

    def of(self, view: "JobView") -> "Sequence[JobEvent]":
        """The new ones, oldest first."""
        keys = [(event.time, event.what, event.done) for event in view.events]
        new = [event for event, key in zip(view.events, keys, strict=True) if key not in self._seen]
        # A view holds the last events only: what has left it does not return.
        self._seen = set(keys)
        return new


def spoken_progress(view: "JobView") -> str:
    """Where a job is, who works on it, how good it is: `epoch 1 of 2, task 3 of 9, 2 workers`."""
    parts = [view.state] if view.state != "training" else []
    parts.append(f"epoch {view.epoch + 1} of {view.epochs}")
    if view.tasks_total:
        parts.append(f"task {view.tasks_done:,} of {view.tasks_total:,}")
    working = sum(member.role == "worker" and member.state == "running" for member in view.members)
    wanted = f" of {view.workers_wanted}" if working != view.workers_wanted else ""
    parts.append(f"{working}{wanted} {'worker' if working == 1 and not wanted else 'workers'}")
    if view.samples_per_second:
        parts.append(f"{view.samples_per_second:,.0f} rows/s")
    if view.train_logloss is not None:
        parts.append(f"loss {view.train_logloss:.4f}")
    if view.auc is not None:
        parts.append(f"AUC {view.auc:.4f}")
    return ", ".join(parts)


def spoken_event(event: "JobEvent") -> str:
    """An event without its time: what happened, what was done, how long it took."""
    text = f"{event.what}: {event.done}" if event.done else event.what
    if event.recovery_seconds is not None:
        text += f" ({event.recovery_seconds:.1f} s)"
    return text
