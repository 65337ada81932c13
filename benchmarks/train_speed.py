"""Training speed of DeepFM: ours beside plain Keras, on the same ids in the same order.

26 tables of 100,000 rows x 16 (and a linear weight each), batches of 4096, MLP 256-128-64, no
dropout on either side. Ours is the pipeline's own trainer with the shipped optimizers and L2.
Plain Keras is what its guides show: a `keras.layers.Embedding` a table, `compile` with Adam at its
default learning rate and `fit` with everything else at its defaults. Both make the same number of
steps over the same rows and are scored on the same held-out rows. Each side runs in a process of
its own, ours and Keras by turns; compilation and the first steps are not timed.

    python benchmarks/train_speed.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import Spread, describe_machine, print_machine, print_table, write_results
from roofline import BATCH_SIZE, EMBEDDING_DIM, HIDDEN_UNITS
from speed_data import NUM_TABLES, ROWS_PER_TABLE, SpeedRows, draw_rows

WARMUP_STEPS = 16
HELD_OUT_BATCHES = 32
SIDES = ("ours", "keras")


def logloss(labels_B: np.ndarray, logits_B: np.ndarray) -> float:
    """Mean logloss in nats, float64."""
    logits = logits_B.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - labels_B * logits))


def samples_per_second(times: list[float]) -> float:
    """Rate over all steps after the warm-up, from the moments at which steps ended."""
    return (len(times) - WARMUP_STEPS) * BATCH_SIZE / (times[-1] - times[WARMUP_STEPS - 1])


def build_plain_keras(threads: int) -> Any:
    """DeepFM from stock layers, compiled with Adam on logits."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    keras.utils.set_random_seed(0)
    ids = keras.Input((NUM_TABLES,), dtype="int32")
    embedded, linear = [], []
    for table in range(NUM_TABLES):
        column = ids[:, table]
        embedded.append(keras.layers.Embedding(ROWS_PER_TABLE, EMBEDDING_DIM)(column))
        linear.append(keras.layers.Embedding(ROWS_PER_TABLE, 1)(column))
    stacked = keras.ops.stack(embedded, axis=1)
    summed = keras.ops.sum(stacked, axis=1)
    pairs = 0.5 * keras.ops.sum(
        keras.ops.square(summed) - keras.ops.sum(keras.ops.square(stacked), axis=1),
        axis=1,
        keepdims=True,
    )
    deep = keras.layers.Concatenate()(embedded)
    for units in HIDDEN_UNITS:
        deep = keras.layers.Dense(units, activation="relu")(deep)
    logit = keras.layers.Add()([*linear, pairs, keras.layers.Dense(1)(deep)])
    model = keras.Model(ids, logit)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


def run_keras(train: SpeedRows, held_out: SpeedRows, threads: int) -> dict[str, Any]:
    """Plain Keras: one epoch of `fit` in the order of the rows."""
    import keras

    model = build_plain_keras(threads)
    times: list[float] = []
    model.fit(
        train.ids_BF,
        train.labels_B,
        batch_size=BATCH_SIZE,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: times.append(time.perf_counter())
            )
        ],
    )
    logits = model.predict(held_out.ids_BF, batch_size=BATCH_SIZE, verbose=0)[:, 0]
    return {
        "samples_per_second": samples_per_second(times),
        "steps": len(times),
        "held_out_logloss": logloss(held_out.labels_B, logits),
    }


class StepClock:
    """A `Progress` and its tasks that note when each training step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._timing = False

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> "StepClock":
        """Times the steps of training alone."""
        self._timing = name.startswith("Training")
        return self

    def say(self, text: str) -> None:
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


def run_ours(train: SpeedRows, held_out: SpeedRows, threads: int, folder: Path) -> dict[str, Any]:
    """The pipeline's trainer by its defaults: one epoch in the order of the rows."""
    from ctr_pipeline.config.models import ModelConfig, TrainConfig
    from ctr_pipeline.dataset.encoded import EncodedReader, EncodedWriter
    from ctr_pipeline.embeddings.dense import DenseParameters
    from ctr_pipeline.embeddings.specs import TableSpec
    from ctr_pipeline.embeddings.store import EmbeddingStore
    from ctr_pipeline.models.inputs import ModelSignature
    from ctr_pipeline.models.registry import build_model
    from ctr_pipeline.pipeline.rows import optimizer_spec, segment_specs
    from ctr_pipeline.training.compiled import CompiledModel, configure_tensorflow
    from ctr_pipeline.training.trainer import Trainer, TrainerFiles

    model_config = ModelConfig(
        name="deepfm", embedding_dim=EMBEDDING_DIM, hidden_units=HIDDEN_UNITS, dropout=0.0
    )
    train_config = TrainConfig(
        epochs=1, batch_size=BATCH_SIZE, shuffle=False, checkpoint_seconds=1e6
    )
    for name, rows in (("train", train), ("valid", held_out)):
        with EncodedWriter(
            folder / name, num_fields=NUM_TABLES, num_numbers=0, fingerprint=""
        ) as writer:
            writer.write(rows.ids_BF, np.empty((len(rows.labels_B), 0), np.float32), rows.labels_B)
    configure_tensorflow(threads=threads, deterministic=False)
    signature = ModelSignature(NUM_TABLES, EMBEDDING_DIM, 0, float(train.labels_B.mean()))
    compiled = CompiledModel(build_model(model_config, signature, seed=0), batch_size=BATCH_SIZE)
    store = EmbeddingStore(
        [TableSpec(f"table{table}", ROWS_PER_TABLE) for table in range(NUM_TABLES)],
        segment_specs(model_config, train_config),
        seed=0,
        threads=threads,
    )
    store.set_training_counts(
        [np.bincount(column, minlength=ROWS_PER_TABLE) for column in train.ids_BF.T]
    )
    clock = StepClock()
    with EncodedReader(folder / "train") as train_rows, EncodedReader(folder / "valid") as valid:
        trainer = Trainer(
            config=train_config,
            compiled=compiled,
            embeddings=store,
            dense=DenseParameters(
                compiled.initial_parameters(), optimizer_spec(train_config.optimizer)
            ),
            train=train_rows,
            valid=valid,
            files=TrainerFiles(folder / "checkpoints", folder / "history.csv", folder / "events"),
            progress=clock,
        )
        state = trainer.fit()
    return {
        "samples_per_second": samples_per_second(clock.times),
        "steps": state.step,
        "held_out_logloss": state.history[-1].valid_logloss,
    }


