"""How fast rows are scored: `ctrpipe predict` on a file, and the exported model alone.

A model is trained on sample rows by `configs/criteo_deepfm.yaml`, for one epoch, and exported. Then

- `file`: `ctrpipe predict` from a TSV file to a Parquet file, beside what a user writes without it:
  pandas reads the same file in blocks, the SavedModel's `serving_default` scores them, one Parquet
  file is written. Whole processes, imports included, by turns; both must give the same
  probabilities. Seconds for a few rows are taken off for the speed of the rows alone.
- `batches`: rows in memory, 1024 at a time and one at a time, through `serving_default`, in a
  process that has TensorFlow alone; milliseconds a call, median and 99th percentile.

    python benchmarks/serve_speed.py
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

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "criteo_deepfm.yaml"
BLOCK_ROWS = 16_384
BATCH_ROWS = 1024
NUMBERS = tuple(f"I{n}" for n in range(1, 14))
TEXTS = tuple(f"C{n}" for n in range(1, 27))
AIM_RATIO, AIM_ROWS, AIM_MILLISECONDS = 1.5, 50_000, 5.0
TOLERANCE = 1e-4


def read_blocks(path: Path, num_rows: int) -> Any:
    """A file in blocks: counts as float64, categories as texts, '' for missing."""
    import pandas as pd

    types: dict[str, Any] = dict.fromkeys(NUMBERS, np.float64) | dict.fromkeys(TEXTS, str)
    return pd.read_csv(
        path,
        sep="\t",
        names=["label", *NUMBERS, *TEXTS],
        dtype=types,
        chunksize=num_rows,
        na_values={name: [""] for name in NUMBERS},
        keep_default_na=False,
    )


def to_inputs(block: Any) -> dict[str, Any]:
    """The signature's arguments."""
    import tensorflow as tf

    inputs = {name: tf.constant(block[name].to_numpy()) for name in NUMBERS}
    return inputs | {name: tf.constant(block[name].to_numpy(dtype=object)) for name in TEXTS}


def score_file(model: Path, rows: Path, output: Path) -> None:
    """What a user writes: the file in blocks through the SavedModel, to Parquet."""
    import pandas as pd
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model))
    signature = loaded.signatures["serving_default"]
    parts = [
        signature(**to_inputs(block))["probability"].numpy().reshape(-1)
        for block in read_blocks(rows, BLOCK_ROWS)
    ]
    pd.DataFrame({"probability": np.concatenate(parts)}).to_parquet(output)


def time_batches(model: Path, rows: Path, output: Path) -> None:
    """Calls of 1024 rows and of one."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model))
    signature = loaded.signatures["serving_default"]
    figures = {}
    for size, calls in ((BATCH_ROWS, 200), (1, 2000)):
        blocks = read_blocks(rows, size)
        batches = [to_inputs(next(blocks)) for _ in range(64)]
        for batch in batches[:16]:
            signature(**batch)
        milliseconds = []
        for call in range(calls):
            batch = batches[call % len(batches)]
            started = time.perf_counter()
            signature(**batch)["probability"].numpy()
            milliseconds.append(1e3 * (time.perf_counter() - started))
        figures[str(size)] = {
            "median_ms": float(np.median(milliseconds)),
            "p99_ms": float(np.quantile(milliseconds, 0.99)),
            "rows_per_second": size * calls / (sum(milliseconds) / 1e3),
        }
    output.write_text(json.dumps(figures), encoding="utf-8")


def run(command: list[str]) -> float:
    """Seconds of a command; its output is shown if it fails."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds


class Setting:
    """A trained and exported model, and the rows to be scored."""

    def __init__(self, folder: Path, *, train_rows: int, num_rows: int, seed: int) -> None:
        from ctr_pipeline.apps.sample import write_criteo_sample
        from ctr_pipeline.progress import SilentProgress

        self.folder = folder
        train = folder / "train.tsv"
        self.rows, self.few = folder / "rows.tsv", folder / "few.tsv"
        silent = SilentProgress()
        write_criteo_sample(train, num_rows=train_rows, seed=seed, progress=silent)
        write_criteo_sample(self.rows, num_rows=num_rows, seed=seed + 1, progress=silent)
        with self.rows.open(encoding="utf-8") as lines:
            self.few.write_text("".join(next(lines) for _ in range(100)), encoding="utf-8")
        self._ctrpipe = str(Path(sys.executable).with_name("ctrpipe"))
        run_folder = folder / "run"
        self._overrides = ["--quiet"]
        for key, value in {
            "data.train": train,
            "output": run_folder,
            "train.epochs": 1,
        }.items():
            self._overrides += ["--set", f"{key}={value}"]
        run([self._ctrpipe, "run", str(CONFIG), *self._overrides])
        self.model = run_folder / "export" / "1"

    def predict(self, rows: Path, output: Path) -> float:
        """Seconds of `ctrpipe predict`."""
        command = [self._ctrpipe, "predict", str(CONFIG), *self._overrides]
        return run([*command, "--data", str(rows), "--output", str(output)])

    def side(self, side: str, rows: Path, output: Path) -> float:
        """Seconds of this script's own side."""
        command = [sys.executable, __file__, "--side", side, "--model", str(self.model)]
        return run([*command, "--input", str(rows), "--output", str(output)])


