"""What a parameter server offers to the members of its job."""

from collections.abc import Callable, Iterator

from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    ReadRowsRequest,
    RestoreReply,
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.packed import DenseRequest, PullRequest, PushRequest
from ctr_pipeline.distributed.rpc.server import Method

SERVICE = "PsService"


def ps_methods(core: PsCore, shut_down: Callable[[], None]) -> tuple[Method, ...]:
    """The methods of `PsService`.

    Args:
        core: Of the server.
        shut_down: Ends the process soon; returns at once.
    """

    def pull(data: bytes) -> bytes:
        return core.pull(PullRequest.decode(data)).encode()

    def push(data: bytes) -> bytes:
        return core.push(PushRequest.decode(data)).encode()

    def init_dense(data: bytes) -> bytes:
        return core.init_dense(DenseRequest.decode(data)).encode()

    def read_rows(request: ReadRowsRequest) -> Iterator[bytes]:
        return (part.encode() for part in core.read_rows(request))

    def end(_: Empty) -> Empty:
        shut_down()
        return Empty()

    return (
        Method("Pull", None, None, pull),
        Method("Push", None, None, push),
        Method("InitDense", None, None, init_dense),
        Method("ReadRows", ReadRowsRequest, None, read_rows, streams=True),
        Method("Snapshot", SnapshotRequest, SnapshotReply, core.snapshot),
        Method("Restore", RestoreRequest, RestoreReply, core.restore),
        Method("Shutdown", Empty, Empty, end),
    )
