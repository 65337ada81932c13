"""`ctrpipe convert`: rows from one file format to another."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.options import AsJson, Quiet, Verbose
from ctr_pipeline.cli.session import session_of


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


def convert(
    context: typer.Context,
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
            help="The file to write; .csv, .tsv, .parquet or .recordio names its format, .gz or "
            ".zst after .csv and .tsv compresses.",
        ),
    ],
    to: Annotated[
        TargetFormat | None,
        typer.Option(help="The format, where the ending does not name it.", show_default=False),
    ] = None,
    record: Annotated[
        RecordKind,
        typer.Option(
            help="RecordIO: line keeps every value as text, separated by tabs, names first; "
            "example writes a tf.train.Example with int64, float32 and bytes."
        ),
    ] = RecordKind.LINE,
    compression: Annotated[
        ChunkCompression, typer.Option(help="RecordIO: how its chunks are compressed.")
    ] = ChunkCompression.NONE,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Write names before lines.")
    ] = True,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Names of INPUT without a header, for example 'label,I1..I13,C1..C26'.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="CHARACTER", help="Between the fields of INPUT; found if not given."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Convert rows between CSV, TSV, Parquet and RecordIO.

    FILE is whole or absent, and memory is bounded whatever the size. A bad row is an error: none is
    left out. Texts that all read as numbers become numbers in Parquet and Examples.

    For example:

    ctrpipe convert clicks.csv --output clicks.parquet

    ctrpipe convert 'days/*.tsv.gz' --output days.recordio --compression snappy

    ctrpipe convert clicks.parquet --output clicks.recordio --record example

    ctrpipe convert part-00000 --columns label,I1..I13,C1..C26 --output train.csv.gz
    """
    session = session_of(context, verbose, quiet, as_json)
    session.progress.say(f"Reading {rows}")
    from ctr_pipeline.cli.tables import convert_payload, print_conversion
    from ctr_pipeline.pipeline.convert import Target, convert_rows, format_of

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
        columns=columns,
        delimiter=delimiter,
        overwrite=overwrite,
        progress=session.progress,
    )
    session.show(convert_payload(result), lambda: print_conversion(result))
