"""Rows of the problem on disk, one model compiled for all tests, trainers to order."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.trainer import Trainer, TrainerFiles
from tests.training.training_problem import (
    BATCH_SIZE,
    NUM_ROWS,
    Rig,
    draw_rows,
    new_model,
    new_store,
    write_rows,
)


@pytest.fixture(scope="session")
def learnable(tmp_path_factory):
    root = tmp_path_factory.mktemp("learnable")
    write_rows(root / "train", *draw_rows(NUM_ROWS, 1))
    write_rows(root / "valid", *draw_rows(500, 2))
    return root


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    root = tmp_path_factory.mktemp("noise")
    write_rows(root / "train", *draw_rows(400, 3, noise=True))
    write_rows(root / "valid", *draw_rows(400, 4, noise=True))
    return root


@pytest.fixture(scope="session")
def compiled():
    """One for all: nothing but `assign` changes it, which those who call it undo."""
    return CompiledModel(new_model(), batch_size=BATCH_SIZE)


@pytest.fixture
def make_rig(compiled, learnable, tmp_path):
    usual, initial = compiled, compiled.initial_parameters()
    open_readers = []

    def make(
        name="run",
        *,
        rows=learnable,
        progress=None,
        learning_rate=0.02,
        optimizer=None,
        compiled=usual,
        refits=False,
        judged=(),
        after_epoch=None,
        **train,
    ):
        config = TrainConfig(
            **{
                "batch_size": BATCH_SIZE,
                "epochs": 2,
                "checkpoint_seconds": 1e9,
                "early_stopping": None,
                **train,
            }
        )
        readers = (
            [EncodedReader(rows / "train", rows / "valid")]
            if refits
            else [EncodedReader(rows / "train"), EncodedReader(rows / "valid")]
        )
        open_readers.extend(readers)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        files = TrainerFiles(
            open_storage(str(folder / "checkpoints")), folder / "history.csv", folder / "events"
        )
        store = new_store(learning_rate)
        dense = DenseParameters(
            initial.copy(), optimizer or OptimizerSpec(name="adam", learning_rate=learning_rate)
        )
        trainer = Trainer(
            config=config,
            compiled=compiled,
            embeddings=store,
            dense=dense,
            train=readers[0],
            valid=None if refits else readers[1],
            judged=judged,
            files=files,
            progress=progress or SilentProgress(),
            after_epoch=after_epoch,
        )
        return Rig(trainer, store, dense, files, readers)

    yield make
    for reader in open_readers:
        reader.close()


@pytest.fixture(scope="module")
def models():
    """Of one batch and of half of one."""
    from tests.training.rehearsal import build_models

    return build_models()


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Rows whose number is no multiple of either batch."""
    from tests.training.rehearsal import FEW_ROWS

    root = tmp_path_factory.mktemp("few")
    write_rows(root / "train", *draw_rows(FEW_ROWS, 1))
    write_rows(root / "valid", *draw_rows(100, 2))
    return root


@pytest.fixture
def rehearse(models, few, tmp_path):
    """Trains replicas in threads."""
    from tests.training.rehearsal import Rehearsal

    rehearsal = Rehearsal(models, few, tmp_path)
    with rehearsal.server, ThreadPoolExecutor(8) as threads:
        rehearsal.threads = threads
        yield rehearsal
