"""Replicas in threads of this process, over a real rendezvous and real calls."""

import threading
import time
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.rendezvous import NodeRange, RendezvousTimes
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.replicas import world as replica_world
from ctr_pipeline.distributed.replicas.messages import SERVICE
from ctr_pipeline.distributed.replicas.world import CutOffError
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.specs.optimizer import OptimizerName, OptimizerSpec
from ctr_pipeline.storage.commit_log import FencedError
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.history import load_history
from ctr_pipeline.training.replica_trainer import ReplicaTrainer
from ctr_pipeline.training.replicas import Joined, WorldChanged
from tests.distributed.faults.proxy import FaultyProxy
from tests.training.rehearsal import (
    ADAM,
    FEW_ROWS,
    HALF_BATCH,
    TIMES,
    WHOLE_BATCH,
    LostError,
    files_in,
)
from tests.training.training_problem import NUM_ROWS, RecordingProgress, rows_of

PATIENCE_SECONDS = 250.0
STEPS_AN_EPOCH = -(-FEW_ROWS // WHOLE_BATCH)


def parameters_of(parts):
    keys, values = rows_of(parts["embeddings"])
    order = np.argsort(keys)
    return np.concatenate([parts["dense"].values, values[order].ravel()])


def assert_same_parameters(*several):
    first = parameters_of(several[0])
    for other in several[1:]:
        np.testing.assert_array_equal(first, parameters_of(other))


def test_a_replica_alone_trains_the_bits_of_one_process(rehearse):
    alone = rehearse.train_alone(WHOLE_BATCH, ADAM, gradient_clip_norm=0.1)
    replica = rehearse.parts(WHOLE_BATCH, ADAM, gradient_clip_norm=0.1)
    state = rehearse.train_replica(replica, NodeRange(1, 1))
    assert_same_parameters(alone, replica)
    assert [world.size for world in state.worlds] == [1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in {"sgd", "adam"}))
        for name in OptimizerName.__args__
    ],
)
def test_two_replicas_train_what_one_trains_with_the_doubled_batch(rehearse, name):
    optimizer = OptimizerSpec(name=name, learning_rate=0.02)
    options = {"shuffle": False, "gradient_clip_norm": 0.5}
    alone = rehearse.train_alone(WHOLE_BATCH, optimizer, **options)
    replicas = [rehearse.parts(HALF_BATCH, optimizer, **options) for _ in range(2)]
    train = lambda parts: rehearse.train_replica(parts, NodeRange(2, 2))  # noqa: E731
    states = list(rehearse.threads.map(train, replicas, timeout=PATIENCE_SECONDS))
    assert_same_parameters(*replicas)
    np.testing.assert_allclose(parameters_of(replicas[0]), parameters_of(alone), atol=1e-6)
    assert [state.step for state in states] == [STEPS_AN_EPOCH] * 2
    assert states[0].history[0].num_rows == FEW_ROWS
    (written,) = load_history(rehearse.files.history)
    assert written in [state.history[0] for state in states]


@pytest.mark.parametrize("batches", [2, 3])
def test_a_fixed_global_batch_does_not_depend_on_the_number_of_replicas(rehearse, batches):
    trained, num_batches = {}, -(-FEW_ROWS // HALF_BATCH)
    for size in (1, 2):
        rehearse.files = files_in(rehearse.folder / f"of-{size}")
        parts = [rehearse.parts(HALF_BATCH, ADAM, shuffle=False) for _ in range(size)]

        def train(one, size=size):
            return rehearse.train_replica(one, NodeRange(size, size), fixed_batches=batches)

        states = list(rehearse.threads.map(train, parts, timeout=PATIENCE_SECONDS))
        assert_same_parameters(*parts)
        assert states[0].history[0].num_rows == FEW_ROWS
        assert states[0].step == -(-num_batches // batches)
        assert {world.step_rows for world in states[0].worlds} == {batches * HALF_BATCH}
        trained[size] = parameters_of(parts[0])
    np.testing.assert_allclose(trained[1], trained[2], atol=1e-6)
    if batches * HALF_BATCH == WHOLE_BATCH:
        alone = rehearse.train_alone(WHOLE_BATCH, ADAM, shuffle=False)
        np.testing.assert_allclose(trained[1], parameters_of(alone), atol=1e-6)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 2), ("sqrt", 2**0.5)])
