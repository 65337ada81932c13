"""`ctrpipe evaluate`: metrics of a trained model."""

from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import (
    FiguresOutput,
    Overrides,
    OverwriteOutput,
    Strict,
    TrainedConfig,
)
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STAGES)
def evaluate(
    session: CommandSession,
    config: TrainedConfig,
    overrides: Overrides = None,
    *,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS", help="A file or glob of labelled rows. Default: the test rows."
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS",
            help="Also measure the rows of each value of these columns, separated by commas.",
        ),
    ] = None,
    output: FiguresOutput = None,
    overwrite: OverwriteOutput = False,
    strict: Strict = False,
) -> None:
    """Measure a trained model on the test rows, or on other rows.

    While a run of several processes trains, the newest checkpoint is measured, and the results are
    kept in the folder 'evaluations' of the run folder.

    For example:

    ctrpipe evaluate config.yaml

    ctrpipe evaluate config.yaml --data data/next_week.tsv

    ctrpipe evaluate runs/criteo --by country,device

    ctrpipe evaluate config.yaml --output duckdb://shop.duckdb/metrics --overwrite

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.apps.scoring.evaluate import evaluate as evaluate_model
    from ctr_pipeline.cli.tables import print_metrics

    columns = [name for names in by or () for name in names.split(",")]
    table = None
    if output is not None:
        from ctr_pipeline.apps.results.figures import FigureTable, figures_of_metrics

        reads = () if data is None else (data,)
        table = FigureTable(output, loaded.config.data, overwrite=overwrite, reads=reads)
    metrics = evaluate_model(
        loaded, data=data, by=columns, strict=strict, progress=session.progress
    )
    if table is not None:
        table.write(figures_of_metrics(metrics))
    session.show(metrics, lambda: print_metrics(metrics))
