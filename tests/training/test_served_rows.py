"""Replicas whose embedding rows are on servers, in threads of this process, over real calls."""

import threading
import time
from contextlib import closing
from typing import ClassVar

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.rendezvous import NodeRange
from ctr_pipeline.specs.optimizer import OptimizerName, OptimizerSpec
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.parameters import load_dense, load_rows
from ctr_pipeline.training.replicas import WorldChanged
from tests.distributed.faults.proxy import FaultyProxy
from tests.distributed.waiting import wait_until
from tests.training.rehearsal import (
    ADAM,
    FEW_ROWS,
    HALF_BATCH,
    WHOLE_BATCH,
    LostError,
    Rehearsal,
    Servers,
)
from tests.training.training_problem import rows_of

PATIENCE_SECONDS = 250.0


@pytest.fixture
def servers(rehearse):
    with closing(Servers(rehearse, 2, ADAM)) as servers:
        yield servers


def trained(rows, dense):
    """Dense values, and the values of each row by key, of rows that were trained."""
    keys, values = rows_of(rows)
    order = np.argsort(keys)
    return dense.values, keys[order], values[order]


def saved(rehearse, optimizer=ADAM):
    """What the newest checkpoint holds."""
    parts = rehearse.parts(HALF_BATCH, optimizer)
    newest = Checkpoints(rehearse.files.checkpoints).load_newest(print)
    load_rows(newest, parts["embeddings"])
    load_dense(newest, parts["dense"])
    return trained(parts["embeddings"], parts["dense"])


def assert_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def train_all(rehearse, all_parts, size):
    nodes = NodeRange(size, size)
    train = lambda parts: rehearse.train_replica(parts, nodes)  # noqa: E731
    return list(rehearse.threads.map(train, all_parts, timeout=PATIENCE_SECONDS))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "adam"))
        for name in OptimizerName.__args__
    ],
)
def test_two_replicas_train_what_one_process_does_with_the_doubled_batch(rehearse, name):
    optimizer = OptimizerSpec(name=name, learning_rate=0.02)
    options = {"shuffle": False, "gradient_clip_norm": 0.5, "epochs": 2}
    alone = rehearse.train_alone(WHOLE_BATCH, optimizer, **options)
    with closing(Servers(rehearse, 2, optimizer)) as servers:
        states = train_all(rehearse, [servers.parts(HALF_BATCH, **options) for _ in range(2)], 2)
    assert_close(saved(rehearse, optimizer), trained(alone["embeddings"], alone["dense"]))
    assert [record.num_rows for record in states[0].history] == [FEW_ROWS] * 2


