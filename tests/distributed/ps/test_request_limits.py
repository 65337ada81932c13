"""What a request may say; nothing that it must not say changes anything."""

from dataclasses import replace

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.messages import (
    BitmapScope,
    PartitionFiles,
    SnapshotRequest,
    TaskBitmap,
)
from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.embeddings.log_chain import CutFile
from tests.distributed.ps_requests import Caller, batch, counting, key, nothing_trained

KEYS = (key(0, 1), key(0, 2), key(2, 700))
NUM_ROWS = 32 * 64 * 10
HUGE = 1 << 62


@pytest.fixture
def caller(make_spec, make_core, make_optimizer):
    spec = make_spec(splits=(EncodedSplit("train", "rows", NUM_ROWS),), epochs=3, shuffle=False)
    found = Caller(make_core(counting(spec, make_optimizer)))
    found.init()
    found.pull(KEYS)
    return found


def refused(call, code="mismatch"):
    with pytest.raises(Refusal) as caught:
        call()
    assert caught.value.code == code
    return caught.value.message


def is_untouched(caller):
    """Everybody else is served as before."""
    assert caller.push(KEYS, batch(0)).status is Status.DONE
    values, dense = caller.values(KEYS)
    assert (values, set(dense)) == ([1.0] * 3, {1.0})


@pytest.mark.parametrize(
    "place",
    [{"epoch": HUGE}, {"epoch": 3}, {"epoch": 2}, {"task": HUGE}, {"task": 10}, {"attempt": HUGE}],
)
def test_a_batch_that_the_job_does_not_have(caller, place):
    caller.pull(KEYS, batch=batch(0))
    wrong = batch(0, **place)
    refused(lambda: caller.pull(KEYS, batch=wrong))
    refused(lambda: caller.push(KEYS, wrong, step=1))
    is_untouched(caller)


def test_epochs_follow_each_other(caller):
    for epoch in range(3):
        assert caller.pull(KEYS, batch=batch(0, epoch=epoch)).status is Status.DONE


def test_epoch_of_any_number_may_be_the_present_one_after_a_restore(caller):
    caller.pull(KEYS, batch=batch(0))
    caller.core.checkpoints.restore(nothing_trained(1))
    caller.init(generation=1)
    reply = caller.pull(KEYS, batch=batch(0, epoch=2), generation=1)
    assert reply.status is Status.DONE


@pytest.mark.parametrize(
    "said",
    [
        {"step": 3 * 10 * 64 + 1},
        {"step": HUGE},
        {"learning_rate_factor": 1e308},
        {"learning_rate_factor": 1.5},
        {"num_examples": 33},
        {"version": 1},
        {"num_occurrences": np.array([1, 0, 1], np.int32)},
        {"num_occurrences": np.array([1, -5, 1], np.int32)},
        {"num_occurrences": np.array([1, 2**30, 1], np.int32)},
    ],
    ids=str,
)
def test_a_number_of_a_push_that_cannot_be(caller, said):
    assert "batch 0 of training task 0 of epoch 0" in refused(
        lambda: caller.push(KEYS, batch(0), **said)
    )
    is_untouched(caller)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_not_finite_are_told_by_batch_and_table(caller, value):
    sums = np.full((3, caller.width), -1.0, np.float32)
    sums[2, 3] = value
    said = refused(lambda: caller.push(KEYS, batch(0), sums=sums), "not_finite")
    name = caller.spec.tables[2].name
    assert f"batch 0 of training task 0 of epoch 0 has gradients of table '{name}'" in said
    dense = np.full(caller.last - caller.first, -1.0, np.float32)
    dense[-1] = value
    said = refused(lambda: caller.push(KEYS, batch(0), dense=dense), "not_finite")
    assert "the dense parameters" in said
    is_untouched(caller)


@pytest.mark.parametrize("table", [-1, 3, 1 << 18])
def test_gradients_of_a_table_that_is_not_there_need_not_be_finite_to_be_refused(caller, table):
    keys, sums = np.array([table << 44]), np.full((1, caller.width), np.nan, np.float32)
    said = refused(lambda: caller.push(keys, batch(0), sums=sums), "not_finite")
    assert f"gradients of table {table} that" in said


def test_fresh_keys_of_another_server_are_refused_before_anything_is_applied(make_spec, make_core):
    caller = Caller(make_core(make_spec(num_parameter_servers=2)))
    caller.init()
    others = Caller(make_core(make_spec(num_parameter_servers=2), 1))
    foreign = next(k for k in KEYS if not others_refuse(others, k))
    refused(lambda: caller.push([], batch(0), fresh_keys=np.array([foreign])))
    assert caller.core.serving.version == 0


def others_refuse(others, one):
    others.init()
    try:
        others.pull([one])
    except Refusal:
        return True
    return False


@pytest.mark.parametrize(
    "request_",
    [SnapshotRequest(0, cut, parent, full=True) for cut, parent in [(0, 0), (-1, 0)]]
    + [SnapshotRequest(0, 10**30, 0, full=True), SnapshotRequest(0, 2, 2, full=True)],
)
def test_a_cut_that_cannot_be(caller, request_):
    refused(lambda: caller.core.checkpoints.snapshot(request_))
    is_untouched(caller)


def file(name):
    return CutFile(name, 1, 1, 1, 0, "base", 0)


def marked(mark):
    return {"bitmaps": ((mark,),)}


@pytest.mark.parametrize(
    "said",
    [
        {"generation": HUGE},
        {"cut": -1},
        {"cut": 10**30},
        {"partitions": (PartitionFiles(10**6, (), 0),)},
        {"partitions": (PartitionFiles(0, (), 7),)},
        {"partitions": (PartitionFiles(0, (), -1),)},
        *({"partitions": (PartitionFiles(0, (file(name),), 0),)} for name in ("", "..", "a/../b")),
        *({"dense": (file(name),)} for name in ("/etc/passwd", "..\\x", "a\0b")),
        marked(TaskBitmap(0, 0, -1)),
        marked(TaskBitmap(0, 0, 1 << 64)),
        marked(TaskBitmap(-1, 0, 1)),
        marked(TaskBitmap(0, 0, 1, BitmapScope((10**6,), ()))),
        marked(TaskBitmap(0, 0, 1, BitmapScope((), ((5, 2),)))),
        marked(TaskBitmap(0, 0, 1, BitmapScope((), ((0, 10**9),)))),
    ],
    ids=str,
)
def test_a_restore_that_cannot_be_gives_nothing_up(caller, said):
    refused(lambda: caller.core.checkpoints.restore(replace(nothing_trained(1), **said)))
    assert caller.core.serving.generation == 0
    is_untouched(caller)


def test_initial_dense_values_that_are_not_finite(caller):
    refused(lambda: caller.init(np.nan), "not_finite")
    is_untouched(caller)


@pytest.mark.parametrize(("generation", "status"), [(0, "ROLLED_BACK"), (2, "NOT_READY")])
def test_a_push_of_another_generation_is_told_so_whatever_version_it_knows(
    caller, generation, status
):
    caller.core.checkpoints.restore(nothing_trained(1))
    caller.init(generation=1)
    reply = caller.push(KEYS, batch(0), generation=generation, version=500)
    assert reply.status is Status[status]
