"""A whole job beside FuxiCTR's: raw files to test metrics, and ours to a proven export as well.

Both take the same three tab-separated files, look categories seen at least twice up in
vocabularies, bucket the counts by floor(ln(x)^2), train DeepFM (embeddings of 16, MLP 256-128-64)
for one epoch, validate it and score the test rows; ours also standardises logarithms of the counts,
exports a SavedModel, proves it and writes the report. Batches are of 1024 rows, our default, so
that both make the same steps; `--peer-batch-size 4096` gives FuxiCTR, which has no default, fewer
and larger ones, with which it is faster and predicts worse. Both have as many threads as there are
cores. Whole processes, imports included, in an environment each, by turns.

`--stop-peer-at 6.5` ends FuxiCTR's job once it has taken that many times ours of the same turn, for
rows with which it would go on for hours: the ratio is then at least that, and its metrics are not
known.

    python benchmarks/whole_job_beside.py --rows 1_000_000
    python benchmarks/whole_job_beside.py --rows 10_000_000 --stop-peer-at 6.5
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from environments import KEPT_IN, make_peers
from feature_speed import MIN_COUNT, all_features, split_paths, write_rows
from machine import Spread, describe_machine, print_machine, print_table, write_results
from roofline import EMBEDDING_DIM, HIDDEN_UNITS
from whole_job import MemoryWatch

from ctr_pipeline.machine import available_cores

SIDES = ("ours", "fuxictr")
OUR_BATCH_SIZE = 1024


def start_ours(folder: Path, work: Path) -> list[str]:
    """The command of our job."""
    config = {
        "name": "whole-job",
        "data": {**split_paths(folder, "csv"), "format": "tsv", "label": "label"},
        "features": all_features(),
        "model": {
            "name": "deepfm",
            "embedding_dim": EMBEDDING_DIM,
            "hidden_units": list(HIDDEN_UNITS),
        },
        "train": {"epochs": 1, "batch_size": OUR_BATCH_SIZE},
        "output": str(work / "run"),
    }
    path = work / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return [str(Path(sys.executable).with_name("ctrpipe")), "run", str(path), "--quiet"]


def start_fuxictr(folder: Path, work: Path, python: Path, batch_size: int) -> list[str]:
    """The command of FuxiCTR's job."""
    script = Path(__file__).with_name("fuxictr_job.py")
    command = [str(python), str(script), str(folder), str(work), str(work / "figures.json")]
    command += ["--min-count", str(MIN_COUNT), "--batch-size", str(batch_size)]
    command += ["--embedding-dim", str(EMBEDDING_DIM), "--threads", str(available_cores())]
    return [*command, "--hidden-units", *map(str, HIDDEN_UNITS)]


def run_side(
    side: str, folder: Path, python: Path, batch_size: int, limit_seconds: float | None = None
) -> dict[str, Any]:
    """One job in a process and a folder of its own; ended at the limit, it has no metrics."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{side}-") as temporary:
        work = Path(temporary)
        if side == "ours":
            command = start_ours(folder, work)
        else:
            command = start_fuxictr(folder, work, python, batch_size)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "RAY_USAGE_STATS_ENABLED": "0"}
        log = work / "job.log"
        started = time.perf_counter()
        with log.open("w", encoding="utf-8") as lines:
            process = subprocess.Popen(
                command, env=environment, stdout=lines, stderr=lines, start_new_session=True
            )
            watch = MemoryWatch(process.pid)
            code = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(limit_seconds)
            finally:
                if code is None:
                    # With the processes that it started: in a group of their own, they do not hear
                    # of Ctrl-C either.
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                watch.close()
        seconds = time.perf_counter() - started
        if code is None:
            print(f"  {side}: not at its end after {seconds:.1f} s", file=sys.stderr)
            return {"wall_seconds": seconds, "peak_memory_bytes": watch.peak_bytes, "ended": False}
        if code != 0:
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise SystemExit(f"{side} ended with {code}:\n{tail}")
        figures: dict[str, Any]
        if side == "ours":
            metrics = json.loads((work / "run" / "metrics.json").read_text(encoding="utf-8"))
            figures = {
                "seconds": metrics["timings_seconds"],
                "test_logloss": metrics["test"]["logloss"],
                "test_auc": metrics["test"]["auc"],
            }
        else:
            figures = json.loads((work / "figures.json").read_text(encoding="utf-8"))
    figures |= {"wall_seconds": seconds, "peak_memory_bytes": watch.peak_bytes, "ended": True}
    print(f"  {side}: {seconds:.1f} s, logloss {figures['test_logloss']:.4f}", file=sys.stderr)
    return figures


def row_of(side: str, jobs: list[dict[str, Any]]) -> list[str]:
    """A side's line of the table; jobs that were not awaited tell a bound alone."""

    def spread(key: str, places: int, unit: float = 1) -> str:
        return Spread.of([job[key] / unit for job in jobs]).show(places)

    seconds, memory = spread("wall_seconds", 1), spread("peak_memory_bytes", 2, 1e9)
    if not all(job["ended"] for job in jobs):
        return [side, f"more than {seconds}", f"at least {memory}", "-", "-", "-"]
    stages = ", ".join(
        f"{stage} {Spread.of([job['seconds'][stage] for job in jobs]).mean:.1f}"
        for stage in jobs[0]["seconds"]
    )
    return [side, seconds, memory, spread("test_auc", 4), spread("test_logloss", 4), stages]


