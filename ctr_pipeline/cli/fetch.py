"""`ctrpipe fetch`: brings the results of a job on Kubernetes to this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ClusterRun
from ctr_pipeline.cli.session import CommandSession

if TYPE_CHECKING:
    from ctr_pipeline.apps.cluster.operation import Fetched


@command(Panel.CLUSTER)
def fetch(
    session: CommandSession,
    job: ClusterRun,
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help="Files and folders of the run folder, such as report, metrics, export, "
            "predictions, logs, checkpoints. Default: all but the checkpoints, which may be large.",
            show_default=False,
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to write to. Default: as the config's output, or runs/NAME if that is an "
            "absolute path.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace other files of the same names.")
    ] = False,
) -> None:
    """Copy report, metrics, predictions, export and logs of a job to this machine.

    While the job runs, that is what there is so far. Files that are here already in the same state
    are not copied again, so the same command goes on after an interruption. Rows and secrets of the
    job stay where they are. Without a driver, a pod that sees nothing but the claim is started for
    this and deleted afterwards.

    For example:

    ctrpipe fetch k8s:clicks

    ctrpipe fetch k8s:clicks report export

    ctrpipe fetch k8s:ads/clicks --output clicks --overwrite
    """
    from ctr_pipeline.apps.cluster.operation import open_job

    found = open_job(job)
    summary = found.summary()
    folder = output or default_folder(summary.name, summary.folder)
    session.progress.log(f"Fetching {summary.folder} of a job that is {summary.state}")
    fetched = found.fetch(folder, parts or (), overwrite=overwrite, progress=session.progress)
    payload = {"job": job, "folder": folder, "state": summary.state, **asdict(fetched)}
    session.show(payload, lambda: typer.echo("\n".join(_describe(folder, fetched))))


def default_folder(name: str, run_folder: str) -> Path:
    """Where a job's results go: the same relative path as in the cluster, or a folder of `runs`."""
    there = Path(run_folder)
    is_safe = not there.is_absolute() and ".." not in there.parts and there.parts
    return there if is_safe else Path("runs") / name


def _describe(folder: Path, fetched: "Fetched") -> list[str]:
    report = folder / "report.html"
    held = fetched.num_files - fetched.num_new
    lines = [
        f"{fetched.num_files:,} files in {folder}" + (f", {held:,} of them before" if held else "")
    ]
    return [*lines, f"report       {report}"] if report.exists() else lines
