from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.messages import PartitionLoads
from ctr_pipeline.distributed.coordination.moves import (
    BusyPartition,
    plan_balance,
    rank_partitions,
)
from ctr_pipeline.distributed.coordination.placement import place_evenly


def loads(pulled, pushed, partitions=(3, 5, 7)):
    nothing = (0,) * len(partitions)
    return PartitionLoads(partitions, nothing, nothing, pulled, pushed)


def test_partitions_are_ranked_by_what_they_served_since():
    ranked = rank_partitions(loads((10, 50, 0), (10, 10, 40)), loads((0, 50, 0), (0, 10, 0)))
    assert ranked == (BusyPartition(7, 40 / 60), BusyPartition(3, 20 / 60), BusyPartition(5, 0.0))


def test_a_partition_that_is_new_here_counts_whole():
    before = loads((5, 5), (0, 0), partitions=(3, 5))
    assert rank_partitions(loads((5, 5, 9), (0, 0, 0)), before)[0] == BusyPartition(7, 1.0)


def test_counters_of_a_new_process_begin_anew():
    ranked = rank_partitions(loads((1, 3, 0), (0, 0, 0)), loads((100, 0, 0), (0, 0, 0)))
    assert ranked[0] == BusyPartition(5, 0.75)


def test_a_server_that_served_nothing_has_no_busy_partition():
    assert rank_partitions(loads((4, 4, 4), (1, 1, 1)), loads((4, 4, 4), (1, 1, 1))) == ()


@given(st.integers(1, 40), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 9))
@settings(deadline=None)
def test_moves_end_with_as_many_partitions_at_each_wanted_server(partitions, numbers, most):
    placement = place_evenly(partitions, 10, numbers[0], is_divided=True)
    for wanted in numbers[1:]:
        for version in range(1000):
            planned = plan_balance(placement, wanted, most_partitions=most)
            if planned is None:
                break
            assert len(planned.partitions) <= most
            placement = planned.applied_to(placement, version)
        assert planned is None
        placement = placement.without_idle(wanted)
        held = [len(placement.partitions_of(server)) for server in range(wanted)]
        assert sum(held) == partitions
        assert max(held) - min(held) <= 1
        ranges = sorted(bounds for bounds in placement.dense if bounds[0] < bounds[1])
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 10
        assert all(one[1] == other[0] for one, other in pairwise(ranges))
