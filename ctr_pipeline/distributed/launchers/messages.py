"""What the master and the launcher say to each other, beside `StartMember` and `StopMember`."""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.launching import ProcessState

SERVICE = "LauncherService"

BUSY = "busy"
"""Code of a refusal: `LauncherBusyError`."""

CANNOT_LAUNCH = "cannot_launch"
"""Code of a refusal: `CannotLaunchError`."""


@dataclass(frozen=True)
class Observed:
    """The newest process of every member that was ever started."""

    processes: tuple[ProcessState, ...]
