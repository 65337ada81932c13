"""Whole jobs whose master keeps its ledger in a real etcd."""

import threading
import time
import uuid

import pytest

from ctr_pipeline.distributed.master.ledger.store import LedgerLostError
from ctr_pipeline.distributed.master.program import Master
from ctr_pipeline.distributed.master.reading import read_status
from tests.distributed.master.fake_members import World, all_batches, prepare_job

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def start(tmp_path):
    worlds = []

    def begin(server):
        wishes = {"etcd": server.url, "prefix": f"/test-{uuid.uuid4().hex}/"}
        spec = prepare_job(tmp_path / "run", batch_size=2, runtime={"ledger": wishes})
        world = World(tmp_path / "run", spec)
        # It outlasts what is done to it, on any machine.
        world.batch_seconds = 0.02
        worlds.append(world)
        world.start_master()
        return world

    yield begin
    for world in worlds:
        world.close()


def finish(world):
    world.batch_seconds = 0.0
    view = world.wait_until_trained()
    assert dict(world.model()) == dict.fromkeys(all_batches(world.spec, 2), 1)
    assert view.records.trained == 2 * 518
    assert world.join_master() == 0
    return view


def test_a_job_runs_and_its_ledger_can_be_read(start, shared_etcd):
    world = start(shared_etcd)
    finish(world)
    view = read_status(world.run_folder)
    assert view.state == "finished"
    assert view.records.trained == 2 * 518
    assert not (world.run_folder / "job" / "ledger.sqlite").exists()


def test_a_killed_master_goes_on_from_etcd(start, shared_etcd):
    world = start(shared_etcd)
    before = world.wait_for(lambda view: view.records.trained > 200)
    world.kill_master()
    world.start_master()
    view = finish(world)
    assert view.generation >= before.generation
    assert view.records.repeated == 0


def test_a_restarted_etcd_is_a_pause(start, etcd):
    world = start(etcd)
    world.wait_for(lambda view: view.records.trained > 200)
    etcd.kill()
    time.sleep(2.0)
    etcd.start()
    view = finish(world)
    assert view.records.repeated == 0


def test_a_stalled_etcd_is_a_pause_or_the_next_master_goes_on(start, etcd):
    world = start(etcd)
    world.wait_for(lambda view: view.records.trained > 200)
    # It does not end well before it is asked how it ended.
    world.batch_seconds = 0.2
    etcd.stall()
    time.sleep(7.0)
    etcd.go_on()
    # Either the lock outlived the stall, or this master stopped writing and ends.
    if world.has_ended(10):
        assert isinstance(world.outcome, LedgerLostError)
        assert world.outcome.exit_code == 75
        world.start_master()
    finish(world)


def test_a_second_master_waits_and_takes_over(start, shared_etcd):
    world = start(shared_etcd)
    world.wait_for(lambda view: view.records.trained > 100)
    second = []
    waiting = threading.Thread(
        target=lambda: second.append(Master(world.run_folder, "127.0.0.1:0", world.launcher))
    )
    waiting.start()
    time.sleep(1.0)
    assert not second
    world.kill_master()
    waiting.join(30)
    (master,) = second
    world.start_master(master)
    finish(world)