def test_one_replica_trains_the_bits_of_one_process(rehearse, servers):
    alone = rehearse.train_alone(HALF_BATCH, ADAM)
    train_all(rehearse, [servers.parts(HALF_BATCH)], 1)
    for one, other in zip(
        saved(rehearse), trained(alone["embeddings"], alone["dense"]), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_server_is_unreachable_where_nothing_comes_through_and_not_where_it_is_busy(
    rehearse, servers
):
    first, second = servers.running
    with (
        FaultyProxy(second.address) as proxy,
        closing(servers.rows([first.address, proxy.address])) as rows,
    ):
        # Nothing is trained yet.
        assert rows.is_held()
        with second._lock:
            held = rehearse.threads.submit(rows.is_held)
            time.sleep(6.0)
            assert not held.done()
            assert rows.unreachable(0.0) == ()
        assert held.result(PATIENCE_SECONDS)
        proxy.stall()
        held = rehearse.threads.submit(rows.is_held)
        wait_until(lambda: rows.unreachable(0.5) == (proxy.address,), seconds=PATIENCE_SECONDS)
        proxy.heal()
        assert held.result(PATIENCE_SECONDS)
        assert rows.unreachable(0.0) == ()


class Undisturbed:
    """Training whose steps do not depend on who is there, so that faults must change nothing."""

    EPOCHS = 3
    OPTIONS: ClassVar = {"shuffle": False, "epochs": EPOCHS}

    def __init__(self, rehearse, servers, alone):
        self.rehearse, self.servers, self.alone = rehearse, servers, alone

    def start(self, on_advance=None, on_world=None):
        """One of at most two replicas."""
        parts = self.servers.parts(HALF_BATCH, **self.OPTIONS)
        return self.rehearse.threads.submit(
            self.rehearse.train_replica,
            parts,
            NodeRange(1, 2),
            on_advance=on_advance,
            on_world=on_world,
            fixed_batches=2,
        )

    def require_same(self, states):
        """Each record was trained once an epoch, and each step applied once."""
        assert_close(saved(self.rehearse), self.alone)
        for state in states:
            assert [record.num_rows for record in state.history] == [FEW_ROWS] * self.EPOCHS


@pytest.fixture(scope="module")
def trained_alone(models, few, tmp_path_factory):
    """What one process trains."""
    rehearsal = Rehearsal(models, few, tmp_path_factory.mktemp("alone"))
    with rehearsal.server:
        parts = rehearsal.train_alone(WHOLE_BATCH, ADAM, **Undisturbed.OPTIONS)
    return trained(parts["embeddings"], parts["dense"])


@pytest.fixture
def undisturbed(rehearse, servers, trained_alone):
    return Undisturbed(rehearse, servers, trained_alone)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_replica_costs_one_step_at_most_and_comes_back(undisturbed, rank):
    is_alone, is_back = (threading.Event() for _ in range(2))
    num_advanced = [0, 0]

    def advance_of(index):
        def advance(_):
            num_advanced[index] += 1
            if index == rank and num_advanced[index] == 20:
                raise LostError
            # The other one may have made a step more when it was lost.
            if num_advanced[index] > 22:
                is_alone.set()
                if not is_back.is_set():
                    # The end is not to come before the other one is back.
                    time.sleep(0.1)

        return advance

    futures = [undisturbed.start(advance_of(index)) for index in range(2)]
    with pytest.raises(LostError):
        futures[rank].result(PATIENCE_SECONDS)
    assert is_alone.wait(PATIENCE_SECONDS)
    back = undisturbed.start(lambda _: is_back.set())
    states = [futures[1 - rank].result(PATIENCE_SECONDS), back.result(PATIENCE_SECONDS)]
    undisturbed.require_same(states)
    assert [world.size for world in states[0].worlds][-2:] == [1, 2]
    assert all(world.steps_repeated <= 1 for world in states[0].worlds)


@pytest.mark.slow
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_lost_server_takes_all_back_to_the_last_checkpoint(undisturbed, servers, has_checkpoint):
    is_lost = threading.Event()
    num_advanced = 0
    lost_at = 50 if has_checkpoint else 20

    def advance(_):
        nonlocal num_advanced
        num_advanced += 1
        if num_advanced == lost_at:
            servers.replace(1)
            is_lost.set()

    futures = [undisturbed.start(advance), undisturbed.start()]
    states = [future.result(PATIENCE_SECONDS) for future in futures]
    assert is_lost.is_set()
    undisturbed.require_same(states)
    # After the first epoch there is a checkpoint.
    again = states[0].worlds[-1]
    assert again.step == (states[0].history[0].step if has_checkpoint else 0)
    assert again.steps_repeated > 1


@pytest.mark.slow
def test_a_world_that_ends_between_the_validations_of_its_members_goes_on(undisturbed):
    has_validated, is_lost = threading.Event(), threading.Event()

    def validates_first(world):
        meet = world.meet

        def noticed(tag, text=""):
            if tag.startswith("step-") and tag != "step-0":
                has_validated.set()
            return meet(tag, text)

        world.meet = noticed

    def loses_an_answer(world):
        meet = world.meet

        def lossy(tag, text=""):
            met = meet(tag, text)
            if tag.startswith("evict-") and not is_lost.is_set():
                is_lost.set()
                assert has_validated.wait(PATIENCE_SECONDS)
                raise WorldChanged
            return met

        world.meet = lossy

    futures = [undisturbed.start(on_world=one) for one in (validates_first, loses_an_answer)]
    states = [future.result(PATIENCE_SECONDS) for future in futures]
    assert is_lost.is_set()
    undisturbed.require_same(states)
