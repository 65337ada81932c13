"""Faults against real runs: kills, hangs, cut networks, full disks, at seeded random moments.

Each case starts `ctrpipe run` with `runtime.mode: processes` on sample rows, does one fault to it
while steps are running, and lets it end. A fault that missed, because the run had ended or its
target was idle, fails the case. Every run has to end as it should, with every record of every
epoch counted once, nothing dropped, no process left behind, and a test AUC within the natural
error of undisturbed runs with other seeds. With `--together` several faults strike one run, one
after another, in an order that the seed draws; each is judged for itself up to the next one's
moment, the run's end for all of them. Published are the longest pause without progress, the
records that were computed again, and the restarts.

    python benchmarks/chaos.py                            # all, three repeats: five hours
    python benchmarks/chaos.py --together 7               # seven faults a run where they can: two
    python benchmarks/chaos.py --fault ps_killed --repeats 1
    python benchmarks/chaos.py --seed 2 --repeats 1 --earlier seeds-0-1.json --json all.json

Hours need not be in one piece: `--earlier` takes what runs of the same size wrote into the table
and into the new file, and leaves out what they have done.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
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

from chaos_faults import BUGGY_MODEL, FAULTS, Disturbance, Fault
from chaos_network import NETWORK_FAULTS
from job_watch import MissedError, OverdueError
from machine import describe_machine, print_machine, print_table, write_results
from watched_run import CTRPIPE, WatchedRun, command_lines

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress

ROOT = Path(__file__).resolve().parent.parent
# What tests and benchmarks share lies with the tests.
sys.path.append(str(ROOT))

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


FULL = Size(rows=1_000_000, epochs=9, batch_size=512, checkpoint_seconds=15.0)
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
        repeated: Executions beyond them, until the next fault of the run.
        restarts: Of members, until then.
        auc: Of the test rows; None if it did not come that far.
        stall_seconds: Longest pause between counts of records from the first blow until then.
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


@dataclass(frozen=True)
class _Turn:
    """Where a fault's own part of a run begins.

    Attributes:
        at: Monotonic clock, seconds: its first blow, or the end of the run.
        strikes: Blows before.
        problems: Before.
    """

    at: float
    strikes: int
    problems: int


def run_case(
    faults: Sequence[Fault],
    rows: Path,
    size: Size,
    *,
    seed: int,
    folder: Path,
    command: str = "run",
    stored_at: str | None = None,
    paced: bool = False,
) -> list[Outcome]:
    """One run with faults, one after another, or with none.

    Args:
        faults: Which; several need the same of the run.
        rows: Sample rows; what the first run makes of them is kept beside them for the others.
        size: How large.
        seed: Of training and of the faults.
        folder: For the run.
        command: `run`, or `train`, which ends before the export.
        stored_at: Address for the run; None: it is kept in the folder.
        paced: The run waits for its faults, so that the next one finds it at work on a machine
            however fast; not for measurements.

    Returns:
        One for each fault, or one that is `undisturbed`.
    """
    prepared = rows.with_suffix(".prepared")
    outcomes = [Outcome(fault.name, seed) for fault in faults] or [Outcome("undisturbed", seed)]
    first = faults[0] if faults else None
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        runtime = dict(first.runtime) if first else {}
        if first is not None and first.surroundings is not None:
            runtime |= stack.enter_context(first.surroundings(folder))
        config = make_config(
            rows, size, seed=seed, runtime=runtime, others=first.config if first else {}
        )
        if config["model"]["name"] == "custom":
            _write_buggy_model(folder, config["model"])
        program = [sys.executable, str(PROXIED_RUN), str(folder / "control.sock")]
        is_proxied = first is not None and first.is_proxied
        run = stack.enter_context(
            WatchedRun(
                folder,
                config,
                stored_at=stored_at,
                program=program if is_proxied else CTRPIPE,
            )
        )
        chaos = Disturbance(run, random.Random(f"{outcomes[0].fault} {seed}"), command)  # noqa: S311
        is_usual = not first or not first.config
        if prepared.exists() and is_usual:
            run.adopt_preparation(prepared)
        run.start(command, "--overwrite")
        turns = []
        pace = run.paced(lambda: chaos.window[1] if chaos.window else 0.7)
        with pace if paced else contextlib.nullcontext():
            for number, fault in enumerate(faults):
                if len(faults) > 1:
                    chaos.window = window_of(number, len(faults))
                turns.append(_strike(fault, chaos))
        exit_code = None
        try:
            exit_code = run.wait(_RUN_SECONDS)
        except OverdueError as error:
            chaos.problems.append(f"OverdueError: {error}")
        if not prepared.exists() and is_usual and exit_code == 0:
            run.keep_preparation(prepared)
        turns.append(_Turn(time.monotonic(), len(chaos.strikes), len(chaos.problems)))
        for number, fault in enumerate(faults):
            _judge_turn(outcomes[number], fault, chaos, turns[number], turns[number + 1])
        _judge_end(outcomes, first, chaos, exit_code)
        for outcome in outcomes:
            outcome.seconds = (time.monotonic() - began) / len(outcomes)
    return outcomes


def window_of(number: int, total: int) -> tuple[float, float]:
    """Fractions of a job between which one of several faults strikes: the first half of its share.

    The other half is for the run to recover in, before the next one.
    """
    begin, share = 0.08 + 0.82 * number / total, 0.82 / total
    return begin, begin + share / 2


def _strike(fault: Fault, chaos: Disturbance) -> _Turn:
    """Has a fault do what it does; what goes wrong is one of the problems."""
    num_strikes, num_problems = len(chaos.strikes), len(chaos.problems)
    chaos.since = time.time()
    try:
        fault.strike(chaos)
        if len(chaos.strikes) == num_strikes:
            raise MissedError("nothing was done to the run")
    except (MissedError, OverdueError) as error:
        chaos.problems.append(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001  a case that fails is no reason to lose the others
        chaos.problems.append(traceback.format_exc(limit=-3))
    struck = chaos.strikes[num_strikes:]
    return _Turn(struck[0].at if struck else time.monotonic(), num_strikes, num_problems)


def _write_buggy_model(folder: Path, model: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "buggy_model.py").write_text(BUGGY_MODEL, encoding="utf-8")
    model["file"] = str(folder / "buggy_model.py")
    model["options"] = {"bug": str(folder / "bug")}


def _judge_turn(
    outcome: Outcome, fault: Fault, chaos: Disturbance, begin: _Turn, end: _Turn
) -> None:
    """Fills in what one fault did, and what of it is wrong."""
    outcome.problems += chaos.problems[begin.problems : end.problems]
    strikes = chaos.strikes[begin.strikes : end.strikes]
    outcome.strikes = [strike.what for strike in strikes]
    before, after = chaos.run.moment_at(begin.at - 0.5), chaos.run.moment_at(end.at - 0.5)
    if before is not None and after is not None:
        outcome.restarts = after.restarts - before.restarts
        outcome.repeated = max(after.repeated - before.repeated, 0)
    if strikes:
        pauses = chaos.run.progress_seconds(begin.at, end.at)
        outcome.stall_seconds = pauses[0] if pauses else 0.0
    limit = fault.most_stall_seconds
    if limit is not None and outcome.stall_seconds > limit:
        outcome.problems.append(
            f"{outcome.stall_seconds:.1f} s without progress, {limit:.0f} allowed"
        )
    if fault.most_repeated_seconds is not None and strikes and chaos.run.training_seconds():
        speed = chaos.run.moments[-1].trained / chaos.run.training_seconds()
        seconds, most = outcome.repeated / speed / len(strikes), fault.most_repeated_seconds
        if seconds > most:
            outcome.problems.append(f"{seconds:.1f} s of work repeated a blow, {most:.0f} allowed")


def _judge_end(
    outcomes: Sequence[Outcome], fault: Fault | None, chaos: Disturbance, exit_code: int | None
) -> None:
    """Fills in what is known of the run's end, for all of its faults, and what of it is wrong."""
    run, problems = chaos.run, []
    expected_exit = fault.ends if fault else 0
    if exit_code is None:
        problems.append("the run did not end")
    elif expected_exit is not None:
        if exit_code != expected_exit:
            problems.append(f"exit code {exit_code}: {run.tail()}")
        if not run.leaves_none():
            left = command_lines(run.processes())
            problems.append(f"processes were left behind: {left}")
    view = None
    try:
        view = run.final_view()
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is wrong
        problems.append(f"no status after the end: {error}")
    auc = None
    if view is not None and expected_exit == 0:
        if view.state != "finished":
            problems.append(f"the job is '{view.state}' at the end: {view.reason}")
        if view.records.trained != view.records.total:
            problems.append(
                f"{view.records.trained:,} records counted, {view.records.total:,} expected"
            )
        if view.records.dropped:
            problems.append(f"{view.records.dropped:,} records were dropped")
        auc = next((one.auc for one in view.final_metrics if one.split == "test"), None)
        with contextlib.suppress(OSError, KeyError):
            # Exact, from the predictions; a run that ends before the export has the master's.
            auc = float(run.metrics()["test"]["auc"])
        if auc is None:
            problems.append("there is no test AUC")
    for outcome in outcomes:
        outcome.exit_code, outcome.auc = exit_code, auc
        outcome.training_seconds = run.training_seconds()
        outcome.problems += problems
        if view is not None:
            outcome.state = view.state
            outcome.trained, outcome.expected = view.records.trained, view.records.total
            outcome.events = [f"{event.what}: {event.done}" for event in view.events]
            if len(outcomes) == 1:
                outcome.repeated = view.records.repeated


