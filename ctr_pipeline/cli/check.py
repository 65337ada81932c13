"""`ctrpipe check`: the resolved plan, before all data is read."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import ConfigFile, Overrides
from ctr_pipeline.cli.session import CommandSession, command_line

if TYPE_CHECKING:
    from ctr_pipeline.config import LoadedConfig


@command(Panel.PIPELINE)
def check(
    session: CommandSession,
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    on_cluster: Annotated[
        bool,
        typer.Option(
            "--on-cluster", help="Read the rows in a pod, where the claim of kubernetes.claim is."
        ),
    ] = False,
) -> int:
    """Validate a config and show what becomes of each column, without reading all data.

    For example:

    ctrpipe check config.yaml

    ctrpipe check config.yaml -v      # with the reason for each decision

    ctrpipe check config.yaml --json | jq '.rows[].feature'

    ctrpipe check config.yaml --on-cluster

    """
    if on_cluster:
        return _check_in_pod(session, session.load_for_cluster(config, overrides))
    loaded = session.read(config, overrides)
    from ctr_pipeline.apps.check import check_config
    from ctr_pipeline.cli.tables import check_payload, print_check
    from ctr_pipeline.errors import NoSuchFileError

    try:
        result = check_config(loaded, progress=session.progress)
    except NoSuchFileError as error:
        if loaded.config.kubernetes.claim is None:
            raise
        next_step = command_line("check", str(config), overrides, "--on-cluster")
        for_cluster = session.load_for_cluster(config, overrides)
        _check_without_rows(session, for_cluster, missing=str(error), next_step=next_step)
        return 0
    session.show(check_payload(result), lambda: print_check(result, reasons=session.verbosity > 0))
    return 0


def _check_without_rows(
    session: CommandSession, loaded: "LoadedConfig", *, missing: str, next_step: str
) -> None:
    """Checks what needs no rows, and says where they are looked for."""
    from ctr_pipeline.apps.cluster import submission

    submission.render_manifests(loaded, name=submission.name_job(loaded.config))
    claim = loaded.config.kubernetes.claim
    session.show(
        {"rows_are_here": False, "missing": missing, "claim": claim, "next": next_step},
        lambda: typer.echo(
            "The config is valid, and a job can be made of it.\n"
            f"Its rows are not here ({missing}).\n"
            f"If they are on the claim '{claim}', this reads the first of them there, and checks "
            f"columns, features and sizes:\n  {next_step}"
        ),
    )


def _check_in_pod(session: CommandSession, loaded: "LoadedConfig") -> int:
    from ctr_pipeline.apps.cluster.submission import check_in_pod

    options = [*(["--json"] if session.as_json else []), *["-v"] * session.verbosity]
    out, errors, code = check_in_pod(
        loaded,
        [*options, *(["--quiet"] if session.quiet else [])],
        on_wait=lambda why: session.progress.log(f"The pod waits: {why}"),
    )
    sys.stderr.write(errors)
    sys.stdout.write(out)
    return code
