"""`ctrpipe doctor`: what works on this machine or in a cluster, and what to do about the rest."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import names_cluster_job
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Overrides
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MACHINE)
def doctor(
    session: CommandSession,
    cluster: Annotated[
        Path | None,
        typer.Argument(
            metavar="[k8s:NAMESPACE | CONFIG]",
            help="A namespace of the current cluster (k8s: alone is kubectl's own), or a config "
            "with a section 'kubernetes'. Default: this machine.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Check this machine: versions, cores, memory, disk, caches, and whether TensorFlow starts.

    With a namespace, check that: version, your rights, rights of accounts, pod security, network
    policies and quotas. With a config, also its image, claim and pods. Nothing is created.

    Exits with 1 if something that a run needs does not work.

    For example:

    ctrpipe doctor

    ctrpipe doctor k8s:ads

    ctrpipe doctor config.yaml
    """
    from dataclasses import asdict

    from ctr_pipeline.cli.machine_checks import Verdict, check_machine
    from ctr_pipeline.cli.tables import print_checks

    if cluster is None:
        checks = check_machine(session.progress)
    else:
        from ctr_pipeline.cli.cluster_checks import check_cluster

        if names_cluster_job(cluster):
            namespace = str(cluster).partition(":")[2] or None
            checks = check_cluster(namespace, None, session.progress)
        else:
            loaded = session.load_for_cluster(cluster, overrides)
            checks = check_cluster(None, loaded, session.progress)
    failed = any(check.verdict is Verdict.FAILS for check in checks)
    payload = {"works": not failed, "checks": [asdict(check) for check in checks]}
    session.show(payload, lambda: print_checks(checks))
    raise typer.Exit(1 if failed else 0)
