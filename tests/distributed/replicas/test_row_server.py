"""What a server of rows refuses, over real calls."""

import threading
from contextlib import closing

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.coordination.row_steps import Made
from ctr_pipeline.distributed.replicas.messages import (
    ROW_SERVICE,
    EnterWorld,
    ReadSavedRows,
    RestoreRows,
    RowPull,
    RowShare,
    RowsHeld,
    RowValues,
    SavedRows,
)
from ctr_pipeline.distributed.replicas.row_server import RowServer
from ctr_pipeline.distributed.replicas.served_rows import ServedRows
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.storage.opening import open_storage

NUM_IDS = 40
RATE = 0.5
SGD = OptimizerSpec(name="sgd", learning_rate=RATE)
ALL = np.arange(NUM_IDS, dtype=np.int64)
MINE = ALL[partitions_of(ALL, 2) == 0]
BEGUN = Made(0, 0)
OTHERS = ALL[partitions_of(ALL, 2) == 1]


class Caller:
    """The only member of world 1, at the first of two servers."""

    def __init__(self, client):
        self.client = client
        self.call("Restore", RestoreRows("a", 0), Empty)
        self.enter(1)

    def call(self, method, message, reply):
        return self.client.call(method, message, reply, deadline_seconds=60)

    def enter(self, world, made=BEGUN, lineage="a"):
        self.call("Enter", EnterWorld(lineage, world, 1, made), Empty)

    def pull(self, keys, *, world=1, step=0, create=True):
        request = RowPull(world, step, create, keys).encode()
        return RowValues.decode(self.client.call_bytes("Pull", request, deadline_seconds=60)).values

    def share(self, keys, sums, *, world=1, step=1):
        occurrences = np.ones(len(keys), np.int32)
        request = RowShare(world, step, step, 0, 1.0, 1, keys, occurrences, sums).encode()
        self.client.call_bytes("Share", request, deadline_seconds=60)

    def save(self, *, world=1, step=0, first=0, most=100, with_records=True):
        request = encode(ReadSavedRows(world, step, first, most, with_records))
        return SavedRows.decode(self.client.call_bytes("ReadSaved", request, deadline_seconds=60))


@pytest.fixture
def access():
    return Access.within_process()


@pytest.fixture
def store():
    segments = [SegmentSpec("vector", 2, SGD, "sum")]
    return EmbeddingStore([TableSpec("C0", NUM_IDS)], segments, seed=0, threads=1)


@pytest.fixture
def server(access, store, tmp_path):
    storage = open_storage(str(tmp_path / "checkpoints"))
    server = RowServer("127.0.0.1:0", access, store, index=0, num_servers=2, checkpoints=storage)
    with closing(server):
        yield server


@pytest.fixture
def caller(access, server):
    with closing(RpcClient(ROW_SERVICE, server.address, access)) as client:
        yield Caller(client)


def test_a_replica_asks_what_servers_hold_while_calls_of_its_last_world_are_ended(
    access, store, server
):
    rows = ServedRows(
        lambda: [server.address],
        access,
        tables=store.tables,
        position_tables=[0],
        layout=store.layout,
        seed=0,
        # It does not try again.
        is_stopping=lambda: True,
    )
    is_over = threading.Event()

    def watch():
        while not is_over.is_set():
            rows.end_calls()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with closing(rows):
            assert rows.is_held()
    finally:
        is_over.set()
        watching.join()


def test_gradients_are_applied_when_the_next_step_is_asked_for_and_taken_back(caller):
    keys, sums = MINE[:3], np.arange(6, dtype=np.float32).reshape(3, 2)
    before = caller.pull(keys)
    caller.share(keys, sums)
    np.testing.assert_array_equal(caller.pull(keys), before)
    np.testing.assert_allclose(caller.pull(keys, step=1), before - RATE * sums, rtol=1e-6)
    assert caller.call("State", Empty(), RowsHeld) == RowsHeld("a", (BEGUN, Made(1, 1)))
    # The member that made the step is lost, and another one begins from the step before.
    caller.enter(2)
    np.testing.assert_array_equal(caller.pull(keys, world=2), before)


def test_rows_are_saved_in_blocks(caller):
    values = caller.pull(MINE)
    blocks = [caller.save(first=first, most=4) for first in range(0, len(MINE), 4)]
    assert {block.num_rows for block in blocks} == {len(MINE)}
    keys = np.concatenate([block.keys for block in blocks])
    np.testing.assert_array_equal(np.sort(keys), MINE)
    np.testing.assert_array_equal(caller.pull(keys), values[np.searchsorted(MINE, keys)])
    assert caller.save(with_records=False).records.shape == (len(MINE), 0)


@pytest.mark.parametrize("create", [True, False])
def test_a_key_of_another_server_is_refused(caller, create):
    with pytest.raises(CallRefused, match="not one of server 0"):
        caller.pull(OTHERS[:1], create=create)
    with pytest.raises(CallRefused, match="not one of server 0"):
        caller.share(OTHERS[:1], np.ones((1, 2), np.float32))
    assert caller.save().num_rows == 0


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        pytest.param([[np.nan, 0.0]], "not finite", id="not finite"),
        pytest.param([[1.0, 2.0, 3.0]], "not of these rows", id="of another width"),
    ],
)
def test_gradients_that_cannot_be_are_refused(caller, sums, message):
    with pytest.raises(CallRefused, match=message):
        caller.share(MINE[:1], np.array(sums, np.float32))
    # The step is still to be made.
    caller.share(MINE[:1], np.ones((1, 2), np.float32))


def test_caller_that_is_in_no_world_here_is_refused(caller):
    keys, sums = MINE[:1], np.ones((1, 2), np.float32)
    caller.enter(2)
    for call in (caller.pull, caller.save):
        with pytest.raises(CallRefused, match="world 1 is over"):
            call(*((keys,) if call == caller.pull else ()))
    with pytest.raises(CallRefused, match="world 1 is over"):
        caller.share(keys, sums)
    with pytest.raises(CallRefused, match="another restore"):
        caller.enter(3, lineage="b")
    with pytest.raises(CallRefused, match=r"not of Made\(step=5"):
        caller.enter(3, made=Made(5, 1))


def test_a_checkpoint_that_is_not_there_leaves_no_rows(caller):
    caller.pull(MINE)
    with pytest.raises(CallRefused, match="step 7"):
        caller.call("Restore", RestoreRows("b", 7), Empty)
    assert caller.call("State", Empty(), RowsHeld).lineage == ""
