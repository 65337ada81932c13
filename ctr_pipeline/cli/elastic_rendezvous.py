"""`ctrpipe elastic-rendezvous`: where the nodes of an elastic run find each other."""

from pathlib import Path
from typing import Annotated

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Bind
from ctr_pipeline.cli.session import CommandSession


@command(Panel.ELASTIC, has_json=False)
def elastic_rendezvous(
    session: CommandSession,
    *,
    access: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the token and TLS keys; made if there is none.",
            show_default=False,
        ),
    ],
    bind: Bind = "127.0.0.1:7100",
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Only make the access folder.")
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to keep how far scripts have read their records, so that a rendezvous that "
            "is started again goes on. Default: in memory.",
            show_default=False,
        ),
    ] = None,
    gather: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="Time to wait for more nodes once there are enough."
        ),
    ] = 0.5,
    lease: Annotated[
        float,
        typer.Option(
            min=4.0, max=12.0, metavar="SECONDS", help="Silence after which a node is lost."
        ),
    ] = 10.0,
) -> None:
    """Serve the rendezvous of an elastic run; ends when the job has finished.

    Copy the access folder to each node as a secret: whoever has it can join the run. A node needs
    no more than token, tls/ca.pem, tls/worker.pem and tls/worker.key.

    For example:

    ctrpipe elastic-rendezvous --bind 0.0.0.0:7100 --access access
    """
    from ctr_pipeline.distributed.coordination.rendezvous import RendezvousTimes
    from ctr_pipeline.distributed.elastic.secrets import load_access, make_access
    from ctr_pipeline.distributed.elastic.service import RendezvousServer
    from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob, is_driver

    made = make_access(access)
    if not session.quiet:
        state = "New" if made else "Existing"
        typer.echo(f"{state} access folder {access}: copy it to each node as a secret", err=True)
    if prepare_only:
        return
    if ledger is not None:
        ledger.parent.mkdir(parents=True, exist_ok=True)
    times = RendezvousTimes(gather_seconds=gather, lease_seconds=lease)
    with RendezvousServer(bind, load_access(access, "master"), times, ledger=ledger) as server:
        if not session.quiet:
            typer.echo(f"Serving the rendezvous on {server.address}", err=True)
        if is_driver():
            from ctr_pipeline.apps.cluster.elastic_nodes import follow_nodes
            from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi

            job = ClusterJob.of_this_pod()
            api = KubernetesApi.in_pod(job.namespace)
            follow_nodes(server, job, api, lambda line: typer.echo(line, err=True))
        else:
            server.wait_until_finished()
        if not session.quiet:
            typer.echo("The job has finished", err=True)
