"""What a step costs with `train.deterministic`, and with `train.precision: bfloat16`.

DeepFM over 26 tables of 100,000 rows x 16, batches of 4096, MLP 256-128-64, our trainer with the
shipped optimizers, as in `train_speed.py`. Every mode trains the same rows in the same order in a
process of its own, modes by turns; a ratio is of the two neighbours of one turn. Deterministic
sides must end with the same bits, which is checked. bfloat16 is timed where the processor has AMX
or AVX512-BF16, and said to be left out elsewhere.

    python benchmarks/step_modes.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import Spread, describe_machine, print_machine, print_table, write_results
from our_training import HELD_OUT_BATCHES, WARMUP_STEPS, split_rows, train_ours
from roofline import BATCH_SIZE
from speed_data import ROWS_PER_TABLE, draw_rows

from ctr_pipeline.machine import multiplies_bfloat16, processor_flags


def run_side(mode: str, steps: int, seed: int, output: Path) -> None:
    """One mode, in this process; writes its figures as JSON."""
    rows = draw_rows((steps + HELD_OUT_BATCHES) * BATCH_SIZE, seed=seed)
    train, held_out = split_rows(rows, steps)
    with tempfile.TemporaryDirectory(prefix="step-modes-") as folder:
        figures = train_ours(
            train,
            held_out,
            Path(folder),
            rows_per_table=ROWS_PER_TABLE,
            precision="bfloat16" if mode == "bfloat16" else "float32",
            deterministic=mode == "deterministic",
        )
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
