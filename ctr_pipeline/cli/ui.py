"""`ctrpipe ui`: a run in the browser."""

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import names_cluster_job
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Run
from ctr_pipeline.cli.session import CommandSession

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.run_folder import RunFolder


@command(Panel.JOB, has_json=False)
def ui(
    session: CommandSession,
    run: Run,
    *,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the page, or only print its address."),
    ] = True,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="PORT", help="Port of this machine; 0: a free one."),
    ] = 0,
) -> None:
    """Show a run in the browser while it goes on, and its report once it has ended.

    For example:

    ctrpipe ui runs/criteo

    ctrpipe ui k8s:clicks --no-browser --port 8000

    The page changes nothing. Only the browser that opens the printed address first sees it, and
    only on this machine; over SSH, forward the port. It ends with the run.
    """

    def open_address(address: str) -> None:
        if browser and webbrowser.open(address):
            session.progress.log("Opened in the browser; Ctrl-C ends the page, not the run")
        else:
            typer.echo(address)

    from ctr_pipeline.apps.live import show_pages

    if names_cluster_job(run):
        from ctr_pipeline.apps.cluster.pages import ClusterPages

        job = ClusterPages.of(run)
        show_pages(
            job.pages(), port=port, on_address=open_address, goes_on=job.goes_on, pause=time.sleep
        )
        return
    from ctr_pipeline.apps.live import is_live, pages_of_run
    from ctr_pipeline.pipeline.run_folder import find_run

    found = find_run(run)
    if not is_live(found):
        open_address(_report_of(found).as_uri())
        return
    show_pages(
        pages_of_run(found),
        port=port,
        on_address=open_address,
        goes_on=lambda: is_live(found),
        pause=time.sleep,
    )


def _report_of(run: "RunFolder") -> Path:
    """The report of a run that does not go on, written if there is none."""
    from ctr_pipeline.pipeline.stages.report_facts import rewrite_report

    page = run.report if run.report.is_file() else rewrite_report(run)[0]
    return page.resolve()
