"""Training speed: ours beside plain Keras, FuxiCTR and DeepCTR-Torch, same ids, same order.

26 tables of equal size (and a linear weight each), embeddings of 16, batches of 4096, MLP
256-128-64, no dropout on any side; two cross layers, two interaction layers of 16 maps. Ours is the
pipeline's own trainer with the shipped optimizers and L2. Plain Keras is what its guides show: see
`plain_keras.py`. FuxiCTR and DeepCTR-Torch train by their own loops and defaults in an
environment of their own, which is made here: see `peer_training.py`. All sides make the same number
of steps over the same rows and are scored on the same held-out rows. Each side runs in a process of
its own with as many threads as there are cores, the sides by turns; compilation and the first steps
are not timed. The roofline, which is DeepFM's with 2.6 million rows, is measured in each turn.
`--rows` counts the embedding rows of all tables. `--sides bfloat16` is ours with
`train.precision: bfloat16`, where the processor has instructions for it.

    python benchmarks/train_speed.py                     # DeepFM beside plain Keras
    python benchmarks/train_speed.py --sides keras fuxictr deepctr_torch --rows 104000 2600000
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environments import KEPT_IN, make_peers
from machine import Spread, describe_machine, print_machine, print_table, write_results
from our_training import (
    HELD_OUT_BATCHES,
    WARMUP_STEPS,
    samples_per_second,
    split_rows,
    train_ours,
)
from plain_keras import NAMES, build_plain_keras
from roofline import BATCH_SIZE, EMBEDDING_DIM, HIDDEN_UNITS
from speed_data import NUM_TABLES, ROWS_PER_TABLE, SpeedRows, draw_rows

from ctr_pipeline.machine import available_cores, multiplies_bfloat16, processor_flags

SIDES = ("ours", "bfloat16", "keras", "fuxictr", "deepctr_torch")
CROSS_LAYERS = 2
CIN_LAYERS = (16, 16)


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        model: Its name in the registry.
        rows_per_table: Embedding rows of each of the tables.
        steps: Batches of training.
        seed: Of the rows and of initial values.
    """

    model: str
    rows_per_table: int
    steps: int
    seed: int

    @property
    def name(self) -> str:
        """Model and rows of all tables."""
        return f"{self.model}, {self.rows_per_table * NUM_TABLES:,} rows"

    @property
    def has_roofline(self) -> bool:
        """Whether `roofline.py` counts this one."""
        return self.model == "deepfm" and self.rows_per_table == ROWS_PER_TABLE


def logloss(labels_B: np.ndarray, logits_B: np.ndarray) -> float:
    """Mean logloss in nats, float64."""
    logits = logits_B.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - labels_B * logits))


