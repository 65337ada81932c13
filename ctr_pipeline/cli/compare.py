"""`ctrpipe compare`: finished runs beside each other."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.options import AsJson, OverwriteOutput, Quiet, Verbose
from ctr_pipeline.cli.session import session_of


def compare(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, or the configs they belong to; the others are held against the "
            "first.",
            show_default=False,
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write an HTML page.", show_default=False)
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=100, max=1_000_000, metavar="N", help="Times that rows are drawn for an interval."
        ),
    ] = 1000,
    overwrite: OverwriteOutput = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show how much better one finished run is than another.

    Differences of test AUC and logloss have 95 % intervals from a paired bootstrap over rows, where
    two runs scored the same test rows. Also shown are what training took and which keys of the
    configs differ; the page draws learning, ROC and calibration curves over each other.

    For example:

    ctrpipe compare runs/deepfm runs/dcnv2

    ctrpipe compare runs/* --html comparison.html
    """
    session = session_of(context, verbose, quiet, as_json)
    from ctr_pipeline.cli.run_views import print_comparison
    from ctr_pipeline.pipeline.comparison import compare_runs

    result = compare_runs(
        runs, repeats=repeats, output=html, overwrite=overwrite, progress=session.progress
    )
    session.show(result.to_payload(), lambda: print_comparison(result))
