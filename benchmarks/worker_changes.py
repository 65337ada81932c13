"""Does a model become worse when the number of its workers changes while it trains?

ElasticDL's third experiment: Wide & Deep is trained by asynchronous updates with 4 workers, with 8,
and with a number that goes back and forth between 4 and 8. All begin from the same initial values
in a turn, and from others in the next turn. Workers are processes of this machine, or with
`--cluster` pods of a Kubernetes that `tests/cluster/control_cluster.py` has started.

    python benchmarks/worker_changes.py --data train.txt --turns 5
    PYTHONPATH=. python benchmarks/worker_changes.py --data train.txt --cluster default
"""

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from job_watch import JobWatch
from machine import Spread, describe_machine, print_machine, print_table, write_results
from watched_run import WatchedRun

from ctr_pipeline.apps.sample import write_criteo_sample
from ctr_pipeline.progress import SilentProgress

FEW, MANY = 4, 8
SIDES = {"4 workers": (FEW, FEW), "8 workers": (MANY, MANY), "4 ↔ 8": (FEW, MANY)}
_EPOCHS = 8
_CHANGES = 4
_SAMPLE_ROWS = 100_000
_SECONDS = 900.0
_PODS = {"workers": {"cpu": "100m", "memory": "1Gi", "max_memory": "2Gi"}}
"""Keys of the config's pods, so that eight workers fit on a small machine."""


def config_of(data: Path, seed: int, epochs: int, least: int, most: int) -> dict[str, Any]:
    """The config of one run."""
    return {
        "name": "worker-changes",
        "data": {
            "train": str(data),
            "format": "tsv",
            "columns": ["label", "I1..I13", "C1..C26"],
            "label": "label",
            "split": {"valid": 0.05, "test": 0.2, "by": "order"},
        },
        "features": [
            {
                "columns": "I1..I13",
                "number": ["log", "standardize"],
                "id": {"bucketize": {"quantiles": 30}},
            },
            {"columns": "C1..C26", "id": {"vocabulary": {"min_count": 2}}},
        ],
        "model": {"name": "wide_and_deep", "embedding_dim": 8, "hidden_units": [128, 64]},
        "train": {
            "epochs": epochs,
            "batch_size": 256,
            "early_stopping": None,
            # So that the model still becomes better in the last epochs.
            "optimizer": {"name": "adam", "learning_rate": 3e-4 * _EPOCHS / epochs},
            "seed": seed,
        },
        "export": {"parity_rows": 50},
        "runtime": {
            "mode": "processes",
            "parameter_servers": 1,
            "workers": {"min": least, "max": most},
            # Many workers start at once on few cores.
            "startup_timeout_seconds": 600.0,
        },
    }


def change_workers(run: JobWatch, address: str) -> int:
    """Changes the number of workers as often as `_CHANGES`, after equal shares of the records.

    Args:
        address: Of the job, for `ctrpipe scale`.

    Returns:
        Number of changes.
    """
    for change in range(_CHANGES):
        number = (FEW, MANY)[change % 2]
        due = change / _CHANGES

        def is_due(due: float = due) -> bool:
            records = run.now.records
            return records.total > 0 and records.trained >= due * records.total

        run.wait_for(f"{due:.0%} of the records", is_due, _SECONDS)
        run.call("scale", address, "--workers", str(number))

        def has_changed(number: int = number) -> bool:
            workers = [one for one in run.now.members if one.role == "worker"]
            return sum(one.state == "running" for one in workers) == number

        run.wait_for(f"{number} workers", has_changed, _SECONDS)
    return _CHANGES


def train_by_processes(folder: Path, config: dict[str, Any], *, changes: bool) -> dict[str, float]:
    """The figures of one run in processes of this machine."""
    with WatchedRun(folder, config) as run:
        run.start("run")
        changed = change_workers(run, str(run.output)) if changes else 0
        if run.wait(_SECONDS):
            raise SystemExit(f"A run failed: {run.tail(30)}")
        return figures_of(run.metrics(), changed)


