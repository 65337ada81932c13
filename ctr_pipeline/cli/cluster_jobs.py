"""What commands on a run do where the run is a job on Kubernetes."""

import json
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


def describe_submission(address: str, *, followed: str) -> str:
    """Lines for a job that was just submitted.

    Args:
        followed: The member, or `all`, whose log is worth following.
    """
    return (
        f"Submitted {address}\n"
        f"  ctrpipe status {address}\n"
        f"  ctrpipe logs {address} {followed} -f\n"
        f"  ctrpipe delete {address}"
    )


def describe_summary(summary: "JobSummary") -> str:
    """One line: `k8s:ads/clicks  running  driver 1, ps 1, worker 2`."""
    pods = ", ".join(f"{role} {count}" for role, count in sorted(summary.pods.items()))
    reason = summary.reason
    if summary.next_driver_seconds:
        reason += f" in {summary.next_driver_seconds} s"
    parts = [f"k8s:{summary.namespace}/{summary.name}", summary.state, pods, reason]
    return "  ".join(part for part in parts if part)


def show_cluster_status(session: CommandSession, run: Path) -> int:
    """What Kubernetes knows of a job, and the status that its driver tells, if one runs."""
    from ctr_pipeline.apps.cluster.operation import open_job

    job = open_job(run)
    summary = job.summary()
    answer = job.run_in_driver(["status", *(["--json"] if session.as_json else [])])
    # A driver that has just begun knows of no run.
    told = answer[0] if answer is not None and answer[2] == 0 else ""
    payload = asdict(summary)
    if told and session.as_json:
        payload = {**json.loads(told), "cluster": payload}
    session.show(payload, lambda: typer.echo(f"{describe_summary(summary)}\n{told}", nl=False))
    return 0


def show_cluster_logs(run: Path, member: str, *, num_lines: int, follow: bool) -> None:
    """Prints what a member wrote, or what all of them did, each line after its member."""
    from ctr_pipeline.apps.cluster.operation import ALL_MEMBERS, open_job

    job = open_job(run)
    if member == ALL_MEMBERS:
        for name, line in job.read_all_logs(num_lines=num_lines, follow=follow):
            typer.echo(f"{name:<10} | {line.decode('utf-8', 'replace')}")
        return
    for data in job.read_log(member, num_lines=num_lines, follow=follow):
        sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()


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
