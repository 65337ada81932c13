import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.log_chain import extend_chain
from ctr_pipeline.embeddings.row_log import RowLogWriter, restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot, SnapshotAbandonedError
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

SEGMENTS = (
    SegmentSpec(
        "linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum", l2_strength=3.0
    ),
    SegmentSpec(
        "vector",
        4,
        OptimizerSpec(name="adam", learning_rate=0.01),
        "mean",
        initializer=InitializerSpec(name="uniform", scale=0.1),
    ),
)
TABLES = (TableSpec("a", 30), TableSpec("b", 400))
NUM_IDS = sum(table.num_ids for table in TABLES)
EVERYTHING = np.array(
    [(t << 44) | i for t, table in enumerate(TABLES) for i in range(table.num_ids)], np.int64
)
NUM_PARTITIONS = 3


def make_store(tables=TABLES):
    store = EmbeddingStore(tables, SEGMENTS, seed=3, threads=1)
    store.set_training_counts([IdCounts.of_all(np.arange(table.num_ids)) for table in tables])
    return store


def train(store, keys, step, rng):
    """One step on some keys, as a parameter server does it."""
    keys = np.unique(keys)
    store.read_rows(keys, create=True)
    gradients = rng.normal(size=(len(keys), store.width)).astype(np.float32)
    occurrences = np.ones(len(keys), np.int32)
    store.apply_gradients(
        keys, gradients, occurrences, step=step, learning_rate_factor=1.0, num_examples=2
    )


def state(store):
    """Bytes of every record by key."""
    rows = store.rows
    return {int(rows.keys_N[row]): rows.records_NR[row].tobytes() for row in range(rows.num_rows)}


def make_writer(folder, store, snapshot, cut):
    return RowLogWriter(
        CutStorage.at(folder),
        store,
        cut=cut,
        kind=snapshot.kind,
        num_partitions=NUM_PARTITIONS,
        partitions=range(NUM_PARTITIONS),
        buffer_bytes=1,
    )


def restored(folder, chains, cut, tables=TABLES):
    store = make_store(tables)
    restore_rows(store, CutStorage.at(folder), chains, num_partitions=NUM_PARTITIONS, cut=cut)
    return state(store)


OPERATIONS = st.one_of(
    st.tuples(st.just("train"), st.integers(0, 2**32 - 1), st.integers(1, NUM_IDS)),
    st.tuples(st.just("write"), st.integers(1, 12)),
    st.tuples(st.just("begin"), st.booleans()),
    st.tuples(st.just("abandon")),
    st.tuples(st.just("evict"), st.integers(1, 6)),
)


@pytest.mark.parametrize("num_examples", [15, pytest.param(80, marks=pytest.mark.slow)])
def test_a_cut_is_the_state_at_its_instant_whatever_goes_on(tmp_path_factory, num_examples):
    @settings(max_examples=num_examples)
    @given(
        operations=st.lists(OPERATIONS, max_size=30),
        chunk_rows=st.sampled_from([1, 7, 100, 1000]),
    )
    def check_whatever_goes_on(operations, chunk_rows):
        check_cuts(tmp_path_factory, operations, chunk_rows)

    check_whatever_goes_on()


