import io
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.unique import BatchPreparer, sorted_distinct
from ctr_pipeline.errors import CheckpointError, TrainingError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

LINEAR = SegmentSpec(
    "linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum", l2_strength=10.0
)
VECTOR = SegmentSpec(
    "vector",
    4,
    OptimizerSpec(name="adam", learning_rate=0.01),
    "mean",
    l2_strength=50.0,
    l2_count_power=2,
    initializer=InitializerSpec(name="uniform", scale=0.1),
)
TABLES = (TableSpec("a", 7), TableSpec("b", 40), TableSpec("c", 3))


def make_store(segments=(LINEAR, VECTOR), tables=TABLES, seed=3, threads=1, **kwargs):
    return EmbeddingStore(tables, segments, seed=seed, threads=threads, **kwargs)


def key(table, row_id):
    return (table << 44) | row_id


class ReferenceStore:
    """Rows in a dict, arithmetic in float64; fresh values are taken from the store under test."""

    def __init__(self, counts):
        self.rows = {}
        self.counts = counts

    def create(self, table, row_id, fresh):
        self.rows[table, row_id] = {
            "w": fresh.astype(np.float64),
            "acc": 0.1,
            "m": np.zeros(4),
            "v": np.zeros(4),
        }

    def update(self, ids, num_valid, gradients, step, factor, num_examples):
        sums, n_b = {}, {}
        for b, f in itertools.product(range(num_valid), range(ids.shape[1])):
            place = (f, int(ids[b, f]))
            sums[place] = sums.get(place, 0) + gradients[b, f].astype(np.float64)
            n_b[place] = n_b.get(place, 0) + 1
        for (table, row_id), total in sums.items():
            row = self.rows.get((table, row_id))
            if row is None:
                continue
            count = max(int(self.counts[table][row_id]), 1)
            occurrences = n_b[table, row_id]
            g = total[0] + 10.0 * occurrences / count * row["w"][0]
            row["acc"] += g * g
            row["w"][0] -= 0.05 * factor * g / np.sqrt(row["acc"] + 1e-7)
            g = (total[1:] + 50.0 * occurrences / count**2 * row["w"][1:]) / num_examples
            row["m"] = 0.9 * row["m"] + 0.1 * g
            row["v"] = 0.999 * row["v"] + 0.001 * g * g
            rate = 0.01 * factor * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            row["w"][1:] -= rate * row["m"] / (np.sqrt(row["v"]) + 1e-7)

    def gather(self, ids, num_valid):
        out = np.zeros((*ids.shape, 5))
        for b, f in itertools.product(range(num_valid), range(ids.shape[1])):
            row = self.rows.get((f, int(ids[b, f])))
            if row is not None:
                out[b, f] = row["w"]
        return out


@st.composite
def batches(draw):
    num_rows = draw(st.integers(1, 6))
    ids = [[draw(st.integers(0, table.num_ids - 1)) for table in TABLES] for _ in range(num_rows)]
    return (
        np.array(ids, draw(st.sampled_from([np.int32, np.int64]))),
        draw(st.integers(0, num_rows)),
        draw(st.booleans()),
    )


