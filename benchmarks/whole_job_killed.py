"""A whole job whose members are killed in every phase, from a file to an evaluated model.

Writes the sample rows of `whole_job.py` and runs `ctrpipe run configs/criteo_elastic.yaml` on them
for one epoch, on two parameter servers and two workers. In each phase of the preparation and at the
finish a worker is killed while it has a unit of work; in training, validation and scoring, a worker
and a parameter server. Afterwards every record has to be counted once. Printed are when each was
killed and how long each phase took.

    python benchmarks/whole_job_killed.py --rows 45_840_617 --json killed.json
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from elastic_demo import Story, broken_promises, load_config
from job_watch import CommandError, MissedError, OverdueError
from machine import describe_machine, print_machine, print_table, write_results
from watched_run import WatchedRun
from whole_job import MemoryWatch, write_rows

from ctr_pipeline.distributed.coordination.messages import Role

_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "criteo_elastic.yaml"
_PHASE_SECONDS = 7200.0
_RETURN_SECONDS = 600.0
_PREPARATION = ("reading", "analyzing", "encoding")
_STATES = ("training", "validating", "scoring")
_ROW_BYTES = 240
_ROLES: tuple[Role, ...] = ("worker", "ps")


class KilledRun:
    """A run whose members are killed as its phases come.

    Args:
        run: Started already.
        delay: Seconds from the beginning of a phase until somebody is killed.
    """

    def __init__(self, run: WatchedRun, delay: float) -> None:
        self._run = run
        self._delay = delay
        self._story = Story(run)
        self._began = time.monotonic()
        self.killed: list[dict[str, Any]] = []
        self.began_at: dict[str, float] = {}

    def kill_in_all_phases(self) -> None:
        """Follows the run to its end.

        Raises:
            MissedError: Somebody had ended before it could be killed.
            OverdueError: A phase, or a new member, did not come.
        """
        for phase in _PREPARATION:
            self._await_phase(phase, partial(self._has_units, phase))
            self._kill_preparing(phase)
        for state in _STATES:
            self._await_phase(state, partial(self._is_in, state))
            self._kill_members(state)
        self._await_phase("finishing", partial(self._has_units, "finishing"))
        self._kill_preparing("finishing")
        while not self._run.has_ended:
            self._story.tell_events()
            time.sleep(0.2)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _await_phase(self, phase: str, has_begun: Callable[[], bool]) -> None:
        self._run.wait_for(phase, self._telling(has_begun), _PHASE_SECONDS)
        self.began_at[phase] = self._seconds()
        self._story.tell(phase)
        time.sleep(self._delay)

    def _telling(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """A condition that tells what the job says of itself whenever it is looked at."""

        def look() -> bool:
            self._story.tell_events()
            return condition()

        return look

    def _has_units(self, phase: str) -> bool:
        """Whether a worker has a unit of it, as the phase's ledger says."""
        try:
            ledger = json.loads((self._run.output / "cache" / phase / "ledger.json").read_text())
        except FileNotFoundError:
            return False
        return any(not record["is_done"] for record in ledger["records"].values())

    def _is_in(self, state: str) -> bool:
        return self._run.now.state == state

    def _kill_preparing(self, phase: str) -> None:
        """Kills a worker that does units, the one that took the most of the processor."""
        workers = [
            process
            for process in self._run.processes()
            if {"--units", "ctr_pipeline.cli.fork_server"} & set(process.cmdline())
        ]
        if not workers or not self._has_units(phase):
            raise MissedError(f"{phase} was over before somebody could be killed")
        busiest = max(workers, key=lambda one: sum(one.cpu_times()[:2]))
        self._note(phase, "worker", busiest.pid)

    def _kill_members(self, state: str) -> None:
        """Kills a worker and a server, and waits until others are in their places."""
        pids = {role: self._run.member_view(role).pid for role in _ROLES}
        are_back = {role: self._run.watch_for_next(role) for role in _ROLES}
        if self._run.now.state != state:
            raise MissedError(f"{state} was over before anybody could be killed")
        for role, pid in pids.items():
            self._note(state, role, pid)
        for role, is_back in are_back.items():
            self._run.wait_for(f"a new {role}", self._telling(is_back), _RETURN_SECONDS)
            self._story.tell(f"another {role} is there")

    def _note(self, phase: str, role: Role, pid: int) -> None:
        self._run.send(pid, signal.SIGKILL)
        self.killed.append({"phase": phase, "role": role, "at_seconds": self._seconds()})
        self._story.tell(f"kill -9 {pid}, a {role}, in {phase}")


