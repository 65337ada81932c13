"""`ctrpipe profile`: what a table holds."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import (
    Columns,
    OverwriteOutput,
    Positive,
    ReadingSettings,
    split_columns,
)
from ctr_pipeline.cli.session import CommandSession


@command(Panel.TABLES)
def profile(
    session: CommandSession,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A file, glob or table.", show_default=False)
    ],
    *,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column to predict.", show_default=False),
    ] = None,
    positive: Positive = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PAGE", help="Write an HTML page.", show_default=False
        ),
    ] = None,
    overwrite: OverwriteOutput = False,
    columns: Columns = None,
    settings: ReadingSettings = None,
) -> None:
    """Show the values and missing values of each column, and what it says about the click.

    Reads all rows. Writes nothing except the page given by --output.

    For example:

    ctrpipe profile clicks.csv --label clicked --output profile.html

    ctrpipe profile 'data/day-*.parquet' --json
    """
    session.progress.log(f"Examining {data}")
    from ctr_pipeline.apps.tables import profile_table
    from ctr_pipeline.cli.table_views import print_profile

    result = profile_table(
        data,
        label=label,
        positive=positive,
        columns=split_columns(columns),
        settings=settings or (),
        output=output,
        overwrite=overwrite,
        progress=session.progress,
    )
    session.show(result.to_payload(), lambda: print_profile(result))
