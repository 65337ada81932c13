"""What a server tells of its partitions, against what was asked of it."""

from dataclasses import replace

import numpy as np
import pytest

from ctr_pipeline.embeddings.partition import partitions_of
from tests.distributed.ps_requests import Caller, batch, counting, key, nothing_trained

KEYS = tuple(key(2, number) for number in range(40))


@pytest.fixture
def spec(make_spec, make_optimizer):
    return replace(counting(make_spec(), make_optimizer), num_partitions=8)


@pytest.fixture
def caller(spec, make_core):
    found = Caller(make_core(spec))
    found.init()
    return found


def by_partition(keys):
    return tuple(np.bincount(partitions_of(np.array(keys), 8), minlength=8).tolist())


def test_rows_and_keys_are_counted_by_partition(caller):
    caller.pull(KEYS)
    caller.pull(KEYS[:10])
    caller.push(KEYS[5:], batch(0))
    loads = caller.core.state.partition_loads()
    assert loads.partitions == tuple(range(8))
    assert loads.rows == by_partition(KEYS)
    assert loads.pulled_keys == by_partition((*KEYS, *KEYS[:10]))
    assert loads.pushed_keys == by_partition(KEYS[5:])
    bytes_a_row = {size // rows for size, rows in zip(loads.row_bytes, loads.rows, strict=True)}
    assert len(bytes_a_row) == 1


def test_rows_made_later_are_added(caller):
    caller.pull(KEYS[:7])
    assert caller.core.state.partition_loads().rows == by_partition(KEYS[:7])
    caller.pull(KEYS)
    assert caller.core.state.partition_loads().rows == by_partition(KEYS)


def test_rows_are_counted_anew_after_a_restore(caller):
    caller.pull(KEYS)
    caller.core.state.partition_loads()
    caller.core.checkpoints.restore(nothing_trained(3))
    assert sum(caller.core.state.partition_loads().rows) == 0
