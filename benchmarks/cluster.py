"""How soon a job on Kubernetes takes its first step, and what each kind of lost pod costs it.

A Kubernetes of two nodes starts on this machine, as root, with an image of this environment. In
each turn `ctrpipe submit` starts jobs in new namespaces. Once one trains, it undergoes faults of
`pod_faults.py` one after the other, and at last it is deleted. It fails where `status` does not
name a fault, nothing replaces what was lost, or an epoch has counted more or fewer records than
there are.

    export PYTHONPATH=.
    python benchmarks/cluster.py --turns 3
    python benchmarks/cluster.py --fault evicted drained --role ps
    python benchmarks/cluster.py --rows 400000 --batch-size 16 --role master

Workers go on without the driver until the end of an epoch; the rows and the size of a batch say how
far that is.
"""

import argparse
import contextlib
import os
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_demo import load_config
from job_watch import CommandError, MissedError, OverdueError
from machine import Spread, describe_machine, print_machine, print_table, write_results
from pod_faults import FAULTS, FIRST_NODE, Fault, Recovery, undergo
from pod_run import ANY_NODE, PodRun, cluster_with_rows, pod_config

from ctr_pipeline.distributed.coordination.messages import Role
from tests.cluster.cluster_binaries import NoBinaries
from tests.cluster.kubernetes_cluster import Cluster, ClusterError
from tests.cluster.namespaces import missing_rights
from tests.cluster.python_image import CTRPIPE_IMAGE

_CONFIG = Path(__file__).parents[1] / "configs" / "criteo_elastic.yaml"
_ENDLESS = 1_000
"""Epochs of a job that is deleted when all is measured."""
_START_SECONDS = 300.0
_STATUS_LETTERS = 72
_DRIVER_FAULTS = 3
"""Faults of one job."""
_SPEED_SECONDS = 5.0
_REPORT_SECONDS = 3.0
_LEASE_SECONDS = 10.0
"""Time in which workers get as much work ahead as they are to hold."""
_COLUMNS = {
    "may_run_seconds": "until another may run, s",
    "back_seconds": "then until it is back, s",
    "pause_seconds": "longest pause, s",
    "repeated": "records again",
    "others": "others restarted",
}
"""Columns of the table, by field of `Recovery`."""
_SHARE = "speed until then, of the usual"
"""Column of records counted while there is no driver, by those that the usual speed would bring."""

Case = tuple[Fault, tuple[Role, ...]]


def time_start(run: PodRun) -> dict[str, float]:
    """Submits; seconds from then until each part of the start is done."""
    began = time.monotonic()
    seconds = {}
    run.call("submit", str(run.config_path))
    seconds["ctrpipe submit returns"] = time.monotonic() - began
    parts = {
        "the driver's pod runs": lambda: run.summary.pods.get("driver"),
        "pods of the server and a worker run": lambda: (
            run.summary.pods.get("ps") and run.summary.pods.get("worker")
        ),
        "first records counted": lambda: run.now.records.trained,
    }
    for part, is_done in parts.items():
        run.wait_for(part, is_done, _START_SECONDS)
        seconds[part] = time.monotonic() - began
    return seconds


def check_counts(run: PodRun) -> None:
    """Compares what each epoch that is over has counted with the rows.

    Raises:
        OverdueError: Records are missing, or were counted twice.
    """
    view = run.now
    rows = view.records.total // view.epochs
    wrong = {one.epoch: one.num_rows for one in view.history if one.num_rows != rows}
    if wrong or view.records.dropped:
        raise OverdueError(f"not {rows} rows: {wrong}; dropped: {view.records.dropped}")


@dataclass
class Figures:
    """What was measured so far.

    Attributes:
        starts: Seconds by part of the start.
        recoveries: By pods and fault.
        shares: Shares of the usual speed without the driver, by the same.
        problems: What did not go as it should.
    """

    starts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    recoveries: dict[str, list[Recovery]] = field(default_factory=lambda: defaultdict(list))
    shares: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)


def measure(
    cluster: Cluster,
    folder: Path,
    rows: Path,
    cases: Sequence[Case],
    figures: Figures,
    *,
    batch_size: int,
) -> None:
    """One job from its submission to its deletion: its start, and what each fault costs.

    Raises:
        OverdueError: Something did not happen in time, was lost, or was left behind.
    """
    config: dict[str, Any] = pod_config(load_config(_CONFIG, _ENDLESS))
    config["train"]["batch_size"] = batch_size
    grows = {"max_memory": "4Gi"}
    pods = {
        role: {**keys, **(grows if role != "master" else {})} for role, keys in ANY_NODE.items()
    }
    with PodRun(cluster, folder, config, rows, name=folder.name, pods=pods) as run:
        with cluster.only_on(FIRST_NODE):
            for part, seconds in time_start(run).items():
                figures.starts[part].append(seconds)
            run.wait_for("running steps", run.is_training, _START_SECONDS)
        for fault, roles in cases:
            case, began = f"{' and '.join(roles)}: {fault.name}", time.monotonic()
            try:
                if "master" in roles:
                    recovery, share = go_on_without_driver(run, fault, roles)
                    figures.shares[case].append(share)
                else:
                    recovery = undergo(run, fault, roles)
                check_counts(run)
            except (ClusterError, MissedError, OverdueError) as error:
                if run.has_ended:
                    raise
                figures.problems.append(f"{folder.name}: {case}: {error}")
                print(figures.problems[-1], flush=True)
                continue
            figures.recoveries[case].append(recovery)
            print(
                f"{folder.name}: {case}, {time.monotonic() - began:.0f} s: {recovery}", flush=True
            )
        if left := run.delete():
            raise OverdueError(f"the deleted job left {', '.join(left)}")


