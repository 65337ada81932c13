"""Workers that reduce gradients among themselves, beside other ways to train on several processes.

DeepFM on the ids of rows of the generator. Every side is a run of its own with all its processes on
this machine, so members share its cores; sides by turns:

- allreduce: two workers, `strategy: allreduce`, batches of 1024 each.
- hybrid: as allreduce, with the embedding rows on one server.
- servers: one worker and one parameter server, asynchronous updates, batches of 1024.
- mirrored: plain Keras of the same widths under TensorFlow's MultiWorkerMirroredStrategy, two
  workers, batches of 1024 each (`mirrored_training.py`), on the same encoded rows.
- killed: as allreduce; one worker is killed with SIGKILL in the middle and comes back.
- static: six workers with a fixed global batch of 8 x 128.
- churn: the same with 4 workers, then 8, then 4, …, changed by `ctrpipe scale` when so many have
  trained together for 20 s. As all share the cores of this machine, its core-seconds are those of
  `static` for the same seconds, and include the starts of workers.

Rows per second are those of `history.csv`, without validation, but for `static` and `churn`: from
the first world of the wanted size to the end of training, validation and every change included.
`seconds of a change` is how long a worker that goes on stood still.

    python benchmarks/allreduce.py
    python benchmarks/allreduce.py --sides static churn
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import Spread, describe_machine, print_machine, print_table, write_results
from watched_run import WatchedRun

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.elastic.local_nodes import free_addresses
from ctr_pipeline.pipeline.job.replica_progress import ReplicaProgress, load_progress
from ctr_pipeline.pipeline.job.replicas import load_members, scale_replicas
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.training.history import load_history

BATCH_SIZE = 1024
MOST, STATIC, FEW = 8, 6, 4
CHURN_SECONDS = 20.0
PATIENCE_SECONDS = 1800.0
RUNTIMES: dict[str, dict[str, Any]] = {
    "allreduce": {"strategy": "allreduce", "workers": {"min": 2, "max": 2}},
    "hybrid": {
        "strategy": "allreduce",
        "embeddings": "hybrid",
        "parameter_servers": 1,
        "workers": {"min": 2, "max": 2},
    },
    "servers": {"parameter_servers": 1, "workers": {"min": 1, "max": 1}},
    "killed": {"strategy": "allreduce", "workers": {"min": 1, "max": 2}},
    "static": {"strategy": "allreduce", "workers": {"min": 1, "max": MOST}},
    "churn": {"strategy": "allreduce", "workers": {"min": 1, "max": MOST}},
}
SIDES = ("allreduce", "hybrid", "servers", "mirrored", "killed", "static", "churn")
RATIOS = (
    ("allreduce", "servers"),
    ("hybrid", "allreduce"),
    ("allreduce", "mirrored"),
    ("churn", "static"),
)
SCALED = ("static", "churn")


def config_of(data: Path, side: str, epochs: int) -> dict[str, Any]:
    """The config of one side."""
    train: dict[str, Any] = {"epochs": epochs, "batch_size": BATCH_SIZE, "early_stopping": None}
    if side in SCALED:
        train |= {"batch_size": BATCH_SIZE // MOST, "global_batch": "fixed"}
    return {
        "name": f"allreduce-{side}",
        "data": {
            "train": str(data),
            "format": "tsv",
            "columns": ["label", "I1..I13", "C1..C26"],
            # Each worker validates all of them.
            "split": {"valid": 0.05, "test": 0.2},
        },
        "features": [{"columns": "C1..C26", "id": {"vocabulary": {"min_count": 2}}}],
        "model": {"name": "deepfm", "embedding_dim": 8, "hidden_units": [128, 64]},
        "train": train,
        "export": {"parity_rows": 50},
        "runtime": {"mode": "processes", **RUNTIMES[side]},
    }


def await_progress(run: WatchedRun, holds: Callable[[ReplicaProgress], bool]) -> ReplicaProgress:
    """Waits until what the first worker tells fulfils something.

    Raises:
        RuntimeError: The run ended before, or it took too long.
    """
    until, folder = time.monotonic() + PATIENCE_SECONDS, RunFolder(run.output)
    while time.monotonic() < until and not run.has_ended:
        told = load_progress(folder)
        if told is not None and holds(told):
            return told
        time.sleep(0.05)
    raise RuntimeError(f"it did not come so far: {run.tail()}")


def kill_one(run: WatchedRun) -> None:
    """Kills the youngest worker once two train together, after some steps."""
    await_progress(
        run,
        lambda told: told.worlds[-1].size == 2 and told.step > told.worlds[-1].step + 20,
    )
    os.kill(load_members(RunFolder(run.output))[-1].pid, signal.SIGKILL)


def scale(run: WatchedRun, sizes: Sequence[int], epochs: int, num_rows: int) -> dict[str, Any]:
    """Has as many workers train together as `sizes` say, each for `CHURN_SECONDS`, in turn.

    Returns:
        Figures from the first world of the first size to the end of training.
    """
    folder = RunFolder(run.output)
    await_progress(run, lambda _: True)
    scale_replicas(folder, sizes[0])
    told = await_progress(run, lambda told: told.worlds[-1].size == sizes[0])
    began, first = time.monotonic(), told.epoch * num_rows + told.rows
    reached, wanted, since = [told.worlds[-1].size], sizes[0], began
    while not run.has_ended:
        told = load_progress(folder) or told
        if told.epoch >= epochs:
            break
        if told.worlds[-1].size != reached[-1]:
            reached.append(told.worlds[-1].size)
            since = time.monotonic()
        is_due = reached[-1] == wanted and time.monotonic() > since + CHURN_SECONDS
        if is_due and len(sizes) > 1:
            wanted = sizes[(sizes.index(wanted) + 1) % len(sizes)]
            scale_replicas(folder, wanted)
        time.sleep(0.05)
    seconds = time.monotonic() - began
    return {
        "rows_per_second": (epochs * num_rows - first) / seconds,
        "training_seconds": seconds,
        "sizes": reached,
    }


def run_side(side: str, data: Path, epochs: int, folder: Path) -> dict[str, Any]:
    """One run; returns its figures."""
    scaled: dict[str, Any] = {}
    with WatchedRun(folder, config_of(data, side, epochs)) as run:
        run.start("run")
        if side == "killed":
            kill_one(run)
        if side in SCALED:
            await_progress(run, lambda _: True)
            with EncodedReader(RunFolder(run.output).encoded / "train") as rows:
                num_rows = rows.meta.num_rows
            sizes = (STATIC,) if side == "static" else (FEW, MOST)
            scaled = scale(run, sizes, epochs, num_rows)
        if run.wait(PATIENCE_SECONDS) != 0:
            raise RuntimeError(run.tail(40))
        history = load_history(run.output / "history.csv")
        metrics = run.metrics()
        worlds = metrics["training"].get("worlds", [])
    return {
        "rows_per_second": sum(row.num_rows for row in history)
        / sum(row.seconds for row in history),
        "auc": history[-1].valid_auc,
        "test_auc": metrics["test"]["auc"],
        "rows_an_epoch": [row.num_rows for row in history],
        "world_sizes": [world["size"] for world in worlds],
        "change_seconds": [world["seconds"] for world in worlds[1:]],
        "steps_repeated": sum(world["steps_repeated"] for world in worlds),
        **scaled,
    }


def run_mirrored(encoded: Path, epochs: int, folder: Path) -> dict[str, Any]:
    """Two workers of plain Keras on the rows that another side has encoded."""
    folder.mkdir()
    for split, prefix in (("train", ""), ("valid", "valid_")):
        with EncodedReader(encoded / split) as reader:
            rows = reader.read_range(0, reader.meta.num_rows)
            np.save(folder / f"{prefix}ids.npy", rows.ids_BF)
            np.save(folder / f"{prefix}labels.npy", rows.labels_B)
    addresses = free_addresses("127.0.0.1", 2)
    log = folder / "log"
    options = ("--epochs", str(epochs), "--batch-size", str(BATCH_SIZE))
    command = (sys.executable, str(Path(__file__).with_name("mirrored_training.py")), str(folder))
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        place = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
        with log.open("a") as written:
            workers.append(
                subprocess.Popen(
                    [*command, *options],
                    stdout=subprocess.PIPE,
                    stderr=written,
                    text=True,
                    env={**os.environ, "TF_CONFIG": place},
                )
            )
    try:
        printed, _ = workers[0].communicate(timeout=PATIENCE_SECONDS)
        if [worker.wait(PATIENCE_SECONDS) for worker in workers] != [0, 0]:
            raise RuntimeError(log.read_text()[-3000:])
    finally:
        for worker in workers:
            worker.kill()
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def main() -> None:
    """Runs the sides by turns and prints their table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Small, to see that it works.")
    parser.add_argument("--rows", type=int, help="Rows of the data.")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--turns", type=int, help="Runs of each side.")
    parser.add_argument("--scaled-epochs", type=int, help="Epochs of static and churn.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    sides = [side for side in SIDES if side in arguments.sides]
    if "mirrored" in sides and "allreduce" not in sides:
        parser.error("mirrored trains on the rows that allreduce encodes: name both sides")
    repeats, epochs = (1, 4) if arguments.quick else (3, 6)
    repeats = arguments.turns or repeats
    scaled_epochs = arguments.scaled_epochs or (6 if arguments.quick else 20)
    num_rows = arguments.rows or (40_000 if arguments.quick else 200_000)
    machine = describe_machine()
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="allreduce-") as name:
        root = Path(name)
        data = root / "train.txt"
        write_criteo_sample(data, num_rows=num_rows, seed=1, progress=SilentProgress())
        for turn in range(repeats):
            for side in sides:
                folder = root / f"{turn}-{side}"
                if side == "mirrored":
                    encoded = RunFolder(root / f"{turn}-allreduce" / "run").encoded
                    found = run_mirrored(encoded, epochs, folder)
                else:
                    found = run_side(
                        side, data, scaled_epochs if side in SCALED else epochs, folder
                    )
                print(f"  {side}: {found}", file=sys.stderr)
                figures[side].append(found)
    load = os.getloadavg()[0]
    print(f"\n{num_rows:,} rows, {epochs} epochs ({scaled_epochs} of static and churn), ", end="")
    print(f"{repeats} turns, load {load:.1f} at the end\n")
    print_machine(machine)
    print_table(
        ["side", "rows/s", "AUC", "rows of each epoch", "seconds of a change", "steps repeated"],
        [[side, *describe_side(figures[side])] for side in sides],
    )
    ratios = {
        f"{one} / {other}": Spread.of(
            [
                first["rows_per_second"] / second["rows_per_second"]
                for first, second in zip(figures[one], figures[other], strict=True)
            ]
        )
        for one, other in RATIOS
        if one in figures and other in figures
    }
    print_table(["ratio of rows/s, within a turn", ""], [[a, b.show(2)] for a, b in ratios.items()])
    write_results(
        arguments.json,
        benchmark="allreduce",
        machine={**machine, "load_after": load},
        results={
            "rows": num_rows,
            "epochs": epochs,
            "scaled_epochs": scaled_epochs,
            "sides": figures,
            "ratios": ratios,
        },
    )


def describe_side(runs: list[dict[str, Any]]) -> list[str]:
    """The cells of one side."""
    auc = Spread.of([one["auc"] for one in runs])
    epoch_rows = {rows for one in runs for rows in one.get("rows_an_epoch", ())}
    changes = [seconds for one in runs for seconds in one.get("change_seconds", ())]
    return [
        Spread.of([one["rows_per_second"] for one in runs]).show(0),
        auc.show(4),
        " ".join(str(rows) for rows in sorted(epoch_rows)),
        f"median {statistics.median(changes):.2f}, most {max(changes):.2f}" if changes else "",
        " ".join(str(one["steps_repeated"]) for one in runs if "steps_repeated" in one),
    ]


if __name__ == "__main__":
    main()
