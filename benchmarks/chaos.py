"""Faults against real runs: kills, hangs, cut networks, full disks, at seeded random moments.

Each case starts `ctrpipe run` with `runtime.mode: processes` on sample rows, does one fault to it
while steps are running, and lets it end. A fault that missed, because the run had ended or its
target was idle, fails the case. Every run has to end as it should, with every record of every
epoch counted once, nothing dropped, no process left behind, and a test AUC within the natural
error of undisturbed runs with other seeds. Published are the longest pause without progress, the
records that were computed again, and the restarts.

    python benchmarks/chaos.py                            # all, three repeats: hours
    python benchmarks/chaos.py --fault ps_killed --repeats 1
"""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import describe_machine, print_machine, print_table, write_results

ROOT = Path(__file__).resolve().parent.parent
for _folder in ("tests/etcd", "tests/distributed/faults"):
    # What tests and benchmarks share lies with the tests.
    sys.path.append(str(ROOT / _folder))

from chaos_faults import BUGGY_MODEL, FAULTS, Disturbance, Fault  # noqa: E402
from chaos_network import NETWORK_FAULTS  # noqa: E402
from watched_run import CTRPIPE, MissedError, OverdueError, WatchedRun, wait_until_gone  # noqa: E402

from ctr_pipeline.progress import SilentProgress  # noqa: E402
from ctr_pipeline.sampling import write_criteo_sample  # noqa: E402

ALL_FAULTS = (*FAULTS, *NETWORK_FAULTS)
PROXIED_RUN = ROOT / "benchmarks" / "proxied_run.py"
_RUN_SECONDS = 1800.0


@dataclass(frozen=True)
class Size:
    """How large the runs are.

    Attributes:
        rows: Sample rows, of which eight tenths train.
        epochs: Passes over them.
        batch_size: 64 batches are a task, and workers are to hold some whenever a fault strikes.
        checkpoint_seconds: Between cuts.
    """

    rows: int
    epochs: int
    batch_size: int
    checkpoint_seconds: float


FULL = Size(rows=1_000_000, epochs=12, batch_size=512, checkpoint_seconds=15.0)
QUICK = Size(rows=200_000, epochs=6, batch_size=256, checkpoint_seconds=4.0)