@given(st.lists(batches(), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_agrees_with_a_dict_of_rows(steps, seed):
    rng = np.random.default_rng(seed)
    counts = [rng.integers(0, 9, table.num_ids) for table in TABLES]
    store, reference = make_store(), ReferenceStore(counts)
    store.set_training_counts([IdCounts.of_all(one) for one in counts])
    for step, (ids, num_valid, create) in enumerate(steps, start=1):
        prepared = store.prepare(ids, num_valid)
        store.locate(prepared, create=create)
        values = store.gather(prepared)
        if create:
            for b, f in itertools.product(range(num_valid), range(3)):
                if (f, int(ids[b, f])) not in reference.rows:
                    reference.create(f, int(ids[b, f]), values[b, f])
        np.testing.assert_allclose(values, reference.gather(ids, num_valid), rtol=2e-4, atol=2e-6)
        gradients = rng.normal(0, 1, (*ids.shape, 5)).astype(np.float32)
        gradients[num_valid:] = np.nan
        arguments = {"step": step, "learning_rate_factor": 0.5, "num_examples": max(num_valid, 1)}
        store.update(prepared, gradients, **arguments)
        reference.update(ids, num_valid, gradients, step, 0.5, max(num_valid, 1))
        assert store.num_rows == len(reference.rows)
    rows = [(block.keys, block.values) for block in store.iterate_rows(4)]
    keys = np.concatenate([keys for keys, _ in rows]) if rows else np.empty(0, np.int64)
    assert keys.tolist() == sorted(key(*place) for place in reference.rows)
    for block_keys, values in rows:
        for one, value in zip(block_keys.tolist(), values, strict=True):
            expected = reference.rows[one >> 44, one & (2**44 - 1)]["w"]
            np.testing.assert_allclose(value, expected, rtol=2e-4, atol=2e-6)


@given(batches(), st.sampled_from([(0, 1, 2), (1, 1, 2), (1, 0, 1), (1, 1, 1)]))
def test_prepare_lists_every_occurrence_once(batch, field_tables):
    ids, num_valid, _ = batch
    ids = ids % 3
    store = make_store(field_tables=field_tables)
    prepared = store.prepare(ids, num_valid)
    tables = np.array(field_tables, np.int64)
    keys_P = ((tables << 44) | ids.astype(np.int64)).reshape(-1)[: num_valid * 3]
    assert sorted(prepared.keys_U.tolist()) == np.unique(keys_P).tolist()
    assert (prepared.inverse_P[num_valid * 3 :] == -1).all()
    np.testing.assert_array_equal(prepared.keys_U[prepared.inverse_P[: num_valid * 3]], keys_P)
    assert sorted(prepared.occurrences.tolist()) == list(range(num_valid * 3))
    for u in range(prepared.num_unique):
        places = prepared.occurrences[prepared.offsets[u] : prepared.offsets[u + 1]]
        assert (keys_P[places] == prepared.keys_U[u]).all()
        assert len(places) == prepared.num_occurrences[u]


def test_prepare_gives_the_same_whatever_came_before():
    store = make_store()
    rng = np.random.default_rng(0)
    fresh = make_store()
    for num_rows in (3, 50, 7):
        ids = rng.integers(0, 3, (num_rows, 3))
        one, other = store.prepare(ids, num_rows), fresh.prepare(ids, num_rows)
        fresh = make_store()
        np.testing.assert_array_equal(one.keys_U, other.keys_U)
        np.testing.assert_array_equal(one.occurrences, other.occurrences)


def test_prepare_survives_the_end_of_its_stamps():
    ids = np.array([[1, 2, 0], [1, 3, 0]])
    first = make_store().prepare(ids, 2)
    preparer = BatchPreparer(TABLES, (0, 1, 2), first_stamp=2**31 - 3 * len(TABLES))
    for _ in range(5):
        again = preparer.prepare(ids, 2)
        np.testing.assert_array_equal(again.keys_U, first.keys_U)
        np.testing.assert_array_equal(again.inverse_P, first.inverse_P)


def test_reading_creates_nothing_and_reads_zeros():
    store = make_store()
    prepared = store.prepare(np.array([[1, 2, 0]]), 1)
    store.locate(prepared, create=False)
    assert store.num_rows == 0
    assert (store.gather(prepared) == 0).all()
    store.update(
        prepared, np.ones((1, 3, 5), np.float32), step=1, learning_rate_factor=1.0, num_examples=1
    )
    assert (store.read_rows(prepared.keys_U) == 0).all()
    assert store.num_rows == 0


def test_gather_overwrites_what_was_in_out():
    store = make_store()
    prepared = store.prepare(np.array([[1, 2, 0], [0, 0, 0]]), 1)
    store.locate(prepared, create=True)
    out = np.full((2, 3, 5), 9, np.float32)
    assert store.gather(prepared, out) is out
    assert (out[1] == 0).all()
    assert (out[0, :, 0] == 0).all()
    assert (out[0, :, 1:] != 0).all()


def test_fresh_values_do_not_depend_on_order_threads_or_other_tables():
    tables = [TableSpec("x", 3000), TableSpec("y", 3000)]
    one = make_store(tables=tables, threads=1)
    other = make_store(tables=tables[::-1], threads=3)
    ids = np.arange(3000, dtype=np.int64)
    values = one.read_rows(np.concatenate([ids, (1 << 44) | ids]), create=True)
    swapped = other.read_rows(np.concatenate([(1 << 44) | ids[::-1], ids]), create=True)
    np.testing.assert_array_equal(values[:3000], swapped[:3000][::-1])
    np.testing.assert_array_equal(values[3000:], swapped[3000:])
    vectors = values[:, 1:]
    assert (values[:, 0] == 0).all()
    assert np.abs(vectors).max() <= 0.1
    assert (vectors != 0).all()
    # Mean and deviation of a uniform variable, four standard errors wide.
    assert abs(vectors.mean()) < 4 * 0.1 / np.sqrt(3 * vectors.size)
    assert np.isclose(vectors.std(), 0.1 / np.sqrt(3), rtol=0.02)
    assert np.abs(np.corrcoef(vectors.T) - np.eye(4)).max() < 0.08
    assert (
        make_store(tables=tables, seed=4).read_rows(ids, create=True)[:, 1:] != vectors[:3000]
    ).all()


def train(store, steps=5, num_rows=900, num_valid=850):
    rng = np.random.default_rng(5)
    for step in range(1, steps + 1):
        ids = np.stack(
            [
                (table.num_ids ** rng.random(num_rows)).astype(np.int64) - 1
                for table in store.tables
            ],
            axis=1,
        )
        prepared = store.prepare(ids, num_valid)
        store.locate(prepared, create=True)
        values = store.gather(prepared)
        gradients = (values - rng.normal(0, 1, values.shape)).astype(np.float32)
        store.update(
            prepared, gradients, step=step, learning_rate_factor=1.0, num_examples=num_valid
        )


def content(store):
    file = io.BytesIO()
    store.save(file)
    return file.getvalue()


BIG_TABLES = tuple(TableSpec(f"t{i}", 5000) for i in range(4))


def test_bits_do_not_depend_on_the_number_of_threads():
    contents = []
    for threads in (1, 2, 5):
        store = make_store(tables=BIG_TABLES, threads=threads)
        train(store)
        contents.append(content(store))
    assert contents[0] == contents[1] == contents[2]


def test_index_grows_and_still_finds_every_row():
    store = make_store(tables=[TableSpec("x", 1 << 40)])
    rng = np.random.default_rng(0)
    expected = {}
    for _ in range(12):
        keys = np.unique(rng.integers(0, 1 << 40, 700))
        for one, values in zip(keys.tolist(), store.read_rows(keys, create=True), strict=True):
            expected[one] = values
    assert store.num_rows == len(expected)
    keys = np.array(list(expected))
    np.testing.assert_array_equal(store.read_rows(keys), np.array(list(expected.values())))
    assert (store.read_rows(keys + 1) == 0).all()


@given(st.lists(st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1)))
def test_distinct_keys_are_those_of_a_set(keys):
    found = sorted_distinct(np.array(keys, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == sorted(set(keys))


def test_keys_given_twice_make_one_row():
    store = make_store()
    values = store.read_rows(np.array([5, 5, 5]), create=True)
    assert store.num_rows == 1
    assert (values == values[0]).all()


def test_count_scaled_l2_by_hand():
    sgd = OptimizerSpec(name="sgd", learning_rate=1.0)
    store = make_store(
        [
            SegmentSpec("flat", 1, sgd, "sum", l2_strength=0.5, l2_count_power=0),
            SegmentSpec(
                "rare",
                1,
                sgd,
                "mean",
                l2_strength=8.0,
                l2_count_power=2,
                initializer=InitializerSpec(name="uniform", scale=1),
            ),
        ],
        [TableSpec("a", 3)],
    )
    store.set_training_counts([IdCounts.of_all(np.array([4, 0, 1]))])
    prepared = store.prepare(np.array([[0], [1], [0]]), 3)
    store.locate(prepared, create=True)
    before = store.read_rows(np.array([0, 1])).astype(np.float64)
    gradients = np.array([[[1, 2]], [[3, 4]], [[5, 6]]], np.float32)
    store.update(prepared, gradients, step=7, learning_rate_factor=0.5, num_examples=2)
    after = store.read_rows(np.array([0, 1]))
    w = before[0, 1]
    np.testing.assert_allclose(after[0], [-3.0, w - 0.5 * (8 + 8 * 2 / 16 * w) / 2], rtol=1e-6)
    w = before[1, 1]
    np.testing.assert_allclose(after[1], [-1.5, w - 0.5 * (4 + 8 * 1 / 1 * w) / 2], rtol=1e-6)
    counts, last_seen = store.row_headers(np.array([0, 1, 2]))
    assert counts.tolist() == [4, 0, -1]
    assert last_seen.tolist() == [7, 7, -1]


def test_updates_by_key_equal_updates_by_occurrence():
    one, other = make_store(), make_store()
    ids = np.array([[1, 2, 0], [1, 3, 0], [4, 2, 1]])
    prepared = one.prepare(ids, 3)
    one.locate(prepared, create=True)
    gradients = np.random.default_rng(0).normal(0, 1, (3, 3, 5)).astype(np.float32)
    arguments = {"step": 2, "learning_rate_factor": 1.0, "num_examples": 3}
    one.update(prepared, gradients, **arguments)
    other.read_rows(prepared.keys_U, create=True)
    sums = np.zeros((prepared.num_unique, 5), np.float32)
    np.add.at(sums, prepared.inverse_P, gradients.reshape(-1, 5))
    order = np.random.default_rng(1).permutation(prepared.num_unique)
    missing = key(1, 39)
    dropped = other.apply_gradients(
        np.append(prepared.keys_U[order], missing),
        np.append(sums[order], np.full((1, 5), 1e9, np.float32), axis=0),
        np.append(prepared.num_occurrences[order], 1),
        **arguments,
    )
    assert dropped == 1
    np.testing.assert_array_equal(one.read_rows(prepared.keys_U), other.read_rows(prepared.keys_U))
    assert (other.read_rows(np.array([missing])) == 0).all()


@given(st.integers(0, 2**32), st.integers(2, 6), st.sampled_from([1, 3]))
def test_ids_below_the_count_have_no_row_and_change_nothing_for_the_others(
    seed, admit_after, threads
):
    chance = np.random.default_rng(seed)
    counts = [chance.integers(0, 8, table.num_ids) for table in TABLES]
    admitting, open_to_all = (
        make_store(threads=threads, admit_after=least) for least in (admit_after, 1)
    )
    for store in (admitting, open_to_all):
        store.set_training_counts([IdCounts.of_all(one) for one in counts])
    for step in range(1, 4):
        ids = np.stack([chance.integers(0, table.num_ids, 60) for table in TABLES], axis=1)
        gradients = chance.normal(size=(60, 3, 5)).astype(np.float32)
        for store in (admitting, open_to_all):
            prepared = store.prepare(ids, 50)
            store.locate(prepared, create=True)
            store.update(prepared, gradients, step=step, learning_rate_factor=1.0, num_examples=50)
    rows = [
        {
            (int(one) >> 44, int(one) & (2**44 - 1)): values
            for block in store.iterate_rows(7)
            for one, values in zip(block.keys, block.values, strict=True)
        }
        for store in (admitting, open_to_all)
    ]
    admitted = {place for place in rows[1] if counts[place[0]][place[1]] >= admit_after}
    assert rows[0].keys() == admitted
    for place in admitted:
        np.testing.assert_array_equal(rows[0][place], rows[1][place])
    rare = np.array([key(1, i) for i in range(40) if counts[1][i] < admit_after], np.int64)
    assert not admitting.read_rows(rare, create=True).any()
    dropped = admitting.apply_gradients(
        rare,
        np.ones((len(rare), 5), np.float32),
        np.ones(len(rare), np.int32),
        step=9,
        learning_rate_factor=1.0,
        num_examples=1,
    )
    assert dropped == len(rare)
    assert admitting.num_rows == len(admitted)


def test_admission_by_count_needs_counts():
    store = make_store(admit_after=2)
    assert not store.read_rows(np.array([key(0, 1)])).any()
    with pytest.raises(ValueError, match="without training counts"):
        store.read_rows(np.array([key(0, 1)]), create=True)


def test_memory_is_accounted_exactly():
    store = make_store(tables=[TableSpec("x", 100_000)])
    # Header 2, values 5, Adagrad 1, Adam 8 float32 places: 16, a multiple of 4 already.
    assert store.row_bytes == 64
    assert store.memory_bytes() == 1024 * 8
    store.read_rows(np.arange(600), create=True)
    assert store.rows.bytes_a_row == 64 + 8 + 1
    assert store.memory_bytes() == 600 * (64 + 8 + 1) + 2048 * 8
    store.prepare(np.zeros((100, 1), np.int64), 100)
    scratch_slots = 256
    assert store.memory_bytes() == 600 * (64 + 8 + 1) + 2048 * 8 + scratch_slots * 16 + 100 * 4


def test_more_rows_than_room_is_an_error_that_changes_nothing(monkeypatch):
    monkeypatch.setattr("ctr_pipeline.embeddings.rows.MOST_ROWS", 10)
    store = make_store(tables=[TableSpec("x", 100)])
    store.read_rows(np.arange(8), create=True)
    with pytest.raises(TrainingError, match="11 embedding rows are needed, there is room for 10"):
        store.read_rows(np.arange(7, 11), create=True)
    assert store.num_rows == 8


def test_save_and_load_are_bit_exact_and_training_goes_on_alike():
    store = make_store(tables=BIG_TABLES)
    train(store)
    saved = content(store)
    other = make_store(tables=BIG_TABLES)
    other.read_rows(np.arange(77), create=True)
    other.load(io.BytesIO(saved))
    assert content(other) == saved
    train(store, steps=2)
    train(other, steps=2)
    assert content(other) == content(store)


def test_an_empty_store_round_trips():
    store = make_store()
    store.load(io.BytesIO(content(store)))
    assert store.num_rows == 0
    assert list(store.iterate_rows(10)) == []


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"segments": (LINEAR,)}, "record_floats: 16 in the file, 4 configured"),
        (
            {
                "segments": (
                    SegmentSpec(
                        "linear", 1, OptimizerSpec(name="rowwise_adagrad", learning_rate=1.0), "sum"
                    ),
                    VECTOR,
                )
            },
            r"segments\[0\].optimizer: 'adagrad' in the file, 'rowwise_adagrad' configured",
        ),
        ({"seed": 4}, "seed: 3 in the file, 4 configured"),
        (
            {"tables": (TABLES[0], TableSpec("b", 41), TABLES[2])},
            r"tables\[1\].num_ids: 40 in the file, 41 configured",
        ),
        ({"tables": TABLES[:2]}, "tables: 3 in the file, 2 configured"),
    ],
)
def test_rows_of_another_make_are_refused(change, difference):
    store = make_store()
    store.read_rows(np.arange(5), create=True)
    other = make_store(**change)
    other.read_rows(np.arange(2), create=True)
    with pytest.raises(CheckpointError, match=difference):
        other.load(io.BytesIO(content(store)))
    assert other.num_rows == 2


