"""`ctrpipe drift`: how far rows are from others."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Columns, OverwriteOutput, ReadingSettings, split_columns
from ctr_pipeline.cli.session import CommandSession


@command(Panel.TABLES)
def drift(
    session: CommandSession,
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD",
            help="A file, glob or table; a run folder or its config means its training rows.",
            show_default=False,
        ),
    ],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW", help="A file, glob or table of new rows.", show_default=False
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write an HTML page.", show_default=False)
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PSI",
            help="Exit with 1 if the index of a column is above this value and above what "
            "chance explains. 0.25 is common.",
            show_default=False,
        ),
    ] = None,
    overwrite: OverwriteOutput = False,
    columns: Columns = None,
    settings: ReadingSettings = None,
) -> None:
    """Show how far new rows are from old ones, column by column.

    The population stability index compares the shares of intervals, of frequent values, of all
    other values and of missing ones. Below 0.1 is stable; above 0.25 the model needs attention.

    For example:

    ctrpipe drift monday.csv tuesday.csv --html drift.html

    ctrpipe drift runs/criteo-deepfm data/new.tsv --fail-above 0.25
    """
    session.progress.log(f"Comparing {new} with {old}")
    from ctr_pipeline.apps.tables import measure_drift
    from ctr_pipeline.cli.table_views import print_drift

    result = measure_drift(
        old,
        new,
        columns=split_columns(columns),
        settings=settings or (),
        output=html,
        overwrite=overwrite,
        progress=session.progress,
    )
    failed = () if fail_above is None else result.above(fail_above)
    payload = result.to_payload()
    if fail_above is not None:
        payload |= {"fail_above": fail_above, "failed": [one.column for one in failed]}
    session.show(payload, lambda: print_drift(result))
    if failed:
        names = ", ".join(f"'{one.column[:40]}' ({one.psi:.3f})" for one in failed[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        typer.echo(f"drift above {fail_above:g}: {names}{more}", err=True)
        raise typer.Exit(1)
