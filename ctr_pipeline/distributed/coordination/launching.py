"""The interface to whatever starts and stops processes: this machine, or a cluster."""

from dataclasses import dataclass
from typing import Literal, Protocol

from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.errors import CtrPipelineError

ExitReason = Literal[
    "completed", "error", "out_of_memory", "killed", "evicted", "node_lost", "not_started"
]


class LauncherBusyError(CtrPipelineError):
    """The launcher cannot do it now; asked again later it may."""


class CannotLaunchError(CtrPipelineError):
    """The launcher can never do it, however often it is asked."""


@dataclass(frozen=True)
class ProcessState:
    """One process as its launcher sees it.

    Attributes:
        incarnation: Name of this start of it.
        pid: Process, or 0 where there is none to name.
        running: It has not ended.
        exit_code: Known once it has ended; negative: minus the signal.
        traceback: The last lines that an ended one wrote, for a person.
        restarts: Starts of this member before this one.
    """

    role: Role
    index: int
    incarnation: str
    pid: int
    running: bool
    exit_code: int | None
    reason: ExitReason | None
    traceback: str
    restarts: int


class Launcher(Protocol):
    """Starts, stops and watches members; level-triggered: asking twice changes nothing."""

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs.

        Raises:
            LauncherBusyError: It could not be started now.
            CannotLaunchError: It can never be started.
        """

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one process to end, kills it after the grace; 0 kills at once.

        Another process that fills the place by now is left alone.
        """

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started."""