def test_every_damaged_byte_and_every_truncation_is_noticed():
    store = make_store()
    store.read_rows(np.arange(3), create=True)
    saved = content(store)
    target = make_store()
    for place in range(len(saved)):
        damaged = bytearray(saved)
        damaged[place] ^= 1
        with pytest.raises(CheckpointError):
            target.load(io.BytesIO(bytes(damaged)))
        with pytest.raises(CheckpointError):
            target.load(io.BytesIO(saved[:place]))
    with pytest.raises(CheckpointError, match="something follows its end"):
        target.load(io.BytesIO(saved + b"x"))
    assert target.num_rows == 0
    target.load(io.BytesIO(saved))
    assert target.num_rows == 3


def test_the_file_is_named_in_errors(tmp_path):
    path = tmp_path / "rows.bin"
    path.write_bytes(b"not this")
    with (
        path.open("rb") as file,
        pytest.raises(CheckpointError, match=r"rows\.bin: the file is damaged"),
    ):
        make_store().load(file)


def test_arrays_that_do_not_fit_are_refused():
    store = make_store()
    with pytest.raises(ValueError, match="id 7 in row 1, field 0 is not in table 'a' of 7 ids"):
        store.prepare(np.array([[1, 2, 0], [7, 2, 0]]), 2)
    store.prepare(np.array([[1, 2, 0], [7, -2, 0]]), 1)
    with pytest.raises(ValueError, match=r"\[B, 3\]"):
        store.prepare(np.zeros((2, 2), np.int64), 2)
    with pytest.raises(ValueError, match="int32 or int64"):
        store.prepare(np.zeros((2, 3), np.uint8), 2)
    with pytest.raises(ValueError, match="num_valid 3"):
        store.prepare(np.zeros((2, 3), np.int64), 3)
    prepared = store.prepare(np.zeros((2, 3), np.int64), 2)
    with pytest.raises(ValueError, match="not located"):
        store.gather(prepared)
    store.locate(prepared, create=True)
    with pytest.raises(ValueError, match="out of shape"):
        store.gather(prepared, np.zeros((2, 3, 5)))
    with pytest.raises(ValueError, match="counts of tables of"):
        store.set_training_counts([IdCounts.of_all(np.zeros(3, np.int64))])
    with pytest.raises(ValueError, match="names a table"):
        store.read_rows(np.array([key(3, 0)]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": [TABLES[0], TABLES[0]]}, "distinct names"),
        ({"segments": []}, "distinct names"),
        ({"segments": [LINEAR, LINEAR]}, "distinct names"),
        ({"threads": 0}, "threads 0"),
        ({"field_tables": [0, 3]}, "not there"),
    ],
)
def test_stores_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_store(**arguments)