def run_side(side: str, steps: int, seed: int, output: Path) -> None:
    """One side, in this process; writes its figures as JSON."""
    rows = draw_rows((steps + HELD_OUT_BATCHES) * BATCH_SIZE, seed=seed)
    cut = steps * BATCH_SIZE
    train = SpeedRows(rows.ids_BF[:cut], rows.labels_B[:cut])
    held_out = SpeedRows(rows.ids_BF[cut:], rows.labels_B[cut:])
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if side == "keras":
        figures = run_keras(train, held_out, threads)
    else:
        with tempfile.TemporaryDirectory(prefix="train-speed-") as folder:
            figures = run_ours(train, held_out, threads, Path(folder))
    rate = float(np.clip(train.labels_B.mean(), 1e-6, 1 - 1e-6))
    constant = np.full(len(held_out.labels_B), np.log(rate / (1 - rate)))
    figures["constant_logloss"] = logloss(held_out.labels_B, constant)
    output.write_text(json.dumps(figures), encoding="utf-8")


def start_side(side: str, *, steps: int, seed: int, folder: Path) -> dict[str, Any]:
    """One side in a process of its own."""
    output = folder / f"{side}.json"
    command = [sys.executable, __file__, "--side", side, "--output", str(output)]
    command += ["--steps", str(steps), "--seed", str(seed)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run(command, check=True, env=environment)
    figures: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    print(
        f"  {side}: {figures['samples_per_second']:,.0f} samples/s, "
        f"held-out logloss {figures['held_out_logloss']:.4f}",
        file=sys.stderr,
    )
    return figures


def measure_bound(folder: Path, *, quick: bool) -> dict[str, float]:
    """The roofline, in a process of its own."""
    output = folder / "roofline.json"
    script = Path(__file__).with_name("roofline.py")
    command = [sys.executable, str(script), "--json", str(output), *(["--quick"] if quick else [])]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    results: dict[str, float] = json.loads(output.read_text(encoding="utf-8"))["results"]
    return results


def main() -> None:
    """Runs both sides by turns and prints the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="Runs of each side.")
    parser.add_argument("--steps", type=int, default=256, help="Batches of 4096 rows a run.")
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument("--quick", action="store_true", help="One repeat of 48 steps.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments.side, arguments.steps, arguments.seed, arguments.output)
        return
    repeats, steps = (1, 48) if arguments.quick else (arguments.repeats, arguments.steps)
    if steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}, the steps of the warm-up")
    machine = describe_machine()
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="train-speed-") as temporary:
        folder = Path(temporary)
        bound = measure_bound(folder, quick=arguments.quick)
        for _ in range(repeats):
            for side in SIDES:
                figures[side].append(
                    start_side(side, steps=steps, seed=arguments.seed, folder=folder)
                )
    rates = {
        side: Spread.of([one["samples_per_second"] for one in figures[side]]) for side in SIDES
    }
    losses = {side: Spread.of([one["held_out_logloss"] for one in figures[side]]) for side in SIDES}
    pairs = zip(rates["ours"].values, rates["keras"].values, strict=True)
    ratio = Spread.of([ours / keras for ours, keras in pairs])
    ceiling = bound["samples_per_second"]
    print(f"\n{steps} steps of {BATCH_SIZE} rows, {repeats} repeats, by turns\n")
    print_machine(machine)
    print_table(
        ["side", "samples/s", "share of the roofline", "held-out logloss"],
        [
            [
                side,
                rates[side].show(0),
                f"{rates[side].mean / ceiling:.0%}",
                losses[side].show(5),
            ]
            for side in SIDES
        ],
    )
    print(f"Ours / plain Keras: {ratio.show(2)}")
    print(f"Roofline: {ceiling:,.0f} samples/s ({bound['float32_gflops']:,.0f} GFLOPS float32, "
          f"{bound['bandwidth_gb_per_second']:.1f} GB/s)")  # fmt: skip
    gap = losses["ours"].mean - losses["keras"].mean
    print(f"Held-out logloss, ours - Keras: {gap:+.5f}; of the training rows' click rate: "
          f"{figures['ours'][0]['constant_logloss']:.5f}")  # fmt: skip
    write_results(
        arguments.json,
        benchmark="train_speed",
        machine=machine,
        results={
            "steps": steps,
            "samples_per_second": {side: rates[side].as_dict() for side in SIDES},
            "held_out_logloss": {side: losses[side].as_dict() for side in SIDES},
            "ratio": ratio.as_dict(),
            "roofline": bound,
            "share_of_roofline": rates["ours"].mean / ceiling,
        },
    )


if __name__ == "__main__":
    main()
