"""Rows that move to another store, with tables that have grown."""

import numpy as np
import pytest

from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.row_transfer import TableMove, transfer_rows
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import ID_BITS, TableSpec


def store(sizes, *, seed=0, optimizer="adam", rate=0.1):
    segments = [
        SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.1), "sum"),
        SegmentSpec(
            "vector",
            3,
            OptimizerSpec(name=optimizer, learning_rate=rate),
            "mean",
            initializer=InitializerSpec(name="uniform", scale=0.5),
        ),
    ]
    tables = [TableSpec(name, size) for name, size in sizes.items()]
    return EmbeddingStore(tables, segments, seed=seed, threads=2)


def train(trained, steps, batch=50):
    chance = np.random.default_rng(1)
    sizes = [table.num_ids for table in trained.tables]
    for step in range(1, steps + 1):
        ids = np.stack([chance.integers(0, size, batch) for size in sizes], axis=1)
        prepared = trained.prepare(ids, batch)
        trained.locate(prepared, create=True)
        gradients = chance.normal(size=(batch, len(sizes), trained.width)).astype(np.float32)
        trained.update(prepared, gradients, step=step, learning_rate_factor=1.0, num_examples=batch)


def key(table, id_):
    return (table << ID_BITS) | id_


def records_of(held):
    """Values and slots by key."""
    rows = held.rows
    return {
        int(k): rows.records_NR[n, 2:].tobytes() for n, k in enumerate(rows.keys_N[: held.num_rows])
    }


def test_rows_are_transferred_bit_for_bit_and_the_last_ids_move_up():
    source = store({"item": 30, "user": 100, "day": 7})
    source.set_training_counts([IdCounts.of_all(np.arange(n)) for n in (30, 100, 7)])
    train(source, 20)
    # Of another seed and rate, as a later run may have them.
    target = store({"item": 42, "user": 100, "day": 7}, seed=5, rate=0.01)
    counts = [np.full(42, 1000, np.int64), np.full(100, 5, np.int64), np.zeros(7, np.int64)]
    target.set_training_counts([IdCounts.of_all(one) for one in counts])
    # Three last ids of `item` stood after a vocabulary of 27.
    moves = [TableMove(0, 27, 12), TableMove(1, 100, 0), TableMove(2, 7, 0)]
    before = records_of(source)
    transfer_rows(source, target, moves)
    expected = {}
    for k, record in before.items():
        table, id_ = k >> ID_BITS, k & ((1 << ID_BITS) - 1)
        expected[key(table, id_ + 12 if table == 0 and id_ >= 27 else id_)] = record
    assert records_of(target) == expected
    assert records_of(source) == before
    keys = np.array([key(0, 3), key(0, 28 + 12), key(1, 9), key(2, 6), key(0, 28)], np.int64)
    found, last_seen = target.row_headers(keys)
    assert found.tolist() == [1003, 1028, 14, 6, -1]
    assert (last_seen[:4] > 0).all()


def test_many_rows_go_in_blocks_and_training_goes_on(monkeypatch):
    monkeypatch.setattr("ctr_pipeline.embeddings.row_transfer.BLOCK_ROWS", 7)
    source, target = store({"item": 300}), store({"item": 300})
    train(source, 10)
    transfer_rows(source, target, [TableMove(0, 300, 0)])
    assert records_of(source) == records_of(target)
    for one in (source, target):
        train(one, 5)
    assert records_of(source) == records_of(target)


def test_other_records_and_ids_without_a_place_are_refused():
    source = store({"item": 30})
    train(source, 5)
    with pytest.raises(ValueError, match="another make"):
        transfer_rows(source, store({"item": 30}, optimizer="sgd"), [TableMove(0, 30, 0)])
    with pytest.raises(ValueError, match="no place"):
        transfer_rows(source, store({"item": 30}), [TableMove(0, 0, 1)])