def test_a_store_of_no_tables_takes_batches_of_no_fields():
    store = make_store(tables=[])
    store.set_training_counts([])
    prepared = store.prepare(np.zeros((4, 0), np.int32), 3)
    store.locate(prepared, create=True)
    linear, vectors = store.gather_parts(prepared, num_leading=1)
    assert (linear.shape, vectors.shape) == ((4, 0, 1), (4, 0, store.width - 1))
    store.update(prepared, (linear, vectors), step=1, learning_rate_factor=1.0, num_examples=3)
    file = io.BytesIO()
    store.save(file)
    file.seek(0)
    store.load(file)
    assert (store.num_rows, store.evict(9), list(store.iterate_rows(2))) == (0, 0, [])


def test_batches_are_prepared_beside_a_step():
    store = make_store(tables=BIG_TABLES)
    rng = np.random.default_rng(0)
    batches_BF = [rng.integers(0, 5000, (500, 4)) for _ in range(20)]
    expected = [make_store(tables=BIG_TABLES).prepare(ids, 500).keys_U for ids in batches_BF]
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(store.prepare, ids, 500) for ids in batches_BF]
        train(store, steps=2)
        for future, keys in zip(futures, expected, strict=True):
            np.testing.assert_array_equal(future.result().keys_U, keys)


