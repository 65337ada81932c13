"""The launcher as the master sees it."""

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.coordination.messages import Empty, Role
from ctr_pipeline.distributed.local.messages import SERVICE, Observed, StartMember, StopMember
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient

_DEADLINE_SECONDS = 5.0


class RemoteLauncher:
    """A `Launcher` that asks the one in another process.

    Its methods raise `PeerUnavailable` where nobody answers; asking again does no harm.

    Args:
        address: Of its service.
        access: Secrets of the job.
    """

    def __init__(self, address: str, access: Access) -> None:
        self._client = RpcClient(SERVICE, address, access)

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs."""
        self._client.call(
            "Start", StartMember(role, index), Empty, deadline_seconds=_DEADLINE_SECONDS
        )

    def stop(self, role: Role, index: int, *, grace_seconds: float) -> None:
        """Asks it to end, kills it after the grace; returns at once."""
        message = StopMember(role, index, grace_seconds)
        self._client.call("Stop", message, Empty, deadline_seconds=_DEADLINE_SECONDS)

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started."""
        found = self._client.call("Observe", Empty(), Observed, deadline_seconds=_DEADLINE_SECONDS)
        return found.processes

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()
