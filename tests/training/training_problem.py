"""A small learnable problem, 3 fields and 2 numbers, and the parts of a trainer for it."""

from dataclasses import dataclass, field

import numpy as np

from ctr_pipeline.dataset.encoded import EncodedReader, EncodedWriter
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.model_kinds import DeepFMConfig
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.training.trainer import Trainer, TrainerFiles

BATCH_SIZE = 16
NUM_IDS = (20, 10, 5)
NUM_NUMBERS = 2
DIM = 2
# Two tasks an epoch: a task is 64 batches of 16 rows. No multiple of 16: a padded batch.
NUM_ROWS = 1500


def draw_rows(num_rows, seed, *, noise=False):
    """Ids, numbers and labels whose log-odds are additive in ids and numbers, or pure noise."""
    chance = np.random.default_rng(seed)
    ids = np.stack([chance.integers(0, count, num_rows) for count in NUM_IDS], axis=1)
    numbers = chance.normal(size=(num_rows, NUM_NUMBERS)).astype(np.float32)
    weights = np.random.default_rng(0).normal(size=(len(NUM_IDS), max(NUM_IDS)))
    logits = sum(weights[place, ids[:, place]] for place in range(len(NUM_IDS))) + numbers[:, 0]
    rates = np.full(num_rows, 0.5) if noise else 1 / (1 + np.exp(-1.5 * logits))
    labels = (chance.random(num_rows) < rates).astype(np.float32)
    return ids.astype(np.int32), numbers, labels


def write_rows(folder, ids, numbers, labels):
    with EncodedWriter(
        folder, num_fields=ids.shape[1], num_numbers=numbers.shape[1], fingerprint="test"
    ) as writer:
        writer.write(ids, numbers, labels)
    return folder


def new_model():
    config = DeepFMConfig(embedding_dim=DIM, hidden_units=(6,), dropout=0.2)
    return build_model(config, ModelSignature(len(NUM_IDS), DIM, NUM_NUMBERS, 0.4), seed=0)


def tables():
    return tuple(TableSpec(f"C{place}", count) for place, count in enumerate(NUM_IDS))


def segments(learning_rate):
    return (
        SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=learning_rate), "sum"),
        SegmentSpec(
            "vector",
            DIM,
            OptimizerSpec(name="adam", learning_rate=learning_rate),
            "mean",
            initializer=InitializerSpec(name="uniform", scale=0.02),
        ),
    )


def new_store(learning_rate=0.05):
    return EmbeddingStore(tables(), segments(learning_rate), seed=0, threads=1)


def rows_of(store):
    """Keys and values of all rows."""
    blocks = list(store.iterate_rows(1000))
    return np.concatenate([b.keys for b in blocks]), np.concatenate([b.values for b in blocks])


class RecordingProgress(SilentProgress):
    """Remembers what was said, and calls `on_advance` with the rows trained so far."""

    def __init__(self, on_advance=None):
        self.said = []
        self.tasks = []
        self.on_advance = on_advance

    def log(self, text):
        self.said.append(text)

    def task(self, name, *, total, unit="rows"):
        self.tasks.append(name)
        task = super().task(name, total=total, unit=unit)
        if self.on_advance is not None and name.startswith("Training"):
            task.advance = self.on_advance
        return task


@dataclass
class Rig:
    """A trainer with its parts in hand."""

    trainer: Trainer
    store: EmbeddingStore
    dense: DenseParameters
    files: TrainerFiles
    readers: list[EncodedReader] = field(default_factory=list)
