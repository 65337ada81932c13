"""`ctrpipe evaluate`: metrics of a trained model."""

from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Overrides, TrainedConfig
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
) -> None:
    """Measure a trained model on the test rows, or on other rows.

    While a run of several processes trains, the newest checkpoint is measured, and the results are
    kept in the folder 'evaluations' of the run folder.

    For example:

    ctrpipe evaluate config.yaml

    ctrpipe evaluate config.yaml --data data/next_week.tsv

    ctrpipe evaluate runs/criteo --by country,device

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.apps.scoring.evaluate import evaluate as evaluate_model
    from ctr_pipeline.cli.tables import print_metrics

    columns = [name for names in by or () for name in names.split(",")]
    metrics = evaluate_model(loaded, data=data, by=columns, progress=session.progress)
    session.show(metrics, lambda: print_metrics(metrics))
