"""Views of a job as its master gives them, and a progress that remembers what it is told."""

from dataclasses import replace

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.master.status import NO_ERRORS, JobView, RecordCounts
from ctr_pipeline.progress import SilentProgress, SilentTask


class Told(SilentProgress):
    """Remembers everything."""

    def __init__(self):
        self.said, self.tasks, self.lines = [], [], ()

    def log(self, text):
        self.said.append(text)

    def board(self, lines):
        self.lines = tuple(lines)

    def task(self, name, *, total, unit="rows"):
        task = ToldTask(name, total)
        self.tasks.append(task)
        return task


class ToldTask(SilentTask):
    def __init__(self, name, total):
        self.name, self.total, self.done, self.ended, self.notes = name, total, 0, False, []

    def advance(self, amount):
        assert amount >= 0
        self.done += amount

    def note(self, text):
        self.notes.append(text)

    def __exit__(self, *_):
        self.ended = True


def member(role, index=0, state="running", restarts=0, **stats):
    return MemberStatus(
        role=role,
        index=index,
        pid=1,
        host="here",
        address="",
        metrics_address="",
        state=state,
        restarts=restarts,
        last_seen_seconds=0.1,
        leases=0,
        last_end=None,
        stats=MemberStats(**stats),
    )


def view(state="training", *, epoch=0, trained=0, history=(), events=(), members=(), **changes):
    shown = JobView(
        job="job",
        state=state,
        reason="",
        traceback="",
        answering=True,
        generation=1,
        epoch=epoch,
        epochs=2,
        step=0,
        tasks_done=0,
        tasks_total=4,
        records=RecordCounts(total=2000, trained=trained, repeated=0, dropped=0),
        samples_per_second=0.0,
        train_logloss=0.5 if trained else None,
        checkpoint=None,
        auc=None,
        history=history,
        best_epoch=None,
        workers_wanted=1,
        members=members,
        events=events,
        dropped_tasks=(),
        refused_reports=0,
        master_errors=NO_ERRORS,
        final_metrics=(),
    )
    return replace(shown, **changes)
