"""How the master uses a launcher, which is in another process and may be on another machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.events import StartMember, StopMember
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    MemberControl,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.messages import Empty, Role
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import reachable_address
from ctr_pipeline.distributed.rpc.failures import CallRefused, Refusal
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

_SERVICE = "LauncherService"
_BUSY = "busy"
_CANNOT_LAUNCH = "cannot_launch"
_DEADLINE_SECONDS = 5.0
_CHANGE_SECONDS = 20.0
"""Longer than a launcher waits for whoever it asks, such as an API server that hangs."""
_NUM_THREADS = 12
"""A master changes several members at once, and looks at all of them."""
_CALLS_A_CONNECTION = 2048
"""There is one caller, which starts a hundred members a second."""


@dataclass(frozen=True)
class Observed:
    """The newest process of every member that was ever started."""

    processes: tuple[ProcessState, ...]


class RemoteLauncher:
    """The launcher of a job, as its master has it.

    Its methods raise `PeerUnavailable` where nobody answers; asking again does no harm.

    Args:
        access: Secrets of the job.

    Attributes:
        address: `host:port` where it is served.
    """

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self._client = RpcClient(_SERVICE, address, access)

    def start(self, role: Role, index: int) -> None:
        """Starts a member unless it runs."""
        self._change("Start", StartMember(role, index))

    def stop(self, role: Role, index: int, incarnation: str, *, grace_seconds: float) -> None:
        """Asks one process to end, kills it after the grace; returns at once."""
        self._change("Stop", StopMember(role, index, incarnation, grace_seconds))

    def observe(self) -> tuple[ProcessState, ...]:
        """The newest process of every member that was ever started."""
        found = self._client.call("Observe", Empty(), Observed, deadline_seconds=_DEADLINE_SECONDS)
        return found.processes

    def _change(self, method: str, message: StartMember | StopMember) -> None:
        try:
            self._client.call(method, message, Empty, deadline_seconds=_CHANGE_SECONDS)
        except CallRefused as error:
            if error.code == _BUSY:
                raise LauncherBusyError(error.message) from error
            if error.code == _CANNOT_LAUNCH:
                raise CannotLaunchError(error.message) from error
            raise

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class LauncherService:
    """Serves a launcher to the master of its job.

    It has an address before there is a launcher, whose master is called with it.

    Args:
        access: Secrets of the job.
        host: Address to listen on.
    """

    def __init__(self, access: Access, host: str) -> None:
        self._launcher: MemberControl | None = None
        methods = (
            Method("Start", StartMember, Empty, self._start, callers=("master",)),
            Method("Stop", StopMember, Empty, self._stop, callers=("master",)),
            Method("Observe", Empty, Observed, self._observe, callers=("master",)),
        )
        self._server = RpcServer(
            _SERVICE,
            methods,
            address=f"{host}:0",
            access=access,
            num_threads=_NUM_THREADS,
            calls_a_connection=_CALLS_A_CONNECTION,
        )
        self.address = reachable_address(self._server.start())

    def serve(self, launcher: MemberControl) -> None:
        """Answers calls from now on."""
        self._launcher = launcher

    def close(self) -> None:
        """Answers no more."""
        self._server.stop(0)

    def _start(self, request: StartMember) -> Empty:
        _check(request)
        with _refusing():
            self._served().start(request.role, request.index)
        return Empty()

    def _stop(self, request: StopMember) -> Empty:
        _check(request)
        with _refusing():
            self._served().stop(
                request.role,
                request.index,
                request.incarnation,
                grace_seconds=request.grace_seconds,
            )
        return Empty()

    def _observe(self, _: Empty) -> Observed:
        return Observed(self._served().observe())

    def _served(self) -> MemberControl:
        if self._launcher is None:
            raise Refusal(_BUSY, "the launcher is not open yet")
        return self._launcher


@contextmanager
def _refusing() -> Iterator[None]:
    """What a launcher cannot do now, or never, is a refusal for the master."""
    try:
        yield
    except LauncherBusyError as error:
        raise Refusal(_BUSY, str(error)) from error
    except CannotLaunchError as error:
        raise Refusal(_CANNOT_LAUNCH, str(error)) from error


def _check(request: StartMember | StopMember) -> None:
    if request.role == "master" or request.index < 0:
        raise Refusal("no_such_member", f"{request.role}-{request.index} is not the master's")
