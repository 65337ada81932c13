"""What a parameter server offers to the members of its job."""

import logging
from collections.abc import Callable

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    HoldReply,
    MovedRowsRequest,
    MoveReply,
    MoveRequest,
    PlacementReply,
    PlacementRequest,
    RestoreReply,
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable, Refusal
from ctr_pipeline.distributed.rpc.packed import (
    DenseReply,
    DenseRequest,
    MovedRows,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
)
from ctr_pipeline.distributed.rpc.server import Method
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_MOVE_CALL_SECONDS = 10.0

SERVICE = "PsService"


class RemoteSource:
    """Another server, that partitions move away from.

    Args:
        client: To it.
    """

    def __init__(self, client: RpcClient) -> None:
        self._client = client

    def show_rows(self, request: MovedRowsRequest) -> MovedRows:
        """Some rows."""
        return MovedRows.decode(self._bytes("ShowRows", request))

    def hold(self, request: MoveRequest) -> HoldReply:
        """Makes it answer nobody from now on."""
        return self._client.call("Hold", request, HoldReply, deadline_seconds=_MOVE_CALL_SECONDS)

    def show_dense(self, request: MoveRequest) -> MovedRows:
        """The source's dense range."""
        return MovedRows.decode(self._bytes("ShowDense", request))

    def _bytes(self, method: str, message: object) -> bytes:
        return self._client.call_bytes(method, encode(message), deadline_seconds=_MOVE_CALL_SECONDS)


def ps_methods(
    core: PsCore, shut_down: Callable[[], None], connect: Callable[[str], RpcClient]
) -> tuple[Method, ...]:
    """The methods of `PsService`.

    Args:
        shut_down: Ends the process soon; returns at once.
        connect: Makes a connection to another server.
    """

    def take_over(request: MoveRequest) -> MoveReply:
        client = connect(request.source)
        try:
            return core.moves.take_over(request, RemoteSource(client))
        except (CtrPipelineError, PeerUnavailable, CallRefused, Refusal) as error:
            _LOGGER.warning("partitions do not move here: %s", error)
            return MoveReply(str(error), 0, 0)
        finally:
            client.close()

    def place(request: PlacementRequest) -> PlacementReply:
        core.moves.place(request)
        return PlacementReply(core.moves.longest_hold_seconds)

    def drop_foreign_rows(_: Empty) -> Empty:
        with core.serving.cutting:
            core.moves.drop_foreign_rows()
        return Empty()

    def end(_: Empty) -> Empty:
        shut_down()
        return Empty()

    return (
        Method("Pull", PullRequest, PullReply, core.updates.pull, callers=("worker",)),
        Method("Push", PushRequest, PushReply, core.updates.push, callers=("worker",)),
        Method("InitDense", DenseRequest, DenseReply, core.updates.init_dense, callers=("worker",)),
        Method(
            "Snapshot",
            SnapshotRequest,
            SnapshotReply,
            core.checkpoints.snapshot,
            callers=("master",),
        ),
        Method(
            "Restore", RestoreRequest, RestoreReply, core.checkpoints.restore, callers=("master",)
        ),
        Method("Placement", Empty, Placement, lambda _: core.state.placement, callers=("worker",)),
        Method("TakeOver", MoveRequest, MoveReply, take_over, callers=("master",)),
        Method("ShowRows", MovedRowsRequest, MovedRows, core.moves.show_rows, callers=("ps",)),
        Method("Hold", MoveRequest, HoldReply, core.moves.hold, callers=("ps",)),
        Method("ShowDense", MoveRequest, MovedRows, core.moves.show_dense, callers=("ps",)),
        Method("Place", PlacementRequest, PlacementReply, place, callers=("master",)),
        Method("DropForeignRows", Empty, Empty, drop_foreign_rows, callers=("master",)),
        Method("Shutdown", Empty, Empty, end, callers=("master",)),
    )
