from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.placement import Placement, balanced_placement
from ctr_pipeline.specs.optimizer import OptimizerSpec
from tests.distributed.job_specs import job_spec

SPEC = job_spec(num_dense=10)


@given(st.integers(1, 100), st.integers(1, 12))
def test_each_partition_has_one_owner(num_partitions, num_servers):
    spec = replace(SPEC, num_partitions=num_partitions, num_parameter_servers=num_servers)
    placement = balanced_placement(spec)
    owned = [placement.partitions_of(server) for server in range(num_servers)]
    assert sorted(partition for each in owned for partition in each) == list(range(num_partitions))
    for server, partitions in enumerate(owned):
        assert all(placement.owners[partition] == server for partition in partitions)
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@given(st.integers(0, 1000), st.integers(1, 12))
def test_ranges_follow_each_other_and_are_of_near_equal_length(num_dense, num_servers):
    ranges = balanced_placement(
        replace(SPEC, num_dense=num_dense, num_parameter_servers=num_servers)
    ).dense
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_dense
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
    lengths = [last - first for first, last in ranges]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("num_servers", [1, 2, 5])
def test_an_optimizer_with_one_accumulator_for_all_is_not_divided(num_servers):
    spec = replace(
        SPEC,
        dense_optimizer=OptimizerSpec(name="rowwise_adagrad", learning_rate=0.01),
        num_parameter_servers=num_servers,
    )
    ranges = balanced_placement(spec).dense
    assert ranges[0] == (0, 10)
    assert ranges[1:] == ((10, 10),) * (num_servers - 1)


def test_move_gives_partitions_to_the_target_and_leaves_the_rest():
    before = Placement(0, (0, 1, 0, 1), ((0, 5), (5, 10)))
    after = before.moved((0, 3), 2, version=4)
    assert after == Placement(4, (2, 1, 0, 2), ((0, 5), (5, 10), (10, 10)))


def test_a_dense_range_joins_the_one_that_it_follows():
    before = Placement(0, (0, 0), ((0, 4), (4, 7), (7, 10)))
    after = before.moved((), 1, version=1, dense_from=2)
    assert after.dense == ((0, 4), (4, 10), (10, 10))
    assert after.without_idle(1).dense == ((0, 4), (4, 10), (10, 10))[:2]


def test_a_dense_range_goes_to_one_that_has_none():
    before = Placement(0, (0, 0), ((10, 10), (0, 10)))
    assert before.moved((), 0, version=1, dense_from=1).dense == ((0, 10), (10, 10))


def test_servers_that_hold_nothing_leave_from_the_end():
    placement = Placement(3, (0, 2, 0), ((0, 10), (10, 10), (10, 10), (10, 10)))
    assert placement.without_idle(1).num_servers == 3
    assert placement.without_idle(4).num_servers == 4
