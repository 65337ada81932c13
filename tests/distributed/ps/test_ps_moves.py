"""Partitions move between servers while batches come: each is applied once to each of its rows."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.messages import (
    MovedRowsRequest,
    MoveRequest,
    PlacementRequest,
    SnapshotRequest,
)
from ctr_pipeline.distributed.coordination.moves import PlannedMove, plan_balance
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.master.manifests import CutFacts, CutManifest, chain_files
from ctr_pipeline.distributed.ps import server_state as server_state_module
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.server_state import ServerState
from ctr_pipeline.distributed.ps.service import RemoteSource, ps_methods
from ctr_pipeline.distributed.rpc.failures import CallRefused
from ctr_pipeline.distributed.rpc.packed import DenseRequest, PullRequest, PushRequest, Status
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.partition import partitions_of
from tests.distributed.network import Wire
from tests.distributed.ps_requests import batch, counting, key, nothing_trained

NUM_PARTITIONS = 8
KEYS = np.array([key(2, number) for number in range(48)])
PARTITIONS = partitions_of(KEYS, NUM_PARTITIONS)


@pytest.fixture
def spec(make_spec, make_optimizer):
    return replace(
        counting(make_spec(), make_optimizer),
        num_partitions=NUM_PARTITIONS,
        num_parameter_servers=2,
    )


def as_source(core, meanwhile):
    """A server as the target of a move sees it; something happens before and after each answer."""
    wire = Wire({"source": ps_methods(core, lambda: None, lambda peer: None)})
    wire.fate, wire.after = lambda *_: meanwhile(), meanwhile
    return RemoteSource(wire.connect("source"))


class World:
    """Servers, and a worker whose batches reach each of them in any order, or not at all."""

    def __init__(self, spec, num_cores=3, seed=0):
        self.random = random.Random(seed)
        self.spec = spec
        self.placement = self.known = balanced_placement(spec)
        self.cores = [PsCore(spec, index) for index in range(num_cores)]
        self.width = sum(segment.dim for segment in spec.segments)
        for core in self.cores[: spec.num_parameter_servers]:
            assert not core.checkpoints.restore(nothing_trained(0)).refused
            low, high = self.placement.range_of(core.index)
            core.updates.init_dense(DenseRequest(0, low, np.zeros(high - low, np.float32)))
        self.version = 0
        self.open: dict[int, set[int]] = {}
        self.num_batches = 0
        self.named = {}

    def begin_batch(self):
        number = self.num_batches
        self.num_batches += 1
        self.named[number] = self.random.sample(range(len(KEYS)), 9)
        self.open[number] = set()

    def _keys(self, number, server, placement):
        named = self.named[number]
        return KEYS[[place for place in named if placement.owners[PARTITIONS[place]] == server]]

    def push(self, number, server):
        """One server's part of a batch; what moved since is pushed again, everywhere."""
        placement, core = self.known, self.cores[server]
        keys = self._keys(number, server, placement)
        task, bit = divmod(number, 4)
        pull = PullRequest(0, batch(bit, task), 0, True, None, keys, placement.version)
        status = core.updates.pull(PullRequest.decode(pull.encode())).status
        if status is Status.DONE:
            low, high = placement.dense[server]
            request = PushRequest(
                generation=0,
                batch=batch(bit, task),
                worker=0,
                step=1 + number,
                learning_rate_factor=1.0,
                num_examples=1,
                version=0,
                keys=keys,
                num_occurrences=np.ones(len(keys), np.int32),
                sums=np.full((len(keys), self.width), -1.0, np.float32),
                dense=np.full(high - low, -1.0, np.float32),
                fresh_keys=keys[:0],
                placement=placement.version,
            )
            status = core.updates.push(PushRequest.decode(request.encode())).status
        if status in {Status.DONE, Status.REPEATED}:
            self.open[number].add(server)
            if len(self.open[number]) == placement.num_servers:
                del self.open[number]
        elif status is Status.MOVED:
            if core.state.placement.version > self.known.version:
                self.known = core.state.placement
                self.open = {number: set() for number in self.open}
        else:
            assert status is Status.NOT_READY

    def some_pushes(self):
        for _ in range(self.random.randint(0, 6)):
            if not self.open or self.random.random() < 0.3:
                self.begin_batch()
            self.push(
                self.random.choice(list(self.open)), self.random.randrange(self.known.num_servers)
            )

    def place(self, placement, move=0):
        """Told to the servers in any order, as heartbeats may be faster than the master."""
        for core in self.random.sample(self.cores, len(self.cores)):
            core.moves.place(PlacementRequest(0, placement, move))
            self.some_pushes()

    def move(self, planned, *, fails=False):
        self.version += 1
        self.cores[planned.target].moves.place(PlacementRequest(0, self.placement, self.version))
        request = MoveRequest(
            0, self.version, str(planned.source), planned.partitions, planned.takes_dense
        )
        source = as_source(self.cores[planned.source], self.some_pushes)
        reply = self.cores[planned.target].moves.take_over(request, source)
        assert not reply.refused
        self.some_pushes()
        if not fails:
            self.placement = planned.applied_to(self.placement, self.version)
        self.place(self.placement)
        for core in self.cores:
            with core.serving.cutting:
                core.moves.drop_foreign_rows()

    def cut(self, cut, parent=None):
        """Its manifest; a delta of the one before, where servers can write one."""
        number = parent.facts.cut if parent else 0
        request = SnapshotRequest(0, cut, number, parent is None, placement=self.placement.version)
        cores = self.cores[: self.placement.num_servers]
        replies = [core.checkpoints.snapshot(request) for core in cores]
        assert not any(reply.refused for reply in replies)
        facts = CutFacts(
            cut=cut,
            parent=number,
            generation=0,
            job=self.spec.job,
            config_fingerprint="",
            rows_fingerprint="",
            plan_fingerprint="",
            num_partitions=NUM_PARTITIONS,
            num_parameter_servers=len(cores),
            epoch=0,
            step=0,
            best_cut=0,
            taken_at=0.0,
            placement=self.placement,
        )
        return CutManifest(facts, chain_files(facts, parent, replies, Ledger().freeze()), {}, ())

    def restore(self, manifest):
        """Other processes of the same servers hold a cut; batches that it has not are not made."""
        self.cores = [PsCore(self.spec, index) for index in range(self.placement.num_servers)]
        request = manifest.restore_request(0, self.placement)
        for core in self.cores:
            assert not core.checkpoints.restore(request).refused

    def finish(self):
        for _ in range(20_000):
            if not self.open:
                return
            for number in list(self.open):
                for server in range(self.known.num_servers):
                    if number in self.open:
                        self.push(number, server)
        raise AssertionError(f"batches {sorted(self.open)} never end")

    def check(self):
        """Every row was moved once by each batch that names it, every dense value by each batch."""
        self.finish()
        rows = np.zeros(len(KEYS))
        for named in self.named.values():
            rows[named] += 1
        for server, core in enumerate(self.cores[: self.placement.num_servers]):
            own = [
                place
                for place in range(len(KEYS))
                if self.placement.owners[PARTITIONS[place]] == server
            ]
            reply = core.updates.pull(
                PullRequest(0, None, 0, False, -1, KEYS[own], self.placement.version)
            )
            assert reply.status is Status.DONE
            assert reply.values[:, 0].tolist() == rows[own].tolist()
            assert reply.dense is None or set(reply.dense.tolist()) <= {float(self.num_batches)}
            low, high = self.placement.dense[server]
            assert reply.dense is None or len(reply.dense) == high - low
            assert core.state.num_rows == np.count_nonzero(rows[own])