def test_learning_rates_follow_the_number_of_replicas(rehearse, scaling, factor):
    options = {"shuffle": False, "scale_learning_rate": scaling}
    replicas = [
        rehearse.parts(HALF_BATCH, OptimizerSpec(name="sgd", learning_rate=0.01), **options)
        for _ in range(2)
    ]
    train = lambda parts: rehearse.train_replica(parts, NodeRange(2, 2))  # noqa: E731
    states = list(rehearse.threads.map(train, replicas, timeout=PATIENCE_SECONDS))
    alone = rehearse.train_alone(
        WHOLE_BATCH, OptimizerSpec(name="sgd", learning_rate=0.01 * factor), shuffle=False
    )
    np.testing.assert_allclose(parameters_of(replicas[0]), parameters_of(alone), atol=1e-6)
    assert states[0].history[0].learning_rate_factor == pytest.approx(factor)


class HeldReplicas:
    """Replicas of which this one is lost for a moment."""

    def __init__(self):
        self.is_lost = False
        self.num_joined = 0

    def join(self, held, _save_state):
        self.num_joined += 1
        return Joined(self.num_joined, 0, 1, None, is_first=not held)

    def require_unchanged(self):
        if self.is_lost:
            self.is_lost = False
            raise WorldChanged

    def meet(self, _tag):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_replica_that_another_one_saves_for_joins_again(rehearse, is_lost):
    parts = rehearse.parts(HALF_BATCH, ADAM, checkpoint_seconds=1e-9)
    replicas, others = HeldReplicas(), Checkpoints(rehearse.files.checkpoints)
    num_advanced = 0

    def advance(_):
        nonlocal num_advanced
        num_advanced += 1
        if num_advanced == 5:
            nothing = lambda _: None  # noqa: E731
            others.save({"step": 1}, rows=nothing, dense=nothing, num_dense=0)
            replicas.is_lost = is_lost

    trainer = ReplicaTrainer(**parts, progress=RecordingProgress(advance), replicas=replicas)
    if is_lost:
        state = trainer.fit()
        assert replicas.num_joined == 2
        assert [record.num_rows for record in state.history] == [FEW_ROWS]
    else:
        with pytest.raises(FencedError):
            trainer.fit()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_others_go_on_when_one_is_lost_and_it_comes_back(rehearse, learnable, lost):
    epochs, nodes = 3, NodeRange(1, 3)
    rehearse.rows = learnable
    all_parts = [rehearse.parts(HALF_BATCH, ADAM, epochs=epochs) for _ in range(3)]
    are_there, is_back = threading.Barrier(3), threading.Event()
    num_advanced = [0] * 3

    def train(index):
        def advance(_):
            num_advanced[index] += 1
            if index == lost and num_advanced[index] == 20:
                raise LostError
            if num_advanced[index] > 20 and not is_back.is_set():
                # The end is not to come before the lost one is back.
                time.sleep(0.05)

        def enter(_):
            are_there.wait(PATIENCE_SECONDS)

        return rehearse.train_replica(all_parts[index], nodes, on_advance=advance, on_world=enter)

    futures = [rehearse.threads.submit(train, index) for index in range(3)]
    with pytest.raises(LostError):
        futures[lost].result(PATIENCE_SECONDS)
    again = rehearse.parts(HALF_BATCH, ADAM, epochs=epochs)
    back = rehearse.threads.submit(
        rehearse.train_replica, again, nodes, on_advance=lambda _: is_back.set()
    )
    states = [futures[index].result(PATIENCE_SECONDS) for index in range(3) if index != lost] + [
        back.result(PATIENCE_SECONDS)
    ]
    assert_same_parameters(*(all_parts[index] for index in range(3) if index != lost), again)
    for state in states:
        assert [record.num_rows for record in state.history] == [NUM_ROWS] * epochs
        assert all(world.steps_repeated <= 1 for world in state.worlds)
    newest = Checkpoints(rehearse.files.checkpoints).load_newest(print)
    assert newest.step == states[0].step


