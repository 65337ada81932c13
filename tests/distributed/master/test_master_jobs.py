"""Whole jobs of a real master: real ledger, real gRPC, members that only count."""

import csv
import gc
import json
import shutil
from dataclasses import replace
from urllib.request import urlopen

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ctr_pipeline.distributed.coordination.messages import (
    Member,
    RegisterReply,
    RegisterRequest,
    ScaleRequest,
)
from ctr_pipeline.distributed.master.ledger.store import LedgerError, LedgerLostError
from ctr_pipeline.distributed.master.manifests import Cuts
from ctr_pipeline.distributed.master.program import Master
from ctr_pipeline.distributed.master.reading import read_phase, read_status
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import CallRefused
from ctr_pipeline.distributed.rpc.spec_file import save_spec
from ctr_pipeline.embeddings.cut_storage import MARKER, CutStorage
from ctr_pipeline.errors import RunFolderError
from tests.distributed.master.fake_members import World, all_batches, prepare_job

SLOW_BATCH_SECONDS = 0.02
"""A job outlasts what is done to it, on any machine."""


@pytest.fixture
def start(tmp_path):
    """Starts jobs and ends whatever is left of them."""
    worlds = []

    def begin(**wishes):
        spec = prepare_job(tmp_path / "run", **wishes)
        world = World(tmp_path / "run", spec)
        worlds.append(world)
        world.start_master()
        return world

    yield begin
    for world in worlds:
        world.close()


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A job that trains for as long as tests look at it, and ends well."""
    folder = tmp_path_factory.mktemp("training") / "run"
    world = World(folder, prepare_job(folder, num_rows=2000))
    world.batch_seconds = 0.2
    try:
        world.start_master()
        world.wait_for(lambda view: view.state == "training" and view.records.trained)
        yield world
        world.batch_seconds = 0.0
        assert_nothing_lost(world, finish(world))
    finally:
        world.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job that has ended, and its last status."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    world = World(folder, prepare_job(folder))
    try:
        world.start_master()
        view = finish(world)
    finally:
        world.close()
    return world, view


def finish(world):
    """The job to its end; its last status and the master's exit code."""
    view = world.wait_until_trained()
    assert world.join_master() == 0
    return view


def assert_nothing_lost(world, view, epochs=2):
    """Every batch is in the model once, and the ledger counts every record once."""
    expected = all_batches(world.spec, epochs)
    assert dict(world.model()) == dict.fromkeys(expected, 1)
    rows = world.spec.split("train").num_rows
    assert view.records.trained == epochs * rows
    assert view.records.total == epochs * rows
    assert view.records.dropped == 0
    assert view.step == len(expected)


def test_a_job_runs_to_its_end(finished):
    world, view = finished
    assert_nothing_lost(world, view)
    assert view.records.repeated == 0
    assert [record.epoch for record in view.history] == [0, 1]
    assert view.history[-1].train_logloss == pytest.approx(0.5)
    assert view.history[-1].num_rows == 518
    assert view.history[-1].step == view.step == view.checkpoint.step
    assert view.auc == view.history[-1].valid_auc
    assert {metrics.split: metrics.num_rows for metrics in view.final_metrics} == {
        "valid": 20_000,
        "test": 100,
    }
    assert sorted(path.name for path in (world.run_folder / "scores").iterdir()) == [
        "test-0.f32",
        "valid-0.f32",
        "valid-1.f32",
    ]
    assert np.fromfile(world.run_folder / "scores" / "test-0.f32", np.float32).shape == (100,)
    # Members have left by themselves.
    assert {state.reason for state in world.launcher.observe()} == {"completed"}


