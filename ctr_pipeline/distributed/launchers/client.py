"""The launcher as the master sees it."""

from ctr_pipeline.distributed.coordination.events import StartMember, StopMember
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.messages import Empty, Role
from ctr_pipeline.distributed.launchers.messages import (
    BUSY,
    CANNOT_LAUNCH,
    SERVICE,
    Observed,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused

_DEADLINE_SECONDS = 5.0


class RemoteLauncher:
    """A `Launcher` that asks the one in another process.

    Its methods raise `PeerUnavailable` where nobody answers; asking again does no harm.

    Args:
        access: Secrets of the job.
    """

    def __init__(self, address: str, access: Access) -> None:
        self._client = RpcClient(SERVICE, address, access)

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs."""
        message = StartMember(role, index)
        try:
            self._client.call("Start", message, Empty, deadline_seconds=_DEADLINE_SECONDS)
        except CallRefused as error:
            if error.code == BUSY:
                raise LauncherBusyError(error.message) from error
            if error.code == CANNOT_LAUNCH:
                raise CannotLaunchError(error.message) from error
            raise

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one process to end, kills it after the grace; returns at once."""
        message = StopMember(role, index, incarnation, grace_seconds)
        self._client.call("Stop", message, Empty, deadline_seconds=_DEADLINE_SECONDS)

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started."""
        found = self._client.call("Observe", Empty(), Observed, deadline_seconds=_DEADLINE_SECONDS)
        return found.processes

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()
