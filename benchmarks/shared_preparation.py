"""What preparation by the tasks of one worker costs beside one process that does all of it.

Sides alternate. Each is a process of its own, from raw text to encoded rows, with the division into
splits, the statistics and the plan in between; counted are the core-seconds of the process and of
those that it starts. The first round is thrown away: files are then in the page cache, kernels
compiled. A worker is a second process, whose start costs the same whatever it prepares: each turn
prepares the first hundredth of the rows as well, and a second ratio leaves out what that costs.

    python benchmarks/shared_preparation.py
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.progress import SilentProgress

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "criteo_elastic.yaml"
SIDES = ("one process", "tasks of one worker")
NUM_TASKS = 10
"""Tasks of reading and of encoding that rows make."""


SPLITS = {
    "order": "{by: order}",
    "random": "{by: random}",
    "hash": "{by: hash, column: C3}",
}


def prepare(rows: Path, output: Path, split: str, *, by_workers: bool) -> None:
    """Prepares rows, and prints seconds and core-seconds as JSON."""
    from ctr_pipeline.pipeline.context import RunContext
    from ctr_pipeline.pipeline.job.preparing import PhaseWorkers
    from ctr_pipeline.pipeline.run import prepare_rows

    num_rows = sum(1 for _ in rows.open("rb"))
    settings = {
        "data.train": rows,
        "data.quote": "null",
        "data.split": SPLITS[split],
        "output": output,
        "runtime.workers": "{min: 1, max: 1}",
        "runtime.bytes_per_reading_task": max(1, rows.stat().st_size // NUM_TASKS),
        "runtime.rows_per_encoding_task": max(1, num_rows // NUM_TASKS),
    }
    loaded = load_config(CONFIG, [f"{key}={value}" for key, value in settings.items()])
    context = RunContext.create(loaded, SilentProgress())
    started = time.perf_counter()
    if by_workers:
        with PhaseWorkers(context, context.run.preparing) as workers:
            prepare_rows(context, share_units=workers.share)
    else:
        prepare_rows(context)
    seconds = time.perf_counter() - started
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    core_seconds = sum(one.ru_utime + one.ru_stime for one in used)
    print(json.dumps({"seconds": seconds, "core_seconds": core_seconds}))


def measure(rows: Path, split: str, side: str) -> dict[str, float]:
    """Runs a side in a process and folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rows-file", str(rows), "--side", side]
        command += ["--split", split, "--output", f"{folder}/run"]
        found = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
        shutil.rmtree(f"{folder}/run", ignore_errors=True)
    return dict(json.loads(found.splitlines()[-1]))


def _of_rows(one: dict[str, float]) -> float:
    """Core-seconds that depend on the number of rows."""
    return one["core_seconds"] - one["start_core_seconds"]


def main() -> None:
    """Measures both sides in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few rows, once, to see that it works")
    parser.add_argument("--split", choices=SPLITS, default="order", help="data.split.by")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--rows-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        by_workers = arguments.side == SIDES[1]
        prepare(arguments.rows_file, arguments.output, arguments.split, by_workers=by_workers)
        return
    num_rows = 20_000 if arguments.quick else arguments.rows
    repeats = 1 if arguments.quick else arguments.repeats
    machine = describe_machine()
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        rows, few = Path(folder) / "rows.txt", Path(folder) / "few.txt"
        write_criteo_sample(rows, num_rows=num_rows, seed=1, progress=SilentProgress())
        with rows.open("rb") as file:
            few.write_bytes(b"".join(islice(file, num_rows // 100)))
        for turn in range(repeats + 1):
            for side in SIDES if turn % 2 else reversed(SIDES):
                one = measure(rows, arguments.split, side)
                one["start_core_seconds"] = measure(few, arguments.split, side)["core_seconds"]
                if turn:
                    found[side].append(one)
    millions = num_rows / 1e6
    table = []
    for side in SIDES:
        seconds = Spread.of([one["seconds"] for one in found[side]])
        cores = Spread.of([one["core_seconds"] / millions for one in found[side]])
        start = Spread.of([one["start_core_seconds"] for one in found[side]])
        table.append((side, seconds.show(1), cores.show(1), start.show(1)))
    turns = list(zip(found[SIDES[0]], found[SIDES[1]], strict=True))
    ratios = [there["core_seconds"] / here["core_seconds"] for here, there in turns]
    ratios_of_rows = [_of_rows(there) / _of_rows(here) for here, there in turns]
    print_machine(machine)
    heads = ("side", "seconds", "core-seconds a million rows", "of a hundredth of the rows")
    print_table(heads, table)
    print(f"ratio of core-seconds: {Spread.of(ratios).show(2)}")
    print(f"the same without the start: {Spread.of(ratios_of_rows).show(2)}")
    write_results(
        arguments.json,
        benchmark="shared_preparation",
        machine=machine,
        results={
            "rows": num_rows,
            "split": arguments.split,
            "sides": found,
            "ratio": Spread.of(ratios),
            "ratio_without_start": Spread.of(ratios_of_rows),
        },
    )


if __name__ == "__main__":
    main()
