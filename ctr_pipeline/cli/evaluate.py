"""`ctrpipe evaluate`: metrics of a trained model."""

from typing import Annotated

import typer

from ctr_pipeline.cli.options import AsJson, Overrides, Quiet, TrainedConfig, Verbose
from ctr_pipeline.cli.session import session_of


def evaluate(
    context: typer.Context,
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
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model on the test rows, or on other rows.

    While a run of several processes trains, the newest checkpoint is measured, and the results are
    kept in the folder 'evaluations' of the run folder.

    For example:

    ctrpipe evaluate config.yaml

    ctrpipe evaluate config.yaml --data data/next_week.tsv

    ctrpipe evaluate runs/criteo --by country,device

    """
    session = session_of(context, verbose, quiet, as_json)
    loaded = session.read(config, overrides)
    from ctr_pipeline.cli.tables import print_metrics
    from ctr_pipeline.pipeline import evaluate as evaluate_model

    columns = [name for names in by or () for name in names.split(",")]
    metrics = evaluate_model(loaded, data=data, by=columns, progress=session.progress)
    session.show(metrics, lambda: print_metrics(metrics))
