"""`ctrpipe profile`: what a table holds."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.options import (
    AsJson,
    Columns,
    OverwriteOutput,
    Positive,
    Quiet,
    Verbose,
    split_columns,
)
from ctr_pipeline.cli.session import session_of


def profile(
    context: typer.Context,
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
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show the values and missing values of each column, and what it says about the click.

    Reads all rows. Writes nothing except the page given by --output.

    For example:

    ctrpipe profile clicks.csv --label clicked --output profile.html

    ctrpipe profile 'data/day-*.parquet' --json
    """
    session = session_of(context, verbose, quiet, as_json)
    session.progress.log(f"Looking at {data}")
    from ctr_pipeline.cli.table_views import print_profile
    from ctr_pipeline.pipeline.tables import profile_table

    result = profile_table(
        data,
        label=label,
        positive=positive,
        columns=split_columns(columns),
        output=output,
        overwrite=overwrite,
        progress=session.progress,
    )
    session.show(result.to_payload(), lambda: print_profile(result))
