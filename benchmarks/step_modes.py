"""What a step costs with `train.deterministic`, and with `train.precision: bfloat16`.

DeepFM over 26 tables of 100,000 rows x 16, batches of 4096, MLP 256-128-64, our trainer with the
shipped optimizers, as in `train_speed.py`. Every mode trains the same rows in the same order in a
process of its own, modes by turns; a ratio is of the two neighbours of one turn. Deterministic
sides must end with the same bits, which is checked. bfloat16 is timed where the processor has AMX
or AVX512-BF16, and said to be left out elsewhere.

    python benchmarks/step_modes.py
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import Spread, describe_machine, print_machine, print_table, write_results
from roofline import BATCH_SIZE, EMBEDDING_DIM, HIDDEN_UNITS
from speed_data import NUM_TABLES, ROWS_PER_TABLE, SpeedRows, draw_rows
from train_speed import HELD_OUT_BATCHES, WARMUP_STEPS, StepClock, samples_per_second

from ctr_pipeline.machine import (
    available_cores,
    decide_threads,
    multiplies_bfloat16,
    processor_flags,
)


def run_mode(mode: str, train: SpeedRows, held_out: SpeedRows, folder: Path) -> dict[str, Any]:
    """One epoch in the order of the rows, in this process."""
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

    model = ModelConfig(
        name="deepfm", embedding_dim=EMBEDDING_DIM, hidden_units=HIDDEN_UNITS, dropout=0.0
    )
    config = TrainConfig(epochs=1, batch_size=BATCH_SIZE, shuffle=False, checkpoint_seconds=1e6)
    shares = decide_threads(available_cores())
    configure_tensorflow(threads=shares.tensorflow, deterministic=mode == "deterministic")
    for name, rows in (("train", train), ("valid", held_out)):
        with EncodedWriter(
            folder / name, num_fields=NUM_TABLES, num_numbers=0, fingerprint=""
        ) as writer:
            writer.write(rows.ids_BF, np.empty((len(rows.labels_B), 0), np.float32), rows.labels_B)
    signature = ModelSignature(NUM_TABLES, EMBEDDING_DIM, 0, float(train.labels_B.mean()))
    training_model = None
    if mode == "bfloat16":
        training_model = build_model(model, signature, seed=0, precision="bfloat16")
    compiled = CompiledModel(
        build_model(model, signature, seed=0),
        training_model=training_model,
        batch_size=BATCH_SIZE,
    )
    store = EmbeddingStore(
        [TableSpec(f"table{table}", ROWS_PER_TABLE) for table in range(NUM_TABLES)],
        segment_specs(model, config),
        seed=0,
        threads=shares.rows,
    )
    store.set_training_counts(
        [np.bincount(column, minlength=ROWS_PER_TABLE) for column in train.ids_BF.T]
    )
    dense = DenseParameters(compiled.initial_parameters(), optimizer_spec(config.optimizer))
    clock = StepClock()
    with EncodedReader(folder / "train") as train_rows, EncodedReader(folder / "valid") as valid:
        trainer = Trainer(
            config=config,
            compiled=compiled,
            embeddings=store,
            dense=dense,
            train=train_rows,
            valid=valid,
            files=TrainerFiles(folder / "checkpoints", folder / "history.csv", folder / "events"),
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
        "bits": bits.hexdigest(),
    }


def run_side(mode: str, steps: int, seed: int, output: Path) -> None:
    """One mode, in this process; writes its figures as JSON."""
    rows = draw_rows((steps + HELD_OUT_BATCHES) * BATCH_SIZE, seed=seed)
    cut = steps * BATCH_SIZE
    train = SpeedRows(rows.ids_BF[:cut], rows.labels_B[:cut])
    held_out = SpeedRows(rows.ids_BF[cut:], rows.labels_B[cut:])
    with tempfile.TemporaryDirectory(prefix="step-modes-") as folder:
        figures = run_mode(mode, train, held_out, Path(folder))
    output.write_text(json.dumps(figures), encoding="utf-8")


def start_side(mode: str, *, steps: int, seed: int, folder: Path) -> dict[str, Any]:
    """One mode in a process of its own."""
    output = folder / f"{mode}.json"
    command = [sys.executable, __file__, "--side", mode, "--output", str(output)]
    command += ["--steps", str(steps), "--seed", str(seed)]
    subprocess.run(command, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
    figures: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    print(f"  {mode}: {figures['samples_per_second']:,.0f} samples/s", file=sys.stderr)
    return figures


def main() -> None:
    """Runs the modes by turns and prints what each costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="Turns.")
    parser.add_argument("--steps", type=int, default=256, help="Steps of each training.")
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument("--quick", action="store_true", help="Two turns of 48 steps.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments.side, arguments.steps, arguments.seed, arguments.output)
        return
    repeats, steps = (2, 48) if arguments.quick else (arguments.repeats, arguments.steps)
    if steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}, the steps of the warm-up")
    modes = ["default", "deterministic"]
    if multiplies_bfloat16(processor_flags()):
        modes.append("bfloat16")
    machine = describe_machine()
    figures: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory(prefix="step-modes-") as temporary:
        for _ in range(repeats):
            for mode in modes:
                figures[mode].append(
                    start_side(mode, steps=steps, seed=arguments.seed, folder=Path(temporary))
                )
    if len({one["bits"] for one in figures["deterministic"]}) != 1:
        raise SystemExit("deterministic trainings ended with different bits")
    rates = {
        mode: Spread.of([one["samples_per_second"] for one in figures[mode]]) for mode in modes
    }
    ratios = {
        mode: Spread.of(
            [
                mine / plain
                for mine, plain in zip(rates[mode].values, rates["default"].values, strict=True)
            ]
        )
        for mode in modes
    }
    losses = {mode: figures[mode][0]["held_out_logloss"] for mode in modes}
    print(f"\n{steps} steps of {BATCH_SIZE} rows, {repeats} turns\n")
    print_machine(machine)
    print_table(
        ["mode", "samples/s", "beside default", "held-out logloss", "equal bits each time"],
        [
            [
                mode,
                rates[mode].show(0),
                ratios[mode].show(3),
                f"{losses[mode]:.5f}",
                "yes" if len({one["bits"] for one in figures[mode]}) == 1 else "no",
            ]
            for mode in modes
        ],
    )
    if "bfloat16" not in modes:
        print("bfloat16 was left out: this processor has neither AMX nor AVX512-BF16")
    write_results(
        arguments.json,
        benchmark="step_modes",
        machine=machine,
        results={
            "steps": steps,
            "samples_per_second": {mode: rates[mode].as_dict() for mode in modes},
            "ratio": {mode: ratios[mode].as_dict() for mode in modes},
            "held_out_logloss": losses,
        },
    )


if __name__ == "__main__":
    main()