def plan_runs(faults: Sequence[Fault], together: int, seed: int) -> list[tuple[Fault, ...]]:
    """Which faults strike which run.

    Args:
        faults: To be dealt with, each once.
        together: At most so many in a run.
        seed: Draws the order of those that may share one.
    """
    by_needs: dict[tuple[object, ...], list[Fault]] = {}
    for fault in faults:
        by_needs.setdefault(fault.needs, []).append(fault)
    dice = random.Random(seed)  # noqa: S311  no secret
    runs = []
    for same in by_needs.values():
        order = dice.sample(same, len(same)) if together > 1 else same
        # Those that need the start of a run begin it.
        order.sort(key=lambda fault: not fault.is_first)
        # Runs of about the same number of faults.
        num_runs = -(-len(order) // together)
        bounds = [len(order) * number // num_runs for number in range(num_runs + 1)]
        runs += [tuple(order[low:high]) for low, high in itertools.pairwise(bounds)]
    return runs


def natural_error(aucs: Sequence[float]) -> tuple[float, float]:
    """Mean test AUC of undisturbed runs, and how far from it another may lie.

    Four standard deviations, as few runs say little of theirs; at least a thousandth. One or two
    say nothing of it: five thousandths, several times what asynchronous training of few rows
    varies by.
    """
    room = max(4.0 * statistics.stdev(aucs), 0.001) if len(aucs) > 2 else 0.005
    return statistics.fmean(aucs), room


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


def judge_against_undisturbed(outcomes: Sequence[Outcome], faults: Sequence[Fault]) -> None:
    """What only a table of several runs can tell: natural error of the AUC, and goodput.

    Goodput is that of the undisturbed run with the same seed, which ran in the same hour.
    """
    undisturbed = {one.seed: one for one in outcomes if one.fault == "undisturbed"}
    aucs = [one.auc for one in undisturbed.values() if one.auc is not None]
    if not aucs:
        return
    middle, room = natural_error(aucs)
    least = {fault.name: fault.least_goodput for fault in faults}
    for one in outcomes:
        if one.auc is not None and abs(one.auc - middle) > room:
            one.problems.append(f"AUC {one.auc:.4f} is beyond {middle:.4f} ± {room:.4f}")
        allowed = least.get(one.fault)
        if allowed is not None and one.seed in undisturbed and one.training_seconds:
            goodput = undisturbed[one.seed].training_seconds / one.training_seconds
            if goodput < allowed:
                one.problems.append(f"goodput {goodput:.0%}, {allowed:.0%} wanted")


def tabulate(outcomes: Sequence[Outcome], what: Mapping[str, str]) -> list[list[str]]:
    """A row for each fault: mean and range over repeats."""
    rows = []
    undisturbed = {o.seed: o.training_seconds for o in outcomes if o.fault == "undisturbed"}
    alone = {fault.name for fault in ALL_FAULTS if fault.is_alone}
    for name in dict.fromkeys(one.fault for one in outcomes):
        same = [one for one in outcomes if one.fault == name]
        aucs = [one.auc for one in same if one.auc is not None]
        goodput = ""
        # The time of a run that several faults share is none of them's; of one that had its run
        # alone, it is held against the run of the same seed, which ran in the same hour.
        shares = [
            undisturbed[one.seed] / one.training_seconds
            for one in same
            if name in alone and one.seed in undisturbed and one.auc is not None
        ]
        if shares:
            goodput = " to ".join(f"{share:.0%}" for share in sorted({min(shares), max(shares)}))
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


def load_outcomes(path: Path, size: Size) -> list[Outcome]:
    """What an earlier run found.

    Raises:
        SystemExit: Its runs were of another size, so that they cannot stand in one table.
    """
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    if results["size"] != dataclasses.asdict(size):
        raise SystemExit(f"{path}: its runs are of another size: {results['size']}")
    return [Outcome(**one) for one in results["outcomes"]]


def _write(path: Path | None, machine: Any, size: Size, outcomes: Sequence[Outcome]) -> None:
    results = {
        "size": dataclasses.asdict(size),
        "outcomes": [dataclasses.asdict(one) for one in outcomes],
    }
    write_results(path, benchmark="chaos", machine=machine, results=results)


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
    parser.add_argument("--together", type=int, default=1, help="Faults that may share a run.")
    parser.add_argument("--rows", type=int, help="Sample rows.")
    parser.add_argument("--epochs", type=int, help="Passes over them.")
    parser.add_argument(
        "--command", choices=("run", "train"), default="run", help="train: without the export."
    )
    parser.add_argument("--quick", action="store_true", help="Small runs, one repeat.")
    parser.add_argument("--list", action="store_true", help="Name the faults and end.")
    parser.add_argument("--store", help="Keep the runs below this address, such as s3://bucket/x.")
    parser.add_argument("--keep", type=Path, help="Keep the runs' folders there.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    parser.add_argument("--earlier", type=Path, action="append", default=[],
                        help="Results of an earlier run; may be given again.")  # fmt: skip
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
    if arguments.store:
        wanted = [one for one in wanted if not one.is_of_disk]
    machine = describe_machine()
    outcomes = [one for path in arguments.earlier for one in load_outcomes(path, size)]
    done = {(one.fault, one.seed) for one in outcomes}
    with tempfile.TemporaryDirectory(prefix="chaos-rows-") as temporary:
        rows = sample(Path(temporary), size)
        for seed in range(arguments.seed, arguments.seed + repeats):
            todo = [one for one in wanted if (one.name, seed) not in done]
            runs: list[tuple[Fault, ...]] = plan_runs(todo, arguments.together, seed)
            if ("undisturbed", seed) not in done:
                runs.insert(0, ())
            for faults in runs:
                name = "+".join(fault.name for fault in faults) or "undisturbed"
                # Short: sockets lie in the folder, and their paths have at most 107 bytes.
                with case_folder(arguments.keep, f"{name[:40]}-{seed}") as folder:
                    found = run_case(
                        faults,
                        rows,
                        size,
                        seed=seed,
                        folder=folder,
                        command=arguments.command,
                        stored_at=arguments.store and f"{arguments.store}/{folder.name}",
                    )
                for outcome in found:
                    show_outcome(outcome)
                outcomes += found
                # Time may end before the last of them does.
                _write(arguments.json, machine, size, outcomes)
    _write(arguments.json, machine, size, outcomes)
    judge_against_undisturbed(outcomes, ALL_FAULTS)
    num_seeds = len({one.seed for one in outcomes})
    print(f"\n{size.rows:,} sample rows, {size.epochs} epochs, {num_seeds} seeds\n")
    print_machine(machine)
    what = {fault.name: fault.what for fault in ALL_FAULTS}
    header = ["fault", "s without progress", "records repeated", "restarts", "goodput",
              "test AUC of the run", "as it should be"]  # fmt: skip
    print_table(header, tabulate(outcomes, what))
    for one in outcomes:
        for problem in one.problems:
            print(f"{one.fault} (seed {one.seed}): {problem}")
    return 1 if any(one.problems for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