def figures_of(metrics: dict[str, Any], changes: int) -> dict[str, float]:
    """The figures of a run that has ended, all of whose records must have been trained once."""
    records = metrics["runtime"]["records"]
    if records["dropped"] or records["trained"] != records["total"]:
        raise SystemExit(f"Records were lost: {records}")
    return {
        "test AUC": metrics["test"]["auc"],
        "test logloss": metrics["test"]["logloss"],
        "changes": float(changes),
        "records computed again": float(records["repeated"]),
    }


@contextlib.contextmanager
def pods_of(name: str, folder: Path, rows: Path) -> Iterator[Callable[..., dict[str, float]]]:
    """The function that trains as `train_by_processes` does, with pods of a cluster."""
    # Its modules are those of tests/cluster.
    from pod_run import PodRun, started_cluster

    # All runs have one volume, so that kernels are compiled once. Pods run as another user.
    folder.chmod(0o755)
    volume = folder / "volume"
    volume.mkdir()

    def train(own: Path, config: dict[str, Any], *, changes: bool) -> dict[str, float]:
        config["data"]["train"] = "rows.txt"
        del config["runtime"]["mode"]
        job = f"changes-{os.getpid()}-{own.name}"
        with PodRun(cluster, volume, config, rows, name=job, pods=_PODS) as run:
            run.call("submit", str(run.config_path))
            changed = change_workers(run, run.address) if changes else 0
            run.wait_for("the end", lambda: run.has_ended, _SECONDS)
            if run.summary.state != "finished":
                raise SystemExit(f"A run failed: {run.tail(30)}")
            return figures_of(run.metrics(run.work / "runs" / job), changed)

    with started_cluster(name) as cluster, cluster.network():
        yield train


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="Criteo's train.txt, or a part of it.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--epochs", type=int, default=_EPOCHS, help="More give pods time to start. Default: 8."
    )
    parser.add_argument("--cluster", help="Name of a test cluster that has the image.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    machine = describe_machine()
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        folder, data = Path(made), arguments.data
        if data is None:
            data = folder / "rows.txt"
            write_criteo_sample(data, num_rows=_SAMPLE_ROWS, seed=1, progress=SilentProgress())
        train: Callable[..., dict[str, float]] = train_by_processes
        if arguments.cluster is not None:
            train = stack.enter_context(pods_of(arguments.cluster, folder, data))
        for turn in range(arguments.turns):
            for number, (side, (least, most)) in enumerate(SIDES.items()):
                config = config_of(data.resolve(), turn, arguments.epochs, least, most)
                figures = train(folder / f"{turn}-{number}", config, changes=least < most)
                found[side].append(figures)
                print(f"{side}: {figures}", flush=True)
    print_machine(machine)
    results: dict[str, Any] = {
        side: {name: Spread.of([one[name] for one in turns]) for name in turns[0]}
        for side, turns in found.items()
    }
    aucs = {side: [one["test AUC"] for one in turns] for side, turns in found.items()}
    fixed = [statistics.fmean(pair) for pair in zip(*list(aucs.values())[:2], strict=True)]
    differences = {
        "4 ↔ 8 less the mean of both": Spread.of(
            [one - mean for one, mean in zip(aucs["4 ↔ 8"], fixed, strict=True)]
        ),
        "8 workers less 4 workers": Spread.of(
            [one - other for one, other in zip(aucs["8 workers"], aucs["4 workers"], strict=True)]
        ),
    }
    print_table(
        ["", *results["4 ↔ 8"]],
        [
            [side, *(spread.show(4) for spread in figures_of.values())]
            for side, figures_of in results.items()
        ],
    )
    print_table(
        ["difference of the test AUC", ""], [[n, s.show(5)] for n, s in differences.items()]
    )
    write_results(
        arguments.json,
        benchmark="worker_changes",
        machine=machine,
        results={**results, **differences},
    )


if __name__ == "__main__":
    main()
