import pytest

from ctr_pipeline.distributed.coordination.claims import (
    Claims,
    bitmaps_beyond,
    tasks_over,
    unproven,
)
from ctr_pipeline.distributed.coordination.messages import BitmapScope, TaskBitmap


def bitmaps(**masks):
    return tuple(TaskBitmap(2, int(name[1:]), mask) for name, mask in masks.items())


@pytest.mark.parametrize(
    ("servers", "missing"),
    [
        ([bitmaps(t3=0b1111), bitmaps(t3=0b1111)], ()),
        # More than was reported: the report is on its way.
        ([bitmaps(t3=0b11111, t4=1), bitmaps(t3=0b1111)], ()),
        ([bitmaps(t3=0b1111), bitmaps(t3=0b1011)], ((3, 0b0100),)),
        ([bitmaps(t3=0b1111), ()], ((3, 0b1111),)),
        ([(), ()], ((3, 0b1111),)),
    ],
)
def test_a_batch_is_proven_by_every_server(servers, missing):
    assert unproven([(3, 0b1111)], servers, 2) == missing


def test_marks_of_another_epoch_prove_nothing():
    assert unproven([(3, 1)], [(TaskBitmap(1, 3, 1),)], 2) == ((3, 1),)


def test_all_parts_of_a_server_must_have_a_batch():
    parts = (
        TaskBitmap(2, 3, 0b11, BitmapScope((0, 1), ())),
        TaskBitmap(2, 3, 0b01, BitmapScope((2,), ((0, 5),))),
    )
    assert unproven([(3, 0b11)], [parts], 2) == ((3, 0b10),)


def test_claims_of_a_cut_that_fails_are_left_to_the_next():
    claims = Claims()
    claims.add(0, 0b01, "a")
    claims.add(0, 0b10, "b")
    assert claims.begin_cut() == ((0, 0b11),)
    claims.add(1, 0b1, "a")
    assert claims.begin_cut() == ((0, 0b11), (1, 0b1))
    claims.add(2, 0b1, "a")
    claims.end_cut()
    assert claims.begin_cut() == ((2, 0b1),)
    claims.forget()
    assert claims.begin_cut() == ()


def test_worker_that_reported_what_is_missing_is_named_and_nobody_else():
    claims = Claims()
    claims.add(0, 0b01, "a")
    claims.add(0, 0b10, "b")
    claims.add(1, 0b11, "a")
    claims.begin_cut()
    assert claims.claimants([(0, 0b10)]) == {"b"}
    assert claims.claimants([(0, 0b10), (1, 0b01)]) == {"a", "b"}
    assert claims.claimants([(7, 1)]) == set()


def test_marks_of_tasks_that_are_over_are_left_out():
    frozen = {"closed": ["of epoch 0", "of epoch 1"], "over": [[0, 3], [5, 6]]}
    assert tasks_over(frozen) == (2, ((0, 3), (5, 6)))
    held = (TaskBitmap(1, 4, 1), *bitmaps(t0=1, t2=1, t3=1, t4=1, t5=1, t6=1), TaskBitmap(3, 0, 1))
    left = bitmaps_beyond(held, *tasks_over(frozen))
    assert left == (*bitmaps(t3=1, t4=1, t6=1), TaskBitmap(3, 0, 1))
