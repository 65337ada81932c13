"""`ctrpipe stop`: ends a job, keeping what it has learned."""

from typing import Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import names_cluster_job
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession


@command(Panel.JOB)
def stop(
    session: CommandSession,
    run: Run,
    *,
    wait_seconds: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0.0, help="Time to wait for the end; 0 does not wait."
        ),
    ] = 60.0,
) -> None:
    """Write a last checkpoint and end a job.

    For example:

    ctrpipe stop runs/criteo

    Workers finish their batches first, so that no record is trained twice. 'ctrpipe run CONFIG
    --resume' continues from that checkpoint, 'ctrpipe resume' on Kubernetes.
    """
    if names_cluster_job(run):
        from ctr_pipeline.apps.cluster.operation import open_job

        session.progress.log("Stopping: the job takes a last checkpoint")
        found = open_job(run).suspend(wait_seconds=wait_seconds)
        session.show({"job": run, "state": found}, lambda: typer.echo(found))
        return
    from ctr_pipeline.pipeline.job.control import find_job, stop_job

    job = find_job(run)
    state = stop_job(
        job,
        wait_seconds=wait_seconds,
        on_asked=lambda: session.progress.log("Stopping: the job takes a last checkpoint"),
    )
    session.show({"run_folder": job.run_folder, "state": state}, lambda: typer.echo(state))
