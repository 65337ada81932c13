import json

import pytest

from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.messages import BatchLoss, TaskKey, TaskReport
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan


def plan_epoch(epoch):
    return EpochPlan(epoch, num_tasks=2, rows_per_task=4, batch_size=2, other_rows=())


def train(ledger, task, mask):
    """One lease, one report; a done task is settled."""
    board = ledger.board
    key = TaskKey("train", ledger.epoch, task, "train")
    while board.lease_next("worker", 1, 0.0) != key:
        pass
    losses = tuple(BatchLoss(batch, 0.5) for batch in range(2) if mask >> batch & 1)
    board.count(key, TaskReport(key, 1, mask, 0, losses, False, "", 1.0, None))
    if board.task(key).is_done:
        board.settle(key)
    for other, _ in board.held():
        board.release(other)


def make_ledger():
    """One epoch done, the second half done."""
    ledger = Ledger()
    ledger.open_epoch(plan_epoch(0))
    train(ledger, 0, 3)
    train(ledger, 1, 3)
    ledger.close_epoch()
    ledger.history.append({"epoch": 0, "valid_logloss": 0.4})
    ledger.best_epoch, ledger.epoch_cuts = 0, {0: 7}
    ledger.open_epoch(plan_epoch(1))
    train(ledger, 0, 3)
    train(ledger, 1, 1)
    return ledger


def describe(ledger):
    board = ledger.board
    return {
        "closed": ledger.closed,
        "history": ledger.history,
        "best": (ledger.best_epoch, ledger.best_cut),
        "masks": None
        if board is None
        else [
            board.task(TaskKey("train", ledger.epoch, task, "train")).done_mask for task in range(2)
        ],
        "loss": None if board is None else board.loss_sum,
        "trained": ledger.trained,
        "batches": ledger.batches,
        "dropped": ledger.dropped_tasks(),
    }


def test_a_frozen_ledger_thaws_to_the_same():
    ledger = make_ledger()
    frozen = json.loads(json.dumps(ledger.freeze()))
    again = Ledger.thaw(frozen, plan_epoch)
    assert describe(again) == describe(ledger)
    assert again.trained == 14
    assert again.board.num_over == 1


def test_ledger_freeze_is_not_changed_by_what_comes_after_it():
    ledger = make_ledger()
    frozen = ledger.freeze()
    text = json.dumps(frozen)
    train(ledger, 1, 3)
    ledger.close_epoch()
    ledger.history.append({"epoch": 1})
    ledger.epoch_cuts[1] = 9
    assert json.dumps(frozen) == text


def test_leases_and_failures_are_no_part_of_a_model():
    ledger = make_ledger()
    key = ledger.board.lease_next("worker", 99, 0.0)
    ledger.board.task(key).failures = 2
    again = Ledger.thaw(ledger.freeze(), plan_epoch)
    assert (again.board.task(key).holder, again.board.task(key).failures) == ("", 0)
    assert again.board.task(key).attempt == 0


def test_the_beginning_is_an_empty_ledger():
    ledger = Ledger.thaw({}, plan_epoch)
    assert describe(ledger) == describe(Ledger())
    assert ledger.epoch == 0


def test_dropped_records_are_counted_and_named_and_come_back():
    ledger = make_ledger()
    key = TaskKey("train", 1, 1, "train")
    ledger.board.task(key).dropped = "ValueError: bad row"
    ledger.board.settle(key)
    expected = ("task 1 of epoch 2 (4 records): ValueError: bad row",)
    assert ledger.dropped_tasks() == expected
    again = Ledger.thaw(ledger.freeze(), plan_epoch)
    assert again.dropped_tasks() == expected
    again.close_epoch()
    assert (again.closed[1].trained, again.closed[1].dropped) == (6, 2)
    assert again.dropped_tasks() == expected


def test_an_epoch_that_is_not_over_cannot_be_closed():
    with pytest.raises(RuntimeError, match="epoch 1 is not over"):
        make_ledger().close_epoch()


def test_the_cut_of_the_best_epoch_is_known_until_it_is_lost():
    ledger = make_ledger()
    assert ledger.best_cut == 7
    ledger.epoch_cuts.clear()
    assert ledger.best_cut == 0
