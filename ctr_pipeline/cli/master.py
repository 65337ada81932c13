"""`ctrpipe master`: the master of a job, as a process of its own."""

from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Bind, MemberConfig, Overrides
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MEMBERS, has_json=False)
def master(
    session: CommandSession,
    config: MemberConfig,
    overrides: Overrides = None,
    *,
    bind: Bind = "127.0.0.1:0",
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address of the process that starts the other members."
        ),
    ] = None,
) -> int:
    """Run the master of a job.

    For example, by hand, after 'ctrpipe train CONFIG --prepare-only':

    ctrpipe master --config runs/criteo/config.resolved.yaml --bind 127.0.0.1:7000
    """
    session.start_member_logging()
    from ctr_pipeline.apps.live import pages_of_job
    from ctr_pipeline.pipeline.job.members import run_as_master

    return run_as_master(
        session.load(config, overrides),
        bind=bind,
        launcher_address=launcher,
        pages=pages_of_job,
    )
