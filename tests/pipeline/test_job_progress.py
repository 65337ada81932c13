from dataclasses import replace

import pytest

from ctr_pipeline.distributed.coordination.news import NewsLine
from ctr_pipeline.distributed.master.status import CheckpointStatus, JobEvent
from ctr_pipeline.pipeline.job.progress_view import JobProgress, NewsCollector
from ctr_pipeline.training.history import EpochRecord
from tests.pipeline.followed_jobs import Told, member, view

RECORD = EpochRecord(0, 10, 0.5, 0.49, 0.71, 1.0, 1.0, 1000, 2.0)


def show(*views):
    told = Told()
    with JobProgress(told) as progress:
        for one in views:
            progress.show(one)
            boards = told.lines
    assert told.lines == ()
    return told, boards


@pytest.mark.parametrize("state", ["validating", "scoring"])
def test_figures_of_training_are_not_shown_as_those_of_scoring(state):
    told, _ = show(view(trained=300, auc=0.7), view(state, trained=300, auc=0.7, tasks_done=1))
    training, scoring = told.tasks
    assert training.notes == ["logloss 0.5000 · validation AUC 0.7000 · 0 workers"]
    assert scoring.notes == ["0 workers"]


def test_epochs_are_bars_with_validation_between_them():
    told, _ = show(
        view("waiting"),
        view(trained=300),
        view("checkpointing", trained=900),
        view("validating", trained=1000, tasks_done=3),
        view(epoch=1, trained=1500, history=(RECORD,)),
        view("finished", epoch=1, trained=2000, history=(RECORD, replace(RECORD, epoch=1))),
    )
    assert [(task.name, task.done, task.total) for task in told.tasks] == [
        ("Training, epoch 1 of 2", 1000, 1000),
        ("Validation", 3, None),
        ("Training, epoch 2 of 2", 1000, 1000),
    ]
    assert all(task.ended for task in told.tasks)
    assert told.said == [
        "Starting parameter servers and workers",
        "Epoch 1: train logloss 0.5000, validation logloss 0.4900, AUC 0.7100",
        "Epoch 2: train logloss 0.5000, validation logloss 0.4900, AUC 0.7100",
    ]


def test_a_rollback_halts_the_bar_until_records_are_trained_again():
    told, _ = show(view(trained=600), view("restoring"), view(trained=200), view(trained=700))
    assert [task.done for task in told.tasks] == [700]


def test_events_are_said_once_and_old_ones_of_a_resumed_job_not_at_all():
    old = JobEvent(1.0, "the job was stopped", "", None)
    new = JobEvent(2.0, "worker 0 was killed", "another one is started", 1.26)
    told, _ = show(
        view(events=(old,), history=(RECORD,)),
        view(events=(old, new), history=(RECORD,)),
        view(events=(old, new), history=(RECORD,)),
    )
    assert told.said == ["Worker 0 was killed: another one is started (1.3 s)"]


def test_a_launcher_is_told_what_is_new():
    old = JobEvent(1.0, "the job was stopped", "", None)
    new = JobEvent(2.0, "worker 0 was killed", "another one is started", 1.26, "member")
    workers = (member("worker"), member("worker", 1, state="pending"))
    found = view(trained=600, events=(old, new), members=workers)
    collector = NewsCollector(after=1.0)
    news = collector.collect(found, 100.0)
    assert news.lines == (
        NewsLine(2.0, "member", "Worker 0 was killed: another one is started (1.3 s)"),
    )
    assert news.num_workers == 1
    assert news.fraction == 600 / found.records.total
    assert collector.collect(found, 101.0).lines == ()
    assert collector.collect(view("finished"), 102.0).phase == "trained"


def test_a_launcher_is_told_of_each_checkpoint_and_of_what_members_wait_for_once():
    quota = "it waits for quota in the queue 'ads'"
    first, second = (
        "no node can take it: 0/2 nodes are available",
        "no node can take it: 0/3 nodes are available",
    )
    collector = NewsCollector(after=0.0)

    def told(number, *waits):
        checkpoint = CheckpointStatus(number=number, step=1000 * number, age_seconds=3.0, best=0)
        members = (
            replace(member("worker", index, state="pending"), waits_for=why)
            for index, why in enumerate(waits)
        )
        found = view(members=tuple(members))
        news = collector.collect(replace(found, checkpoint=checkpoint), 100.0)
        return [(line.time, line.text) for line in news.lines]

    # Whoever led the job before has told of it.
    assert told(4, "it is being started") == []
    assert told(5, quota, quota) == [
        (97.0, "Checkpoint 5 holds 5,000 steps"),
        (100.0, f"worker-0 does not run yet: {quota}"),
    ]
    assert told(5, quota, first) == [(100.0, f"worker-1 does not run yet: {first}")]
    assert told(5, quota, second) == []
    assert told(5, "", second) == []
    assert told(5, quota) == [(100.0, f"worker-0 does not run yet: {quota}")]


def test_every_member_has_a_line():
    _, lines = show(
        view(
            members=(
                member("master"),
                member("ps", rows_held=1234, rss_bytes=200 * 2**20),
                member("worker", 1, samples_per_second=5678.9, restarts=2),
            )
        )
    )
    assert [line.split() for line in lines] == [
        ["master-0", "running"],
        ["ps-0", "running", "1,234", "rows", "held", "200", "MiB"],
        ["worker-1", "running", "5,679", "rows/s", "2", "restarts"],
    ]
