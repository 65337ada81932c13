"""`ctrpipe runs`: the runs in a folder, a line each."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MACHINE)
def runs(
    session: CommandSession,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="Holds run folders, at any depth up to four; or an address, such as "
            "s3://bucket/runs, of which all object names are listed.",
        ),
    ] = Path("runs"),
) -> None:
    """List runs, the newest first: model, rows, test metrics, training time and state.

    For example:

    ctrpipe runs

    ctrpipe runs s3://bucket/runs --json
    """
    from ctr_pipeline.apps.runs import list_runs
    from ctr_pipeline.cli.run_views import print_runs

    found = list_runs(folder)
    payload = [
        asdict(run) | {"when": None if run.when is None else run.when.isoformat()} for run in found
    ]
    session.show({"runs": payload}, lambda: print_runs(found, folder))