def run_keras(case: Case, train: SpeedRows, held_out: SpeedRows) -> dict[str, Any]:
    """Plain Keras: one epoch of `fit` in the order of the rows."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(available_cores())
    model = build_plain_keras(
        case.model,
        num_tables=NUM_TABLES,
        rows_per_table=case.rows_per_table,
        embedding_dim=EMBEDDING_DIM,
        hidden_units=HIDDEN_UNITS,
        cross_layers=CROSS_LAYERS,
        cin_layers=CIN_LAYERS,
        seed=case.seed,
    )
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
        "held_out_logloss": logloss(held_out.labels_B, logits),
    }


def run_side(side: str, case: Case, folder: Path) -> None:
    """Ours, in either precision, or plain Keras, in this process; writes its figures as JSON."""
    rows = SpeedRows(np.load(folder / "ids.npy"), np.load(folder / "labels.npy"))
    train, held_out = split_rows(rows, case.steps)
    if side == "keras":
        figures = run_keras(case, train, held_out)
    else:
        with tempfile.TemporaryDirectory(prefix="train-speed-") as work:
            figures = train_ours(
                train,
                held_out,
                Path(work),
                model=case.model,
                rows_per_table=case.rows_per_table,
                precision="bfloat16" if side == "bfloat16" else "float32",
            )
    (folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


class SideError(Exception):
    """A side did not run to its end."""


def start_side(side: str, case: Case, folder: Path, peers_python: Path | None) -> dict[str, Any]:
    """One side in a process of its own.

    Raises:
        SideError: It failed, say for want of memory.
    """
    output = folder / "figures.json"
    output.unlink(missing_ok=True)
    if side in ("ours", "bfloat16", "keras"):
        command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
        command += ["--models", case.model, "--rows", str(case.rows_per_table * NUM_TABLES)]
        command += ["--steps", str(case.steps), "--seed", str(case.seed)]
    else:
        script = Path(__file__).with_name("peer_training.py")
        command = [str(peers_python), str(script), side, case.model, str(folder), str(output)]
        command += ["--train-rows", str(case.steps * BATCH_SIZE), "--seed", str(case.seed)]
        command += ["--rows-per-table", str(case.rows_per_table)]
        command += ["--embedding-dim", str(EMBEDDING_DIM), "--cross-layers", str(CROSS_LAYERS)]
        command += ["--hidden-units", *map(str, HIDDEN_UNITS)]
        command += ["--cin-layers", *map(str, CIN_LAYERS)]
        command += ["--threads", str(available_cores())]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    log = folder / "side.log"
    with log.open("w", encoding="utf-8") as lines:
        code = subprocess.run(
            command, env=environment, stdout=lines, stderr=lines, check=False
        ).returncode
    if code != 0 or not output.exists():
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise SideError(f"{side}, {case.name}: ended with {code}\n" + "\n".join(tail))
    figures: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    if "step_times" in figures:
        times = figures.pop("step_times")
        if len(times) != case.steps:
            raise SideError(f"{side}, {case.name}: {len(times)} steps, not {case.steps}")
        figures["samples_per_second"] = samples_per_second(times)
    print(
        f"  {side}, {case.name}: {figures['samples_per_second']:,.0f} samples/s, "
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


def ratios_of(side: str, speeds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """How many times as fast a side is as each other one, turn by turn; empty if it did not run."""
    mine = speeds.get(side, [])
    return {
        other: Spread.of([one / its for one, its in zip(mine, theirs, strict=True)]).as_dict()
        for other, theirs in speeds.items()
        if mine and other != side
    }


def shares_of(
    bounds: list[dict[str, float]], speeds: dict[str, list[float]]
) -> dict[str, dict[str, Any]]:
    """What share of the bound of its own turn a side reached; empty where there is no bound."""
    if not bounds:
        return {}
    ceilings = [bound["samples_per_second"] for bound in bounds]
    return {
        side: Spread.of([one / most for one, most in zip(its, ceilings, strict=True)]).as_dict()
        for side, its in speeds.items()
    }


def compare_case(
    case: Case, sides: tuple[str, ...], repeats: int, peers_python: Path | None, *, quick: bool
) -> dict[str, Any]:
    """All sides of one line by turns; a side that fails is said to, and left out from then on."""
    bounds: list[dict[str, float]] = []
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="train-speed-") as temporary:
        folder = Path(temporary)
        rows = draw_rows(
            (case.steps + HELD_OUT_BATCHES) * BATCH_SIZE,
            seed=case.seed,
            rows_per_table=case.rows_per_table,
        )
        np.save(folder / "ids.npy", rows.ids_BF)
        np.save(folder / "labels.npy", rows.labels_B)
        train, held_out = split_rows(rows, case.steps)
        rate = float(np.clip(train.labels_B.mean(), 1e-6, 1 - 1e-6))
        constant = np.full(len(held_out.labels_B), np.log(rate / (1 - rate)))
        unlearned = logloss(held_out.labels_B, constant)
        del rows, train, held_out
        for _ in range(repeats):
            if case.has_roofline:
                bounds.append(measure_bound(folder, quick=quick))
            for side in sides:
                if side in failed:
                    continue
                try:
                    figures[side].append(start_side(side, case, folder, peers_python))
                except SideError as error:
                    if side == "ours":
                        raise
                    failed[side] = str(error)
                    print(f"  {error}", file=sys.stderr)
    ran = [side for side in sides if side not in failed]
    speeds = {side: [one["samples_per_second"] for one in figures[side]] for side in ran}
    losses = {side: Spread.of([one["held_out_logloss"] for one in figures[side]]) for side in ran}
    return {
        "name": case.name,
        "model": case.model,
        "embedding_rows": case.rows_per_table * NUM_TABLES,
        "samples_per_second": {side: Spread.of(speeds[side]).as_dict() for side in ran},
        "ours_divided_by": ratios_of("ours", speeds),
        "bfloat16_divided_by": ratios_of("bfloat16", speeds),
        "held_out_logloss": {side: loss.as_dict() for side, loss in losses.items()},
        "constant_logloss": unlearned,
        "roofline": bounds,
        "share_of_roofline": shares_of(bounds, speeds),
        "failed": failed,
    }


def show_case(figures: dict[str, Any], side: str) -> list[str]:
    """A line of the table."""
    name = figures["name"]
    if side in figures["failed"]:
        return [name, side, "did not run", "", "", ""]
    speed = Spread(**figures["samples_per_second"][side])
    ratios = [figures[of].get(side) for of in ("ours_divided_by", "bfloat16_divided_by")]
    loss = Spread(**figures["held_out_logloss"][side])
    shown = [Spread(**ratio).show(2) if ratio else "" for ratio in ratios]
    return [name, side, speed.show(0), *shown, loss.show(5)]


def show_roofline(figures: dict[str, Any]) -> None:
    """Prints the bound of a case, if it has one, and how near each of our sides came to it."""
    bounds = figures["roofline"]
    if not bounds:
        return
    for unit, name in (
        ("samples/s", "samples_per_second"),
        ("GFLOPS float32", "float32_gflops"),
        ("GFLOPS bfloat16", "bfloat16_gflops"),
        ("GB/s", "bandwidth_gb_per_second"),
    ):
        measured = Spread.of([bound[name] for bound in bounds])
        print(f"Roofline of {figures['name']}, {unit}: {measured.show(0)}")
    for side, share in figures["share_of_roofline"].items():
        if side in ("ours", "bfloat16"):
            print(f"Of it, {side}: {Spread(**share).show(3)}")


def main() -> None:
    """Runs the sides by turns and prints the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="Runs of each side.")
    parser.add_argument("--steps", type=int, default=256, help="Batches of 4096 rows a run.")
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=["ours", "keras"], help="Beside ours."
    )
    parser.add_argument("--models", nargs="+", choices=NAMES, default=["deepfm"], help="Lines.")
    parser.add_argument(
        "--rows",
        nargs="+",
        type=int,
        default=[ROWS_PER_TABLE * NUM_TABLES],
        help="Embedding rows of all tables; a line of each.",
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=KEPT_IN,
        help="Where the peers' environment is made and kept (6 GB).",
    )
    parser.add_argument("--quick", action="store_true", help="One repeat of 48 steps.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    repeats, steps = (1, 48) if arguments.quick else (arguments.repeats, arguments.steps)
    if steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}, the steps of the warm-up")
    cases = [
        Case(model, -(-rows // NUM_TABLES), steps, arguments.seed)
        for rows in arguments.rows
        for model in arguments.models
    ]
    if arguments.side:
        run_side(arguments.side, cases[0], arguments.folder)
        return
    if "bfloat16" in arguments.sides and not multiplies_bfloat16(processor_flags()):
        parser.error("this processor has neither AMX nor AVX512-BF16; leave out bfloat16")
    sides = ("ours", *(side for side in arguments.sides if side != "ours"))
    peers_python = None
    if {"fuxictr", "deepctr_torch"} & set(sides):
        peers_python = make_peers(arguments.environments)
    machine = describe_machine()
    results = [
        compare_case(case, sides, repeats, peers_python, quick=arguments.quick) for case in cases
    ]
    print(f"\n{steps} steps of {BATCH_SIZE} rows, {repeats} repeats, by turns\n")
    print_machine(machine)
    print_table(
        ["model", "side", "samples/s", "ours / it", "bfloat16 / it", "held-out logloss"],
        [show_case(figures, side) for figures in results for side in sides],
    )
    for figures in results:
        show_roofline(figures)
        unlearned = f"{figures['constant_logloss']:.5f}"
        print(f"Logloss of the click rate alone, {figures['name']}: {unlearned}")
    write_results(
        arguments.json,
        benchmark="train_speed",
        machine=machine,
        results={
            "steps": steps,
            "repeats": repeats,
            "threads": available_cores(),
            "cases": results,
        },
    )


if __name__ == "__main__":
    main()
