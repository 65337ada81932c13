import json
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.order import BatchesLeft, EpochOrder
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    ScoreSummary,
    TaskKey,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit
from ctr_pipeline.distributed.coordination.tasks import Task, leased_task, merge_scores, name_of
from ctr_pipeline.distributed.coordination.training_place import frozen_at, place_of

PLAN = EpochPlan(epoch=2, num_tasks=3, rows_per_task=8, batch_size=2, other_rows=((2, 5),))
SCORES = ScoreSummary(((1, 2),), ((0, 3),), 0.5, 0.25)


def key_of(task):
    return TaskKey("train", 2, task, "train")


def make_report(task=0, done=0, repeated=0, losses=None, **changes):
    if losses is None:
        losses = {batch: batch + 1.0 for batch in range(64) if done >> batch & 1}
    values = {
        "key": key_of(task),
        "attempt": 1,
        "done_mask": done,
        "repeated_mask": repeated,
        "losses": tuple(BatchLoss(batch, loss) for batch, loss in losses.items()),
        "finished": False,
        "failure": "",
        "seconds": 1.0,
        "scores": None,
    }
    return TaskReport(**{**values, **changes})


@pytest.mark.parametrize(("mask", "rows"), [(0, 0), (0b001, 2), (0b100, 1), (0b111, 5)])
def test_the_last_batch_may_be_short(mask, rows):
    assert Task(5, 2).rows_in(mask) == rows


def test_a_task_of_64_batches_fits_its_mask():
    task = Task(64 * 3, 3)
    assert task.full_mask == 2**64 - 1
    assert task.count(make_report(done=2**64 - 1)) == 2**64 - 1
    assert task.is_done


