"""Steps of a worker while cuts are taken, and the others, in a job of real processes.

A step lasts from the moment when a worker hands in the gradients of a batch to that when it hands
in those of the next one of its epoch: pulls, TensorFlow, pushes and all waiting. One overlaps a
cut if any of it lies between the first server's being asked and the manifest's being durable. The
first epoch compiles and makes the rows and is not counted. The aim is that no step in a cut takes
200 ms more than the others do at the median.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import print_table
from roofline import BATCH_SIZE, EMBEDDING_DIM, HIDDEN_UNITS
from speed_data import NUM_TABLES, draw_rows
from watched_run import WatchedRun

from ctr_pipeline.distributed.coordination.messages import MemberStats

_PROGRAM = Path(__file__).with_name("timed_run.py")
_RUN_SECONDS = 900.0
_NO_CUTS = 1e6
# That a step in a cut may take above the median of the others.
MOST_LONGER_MS = 200.0


@dataclass(frozen=True)
class Side:
    """One way to run.

    Attributes:
        name: For the table.
        servers: Parameter servers.
        cut_seconds: Between cuts.
        checkpoints: `runtime.checkpoints`.
    """

    name: str
    servers: int
    cut_seconds: float
    checkpoints: str | None = None


@dataclass(frozen=True)
class Span:
    """Some time, in Unix seconds."""

    begin: float
    end: float

    @property
    def ms(self) -> float:
        """How long it is."""
        return (self.end - self.begin) * 1e3

    def overlaps(self, others: Sequence["Span"]) -> bool:
        """Whether it has a moment in common with one of the others."""
        return any(self.begin < other.end and other.begin < self.end for other in others)


def sides(cut_seconds: float, storage: str | None) -> tuple[Side, ...]:
    """Without cuts but those at the ends of epochs, then with them, on two servers, in a store."""
    every = f"a cut every {cut_seconds:g} s"
    stored = (
        () if storage is None else (Side(f"1 PS, {every}, in the store", 1, cut_seconds, storage),)
    )
    return (
        Side("1 PS, no cut within an epoch", 1, _NO_CUTS),
        Side(f"1 PS, {every}", 1, cut_seconds),
        Side(f"2 PS, {every}", 2, cut_seconds),
        *stored,
    )


def write_rows(path: Path, num_records: int, rows_per_table: int) -> None:
    """Records of 26 ids and the label."""
    rows = draw_rows(num_records, seed=0, rows_per_table=rows_per_table)
    columns = {f"c{table}": rows.ids_BF[:, table] for table in range(NUM_TABLES)}
    pq.write_table(pa.table({"label": rows.labels_B.astype(np.int8), **columns}), path)


def make_config(rows: Path, side: Side, *, rows_per_table: int, epochs: int) -> dict[str, Any]:
    """The job: DeepFM as in `runtime_speed.py`."""
    return {
        "name": "cut-pause",
        "data": {
            "train": str(rows),
            "label": "label",
            "split": {"valid": 0.01, "test": 0.0, "by": "order"},
        },
        "features": [
            {
                "columns": f"c0..c{NUM_TABLES - 1}",
                "id": {"round_identity": {"num_buckets": rows_per_table}},
            }
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
            "seed": 0,
            "early_stopping": None,
            "checkpoint_seconds": side.cut_seconds,
        },
        "runtime": {
            "mode": "processes",
            "parameter_servers": side.servers,
            "workers": {"min": 1, "max": 1},
            "checkpoints": side.checkpoints,
        },
    }


def read_notes(folder: Path, role: str) -> list[dict[str, Any]]:
    """What members of a role wrote."""
    return [
        json.loads(line)
        for path in sorted(folder.glob(f"{role}-*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def steps_of(notes: Sequence[dict[str, Any]]) -> list[Span]:
    """Steps after the first epoch; what lies between two epochs is none."""
    return [
        Span(before["at"], after["at"])
        for before, after in pairwise(notes)
        if before["epoch"] == after["epoch"] > 0
    ]


def figures_of(steps: Sequence[Span], cuts: Sequence[Span]) -> dict[str, Any]:
    """Steps that overlap a cut beside the others, in milliseconds.

    Returns:
        `during` and `others`: number, median, 99th percentile and longest; all 0 of no steps.
        `longest_above_median_ms` and `longest_above_longest_ms`, of the longest step in a cut over
        the others: only if there are steps of both kinds.
    """
    during = np.array([step.ms for step in steps if step.overlaps(cuts)])
    others = np.array([step.ms for step in steps if not step.overlaps(cuts)])
    found: dict[str, Any] = {
        name: {
            "steps": len(some),
            "median_ms": float(np.median(some)) if len(some) else 0.0,
            "p99_ms": float(np.percentile(some, 99)) if len(some) else 0.0,
            "longest_ms": float(some.max()) if len(some) else 0.0,
        }
        for name, some in (("during", during), ("others", others))
    }
    if not len(during) or not len(others):
        return found
    longest = found["during"]["longest_ms"]
    return {
        **found,
        # The strictest reading: the longest step of all against a usual one.
        "longest_above_median_ms": longest - found["others"]["median_ms"],
        "longest_above_longest_ms": longest - found["others"]["longest_ms"],
    }


def run_side(side: Side, rows: Path, *, rows_per_table: int, epochs: int) -> dict[str, Any]:
    """One run and its figures."""
    with tempfile.TemporaryDirectory(prefix="cut-job-") as temporary:
        folder = Path(temporary)
        notes = folder / "notes"
        notes.mkdir()
        config = make_config(rows, side, rows_per_table=rows_per_table, epochs=epochs)
        program = (sys.executable, str(_PROGRAM), str(notes))
        with WatchedRun(folder, config, program=program, watch_seconds=2.0) as run:
            run.start("train")
            code = run.wait(_RUN_SECONDS)
            if code != 0:
                raise SystemExit(f"{side.name}: ctrpipe ended with {code}:\n{run.tail(40)}")
            members = run.now.members
        steps = steps_of(read_notes(notes, "worker"))
        if not steps:
            raise SystemExit(f"{side.name}: no step after the first epoch was seen")
        began = steps[0].begin
        whole = [one for one in read_notes(notes, "master") if one["end"] > began]
        parts = [one for one in read_notes(notes, "ps") if one["end"] > began]
        figures = figures_of(steps, [Span(one["begin"], one["end"]) for one in whole])
    servers = [one.stats or MemberStats() for one in members if one.role == "ps"]
    print(f"  {side.name}: {len(steps)} steps, {len(whole)} cuts", file=sys.stderr)
    return {
        **figures,
        "steps_per_second": 1e3 * len(steps) / sum(step.ms for step in steps),
        "cuts": len(whole),
        "cut_seconds": [one["end"] - one["begin"] for one in whole],
        "cut_bytes": sum(one["bytes"] for one in parts) / max(len(whole), 1),
        "full_parts": sum(one["kind"] == "base" for one in parts),
        "server_pause_ms": 1e3 * max((one["pause"] for one in parts), default=0.0),
        "rows_held": [one.rows_held for one in servers],
    }


def tabulate(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Two lines for each side: of the steps that overlap a cut, if any do, and of the others."""
    lines = []
    for side, figures in found.items():
        for name, label in (("during", "in a cut"), ("others", "others")):
            one = figures[name]
            if not one["steps"]:
                continue
            lines.append(
                [
                    side,
                    label,
                    f"{one['steps']:,}",
                    *(f"{one[key]:,.0f}" for key in ("median_ms", "p99_ms", "longest_ms")),
                ]
            )
    return lines