def main() -> None:
    """Runs both by turns and prints the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="Rows of all three files.")
    parser.add_argument("--repeats", type=int, default=3, help="Turns.")
    parser.add_argument(
        "--peer-batch-size", type=int, default=OUR_BATCH_SIZE, help="Rows of FuxiCTR's batches."
    )
    parser.add_argument(
        "--stop-peer-at",
        type=float,
        metavar="TIMES",
        help="End FuxiCTR's job when it has taken so many times ours of the turn.",
    )
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument("--quick", action="store_true", help="50,000 rows, once.")
    parser.add_argument(
        "--environments",
        type=Path,
        default=KEPT_IN,
        help="Where FuxiCTR's environment is made and kept (6 GB).",
    )
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    num_rows, repeats = (50_000, 1) if arguments.quick else (arguments.rows, arguments.repeats)
    peer_batch = arguments.peer_batch_size
    python = make_peers(arguments.environments)
    machine = describe_machine()
    jobs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="whole-job-beside-") as temporary:
        write_rows(Path(temporary), num_rows, arguments.seed)
        for _ in range(repeats):
            ours = run_side("ours", Path(temporary), python, peer_batch)
            jobs["ours"].append(ours)
            times = arguments.stop_peer_at
            limit = None if times is None else times * ours["wall_seconds"]
            jobs["fuxictr"].append(run_side("fuxictr", Path(temporary), python, peer_batch, limit))
    all_ended = all(job["ended"] for job in jobs["fuxictr"])
    pairs = zip(jobs["fuxictr"], jobs["ours"], strict=True)
    ratio = Spread.of([theirs["wall_seconds"] / ours["wall_seconds"] for theirs, ours in pairs])
    print(
        f"\n{num_rows:,} rows, {repeats} repeats, by turns; batches of {OUR_BATCH_SIZE} and "
        f"{peer_batch}\n"
    )
    print_machine(machine)
    rows = [row_of(side, jobs[side]) for side in SIDES]
    print_table(["side", "s", "peak memory, GB", "test AUC", "test logloss", "of it, s"], rows)
    if all_ended:
        print(f"FuxiCTR's job takes {ratio.show(2)} times as long")
    else:
        print(f"FuxiCTR's job takes more than {ratio.show(2)} times as long: not all were awaited")
    write_results(
        arguments.json,
        benchmark="whole_job_beside",
        machine=machine,
        results={
            "rows": num_rows,
            "threads": available_cores(),
            "batch_size": {"ours": OUR_BATCH_SIZE, "fuxictr": peer_batch},
            "jobs": jobs,
            "ratio": ratio.as_dict(),
            "ratio_is_lower_bound": not all_ended,
        },
    )


if __name__ == "__main__":
    main()
