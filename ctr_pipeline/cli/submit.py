"""`ctrpipe submit`: the whole pipeline as pods of a cluster."""

import sys
from typing import Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import describe_submission
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.fetch import default_folder
from ctr_pipeline.cli.options import ConfigFile, Overrides, Uploads
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError


@command(Panel.CLUSTER)
def submit(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the job. Default: that of the config.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests and create nothing.")
    ] = False,
    uploads: Uploads = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Follow the job to its end, and fetch report and metrics; the exit code is the "
            "job's result.",
        ),
    ] = False,
) -> int:
    """Run a config on Kubernetes: every stage, with members that come and go as pods.

    The job goes on without this terminal. Its run folder is on the volume kubernetes.claim.

    For example:

    ctrpipe submit config.yaml --set kubernetes.image=registry/ctrpipe:1

    ctrpipe submit config.yaml --dry-run

    ctrpipe submit config.yaml --upload rows.parquet --wait
    """
    from ctr_pipeline.apps.cluster import submission
    from ctr_pipeline.apps.cluster.operation import open_submitted

    loaded = session.load_for_cluster(config, overrides)
    job_name = name or submission.name_job(loaded.config)
    if dry_run:
        sys.stdout.write(submission.render_manifests(loaded, name=job_name))
        return 0
    job = submission.submit(loaded, name=job_name, uploads=uploads or (), progress=session.progress)
    address = f"k8s:{job.namespace}/{job.name}"
    session.show(
        {"job": address}, lambda: typer.echo(describe_submission(address, followed="driver"))
    )
    if not wait:
        return 0
    submitted = open_submitted(job)
    end = submitted.follow(
        _show_log, on_wait=lambda why: session.progress.log(f"{address} waits: {why}")
    )
    session.progress.log(f"{address} {end.state}" + (f": {end.reason}" if end.reason else ""))
    if end.state != "finished":
        return 1
    folder = default_folder(end.name, end.folder)
    try:
        submitted.fetch(folder, ("report", "metrics"), overwrite=False, progress=session.progress)
    except CtrPipelineError as error:
        # The job has done what it was to do.
        session.progress.log(f"warning: the report was not fetched: {error}")
    else:
        session.progress.log(f"report: {folder / 'report.html'}")
    return 0


def _show_log(data: bytes) -> None:
    sys.stderr.write(data.decode("utf-8", "replace"))
