"""The launchers that there are, one for each `runtime.mode` with members.

A launcher starts and stops the members of a job: master, parameter servers and workers. What the
config, the resumption of a run and the members' command lines have to know of one stands here; its
code is imported when a job starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class LauncherKind:
    """One launcher, as it is registered.

    Attributes:
        mode: Its name in `runtime.mode`.
        code: `module:class` of a `distributed.coordination.launching.Launcher`.
        summary: What it starts members as; follows the mode in the config's documentation.
        max_workers_starting: Workers that a master starts at a time.
        spans_hosts: Members may run on other machines than the launcher. They then listen on all
            addresses of their hosts, and talk by TLS.
        section: Section of the config with its options; None: it has none.
        server_memory: Key of the config with the memory of a parameter server, and
            `module:function` that makes bytes of its value; None: a server has that of its host.
        queue_key: Key of the config with the queue in which members wait for quota, if it is set;
            None: there are no queues.
        series_of_drivers: `module:function` that names the processes of which each goes on with
            the job of the one before, if this is one of them, and refuses where that is of no
            use; None: nobody starts another.
    """

    mode: str
    code: str
    summary: str
    max_workers_starting: int
    spans_hosts: bool = False
    section: str | None = None
    server_memory: tuple[str, str] | None = None
    queue_key: str | None = None
    series_of_drivers: str | None = None

    @property
    def bind_host(self) -> str:
        """The address that the launcher and its members listen on."""
        return "0.0.0.0" if self.spans_hosts else "127.0.0.1"  # noqa: S104  members prove who they are


def load_code(reference: str) -> Any:
    """Imports the class or function that `module:name` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


_ALL = (
    LauncherKind(
        "processes",
        "ctr_pipeline.distributed.launchers.processes.launcher:ProcessLauncher",
        "a master, parameter servers and workers are processes of this machine",
        # Each costs seconds of several cores.
        max_workers_starting=4,
    ),
    LauncherKind(
        "kubernetes",
        "ctr_pipeline.distributed.launchers.kubernetes.launcher:KubernetesLauncher",
        "they are pods of a cluster, where ctrpipe submit starts them",
        # Nodes start theirs side by side, and the cluster keeps those that find no node yet.
        max_workers_starting=1000,
        spans_hosts=True,
        section="kubernetes",
        server_memory=(
            "kubernetes.parameter_servers.memory",
            "ctr_pipeline.distributed.launchers.kubernetes.api:parse_quantity",
        ),
        queue_key="kubernetes.queue",
        series_of_drivers="ctr_pipeline.distributed.launchers.kubernetes.drivers:enter_series",
    ),
)

LAUNCHERS: Mapping[str, LauncherKind] = {kind.mode: kind for kind in _ALL}
"""The launchers by mode."""

DEFAULT_MODE = _ALL[0].mode
"""The mode of a config that asks for members and names none."""

MODES_WITH_MEMBERS = " or ".join(LAUNCHERS)
"""Modes with members, for messages, after `runtime.mode:`."""
