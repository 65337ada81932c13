"""A whole job from a file to an evaluated and exported model: seconds a stage and peak memory.

Writes sample rows with the columns and cardinalities of Criteo's challenge of 2014, runs `ctrpipe
run configs/criteo_deepfm.yaml` on them in a process of its own, and reads the stages' seconds from
its `metrics.json`. With `--formats tsv parquet`, the same rows by turns. Ingestion, statistics and
transforms together give rows/s. Peak memory is the largest sum over the process and its children,
sampled every 0.2 s (more rarely where that would take more than a fiftieth of a core), of the
proportional set size: a page that n processes share counts for an n-th in each, so once in all.
Systems that do not tell it (all but Linux) give resident memory, every 50 ms, where shared pages
count once a process.

    python benchmarks/whole_job.py --rows 1_000_000 4_000_000
    python benchmarks/whole_job.py --rows 45_840_617 --formats tsv parquet --repeats 1
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "criteo_deepfm.yaml"
CTRPIPE = str(Path(sys.executable).with_name("ctrpipe"))
PREPARATION = ("ingest", "statistics", "transforms")
# The kernel walks a process's pages for its proportional set size, so that is asked for less often.
_PROPORTIONAL = hasattr(psutil.Process().memory_full_info(), "pss")
_SAMPLING_SECONDS = 0.2 if _PROPORTIONAL else 0.05
_MOST_SHARE_OF_A_CORE = 0.02


def memory_of(process: psutil.Process) -> int:
    """Bytes of a process: its proportional set size where the system tells it, else resident.

    Raises:
        psutil.NoSuchProcess: It ended.
        psutil.AccessDenied: It is ending, or someone else's.
    """
    if _PROPORTIONAL:
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)


class MemoryWatch:
    """Watches the memory of a process and its children together until closed."""

    def __init__(self, process_id: int) -> None:
        self.peak_bytes = 0
        self._process = psutil.Process(process_id)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        pause = _SAMPLING_SECONDS
        while not self._stop.wait(pause):
            started = time.thread_time()
            total = 0
            try:
                processes = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in processes:
                try:
                    total += memory_of(process)
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue  # It ended between being listed and being asked, or is about to.
            self.peak_bytes = max(self.peak_bytes, total)
            # Looking at many pages takes from the job what is to be measured.
            spent = time.thread_time() - started
            pause = max(_SAMPLING_SECONDS, spent / _MOST_SHARE_OF_A_CORE)

    def close(self) -> None:
        """Ends watching."""
        self._stop.set()
        self._thread.join()


def write_rows(folder: Path, formats: list[str], *, num_rows: int, seed: int) -> dict[str, Any]:
    """Writes a sample as `rows.FORMAT` in each format, and returns the sampler's figures."""
    text = folder / "rows.tsv"
    started = time.perf_counter()
    truth = write_criteo_sample(text, num_rows=num_rows, seed=seed, progress=SilentProgress())
    sampling_seconds = time.perf_counter() - started
    if "parquet" in formats:
        table = str(folder / "rows.parquet")
        columns = ["--columns", "label,I1..I13,C1..C26"]
        subprocess.run([CTRPIPE, "convert", str(text), *columns, "-o", table], check=True)
    if "tsv" not in formats:
        text.unlink()
    return {
        "sampling_rows_per_second": num_rows / sampling_seconds,
        "realized_floor": truth.realized.learnable_floor,
        "realized_base_rate": truth.realized.base_rate_logloss,
    }