@pytest.mark.parametrize(
    "is_new",
    [
        pytest.param(False, id="the same rendezvous"),
        pytest.param(True, id="a new one", marks=pytest.mark.slow),
    ],
)
def test_all_are_lost_and_begin_from_the_newest_checkpoint(rehearse, is_new):
    nodes, options = NodeRange(2, 2), {"epochs": 2, "checkpoint_seconds": 1e-9}

    def train_until_lost(parts):
        def advance(_):
            if parts["step"] == 30:
                raise LostError
            parts["step"] += 1

        mine = {key: value for key, value in parts.items() if key != "step"}
        with pytest.raises(LostError):
            rehearse.train_replica(mine, nodes, on_advance=advance)

    first = [{**rehearse.parts(HALF_BATCH, ADAM, **options), "step": 0} for _ in range(2)]
    list(rehearse.threads.map(train_until_lost, first, timeout=PATIENCE_SECONDS))
    saved = Checkpoints(rehearse.files.checkpoints).load_newest(print)
    assert 0 < saved.step <= 31
    options["checkpoint_seconds"] = 1e9
    second = [rehearse.parts(HALF_BATCH, ADAM, **options) for _ in range(2)]
    with RendezvousServer("127.0.0.1:0", rehearse.access, TIMES) as new:
        # It counts worlds from 1 again.
        rehearse.server = new if is_new else rehearse.server
        states = list(
            rehearse.threads.map(
                lambda parts: rehearse.train_replica(parts, nodes), second, timeout=PATIENCE_SECONDS
            )
        )
    assert_same_parameters(*second)
    assert [record.num_rows for record in states[0].history] == [FEW_ROWS] * 2
    assert states[0].worlds[-1].step == saved.step


@pytest.mark.slow
def test_replicas_go_on_with_a_rendezvous_that_is_served_elsewhere(rehearse):
    epochs, nodes, worlds = 4, NodeRange(2, 2), rehearse.folder / "newest-world"
    access = rehearse.access
    first = RendezvousServer("127.0.0.1:0", access, TIMES, worlds=worlds)
    rehearse.server, first_address = first, first.address
    is_training, near = threading.Event(), []
    parts = [rehearse.parts(HALF_BATCH, ADAM, epochs=epochs) for _ in range(2)]

    def advance(_):
        if near[0]._version == 1:
            num_advanced.append(1)
            # The first calls begin the epoch.
            if len(num_advanced) > 4:
                is_training.set()
            # The end is not to come before the second rendezvous is found.
            time.sleep(0.05)

    num_advanced = []
    futures = [
        rehearse.threads.submit(
            rehearse.train_replica, one, nodes, on_advance=advance, on_world=near.append
        )
        for one in parts
    ]
    assert is_training.wait(PATIENCE_SECONDS)
    first.__exit__(None, None, None)
    with RendezvousServer("127.0.0.1:0", access, TIMES, worlds=worlds) as second:
        assert second.address != first_address
        rehearse.server = second
        states = [future.result(PATIENCE_SECONDS) for future in futures]
    assert_same_parameters(*parts)
    for state in states:
        assert [record.num_rows for record in state.history] == [FEW_ROWS] * epochs
        # The numbers go on, and nobody began anew.
        assert [world.version for world in state.worlds] == [1, 2]
        assert state.worlds[1].step > 0


def call_through(world, proxies, access):
    """Has a replica call others through proxies, which are found by address."""
    direct, clients = world._client, {}

    def client(rank):
        address = world.members[rank]
        if address not in proxies:
            return direct(rank)
        if address not in clients:
            clients[address] = RpcClient(SERVICE, proxies[address].address, access)
        return clients[address]

    world._client = client