@dataclass
class Outcome:
    """What became of one run.

    Attributes:
        fault: Its name; `undisturbed` for none.
        seed: Of training and of the fault.
        state: The job's last.
        exit_code: Of the process that the user started.
        trained: Records counted.
        expected: Records that had to be.
        repeated: Executions beyond them.
        restarts: Of members.
        auc: Of the test rows; None if it did not come that far.
        stall_seconds: Longest pause between counts of records from the first blow on.
        training_seconds: From the first record to the last, validation left out.
        seconds: Of the whole run.
        strikes: What was done to it.
        events: What the job said of it.
        problems: What did not hold; empty if all is well.
    """

    fault: str
    seed: int
    state: str = ""
    exit_code: int | None = None
    trained: int = 0
    expected: int = 0
    repeated: int = 0
    restarts: int = 0
    auc: float | None = None
    stall_seconds: float = 0.0
    training_seconds: float = 0.0
    seconds: float = 0.0
    strikes: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def make_config(
    rows: Path,
    size: Size,
    *,
    seed: int,
    runtime: Mapping[str, Any],
    others: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """A job of two parameter servers and two workers, less or more by `runtime`."""
    config: dict[str, Any] = {
        "name": "chaos",
        "data": {
            "train": str(rows),
            "format": "tsv",
            "columns": ["label", "I1..I13", "C1..C26"],
            "label": "label",
            "split": {"valid": 0.1, "test": 0.1, "by": "order"},
        },
        "features": [
            {"columns": "I1..I13", "number": ["log", "standardize"]},
            {"columns": "C1..C26", "id": {"vocabulary": {"min_count": 2}}},
        ],
        "model": {
            "name": "deepfm",
            "embedding_dim": 8,
            "hidden_units": [64, 32],
            "dropout": 0.0,
        },
        "train": {
            "epochs": size.epochs,
            "batch_size": size.batch_size,
            "seed": seed,
            "early_stopping": None,
            "checkpoint_seconds": size.checkpoint_seconds,
        },
        "runtime": {
            "mode": "processes",
            "parameter_servers": 2,
            "workers": {"min": 1, "max": 2},
            **runtime,
        },
    }
    for section, values in others.items():
        config[section] = dict(values) if "name" in values else {**config[section], **values}
    return config


def run_case(
    fault: Fault | None, rows: Path, size: Size, *, seed: int, folder: Path, command: str = "run"
) -> Outcome:
    """One run with one fault, or with none.

    Args:
        fault: Which.
        rows: Sample rows; what the first run makes of them is kept beside them for the others.
        size: How large.
        seed: Of training and of the fault.
        folder: For the run.
        command: `run`, or `train`, which ends before the export.
    """
    prepared = rows.with_suffix(".prepared")
    outcome = Outcome(fault.name if fault else "undisturbed", seed)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        runtime = dict(fault.runtime) if fault else {}
        if fault is not None and fault.surroundings is not None:
            runtime |= stack.enter_context(fault.surroundings(folder))
        config = make_config(
            rows, size, seed=seed, runtime=runtime, others=fault.config if fault else {}
        )
        if config["model"]["name"] == "custom":
            _write_buggy_model(folder, config["model"])
        program = [sys.executable, str(PROXIED_RUN), str(folder / "control.sock")]
        is_proxied = fault is not None and fault.is_proxied
        run = stack.enter_context(
            WatchedRun(folder, config, program=program if is_proxied else CTRPIPE)
        )
        chaos = Disturbance(run, random.Random(f"{outcome.fault} {seed}"), command)  # noqa: S311
        is_usual = not fault or not fault.config
        if prepared.exists() and is_usual:
            run.adopt_preparation(prepared)
        run.start(command, "--overwrite")
        try:
            if fault is not None:
                fault.strike(chaos)
                if not chaos.strikes:
                    raise MissedError("nothing was done to the run")
            outcome.exit_code = run.wait(_RUN_SECONDS)
        except (MissedError, OverdueError) as error:
            outcome.problems.append(f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001  a case that fails is no reason to lose the others
            outcome.problems.append(traceback.format_exc(limit=-3))
        if not prepared.exists() and is_usual and outcome.exit_code == 0:
            run.keep_preparation(prepared)
        outcome.problems += chaos.problems
        _judge(outcome, fault, chaos)
        outcome.seconds = time.monotonic() - began
    return outcome


def _write_buggy_model(folder: Path, model: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "buggy_model.py").write_text(BUGGY_MODEL, encoding="utf-8")
    model["file"] = str(folder / "buggy_model.py")
    model["options"] = {"bug": str(folder / "bug")}


def _judge(outcome: Outcome, fault: Fault | None, chaos: Disturbance) -> None:
    """Fills in what is known of the run, and what of it is wrong."""
    run = chaos.run
    problems = outcome.problems
    expected_exit = fault.ends if fault else 0
    if outcome.exit_code is not None and expected_exit is not None:
        if outcome.exit_code != expected_exit:
            problems.append(f"exit code {outcome.exit_code}: {run.tail()}")
        pids = [process.pid for process in run.processes()]
        if not wait_until_gone(pids, 5.0):
            problems.append(f"processes were left behind: {pids}")
    try:
        view = run.final_view()
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is wrong
        problems.append(f"no status after the end: {error}")
        return
    outcome.state = view.state
    outcome.trained, outcome.repeated = view.records.trained, view.records.repeated
    outcome.expected = view.records.total
    outcome.restarts = sum(run.restarts.values())
    outcome.strikes = [strike.what for strike in chaos.strikes]
    outcome.events = [f"{event.what}: {event.done}" for event in view.events]
    outcome.training_seconds = run.training_seconds()
    if chaos.strikes:
        pauses = run.progress_seconds(chaos.strikes[0].at - 0.5, float("inf"))
        outcome.stall_seconds = pauses[0] if pauses else 0.0
    limit = fault.most_stall_seconds if fault else None
    if limit is not None and outcome.stall_seconds > limit:
        problems.append(f"{outcome.stall_seconds:.1f} s without progress, {limit:.0f} allowed")
    if expected_exit != 0:
        return
    if view.state != "finished":
        problems.append(f"the job is '{view.state}' at the end: {view.reason}")
    if outcome.trained != outcome.expected:
        problems.append(f"{outcome.trained:,} records counted, {outcome.expected:,} expected")
    if view.records.dropped:
        problems.append(f"{view.records.dropped:,} records were dropped")
    outcome.auc = next((one.auc for one in view.final_metrics if one.split == "test"), None)
    with contextlib.suppress(OSError, KeyError):
        # Exact, from the predictions; a run that ends before the export has the master's.
        outcome.auc = float(run.metrics()["test"]["auc"])
    if outcome.auc is None:
        problems.append("there is no test AUC")


def natural_error(aucs: Sequence[float]) -> tuple[float, float]:
    """Mean test AUC of undisturbed runs, and how far from it another may lie.

    Four standard deviations, as few runs say little of theirs; at least a thousandth.
    """
    spread = statistics.stdev(aucs) if len(aucs) > 1 else 0.0
    return statistics.fmean(aucs), max(4.0 * spread, 0.001)


@contextlib.contextmanager
def case_folder(keep: Path | None, name: str) -> Iterator[Path]:
    """A folder for one run; kept if wished, or if something is wrong."""
    if keep is not None:
        folder = keep / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=f"chaos-{name}-") as temporary:
        yield Path(temporary)


def sample(folder: Path, size: Size) -> Path:
    """Sample rows; made once."""
    path = folder / f"rows-{size.rows}.tsv"
    if not path.exists():
        write_criteo_sample(path, num_rows=size.rows, seed=1, progress=SilentProgress())
    return path


def show_outcome(outcome: Outcome) -> None:
    """One line as soon as it is known, and what is wrong."""
    auc = "-" if outcome.auc is None else f"{outcome.auc:.4f}"
    print(
        f"{outcome.fault} (seed {outcome.seed}): {outcome.state}, "
        f"{outcome.trained:,} of {outcome.expected:,} records, {outcome.repeated:,} repeated, "
        f"{outcome.restarts} restarts, {outcome.stall_seconds:.1f} s stall, AUC {auc}, "
        f"{outcome.training_seconds:.0f} s training, {outcome.seconds:.0f} s",
        file=sys.stderr,
    )
    for strike in outcome.strikes:
        print(f"    did: {strike}", file=sys.stderr)
    for event in outcome.events:
        print(f"    said: {event}", file=sys.stderr)
    for problem in outcome.problems:
        print(f"    WRONG: {problem}", file=sys.stderr, flush=True)


def tabulate(outcomes: Sequence[Outcome], what: Mapping[str, str]) -> list[list[str]]:
    """A row for each fault: mean and range over repeats."""
    rows = []
    undisturbed = [one.training_seconds for one in outcomes if one.fault == "undisturbed"]
    for name in dict.fromkeys(one.fault for one in outcomes):
        same = [one for one in outcomes if one.fault == name]
        aucs = [one.auc for one in same if one.auc is not None]
        goodput = ""
        if undisturbed and all(one.training_seconds for one in same) and aucs:
            mean = statistics.fmean(one.training_seconds for one in same)
            goodput = f"{statistics.fmean(undisturbed) / mean:.0%}"
        failed = sum(bool(one.problems) for one in same)
        rows.append(
            [
                what.get(name, name),
                _spread([one.stall_seconds for one in same], 1) if name in what else "",
                _spread([one.repeated for one in same], 0),
                _spread([one.restarts for one in same], 0),
                goodput,
                _spread(aucs, 4) if aucs else "",
                f"{len(same) - failed} of {len(same)}",
            ]
        )
    return rows


def _spread(values: Sequence[float], digits: int) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):,.{digits}f} ± {spread:,.{digits}f}"


