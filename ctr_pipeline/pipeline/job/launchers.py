"""Opens the launcher that `runtime.mode` names, with the command lines of the members it starts.

`specs.launchers` lists those that there are.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline.config.models import Config, RuntimeConfig
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.specs.launchers import LAUNCHERS, LauncherKind, load_code

if TYPE_CHECKING:
    from ctr_pipeline.distributed.coordination.launching import (
        Launcher,
        LauncherContext,
        MemberStart,
    )
    from ctr_pipeline.distributed.rpc.access import Access


@dataclass
class WorkerPhase:
    """What workers do that are started from now on.

    Attributes:
        units: They work on units that a process gives, which has announced itself in this folder;
            None: they train.
    """

    units: Path | None = None


@dataclass(frozen=True)
class CommandLines:
    """The `MemberCommands` of a job: each member is a subcommand of this program.

    Attributes:
        config: The config that members read.
        launcher_address: `host:port` of the launcher, for the master.
        phase: What workers do that are started from now on.
        bind_host: Address that members listen on.
        with_fork_server: Workers are forked from a process that has TensorFlow loaded.
    """

    config: Path
    launcher_address: str
    phase: WorkerPhase
    bind_host: str = "127.0.0.1"
    with_fork_server: bool = True

    def member(self, start: "MemberStart") -> Sequence[str]:
        """Arguments of `python` for a member."""
        return ["-m", "ctr_pipeline", *self.from_fork_server(start)]

    def fork_server(self) -> Sequence[str] | None:
        """Arguments of `python` for a fork server of workers."""
        return ["-m", "ctr_pipeline.cli.fork_server"] if self.with_fork_server else None

    def from_fork_server(self, start: "MemberStart") -> Sequence[str]:
        """Arguments of the command line."""
        command = [start.role, "--config", str(self.config)]
        bind = ["--bind", f"{self.bind_host}:0"]
        if start.role == "master":
            return [*command, "--launcher", self.launcher_address, *bind]
        command += ["--index", str(start.index), "--incarnation", start.incarnation]
        if self.phase.units is not None:
            return [*command, "--units", str(self.phase.units)]
        return [*command, *(bind if start.role == "ps" else ["--metrics-host", self.bind_host])]


def series_of_drivers(runtime: RuntimeConfig) -> str:
    """Names the drivers that lead a job one after the other; empty where there is only one.

    Raises:
        CtrPipelineError: This is one of them, and those before it failed again and again.
    """
    kind = LAUNCHERS.get(runtime.mode)
    if kind is None or kind.series_of_drivers is None:
        return ""
    series: str = load_code(kind.series_of_drivers)()
    return series


@contextmanager
def launch(
    config: Config,
    folder: RunFolder,
    access: "Access",
    *,
    phase: WorkerPhase | None = None,
) -> "Iterator[Launcher]":
    """The launcher that a config asks for, which the master can reach; ends all members at last.

    Args:
        config: Its mode is one with members.
        folder: Folder of the job.
        access: Secrets of its members.
        phase: What its workers do, now and after a change; None: they train.
    """
    from ctr_pipeline.distributed.coordination.launching import LauncherContext
    from ctr_pipeline.distributed.launchers.remote import LauncherService

    kind, phase = LAUNCHERS[config.runtime.mode], phase or WorkerPhase()
    # Closed last, so that a master which takes its leave does not find its launcher gone.
    with closing(LauncherService(access, kind.bind_host)) as service:
        context = LauncherContext(
            commands=CommandLines(
                folder.config,
                launcher_address=service.address,
                phase=phase,
                bind_host=kind.bind_host,
                # It loads TensorFlow, which nobody needs who prepares, and forks on this host.
                with_fork_server=phase.units is None and not kind.spans_hosts,
            ),
            logs_folder=folder.logs,
            environment=_environment(access),
            options=kind.section and getattr(config, kind.section),
            server_grace_seconds=config.runtime.termination_grace_seconds,
        )
        with open_launcher(kind, context) as launcher:
            service.serve(launcher)
            yield launcher


def open_launcher(kind: LauncherKind, context: "LauncherContext") -> "Launcher":
    """Imports the code of a launcher and constructs it."""
    launcher: Launcher = load_code(kind.code)(context)
    return launcher


def _environment(access: "Access") -> Mapping[str, str]:
    if access.tls is None or os.environ.get("GRPC_VERBOSITY", "NONE") != "NONE":
        return {}
    # Only in its own log, and at this level, does gRPC tell of a certificate that it refused.
    return {"GRPC_VERBOSITY": "INFO"}
