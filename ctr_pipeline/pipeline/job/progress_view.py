"""A job in several processes as one live view: a bar for what it does, a line for each member."""

from types import TracebackType
from typing import Self

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.news import JobNews, NewsLine
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.progress import Progress, ProgressTask

_MEBIBYTE = 2**20
_TRAINING_STATES = frozenset({"training", "checkpointing"})
_SOON_OVER = frozenset({"it is being started", "it waits for a node"})
"""What every pod waits for, for a moment."""
_STATE_MESSAGES = {
    "waiting": "Starting parameter servers and workers",
    "restoring": "Parameter servers load the last checkpoint",
}


class JobProgress:
    """Shows what has changed in a job since it was last shown; a context manager."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._state = ""
        self._last_event = 0.0
        self._num_epochs_said = 0
        self._first = True
        self._title = ""
        self._task: ProgressTask | None = None
        self._epoch: int | None = None
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_task(kind, error, trace)
        self._progress.board(())

    def show(self, view: JobView) -> None:
        """Shows the job as it is now."""
        self._log_events(view)
        self._log_epochs(view)
        if view.state != self._state:
            self._state = view.state
            if view.state in _STATE_MESSAGES:
                self._progress.log(_STATE_MESSAGES[view.state])
        self._move_bar(view)
        self._progress.board(tuple(describe_member(member) for member in view.members))
        self._first = False

    def _log_events(self, view: JobView) -> None:
        for event in view.events:
            if event.time > self._last_event and not self._first:
                self._progress.log(event.sentence)
        self._last_event = max([self._last_event, *(event.time for event in view.events)])

    def _log_epochs(self, view: JobView) -> None:
        for record in view.history[self._num_epochs_said :]:
            if not self._first:
                self._progress.log(
                    f"Epoch {record.epoch + 1}: train logloss {record.train_logloss:.4f}, "
                    f"validation logloss {record.valid_logloss:.4f}, AUC {record.valid_auc:.4f}"
                )
        self._num_epochs_said = len(view.history)

    def _move_bar(self, view: JobView) -> None:
        per_epoch = view.records.total // max(1, view.epochs)
        trained = view.records.trained + view.records.dropped
        if self._epoch is not None:
            # What was trained between two looks belongs to the epoch that is over by now.
            self._advance(min(per_epoch, trained - self._epoch * per_epoch))
        if view.state in _TRAINING_STATES:
            title = f"Training, epoch {view.epoch + 1} of {view.epochs}"
            done = trained - view.epoch * per_epoch
            self._switch(title, per_epoch, "rows", epoch=view.epoch)
        elif view.state in {"validating", "scoring"}:
            self._switch("Validation" if view.state == "validating" else "Scoring", None, "tasks")
            done = view.tasks_done
        else:
            return
        self._advance(done)
        if self._task is not None:
            self._task.note(_note(view))

    def _advance(self, done: int) -> None:
        if self._task is not None:
            # A rollback takes records back; the bar waits until they are trained again.
            self._task.advance(max(0, done - self._done))
            self._done = max(done, self._done)

    def _switch(
        self, title: str, total: int | None, unit: str, *, epoch: int | None = None
    ) -> None:
        if title == self._title:
            return
        self._end_task(None, None, None)
        self._title, self._done, self._epoch = title, 0, epoch
        self._task = self._progress.task(title, total=total, unit=unit)
        self._task.__enter__()

    def _end_task(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.__exit__(kind, error, trace)
            self._task = None


class NewsCollector:
    """What a launcher publishes of a job, each line once.

    Args:
        after: Unix time in seconds; lines of the event log until then are known.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._checkpoint: int | None = None
        """The newest one, once a view was seen; 0: none."""
        self._waiting: set[tuple[str, str]] = set()
        """Roles of which members wait, and what for."""

    def collect(self, view: JobView, now: float) -> JobNews:
        """The news of a view.

        Args:
            now: Unix time, seconds.
        """
        records = view.records
        counted = (records.trained + records.dropped) / max(1, records.total)
        workers = [one for one in view.members if one.role == "worker" and one.state == "running"]
        taken = None if view.checkpoint is None else now - view.checkpoint.age_seconds
        lines = [
            NewsLine(event.time, event.topic, event.sentence)
            for event in view.events
            if event.time > self._after
        ]
        self._after = max([self._after, *(event.time for event in view.events)])
        lines += self._lines_of_checkpoint(view, taken)
        if view.answering:
            lines += self._lines_of_waiting(view, now)
        return JobNews(
            phase="trained" if view.state == "finished" else view.state,
            fraction=1.0 if view.state == "finished" else counted,
            num_workers=len(workers),
            samples_per_second=view.samples_per_second,
            auc=view.auc,
            checkpoint_at=taken,
            lines=tuple(lines),
        )

    def _lines_of_checkpoint(self, view: JobView, taken: float | None) -> list[NewsLine]:
        found, known = view.checkpoint, self._checkpoint
        self._checkpoint = 0 if found is None else found.number
        if found is None or taken is None or known is None or known == found.number:
            return []
        return [NewsLine(taken, "cut", f"Checkpoint {found.number} holds {found.step:,} steps")]

    def _lines_of_waiting(self, view: JobView, now: float) -> list[NewsLine]:
        """A line for the first member that waits, of each role and each reason."""
        first: dict[tuple[str, str], MemberStatus] = {}
        for member in view.members:
            if member.waits_for and member.waits_for not in _SOON_OVER:
                # What comes after the colon changes while it waits.
                first.setdefault((member.role, member.waits_for.partition(":")[0]), member)
        new = [member for key, member in first.items() if key not in self._waiting]
        self._waiting = {*first}
        return [
            NewsLine(now, "waiting", f"{member.name} does not run yet: {member.waits_for}")
            for member in new
        ]


def describe_member(member: MemberStatus) -> str:
    """One member in a line: state, speed, memory, restarts."""
    stats = member.stats
    parts = [member.name.ljust(10), member.state.ljust(9)]
    if stats is not None and stats.samples_per_second:
        parts.append(f"{stats.samples_per_second:,.0f} rows/s")
    if stats is not None and stats.rows_held:
        parts.append(f"{stats.rows_held:,} rows held")
    if stats is not None and stats.rss_bytes:
        parts.append(f"{stats.rss_bytes / _MEBIBYTE:,.0f} MiB")
    if member.restarts:
        parts.append(f"{member.restarts} restart{'s' if member.restarts > 1 else ''}")
    if member.waits_for:
        parts.append(member.waits_for)
    elif member.last_end and member.state != "running":
        parts.append(member.last_end.why)
    return "  ".join(parts)


def _note(view: JobView) -> str:
    notes = []
    # Beside a bar of validation they would read as its results, which they are not.
    is_training = view.state in _TRAINING_STATES
    if is_training and view.train_logloss is not None:
        notes.append(f"logloss {view.train_logloss:.4f}")
    if is_training and view.auc is not None:
        notes.append(f"validation AUC {view.auc:.4f}")
    workers = [member for member in view.members if member.role == "worker"]
    running = sum(member.state == "running" for member in workers)
    notes.append(f"{running} worker{'s' if running != 1 else ''}")
    return " · ".join(notes)
