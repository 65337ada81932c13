"""The pipeline's own trainer on drawn ids, timed step by step."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from roofline import BATCH_SIZE, EMBEDDING_DIM, HIDDEN_UNITS
from speed_data import SpeedRows

WARMUP_STEPS = 16
HELD_OUT_BATCHES = 32


def samples_per_second(times: Sequence[float]) -> float:
    """Rate over all steps after the warm-up, from the moments at which steps ended."""
    return (len(times) - WARMUP_STEPS) * BATCH_SIZE / (times[-1] - times[WARMUP_STEPS - 1])


class StepClock:
    """A `Progress` and its tasks that note when each training step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._timing = False

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> "StepClock":
        """Times the steps of training alone."""
        self._timing = name.startswith("Training")
        return self

    def log(self, text: str) -> None:
        """Shows nothing."""

    def advance(self, amount: int) -> None:
        """A step of `amount` rows ended."""
        if self._timing and amount:
            self.times.append(time.perf_counter())

    def note(self, text: str) -> None:
        """Shows nothing."""

    def __enter__(self) -> "StepClock":
        return self

    def __exit__(self, *_error: object) -> None:
        self._timing = False


def split_rows(rows: SpeedRows, steps: int) -> tuple[SpeedRows, SpeedRows]:
    """The rows of the first steps, and the rest, which is held out."""
    cut = steps * BATCH_SIZE
    return (
        SpeedRows(rows.ids_BF[:cut], rows.labels_B[:cut]),
        SpeedRows(rows.ids_BF[cut:], rows.labels_B[cut:]),
    )


def train_ours(
    train: SpeedRows,
    held_out: SpeedRows,
    folder: Path,
    *,
    model: str = "deepfm",
    rows_per_table: int,
    precision: str = "float32",
    deterministic: bool = False,
    all_rows: bool = False,
) -> dict[str, Any]:
    """One epoch in the order of the rows, by the shipped optimizers, L2 and threads.

    `all_rows`: every id has its row before the first step, in random order, whether it occurs or
    not; else a row appears when training first asks for it.

    Returns:
        `samples_per_second`, `held_out_logloss`, `held_out_auc`; `embedding_rows` and
        `embedding_bytes` at the end; `bits`, a digest of all weights.
    """
    from ctr_pipeline.config.models import TrainConfig
    from ctr_pipeline.dataset.encoded import EncodedReader, EncodedWriter
    from ctr_pipeline.embeddings.counts import IdCounts
    from ctr_pipeline.embeddings.dense import DenseParameters
    from ctr_pipeline.embeddings.store import EmbeddingStore
    from ctr_pipeline.machine import available_cores, decide_threads
    from ctr_pipeline.models.build import build_model
    from ctr_pipeline.models.inputs import ModelSignature
    from ctr_pipeline.pipeline.model.embedding_rows import segment_specs
    from ctr_pipeline.specs.model_kinds import MODELS
    from ctr_pipeline.specs.table import ID_BITS, TableSpec
    from ctr_pipeline.storage.opening import open_storage
    from ctr_pipeline.training.compiled import CompiledModel, configure_tensorflow
    from ctr_pipeline.training.trainer import Trainer, TrainerFiles

    num_tables = train.ids_BF.shape[1]
    model_config = MODELS[model](
        embedding_dim=EMBEDDING_DIM, hidden_units=HIDDEN_UNITS, dropout=0.0
    )
    config = TrainConfig(epochs=1, batch_size=BATCH_SIZE, shuffle=False, checkpoint_seconds=1e6)
    shares = decide_threads(available_cores())
    configure_tensorflow(threads=shares.tensorflow, deterministic=deterministic)
    for name, rows in (("train", train), ("valid", held_out)):
        with EncodedWriter(
            folder / name, num_fields=num_tables, num_numbers=0, fingerprint=""
        ) as writer:
            writer.write(rows.ids_BF, np.empty((len(rows.labels_B), 0), np.float32), rows.labels_B)
    signature = ModelSignature(num_tables, EMBEDDING_DIM, 0, float(train.labels_B.mean()))
    training_model = None
    if precision != "float32":
        training_model = build_model(model_config, signature, seed=0, precision=precision)
    compiled = CompiledModel(
        build_model(model_config, signature, seed=0),
        training_model=training_model,
        batch_size=BATCH_SIZE,
    )
    store = EmbeddingStore(
        [TableSpec(f"table{table}", rows_per_table) for table in range(num_tables)],
        segment_specs(model_config, config),
        seed=0,
        threads=shares.rows,
    )
    store.set_training_counts(
        [
            IdCounts.of_all(np.bincount(column, minlength=rows_per_table))
            for column in train.ids_BF.T
        ]
    )
    if all_rows:
        for table in range(num_tables):
            ids = np.random.default_rng(table).permutation(rows_per_table)
            for block in np.array_split(ids, max(rows_per_table // 65_536, 1)):
                store.read_rows((table << ID_BITS) | block, create=True)
    dense = DenseParameters(compiled.initial_parameters(), config.optimizer)
    clock = StepClock()
    with EncodedReader(folder / "train") as train_rows, EncodedReader(folder / "valid") as valid:
        trainer = Trainer(
            config=config,
            compiled=compiled,
            embeddings=store,
            dense=dense,
            train=train_rows,
            valid=valid,
            files=TrainerFiles(
                open_storage(str(folder / "checkpoints")), folder / "history.csv", folder / "events"
            ),
            progress=clock,
        )
        (record,) = trainer.fit().history
    bits = hashlib.sha256(dense.values.tobytes())
    for block in store.iterate_rows(1 << 16):
        bits.update(block.values.tobytes())
    return {
        "samples_per_second": samples_per_second(clock.times),
        "held_out_logloss": record.valid_logloss,
        "held_out_auc": record.valid_auc,
        "embedding_rows": store.num_rows,
        "embedding_bytes": store.memory_bytes(),
        "bits": bits.hexdigest(),
    }
