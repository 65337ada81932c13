"""`ctrpipe master`: the master of a job, as a process of its own."""

from typing import Annotated

import typer

from ctr_pipeline.cli.options import Bind, MemberConfig, Overrides, Quiet, Verbose
from ctr_pipeline.cli.session import session_of


def master(
    context: typer.Context,
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
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> int:
    """Run the master of a job.

    For example, by hand, after 'ctrpipe train CONFIG --prepare-only':

    ctrpipe master --config runs/criteo/config.resolved.yaml --bind 127.0.0.1:7000
    """
    session = session_of(context, verbose, quiet, as_json=False)
    session.start_member_logging()
    from ctr_pipeline.pipeline.members import be_master

    return be_master(session.load(config, overrides), bind=bind, launcher_address=launcher)