def compare_files(setting: Setting, num_rows: int, repeats: int) -> dict[str, Any]:
    """Both ways by turns, on all rows and on a few."""
    import pandas as pd

    ours, theirs = setting.folder / "ours.parquet", setting.folder / "theirs.parquet"
    seconds: dict[str, list[float]] = {"predict": [], "saved_model": []}
    start: dict[str, list[float]] = {"predict": [], "saved_model": []}
    for _ in range(repeats):
        seconds["predict"].append(setting.predict(setting.rows, ours))
        seconds["saved_model"].append(setting.side("file", setting.rows, theirs))
        start["predict"].append(setting.predict(setting.few, setting.folder / "few.parquet"))
        start["saved_model"].append(
            setting.side("file", setting.few, setting.folder / "few.parquet")
        )
    scored = [pd.read_parquet(path)["probability"].to_numpy() for path in (ours, theirs)]
    largest = float(np.abs(scored[0] - scored[1]).max())
    if len(scored[0]) != num_rows or largest > TOLERANCE:
        raise SystemExit(f"the two ways differ by {largest} over {len(scored[0])} rows")
    print(f"largest difference of probabilities {largest:.1e}", file=sys.stderr)
    rates = {
        side: [
            num_rows / (whole - few) for whole, few in zip(seconds[side], start[side], strict=True)
        ]
        for side in seconds
    }
    pairs = zip(seconds["saved_model"], seconds["predict"], strict=True)
    speeds = zip(rates["predict"], rates["saved_model"], strict=True)
    return {
        "seconds": {side: Spread.of(values).as_dict() for side, values in seconds.items()},
        "seconds_for_100_rows": {
            side: Spread.of(values).as_dict() for side, values in start.items()
        },
        "rows_per_second_without_start": {
            side: Spread.of(values).as_dict() for side, values in rates.items()
        },
        "ratio": Spread.of([theirs / ours for theirs, ours in pairs]).as_dict(),
        "ratio_without_start": Spread.of([ours / theirs for ours, theirs in speeds]).as_dict(),
        "largest_difference": largest,
    }


def main() -> None:
    """Trains a model and compares the ways of scoring with it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help="Rows to score.")
    parser.add_argument("--train-rows", type=int, default=500_000, help="Rows of training.")
    parser.add_argument("--repeats", type=int, default=3, help="Turns.")
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument("--quick", action="store_true", help="100,000 rows, once.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--side", choices=("file", "batches"), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        work = score_file if options.side == "file" else time_batches
        work(options.model, options.input, options.output)
        return
    num_rows, repeats = (100_000, 1) if options.quick else (options.rows, options.repeats)
    if num_rows < 64 * BATCH_ROWS:
        parser.error(f"--rows must be at least {64 * BATCH_ROWS}, the rows of the batches")
    train_rows = 20_000 if options.quick else options.train_rows
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="serve-speed-") as temporary:
        setting = Setting(
            Path(temporary), train_rows=train_rows, num_rows=num_rows, seed=options.seed
        )
        files = compare_files(setting, num_rows, repeats)
        output = Path(temporary) / "batches.json"
        batches = []
        for _ in range(repeats):
            setting.side("batches", setting.rows, output)
            batches.append(json.loads(output.read_text(encoding="utf-8")))
    print(f"\n{num_rows:,} rows, {repeats} repeats, by turns\n")
    print_machine(machine)

    def show(group: str, side: str, digits: int) -> str:
        return Spread(**files[group][side]).show(digits)

    print_table(
        ["from a file", "s", "of it for 100 rows", "rows/s without that"],
        [
            [
                name,
                show("seconds", side, 1),
                show("seconds_for_100_rows", side, 1),
                show("rows_per_second_without_start", side, 0),
            ]
            for side, name in (
                ("predict", "`ctrpipe predict`"),
                ("saved_model", "pandas and the SavedModel"),
            )
        ],
    )
    print(f"`ctrpipe predict` is {Spread(**files['ratio']).show(2)} times as fast, "
          f"{Spread(**files['ratio_without_start']).show(2)} without the start; "
          f"aim {AIM_RATIO}\n")  # fmt: skip
    spreads = {
        size: {key: Spread.of([one[size][key] for one in batches]) for key in batches[0][size]}
        for size in batches[0]
    }
    print_table(
        ["rows a call", "rows/s", "median, ms", "99th percentile, ms", "aim"],
        [
            [
                size,
                figures["rows_per_second"].show(0),
                figures["median_ms"].show(2),
                figures["p99_ms"].show(2),
                f"{AIM_ROWS:,} rows/s" if size != "1" else f"{AIM_MILLISECONDS:.0f} ms",
            ]
            for size, figures in spreads.items()
        ],
    )
    write_results(
        options.json,
        benchmark="serve_speed",
        machine=machine,
        results={
            "rows": num_rows,
            "files": files,
            "batches": {
                size: {key: value.as_dict() for key, value in figures.items()}
                for size, figures in spreads.items()
            },
        },
    )


if __name__ == "__main__":
    main()
