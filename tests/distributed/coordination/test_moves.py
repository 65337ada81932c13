import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.messages import MemberStats, PartitionLoads
from ctr_pipeline.distributed.coordination.moves import (
    BusyPartition,
    HeatRules,
    HeatWatch,
    HotServer,
    PlannedMove,
    plan_balance,
    rank_partitions,
)
from ctr_pipeline.distributed.coordination.placement import even_placement


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
def test_moves_end_with_as_many_partitions_at_each_wanted_server(partitions, numbers, most):
    placement = even_placement(partitions, 10, numbers[0], is_divided=True)
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


# Hot servers.

RULES = HeatRules(hot_seconds=30.0)


@dataclass
class Cluster:
    """Servers under the load of workers, a second at a time.

    Each record costs a processor second for each unit of the weights of all partitions, and of the
    dense parameters of each server. Workers wait for the server that is furthest behind: it is what
    limits them, unless they are slow.
    """

    weights: list[float]
    num_servers: int
    most_speed: float = 1e9
    rules: HeatRules = RULES
    cores: tuple[float, ...] = ()
    dense: tuple[float, ...] = ()
    now: float = 0.0
    owners: list[int] = field(init=False)
    moves: list[tuple[float, PlannedMove]] = field(default_factory=list)
    told: list[HotServer] = field(default_factory=list)

    def __post_init__(self):
        self.owners = [partition % self.num_servers for partition in range(len(self.weights))]
        self.cores = self.cores or (1.0,) * self.num_servers
        self.dense = self.dense or (0.0,) * self.num_servers
        self.watch = HeatWatch(self.rules)
        self.dense_cpu = [0.0] * self.num_servers
        self.cpu = [0.0] * self.num_servers
        self.keys = [[0.0] * len(self.weights) for _ in range(self.num_servers)]
        self.under_way = None

    def work_of(self, server):
        own = [w for w, owner in zip(self.weights, self.owners, strict=True) if owner == server]
        return sum(own) + self.dense[server]

    @property
    def speed(self):
        limits = [
            cores / work
            for server, cores in enumerate(self.cores)
            if (work := self.work_of(server)) > 0
        ]
        return min([self.most_speed, *limits])

    @property
    def shares(self):
        return [
            self.speed * self.work_of(server) / self.cores[server]
            for server in range(self.num_servers)
        ]

    def stats(self, server):
        own = tuple(p for p, owner in enumerate(self.owners) if owner == server)
        served = tuple(int(self.keys[server][p]) for p in own)
        nothing = (0,) * len(own)
        loads = PartitionLoads(own, nothing, nothing, served, nothing)
        return MemberStats(
            cpu_seconds=self.cpu[server],
            dense_bytes=int(4e9 * self.dense_cpu[server]),
            bytes_received=int(4e9 * self.dense_cpu[server]),
            bytes_sent=int(1e9 * (self.cpu[server] - self.dense_cpu[server])),
            cores=self.cores[server],
            loads=loads,
        )

    def run(self, seconds):
        for _ in range(int(seconds)):
            self.now += 1.0
            speed = self.speed
            for server, work in enumerate(self.dense):
                self.cpu[server] += speed * work
                self.dense_cpu[server] += speed * work
            for partition, owner in enumerate(self.owners):
                self.cpu[owner] += speed * self.weights[partition]
                self.keys[owner][partition] += 1e4 * speed * self.weights[partition]
            if self.under_way is not None:
                for partition in self.under_way.partitions:
                    self.owners[partition] = self.under_way.target
                self.watch.end_move(self.now, self.under_way.partitions)
                self.moves.append((self.now, self.under_way))
                self.under_way = None
                continue
            found = self.watch.poll(self.now, [self.stats(s) for s in range(self.num_servers)])
            if isinstance(found, HotServer):
                self.told.append(found)
            else:
                self.under_way = found
        return self


def skewed(seed, num_partitions=64, power=1.1):
    """As the columns of real rows: a few partitions have most of the work."""
    weights = [1.0 / (place + 1) ** power for place in range(num_partitions)]
    random.Random(seed).shuffle(weights)
    return weights


@pytest.mark.parametrize("seed", range(5))
def test_skewed_load_becomes_even_and_then_nothing_moves(seed):
    cluster = Cluster(skewed(seed, power=0.8), 4)
    before = cluster.speed
    cluster.run(1200)
    assert cluster.moves
    assert max(cluster.shares) - min(cluster.shares) < 0.3
    assert cluster.speed > before
    moves = len(cluster.moves)
    cluster.run(3600)
    assert len(cluster.moves) == moves
    times = Counter(p for _, planned in cluster.moves for p in planned.partitions)
    assert max(times.values()) <= 2


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=24),
    st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=4),
    st.floats(0.1, 100.0),
)
def test_moves_make_nothing_worse_and_end_whatever_the_load(weights, cores, most_speed):
    cluster = Cluster(weights, len(cores), most_speed=most_speed, cores=tuple(cores))
    speed = cluster.speed
    for _ in range(20):
        cluster.run(120)
        assert cluster.speed >= speed * (1 - 1e-9)
        speed = cluster.speed
    moves = len(cluster.moves)
    cluster.run(1800)
    assert len(cluster.moves) == moves
    for (one, _), (other, _) in pairwise(cluster.moves):
        assert other - one >= 2 * RULES.hot_seconds


