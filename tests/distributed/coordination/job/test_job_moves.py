"""Partitions move by decision of the job, and by no other."""

import pytest

from ctr_pipeline.distributed.coordination.events import (
    AnnouncePlacement,
    CutTaken,
    MoveFailed,
    MovePartitions,
    MoveReady,
    RestoreCut,
    ServersAsked,
    StartMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.messages import MemberStats, PartitionLoads
from ctr_pipeline.distributed.coordination.placement import even_placement
from tests.distributed.coordination.job_bench import Bench

FOUR = even_placement(4, 10, 1, is_divided=True)


@pytest.fixture
def bench():
    found = Bench(placement=FOUR)
    found.begin_training("w")
    return found


def grow(bench):
    bench.tell(ServersAsked(2))
    bench.register("ps", 1, "q")
    bench.tell(Tick())
    return bench.all_of(MovePartitions)[-1]


def test_a_new_server_is_started_and_gets_its_share(bench):
    bench.tell(ServersAsked(2))
    assert (bench.all_of(StartMember)[-1].role, bench.all_of(StartMember)[-1].index) == ("ps", 1)
    assert not bench.all_of(MovePartitions)
    move = grow(bench)
    assert (move.planned.source, move.planned.target, move.version) == (0, 1, 1)
    assert len(move.planned.partitions) == 2
    # Nothing has changed until the target has everything.
    assert bench.job.placement == FOUR
    assert bench.job.ps_addresses == ("127.0.0.1:0",)
    bench.tell(MoveReady(move.generation, 1))
    assert bench.job.placement.owners.count(1) == 2
    assert bench.job.ps_addresses == ("127.0.0.1:0", "127.0.0.1:1")
    placed = bench.all_of(AnnouncePlacement)[-1]
    assert (placed.placement, placed.is_done) == (bench.job.placement, True)
    assert bench.job.generation == move.generation
    bench.tell(Tick())
    assert "partitions are where they are to be" in bench.told()


def test_a_server_that_leaves_gives_all_away_first(bench):
    bench.tell(MoveReady(1, grow(bench).version))
    bench.tell(ServersAsked(1))
    while (move := bench.all_of(MovePartitions)[-1]).version == bench.job.move_in_flight:
        assert bench.heartbeat("ps", 1, "q").directive == "go_on"
        bench.tell(MoveReady(move.generation, move.version))
        bench.tell(Tick())
    assert bench.job.placement.owners == (0, 0, 0, 0)
    assert bench.job.placement.dense == ((0, 10),)
    # It can still be told of the move.
    assert bench.job.ps_addresses == ("127.0.0.1:0",)
    assert bench.job.ps_addresses_with(1) == ("127.0.0.1:0", "127.0.0.1:1")
    assert bench.heartbeat("ps", 1, "q").directive == "leave"
    assert bench.all_of(RestoreCut) == [RestoreCut(0, 1)]


def test_a_move_that_failed_is_void_and_tried_again_under_another_version(bench):
    move = grow(bench)
    bench.tell(MoveFailed(move.generation, move.version, "no room"))
    assert bench.job.placement == FOUR
    assert bench.all_of(AnnouncePlacement)[-1].is_done is False
    bench.tell(Tick())
    assert len(bench.all_of(MovePartitions)) == 1
    bench.tell(Tick(), after=1.5)
    assert bench.all_of(MovePartitions)[-1].version == move.version + 1
    # What is late says nothing.
    bench.tell(MoveReady(move.generation, move.version))
    assert bench.job.placement == FOUR


def test_a_rollback_voids_the_move_under_way(bench):
    move = grow(bench)
    bench.replace_server("p2")
    assert bench.job.move_in_flight != move.version
    bench.tell(MoveReady(move.generation, move.version))
    assert bench.job.placement == FOUR


def test_a_lost_server_that_holds_nothing_takes_nothing_back(bench):
    generation = bench.job.generation
    grow(bench)
    bench.see("ps", 1, "q", "killed")
    assert bench.job.generation == generation


def test_no_cut_begins_during_a_move_and_no_move_during_a_cut(bench):
    bench.train_all(most_tasks=1)
    move = grow(bench)
    bench.tell(Tick(), after=6.0)
    bench.heartbeat("ps", 0, "p")
    assert not bench.all_of(TakeCut)
    bench.holds = {TakeCut}
    bench.tell(MoveReady(move.generation, move.version))
    cut = bench.all_of(TakeCut)[-1]
    assert cut.full
    bench.tell(ServersAsked(1))
    bench.tell(Tick())
    assert len(bench.all_of(MovePartitions)) == 1
    bench.tell(CutTaken(cut.cut))
    assert len(bench.all_of(MovePartitions)) == 2


def test_the_cut_after_a_move_builds_on_the_one_before(bench):
    bench.train_all(most_tasks=1)
    bench.tell(Tick(), after=6.0)
    first = bench.all_of(TakeCut)[-1]
    move = grow(bench)
    bench.tell(MoveReady(move.generation, move.version))
    for _ in range(4):
        for role, index, name in (("ps", 0, "p"), ("ps", 1, "q"), ("worker", 0, "w")):
            bench.heartbeat(role, index, name)
        bench.tell(Tick(), after=8.0)
    second = bench.all_of(TakeCut)[-1]
    assert (second.parent, second.full) == (first.cut, False)


def test_another_master_knows_who_holds_what(bench):
    bench.tell(MoveReady(1, grow(bench).version))
    again = Job.from_ledger(bench.settings, bench.disk, bench.now)
    assert again.placement == bench.job.placement
    assert again.all_ps_addresses == bench.job.all_ps_addresses
    resumed = Job.from_ledger(bench.settings, bench.disk, bench.now, resume=True)
    assert resumed.placement == FOUR


def test_a_server_hears_the_placement_that_it_does_not_know(bench):
    bench.tell(MoveReady(1, grow(bench).version))
    reply = bench.heartbeat("ps", 0, "p")
    assert reply.placement is None
    assert reply.ps_addresses == ("127.0.0.1:0", "127.0.0.1:1")


class Busy:
    """A job of servers with two partitions each, of which server 0 is at its limit."""

    def __init__(self, num_servers=2):
        self.bench = Bench(
            num_parameter_servers=num_servers,
            placement=even_placement(2 * num_servers, 10, num_servers, is_divided=True),
        )
        self.num_servers = num_servers
        self.seconds = 0
        for index in range(1, num_servers):
            self.bench.register("ps", index, f"p{index}")
        self.bench.begin_training("w")

    def go_on(self, seconds, *, share=1.0):
        """Time passes in which everybody is heard."""
        for _ in range(seconds):
            self.seconds += 1
            for index in range(self.num_servers):
                own = self.bench.job.placement.partitions_of(index)
                keys = tuple(100 * self.seconds + partition for partition in own)
                zeros = (0,) * len(own)
                stats = MemberStats(
                    cpu_seconds=self.seconds * (share if index == 0 else 0.2),
                    loads=PartitionLoads(own, zeros, zeros, keys, zeros),
                )
                self.bench.heartbeat("ps", index, f"p{index}" if index else "p", stats=stats)
            self.bench.heartbeat("worker", 0, "w")
            self.bench.tell(Tick(), after=1.0)

    @property
    def moves(self):
        return self.bench.all_of(MovePartitions)


def test_a_hot_server_gives_a_partition_away():
    busy = Busy()
    busy.go_on(30)
    assert not busy.moves
    busy.go_on(2)
    (move,) = busy.moves
    assert (move.planned.source, move.planned.target) == (0, 1)
    assert move.planned.partitions == (0,)
    assert "at 100% of its cores for 30 s" in move.planned.reason
    busy.bench.tell(MoveReady(move.generation, move.version))
    assert busy.bench.job.placement.owners == (1, 1, 0, 1)
    # A pause, then the time that a server has to be hot for.
    busy.go_on(58)
    assert len(busy.moves) == 1
    assert not busy.bench.all_of(RestoreCut)[1:]


def test_pause_follows_a_move_that_failed_too():
    busy = Busy()
    busy.go_on(32)
    (move,) = busy.moves
    busy.bench.tell(MoveFailed(move.generation, move.version, "no room"))
    busy.go_on(58)
    assert len(busy.moves) == 1
    busy.go_on(8)
    assert len(busy.moves) == 2


def test_a_hot_server_waits_for_the_cut_under_way():
    busy = Busy()
    busy.bench.holds = {TakeCut}
    busy.bench.train_all(most_tasks=1)
    busy.go_on(60)
    cut = busy.bench.all_of(TakeCut)[-1]
    assert not busy.moves
    busy.bench.tell(CutTaken(cut.cut))
    busy.go_on(6)
    assert len(busy.moves) == 1


def test_heat_is_not_looked_at_while_servers_are_scaled():
    busy = Busy()
    busy.bench.tell(ServersAsked(3))
    busy.go_on(60)
    # The new server is not there yet.
    assert not busy.moves
    assert "of its cores" not in busy.bench.told()


def test_scaled_servers_are_evened_out_once_and_heat_moves_from_there():
    busy = Busy()
    busy.bench.tell(ServersAsked(2))
    busy.go_on(1)
    assert "partitions are where they are to be" in busy.bench.told()
    busy.go_on(40)
    (move,) = busy.moves
    busy.bench.tell(MoveReady(move.generation, move.version))
    busy.go_on(200, share=0.5)
    # 3 and 1 partitions: nobody evens that out again.
    assert busy.bench.job.placement.owners.count(1) == 3
    assert len(busy.moves) == 1


def test_a_hot_server_without_another_is_told_of():
    busy = Busy(num_servers=1)
    busy.go_on(60)
    assert not busy.moves
    told = busy.bench.told()
    assert told.count("parameter server 0 was at 100% of its cores for 30 s") == 1
    assert "there is none to move partitions to" in told
