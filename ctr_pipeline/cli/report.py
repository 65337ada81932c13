"""`ctrpipe report`: the page of a run, written again."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession


@command(Panel.STAGES)
def report(
    session: CommandSession,
    run: Run,
) -> None:
    """Write report.html again from the run folder, without training.

    Works for a run that was stopped or still trains, with what it has so far.

    For example:

    ctrpipe report runs/criteo
    """
    from ctr_pipeline.cli.tables import make_console, print_paths
    from ctr_pipeline.pipeline.run_folder import find_run
    from ctr_pipeline.pipeline.stages.report_facts import rewrite_report

    page, missing = rewrite_report(find_run(run))

    def render() -> None:
        console = make_console()
        print_paths(console, {"report": page})
        if missing:
            console.print(f"[yellow]{missing}[/]", soft_wrap=True)

    session.show({"report": page, "missing": missing or None}, render)
