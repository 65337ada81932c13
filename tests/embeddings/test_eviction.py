"""Rows that nothing has updated for long are removed; all others are as if nothing had happened."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.embeddings import key_index
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.eviction import oldest_step_kept
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.kernels.ranges import RangeRunner
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

SEGMENTS = (
    SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum"),
    SegmentSpec(
        "vector",
        4,
        OptimizerSpec(name="adam", learning_rate=0.01),
        "mean",
        initializer=InitializerSpec(name="uniform", scale=0.1),
    ),
)
TABLES = (TableSpec("a", 30), TableSpec("b", 60_000))


def make_store(limit=None):
    store = EmbeddingStore(TABLES, SEGMENTS, seed=3, threads=1, memory_limit=limit)
    store.set_training_counts([IdCounts.of_all(np.arange(table.num_ids)) for table in TABLES])
    return store


def key(table, row_id):
    return (table << 44) | row_id


def touch(store, keys, step):
    keys = np.unique(np.asarray(keys, np.int64))
    store.read_rows(keys, create=True)
    sums = np.sin(step + np.arange(len(keys) * store.width, dtype=np.float32))
    store.apply_gradients(
        keys,
        sums.reshape(-1, store.width),
        np.ones(len(keys), np.int32),
        step=step,
        learning_rate_factor=1.0,
        num_examples=2,
    )


def content(store):
    """Records and marks by key, in the order of the rows."""
    rows = store.rows
    return {
        int(rows.keys_N[row]): (rows.records_NR[row].tobytes(), int(rows.marks_N[row]))
        for row in range(rows.num_rows)
    }


@pytest.mark.parametrize(
    ("steps", "after", "oldest"), [(100, 30, 70), (30, 30, 0), (10, 30, 0), (100, None, 0)]
)
def test_a_row_goes_after_more_steps_than_asked(steps, after, oldest):
    assert oldest_step_kept(steps, after) == oldest
    store = make_store()
    for step in (69, 70, 71):
        touch(store, [step - 60], step)
    store.evict(oldest)
    assert sorted(content(store)) == [step - 60 for step in (69, 70, 71) if step >= oldest]


KEYS = st.lists(st.integers(0, 29) | st.integers(0, 60).map(lambda i: key(1, i)), min_size=1)
OPERATIONS = st.one_of(
    st.tuples(st.just("touch"), KEYS),
    st.tuples(st.just("make"), KEYS),
    st.tuples(st.just("evict"), st.integers(1, 8)),
)


@given(st.lists(OPERATIONS, max_size=25))
def test_eviction_keeps_the_other_rows_and_evicted_rows_begin_anew(operations):
    store, last_seen, step = make_store(), {}, 0
    for name, argument in operations:
        if name == "evict":
            oldest = oldest_step_kept(step, argument)
            before = content(store)
            num_evicted = store.evict(oldest)
            gone = {one for one, seen in last_seen.items() if 0 < seen < oldest}
            kept = [(one, found) for one, found in before.items() if one not in gone]
            assert list(content(store).items()) == kept
            assert num_evicted == len(before) - len(kept)
            for one in gone:
                del last_seen[one]
            assert not store.read_rows(np.array(sorted(gone), np.int64)).any()
        elif name == "make":
            # As a pull does whose batch is not yet trained: such a row has no age.
            store.read_rows(np.unique(argument), create=True)
            for one in argument:
                last_seen.setdefault(one, 0)
        else:
            fresh = np.array(sorted(set(argument) - set(last_seen)), np.int64)
            values = store.read_rows(fresh, create=True)
            np.testing.assert_array_equal(values, make_store().read_rows(fresh, create=True))
            assert store.row_headers(fresh)[1].tolist() == [0] * len(fresh)
            step += 1
            touch(store, argument, step)
            last_seen.update(dict.fromkeys(argument, step))
        assert store.num_rows == len(last_seen)
        known = np.array(sorted(last_seen), np.int64)
        assert store.row_headers(known)[1].tolist() == [last_seen[one] for one in known.tolist()]


def test_many_rows_move_together_in_memory_and_beyond(tmp_path):
    stores = [make_store(), make_store(MemoryLimit(100_000, tmp_path))]
    ids = np.arange(50_000)
    old = np.sin(ids) > -0.5
    for store in stores:
        touch(store, key(1, 0) + ids, 1)
        touch(store, key(1, 0) + ids[~old], 2)
        # As rows are marked of which some were written to a cut since.
        store.rows.marks_N[: len(ids)] = ids % 3
        before = content(store)
        assert store.evict(2) == old.sum() > 30_000
        kept = (key(1, 0) + ids[~old]).tolist()
        assert content(store) == {one: before[one] for one in kept}
        assert list(content(store)) == kept
        assert store.evict(2) == 0
        touch(store, key(1, 0) + ids, 3)
        assert store.num_rows == 50_000
    assert content(stores[0]) == content(stores[1])
    assert stores[0].rows.num_bytes == stores[1].rows.num_bytes
    assert stores[1].spilled_bytes() == 50_000 * 64 - 100_000 // 4096 * 4096


def test_eviction_looks_at_no_row_when_none_can_be_old():
    store = make_store()
    touch(store, [1], 1)
    store.rows.headers_NR = None
    assert store.evict(0) == 0
    with pytest.raises(TypeError):
        store.evict(1)


def test_no_row_moves_while_a_snapshot_is_written():
    store = make_store()
    touch(store, [1], 1)
    snapshot = RowSnapshot(store, cut=1)
    snapshot.begin(full=True)
    with pytest.raises(RuntimeError, match="while a snapshot"):
        store.evict(5)
    snapshot.abandon()
    assert store.evict(5) == 1


def take_out(store, keys):
    """The rows of some keys, as a parameter server gives those up that have moved away."""
    rows_U = np.sort(store.rows.find(np.asarray(keys, np.int64), RangeRunner(1))[0])
    for _ in range(100):
        if store.rows.take_out(rows_U):
            return
    raise AssertionError("the index never ends to grow")


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 3000)), max_size=8))
def test_rows_that_are_taken_out_leave_the_others_as_they_are(calls):
    store = make_store()
    for step, (seed, num_keys) in enumerate(calls, start=1):
        dice = np.random.default_rng(seed)
        touch(store, key(1, dice.integers(0, 4000, num_keys)), step)
        before = content(store)
        gone = dice.permutation(list(before))[: dice.integers(0, len(before) + 1)]
        take_out(store, gone)
        for one in gone.tolist():
            del before[one]
        assert content(store) == before
        found, num_missing = store.rows.find(np.array(list(before), np.int64), RangeRunner(1))
        assert num_missing == 0
        assert store.rows.keys_N[found].tolist() == list(before)
        assert store.rows.find(gone, RangeRunner(1))[1] == len(gone)
        assert not store.rows.marks_N[store.num_rows : store.num_rows + len(gone)].any()


def test_rows_are_not_taken_out_while_the_index_grows(monkeypatch):
    monkeypatch.setattr(key_index, "MOVED_AT_A_TIME", 100)
    store = make_store()
    step = 0
    none = np.empty(0, np.int32)
    while store.rows.take_out(none):
        step += 1
        touch(store, key(1, np.arange(500 * step, 500 * (step + 1))), step)
    rows = np.arange(3, dtype=np.int32)
    assert not store.rows.take_out(rows)
    before = content(store)
    take_out(store, store.rows.keys_N[rows])
    assert set(before) - set(content(store)) == set(list(before)[:3])
