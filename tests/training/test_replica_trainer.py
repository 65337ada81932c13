"""Replicas in threads of this process, over a real rendezvous and real calls."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from training_problem import DIM, NUM_IDS, NUM_NUMBERS, NUM_ROWS, RecordingProgress, rows_of

from ctr_pipeline.config.models import ModelConfig, TrainConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.coordination.rendezvous import NodeRange, RendezvousTimes
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.replicas.world import ReplicaWorld
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerName, OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.history import load_history
from ctr_pipeline.training.replica_trainer import ReplicaTrainer
from ctr_pipeline.training.trainer import Trainer, TrainerFiles

TIMES = RendezvousTimes(gather_seconds=0.05, lease_seconds=5.0)
PATIENCE_SECONDS = 120.0
HALF_BATCH, WHOLE_BATCH = 8, 16
STEPS_AN_EPOCH = -(-NUM_ROWS // WHOLE_BATCH)


class LostError(Exception):
    """Ends a replica as a kill would."""


@pytest.fixture(scope="module")
def models():
    """The same model without dropout, for either size of batch."""
    config = ModelConfig(name="deepfm", embedding_dim=DIM, hidden_units=(6,), dropout=0.0)
    signature = ModelSignature(len(NUM_IDS), DIM, NUM_NUMBERS, 0.4)
    return {
        size: CompiledModel(build_model(config, signature, seed=0), batch_size=size)
        for size in (HALF_BATCH, WHOLE_BATCH)
    }


def files_in(folder):
    folder.mkdir()
    return TrainerFiles(
        open_storage(str(folder / "checkpoints")), folder / "history.csv", folder / "events"
    )


class Rehearsal:
    """A rendezvous, and replicas that meet there."""

    def __init__(self, models, rows, folder):
        self.models = models
        self.initial = models[WHOLE_BATCH].initial_parameters()
        self.rows = rows
        self.folder = folder
        self.files = files_in(folder / "together")
        self.access = Access.within_process()
        self.server = RendezvousServer("127.0.0.1:0", self.access, TIMES)

    def parts(self, batch_size, optimizer, **train):
        store = EmbeddingStore(
            [TableSpec(f"C{place}", count) for place, count in enumerate(NUM_IDS)],
            [
                SegmentSpec("linear", 1, optimizer, "sum"),
                SegmentSpec(
                    "vector",
                    DIM,
                    optimizer,
                    "mean",
                    initializer=InitializerSpec(name="uniform", scale=0.02),
                ),
            ],
            seed=0,
            threads=1,
        )
        config = {
            "batch_size": batch_size,
            "epochs": 1,
            "checkpoint_seconds": 1e9,
            "early_stopping": None,
            **train,
        }
        return {
            "config": TrainConfig(**config),
            "compiled": self.models[batch_size],
            "embeddings": store,
            "dense": DenseParameters(self.initial.copy(), optimizer),
            "train": EncodedReader(self.rows / "train"),
            "valid": EncodedReader(self.rows / "valid"),
            "files": self.files,
        }

    def train_alone(self, batch_size, optimizer, **train):
        parts = self.parts(batch_size, optimizer, **train)
        parts["files"] = files_in(self.folder / "alone")
        Trainer(**parts, progress=RecordingProgress()).fit()
        return parts

    def train_replica(self, parts, nodes, *, on_advance=None, on_world=None):
        """Trains one replica to the end; returns its state."""
        width = parts["embeddings"].width
        world = ReplicaWorld(
            self.server.address,
            self.access,
            nodes=nodes,
            num_dense=len(self.initial),
            width=width,
        )
        with closing(world):
            if on_world is not None:
                on_world(world)
            trainer = ReplicaTrainer(
                **parts, progress=RecordingProgress(on_advance), replicas=world
            )
            return trainer.fit()


ADAM = OptimizerSpec(name="adam", learning_rate=0.02)


@pytest.fixture
def rehearse(models, learnable, tmp_path):
    rehearsal = Rehearsal(models, learnable, tmp_path)
    with rehearsal.server, ThreadPoolExecutor(8) as threads:
        rehearsal.threads = threads
        yield rehearsal


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


@pytest.mark.parametrize("name", OptimizerName.__args__)
def test_two_replicas_train_what_one_trains_with_the_doubled_batch(rehearse, name):
    optimizer = OptimizerSpec(name=name, learning_rate=0.02)
    options = {"shuffle": False, "gradient_clip_norm": 0.5}
    alone = rehearse.train_alone(WHOLE_BATCH, optimizer, **options)
    replicas = [rehearse.parts(HALF_BATCH, optimizer, **options) for _ in range(2)]
    train = lambda parts: rehearse.train_replica(parts, NodeRange(2, 2))  # noqa: E731
    states = list(rehearse.threads.map(train, replicas, timeout=PATIENCE_SECONDS))
    assert_same_parameters(*replicas)
    np.testing.assert_allclose(parameters_of(replicas[0]), parameters_of(alone), atol=2e-6)
    assert [state.step for state in states] == [STEPS_AN_EPOCH] * 2
    assert states[0].history[0].num_rows == NUM_ROWS
    (written,) = load_history(rehearse.files.history)
    assert written in [state.history[0] for state in states]


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
    np.testing.assert_allclose(parameters_of(replicas[0]), parameters_of(alone), atol=2e-6)
    assert states[0].history[0].learning_rate_factor == pytest.approx(factor)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_others_go_on_when_one_is_lost_and_it_comes_back(rehearse, lost):
    epochs, nodes = 3, NodeRange(1, 3)
    all_parts = [rehearse.parts(HALF_BATCH, ADAM, epochs=epochs) for _ in range(3)]
    are_there = threading.Barrier(3)
    num_advanced = [0] * 3

    def train(index):
        def advance(_):
            num_advanced[index] += 1
            if index == lost and num_advanced[index] == 20:
                raise LostError

        def enter(_):
            are_there.wait(PATIENCE_SECONDS)

        return rehearse.train_replica(all_parts[index], nodes, on_advance=advance, on_world=enter)

    futures = [rehearse.threads.submit(train, index) for index in range(3)]
    with pytest.raises(LostError):
        futures[lost].result(PATIENCE_SECONDS)
    again = rehearse.parts(HALF_BATCH, ADAM, epochs=epochs)
    back = rehearse.threads.submit(rehearse.train_replica, again, nodes)
    states = [futures[index].result(PATIENCE_SECONDS) for index in range(3) if index != lost] + [
        back.result(PATIENCE_SECONDS)
    ]
    assert_same_parameters(*(all_parts[index] for index in range(3) if index != lost), again)
    for state in states:
        assert [record.num_rows for record in state.history] == [NUM_ROWS] * epochs
        assert all(world.steps_repeated <= 1 for world in state.worlds)
    newest = Checkpoints(rehearse.files.checkpoints).load_newest(print)
    assert newest.step == states[0].step


@pytest.mark.parametrize("is_new", [False, True], ids=["the same rendezvous", "a new one"])
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
    assert [record.num_rows for record in states[0].history] == [NUM_ROWS] * 2
    assert states[0].worlds[-1].step == saved.step