def go_on_without_driver(
    run: PodRun, fault: Fault, roles: Sequence[Role]
) -> tuple[Recovery, float]:
    """Does a fault to the driver; its recovery, and the share of the usual speed until then.

    Raises:
        OverdueError: As for `undergo`.
    """
    time.sleep(_LEASE_SECONDS)
    began, before = time.monotonic(), run.now.records.trained
    recovery = undergo(run, fault, roles)
    # Members tell the next master of what they did meanwhile.
    time.sleep(_REPORT_SECONDS)
    counted, seconds = run.now.records.trained - before, time.monotonic() - began
    speed = 0.0
    # Nothing is counted while an epoch is validated.
    while speed <= 0.0:
        run.wait_for("running steps", run.is_training, _START_SECONDS)
        since, trained = time.monotonic(), run.now.records.trained
        time.sleep(_SPEED_SECONDS)
        speed = (run.now.records.trained - trained) / (time.monotonic() - since)
    return recovery, counted / (speed * seconds)


def choose(faults: Sequence[str], roles: Sequence[str]) -> list[Case]:
    """Cases of these faults and roles; of all where none is named."""
    return [
        (fault, hit)
        for fault in FAULTS.values()
        for hit in fault.hits
        if (not faults or fault.name in faults) and (not roles or set(roles) & set(hit))
    ]


def divide(cases: Sequence[Case]) -> list[Sequence[Case]]:
    """The cases of each job of a turn: one for those of members, and some for those of the driver.

    Before it starts another driver, Kubernetes waits twice as long each time.
    """
    drivers = [case for case in cases if "master" in case[1]]
    members = [case for case in cases if case not in drivers]
    starts = range(0, len(drivers), _DRIVER_FAULTS)
    jobs = (members, *(drivers[start : start + _DRIVER_FAULTS] for start in starts))
    return [job for job in jobs if job]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="How often each.")
    parser.add_argument("--quick", action="store_true", help="One turn.")
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=(), help="Only these.")
    parser.add_argument("--role", nargs="+", choices=("worker", "ps", "master"), default=())
    parser.add_argument("--rows", type=int, default=40_000, help="Of the job; four of five train.")
    parser.add_argument("--batch-size", type=int, default=128, help="Of the job.")
    parser.add_argument("--list", action="store_true", help="Print the faults and end.")
    parser.add_argument("--cluster", help=f"One that runs and has the image {CTRPIPE_IMAGE}.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    cases = choose(arguments.fault, arguments.role)
    if arguments.list:
        print_table(["fault", "pods"], [[fault.name, " and ".join(hit)] for fault, hit in cases])
        return
    if lack := missing_rights():
        sys.exit(f"No Kubernetes can be started here: {lack}")
    machine = describe_machine()
    figures = Figures()
    with contextlib.ExitStack() as stack:
        cluster, rows = stack.enter_context(
            cluster_with_rows(arguments.cluster, arguments.rows, nodes=2)
        )
        try:
            jobs = divide(cases) * (1 if arguments.quick else arguments.turns)
            for number, of_job in enumerate(jobs):
                folder = rows.parent / f"faults-{os.getpid()}-{number}"
                folder.mkdir()
                measure(cluster, folder, rows, of_job, figures, batch_size=arguments.batch_size)
        except (ClusterError, CommandError, MissedError, OverdueError) as error:
            figures.problems.append(str(error))
    print_machine(machine)
    publish(figures, machine, arguments.json)
    if figures.problems:
        sys.exit("\n".join(figures.problems))


def publish(figures: Figures, machine: Mapping[str, Any], path: Path | None) -> None:
    """Prints the tables, and writes the same as JSON if a path was given."""
    parts = {part: Spread.of(seconds) for part, seconds in figures.starts.items()}
    print_table(["since the submission", "seconds"], [[n, s.show(1)] for n, s in parts.items()])
    results: dict[str, Any] = {"start": parts}
    table, columns = [], (*_COLUMNS.values(), _SHARE)
    for case, recoveries in figures.recoveries.items():
        spreads = {
            column: Spread.of([float(getattr(one, name)) for one in recoveries])
            for name, column in _COLUMNS.items()
        }
        if case in figures.shares:
            spreads[_SHARE] = Spread.of(figures.shares[case])
        told = [one.told for one in recoveries]
        results[case] = {**spreads, "status": told}
        words = textwrap.shorten(told[0], _STATUS_LETTERS, placeholder=" …")
        shown = [spreads[one].show(2) if one in spreads else "" for one in columns]
        table.append([case, *shown, words])
    print_table(["pods: fault", *columns, "status"], table)
    write_results(path, benchmark="cluster", machine=machine, results=results)


if __name__ == "__main__":
    try:
        main()
    except (ClusterError, CommandError, NoBinaries, OverdueError) as error:
        sys.exit(str(error))
