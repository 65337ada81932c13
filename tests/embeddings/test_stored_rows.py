import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, ParameterFiles, extend_chain
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.row_log import RowLogWriter, restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.stored_rows import open_stored_rows
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

SEGMENTS = (
    SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum"),
    SegmentSpec(
        "vector",
        3,
        OptimizerSpec(name="adam", learning_rate=0.01),
        "mean",
        initializer=InitializerSpec(name="uniform", scale=0.1),
    ),
)
TABLES = (TableSpec("a", 50), TableSpec("b", 900))
NUM_PARTITIONS = 4
EVERYTHING = np.concatenate([np.arange(50), (1 << 44) | np.arange(900)]).astype(np.int64)


def make_store(seed=3, **arguments):
    return EmbeddingStore(TABLES, SEGMENTS, seed=seed, threads=1, **arguments)


def train(store, keys, step):
    store.read_rows(keys, create=True)
    gradients = np.random.default_rng(step).normal(size=(len(keys), store.width))
    store.apply_gradients(
        keys,
        gradients.astype(np.float32),
        np.ones(len(keys), np.int32),
        step=step,
        learning_rate_factor=1.0,
        num_examples=2,
    )


def rows_of(rows):
    blocks = list(rows.iterate_rows(7))
    return (
        [key for block in blocks for key in block.keys.tolist()],
        b"".join(block.values.tobytes() for block in blocks),
    )


def write_log(store, folder, steps):
    """Cuts after some steps, each of the keys it is given, the first a base; files by partition."""
    chains = dict.fromkeys(range(NUM_PARTITIONS), ())
    for cut, keys in enumerate(steps, start=1):
        train(store, keys, cut)
        snapshot = RowSnapshot(store, cut=cut)
        snapshot.begin(full=False)
        for file in snapshot.write(
            CutStorage.at(folder), num_partitions=NUM_PARTITIONS, partitions=range(NUM_PARTITIONS)
        ):
            chains[file.partition] = extend_chain(chains[file.partition], file)
    return list(chains.values())


def restored(folder, chains):
    store = make_store()
    restore_rows(store, CutStorage.at(folder), chains, num_partitions=NUM_PARTITIONS, cut=9)
    return store


def opened_log(folder, chains, store=None, **options):
    files = ParameterFiles(tuple(map(tuple, chains)), (), trained_by=2)
    return open_stored_rows(store or make_store(), CutStorage.at(folder), files, folder, **options)


@pytest.fixture
def log(tmp_path):
    chance = np.random.default_rng(0)
    steps = [np.sort(chance.choice(EVERYTHING, size, replace=False)) for size in (700, 300, 200)]
    return write_log(make_store(), tmp_path, steps)


