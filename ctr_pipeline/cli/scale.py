"""`ctrpipe scale`: changes the number of workers while a job runs."""

from typing import Annotated

import typer

from ctr_pipeline.cli.options import AsJson, Quiet, Run, Verbose
from ctr_pipeline.cli.session import session_of


def scale(
    context: typer.Context,
    run: Run,
    *,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, metavar="N", help="So many workers from now on."),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option("--min", min=1, metavar="N", help="Training needs so many."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max", min=1, metavar="N", help="There are never more."),
    ] = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Change the number of workers of a running job.

    Workers that leave finish their batch first; the others never stop. --workers beyond the job's
    bounds moves them.

    For example:

    ctrpipe scale runs/criteo --workers 4

    ctrpipe scale runs/criteo --min 2 --max 8
    """
    session = session_of(context, verbose, quiet, as_json)
    if workers is None and least is None and most is None:
        raise typer.BadParameter("one of --workers, --min and --max is needed", ctx=context)
    from ctr_pipeline.pipeline.job_control import find_job, scale_job

    job = find_job(run)
    wanted = scale_job(job, workers=workers, min_workers=least, max_workers=most)
    session.show(
        {"run_folder": job.run_folder, "workers_wanted": wanted},
        lambda: typer.echo(f"{wanted} workers are wanted from now on"),
    )
