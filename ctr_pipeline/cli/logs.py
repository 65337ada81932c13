"""`ctrpipe logs`: what a member of a job wrote."""

import sys
from typing import Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import names_cluster_job, show_cluster_logs
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession


@command(Panel.JOB, has_json=False)
def logs(
    session: CommandSession,
    run: Run,
    member: Annotated[
        str,
        typer.Argument(
            metavar="MEMBER",
            help="For example worker-0, ps-1 or master-0; on Kubernetes also driver, and all.",
        ),
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    num_lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="Last lines to show.")
    ] = 100,
) -> None:
    """Show the log of one member of a job.

    For example:

    ctrpipe logs runs/criteo worker-0

    ctrpipe logs runs/criteo master-0 -f

    ctrpipe logs k8s:clicks all -f
    """
    if names_cluster_job(run):
        show_cluster_logs(run, member, num_lines=num_lines, follow=follow)
        return
    from ctr_pipeline.pipeline.job.control import await_log, find_log, find_logs, read_log

    job = find_logs(run)
    path = await_log(job, member, on_wait=session.progress.log) if follow else find_log(job, member)
    for data in read_log(path, num_lines, follow=follow):
        # Bytes that are no text are shown as such; a terminal must not stumble over a member's.
        sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()
