"""Opens the launcher that `runtime.mode` names; `specs.launchers` lists those that there are."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from ctr_pipeline.config.models import Config, RuntimeConfig
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.specs.launchers import LAUNCHERS, LauncherKind, load_class

if TYPE_CHECKING:
    from ctr_pipeline.distributed.coordination.launching import Launcher, LauncherContext
    from ctr_pipeline.distributed.rpc.access import Access


def has_members(runtime: RuntimeConfig) -> bool:
    """Whether a master, parameter servers and workers train, not this process."""
    return runtime.mode in LAUNCHERS and runtime.strategy == "parameter_servers"


def has_replicas(runtime: RuntimeConfig) -> bool:
    """Whether workers that each hold all parameters train, not this process."""
    return runtime.mode in LAUNCHERS and runtime.strategy == "allreduce"


def needs_tls(runtime: RuntimeConfig) -> bool:
    """Whether members that a launcher starts talk by TLS."""
    spans_hosts = LAUNCHERS[runtime.mode].spans_hosts
    return runtime.tls == "always" or (runtime.tls == "auto" and spans_hosts)


@contextmanager
def launch(
    config: Config, folder: RunFolder, access: "Access", *, encodes: bool = False
) -> "Iterator[Launcher]":
    """The launcher that a config asks for, which the master can reach; ends all members at last.

    Args:
        config: Its mode is one with members.
        folder: Folder of the job.
        access: Secrets of its members.
        encodes: Its workers encode rows, and there are no other members.
    """
    from ctr_pipeline.distributed.coordination.launching import LauncherContext
    from ctr_pipeline.distributed.launchers.remote import LauncherService
    from ctr_pipeline.pipeline.job import members

    kind = LAUNCHERS[config.runtime.mode]
    # Closed last, so that a master which takes its leave does not find its launcher gone.
    with closing(LauncherService(access, kind.bind_host)) as service:
        context = LauncherContext(
            commands=members.CommandLines(
                folder.config,
                launcher_address=service.address,
                bind_host=kind.bind_host,
                # It loads TensorFlow, which those that encode do without, and forks on this host.
                with_fork_server=not (encodes or kind.spans_hosts),
                encodes=encodes,
            ),
            logs_folder=folder.logs,
            environment=_environment(access),
            options=kind.section and getattr(config, kind.section),
        )
        with open_launcher(kind, context) as launcher:
            service.serve(launcher)
            yield launcher


def open_launcher(kind: LauncherKind, context: "LauncherContext") -> "Launcher":
    """Imports the code of a launcher and constructs it."""
    launcher: Launcher = load_class(kind.code)(context)
    return launcher


def _environment(access: "Access") -> Mapping[str, str]:
    if access.tls is None or os.environ.get("GRPC_VERBOSITY", "NONE") != "NONE":
        return {}
    # Only in its own log, and at this level, does gRPC tell of a certificate that it refused.
    return {"GRPC_VERBOSITY": "INFO"}
