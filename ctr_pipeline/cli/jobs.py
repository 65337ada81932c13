"""`ctrpipe jobs`: the jobs of a namespace."""

from dataclasses import asdict
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.session import CommandSession


@command(Panel.CLUSTER)
def jobs(
    session: CommandSession,
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Default: that of the current context of kubectl.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the jobs on Kubernetes, with their states and pods.

    For example:

    ctrpipe jobs

    ctrpipe jobs --namespace ads
    """
    from ctr_pipeline.apps.cluster.operation import list_jobs
    from ctr_pipeline.cli.cluster_jobs import describe_summary

    found = list_jobs(namespace)
    lines = [describe_summary(one) for one in found] or ["There are no jobs in this namespace"]
    session.show({"jobs": [asdict(one) for one in found]}, lambda: typer.echo("\n".join(lines)))
