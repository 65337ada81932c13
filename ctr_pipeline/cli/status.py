"""`ctrpipe status`: how a job in several processes is doing."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from ctr_pipeline.cli.options import AsJson, Quiet, Run, Verbose
from ctr_pipeline.cli.session import session_of

if TYPE_CHECKING:
    from ctr_pipeline.distributed.master.status import JobView


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
    session.show(_as_payload(view), lambda: print_status(view))


def _as_payload(view: "JobView") -> dict[str, Any]:
    """The job for programs: epochs count from 1, and what nobody knows is null."""
    payload = asdict(view)
    payload["epoch"] += 1
    for record in payload["history"]:
        record["epoch"] += 1
    if payload["best_epoch"] is not None:
        payload["best_epoch"] += 1
    if not view.answering:
        payload["samples_per_second"] = payload["master_errors"] = None
    return payload
