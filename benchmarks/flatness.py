"""Does a step get slower as the vocabulary grows? The same stream, mapped to fewer or more ids.

DeepFM over 26 tables of embeddings of 16, batches of 4096, MLP 256-128-64, our trainer with the
shipped optimizers, as in `train_speed.py`. The stream is drawn once, over ten million ids; a
smaller vocabulary takes each id modulo its size, so that rare ids fall together with others, as
they do in hash buckets. Every id of a vocabulary has its row before the first step, in random
order, so that as much memory is in use as its size says. Each size trains in a process of its own,
sizes by turns; a ratio is of the two neighbours of one turn.

Two things change with the size: how far apart the rows lie, and how many distinct rows a batch
has, since fewer ids fall together. The table shows the latter, for a row costs an update.

    python benchmarks/flatness.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import Spread, describe_machine, print_machine, print_table, write_results
from our_training import HELD_OUT_BATCHES, WARMUP_STEPS, split_rows, train_ours
from roofline import BATCH_SIZE
from speed_data import NUM_TABLES, SpeedRows, draw_rows, mean_unique_ids

SIZES = (104_000, 1_040_000, 2_600_000, 10_400_000)


def run_size(rows_per_table: int, steps: int, folder: Path) -> None:
    """Trains over tables of that size, in this process; writes its figures as JSON."""
    ids_BF = np.load(folder / "ids.npy") % np.int32(rows_per_table)
    rows = SpeedRows(ids_BF, np.load(folder / "labels.npy"))
    train, held_out = split_rows(rows, steps)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        figures = train_ours(
            train, held_out, Path(work), rows_per_table=rows_per_table, all_rows=True
        )
    figures["unique_rows_a_batch"] = mean_unique_ids(train, batch_size=BATCH_SIZE)
    (folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def start_size(size: int, steps: int, folder: Path) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--steps", str(steps), "--folder", str(folder)]
    command += ["--sizes", str(size)]
    subprocess.run(command, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    print(f"  {size:,} rows: {figures['samples_per_second']:,.0f} samples/s", file=sys.stderr)
    return figures


def main() -> None:
    """Trains over all sizes by turns and prints how much slower the larger ones are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="Turns.")
    parser.add_argument("--steps", type=int, default=128, help="Steps of each training.")
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=SIZES, help="Embedding rows, ascending."
    )
    parser.add_argument("--quick", action="store_true", help="One turn of 48 steps, two sizes.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    repeats, steps, sizes = arguments.repeats, arguments.steps, list(arguments.sizes)
    if arguments.quick:
        repeats, steps, sizes = 1, 48, sizes[:2]
    if steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}, the steps of the warm-up")
    if arguments.folder:
        run_size(sizes[0] // NUM_TABLES, steps, arguments.folder)
        return
    machine = describe_machine()
    figures: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="flatness-") as temporary:
        folder = Path(temporary)
        rows = draw_rows(
            (steps + HELD_OUT_BATCHES) * BATCH_SIZE,
            seed=arguments.seed,
            rows_per_table=max(sizes) // NUM_TABLES,
        )
        np.save(folder / "ids.npy", rows.ids_BF)
        np.save(folder / "labels.npy", rows.labels_B)
        del rows
        for _ in range(repeats):
            for size in sizes:
                figures[size].append(start_size(size, steps, folder))
    speeds = {size: [one["samples_per_second"] for one in figures[size]] for size in sizes}
    slower = {
        size: Spread.of([a / b for a, b in zip(speeds[sizes[0]], speeds[size], strict=True)])
        for size in sizes
    }
    print(f"\n{steps} steps of {BATCH_SIZE} rows, {repeats} repeats, by turns\n")
    print_machine(machine)
    print_table(
        ["embedding rows", "of them, GB", "distinct rows a batch", "samples/s", "times as slow"],
        [
            [
                f"{figures[size][0]['embedding_rows']:,}",
                f"{figures[size][0]['embedding_bytes'] / 1e9:.2f}",
                f"{figures[size][0]['unique_rows_a_batch']:,.0f}",
                Spread.of(speeds[size]).show(0),
                slower[size].show(2) if size != sizes[0] else "",
            ]
            for size in sizes
        ],
    )
    write_results(
        arguments.json,
        benchmark="flatness",
        machine=machine,
        results={
            "steps": steps,
            "repeats": repeats,
            "sizes": {str(size): figures[size] for size in sizes},
            "times_as_slow": {str(size): slower[size].as_dict() for size in sizes},
        },
    )


if __name__ == "__main__":
    main()