def run_killed(folder: Path, rows: Path, *, delay: float, unit_rows: int | None) -> dict[str, Any]:
    """Runs the job in a folder; what came of it."""
    config = load_config(_CONFIG, epochs=1)
    config["data"]["train"] = str(rows)
    config["train"]["checkpoint_seconds"] = 30
    if unit_rows is not None:
        config["runtime"]["bytes_per_reading_task"] = unit_rows * _ROW_BYTES
        config["runtime"]["rows_per_encoding_task"] = unit_rows
    with WatchedRun(folder / "job", config) as run:
        began = time.monotonic()
        run.start("run")
        watch = MemoryWatch(run.pid)
        killed = KilledRun(run, delay)
        killed.kill_in_all_phases()
        code = run.wait(10.0)
        wall_seconds = time.monotonic() - began
        watch.close()
        if code != 0:
            raise OverdueError(f"the run ended with {code}: {run.tail(40)}")
        metrics = run.metrics()
    return {
        "wall_seconds": wall_seconds,
        "began_at_seconds": killed.began_at,
        "killed": killed.killed,
        "peak_memory_bytes": watch.peak_bytes,
        "num_rows": metrics["num_rows"],
        "records": metrics["runtime"]["records"],
        "restarts": metrics["runtime"]["restarts"],
        "seconds": metrics["timings_seconds"],
        "test": {name: metrics["test"][name] for name in ("auc", "logloss", "num_rows")},
        "broken": broken_promises(metrics, _ROLES),
    }


def main() -> int:
    """Runs the job; exit code 1 if something was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="Sample rows.")
    parser.add_argument("--seed", type=int, default=0, help="Of the sample.")
    parser.add_argument(
        "--delay", type=float, default=1.0, help="Seconds of a phase before somebody is killed."
    )
    parser.add_argument(
        "--unit-rows",
        type=int,
        help="That a worker reads or encodes at a time; default: ctrpipe's.",
    )
    parser.add_argument("--folder", type=Path, help="For rows and run; default: temporary.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    machine = describe_machine()
    print_machine(machine)
    with tempfile.TemporaryDirectory(prefix="killed-", dir=arguments.folder) as temporary:
        folder = Path(temporary)
        write_rows(folder, ["tsv"], num_rows=arguments.rows, seed=arguments.seed)
        rows, unit_rows = folder / "rows.tsv", arguments.unit_rows
        found = run_killed(folder, rows, delay=arguments.delay, unit_rows=unit_rows)
    print_table(
        ["phase", "began, s", "killed"],
        [
            [
                phase,
                f"{began:.0f}",
                ", ".join(
                    f"{one['role']} after {one['at_seconds']:.0f} s"
                    for one in found["killed"]
                    if one["phase"] == phase
                ),
            ]
            for phase, began in found["began_at_seconds"].items()
        ],
    )
    records = found["records"]
    print(
        f"{arguments.rows:,} rows, whole job {found['wall_seconds']:.0f} s, at most "
        f"{found['peak_memory_bytes'] / 1e9:.2f} GB; {records['trained']:,} of "
        f"{records['total']:,} records counted, {records['dropped']:,} dropped, "
        f"{records['repeated']:,} computed again; test logloss {found['test']['logloss']:.4f}"
    )
    for promise in found["broken"]:
        print(f"This is not as it should be: {promise}.")
    write_results(arguments.json, benchmark="whole_job_killed", machine=machine, results=found)
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CommandError, MissedError, OverdueError) as error:
        sys.exit(str(error))
