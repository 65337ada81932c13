"""`ctrpipe fetch`: brings the results of a job on Kubernetes to this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ClusterRun
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError


@command(Panel.CLUSTER)
def fetch(
    session: CommandSession,
    job: ClusterRun,
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
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also the checkpoints, which may be large.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that were fetched before.")
    ] = False,
) -> None:
    """Copy report, metrics, predictions, export and logs of a job to this machine.

    While the job runs, that is what there is so far. Rows and secrets of the job stay where they
    are. Without a driver, a pod that sees nothing but the claim is started for this and deleted
    afterwards.

    For example:

    ctrpipe fetch k8s:clicks

    ctrpipe fetch k8s:ads/clicks --output clicks --overwrite
    """
    from ctr_pipeline.apps.cluster.operation import open_job

    found = open_job(job)
    summary = found.summary()
    folder = output or default_folder(summary.name, summary.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise CtrPipelineError(
            "holds files already",
            place=str(folder),
            remedy="Give --overwrite to replace those of the same names, or another --output",
        )
    session.progress.log(f"Fetching {summary.folder} of a job that is {summary.state}")
    with session.progress.task("fetch", total=None, unit="bytes") as task:
        fetched = found.fetch(folder, checkpoints=checkpoints, on_bytes=task.advance)
    payload = {"job": job, "folder": folder, "state": summary.state, **asdict(fetched)}
    session.show(payload, lambda: typer.echo("\n".join(_describe(folder, fetched.num_files))))


def default_folder(name: str, run_folder: str) -> Path:
    """Where a job's results go: the same relative path as in the cluster, or a folder of `runs`."""
    there = Path(run_folder)
    is_safe = not there.is_absolute() and ".." not in there.parts and there.parts
    return there if is_safe else Path("runs") / name


def _describe(folder: Path, num_files: int) -> list[str]:
    report = folder / "report.html"
    lines = [f"{num_files:,} files in {folder}"]
    return [*lines, f"report       {report}"] if report.exists() else lines
