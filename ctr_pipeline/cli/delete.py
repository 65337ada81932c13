"""`ctrpipe delete`: removes a job from Kubernetes."""

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ClusterRun
from ctr_pipeline.cli.session import CommandSession


@command(Panel.CLUSTER)
def delete(session: CommandSession, job: ClusterRun) -> None:
    """Delete a job and everything that belongs to it; its run folder stays.

    'ctrpipe stop' first takes a checkpoint.

    For example:

    ctrpipe delete k8s:ads/clicks
    """
    from ctr_pipeline.apps.cluster.operation import open_job

    open_job(job).delete()
    session.show({"job": job}, lambda: typer.echo(f"{job} is deleted"))