@pytest.mark.parametrize("num_examples", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_pushes_between_the_steps_of_a_move_are_applied_once(spec, num_examples):
    @given(st.integers(0, 1 << 30))
    @settings(max_examples=num_examples)
    def check_moves(seed):
        world = World(spec, num_cores=4, seed=seed)
        for _ in range(3):
            wanted = world.random.randint(1, 4)
            while planned := plan_balance(world.placement, wanted, most_partitions=3):
                world.move(planned, fails=world.random.random() < 0.3)
            world.placement = world.placement.without_idle(wanted)
        world.check()

    check_moves()


def test_a_void_move_leaves_the_source_as_it_was(spec):
    world = World(spec, seed=3)
    for _ in range(10):
        world.some_pushes()
    world.move(plan_balance(world.placement, 3), fails=True)
    assert world.cores[2].state.num_rows == 0
    world.check()


def test_a_source_that_holds_serves_nobody_until_it_hears_the_outcome(spec):
    world = World(spec, seed=1)
    planned = plan_balance(world.placement, 3)
    request = MoveRequest(0, 1, "0", planned.partitions, takes_dense=False)
    source, target = world.cores[planned.source], world.cores[2]
    target.moves.place(PlacementRequest(0, world.placement, 1))
    assert not target.moves.take_over(request, source.moves).refused
    pull = PullRequest(0, None, 0, False, None, KEYS[:0], 0)
    assert source.updates.pull(pull).status is Status.NOT_READY
    source.moves.place(PlacementRequest(0, world.placement, 1))
    assert source.updates.pull(pull).status is Status.NOT_READY
    # What was decided before the move began says nothing of it.
    source.moves.place(PlacementRequest(0, world.placement, 0), source.moves.num_begun - 1)
    assert source.updates.pull(pull).status is Status.NOT_READY
    source.moves.place(PlacementRequest(0, world.placement, 0))
    assert source.updates.pull(pull).status is Status.DONE


def test_rows_that_are_left_go_part_by_part_while_everybody_is_served(spec, monkeypatch):
    monkeypatch.setattr(server_state_module, "ROWS_CLEANED", 3)
    world = World(spec, num_cores=2, seed=4)
    for _ in range(20):
        world.some_pushes()
    world.finish()
    planned = PlannedMove(0, 1, world.placement.partitions_of(0)[::2], takes_dense=False)
    source, parts = world.cores[0], []
    find = ServerState.find_foreign_rows

    def find_while_pushes_come(self, end):
        if self is source.state:
            parts.append(end)
            world.begin_batch()
            world.finish()
        return find(self, end)

    monkeypatch.setattr(ServerState, "find_foreign_rows", find_while_pushes_come)
    before = source.state.num_rows
    world.move(planned)
    assert len(parts) > 2
    assert source.state.num_rows < before
    world.check()


def test_a_move_away_ends_the_dropping_of_rows_of_an_earlier_one(spec, monkeypatch, tmp_path):
    monkeypatch.setattr(server_state_module, "ROWS_CLEANED", 3)
    CutStorage.at(tmp_path).begin(spec.job)
    world = World(replace(spec, checkpoints_folder=str(tmp_path)), num_cores=2, seed=4)
    for _ in range(20):
        world.some_pushes()
    world.finish()
    first, second = world.placement.partitions_of(0)[:2]
    source = world.cores[0]
    find = ServerState.find_foreign_rows
    request = MoveRequest(0, 2, "0", (second,), takes_dense=False)

    def find_until_another_begins(self, end):
        if self is source.state and end is not None and self.outgoing is None:
            source.moves.show_rows(MovedRowsRequest(request, 0))
        return find(self, end)

    monkeypatch.setattr(ServerState, "find_foreign_rows", find_until_another_begins)
    world.move(PlannedMove(0, 1, (first,), takes_dense=False))
    assert source.checkpoints.snapshot(SnapshotRequest(0, 1, 0, True, placement=1)).refused
    source.moves.place(PlacementRequest(0, world.placement, 0))
    monkeypatch.undo()
    assert not source.checkpoints.snapshot(SnapshotRequest(0, 2, 0, True, placement=1)).refused
    world.check()


def test_a_cut_is_of_the_placement_that_it_names(spec, tmp_path):
    CutStorage.at(tmp_path).begin(spec.job)
    world = World(replace(spec, checkpoints_folder=str(tmp_path)), seed=2)
    world.some_pushes()
    world.move(plan_balance(world.placement, 3))
    core = world.cores[0]
    assert (
        core.checkpoints.snapshot(SnapshotRequest(0, 1, 0, True)).refused
        == "the placement has version 1"
    )
    reply = core.checkpoints.snapshot(SnapshotRequest(0, 1, 0, True, placement=1))
    written = [file.partition for file in reply.files if file.partition >= 0]
    assert written == list(world.placement.partitions_of(0))


def test_servers_write_what_changed_and_what_came_to_them_after_a_move(spec, tmp_path):
    CutStorage.at(tmp_path).begin(spec.job)
    world = World(replace(spec, checkpoints_folder=str(tmp_path)), num_cores=2, seed=5)
    for _ in range(12):
        world.some_pushes()
    world.finish()
    first = world.cut(1)
    # One whose rows came in vain, and one that came about.
    goes, stays = world.placement.partitions_of(0)[:2]
    world.move(PlannedMove(0, 1, (stays,), takes_dense=False), fails=True)
    world.move(PlannedMove(0, 1, (goes,), takes_dense=False))
    world.begin_batch()
    world.finish()
    second = world.cut(2, first)
    kinds = {
        entry.partition: [file.kind for file in entry.files] for entry in second.files.partitions
    }
    assert kinds[goes] == ["base", "delta"]
    assert all(chain[0] == "base" and set(chain[1:]) <= {"delta"} for chain in kinds.values())
    assert {file.name for file in first.files.all_files() if file.partition >= 0} <= {
        file.name for file in second.files.all_files()
    }
    world.restore(second)
    world.check()


def test_a_rollback_ends_a_move(spec):
    world = World(spec, seed=1)
    planned = plan_balance(world.placement, 3)
    request = MoveRequest(0, 1, "0", planned.partitions, takes_dense=False)
    world.cores[2].moves.place(PlacementRequest(0, world.placement, 1))
    source = world.cores[planned.source]

    def roll_back():
        assert not source.checkpoints.restore(nothing_trained(1)).refused

    with pytest.raises(CallRefused, match="generation 0"):
        world.cores[2].moves.take_over(request, as_source(source, roll_back))
    assert (
        source.updates.pull(PullRequest(1, None, 0, False, None, KEYS[:0], 0)).status is Status.DONE
    )
