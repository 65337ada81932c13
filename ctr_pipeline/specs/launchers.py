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
        spans_hosts: Members may run on other machines than the launcher. They then listen on all
            addresses of their hosts, and talk by TLS.
        section: Section of the config with its options; None: it has none.
    """

    mode: str
    code: str
    summary: str
    spans_hosts: bool = False
    section: str | None = None

    @property
    def bind_host(self) -> str:
        """The address that the launcher and its members listen on."""
        return "0.0.0.0" if self.spans_hosts else "127.0.0.1"  # noqa: S104  members prove who they are


def load_class(reference: str) -> Any:
    """Imports the class that `module:class` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


_ALL = (
    LauncherKind(
        "processes",
        "ctr_pipeline.distributed.launchers.processes.launcher:ProcessLauncher",
        "a master, parameter servers and workers are processes of this machine",
    ),
    LauncherKind(
        "kubernetes",
        "ctr_pipeline.distributed.launchers.kubernetes.launcher:KubernetesLauncher",
        "they are pods of a cluster, where ctrpipe submit starts them",
        spans_hosts=True,
        section="kubernetes",
    ),
)

LAUNCHERS: Mapping[str, LauncherKind] = {kind.mode: kind for kind in _ALL}
"""The launchers by mode."""

DEFAULT_MODE = _ALL[0].mode
"""The mode of a config that asks for members and names none."""

MODES_WITH_MEMBERS = " or ".join(LAUNCHERS)
"""For messages, after `runtime.mode:`."""
