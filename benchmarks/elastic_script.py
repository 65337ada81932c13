"""What a TensorFlow script loses when its nodes change under `ctrpipe elastic-run`.

`configs/examples/elastic_training.py` on nodes of this machine, sides by turns:

- static: two nodes from start to end.
- killed: two nodes; one is killed with SIGKILL in the middle of an epoch, the other one goes on.
- alone: one node from start to end.
- joined: one node begins, and another joins in the middle of an epoch.

`stood still` is how long no step was made at the change: until the loss is noticed, the nodes form
a world, and TensorFlow has started and traced again. `lost` is the whole run beside the side above
it. The script goes on at the record of its last checkpoint, of which it takes one every 20 steps;
`records further back` says how far before that it began.

The design that this follows (TensorFlow Elastic, alpha) published 10,171 s for a static run and
10,326 to 29,215 s for elastic ones: 155 s to 19,044 s lost, up to two epochs at a change.

    python benchmarks/elastic_script.py
"""

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.distributed.elastic.local_nodes import free_addresses

BESIDE = {"static": "static", "killed": "static", "alone": "alone", "joined": "alone"}
"""The side without a change that each is compared with."""
CHANGED = ("killed", "joined")
SCRIPT = Path(__file__).parents[1] / "configs" / "examples" / "elastic_training.py"
CTRPIPE = (sys.executable, "-m", "ctr_pipeline")
EPOCHS = 2
CHECKPOINT_RECORDS = 20 * 64
"""Between two checkpoints of the script, each of which it prints."""
PATIENCE_SECONDS = 1800.0
_PROGRESS = re.compile(r"record ([\d,]+): loss")
_WORLD = re.compile(r"world (\d+) of 1:2 formed: (\d+) node")


class Run:
    """A rendezvous, nodes, and when the script said how far it was; a context manager."""

    def __init__(self, data: Path, folder: Path) -> None:
        self._data = data
        self._folder = folder
        folder.mkdir()
        self._stack = ExitStack()
        self._changed = threading.Condition()
        self.progress: list[tuple[float, int]] = []

    def __enter__(self) -> "Run":
        (self._place,) = free_addresses("127.0.0.1", 1)
        access = str(self._folder / "access")
        self._options = ("--rendezvous", self._place, "--access", access)
        options = ("--bind", self._place, "--access", access, "--lease", "4")
        self.rendezvous = self._start("elastic-rendezvous", *options)
        self._await((self._folder / "access" / "token").exists)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def start_node(self) -> "subprocess.Popen[str]":
        """Starts one node."""
        arguments = ("--nodes", "1:2", *self._options, "--monitor-interval", "0.2", "--grace", "1")
        script = (sys.executable, str(SCRIPT), str(self._data), str(self._folder))
        return self._start("elastic-run", *arguments, "--", *script)

    def wait_for_record(self, record: int) -> None:
        """Returns once so many records are trained."""
        self._await(lambda: bool(self.progress) and self.progress[-1][1] >= record)

    def _start(self, *arguments: str) -> "subprocess.Popen[str]":
        log = self._stack.enter_context((self._folder / "log").open("a"))
        process = subprocess.Popen(
            [*CTRPIPE, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            found = _PROGRESS.match(line)
            if found is not None:
                with self._changed:
                    self.progress.append((time.monotonic(), int(found[1].replace(",", ""))))
                    self._changed.notify_all()

    def _await(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while not condition():
                if time.monotonic() > until:
                    raise TimeoutError((self._folder / "log").read_text()[-3000:])
                self._changed.wait(0.1)


def run_side(side: str, data: Path, num_records: int, folder: Path) -> dict[str, Any]:
    """One run; returns its figures."""
    with Run(data, folder) as run:
        began = time.monotonic()
        nodes = [run.start_node() for _ in range(1 if side in {"alone", "joined"} else 2)]
        changed = None
        if side in CHANGED:
            run.wait_for_record(num_records // 2)
            changed = time.monotonic()
            if side == "killed":
                nodes.pop().kill()
            else:
                nodes.append(run.start_node())
        for node in nodes:
            if node.wait(PATIENCE_SECONDS) != 0:
                raise RuntimeError((folder / "log").read_text()[-3000:])
        seconds = time.monotonic() - began
    found: dict[str, Any] = {"seconds": seconds}
    if changed is not None:
        found |= describe_change(side, run.progress, changed, (folder / "log").read_text())
    print(f"  {side}: {seconds:.1f} s", file=sys.stderr)
    return found


def describe_change(
    side: str, progress: list[tuple[float, int]], changed: float, log: str
) -> dict[str, Any]:
    """How long nobody made a step, and how far back the script began again.

    Raises:
        RuntimeError: The nodes that train together did not change.
    """
    # The number that begins a world is told by each of its nodes.
    sizes = [
        size for _, size in sorted({(int(one[1]), int(one[2])) for one in _WORLD.finditer(log)})
    ]
    if sizes[-2:] != ([2, 1] if side == "killed" else [1, 2]):
        raise RuntimeError(f"{side}: the worlds had {sizes} nodes")
    gaps = [
        (after - before, place)
        for place, ((before, _), (after, _)) in enumerate(pairwise(progress))
        if after > changed
    ]
    still, place = max(gaps)
    last = max(record for _, record in progress[: place + 1])
    began_at = progress[place + 1][1] - CHECKPOINT_RECORDS
    return {"still_seconds": still, "records_back": max(0, last - began_at)}


def main() -> None:
    """Runs the sides by turns and prints their table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Small, to see that it works.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    repeats, num_checkpoints = (1, 60) if arguments.quick else (3, 80)
    num_records = num_checkpoints * CHECKPOINT_RECORDS
    machine = describe_machine()
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in BESIDE}
    with tempfile.TemporaryDirectory(prefix="elastic-script-") as name:
        data = Path(name) / "rows.csv"
        features = np.random.default_rng(0).normal(size=(num_records, 8))
        rows = np.column_stack([features, features.sum(1) > 0])
        np.savetxt(data, rows, fmt="%.4f", delimiter=",")
        for turn in range(repeats):
            for side in BESIDE:
                folder = Path(name) / f"{turn}-{side}"
                figures[side].append(run_side(side, data, num_records, folder))
    seconds = {side: [one["seconds"] for one in runs] for side, runs in figures.items()}
    print(f"\n{num_records:,} records, {EPOCHS} epochs, {repeats} turns\n")
    print_machine(machine)
    print_table(
        ["side", "seconds", "lost", "stood still", "records further back"],
        [[side, Spread.of(seconds[side]).show(1), "", "", ""] for side in ("static", "alone")]
        + [
            [
                side,
                Spread.of(seconds[side]).show(1),
                Spread.of(
                    [one - base for one, base in zip(seconds[side], seconds[beside], strict=True)]
                ).show(1),
                Spread.of([one["still_seconds"] for one in figures[side]]).show(1),
                " ".join(str(one["records_back"]) for one in figures[side]),
            ]
            for side, beside in BESIDE.items()
            if side in CHANGED
        ],
    )
    write_results(
        arguments.json,
        benchmark="elastic_script",
        machine=machine,
        results={"records": num_records, "epochs": EPOCHS, "sides": figures},
    )


if __name__ == "__main__":
    main()
