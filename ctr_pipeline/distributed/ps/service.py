"""What a parameter server offers to the members of its job."""

from collections.abc import Callable

from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    RestoreReply,
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.packed import (
    DenseReply,
    DenseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
)
from ctr_pipeline.distributed.rpc.server import Method

SERVICE = "PsService"


def ps_methods(core: PsCore, shut_down: Callable[[], None]) -> tuple[Method, ...]:
    """The methods of `PsService`.

    Args:
        core: Of the server.
        shut_down: Ends the process soon; returns at once.
    """

    def end(_: Empty) -> Empty:
        shut_down()
        return Empty()

    return (
        Method("Pull", PullRequest, PullReply, core.pull, callers=("worker",)),
        Method("Push", PushRequest, PushReply, core.push, callers=("worker",)),
        Method("InitDense", DenseRequest, DenseReply, core.init_dense, callers=("worker",)),
        Method("Snapshot", SnapshotRequest, SnapshotReply, core.snapshot, callers=("master",)),
        Method("Restore", RestoreRequest, RestoreReply, core.restore, callers=("master",)),
        Method("Shutdown", Empty, Empty, end, callers=("master",)),
    )
