"""`ctrpipe predict`: probabilities of unseen rows."""

from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Overrides, OverwriteOutput, Strict, TrainedConfig
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STAGES)
def predict(
    session: CommandSession,
    config: TrainedConfig,
    overrides: Overrides = None,
    *,
    data: Annotated[str, typer.Option(metavar="ROWS", help="A file or glob of rows.")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PLACE",
            help="Where to write: a file or an address such as s3://bucket/scores.parquet, Parquet "
            "or CSV by its ending; or a table, duckdb://shop.duckdb/scores or odps://project/scores/ds=20240101.",
        ),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS",
            help="Columns to copy beside the predictions, separated by commas. "
            "data.key_columns are always copied.",
        ),
    ] = None,
    overwrite: OverwriteOutput = False,
    strict: Strict = False,
) -> None:
    """Predict the click probability of new rows.

    Needs no label column. The output keeps the order of the rows.

    For example:

    ctrpipe predict config.yaml --data today.tsv --output predictions.parquet

    ctrpipe predict config.yaml --data 'days/*.csv.gz' --output predictions.csv --keep row,user

    """
    loaded = session.read(config, overrides)
    from ctr_pipeline.apps.scoring.predict import predict as predict_rows
    from ctr_pipeline.cli.tables import predict_payload, print_predictions

    kept = [name for names in keep or () for name in names.split(",")]
    result = predict_rows(
        loaded,
        data=data,
        output=output,
        overwrite=overwrite,
        keep=kept,
        strict=strict,
        progress=session.progress,
    )
    session.show(predict_payload(result), lambda: print_predictions(result))
