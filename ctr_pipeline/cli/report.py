"""`ctrpipe report`: the page of a run, written again."""

import typer

from ctr_pipeline.cli.options import AsJson, Quiet, Run, Verbose
from ctr_pipeline.cli.session import session_of


def report(
    context: typer.Context,
    run: Run,
    *,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write report.html again from the run folder, without training.

    Works for a run that was stopped or still trains, with what it has so far.

    For example:

    ctrpipe report runs/criteo
    """
    session = session_of(context, verbose, quiet, as_json)
    from ctr_pipeline.cli.tables import make_console, print_paths
    from ctr_pipeline.pipeline.report_facts import rewrite_report
    from ctr_pipeline.pipeline.workspace import RunFolder, find_run

    page, missing = rewrite_report(RunFolder(find_run(run)))

    def render() -> None:
        console = make_console()
        print_paths(console, {"report": page})
        if missing:
            console.print(f"[yellow]{missing}[/]", soft_wrap=True)

    session.show({"report": page, "missing": missing or None}, render)