@pytest.mark.slow
def test_the_collector_leaves_what_is_loaded_alone_while_a_master_serves(start):
    gc.unfreeze()
    world = start()
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.state == "training")
    assert gc.get_freeze_count() > 10_000
    world.batch_seconds = 0.0
    finish(world)
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_history_and_tensorboard_tell_of_it(start):
    world = start()
    finish(world)
    with (world.run_folder / "history.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["epoch"] for line in lines] == ["1", "2"]
    events = EventAccumulator(str(world.run_folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("valid/auc")] == [
        int(line["step"]) for line in lines
    ]


def test_status_names_members_and_events(training):
    world, view = training, training.status()
    assert {(member.role, member.index) for member in view.members} == {
        ("master", 0),
        ("ps", 0),
        ("ps", 1),
        ("worker", 0),
        ("worker", 1),
    }
    by_name = {(member.role, member.index): member for member in view.members}
    assert by_name[("master", 0)].address == load_endpoint(world.run_folder / "job").address
    assert by_name[("master", 0)].stats.rss_bytes > 0
    assert by_name[("ps", 0)].address == world.launcher.members[("ps", 0)].address
    # It is seen again and again: a machine that is busy now is waited for.
    world.wait_for(
        lambda view: any(
            (member.role, member.index) == ("worker", 0) and member.last_seen_seconds < 1.5
            for member in view.members
        )
    )
    assert view.job == "job-1"
    assert view.answering


def test_prometheus_reads_the_job(training):
    address = load_endpoint(training.run_folder / "job").metrics_address
    with urlopen(f"http://{address}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['ctrpipe_records_total{outcome="trained"}']) > 0
    assert float(lines['ctrpipe_member_up{index="0",role="ps"}']) == 1
    assert sum(float(v) for k, v in lines.items() if k.startswith("ctrpipe_state{")) == 1


def test_senseless_scaling_is_refused(training):
    for request in (ScaleRequest(0, None, None), ScaleRequest(3, 2, None)):
        with pytest.raises(CallRefused):
            training.ask("Scale", request)


def test_strangers_are_refused(training):
    client = RpcClient(
        "MasterService", load_endpoint(training.run_folder / "job").address, training.access
    )

    def register(**changes):
        request = RegisterRequest(Member("worker", 9, "x"), 1, "here", "", "", 1, "config")
        return client.call(
            "Register", replace(request, **changes), RegisterReply, deadline_seconds=60.0
        ).refused

    assert "protocol 9 and the master protocol 1" in register(protocol=9)
    assert "another config" in register(config_fingerprint="other")
    assert "no secret" in register()
    assert "parameter servers" in register(member=Member("ps", 7, "x", "s" * 32))
    client.close()


def test_a_second_master_is_refused_by_the_ledger(training):
    with pytest.raises(LedgerError, match="another master works on this run"):
        Master(training.run_folder, "127.0.0.1:0", training.launcher, ledger_seconds=0.2)


@pytest.mark.slow
def test_a_worker_that_reports_what_no_server_holds_is_found_at_the_next_cut(start):
    world = start(batch_size=2, checkpoint_seconds=0.15)
    world.liars.add("worker-1-1")
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: any("reported batches" in event.what for event in view.events))
    # The other worker alone would end the job sooner than it is replaced.
    world.wait_for(lambda _: world.launcher.starts[("worker", 1)] == 2)
    world.batch_seconds = 0.0
    view = finish(world)
    assert_nothing_lost(world, view)
    assert world.launcher.starts[("worker", 1)] == 2
    assert world.launcher.starts[("worker", 0)] == 1
    assert view.records.repeated > 0


@pytest.mark.slow
def test_servers_that_are_asked_to_end_at_once_cost_no_record(start):
    world = start(batch_size=2, checkpoint_seconds=1e3)
    world.batch_seconds = SLOW_BATCH_SECONDS
    before = world.wait_for(lambda view: view.records.trained > 100)
    assert not before.checkpoint
    for server in range(2):
        world.launcher.members["ps", server].grace_seconds = 60.0
    world.wait_for(lambda view: view.generation > before.generation and view.state == "training")
    world.batch_seconds = 0.0
    view = finish(world)
    assert_nothing_lost(world, view)
    assert view.records.repeated == 0
    told = {event.what: event.done for event in view.events}
    for server in range(2):
        assert world.launcher.starts["ps", server] == 2
        name = f"parameter server {server}"
        assert told[f"{name} is asked to end within 60 s"].startswith("workers pause")
    assert "no record is trained again: checkpoint 1 holds all" in told.values()


@pytest.mark.slow
def test_a_server_that_is_asked_to_end_without_time_for_a_checkpoint_says_so(start):
    world = start(batch_size=2, checkpoint_seconds=1e3)
    world.batch_seconds = SLOW_BATCH_SECONDS
    before = world.wait_for(lambda view: view.records.trained > 100)
    # Its word to the master is the last that it does.
    world.launcher.members["ps", 0].grace_seconds = 0.0
    world.wait_for(lambda view: view.generation > before.generation and view.state == "training")
    world.batch_seconds = 0.0
    view = finish(world)
    assert_nothing_lost(world, view)
    assert view.records.repeated >= before.records.trained
    (event,) = (one for one in view.events if one.what == "parameter server 0 was ended by SIGTERM")
    assert event.done.startswith("the job goes back to its beginning, as it ended before a newer")


@pytest.mark.slow
def test_a_master_and_a_server_killed_at_once(start):
    world = start(batch_size=2)
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.checkpoint and view.step > view.checkpoint.step)
    world.kill_master()
    world.launcher.kill("ps", 0)
    world.start_master()
    world.batch_seconds = 0.0
    assert_nothing_lost(world, finish(world))


@pytest.mark.slow
def test_a_damaged_ledger_is_set_aside_and_made_up_for_by_the_cuts(start):
    world = start(batch_size=2)
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.checkpoint and view.step > view.checkpoint.step)
    world.kill_master()
    world.launcher.kill_all()
    (world.run_folder / "job" / "ledger.sqlite").write_bytes(b"no database" * 1000)
    world.start_master()
    world.batch_seconds = 0.0
    assert_nothing_lost(world, finish(world))
    assert list((world.run_folder / "job").glob("ledger.sqlite.damaged-*"))