def test_the_hottest_partitions_of_the_busiest_server_go_to_the_idlest():
    # Servers 0, 1, 2 have partitions 0 3 6, 1 4 7, 2 5 8.
    cluster = Cluster([0.5, 0.3, 0.0, 0.2, 0.3, 0.1, 0.3, 0.1, 0.1], 3, most_speed=1.0)
    cluster.run(31)
    planned = cluster.under_way
    assert (planned.source, planned.target, planned.takes_dense) == (0, 2, False)
    # With partition 6 as well server 2 would be at 100 %.
    assert planned.partitions == (0,)
    assert planned.reason == (
        "parameter server 0 was at 100% of its cores for 30 s and parameter server 2, the idlest "
        "other, at 20%; they served 50% of its keys"
    )


def test_a_partition_that_would_make_the_target_hot_stays():
    cluster = Cluster([0.7, 0.1, 0.2, 0.05, 0.1], 2, most_speed=1.0)
    cluster.run(31)
    assert cluster.under_way.partitions == (2, 4)


def test_the_work_of_dense_parameters_is_no_heat_of_partitions():
    cluster = Cluster([0.2, 0.1, 0.2, 0.1], 2, most_speed=1.0, dense=(0.6, 0.0))
    cluster.run(31)
    # Both: 60 % each. If all of server 0's work moved with its partitions, one would be enough.
    assert cluster.under_way.partitions == (0, 2)


def test_a_server_that_is_busy_with_dense_parameters_is_told_of():
    cluster = Cluster([0.02, 0.1, 0.02, 0.1], 2, most_speed=1.0, dense=(0.96, 0.0)).run(600)
    assert not cluster.moves
    (told,) = cluster.told
    assert told.what.endswith("dense parameters took about 96% of that")
    assert told.remedy == "no move helps, as its dense parameters are most of its work"


def test_partitions_stay_until_a_server_was_hot_for_the_time_stated():
    cluster = Cluster([0.5, 0.1, 0.5, 0.1], 2, most_speed=1.0)
    cluster.run(30)
    assert cluster.under_way is None
    assert not cluster.moves


def test_partitions_stay_when_a_server_was_hot_now_and_then():
    cluster = Cluster([0.5, 0.1, 0.5, 0.1], 2)
    for _ in range(60):
        cluster.most_speed = 1.0
        cluster.run(10)
        cluster.most_speed = 0.5
        cluster.run(10)
    assert not cluster.moves
    assert not cluster.told


def test_a_server_alone_is_told_of():
    cluster = Cluster([0.5, 0.6, 0.2], 1).run(1200)
    assert not cluster.moves
    assert [told.server for told in cluster.told] == [0, 0]
    assert "partition 1 served 46% of its keys" in cluster.told[0].what
    assert "none to move partitions to" in cluster.told[0].remedy


def test_one_partition_that_is_the_heat_is_named():
    cluster = Cluster([1.0, 0.01, 0.02, 0.01], 2).run(600)
    assert not cluster.moves
    (told,) = cluster.told
    assert told.remedy == "no move helps, as partition 0 alone is most of its work"


def test_partitions_stay_when_all_servers_are_busy():
    cluster = Cluster([0.5, 0.48, 0.5, 0.48], 2).run(600)
    assert not cluster.moves
    assert {told.server for told in cluster.told} == {0, 1}
    assert all(told.remedy.startswith("all are busy") for told in cluster.told)


def test_hot_server_is_told_of_where_partitions_must_not_move():
    rules = HeatRules(may_move=False)
    cluster = Cluster([0.5, 0.1, 0.5, 0.1], 2, rules=rules).run(600)
    assert not cluster.moves
    assert [told.server for told in cluster.told] == [0]


def test_a_server_of_four_cores_is_not_hot_with_two_busy():
    cluster = Cluster([1.0, 0.1, 1.0, 0.1], 2, most_speed=1.0, cores=(4.0, 4.0)).run(600)
    assert not cluster.moves
    assert not cluster.told


def test_a_new_process_and_a_pause_of_training_begin_the_time_anew():
    cluster = Cluster([0.5, 0.1, 0.5, 0.1], 2, most_speed=1.0)
    cluster.run(25)
    cluster.watch.interrupt()
    cluster.run(25)
    assert cluster.under_way is None
    cluster.cpu[1] = 0.0
    cluster.run(25)
    assert cluster.under_way is None
    cluster.run(10)
    assert cluster.moves or cluster.under_way