@given(
    masks=st.lists(st.integers(0, 15), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_reports_may_come_in_any_order_and_any_number_of_times(masks, order):
    masks = masks * 2
    order.shuffle(masks)
    task, union = Task(8, 2), 0
    for mask in masks:
        new = task.count(make_report(done=mask))
        assert new == mask & ~union
        union |= mask
    assert task.done_mask == union
    assert task.loss_so_far() == sum(batch + 1.0 for batch in range(4) if union >> batch & 1)


def test_a_batch_keeps_the_loss_that_it_was_counted_with():
    task = Task(8, 2)
    task.count(make_report(done=1, losses={0: 5.0}))
    task.count(make_report(done=3, losses={0: 7.0, 1: 1.0}))
    assert task.loss_so_far() == 6.0


def test_a_batch_without_its_loss_is_not_counted():
    task = Task(8, 2)
    assert task.count(make_report(done=3, losses={1: 1.0})) == 2


def test_batches_that_a_task_does_not_have_are_not_counted():
    task = Task(5, 2)
    assert task.count(make_report(done=0b11000)) == 0


def test_a_score_task_is_done_with_its_scores_and_not_without():
    task = Task(5, 5)
    key = TaskKey("score", 0, 0, "valid")
    assert task.count(make_report(key=key, finished=True, scores=None)) == 0
    assert task.count(make_report(key=key, finished=False, scores=SCORES)) == 0
    assert task.count(make_report(key=key, finished=True, scores=SCORES)) == 1
    other = ScoreSummary((), (), 9.0, 9.0)
    assert task.count(make_report(key=key, finished=True, scores=other)) == 0
    assert task.scores == SCORES


def test_tasks_are_leased_in_their_order_and_returned_ones_first():
    board = TaskBoard.of_epoch(PLAN)
    assert board.lease_next("a", 1, 0.0) == key_of(0)
    assert board.lease_next("a", 2, 0.0) == key_of(1)
    board.release(key_of(0))
    assert board.lease_next("b", 3, 0.0) == key_of(0)
    assert board.lease_next("b", 4, 0.0) == key_of(2)
    assert board.num_todo == 0
    assert [key for key, _ in board.held_by("b")] == [key_of(0), key_of(2)]
    assert [key for key, _ in board.held_by("a")] == [key_of(1)]


def test_a_returned_task_keeps_what_is_done():
    board = TaskBoard.of_epoch(PLAN)
    key = board.lease_next("a", 1, 0.0)
    board.count(key, make_report(done=0b11))
    board.release(key)
    assert board.lease_next("b", 2, 0.0) == key
    assert leased_task(key, board.task(key), "").done_mask == 0b11


def test_an_epoch_is_over_when_every_task_is_done_or_dropped():
    board = TaskBoard.of_epoch(PLAN)
    for task, mask in ((0, 15), (1, 1), (2, 7)):
        key = board.lease_next("a", 1 + task, 0.0)
        board.count(key, make_report(task, mask))
        if task == 1:
            board.task(key).dropped = "bad row"
        assert not board.is_over
        board.settle(key)
    assert board.is_over
    assert (board.rows_done, board.rows_dropped, board.batches_done) == (15, 6, 8)


def test_the_last_report_may_come_after_the_task_was_given_up():
    board = TaskBoard.of_epoch(PLAN)
    key = board.lease_next("a", 1, 0.0)
    board.release(key)
    board.count(key, make_report(done=15))
    board.settle(key)
    assert board.num_over == 1
    assert [board.lease_next("b", number, 0.0) for number in (2, 3)] == [key_of(1), key_of(2)]


def test_a_board_comes_back_from_its_records():
    board = TaskBoard.of_epoch(PLAN)
    for task in range(3):
        board.lease_next("a", 1 + task, 0.0)
    tasks = dict(board.touched())
    board.count(key_of(0), make_report(0, 0b101))
    board.count(key_of(2), make_report(2, 0b111))
    board.settle(key_of(2))
    board.release(key_of(1))
    records = {key: json.loads(json.dumps(task.to_record())) for key, task in tasks.items()}
    again = TaskBoard.of_epoch(PLAN)
    again.load(records)
    assert again.held_by("a") == [(key_of(0), again.task(key_of(0)))]
    assert again.task(key_of(0)).done_mask == 0b101
    assert (again.num_over, again.num_todo) == (1, 1)
    assert (again.rows_done, again.batches_done) == (board.rows_done, board.batches_done)
    assert again.loss_sum == board.loss_sum == 1.0 + 3.0 + 1.0 + 2.0 + 3.0


@given(losses=st.permutations([1e16, 1.0, -1e16, 0.1, 1e-8, 3.0, 0.3, 7.0]))
def test_the_loss_sum_does_not_depend_on_the_order(losses):
    task = Task(16, 2)
    fixed = dict(enumerate([1e16, 1.0, -1e16, 0.1, 1e-8, 3.0, 0.3, 7.0]))
    for loss in losses:
        batch = next(number for number, value in fixed.items() if value == loss)
        task.count(make_report(done=1 << batch, losses={batch: loss}))
    assert task.loss_so_far() == math.fsum(fixed.values())


def test_scores_merge_to_the_same_in_any_order():
    parts = [
        ScoreSummary(((1, 2), (5, 1)), ((0, 4),), 0.1, 0.2),
        ScoreSummary(((5, 3),), (), 0.2, 0.4),
        ScoreSummary((), ((2, 1), (7, 9)), 0.3, 0.6),
    ]
    merged = merge_scores(parts)
    assert merged.positives == ((1, 2), (5, 4))
    assert merged.negatives == ((0, 4), (2, 1), (7, 9))
    assert merged == merge_scores(parts[::-1])


def test_a_score_lease_names_its_rows_and_its_file():
    board = TaskBoard.of_splits((ScoredSplit("test", 10, 4),), epoch=1)
    key = board.lease_next("a", 7, 0.0)
    lease = leased_task(key, board.task(key), "scores")
    assert (lease.first_row, lease.num_rows, lease.scores_file) == (0, 4, "scores/test-0.f32")
    assert leased_task(key, board.task(key), "").scores_file == ""


def test_tasks_have_names_for_people():
    assert name_of(key_of(1), Task(16384, 256)) == "task 1 of epoch 3 (16,384 records)"
    key = TaskKey("score", 0, 2, "valid")
    assert name_of(key, Task(500, 500, 1000)) == "rows 1,000 to 1,499 of valid after epoch 1"


def test_a_task_that_is_taken_over_is_held_by_its_new_worker_alone():
    board = TaskBoard.of_epoch(PLAN)
    board.lease_next("a", 1, 0.0)
    board.lease_next("a", 2, 0.0)
    board.lease_again(key_of(1), "b", 3, 0.0)
    assert (board.num_held_by("a"), board.num_held_by("b"), board.holders) == (1, 1, ("a", "b"))
    board.release(key_of(1))
    assert (board.num_held_by("b"), board.holders, board.num_todo) == (0, ("a",), 2)


MILLIONS = EpochPlan(0, num_tasks=2_000_000, rows_per_task=64, batch_size=1, other_rows=((7, 3),))


def test_an_epoch_of_millions_of_tasks_takes_the_memory_of_those_at_work():
    tracemalloc.start()
    try:
        frozen = TaskBoard.of_epoch(MILLIONS).freeze()
        board = TaskBoard.thaw(MILLIONS, {**frozen, "done": [[0, 1_999_000]]})
        assert board.rows_done == 1_999_000 * 64 - 61
        assert board.batches_done == board.rows_done
        for attempt in range(990):
            key = board.lease_next("a", attempt, 0.0)
            losses = dict.fromkeys(range(64), 0.5)
            report = make_report(done=2**64 - 1, losses=losses, key=key)
            if attempt % 100:
                board.count(key, report)
                board.settle(key)
        assert (board.num_over, board.num_todo) == (1_999_980, 10)
        assert board.num_held_by("a") == 10
        assert not board.is_over
        text = json.dumps(board.freeze())
        again = TaskBoard.thaw(MILLIONS, json.loads(text))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (again.rows_done, again.loss_sum) == (board.rows_done, board.loss_sum)
    assert again.num_todo == 20
    assert again.lease_next("b", 1, 0.0).task == 1_999_000
    # Ten holes and the end.
    assert len(text) < 1000
    assert peak < 1 << 20


def test_rollback_counts_rows_it_takes_back_whatever_of_a_task_is_done():
    ahead, behind = TaskBoard.of_epoch(PLAN), TaskBoard.of_epoch(PLAN)
    for board, masks in ((ahead, (15, 15, 1)), (behind, (15, 2, 4))):
        for task, mask in enumerate(masks):
            key = board.lease_next("a", 1, 0.0)
            board.count(key, make_report(task, mask))
            if board.task(key).is_done:
                board.settle(key)
    assert ahead.rows_beyond(None) == 18
    # Task 1 but for a batch, and the first batch of task 2.
    assert ahead.rows_beyond(behind) == 6 + 2
    assert behind.rows_beyond(ahead) == 1
    assert ahead.rows_beyond(ahead) == 0


def test_failures_of_a_task_outlive_its_end_and_leave_the_order_alone():
    board = TaskBoard.of_epoch(PLAN)
    key = board.lease_next("a", 1, 0.0)
    board.task(key).failures = 2
    board.count(key, make_report(done=15))
    board.settle(key)
    assert [(key, task.failures) for key, task in board.touched()] == [(key_of(0), 2)]
    again = TaskBoard.of_epoch(PLAN)
    again.remember_failures(key_of(1), 2)
    assert [again.lease_next("a", number, 0.0) for number in range(3)] == [
        key_of(number) for number in range(3)
    ]
    assert again.task(key_of(1)).failures == 2


@given(data=st.data(), num_rows=st.integers(1, 2000), losses=st.floats(0, 1e6))
def test_epoch_progress_converts_to_training_without_a_job_and_back(data, num_rows, losses):
    order = EpochOrder(num_rows, batch_size=4, seed=1, epoch=2)
    plan = EpochPlan(2, order.num_tasks, order.rows_per_task, 4, order.uneven_tasks)
    tasks = range(order.num_tasks)
    masks = [data.draw(st.integers(0, (1 << order.batches_of(task)) - 1)) for task in tasks]
    dropped = {task for task in tasks if data.draw(st.booleans()) and masks[task]}
    full = [masks[task] == (1 << order.batches_of(task)) - 1 for task in tasks]
    dropped -= {task for task in tasks if full[task]}
    frozen = {
        "done": [[task, task + 1] for task in tasks if full[task]],
        "losses": [losses],
        "tasks": [
            [task, masks[task], [], "no" if task in dropped else ""]
            for task in tasks
            if masks[task] and not full[task]
        ],
    }
    board = TaskBoard.thaw(plan, frozen)
    left = [
        (task, batch)
        for task in tasks
        if task not in dropped
        for batch in range(order.batches_of(task))
        if not masks[task] >> batch & 1
    ]
    if not left:
        return
    task, batch, done = place_of(board.freeze(), plan.num_tasks)
    remaining = BatchesLeft(order, done)
    found = [(one, other) for one in tasks for other in remaining.of_task(one)]
    assert (task, batch) == left[0]
    assert [place for place in found if place >= left[0]] == left
    # Of a dropped task nothing is left: it counts as trained there.
    again = TaskBoard.thaw(plan, frozen_at(task, batch, done, board.loss_sum))
    assert again.rows_done == num_rows - sum(
        plan.make_task(one).rows_in(1 << other) for one, other in left
    )
    assert again.loss_sum == losses
    assert place_of(again.freeze(), plan.num_tasks) == (task, batch, done)
    assert json.loads(json.dumps(again.freeze())) == again.freeze()