@pytest.mark.slow
def test_a_cut_that_fails_leaves_the_one_before_and_training_goes_on(start):
    world = start(batch_size=2)
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.checkpoint)
    world.launcher.members[("ps", 1)].fail_snapshots = 1
    view = world.wait_for(
        lambda view: any("failed: parameter server 1" in event.what for event in view.events)
    )
    (event,) = (e for e in view.events if "failed: parameter server 1" in e.what)
    assert "the disk is full" in event.what
    cut = view.checkpoint.number
    world.wait_for(lambda view: view.checkpoint.number > cut)
    world.launcher.kill("ps", 0)
    world.batch_seconds = 0.0
    assert_nothing_lost(world, finish(world))


@pytest.mark.slow
def test_a_server_that_dies_while_a_cut_is_taken(start):
    world = start(batch_size=2)
    world.batch_seconds = SLOW_BATCH_SECONDS
    killed = []

    def kill_one(server, request):
        if request.cut == 2 and server.member.index == 0 and not killed:
            killed.append(True)
            world.launcher.members[("ps", 1)].fail_snapshots = 1
            world.launcher.members[("ps", 1)].stopped.set()

    world.on_snapshot = kill_one
    world.wait_for(lambda view: killed)
    world.launcher.kill("ps", 1)
    world.batch_seconds = 0.0
    assert_nothing_lost(world, finish(world))


@pytest.mark.slow
def test_a_damaged_cut_is_passed_over_and_the_one_before_is_used(start):
    world = start(batch_size=2, epochs=2)
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.checkpoint and view.checkpoint.number >= 2)
    world.kill_master()
    world.launcher.kill_all()
    folder = Cuts(CutStorage.at(world.checkpoints))
    newest, before = folder.numbers()[:2]
    max((world.checkpoints / "manifests").iterdir()).write_text("{}")
    world.start_master()
    world.batch_seconds = 0.0
    view = finish(world)
    assert_nothing_lost(world, view)
    said = [e for e in view.events if f"checkpoint {newest} cannot be restored" in e.what]
    assert said
    assert said[0].done == f"checkpoint {before} is used"


