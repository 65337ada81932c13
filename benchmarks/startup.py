"""How long until the command line answers, a member serves, and the first training step is done.

`ctrpipe --help`, progress of `ctrpipe run`, and the first step of `ctrpipe train` on 20,000 rows,
which the run itself measures: with the compiled kernels of earlier runs, and with none, as after an
installation. `ctrpipe init` and `check` of 300 rows of 5,000 columns. A master and a parameter
server of the same model, until they serve, and a worker, until it has registered; and what memory
is resident then, before there are rows.
The first run of each is thrown away, so that files are in the page cache.

    python benchmarks/startup.py
"""

import argparse
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.kernels.compilation import COMPILED_VARIABLE
from ctr_pipeline.progress import SilentProgress

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "criteo_deepfm.yaml"
COLD_REPEATS = 3
WIDE_COLUMNS = 5000
COMMAND = str(Path(sys.executable).with_name("ctrpipe"))


def time_help() -> float:
    """Seconds until `ctrpipe --help` has ended."""
    started = time.perf_counter()
    subprocess.run([COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def time_first_lines(rows: Path, output: Path) -> tuple[float, float]:
    """Seconds until the first line of `ctrpipe run`, and until a stage says that it has started."""
    command = [COMMAND, "run", str(CONFIG), "--set", f"data.train={rows}"]
    command += ["--set", f"output={output}"]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stderr is not None  # noqa: S101 - it was asked for
    first: float | None = None
    for line in process.stderr:
        first = first or time.perf_counter() - started
        if ": started" in line:
            stage = time.perf_counter() - started
            break
    else:
        raise SystemExit("ctrpipe run ended without progress; run it by hand to see why")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    return first, stage


def time_first_step(rows: Path, output: Path, kernels: Path | None) -> float:
    """Seconds from the command to the end of the first step, as `ctrpipe train` says.

    Args:
        rows: To train on.
        output: A new run folder.
        kernels: An empty folder for compiled kernels; None: where they are kept.
    """
    command = [COMMAND, "train", str(CONFIG), "--set", f"data.train={rows}"]
    command += ["--set", f"output={output}", "--set", "train.epochs=1"]
    environment = dict(os.environ)
    if kernels is not None:
        environment["NUMBA_CACHE_DIR"] = str(kernels)
        # Those that an image holds.
        environment.pop(COMPILED_VARIABLE, None)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = re.search(r"The first step was done ([0-9.]+) s after", done.stderr)
    if found is None:
        raise SystemExit("ctrpipe train did not say when its first step was done")
    return float(found[1])


def write_wide_rows(file: Path) -> None:
    """300 rows of 5,000 columns: of whole numbers, of fractions and of texts, by turns."""
    chance = random.Random(0)  # noqa: S311 - nothing is secret
    makers = [
        lambda: str(chance.randrange(20)),
        lambda: f"{chance.gauss(0, 1):.4f}",
        lambda: f"v{chance.randrange(40)}",
    ]
    columns = [makers[place % 3] for place in range(WIDE_COLUMNS)]
    lines = ["label," + ",".join(f"x{place}" for place in range(WIDE_COLUMNS))]
    for _ in range(300):
        lines.append(",".join([str(chance.randrange(2)), *(make() for make in columns)]))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def time_wide(rows: Path) -> dict[str, tuple[float, float]]:
    """Seconds by command, and seconds of a core, which others on the machine lengthen less."""
    config = rows.with_suffix(".yaml")
    commands = {
        "init": [COMMAND, "init", str(rows), "--output", str(config), "--overwrite"],
        "check": [COMMAND, "check", str(config)],
    }
    found = {}
    for name, command in commands.items():
        before, started = _cpu_of_children(), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found[name] = time.perf_counter() - started, _cpu_of_children() - before
    return found


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prepare_job(rows: Path, output: Path) -> Path:
    """A job whose members can be started by hand; the config that they read."""
    command = [COMMAND, "train", str(CONFIG), "--prepare-only", "--set", f"data.train={rows}"]
    command += ["--set", f"output={output}", "--set", "runtime.mode=processes"]
    subprocess.run(command, check=True, capture_output=True)
    return output / "config.resolved.yaml"


@dataclass(frozen=True)
class MemberStart:
    """What a member has cost when it says that it serves, or has registered.

    Attributes:
        seconds: Since it was started.
        cpu_seconds: Of the processor, which others on the machine do not lengthen much.
        resident_mb: Megabytes.
    """

    seconds: float
    cpu_seconds: float
    resident_mb: float


@contextmanager
def started_member(role: str, *arguments: str) -> Iterator[MemberStart]:
    """Starts a member, and kills it in the end."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [COMMAND, role, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stderr is not None  # noqa: S101 - it was asked for
        for line in process.stderr:
            if "serves on" in line.lower() or "Registered" in line:
                seconds = time.perf_counter() - started
                break
        else:
            raise SystemExit(f"ctrpipe {role} ended at its start; run it by hand to see why")
        watched = psutil.Process(process.pid)
        used = watched.cpu_times()
        yield MemberStart(seconds, used.user + used.system, watched.memory_info().rss / 1e6)
    finally:
        process.kill()
        process.communicate()


def time_members(config: Path, repeats: int) -> dict[str, list[MemberStart]]:
    """Starts by role, the first of each thrown away."""
    found: dict[str, list[MemberStart]] = {"master": [], "ps": [], "worker": []}
    for _ in range(repeats + 1):
        with started_member("master", "--config", str(config)) as master:
            found["master"].append(master)
            # It finds its master and serves; whether it is taken in, is not its own time.
            with started_member("ps", "--config", str(config), "--index", "0") as server:
                found["ps"].append(server)
                with started_member("worker", "--config", str(config), "--index", "0") as worker:
                    found["worker"].append(worker)
    return {role: starts[1:] for role, starts in found.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="Starts of each command.")
    parser.add_argument("--quick", action="store_true", help="Two starts of each.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    repeats = 2 if arguments.quick else arguments.repeats
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="startup-") as temporary:
        rows = Path(temporary) / "rows.tsv"
        write_criteo_sample(rows, num_rows=20_000, seed=0, progress=SilentProgress())
        helps = [time_help() for _ in range(repeats + 1)][1:]
        runs = [
            time_first_lines(rows, Path(temporary) / f"run{number}")
            for number in range(repeats + 1)
        ][1:]
        warm = [
            time_first_step(rows, Path(temporary) / f"warm{number}", None)
            for number in range(repeats + 1)
        ][1:]
        cold = [
            time_first_step(
                rows, Path(temporary) / f"cold{number}", Path(temporary) / f"kernels{number}"
            )
            for number in range(min(repeats, COLD_REPEATS))
        ]
        wide_rows = Path(temporary) / "wide.csv"
        write_wide_rows(wide_rows)
        wide = [time_wide(wide_rows) for _ in range(min(repeats, COLD_REPEATS))]
        members = time_members(prepare_job(rows, Path(temporary) / "job"), repeats)
    spreads = {
        "ctrpipe --help": Spread.of(helps),
        "ctrpipe run: first line": Spread.of([first for first, _ in runs]),
        "ctrpipe run: first stage started": Spread.of([stage for _, stage in runs]),
        "ctrpipe train: first step done": Spread.of(warm),
        "the same without compiled kernels": Spread.of(cold),
    }
    for command in ("init", "check"):
        name = f"ctrpipe {command} of {WIDE_COLUMNS:,} columns"
        spreads[name] = Spread.of([one[command][0] for one in wide])
        spreads[f"{name}, seconds of a core"] = Spread.of([one[command][1] for one in wide])
    resident = {}
    for role, starts in members.items():
        name = f"ctrpipe {role}: {'registered' if role == 'worker' else 'serves'}"
        spreads[name] = Spread.of([one.seconds for one in starts])
        spreads[f"{name}, seconds of a core"] = Spread.of([one.cpu_seconds for one in starts])
        resident[f"ctrpipe {role}"] = Spread.of([one.resident_mb for one in starts])
    print_machine(machine)
    print_table(["what", "seconds"], [[name, spread.show(2)] for name, spread in spreads.items()])
    print_table(
        ["resident before rows", "MB"],
        [[name, spread.show(0)] for name, spread in resident.items()],
    )
    write_results(
        arguments.json,
        benchmark="startup",
        machine=machine,
        results={name: spread.as_dict() for name, spread in spreads.items()}
        | {f"{name}: resident MB": spread.as_dict() for name, spread in resident.items()},
    )


if __name__ == "__main__":
    main()