def verdict_of(figures: dict[str, Any]) -> str:
    """How much longer a cut made a step, and whether that is what it may; of one side."""
    if "longest_above_median_ms" not in figures:
        return "no steps in a cut to set beside others"
    above = figures["longest_above_median_ms"]
    met = "met" if above <= MOST_LONGER_MS else "missed"
    return (
        f"the longest step in a cut is {above:.0f} ms above the median of the others, "
        f"{figures['longest_above_longest_ms']:+.0f} ms beside the longest of them; the aim, "
        f"{MOST_LONGER_MS:.0f} ms above the median at most, is {met}"
    )


def measure_job(
    *,
    num_records: int,
    rows_per_table: int,
    epochs: int,
    cut_seconds: float,
    storage: str | None,
    only: int | None,
) -> dict[str, dict[str, Any]]:
    """Runs the sides and prints their figures, and of each whether the aim is met.

    A missed aim is said and no more: other work on the machine makes steps longer as well.

    Raises:
        SystemExit: A run failed.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="cut-job-rows-") as temporary:
        rows = Path(temporary) / "rows.parquet"
        write_rows(rows, num_records, rows_per_table)
        for number, side in enumerate(sides(cut_seconds, storage)):
            if only in {None, number}:
                found[side.name] = run_side(
                    side, rows, rows_per_table=rows_per_table, epochs=epochs
                )
    print_table(
        ["run", "steps", "number", "median ms", "99th percentile ms", "longest ms"], tabulate(found)
    )
    for name, figures in found.items():
        print(
            f"{name}: {figures['steps_per_second']:.2f} steps/s, "
            f"{sum(figures['rows_held']):,} rows, {figures['cuts']} cuts of "
            f"{np.mean(figures['cut_seconds'] or [0.0]):.1f} s and "
            f"{figures['cut_bytes'] / 1e6:,.0f} MB; a server held updates up for "
            f"{figures['server_pause_ms']:.1f} ms at most; {verdict_of(figures)}"
        )
    print()
    return found
