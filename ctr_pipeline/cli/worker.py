"""`ctrpipe worker`: a worker of a job, as a process of its own."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import (
    Incarnation,
    MasterAddress,
    MemberConfig,
    MemberIndex,
    Overrides,
    WaitForMaster,
)
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MEMBERS, has_json=False)
def worker(
    session: CommandSession,
    config: MemberConfig,
    index: MemberIndex,
    overrides: Overrides = None,
    *,
    master: MasterAddress = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="Address of this host on which metrics are served.")
    ] = "127.0.0.1",
    wait_seconds: WaitForMaster = 60,
    incarnation: Incarnation = None,
    units: Annotated[Path | None, typer.Option("--units", hidden=True)] = None,
) -> int:
    """Run a worker of a job. It may start at any time and leave at any time (Ctrl-C).

    For example, by hand:

    ctrpipe worker --config runs/criteo/config.resolved.yaml --index 7
    """
    session.start_member_logging()
    from ctr_pipeline.pipeline.job.members import run_as_worker, run_on_units

    if units is not None and incarnation is not None:
        return run_on_units(session.load(config, overrides), index, units, incarnation=incarnation)
    return run_as_worker(
        session.load(config, overrides),
        index,
        master_address=master,
        metrics_host=metrics_host,
        incarnation=incarnation,
        wait_seconds=wait_seconds,
    )
