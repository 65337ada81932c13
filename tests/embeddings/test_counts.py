import numpy as np
import pytest

from ctr_pipeline.embeddings.counts import IdCounts


def test_counts_equal_numpy_per_table():
    generator = np.random.default_rng(0)
    sizes = (5, 1, 300)
    batches = [
        np.stack([generator.integers(0, size, 1000, dtype=np.int32) for size in sizes], axis=1)
        for _ in range(3)
    ]
    counts = IdCounts(sizes)
    for batch in batches:
        counts.add(batch)
    ids = np.concatenate(batches)
    for field, counted in enumerate(counts.per_table()):
        assert np.array_equal(counted, np.bincount(ids[:, field], minlength=sizes[field]))
    assert counts.flat.sum() == ids.size


@pytest.mark.parametrize("bad", [-1, 5])
def test_an_id_outside_its_field_is_refused(bad):
    with pytest.raises(ValueError, match="outside its table"):
        IdCounts((5,)).add(np.array([[0], [bad]], dtype=np.int32))
