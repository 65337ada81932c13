"""`ctrpipe compare`: finished runs beside each other."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import OverwriteOutput
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MACHINE)
def compare(
    session: CommandSession,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, or their configs. All are compared with the first.",
            show_default=False,
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write an HTML page.", show_default=False)
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(min=100, max=1_000_000, metavar="N", help="Bootstrap draws for an interval."),
    ] = 1000,
    overwrite: OverwriteOutput = False,
) -> None:
    """Compare finished runs: how much better is one than another?

    Shows the differences of test AUC and logloss, with 95 % intervals from a paired bootstrap if
    the runs scored the same test rows, the training times, and the keys in which the configs
    differ. The page adds learning, ROC and calibration curves.

    For example:

    ctrpipe compare runs/deepfm runs/dcnv2

    ctrpipe compare runs/* --html comparison.html
    """
    from ctr_pipeline.apps.compare import compare_runs
    from ctr_pipeline.cli.run_views import print_comparison

    result = compare_runs(
        runs, repeats=repeats, output=html, overwrite=overwrite, progress=session.progress
    )
    session.show(result.to_payload(), lambda: print_comparison(result))
