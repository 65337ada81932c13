"""`ctrpipe convert`: rows from one file format to another."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Columns, OverwriteOutput, ReadingSettings, split_columns
from ctr_pipeline.cli.session import CommandSession


class TargetFormat(StrEnum):
    """Formats of files of rows."""

    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    RECORDIO = "recordio"


class RecordKind(StrEnum):
    """What a record of RecordIO holds."""

    LINE = "line"
    EXAMPLE = "example"


class ChunkCompression(StrEnum):
    """How chunks of RecordIO are compressed."""

    NONE = "none"
    SNAPPY = "snappy"
    GZIP = "gzip"


@command(Panel.STARTING)
def convert(
    session: CommandSession,
    rows: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file, glob or table of rows, in any format.")
    ],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write. Its ending selects the format: .csv, .tsv, .parquet or "
            ".recordio; .csv and .tsv may be followed by .gz or .zst.",
        ),
    ],
    to: Annotated[
        TargetFormat | None,
        typer.Option(
            help="The format, if the ending of FILE does not select it.", show_default=False
        ),
    ] = None,
    record: Annotated[
        RecordKind,
        typer.Option(
            help="RecordIO: 'line' writes rows as tab-separated text with a header; 'example' "
            "writes tf.train.Example records with int64, float32 and bytes."
        ),
    ] = RecordKind.LINE,
    compression: Annotated[
        ChunkCompression, typer.Option(help="RecordIO: compression of chunks.")
    ] = ChunkCompression.NONE,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Write a header line.")
    ] = True,
    columns: Columns = None,
    settings: ReadingSettings = None,
    overwrite: OverwriteOutput = False,
) -> None:
    """Convert rows between CSV, TSV, Parquet and RecordIO.

    Memory is bounded. A bad row is an error, and FILE is written completely or not at all. Columns
    whose texts are all numbers become numbers in Parquet and Examples.

    For example:

    ctrpipe convert clicks.csv --output clicks.parquet

    ctrpipe convert 'days/*.tsv.gz' --output days.recordio --compression snappy

    ctrpipe convert clicks.parquet --output clicks.recordio --record example

    ctrpipe convert part-00000 --columns label,I1..I13,C1..C26 --output train.csv.gz
    """
    session.progress.log(f"Reading {rows}")
    from ctr_pipeline.apps.convert import Target, convert_rows, format_of
    from ctr_pipeline.cli.tables import convert_payload, print_conversion

    target = Target(
        output=output,
        format=to.value if to is not None else format_of(output),
        record=record.value,
        compression=compression.value,
        header=header,
    )
    result = convert_rows(
        rows,
        target,
        columns=split_columns(columns),
        settings=settings or (),
        overwrite=overwrite,
        progress=session.progress,
    )
    session.show(convert_payload(result), lambda: print_conversion(result))
