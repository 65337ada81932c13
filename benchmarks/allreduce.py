"""Two workers that reduce gradients among themselves, beside one worker and one server.

DeepFM on rows of the generator, batches of 1024 per worker, the same number of epochs. Every side
is a run of its own with all its processes on this machine, sides by turns:

- allreduce: two workers, `strategy: allreduce`.
- servers: one worker and one parameter server, asynchronous updates.
- killed: as allreduce; one worker is killed with SIGKILL in the middle and comes back.

Rows per second are those of `history.csv`, without validation. `seconds of a change` is how long a
worker that goes on stood still, of the loss and of the return.

    python benchmarks/allreduce.py
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import Spread, describe_machine, print_machine, print_table, write_results
from watched_run import WatchedRun

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.pipeline.job.replica_progress import load_progress
from ctr_pipeline.pipeline.job.replicas import load_members
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history

BATCH_SIZE = 1024
SIDES = ("allreduce", "servers", "killed")
PATIENCE_SECONDS = 1800.0
RUNTIMES = {
    "servers": {"parameter_servers": 1, "workers": {"min": 1, "max": 1}},
    "allreduce": {"strategy": "allreduce", "workers": {"min": 1, "max": 2}},
}
RUNTIMES["killed"] = RUNTIMES["allreduce"]


def config_of(data: Path, side: str, epochs: int) -> dict[str, Any]:
    """The config of one side."""
    return {
        "name": f"allreduce-{side}",
        "data": {"train": str(data), "format": "tsv", "columns": ["label", "I1..I13", "C1..C26"]},
        "features": [
            {"columns": "I1..I13", "number": ["log", "standardize"]},
            {"columns": "C1..C26", "id": {"vocabulary": {"min_count": 2}}},
        ],
        "model": {"name": "deepfm", "embedding_dim": 8, "hidden_units": [128, 64]},
        "train": {"epochs": epochs, "batch_size": BATCH_SIZE, "early_stopping": None},
        "export": {"parity_rows": 50},
        "runtime": {"mode": "processes", **RUNTIMES[side]},
    }


def kill_one(run: WatchedRun) -> None:
    """Kills the youngest worker once two train together, after some steps."""
    until, folder = time.monotonic() + PATIENCE_SECONDS, RunFolder(run.output)
    while time.monotonic() < until and not run.has_ended:
        told = load_progress(folder)
        if told is not None and told.worlds[-1].size == 2 and told.step > told.worlds[-1].step + 20:
            os.kill(load_members(folder)[-1].pid, signal.SIGKILL)
            return
        time.sleep(0.05)
    raise TimeoutError(f"two workers never trained together: {run.tail()}")


def run_side(side: str, data: Path, epochs: int, folder: Path) -> dict[str, Any]:
    """One run; returns its figures."""
    with WatchedRun(folder, config_of(data, side, epochs)) as run:
        run.start("run")
        if side == "killed":
            kill_one(run)
        if run.wait(PATIENCE_SECONDS) != 0:
            raise RuntimeError(run.tail(40))
        history = load_history(run.output / "history.csv")
        worlds = run.metrics()["training"].get("worlds", [])
    found = {
        "rows_per_second": sum(row.num_rows for row in history)
        / sum(row.seconds for row in history),
        "auc": history[-1].valid_auc,
        "rows_an_epoch": [row.num_rows for row in history],
        "change_seconds": [world["seconds"] for world in worlds[1:]],
        "steps_repeated": sum(world["steps_repeated"] for world in worlds),
    }
    print(f"  {side}: {found['rows_per_second']:,.0f} rows/s", file=sys.stderr)
    return found


def main() -> None:
    """Runs the sides by turns and prints their table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Small, to see that it works.")
    parser.add_argument("--rows", type=int, help="Rows of the data.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    repeats, epochs = (1, 4) if arguments.quick else (3, 6)
    num_rows = arguments.rows or (40_000 if arguments.quick else 200_000)
    machine = describe_machine()
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="allreduce-") as name:
        root = Path(name)
        data = root / "train.txt"
        write_criteo_sample(data, num_rows=num_rows, seed=1, progress=SilentProgress())
        for turn in range(repeats):
            for side in SIDES:
                figures[side].append(run_side(side, data, epochs, root / f"{turn}-{side}"))
    rates = {side: Spread.of([one["rows_per_second"] for one in figures[side]]) for side in SIDES}
    print(f"\n{num_rows:,} rows, {epochs} epochs, {repeats} turns\n")
    print_machine(machine)
    print_table(
        ["side", "rows/s", "AUC", "rows of each epoch", "seconds of a change", "steps repeated"],
        [
            [
                side,
                rates[side].show(0),
                f"{statistics.mean(one['auc'] for one in figures[side]):.4f}",
                " ".join(
                    sorted({str(rows) for one in figures[side] for rows in one["rows_an_epoch"]})
                ),
                " ".join(f"{s:.2f}" for one in figures[side] for s in one["change_seconds"]),
                " ".join(str(one["steps_repeated"]) for one in figures[side]),
            ]
            for side in SIDES
        ],
    )
    write_results(
        arguments.json,
        benchmark="allreduce",
        machine=machine,
        results={"rows": num_rows, "epochs": epochs, "sides": figures},
    )


if __name__ == "__main__":
    main()
