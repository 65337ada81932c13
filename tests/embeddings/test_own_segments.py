"""Tables whose rows are made and trained otherwise than others: as stores of their own would."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.layout import plan_layout
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

LINEAR = SegmentSpec(
    "linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum", l2_strength=10.0
)
VECTOR = SegmentSpec(
    "vector",
    5,
    OptimizerSpec(name="adam", learning_rate=0.01),
    "mean",
    l2_count_power=2,
    initializer=InitializerSpec(name="uniform", scale=0.1),
)
COMMON = (LINEAR, VECTOR)
SMALL = (
    LINEAR,
    SegmentSpec(
        "vector",
        2,
        OptimizerSpec(name="amsgrad", learning_rate=0.02),
        "sum",
        l2_strength=3.0,
        initializer=InitializerSpec(name="uniform", scale=0.5),
    ),
)
OTHER = (
    SegmentSpec(
        "linear",
        1,
        OptimizerSpec(name="ftrl", learning_rate=0.1, l1=0.01),
        "mean",
        initializer=InitializerSpec(name="uniform", scale=0.2),
    ),
    SegmentSpec(
        "vector",
        5,
        OptimizerSpec(name="sgd", learning_rate=0.3),
        "sum",
        l2_strength=1.0,
        l2_count_power=0,
    ),
)
WIDE = (
    LINEAR,
    SegmentSpec("vector", 3, OptimizerSpec(name="rowwise_adagrad", learning_rate=0.1), "sum"),
)
TABLES = (
    TableSpec("a", 9),
    TableSpec("b", 7, SMALL),
    TableSpec("c", 30, OTHER),
    TableSpec("d", 5),
    TableSpec("e", 6, WIDE),
)
COUNTS = [np.arange(table.num_ids) % 4 for table in TABLES]
WIDTH = 6


def make_store(tables=TABLES, *, threads=1, seed=3):
    store = EmbeddingStore(tables, COMMON, seed=seed, threads=threads)
    counts = {table.name: count for table, count in zip(TABLES, COUNTS, strict=True)}
    store.set_training_counts([IdCounts.of_all(counts[table.name]) for table in tables])
    return store


def alone(table):
    """A store of one table, whose rows are no wider than they need be."""
    plain = TableSpec(table.name, table.num_ids)
    store = EmbeddingStore([plain], table.segments or COMMON, seed=3, threads=1)
    store.set_training_counts([IdCounts.of_all(COUNTS[TABLES.index(table)])])
    return store


def step(store, ids, gradients, number):
    prepared = store.prepare(ids, len(ids))
    store.locate(prepared, create=True)
    store.update(prepared, gradients, step=number, learning_rate_factor=0.7, num_examples=len(ids))


def train(store, steps=6, num_rows=40):
    rng = np.random.default_rng(5)
    for number in range(1, steps + 1):
        ids = np.stack([rng.integers(0, table.num_ids, num_rows) for table in TABLES], axis=1)
        gradients = rng.normal(size=(num_rows, len(TABLES), WIDTH)).astype(np.float32)
        step(store, ids, gradients, number)


def content(store):
    file = io.BytesIO()
    store.save(file)
    return file.getvalue()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12))
def test_a_table_is_trained_as_in_a_store_of_its_own(seed, num_steps, num_rows):
    """Bit for bit: initial values, optimizer, L2 by counts, reduction, in both forms of update."""
    rng = np.random.default_rng(seed)
    together = make_store()
    by_key = make_store()
    apart = [alone(table) for table in TABLES]
    for number in range(1, num_steps + 1):
        ids = np.stack([rng.integers(0, table.num_ids, num_rows) for table in TABLES], axis=1)
        gradients = rng.normal(size=(num_rows, len(TABLES), WIDTH)).astype(np.float32)
        step(together, ids, gradients, number)
        for place, store in enumerate(apart):
            own = np.ascontiguousarray(gradients[:, [place], : store.width])
            step(store, ids[:, [place]], own, number)
        prepared = by_key.prepare(ids, num_rows)
        by_key.read_rows(prepared.keys_U, create=True)
        sums = np.zeros((prepared.num_unique, WIDTH), np.float32)
        np.add.at(sums, prepared.inverse_P, gradients.reshape(-1, WIDTH))
        by_key.apply_gradients(
            prepared.keys_U,
            sums,
            prepared.num_occurrences,
            step=number,
            learning_rate_factor=0.7,
            num_examples=num_rows,
        )
    for place, (table, store) in enumerate(zip(TABLES, apart, strict=True)):
        keys = np.arange(table.num_ids, dtype=np.int64)
        values = together.read_rows((place << 44) | keys)
        np.testing.assert_array_equal(values[:, : store.width], store.read_rows(keys))
        # What a table has no use for stays zero, whatever its gradients.
        assert not values[:, store.width :].any()
        np.testing.assert_allclose(by_key.read_rows((place << 44) | keys), values, rtol=1e-5)


def test_bits_do_not_depend_on_the_number_of_threads():
    contents = []
    for threads in (1, 3):
        store = make_store(threads=threads)
        train(store)
        contents.append(content(store))
    assert contents[0] == contents[1]


def test_rows_are_saved_and_logged_with_the_state_of_their_optimizer(tmp_path):
    store = make_store()
    train(store)
    loaded, restored = make_store(), make_store()
    loaded.load(io.BytesIO(content(store)))
    snapshot = RowSnapshot(store, cut=1)
    snapshot.begin(full=True)
    files = snapshot.write(CutStorage.at(tmp_path), num_partitions=2, partitions=range(2))
    restore_rows(
        restored, CutStorage.at(tmp_path), [(file,) for file in files], num_partitions=2, cut=1
    )
    for other in (store, loaded, restored):
        train(other, steps=2)
    for table in range(len(TABLES)):
        keys = (table << 44) | np.arange(TABLES[table].num_ids, dtype=np.int64)
        np.testing.assert_array_equal(loaded.read_rows(keys), store.read_rows(keys))
        np.testing.assert_array_equal(restored.read_rows(keys), store.read_rows(keys))


def test_rows_of_another_optimizer_or_size_of_one_table_are_refused():
    store = make_store()
    train(store)
    changed = [TABLES[0], TableSpec("b", 7), *TABLES[2:]]
    other = make_store(changed)
    with pytest.raises(CheckpointError, match=r"embedding rows of another make: tables\[1\]"):
        other.load(io.BytesIO(content(store)))


def test_rows_stay_as_they_were_without_segments_of_their_own():
    tables = [TableSpec(table.name, table.num_ids) for table in TABLES]
    spelled_out = [TableSpec(table.name, table.num_ids, COMMON) for table in TABLES]
    contents = []
    for some in (tables, spelled_out):
        store = EmbeddingStore(some, COMMON, seed=3, threads=1)
        train(store)
        contents.append(content(store))
    assert contents[0] == contents[1]
    layout = plan_layout(COMMON, tables)
    assert (len(layout.groups), layout.record_floats) == (1, 20)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((LINEAR,), "table 'x': its segments are not"),
        ((VECTOR, LINEAR), "table 'x': its segments are not"),
        (
            (LINEAR, SegmentSpec("vector", 6, OptimizerSpec(name="sgd", learning_rate=0.1), "sum")),
            "'vector' has 6 values, and rows have 5",
        ),
    ],
)
def test_segments_that_do_not_fit_are_refused(segments, message):
    with pytest.raises(ValueError, match=message):
        plan_layout(COMMON, [TableSpec("x", 3, segments)])
