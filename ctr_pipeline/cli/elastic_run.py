"""`ctrpipe elastic-run`: runs a TensorFlow script on a changing number of nodes."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ctr_pipeline.cli.cluster_jobs import describe_submission
from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import Uploads
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.errors import CtrPipelineError

if TYPE_CHECKING:
    from ctr_pipeline.config.kubernetes import KubernetesConfig
    from ctr_pipeline.distributed.coordination.rendezvous import NodeRange

_JOIN_SECONDS = 600.0
_FOR_EVER_SECONDS = 1e9
"""A cluster may have no room for long."""


@command(Panel.ELASTIC, has_json=False)
def elastic_run(
    session: CommandSession,
    script: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The script to run.", show_default=False),
    ],
    *,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="MIN:MAX", help="How many nodes may train together.", show_default=False
        ),
    ],
    rendezvous: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of 'ctrpipe elastic-rendezvous'.",
            show_default=False,
        ),
    ] = None,
    access: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The access folder of the rendezvous.", show_default=False
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where TensorFlow of this node listens. Default: this host, a free port.",
            show_default=False,
        ),
    ] = None,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="Run MAX nodes on this machine, and their rendezvous."),
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --standalone: where to keep how far the script has read its records, for "
            "the next start.",
            show_default=False,
        ),
    ] = None,
    on_cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Run MAX nodes, and their rendezvous, as pods of the section kubernetes of this "
            "file.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --on-cluster: override a key, such as kubernetes.image=registry/ctrpipe:1. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="With --on-cluster: name of the job."),
    ] = "elastic-run",
    uploads: Uploads = None,
    monitor_interval: Annotated[
        float,
        typer.Option(
            min=0.05, max=3.0, metavar="SECONDS", help="Time between two looks at script and nodes."
        ),
    ] = 1.0,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Failures of the script after which it is started again. Those are not counted "
            "that come with the loss of a node.",
        ),
    ] = 3,
    join_timeout: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="Time to wait for enough nodes. Default: 600, and as long as it takes on a "
            "cluster.",
            show_default=False,
        ),
    ] = None,
    exit_timeout: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="Time to wait for other nodes when the script is done."
        ),
    ] = 300.0,
    grace: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="Time from SIGTERM to SIGKILL for a script."),
    ] = 10.0,
) -> int:
    """Run a TensorFlow script on nodes that come and go.

    Each node runs the script with TF_CONFIG, as MultiWorkerMirroredStrategy wants it. When a node
    joins or is lost, all nodes start the script again with a new TF_CONFIG, so the script should
    save checkpoints and continue from the last one. The exit code is that of the script.

    For example, on one machine:

    ctrpipe elastic-run --standalone --nodes 1:2 -- python train.py

    On several, after 'ctrpipe elastic-rendezvous' on one of them, the same command on each:

    ctrpipe elastic-run --nodes 2:4 --rendezvous host-0:7100 --access access -- python train.py

    On Kubernetes:

    ctrpipe elastic-run --nodes 2:4 --on-cluster cluster.yaml --upload train.py -- python train.py
    """
    from ctr_pipeline.config import load_kubernetes
    from ctr_pipeline.distributed.coordination.rendezvous import RendezvousTimes
    from ctr_pipeline.distributed.elastic.agent import Agent, AgentSettings
    from ctr_pipeline.distributed.elastic.client import RendezvousClient
    from ctr_pipeline.distributed.elastic.local_nodes import (
        free_addresses,
        local_host,
        parse_address,
        parse_nodes,
        run_agents,
    )
    from ctr_pipeline.distributed.elastic.script import rendezvous_environment
    from ctr_pipeline.distributed.elastic.secrets import load_access
    from ctr_pipeline.distributed.elastic.service import RendezvousServer
    from ctr_pipeline.distributed.rpc.access import Access

    if on_cluster is not None:
        if standalone or any(one is not None for one in (rendezvous, access, address, ledger)):
            raise CtrPipelineError(
                "--on-cluster has a rendezvous and addresses of its own",
                remedy="Leave out --standalone, --rendezvous, --access, --address and --ledger",
            )
        return _submit(
            session,
            load_kubernetes(on_cluster, overrides or ()),
            on_cluster,
            script,
            parse_nodes(nodes),
            name=name,
            uploads=uploads or (),
            agent_options=[
                *("--monitor-interval", str(monitor_interval), "--max-restarts", str(max_restarts)),
                *("--join-timeout", str(join_timeout or _FOR_EVER_SECONDS)),
                *("--exit-timeout", str(exit_timeout), "--grace", str(grace)),
            ],
        )
    if overrides or uploads:
        raise CtrPipelineError(
            "--set and --upload are for pods", remedy="Give --on-cluster, or leave them out"
        )
    settings = AgentSettings(
        nodes=parse_nodes(nodes),
        max_restarts=max_restarts,
        monitor_seconds=monitor_interval,
        join_seconds=join_timeout or _JOIN_SECONDS,
        grace_seconds=grace,
        exit_seconds=exit_timeout,
    )
    own = session.preset_variables
    environment = {name: value for name, value in os.environ.items() if name not in own}

    def report(line: str) -> None:
        if not session.quiet:
            typer.echo(f"elastic-run: {line}", err=True)

    with ExitStack() as stack:
        if standalone:
            if rendezvous is not None or access is not None or address is not None:
                raise CtrPipelineError(
                    "--standalone has a rendezvous and addresses of its own",
                    remedy="Leave out --rendezvous, --access and --address, or --standalone",
                )
            access = Path(stack.enter_context(TemporaryDirectory(prefix="ctrpipe-access-")))
            secrets = Access.create(access, tls=False)
            server = RendezvousServer("127.0.0.1:0", secrets, RendezvousTimes(), ledger=ledger)
            place = stack.enter_context(server).address
            addresses = free_addresses("127.0.0.1", settings.nodes.most)
        else:
            if rendezvous is None or access is None:
                raise CtrPipelineError(
                    "--rendezvous and --access are needed, or --standalone",
                    remedy="'ctrpipe elastic-rendezvous --help' shows how to start a rendezvous",
                )
            if ledger is not None:
                raise CtrPipelineError(
                    "--ledger is kept by the rendezvous",
                    remedy="Name it to 'ctrpipe elastic-rendezvous'",
                )
            place = parse_address("--rendezvous", rendezvous)
            secrets = load_access(access, "worker")
            addresses = (
                free_addresses(local_host(place), 1)
                if address is None
                else [parse_address("--address", address)]
            )
        environment |= rendezvous_environment(place, access)
        agents = [
            Agent(
                RendezvousClient(place, one, secrets),
                script,
                settings,
                environment=environment,
                report=report,
            )
            for one in addresses
        ]
        return run_agents(agents, least=settings.nodes.least if standalone else 1)


def _submit(
    session: CommandSession,
    options: "KubernetesConfig",
    path: Path,
    script: list[str],
    nodes: "NodeRange",
    *,
    name: str,
    uploads: Sequence[Path],
    agent_options: Sequence[str],
) -> int:
    from ctr_pipeline.apps.cluster.elastic_nodes import submit_nodes

    job = submit_nodes(
        options,
        path,
        script,
        nodes,
        name=name,
        agent_options=agent_options,
        uploads=uploads,
        progress=session.progress,
    )
    typer.echo(describe_submission(f"k8s:{job.namespace}/{job.name}", followed="all"))
    return 0
