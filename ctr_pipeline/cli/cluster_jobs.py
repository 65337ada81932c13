"""What commands on a run do where the run is a job on Kubernetes."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError

if TYPE_CHECKING:
    from ctr_pipeline.apps.cluster.operation import JobSummary


def names_cluster_job(run: Path) -> bool:
    """Whether a RUN of the command line names a job on Kubernetes."""
    return str(run).startswith("k8s:")


def describe_summary(summary: "JobSummary") -> str:
    """One line: `k8s:ads/clicks  running  driver 1, ps 1, worker 2`."""
    pods = ", ".join(f"{role} {count}" for role, count in sorted(summary.pods.items()))
    parts = [f"k8s:{summary.namespace}/{summary.name}", summary.state, pods, summary.reason]
    return "  ".join(part for part in parts if part)


def show_cluster_status(session: CommandSession, run: Path) -> int:
    """The status that the driver tells; without a driver, what Kubernetes knows."""
    from ctr_pipeline.apps.cluster.operation import open_job

    job = open_job(run)
    answer = job.run_in_driver(["status", *(["--json"] if session.as_json else [])])
    if answer is not None and answer[2] == 0:
        sys.stdout.write(answer[0])
        return 0
    # While rows are prepared there is no status of members yet.
    summary = job.summary()
    session.show(asdict(summary), lambda: typer.echo(describe_summary(summary)))
    return 0


def run_in_driver(session: CommandSession, run: Path, arguments: Sequence[str]) -> int:
    """Runs a command on the job in its driver pod; returns its exit code.

    Raises:
        CtrPipelineError: The job has no driver now.
    """
    from ctr_pipeline.apps.cluster.operation import open_job

    job = open_job(run)
    answer = job.run_in_driver([*arguments, *(["--json"] if session.as_json else [])])
    if answer is None:
        raise CtrPipelineError(
            f"the job does not run: it is {job.summary().state}",
            place=str(run),
            remedy=f"'ctrpipe resume {run}' lets a stopped one go on",
        )
    out, errors, code = answer
    sys.stdout.write(out)
    sys.stderr.write(errors)
    return code