def test_arrays_of_any_make_give_the_same_rows():
    contents = []
    for make in (np.array, np.asfortranarray, read_only):
        store = make_store()
        prepared = store.prepare(make(np.array([[1, 2, 0], [1, 3, 0]])), 2)
        store.locate(prepared, create=True)
        gradients = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
        store.update(prepared, make(gradients), step=1, learning_rate_factor=1.0, num_examples=2)
        contents.append(content(store))
    assert contents[0] == contents[1] == contents[2]


def read_only(array):
    array.flags.writeable = False
    return array


def test_parts_are_the_whole_in_two_arrays():
    small = InitializerSpec(name="uniform", scale=0.1)

    def made(threads):
        store = EmbeddingStore(
            [TableSpec("a", 50), TableSpec("b", 20)],
            [
                SegmentSpec(
                    "w", 1, OptimizerSpec(name="adagrad", learning_rate=0.1), "sum", 1.0, 1, small
                ),
                SegmentSpec(
                    "v", 4, OptimizerSpec(name="adam", learning_rate=0.1), "mean", 1.0, 2, small
                ),
            ],
            seed=3,
            threads=threads,
        )
        prepared = store.prepare(ids, 30)
        store.locate(prepared, create=True)
        return store, prepared

    chance = np.random.default_rng(0)
    ids = np.stack([chance.integers(0, 50, 32), chance.integers(0, 20, 32)], axis=1)
    gradients = chance.normal(size=(32, 2, 5)).astype(np.float32)
    (whole, whole_batch), (parts, parts_batch) = made(1), made(2)
    for step in (1, 2):
        settings = {"step": step, "learning_rate_factor": 1.0, "num_examples": 30}
        whole.update(whole_batch, gradients, **settings)
        parts.update(parts_batch, (gradients[:, :, :1], gradients[:, :, 1:]), **settings)
        leading, trailing = parts.gather_parts(parts_batch, 1)
        assert leading.shape == (32, 2, 1)
        assert trailing.ctypes.data % 64 == 0
        values = whole.gather(whole_batch)
        np.testing.assert_array_equal(np.concatenate([leading, trailing], axis=2), values)


def test_released_rows_are_gone_and_their_memory_is_the_systems():
    store = EmbeddingStore(
        [TableSpec("t", 1_000_000)],
        [
            SegmentSpec(
                "v",
                16,
                OptimizerSpec(name="adam", learning_rate=0.1),
                "sum",
                initializer=InitializerSpec(name="uniform", scale=0.5),
            )
        ],
        seed=1,
        threads=1,
    )
    keys = np.arange(500_000, dtype=np.int64)
    before = psutil.Process().memory_info().rss
    values = store.read_rows(keys[:10], create=True)
    store.read_rows(keys, create=True)
    held = psutil.Process().memory_info().rss - before
    store.release()
    assert psutil.Process().memory_info().rss - before < held / 2
    assert store.num_rows == 0
    assert not store.read_rows(keys[:10]).any()
    np.testing.assert_array_equal(store.read_rows(keys[:10], create=True), values)
