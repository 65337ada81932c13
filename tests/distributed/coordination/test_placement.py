from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_specs import job_spec, optimizer_shape

from ctr_pipeline.distributed.coordination.placement import (
    dense_ranges,
    owned_partitions,
    owner_of,
)

SPEC = job_spec(num_dense=10)


@given(st.integers(1, 100), st.integers(1, 12))
@settings(deadline=None)
def test_each_partition_has_one_owner(num_partitions, num_servers):
    spec = replace(SPEC, num_partitions=num_partitions, num_parameter_servers=num_servers)
    owned = [owned_partitions(spec, server) for server in range(num_servers)]
    assert sorted(partition for each in owned for partition in each) == list(range(num_partitions))
    for server, partitions in enumerate(owned):
        assert all(owner_of(partition, num_servers) == server for partition in partitions)
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@given(st.integers(0, 1000), st.integers(1, 12))
@settings(deadline=None)
def test_ranges_follow_each_other_and_are_of_near_equal_length(num_dense, num_servers):
    ranges = dense_ranges(replace(SPEC, num_dense=num_dense), num_servers)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_dense
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
    lengths = [last - first for first, last in ranges]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("num_servers", [1, 2, 5])
def test_an_optimizer_with_one_accumulator_for_all_is_not_divided(num_servers):
    spec = replace(SPEC, dense_optimizer=optimizer_shape("rowwise_adagrad"))
    ranges = dense_ranges(spec, num_servers)
    assert ranges[0] == (0, 10)
    assert ranges[1:] == ((10, 10),) * (num_servers - 1)
