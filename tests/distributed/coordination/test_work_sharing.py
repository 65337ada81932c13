import pytest

from ctr_pipeline.distributed.coordination.messages import HeldLease, TaskKey
from ctr_pipeline.distributed.coordination.tasks import Task
from ctr_pipeline.distributed.coordination.work_sharing import (
    Queue,
    holds_enough,
    lost_leases,
    task_to_steal,
)


def make_queue(*numbers, speed=None, rows=64, started=()):
    tasks = []
    for number in numbers:
        task = Task(rows, 1, attempt=100 + number)
        task.done_mask = 1 if number in started else 0
        tasks.append((key_of(number), task))
    return Queue(tasks, speed)


def key_of(number):
    return TaskKey("train", 0, number, "train")


def test_a_worker_always_gets_one_task():
    assert not holds_enough(
        make_queue(), work_ahead_seconds=5.0, num_todo=1, num_workers=lambda: 100
    )


@pytest.mark.parametrize(("num_held", "enough"), [(1, False), (2, False), (3, True)])
def test_a_worker_holds_work_for_the_work_ahead_seconds(num_held, enough):
    # 32 records/s for 5 s are 160 records: more than two tasks of 64.
    queue = make_queue(*range(num_held), speed=32.0)
    assert holds_enough(queue, work_ahead_seconds=5.0, num_todo=50, num_workers=lambda: 1) is enough


def test_worker_of_unknown_speed_has_enough_with_one_task():
    assert holds_enough(make_queue(0), work_ahead_seconds=5.0, num_todo=50, num_workers=lambda: 1)


@pytest.mark.parametrize(("num_todo", "enough"), [(6, True), (7, False)])
def test_near_the_end_nobody_holds_more_than_a_share(num_todo, enough):
    # Of 8 tasks each of 4 workers gets 2, of 9 some get 3.
    queue = make_queue(0, 1, speed=1e9)
    assert (
        holds_enough(queue, work_ahead_seconds=5.0, num_todo=num_todo, num_workers=lambda: 4)
        is enough
    )


def test_leases_that_the_worker_does_not_name_are_lost():
    queue = make_queue(0, 1, 2)
    known = [HeldLease(key_of(1), 101), HeldLease(key_of(2), 7)]
    assert lost_leases(queue, known) == [key_of(0), key_of(2)]


def test_the_last_unstarted_task_of_the_busiest_is_stolen():
    slow, fast = make_queue(0, 1, speed=2.0), make_queue(2, 3, 4, speed=100.0)
    assert task_to_steal(50.0, [fast, slow]) == key_of(1)


def test_a_worker_without_a_measure_counts_as_the_busiest():
    assert task_to_steal(None, [make_queue(0, 1, speed=2.0), make_queue(2, 3)]) == key_of(3)


def test_the_only_task_and_a_started_one_stay():
    others = [make_queue(0, speed=1.0), make_queue(1, 2, speed=1.0, started=(2,))]
    assert task_to_steal(50.0, others) is None


def test_task_is_not_stolen_if_its_worker_would_end_it_sooner():
    # 128 records at 64/s take 2 s; the idle one would need 64 s for its 64.
    assert task_to_steal(1.0, [make_queue(0, 1, speed=64.0)]) is None


def test_unstarted_tasks_begin_behind_the_first():
    assert make_queue(0, 1, 2, started=(1,)).unstarted() == [key_of(2)]
