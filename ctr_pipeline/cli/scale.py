"""`ctrpipe scale`: changes the number of workers or parameter servers while a job runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import names_cluster_job, run_in_driver
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.job.control import Job


@command(Panel.JOB)
def scale(
    session: CommandSession,
    run: Run,
    *,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, metavar="N", help="Number of workers from now on."),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option("--min", min=1, metavar="N", help="Smallest number of workers that train."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max", min=1, metavar="N", help="Largest number of workers."),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            "--parameter-servers",
            min=1,
            metavar="N",
            help="Number of parameter servers from now on.",
        ),
    ] = None,
) -> int:
    """Change the number of workers or parameter servers of a running job.

    Workers that leave finish their batch first. --workers also widens the bounds of the job if
    needed. While training goes on, partitions of embedding rows move to new parameter servers and
    away from those that leave. A new server gets dense parameters only when the run is resumed with
    another runtime.parameter_servers.

    With runtime.strategy: allreduce, --workers keeps to the bounds of runtime.workers, and holds
    until the run is resumed.

    For example:

    ctrpipe scale runs/criteo --workers 4

    ctrpipe scale runs/criteo --min 2 --max 8

    ctrpipe scale runs/criteo --parameter-servers 3
    """
    if workers is None and least is None and most is None and servers is None:
        raise CtrPipelineError(
            "one of --workers, --min, --max and --parameter-servers is needed",
            remedy="'ctrpipe scale --help' shows how it is used",
        )
    if names_cluster_job(run):
        given = {
            "--workers": workers,
            "--min": least,
            "--max": most,
            "--parameter-servers": servers,
        }
        options = [f"{key}={value}" for key, value in given.items() if value is not None]
        return run_in_driver(session, run, ["scale", *options])
    from ctr_pipeline.pipeline.job.control import find_job, find_logs, scale_job

    if workers is not None and least is None and most is None and servers is None:
        found = find_logs(run)
        if not found.folder.is_dir():
            return _scale_replicas(session, found, workers)
    job = find_job(run)
    wanted = scale_job(
        job,
        workers=workers,
        min_workers=least,
        max_workers=most,
        parameter_servers=servers,
    )
    lines = [f"{format_wanted(wanted, 'worker')} from now on"]
    if servers is not None:
        lines.append(
            f"{format_wanted(servers, 'parameter server')}; 'ctrpipe status' shows the moves"
        )
    session.show(
        {
            "run_folder": job.run_folder,
            "workers_wanted": wanted,
            "parameter_servers_wanted": servers,
        },
        lambda: typer.echo("\n".join(lines)),
    )
    return 0


def _scale_replicas(session: CommandSession, job: "Job", workers: int) -> int:
    from ctr_pipeline.pipeline.job.replicas import scale_replicas
    from ctr_pipeline.pipeline.run_folder import RunFolder

    scale_replicas(RunFolder(job.run_folder), workers)
    session.show(
        {
            "run_folder": job.run_folder,
            "workers_wanted": workers,
            "parameter_servers_wanted": None,
        },
        lambda: typer.echo(f"{format_wanted(workers, 'worker')} from now on"),
    )
    return 0


def format_wanted(number: int, what: str) -> str:
    """`1 worker is wanted`, `2 workers are wanted`."""
    return f"{number} {what}{' is' if number == 1 else 's are'} wanted"