@given(
    st.lists(
        st.lists(st.sampled_from(EVERYTHING.tolist()), unique=True, min_size=1, max_size=60),
        min_size=1,
        max_size=4,
    )
)
def test_a_log_holds_the_same_rows_on_disk_as_in_memory(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("log")
    chains = write_log(make_store(), folder, [np.array(keys) for keys in steps])
    rows = opened_log(folder, chains)
    in_memory = restored(folder, chains)
    assert rows.num_rows == in_memory.num_rows
    assert rows_of(rows) == rows_of(in_memory)
    rows.release()


def test_tombstones_end_rows_on_disk_as_in_memory(tmp_path, log):
    store = restored(tmp_path, log)
    writer = RowLogWriter(
        CutStorage.at(tmp_path),
        store,
        cut=20,
        kind="delta",
        num_partitions=NUM_PARTITIONS,
        partitions=range(NUM_PARTITIONS),
    )
    writer.put_deleted(EVERYTHING[::3])
    written = {file.partition: file for file in writer.finish()}
    chains = [extend_chain(chain, written.get(number)) for number, chain in enumerate(log)]
    rows = opened_log(tmp_path, chains)
    assert 0 < rows.num_rows < store.num_rows
    assert rows_of(rows) == rows_of(restored(tmp_path, chains))
    assert not set(rows_of(rows)[0]) & set(EVERYTHING[::3].tolist())
    rows.release()


def saved(store, folder):
    """Saves the rows as those of all partitions in one file."""
    path = folder / "rows.bin"
    with path.open("wb") as file:
        store.save(file)
    size = path.stat().st_size
    return [(CutFile(path.name, size, 0, 0, number, "whole", 0),) for number in range(5)]


def test_a_saved_store_holds_the_same_rows_on_disk_as_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_pipeline.embeddings.row_file.BLOCK_ROWS", 100)
    store = make_store()
    train(store, np.random.default_rng(5).permutation(EVERYTHING)[:777], 1)
    chains = saved(store, tmp_path)
    rows = opened_log(tmp_path, chains)
    assert rows_of(rows) == rows_of(store)
    assert rows.memory_bytes() == 777 * store.rows.bytes_a_row
    rows.release()
    rows.release()
    # Of some partitions, and of some of their keys, the same rows are read.
    for wanted, only in (((0, 1, 2, 3, 4), None), ((1, 4), None), ((1, 4), is_even)):
        part = make_store()
        restore_rows(
            part,
            CutStorage.at(tmp_path),
            [chains[number] for number in wanted],
            num_partitions=5,
            cut=3,
            only=only,
        )
        keys = store.rows.keys_N[: store.num_rows].copy()
        keys = keys[np.isin(partitions_of(keys, 5), wanted) & ((keys % 2 == 0) | (only is None))]
        assert np.array_equal(np.sort(part.rows.keys_N[: part.num_rows]), np.sort(keys))
        assert np.array_equal(part.read_rows(keys), store.read_rows(keys))
        assert part.rows.delta_after == 3


def is_even(keys):
    return keys % 2 == 0


def gathered(rows, ids):
    prepared = rows.prepare(ids, len(ids) - 1)
    rows.locate(prepared, create=False)
    return [part.copy() for part in rows.gather_parts(prepared, 1)]


@pytest.mark.parametrize("most_held", [1, 100, 10**6])
def test_a_batch_reads_the_same_values_and_few_rows_are_held(tmp_path, log, most_held):
    in_memory = restored(tmp_path, log)
    store = make_store()
    rows = opened_log(tmp_path, log, store, most_held=most_held)
    chance = np.random.default_rng(8)
    for _ in range(30):
        ids = np.stack([chance.integers(0, table.num_ids, 20) for table in TABLES], axis=1)
        for one, other in zip(gathered(rows, ids), gathered(in_memory, ids), strict=True):
            assert np.array_equal(one, other)
        # The rows of a batch are always held; beyond them only as many as may be.
        assert store.num_rows <= max(most_held, 40)
    rows.release()


def test_stored_rows_report_the_bytes_they_took_where_trained(tmp_path, log):
    limit = MemoryLimit(2 * mmap.PAGESIZE, tmp_path)
    rows = opened_log(tmp_path, log, make_store(memory_limit=limit))
    record_bytes, share = restored(tmp_path, log).row_bytes, rows.num_rows // 2
    # Two servers held half of the rows each, two pages of them in memory.
    assert rows.spilled_bytes() == 2 * (share * record_bytes - 2 * mmap.PAGESIZE) > 0
    # A key and a mark of each row as well.
    whole = rows.num_rows * (record_bytes + 9)
    assert rows.memory_bytes() == whole - rows.spilled_bytes()
    rows.release()


def test_rows_are_not_made(tmp_path, log):
    rows = opened_log(tmp_path, log)
    prepared = rows.prepare(np.zeros((1, 2), np.int32), 1)
    with pytest.raises(AssertionError, match="no rows are made"):
        rows.locate(prepared, create=True)
    rows.release()


def test_a_damaged_file_of_the_log_is_refused(tmp_path, log):
    path = tmp_path / log[2][0].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="its checksum differs"):
        opened_log(tmp_path, log)


def test_rows_of_another_make_are_refused(tmp_path, log):
    with pytest.raises(CheckpointError, match="embedding rows of another make: seed"):
        opened_log(tmp_path, log, make_store(seed=4))


@pytest.mark.parametrize("place", [20, -5, -300])
def test_a_damaged_saved_store_is_refused(tmp_path, place):
    store = make_store()
    train(store, EVERYTHING, 1)
    chains = saved(store, tmp_path)
    content = bytearray((tmp_path / "rows.bin").read_bytes())
    content[place] ^= 1
    (tmp_path / "rows.bin").write_bytes(content)
    with pytest.raises(CheckpointError) as failure:
        opened_log(tmp_path, chains)
    assert failure.value.place == "rows.bin"


def test_a_key_that_stands_twice_is_damage(tmp_path):
    store = make_store()
    train(store, EVERYTHING[:10], 1)
    store.rows.keys_N[4] = store.rows.keys_N[3]
    with pytest.raises(CheckpointError, match="key 3 stands twice"):
        opened_log(tmp_path, saved(store, tmp_path))