def run_job(rows: Path, *, num_rows: int, epochs: int) -> dict[str, Any]:
    """Runs one job on a file of rows in a temporary folder beside it."""
    with tempfile.TemporaryDirectory(prefix="job-", dir=rows.parent) as temporary:
        output = Path(temporary) / "run"
        command = [CTRPIPE, "run", str(CONFIG), "--quiet"]
        overrides = [f"data.train={rows}", f"output={output}", f"train.epochs={epochs}"]
        if rows.suffix == ".parquet":
            overrides += ["data.format=parquet", "data.columns=null"]
        for override in overrides:
            command += ["--set", override]
        started = time.perf_counter()
        with (Path(temporary) / "run.err").open("w+", encoding="utf-8") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            watch = MemoryWatch(process.pid)
            code = process.wait()
            wall_seconds = time.perf_counter() - started
            watch.close()
            if code != 0:
                errors.seek(0)
                raise SystemExit(f"ctrpipe run ended with {code}:\n{errors.read()}")
        metrics = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
        seconds: dict[str, float] = metrics["timings_seconds"]
        return {
            "format": rows.suffix[1:],
            "num_rows": num_rows,
            "seconds": seconds,
            "wall_seconds": wall_seconds,
            "preparation_rows_per_second": num_rows / sum(seconds[name] for name in PREPARATION),
            "training_rows_per_second": _trained_rows(metrics) / seconds["training"],
            "peak_memory_bytes": watch.peak_bytes,
            "embedding_bytes": metrics["training"]["embedding_bytes"],
            "test_auc": metrics["test"]["auc"],
            "test_logloss": metrics["test"]["logloss"],
        }


def _trained_rows(metrics: dict[str, Any]) -> int:
    return int(metrics["num_rows"]["train"]) * int(metrics["training"]["epochs"])


def summarize(jobs: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of the table for the repeats of one size."""

    def spread(values: list[float], digits: int) -> str:
        return Spread.of(values).show(digits)

    stages = [
        [f"{stage}, s", spread([job["seconds"][stage] for job in jobs], 1)]
        for stage in jobs[0]["seconds"]
    ]
    return [
        *stages,
        ["whole job, s", spread([job["wall_seconds"] for job in jobs], 1)],
        [
            "ingest + statistics + transforms, rows/s",
            spread([job["preparation_rows_per_second"] for job in jobs], 0),
        ],
        ["training, rows/s", spread([job["training_rows_per_second"] for job in jobs], 0)],
        ["peak memory, GB", spread([job["peak_memory_bytes"] / 1e9 for job in jobs], 2)],
        ["of it embedding rows, GB", spread([job["embedding_bytes"] / 1e9 for job in jobs], 2)],
        ["test AUC", spread([job["test_auc"] for job in jobs], 4)],
        ["test logloss", spread([job["test_logloss"] for job in jobs], 4)],
        ["learnable floor", spread([job["realized_floor"] for job in jobs], 4)],
        ["constant click rate", spread([job["realized_base_rate"] for job in jobs], 4)],
    ]


def main() -> None:
    """Runs the jobs and prints a table a size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000], help="Sample sizes.")
    parser.add_argument(
        "--formats", nargs="+", choices=("tsv", "parquet"), default=["tsv"], help="Of the rows."
    )
    parser.add_argument("--epochs", type=int, default=1, help="Epochs of training.")
    parser.add_argument("--repeats", type=int, default=3, help="Jobs of each size.")
    parser.add_argument("--seed", type=int, default=0, help="Of the sample.")
    parser.add_argument("--quick", action="store_true", help="50,000 rows, once.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    formats: list[str] = arguments.formats
    sizes = [50_000] if arguments.quick else arguments.rows
    repeats = 1 if arguments.quick else arguments.repeats
    machine = describe_machine()
    print_machine(machine)
    results: dict[str, Any] = {}
    for num_rows in sizes:
        with tempfile.TemporaryDirectory(prefix="whole-job-") as temporary:
            folder = Path(temporary)
            truth = write_rows(folder, formats, num_rows=num_rows, seed=arguments.seed)
            jobs = [
                {
                    **run_job(folder / f"rows.{kind}", num_rows=num_rows, epochs=arguments.epochs),
                    **truth,
                }
                for _ in range(repeats)
                for kind in formats
            ]
        for kind in formats:
            print_table(
                [f"{num_rows:,} rows, {kind}, {arguments.epochs} epochs", "measured"],
                summarize([job for job in jobs if job["format"] == kind]),
            )
        results[str(num_rows)] = jobs
    write_results(arguments.json, benchmark="whole_job", machine=machine, results=results)


if __name__ == "__main__":
    main()
