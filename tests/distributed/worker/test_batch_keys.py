import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.placement import even_placement
from ctr_pipeline.distributed.worker.batch_keys import (
    batch_without_keys,
    common_positions,
    divide_keys,
)
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.unique import BatchPreparer
from ctr_pipeline.specs.table import TableSpec

NUM_PARTITIONS = 8
TABLES = (TableSpec("a", 100), TableSpec("b", 100))


@given(
    ids=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=30),
    num_servers=st.integers(1, 4),
)
def test_each_server_has_the_keys_of_its_partitions(ids, num_servers):
    placement = even_placement(NUM_PARTITIONS, 10, num_servers, is_divided=True)
    ids_BF = np.array(ids, np.int64).reshape(-1, 2)
    batch = BatchPreparer(TABLES, (0, 1)).prepare(ids_BF, len(ids))
    divided = divide_keys(batch, placement, NUM_PARTITIONS)
    owners = np.array(placement.owners)
    for server, (first, last) in enumerate(zip(divided.bounds, divided.bounds[1:], strict=False)):
        keys = divided.keys_U[first:last]
        assert (owners[partitions_of(keys, NUM_PARTITIONS)] == server).all()
    assert divided.bounds[-1] == len(batch.keys_U)
    np.testing.assert_array_equal(divided.keys_U[divided.positions_U], batch.keys_U)
    np.testing.assert_array_equal(batch.keys_U[divided.order_U], divided.keys_U)
    np.testing.assert_array_equal(
        divided.num_occurrences_U[divided.positions_U], batch.num_occurrences
    )


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(0, 60), unique=True))
def test_common_places_are_those_of_a_set(keys, others):
    found = common_positions(np.array(list(keys), np.int64), np.array(others, np.int64))
    assert found.tolist() == [place for place, key in enumerate(others) if key in keys]


def test_a_model_without_fields_has_batches_without_keys():
    batch = batch_without_keys(np.empty((5, 0), np.int64), 3)
    assert (batch.shape, batch.num_valid, batch.num_unique) == ((5, 0), 3, 0)
    with pytest.raises(ValueError, match="not \\[B, 0\\]"):
        batch_without_keys(np.empty((5, 1), np.int64), 3)