@pytest.mark.slow
def test_a_task_that_fails_each_time_fails_the_job(start):
    world = start()
    world.poisoned = (0, 2)
    assert world.join_master() == 1
    view = read_status(world.run_folder)
    assert view.state == "failed"
    assert "task 2 of epoch 1" in view.reason
    assert "ValueError: a bad row" in view.reason


@pytest.mark.slow
def test_a_task_that_fails_each_time_is_dropped_by_name_where_that_is_allowed(start):
    world = start(runtime={"max_dropped_tasks": 1})
    world.poisoned = (0, 2)
    view = finish(world)
    assert view.records.trained + view.records.dropped == 2 * 518
    assert view.records.dropped > 0
    (name,) = view.dropped_tasks
    assert name.startswith("task 2 of epoch 1")


@pytest.mark.slow
def test_validation_rows_of_one_class_fail_the_job_with_the_reason(start, monkeypatch):
    world = start()
    monkeypatch.setattr(
        "ctr_pipeline.evaluation.histogram.ScoreHistogram.num_positive", property(lambda _: 0)
    )
    assert world.join_master() == 1
    view = read_status(world.run_folder)
    assert view.state == "failed"
    assert "all 20000 labels are 0" in view.reason


@pytest.mark.slow
def test_a_master_that_lost_its_ledger_ends_at_once_and_the_next_one_goes_on(start):
    world = start(batch_size=2)
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.records.trained > 100)

    def lost(records, *, durable):
        raise LedgerLostError("another master has it")

    world.master.store.commit = lost
    outcome = world.join_master(60)
    assert isinstance(outcome, LedgerLostError)
    # The launcher starts it again: it is no error that only a person can mend.
    assert outcome.exit_code == 75
    world.start_master()
    world.batch_seconds = 0.0
    assert_nothing_lost(world, finish(world))


def test_the_ledger_of_another_config_is_refused(finished, tmp_path):
    world, _ = finished
    folder = shutil.copytree(world.run_folder, tmp_path / "run")
    save_spec(folder / "job", replace(world.spec, config_fingerprint="other"))
    with pytest.raises(LedgerError, match="another configuration"):
        Master(folder, "127.0.0.1:0", world.launcher)


def test_a_job_without_a_ledger_is_nowhere_yet(tmp_path):
    prepare_job(tmp_path / "run")
    assert read_phase(tmp_path / "run") is None


def test_a_folder_without_a_job_is_told(tmp_path):
    with pytest.raises(RunFolderError, match="no job was prepared here"):
        Master(tmp_path, "127.0.0.1:0", None)
    with pytest.raises(RunFolderError, match="no job was prepared here"):
        read_status(tmp_path)


@pytest.mark.slow
def test_old_cuts_are_deleted(start):
    world = start(num_rows=2000, batch_size=2, checkpoint_seconds=0.05)
    world.batch_seconds = SLOW_BATCH_SECONDS
    world.wait_for(lambda view: view.checkpoint and view.checkpoint.number > 5)
    world.batch_seconds = 0.0
    finish(world)
    folder = Cuts(CutStorage.at(world.checkpoints))
    # Two kept, the best, and what the machine pins.
    assert 2 <= len(folder.numbers()) <= 4
    sound, reasons = folder.sound(read=True)
    assert reasons == []
    assert sound[0].facts.cut > 5
    needed = {file.name for manifest in sound for file in manifest.files.all_files()}
    assert {f"parts/{path.name}" for path in (world.checkpoints / "parts").iterdir()} == needed
    assert {path.name for path in world.checkpoints.iterdir()} == {"manifests", "parts", MARKER}


def test_the_manifest_says_whose_cut_it_is(finished):
    world, view = finished
    newest = Cuts(CutStorage.at(world.checkpoints)).load(view.checkpoint.number)
    facts = newest.facts
    assert (facts.job, facts.config_fingerprint, facts.num_partitions) == ("job-1", "config", 4)
    assert facts.step == view.step
    assert len(newest.history) >= 1
    assert json.loads(json.dumps(newest.frozen)) == newest.frozen
