import numpy as np
import pytest

from ctr_pipeline.embeddings import counts as id_counts
from ctr_pipeline.embeddings.counts import IdCounter, IdCounts, pack_counts, unpack_counts
from ctr_pipeline.errors import TrainingError

SIZES = (5, 1, 300, 2_000_000_000)
FIELD_TABLES = (0, 1, 2, 3, 2, 3)


@pytest.fixture(params=[1, 1 << 22])
def _most_small(request, monkeypatch):
    monkeypatch.setattr(id_counts, "_MOST_SMALL", request.param)


def draw_batch(generator):
    """Ids of the fields; those of large tables repeat within and between batches."""
    most = [min(SIZES[table], 40_000) for table in FIELD_TABLES]
    ids = np.stack([generator.integers(0, n, 1000, dtype=np.int32) for n in most], axis=1)
    ids[:, 3::2] *= 50_000
    return ids


def numpy_counts(batches, table):
    fields = [field for field, of in enumerate(FIELD_TABLES) if of == table]
    ids = np.concatenate(batches)[:, fields].astype(np.int64)
    return np.unique(ids, return_counts=True)


@pytest.mark.usefixtures("_most_small")
def test_counts_of_parts_together_equal_numpy():
    generator = np.random.default_rng(0)
    batches = [draw_batch(generator) for _ in range(4)]
    parts = [IdCounter(SIZES, FIELD_TABLES), IdCounter(SIZES, FIELD_TABLES, threads=2)]
    for number, batch in enumerate(batches):
        parts[number % 2].add(batch)
    parts[0].add_counted(unpack_counts(pack_counts(parts[1].per_table()), SIZES))
    counted = parts[0].per_table()
    assert pack_counts(counted).nbytes < 200_000
    for table, one in enumerate(counted):
        ids, counts = numpy_counts(batches, table)
        assert one.num_ids == SIZES[table]
        assert np.array_equal(one.occurring(), (ids, counts))
        others = np.setdiff1d([0, one.num_ids // 2, one.num_ids - 1], ids)
        asked = generator.permutation(np.concatenate([ids, others]))
        expected = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        assert one.look_up(asked).tolist() == [expected.get(one, 0) for one in asked.tolist()]


@pytest.mark.usefixtures("_most_small")
def test_id_counts_are_zero_when_nothing_was_counted():
    for one in IdCounter(SIZES).per_table():
        assert one.look_up(np.array([0, one.num_ids - 1])).tolist() == [0, 0]


@pytest.mark.usefixtures("_most_small")
@pytest.mark.parametrize("bad", [-1, 5])
def test_an_id_outside_its_field_is_refused(bad):
    with pytest.raises(ValueError, match="outside its table"):
        IdCounter((5,)).add(np.array([[0], [bad]], dtype=np.int32))


def test_counts_of_other_tables_are_refused():
    packed = pack_counts([IdCounts.of_all(np.arange(5)), IdCounts.of_all(np.zeros(9, np.int64))])
    for sizes in ((5, 8), (5, 9, 1)):
        with pytest.raises(ValueError, match="counts of tables"):
            unpack_counts(packed, sizes)
    for cut, sizes in ((packed[:-1], (5, 9)), (packed, (5,))):
        with pytest.raises(ValueError, match="numbers, not"):
            unpack_counts(cut, sizes)


def test_more_ids_than_rows_can_have_are_refused(monkeypatch):
    monkeypatch.setattr(id_counts, "MOST_ROWS", 100)
    counter = IdCounter((1 << 30,))
    counter.add(np.arange(100, dtype=np.int32)[:, None])
    counter.add(np.arange(100, dtype=np.int32)[:, None])
    with pytest.raises(TrainingError, match="more than 100 distinct ids"):
        counter.add(np.array([[100]], np.int32))
