"""`ctrpipe resume`: lets a stopped job on Kubernetes go on."""

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ClusterRun
from ctr_pipeline.cli.session import CommandSession


@command(Panel.CLUSTER)
def resume(session: CommandSession, job: ClusterRun) -> None:
    """Let a job that was stopped go on from its last checkpoint.

    For example:

    ctrpipe resume k8s:ads/clicks
    """
    from ctr_pipeline.apps.cluster.operation import open_job

    open_job(job).resume()
    session.show({"job": job}, lambda: typer.echo(f"{job} goes on"))
