"""`ctrpipe status`: how a job in several processes is doing."""

from dataclasses import asdict

import typer

from ctr_pipeline.cli.options import AsJson, Quiet, Run, Verbose
from ctr_pipeline.cli.session import session_of


def status(
    context: typer.Context,
    run: Run,
    *,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show progress, speed, members and failures of a job.

    For example:

    ctrpipe status runs/criteo

    ctrpipe status config.yaml --json
    """
    session = session_of(context, verbose, quiet, as_json)
    from ctr_pipeline.cli.job_tables import print_status
    from ctr_pipeline.pipeline.job_control import find_job, read_status

    view = read_status(find_job(run))
    session.show(asdict(view), lambda: print_status(view))
