"""`ctrpipe init`: a config from a look at the data."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Columns, Positive, ReadingSettings, split_columns
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STARTING)
def init(
    session: CommandSession,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A file, glob, address or table of rows.")
    ],
    *,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column to predict. Default: 'label', or the only column of 0 and 1.",
            show_default=False,
        ),
    ] = None,
    positive: Positive = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="CONFIG", help="The config to write.")
    ] = Path("config.yaml"),
    columns: Columns = None,
    settings: ReadingSettings = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the config.")] = False,
) -> None:
    """Examine a file and write a commented config that runs as it is.

    For example:

    ctrpipe init clicks.csv --label clicked

    ctrpipe init train.txt --columns label,I1..I13,C1..C26 --output criteo.yaml
    """
    session.progress.log(f"Examining {data}")
    from ctr_pipeline.apps.init import init_config
    from ctr_pipeline.cli.tables import init_payload, print_init

    result = init_config(
        data,
        label=label,
        positive=positive,
        output=output,
        columns=split_columns(columns),
        settings=settings or (),
        overwrite=overwrite,
        progress=session.progress,
    )
    session.show(init_payload(result), lambda: print_init(result))