def check_cuts(tmp_path_factory, operations, chunk_rows):
    folder = tmp_path_factory.mktemp("cuts")
    store = make_store()
    snapshot = writer = None
    chains = {}
    cut = step = num_abandoned = 0
    expected, changed, due, evicted = {}, set(), set(), set()
    # Whatever was drawn, deltas and bases then follow each other, all written to their end.
    to_the_end = ("write", 10**6)
    operations = [*operations, to_the_end]
    for seed, full in enumerate([False, False, True, False, False]):
        operations += [("train", seed, 300), ("evict", 1 + seed % 2), ("train", seed + 5, 20)]
        operations += [("begin", full), ("train", seed + 9, 99), to_the_end]
    for name, *arguments in operations:
        if name == "train":
            rng = np.random.default_rng(arguments[0])
            keys = np.unique(rng.choice(EVERYTHING, arguments[1]))
            step += 1
            train(store, keys, step, rng)
            changed.update(keys.tolist())
        elif name == "begin" and snapshot is None:
            cut += 1
            snapshot = RowSnapshot(store, cut=cut, chunk_bytes=chunk_rows * store.row_bytes)
            snapshot.begin(full=arguments[0])
            assert snapshot.kind == ("base" if arguments[0] or not chains else "delta")
            writer = make_writer(folder, store, snapshot, cut)
            expected = state(store)
            # Those that have gone and not come back are told of, too.
            due = set(expected)
            if snapshot.kind == "delta":
                due = changed | (evicted - set(expected))
            changed, evicted = set(), set()
        elif name == "evict" and snapshot is None:
            before = set(state(store))
            gone = store.evict(step - arguments[0])
            evicted |= before - set(state(store))
            assert gone == len(before) - store.num_rows
            changed -= evicted - set(state(store))
        elif name == "abandon" and snapshot is not None:
            snapshot.abandon()
            writer.abandon()
            num_abandoned += 1
            snapshot, chains = None, {}
        elif name == "write" and snapshot is not None:
            for _ in range(arguments[0]):
                if not snapshot.write_some(writer):
                    files = snapshot.finish(writer)
                    assert sum(file.num_rows for file in files) == len(due)
                    for file in files:
                        chain = chains.get(file.partition, ())
                        chains[file.partition] = extend_chain(chain, file)
                    assert restored(folder, list(chains.values()), cut) == expected
                    snapshot = None
                    break
    assert snapshot is None
    assert not list(folder.glob(".*"))
    assert store.rows.observer is None
    assert store.rows.delta_after == cut


def test_updates_wait_for_room_and_lose_nothing(tmp_path):
    tables = (TableSpec("a", 20_000),)
    store, rng = make_store(tables), np.random.default_rng(0)
    keys = np.arange(20_000, dtype=np.int64)
    train(store, keys, 1, rng)
    # Room for 200 records, far less than one update changes.
    snapshot = RowSnapshot(store, cut=1, saved_bytes=200 * (store.row_bytes + 8), chunk_bytes=4096)
    snapshot.begin(full=True)
    expected = state(store)
    done = []

    def write():
        done.append(
            snapshot.write(
                CutStorage.at(tmp_path),
                num_partitions=NUM_PARTITIONS,
                partitions=range(NUM_PARTITIONS),
            )
        )

    thread = threading.Thread(target=write)
    thread.start()
    for step in range(2, 30):
        train(store, rng.choice(keys, 3000), step, rng)
    thread.join()
    assert restored(tmp_path, [[file] for file in done[0]], 1, tables) == expected
    assert state(store) != expected


