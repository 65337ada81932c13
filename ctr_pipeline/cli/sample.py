"""`ctrpipe sample`: rows to try things on."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Group, Panel, command
from ctr_pipeline.cli.options import OverwriteOutput
from ctr_pipeline.cli.session import CommandSession

_GROUP = Group("sample", "Write rows to try things on.", Panel.STARTING)


@command(_GROUP)
def criteo(
    session: CommandSession,
    *,
    rows: Annotated[int, typer.Option(help="Number of rows.", min=100)] = 200_000,
    seed: Annotated[int, typer.Option(help="Seed of the model and the rows.", min=0)] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
    ] = Path("data/criteo/train.txt"),
    header: Annotated[bool, typer.Option("--header", help="Write a header line.")] = False,
    overwrite: OverwriteOutput = False,
) -> None:
    """Write sample rows in the format of the Criteo logs, drawn from a known model.

    Prints the best possible logloss, which follows from the model.

    For example:

    ctrpipe sample criteo --rows 200000 --seed 1 --output data/criteo/train.txt
    """
    from ctr_pipeline.apps.outputs import require_output
    from ctr_pipeline.apps.sample import write_criteo_sample
    from ctr_pipeline.cli.tables import print_sample

    require_output(output, overwrite=overwrite, makes_folder=True)
    session.progress.log(f"Writing {rows:,} rows to {output}")
    summary = write_criteo_sample(
        output, num_rows=rows, seed=seed, header=header, progress=session.progress
    )
    session.show(summary.model_dump(mode="json"), lambda: print_sample(summary))