def main() -> int:
    """Runs the cases and prints the table; exit code 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [fault.name for fault in ALL_FAULTS]
    parser.add_argument("--fault", action="append", choices=[*names, "undisturbed"],
                        help="Only this one; may be given again.")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=3, help="Seeds of each.")
    parser.add_argument("--seed", type=int, default=0, help="The first seed.")
    parser.add_argument("--rows", type=int, help="Sample rows.")
    parser.add_argument("--epochs", type=int, help="Passes over them.")
    parser.add_argument(
        "--command", choices=("run", "train"), default="run", help="train: without the export."
    )
    parser.add_argument("--quick", action="store_true", help="Small runs, one repeat.")
    parser.add_argument("--list", action="store_true", help="Name the faults and end.")
    parser.add_argument("--keep", type=Path, help="Keep the runs' folders there.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    if arguments.list:
        print_table(["fault", "what"], [[fault.name, fault.what] for fault in ALL_FAULTS])
        return 0
    size = QUICK if arguments.quick else FULL
    size = dataclasses.replace(
        size, rows=arguments.rows or size.rows, epochs=arguments.epochs or size.epochs
    )
    repeats = 1 if arguments.quick else arguments.repeats
    wanted = [one for one in ALL_FAULTS if not arguments.fault or one.name in arguments.fault]
    if os.geteuid() != 0:
        for one in wanted:
            if one.needs_root:
                print(f"{one.name} needs root and is left out", file=sys.stderr)
        wanted = [one for one in wanted if not one.needs_root]
    machine = describe_machine()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="chaos-rows-") as temporary:
        rows = sample(Path(temporary), size)
        for seed in range(arguments.seed, arguments.seed + repeats):
            for fault in (None, *wanted):
                name = fault.name if fault else "undisturbed"
                with case_folder(arguments.keep, f"{name}-{seed}") as folder:
                    outcome = run_case(
                        fault, rows, size, seed=seed, folder=folder, command=arguments.command
                    )
                show_outcome(outcome)
                outcomes.append(outcome)
    aucs = [one.auc for one in outcomes if one.fault == "undisturbed" and one.auc is not None]
    if aucs:
        middle, room = natural_error(aucs)
        for one in outcomes:
            if one.auc is not None and abs(one.auc - middle) > room:
                one.problems.append(f"AUC {one.auc:.4f} is beyond {middle:.4f} ± {room:.4f}")
    print(f"\n{size.rows:,} sample rows, {size.epochs} epochs, {repeats} repeats\n")
    print_machine(machine)
    what = {fault.name: fault.what for fault in ALL_FAULTS}
    header = ["fault", "s without progress", "records repeated", "restarts", "goodput", "test AUC",
              "as it should be"]  # fmt: skip
    print_table(header, tabulate(outcomes, what))
    for one in outcomes:
        for problem in one.problems:
            print(f"{one.fault} (seed {one.seed}): {problem}")
    write_results(
        arguments.json,
        benchmark="chaos",
        machine=machine,
        results={
            "size": dataclasses.asdict(size),
            "outcomes": [dataclasses.asdict(one) for one in outcomes],
        },
    )
    return 1 if any(one.problems for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
