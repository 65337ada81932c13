"""The launcher's service, for the master."""

from ctr_pipeline.distributed.coordination.events import StartMember, StopMember
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    Launcher,
    LauncherBusyError,
)
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.launchers.messages import (
    BUSY,
    CANNOT_LAUNCH,
    SERVICE,
    Observed,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.server import Method, RpcServer


def serve_launcher(launcher: Launcher, access: Access) -> RpcServer:
    """A server, not started yet, that lets the master use `launcher`; on the loopback device."""

    def start(request: StartMember) -> Empty:
        _check(request)
        try:
            launcher.start(request.role, request.index)
        except LauncherBusyError as error:
            raise Refusal(BUSY, str(error)) from error
        except CannotLaunchError as error:
            raise Refusal(CANNOT_LAUNCH, str(error)) from error
        return Empty()

    def stop(request: StopMember) -> Empty:
        _check(request)
        launcher.stop(
            request.role,
            request.index,
            request.incarnation,
            grace_seconds=request.grace_seconds,
        )
        return Empty()

    def observe(_: Empty) -> Observed:
        return Observed(launcher.observe())

    methods = (
        Method("Start", StartMember, Empty, start, callers=("master",)),
        Method("Stop", StopMember, Empty, stop, callers=("master",)),
        Method("Observe", Empty, Observed, observe, callers=("master",)),
    )
    return RpcServer(SERVICE, methods, address="127.0.0.1:0", access=access, num_threads=4)


def _check(request: StartMember | StopMember) -> None:
    if request.role == "master" or request.index < 0:
        raise Refusal("no_such_member", f"{request.role}-{request.index} is not the master's")
