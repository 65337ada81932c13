"""Partitions move by decision of the job, and by no other."""

import pytest
from test_job import Bench

from ctr_pipeline.distributed.coordination.events import (
    CutTaken,
    MoveFailed,
    MovePartitions,
    MoveReady,
    PlacePartitions,
    RestoreCut,
    ServersAsked,
    StartMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.placement import place_evenly

FOUR = place_evenly(4, 10, 1, is_divided=True)


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
    placed = bench.all_of(PlacePartitions)[-1]
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
    assert bench.heartbeat("ps", 1, "q").directive == "leave"
    assert bench.all_of(RestoreCut) == [RestoreCut(0, 1)]


def test_a_move_that_failed_is_void_and_tried_again_under_another_version(bench):
    move = grow(bench)
    bench.tell(MoveFailed(move.generation, move.version, "no room"))
    assert bench.job.placement == FOUR
    assert bench.all_of(PlacePartitions)[-1].is_done is False
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