def test_giving_up_frees_an_update_that_waits():
    store, rng = make_store(), np.random.default_rng(0)
    train(store, EVERYTHING, 1, rng)
    snapshot = RowSnapshot(store, cut=1, saved_bytes=80 * (store.row_bytes + 8))
    snapshot.begin(full=True)
    before = state(store)
    thread = threading.Thread(target=train, args=(store, EVERYTHING, 2, rng), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while snapshot.has_room(1):
        assert time.monotonic() < deadline
    assert thread.is_alive()
    assert state(store) == before
    snapshot.abandon()
    thread.join(60)
    assert not thread.is_alive()
    assert all(record != before[key] for key, record in state(store).items())
    following = RowSnapshot(store, cut=2)
    following.begin(full=False)
    assert following.kind == "base"


def test_one_snapshot_at_a_time_and_no_replacing_of_rows_meanwhile(tmp_path):
    store = make_store()
    train(store, EVERYTHING, 1, np.random.default_rng(0))
    snapshot = RowSnapshot(store, cut=1)
    snapshot.begin(full=True)
    with pytest.raises(RuntimeError, match="another snapshot"):
        RowSnapshot(store, cut=2).begin(full=True)
    with pytest.raises(RuntimeError, match="cannot be replaced"):
        restore_rows(store, CutStorage.at(tmp_path), [], num_partitions=NUM_PARTITIONS, cut=1)
    assert store.num_rows == NUM_IDS
    writer = make_writer(tmp_path, store, snapshot, 1)
    snapshot.abandon()
    with pytest.raises(SnapshotAbandonedError):
        snapshot.write_some(writer)
    RowSnapshot(store, cut=3).begin(full=True)
    # An old snapshot that is given up once more leaves the running one alone.
    snapshot.abandon()
    assert store.rows.observer is not None


def test_a_snapshot_that_cannot_be_written_is_given_up_and_leaves_no_file(tmp_path):
    store, rng = make_store(), np.random.default_rng(0)
    train(store, EVERYTHING, 1, rng)
    snapshot = RowSnapshot(store, cut=1)
    snapshot.begin(full=True)
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    with pytest.raises(RunFolderError):
        snapshot.write(CutStorage.at(blocked), num_partitions=2, partitions=range(2))
    train(store, EVERYTHING, 2, rng)
    snapshot = RowSnapshot(store, cut=2)
    snapshot.begin(full=False)
    assert snapshot.kind == "base"
    with pytest.raises(ValueError, match="partition that is not written here"):
        snapshot.write(CutStorage.at(tmp_path), num_partitions=2, partitions=[0])
    assert [entry.name for entry in tmp_path.iterdir()] == ["a-file"]
    assert store.rows.observer is None


def test_dense_parameters_are_of_the_same_instant():
    store = make_store()
    dense = DenseParameters(np.ones(5, np.float32), OptimizerSpec(name="adam", learning_rate=0.1))
    dense.update(np.ones(5, np.float32), step=1)
    values, slots = dense.values.copy(), dense.slots.copy()
    snapshot = RowSnapshot(store, cut=1)
    snapshot.begin(full=True, dense=dense)
    dense.update(np.ones(5, np.float32), step=2)
    np.testing.assert_array_equal(snapshot.dense[0], values)
    np.testing.assert_array_equal(snapshot.dense[1], slots)
    assert (dense.values != values).all()


def test_local_training_notes_changed_rows_as_a_parameter_server_does():
    store = make_store()
    prepared = store.prepare(np.array([[1, 2], [3, 2]]), 2)
    store.locate(prepared, create=True)
    rows = store.rows
    assert rows.marks_N[:3].tolist() == [rows.era] * 3
    rows.marks_N[:3] = 0
    store.gather(prepared)
    assert rows.marks_N[:3].tolist() == [0] * 3
    gradients = np.ones((2, 2, store.width), np.float32)
    store.update(prepared, gradients, step=1, learning_rate_factor=1.0, num_examples=2)
    assert rows.marks_N[:3].tolist() == [rows.era] * 3


def test_an_update_gives_up_a_snapshot_for_which_the_disk_has_stalled(tmp_path):
    store = make_store()
    rng = np.random.default_rng(0)
    train(store, EVERYTHING, 1, rng)
    row_bytes = store.row_bytes + 8
    snapshot = RowSnapshot(store, cut=1, saved_bytes=8 * row_bytes, timeout_seconds=0.0)
    snapshot.begin(full=True)
    # Of the buffers each takes one record; nobody writes any.
    train(store, EVERYTHING, 2, rng)
    expected = state(store)
    writer = make_writer(tmp_path, store, snapshot, 1)
    with pytest.raises(SnapshotAbandonedError, match="the disk has stalled"):
        snapshot.write_some(writer)
    writer.abandon()
    # The next one tells all rows, whatever was marked meanwhile.
    following = RowSnapshot(store, cut=2)
    following.begin(full=False)
    assert following.kind == "base"
    files = following.write(
        CutStorage.at(tmp_path), num_partitions=NUM_PARTITIONS, partitions=range(3)
    )
    assert restored(tmp_path, [[file] for file in files], 2) == expected