@pytest.mark.slow
@pytest.mark.parametrize("is_one_way", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_replica_that_is_younger_goes_and_comes_back_when_two_are_cut_off(
    rehearse, monkeypatch, is_one_way
):
    """All reach the rendezvous and a third replica, so that a new world alone mends nothing."""
    # Only the rendezvous tells a replica whose own calls are answered that another one has failed.
    monkeypatch.setattr(replica_world, "_STUCK_SECONDS", 2 * PATIENCE_SECONDS)
    epochs, nodes = 3, NodeRange(1, 3)
    parts = [rehearse.parts(HALF_BATCH, ADAM, epochs=epochs) for _ in range(4)]
    are_three, are_two, are_three_again = (threading.Event() for _ in range(3))
    are_there, near = threading.Barrier(3), {}

    with ExitStack() as stack:

        def begin(index, world):
            near[index] = world
            if index < 3:
                are_there.wait(PATIENCE_SECONDS)
            if index < 2:
                other = near[1 - index].address
                proxy = stack.enter_context(FaultyProxy(other))
                proxies.append(proxy)
                call_through(world, {other: proxy}, rehearse.access)

        def advance(_):
            if len(near[2].members) == 3:
                (are_three_again if are_two.is_set() else are_three).set()
            elif are_three.is_set():
                are_two.set()
            if not are_three_again.is_set():
                # The end is not to come before the other one is back.
                time.sleep(0.1)

        def start(index):
            return rehearse.threads.submit(
                rehearse.train_replica,
                parts[index],
                nodes,
                on_world=partial(begin, index),
                on_advance=advance if index == 2 else None,
            )

        proxies = []
        futures = [start(index) for index in range(3)]
        assert are_three.wait(PATIENCE_SECONDS)
        members = near[2].members
        older, younger = sorted((0, 1), key=lambda index: members.index(near[index].address))
        for proxy in proxies[:1] if is_one_way else proxies:
            proxy.stall()
        with pytest.raises(CutOffError, match=f"{near[younger].address} and {near[older].address}"):
            futures[younger].result(PATIENCE_SECONDS)
        assert are_two.wait(PATIENCE_SECONDS)
        back = start(3)
        states = [one.result(PATIENCE_SECONDS) for one in (futures[older], futures[2], back)]
    assert_same_parameters(parts[older], parts[2], parts[3])
    for state in states[:2]:
        assert [world.size for world in state.worlds][-3:] == [3, 2, 3]
        assert [record.num_rows for record in state.history] == [FEW_ROWS] * epochs
        assert all(world.steps_repeated <= 1 for world in state.worlds)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_replica_that_is_cut_off_from_the_rendezvous_comes_back(rehearse, fault):
    epochs, nodes = 6, NodeRange(1, 2)
    times = RendezvousTimes(gather_seconds=0.05, lease_seconds=3.0)
    parts = [rehearse.parts(HALF_BATCH, ADAM, epochs=epochs) for _ in range(2)]
    are_two, is_one, are_two_again = (threading.Event() for _ in range(3))
    with (
        RendezvousServer("127.0.0.1:0", rehearse.access, times) as server,
        FaultyProxy(server.address) as proxy,
    ):
        rehearse.server = server

        near, advances_alone = [], []

        def advance(_):
            if len(near[0].members) == 2:
                (are_two_again if is_one.is_set() else are_two).set()
            elif are_two.is_set():
                advances_alone.append(1)
                # The other one may have made a step more when it was lost: it is not to come back
                # as the one that is further. The first call begins the epoch.
                if len(advances_alone) == 4:
                    is_one.set()
                    proxy.heal()
            if not are_two_again.is_set():
                # The end is not to come before the other one is back.
                time.sleep(0.1)

        futures = [
            rehearse.threads.submit(
                rehearse.train_replica, parts[0], nodes, on_world=near.append, on_advance=advance
            ),
            rehearse.threads.submit(
                rehearse.train_replica, parts[1], nodes, rendezvous=lambda: proxy.address
            ),
        ]
        assert are_two.wait(PATIENCE_SECONDS)
        getattr(proxy, fault)()
        states = [future.result(PATIENCE_SECONDS) for future in futures]
    assert_same_parameters(*parts)
    assert [world.size for world in states[0].worlds][-3:] == [2, 1, 2]
    for state in states:
        assert [record.num_rows for record in state.history] == [FEW_ROWS] * epochs
        assert all(world.steps_repeated <= 1 for world in state.worlds)
