"""What the master and the launcher say to each other."""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.messages import Role

SERVICE = "LauncherService"

BUSY = "busy"
"""Code of a refusal: `LauncherBusyError`."""

CANNOT_LAUNCH = "cannot_launch"
"""Code of a refusal: `CannotLaunchError`."""


@dataclass(frozen=True)
class StartMember:
    """Start it unless it runs."""

    role: Role
    index: int


@dataclass(frozen=True)
class StopMember:
    """Ask that process to end, kill it after the grace; 0 kills at once."""

    role: Role
    index: int
    incarnation: str
    grace_seconds: float


@dataclass(frozen=True)
class Observed:
    """The newest process of every member that was ever started."""

    processes: tuple[ProcessState, ...]
