from ctr_pipeline.distributed.coordination.messages import PartitionLoads
from ctr_pipeline.distributed.coordination.moves import BusyPartition, rank_partitions


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
