from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.messages import HeldLease, LeasedTask, TaskKey
from ctr_pipeline.distributed.worker.leases import LeaseBook


def lease(task=0, attempt=1, *, kind="train", done_mask=0):
    key = TaskKey(kind, 0, task, "train" if kind == "train" else "valid")
    return LeasedTask(key, attempt, done_mask, 0, 0, "")


def mark(book, task, batch, *, loss=1.0, repeated=False, finished=False, seconds=1.0):
    book.mark_batch(
        task, batch, loss_sum=loss, repeated=repeated, finished=finished, seconds=seconds
    )


def test_tasks_are_taken_in_their_order_and_once():
    book = LeaseBook()
    book.add([lease(3), lease(1)])
    book.add([lease(3)])
    assert [book.take().key.task for _ in range(2)] == [3, 1]
    assert book.take() is None
    assert book.num_open == 2


def test_report_is_cumulative_and_counts_what_the_lease_gave_as_done():
    book = LeaseBook()
    book.add([lease(done_mask=0b1)])
    task = book.take()
    mark(book, task, 1, loss=3.0)
    book.acknowledge(book.compose())
    assert not book.has_news
    mark(book, task, 3, loss=4.0, repeated=True)
    (report,) = book.compose().reports
    assert report.done_mask == 0b1011
    assert report.repeated_mask == 0b1000
    assert [(loss.batch, loss.loss_sum) for loss in report.losses] == [(1, 3.0), (3, 4.0)]
    assert report.seconds == 2.0
    assert not report.finished


def test_progress_is_reported_again_when_it_changes_during_a_report():
    book = LeaseBook()
    book.add([lease()])
    task = book.take()
    mark(book, task, 0)
    under_way = book.compose()
    mark(book, task, 1, finished=True)
    book.acknowledge(under_way)
    assert book.has_news
    assert book.held() == (HeldLease(task.key, 1),)
    (report,) = book.compose().reports
    assert report.finished
    assert report.done_mask == 0b11
    book.acknowledge(book.compose())
    assert book.held() == ()
    assert not book.has_news


def test_a_report_that_was_lost_changes_nothing():
    book = LeaseBook()
    book.add([lease()])
    mark(book, book.take(), 0, finished=True)
    lost = book.compose()
    assert book.compose() == lost
    assert book.has_endings


def test_a_lease_that_is_gone_takes_no_progress():
    book = LeaseBook()
    book.add([lease(), lease(1)])
    first, second = book.take(), book.take()
    book.revoke([HeldLease(first.key, 1)])
    mark(book, first, 0)
    assert not book.holds(first)
    assert book.compose().reports == ()
    book.clear()
    mark(book, second, 0)
    assert book.compose().reports == ()


def test_a_lease_of_another_generation_with_the_same_numbers_is_another():
    book = LeaseBook()
    book.add([lease()])
    old = book.take()
    book.clear()
    book.add([lease()])
    mark(book, old, 5)
    assert not book.holds(old)
    new = book.take()
    assert new == old
    assert book.holds(new)
    assert book.compose().reports == ()


def test_failure_is_told_once_and_ends_the_task():
    book = LeaseBook()
    book.add([lease()])
    task = book.take()
    book.fail(task, "Traceback: it broke")
    book.fail(task, "again")
    mark(book, task, 0)
    (report,) = book.compose().reports
    assert report.failure == "Traceback: it broke"
    assert report.done_mask == 0
    assert book.num_open == 0
    book.acknowledge(book.compose())
    assert book.held() == ()


def test_time_of_a_task_follows_the_newest():
    book = LeaseBook()
    book.add([lease(task) for task in range(3)])
    assert book.task_seconds == 0.0
    for seconds in (4.0, 2.0, 2.0):
        mark(book, book.take(), 0, finished=True, seconds=seconds)
    assert book.task_seconds == 2.5


steps = st.lists(
    st.sampled_from(["batch", "compose", "deliver", "lose", "lease again"]), max_size=60
)


@given(steps)
def test_the_master_always_comes_to_know_exactly_what_was_done(actions):
    """Whatever is lost, repeated or late: at the end the sum of reports is what was trained."""
    book, under_way, known, done = LeaseBook(), [], {}, {}
    task_number = 0
    book.add([lease(0)])
    task = book.take()

    def deliver(reports):
        for report in reports.reports:
            known[report.key.task] = known.get(report.key.task, 0) | report.done_mask
        book.acknowledge(reports)

    for action in actions:
        if action == "batch" and book.holds(task):
            batch = bin(done.get(task_number, 0)).count("1")
            mark(book, task, batch, finished=batch == 3)
            done[task_number] = done.get(task_number, 0) | 1 << batch
        elif action == "compose":
            under_way.append(book.compose())
        elif action == "deliver" and under_way:
            deliver(under_way.pop(0))
        elif action == "lose" and under_way:
            under_way.pop()
        elif action == "lease again" and not book.holds(task):
            task_number += 1
            book.add([lease(task_number)])
            task = book.take()
    deliver(book.compose())
    assert known == done
    assert book.num_open == int(book.holds(task))


def test_short_score_tasks_do_not_make_a_worker_hoard_training_tasks():
    book = LeaseBook()
    book.add([lease(0), lease(1, kind="score")])
    mark(book, book.take(), 0, finished=True, seconds=4.0)
    mark(book, book.take(), 0, finished=True, seconds=0.01)
    assert book.task_seconds == 4.0
