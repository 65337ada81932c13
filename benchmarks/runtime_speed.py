"""Training speed of the runtime: a master, parameter servers and workers beside one process.

The rows are those of `train_speed.py`: 26 tables of 100,000 ids, embeddings of 16, MLP 256-128-64,
batches of 4096. Each side is `ctrpipe train` on the same files, by turns; the first epoch compiles
and makes rows and is not counted. Samples a second are those of the later epochs' own clock,
validation left out. Core-seconds a sample are those of all processes of the run over the same
time, bytes a sample those that workers and parameter servers say they sent and received.

Further tables: one to four parameter servers, one to four workers, with each server's share of a
core. Where all members share a few cores, those bound the sum. `spare`: what the runtime costs
where servers have cores of their own: one process on one core, beside a worker on that core while
all other members are on another.

    python benchmarks/runtime_speed.py
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from machine import Spread, describe_machine, print_machine, print_table, write_results
from roofline import BATCH_SIZE, EMBEDDING_DIM, HIDDEN_UNITS
from speed_data import NUM_TABLES, ROWS_PER_TABLE, draw_rows
from watched_run import CTRPIPE, WatchedRun

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.training.history import load_history

_LOOK_SECONDS = 0.5
_WATCH_SECONDS = 2.0
_RUN_SECONDS = 3600.0


@dataclass(frozen=True)
class Side:
    """One way to run.

    Attributes:
        name: For the table.
        runtime: The `runtime:` section.
        cores: The core of the worker, or of the one process, and the core of all others; None: as
            the machine schedules.
    """

    name: str
    runtime: Mapping[str, Any]
    cores: tuple[int, int] | None = None

    @property
    def is_local(self) -> bool:
        """One process."""
        return self.runtime["mode"] == "local"


def members(servers: int, workers: int, **others: Any) -> dict[str, Any]:
    """A `runtime:` section with exactly so many members."""
    return {
        "mode": "processes",
        "parameter_servers": servers,
        "workers": {"min": workers, "max": workers},
        **others,
    }


LOCAL = Side("one process", {"mode": "local"})
MAIN_SIDES = (
    LOCAL,
    Side("1 PS, 1 worker", members(1, 1)),
    Side("1 PS, 1 worker, TLS", members(1, 1, tls="always")),
)
SERVER_SIDES = tuple(Side(f"{n} PS, 1 worker", members(n, 1)) for n in (1, 2, 3, 4))
SPARE_SIDES = tuple(replace(side, name=f"{side.name}, a core", cores=(0, 1)) for side in MAIN_SIDES)
WORKER_SIDES = tuple(Side(f"1 PS, {n} workers", members(1, n)) for n in (1, 2, 3, 4))
TABLES = {
    "sides": MAIN_SIDES,
    "servers": SERVER_SIDES,
    "workers": WORKER_SIDES,
    "spare": SPARE_SIDES,
}


@dataclass
class Usage:
    """What all processes of a run used up to some moment.

    Attributes:
        at: Monotonic clock, seconds.
        epochs: Lines of the history by then.
        cpu_seconds: Of all processes, those that ended included.
        server_cpu_seconds: Of each parameter server, by index.
        bytes: Sent and received by workers.
    """

    at: float
    epochs: int
    cpu_seconds: float
    server_cpu_seconds: tuple[float, ...]
    bytes: int


class UsageLog:
    """Looks at a run's processes until closed; keeps all but workers on a core, if one is given."""

    def __init__(self, run: WatchedRun, others_core: int | None = None) -> None:
        self.looks: list[Usage] = []
        self._run = run
        self._others_core = others_core
        self._cpu: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def _look_on(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for process in self._run.processes():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            self._cpu[process.pid] = times.user + times.system
        view = self._run.view
        servers = [one for one in view.members if one.role == "ps"] if view else []
        workers = [one for one in view.members if one.role == "worker"] if view else []
        if self._others_core is not None and view is not None:
            for one in view.members:
                if one.role != "worker" and one.pid:
                    pin(one.pid, self._others_core)
        history = self._run.output / "history.csv"
        self.looks.append(
            Usage(
                at=time.monotonic(),
                epochs=len(load_history(history)),
                cpu_seconds=sum(self._cpu.values()),
                server_cpu_seconds=tuple(self._cpu.get(one.pid, 0.0) for one in servers),
                bytes=sum(
                    stats_of(one).bytes_sent + stats_of(one).bytes_received for one in workers
                ),
            )
        )

    def close(self) -> None:
        """Ends looking."""
        self._over.set()
        self._thread.join()

    def between_epochs(self, first: int, last: int) -> tuple[Usage, Usage]:
        """When the line of an epoch appeared in the history, and that of another."""
        begin = next(one for one in self.looks if one.epochs > first)
        end = next(one for one in self.looks if one.epochs > last)
        return begin, end


def pin(process_id: int, core: int) -> None:
    """Has all threads of a process run on one core; those they start later do, too."""
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        for thread in psutil.Process(process_id).threads():
            os.sched_setaffinity(thread.id, {core})


def stats_of(member: MemberStatus) -> MemberStats:
    """What a member said of itself; zeros if nobody knows."""
    return member.stats or MemberStats()


def write_rows(path: Path, num_rows: int, seed: int) -> None:
    """The rows of `speed_data` as Parquet: 26 columns of ids and the label."""
    rows = draw_rows(num_rows, seed=seed)
    columns = {f"c{table}": rows.ids_BF[:, table] for table in range(NUM_TABLES)}
    pq.write_table(pa.table({"label": rows.labels_B.astype(np.int8), **columns}), path)


def make_config(rows: Path, side: Side, *, epochs: int, seed: int) -> dict[str, Any]:
    """The job, the same for every side."""
    return {
        "name": "runtime-speed",
        "data": {
            "train": str(rows),
            "label": "label",
            "split": {"valid": 0.02, "test": 0.01, "by": "order"},
        },
        "features": [
            {"columns": f"c0..c{NUM_TABLES - 1}",
             "id": {"round_identity": {"num_buckets": ROWS_PER_TABLE}}}
        ],
        "model": {
            "name": "deepfm",
            "embedding_dim": EMBEDDING_DIM,
            "hidden_units": list(HIDDEN_UNITS),
            "dropout": 0.0,
        },
        "train": {
            "epochs": epochs,
            "batch_size": BATCH_SIZE,
            "seed": seed,
            "early_stopping": None,
            "checkpoint_seconds": 1e6,
        },
        "runtime": dict(side.runtime),
    }  # fmt: skip


def run_side(side: Side, rows: Path, *, epochs: int, seed: int) -> dict[str, Any]:
    """One run and its figures."""
    with tempfile.TemporaryDirectory(prefix="runtime-speed-") as folder:
        config = make_config(rows, side, epochs=epochs, seed=seed)
        # Pinned before it starts, so that it takes itself for a program of a machine of one core.
        program = ["taskset", "-c", str(side.cores[0]), *CTRPIPE] if side.cores else CTRPIPE
        with WatchedRun(Path(folder), config, program=program, watch_seconds=_WATCH_SECONDS) as run:
            run.start("train")
            log = UsageLog(run, side.cores[1] if side.cores else None)
            code = run.wait(_RUN_SECONDS)
            log.close()
            if code != 0:
                raise SystemExit(f"{side.name}: ctrpipe train ended with {code}:\n{run.tail(40)}")
            history = load_history(run.output / "history.csv")
            # What members said last: nobody else knows what they held.
            view = None if side.is_local else run.view
    if len(history) != epochs:
        raise SystemExit(f"{side.name}: {len(history)} epochs instead of {epochs}")
    samples = sum(epoch.num_rows for epoch in history[1:])
    begin, end = log.between_epochs(0, epochs - 1)
    wall = end.at - begin.at
    figures = {
        "samples_per_second": samples / sum(epoch.seconds for epoch in history[1:]),
        "core_seconds_per_million": 1e6 * (end.cpu_seconds - begin.cpu_seconds) / samples,
        "bytes_per_sample": (end.bytes - begin.bytes) / samples,
        "server_cpu": [
            (after - before) / wall
            for before, after in zip(begin.server_cpu_seconds, end.server_cpu_seconds, strict=False)
        ],
        "valid_logloss": history[-1].valid_logloss,
        "repeated": view.records.repeated if view else 0,
        "rows_held": [stats_of(one).rows_held for one in view.members if one.role == "ps"]
        if view
        else [],
    }
    print(f"  {side.name}: {figures['samples_per_second']:,.0f} samples/s", file=sys.stderr)
    return figures


def compare(
    sides: Sequence[Side], rows: Path, *, repeats: int, epochs: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """All sides by turns."""
    figures: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            figures[side.name].append(run_side(side, rows, epochs=epochs, seed=seed))
    return figures


def tabulate(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """A row for each side; the first is what the others are compared with."""
    first = next(iter(figures.values()))
    rows = []
    for name, runs in figures.items():
        ratios = [
            one["samples_per_second"] / other["samples_per_second"]
            for one, other in zip(runs, first, strict=True)
        ]
        shares = [
            f"{np.mean([run['server_cpu'][index] for run in runs]):.2f}"
            for index in range(len(runs[0]["server_cpu"]))
        ]
        rows.append(
            [
                name,
                Spread.of([one["samples_per_second"] for one in runs]).show(0),
                Spread.of(ratios).show(2),
                Spread.of([one["core_seconds_per_million"] for one in runs]).show(1),
                Spread.of([one["bytes_per_sample"] for one in runs]).show(0),
                " ".join(shares),
                Spread.of([one["valid_logloss"] for one in runs]).show(5),
            ]
        )
    return rows


HEADER = (
    "side",
    "samples/s",
    "/ first",
    "core-s / million",
    "bytes / sample",
    "cores of each PS",
    "valid logloss",
)


def main() -> None:
    """Runs the sides by turns and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="Runs of each side.")
    parser.add_argument("--rows", type=int, default=2_000_000, help="Of the data.")
    parser.add_argument("--epochs", type=int, default=3, help="The first is not counted.")
    parser.add_argument("--seed", type=int, default=0, help="Of rows and training.")
    parser.add_argument("--quick", action="store_true", help="One repeat on 200,000 rows.")
    parser.add_argument("--only", choices=TABLES, help="Only this table.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    repeats, num_rows = (1, 200_000) if arguments.quick else (arguments.repeats, arguments.rows)
    if arguments.epochs < 2:
        parser.error("--epochs must be above 1: the first is not counted")
    machine = describe_machine()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="runtime-speed-rows-") as temporary:
        rows = Path(temporary) / "rows.parquet"
        write_rows(rows, num_rows, arguments.seed)
        for name, sides in TABLES.items():
            if arguments.only in {None, name}:
                results[name] = compare(
                    sides, rows, repeats=repeats, epochs=arguments.epochs, seed=arguments.seed
                )
    print(f"\n{num_rows:,} rows, {arguments.epochs} epochs, {repeats} repeats, by turns\n")
    print_machine(machine)
    for figures in results.values():
        print_table(HEADER, tabulate(figures))
    write_results(arguments.json, benchmark="runtime_speed", machine=machine, results=results)


if __name__ == "__main__":
    main()
