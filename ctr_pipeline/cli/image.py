"""`ctrpipe image`: the container image that pods run."""

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.apps.image import DEFAULT_BASE, Engine
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.session import CommandSession


@command(Panel.CLUSTER, has_json=False)
def image(
    session: CommandSession,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- OPTIONS...",
            help="Further options for the program that builds, such as --network=host.",
            show_default=False,
        ),
    ] = None,
    *,
    tag: Annotated[
        str, typer.Option("--tag", "-t", metavar="NAME", help="Name of the image.")
    ] = "ctrpipe:1",
    base: Annotated[
        str,
        typer.Option(metavar="IMAGE", help="Debian with Python 3.11 or 3.12 that it starts from."),
    ] = DEFAULT_BASE,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="The program that builds. Default: the first one that works here.",
            show_default=False,
        ),
    ] = None,
    pip_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="pip's configuration during the build, such as of your package index. Nothing of "
            "it is in the image.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--context",
            metavar="FOLDER",
            help="Only write the files of the build, to build elsewhere.",
            show_default=False,
        ),
    ] = None,
    push: Annotated[
        bool,
        typer.Option("--push", help="Push it to the registry that its name begins with, too."),
    ] = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the Dockerfile and the command, build nothing.")
    ] = False,
) -> None:
    """Build the container image for Kubernetes, of the ctrpipe that is installed here.

    It runs as a user without rights, on a read-only file system, with kernels compiled. A model
    file of your own needs no image of its own: ctrpipe submit sends it along.

    For example:

    ctrpipe image --tag registry.example.com/ctrpipe:1 --push

    ctrpipe image --base mirror.example.com/python:3.11-slim --pip-config /etc/pip.conf

    ctrpipe image --print
    """
    from ctr_pipeline.apps.image import building
    from ctr_pipeline.errors import CtrPipelineError

    build = building.ImageBuild(tag, base, pip_config, options or ())
    if push:
        building.require_registry(tag)
        if folder is not None or only_print:
            raise CtrPipelineError(
                "--push builds here, and --context and --print do not",
                remedy="Leave one of them out",
            )
    if folder is not None:
        building.write_context(folder)
        shown = shlex.join(build.command(engine or Engine.DOCKER, folder))
        typer.echo(f"Wrote {folder}. Build the image with:\n  {shown}")
        return
    chosen = engine or building.find_engine()
    if only_print:
        shown = shlex.join(build.command(chosen or Engine.DOCKER, Path("FOLDER")))
        typer.echo(f"# After 'ctrpipe image --context FOLDER': {shown}\n")
        typer.echo(building.dockerfile(), nl=False)
        return
    if chosen is None:
        raise building.no_engine(build)
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "context"
        building.write_context(made)
        session.progress.log(f"Building {tag} by {chosen}: minutes, and some GB for packages")
        building.build_image(build, chosen, made)
    if push:
        building.push_image(tag, chosen)
        typer.echo(f"Built and pushed {tag}. Next: set kubernetes.image: {tag}")
        return
    typer.echo(
        f"Built {tag}. Next: push it where the cluster pulls from, or load it into a test cluster,"
        f" and set kubernetes.image: {tag}"
    )
