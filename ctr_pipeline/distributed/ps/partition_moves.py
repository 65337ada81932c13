"""Moves of partitions from and to a server, while it serves the others."""

import numpy as np

from ctr_pipeline.distributed.coordination.messages import (
    HoldReply,
    MovedRowsRequest,
    MoveReply,
    MoveRequest,
    PlacementRequest,
)
from ctr_pipeline.distributed.ps.moving import Arrived, MoveSource, Outgoing
from ctr_pipeline.distributed.ps.serving import Serving
from ctr_pipeline.distributed.ps.updates import Updates
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.packed import MovedRows, Status

# A source holds when so few keys are left that have changed; or after so many answers, as its
# updates may outrun what is copied.
_FEW_CHANGED = 1 << 12
_MOST_ROUNDS = 64


class PartitionMoves:
    """Gives partitions to other servers, and takes them over.

    Attributes:
        num_begun: Moves that this server has begun to take part in.
        longest_hold_seconds: For how long updates waited for a move, at most.
    """

    def __init__(self, serving: Serving, updates: Updates) -> None:
        self.num_begun = 0
        self.longest_hold_seconds = 0.0
        self._serving = serving
        self._state = serving.state
        self._updates = updates
        self._incoming: MoveRequest | None = None
        self._arrived: Arrived | None = None
        self._held_since = 0.0

    @property
    def takes_part(self) -> bool:
        """Whether partitions move to or from here; needs no lock."""
        return self._incoming is not None or self._state.outgoing is not None

    def take_over(self, request: MoveRequest, source: MoveSource) -> MoveReply:
        """Copies partitions of another server while that goes on, until it holds.

        What is copied is served once `place` says so.

        Args:
            source: Where it is.

        Raises:
            CtrPipelineError: The source does not answer, or there is no room.
        """
        with self._serving.cutting:
            with self._serving.lock:
                refused = self._refuse_move(request)
                if refused:
                    return MoveReply(refused, 0, 0)
                if self._incoming == request and self._arrived is not None:
                    # The answer was lost, and the source holds.
                    return MoveReply("", 0, 0)
                self.num_begun += 1
                self._incoming, self._arrived = request, None
            self.drop_foreign_rows()
            if self._state.has_foreign_rows:
                return MoveReply("rows of an earlier move are left", 0, 0)
            num_rows = num_changed = rounds = next_row = 0
            while next_row >= 0:
                moved = source.show_rows(MovedRowsRequest(request, next_row))
                next_row = moved.next_row
                num_rows += self._put(request, moved)
            while moved.num_left > _FEW_CHANGED and rounds < _MOST_ROUNDS:
                moved = source.show_rows(MovedRowsRequest(request, -1))
                num_changed += self._put(request, moved)
                rounds += 1
            state = source.hold(request)
            if state.refused:
                return MoveReply(state.refused, 0, 0)
            while True:
                moved = source.show_rows(MovedRowsRequest(request, -1))
                num_changed += self._put(request, moved)
                if not moved.num_left:
                    break
            dense = None
            if request.takes_dense:
                dense = source.show_dense(request).records.reshape(-1)
            with self._serving.lock:
                if self._incoming != request:
                    return MoveReply("the move is void", 0, 0)
                self._arrived = Arrived(state, dense)
            return MoveReply("", num_rows, num_changed)

    def show_rows(self, request: MovedRowsRequest) -> MovedRows:
        """Some rows that are to move away; the first call begins to note what changes.

        Raises:
            Refusal: There is no such move.
        """
        with self._serving.lock:
            if request.first_row == 0:
                refused = self._refuse_move(request.move)
                before = self._state.outgoing
                if before is not None and before.is_held and before.move == request.move:
                    refused = "it holds for this move already"
                if refused:
                    raise Refusal("move", refused)
                self.num_begun += 1
                self._state.begin_outgoing(request.move)
            store = self._state.store
            rows = None if store is None else store.rows
            return self._outgoing(request.move).show_rows(rows, request.first_row)

    def hold(self, request: MoveRequest) -> HoldReply:
        """Answers nobody from now on, until `place` says what became of the move.

        Raises:
            Refusal: There is no such move.
        """
        with self._serving.lock:
            outgoing = self._outgoing(request)
            if not self._state.has_dense:
                return HoldReply("nobody gave the dense values yet", 0, (), (), ())
            if not outgoing.is_held:
                outgoing.is_held = True
                self._held_since = self._serving.clock()
            self._updates.withdraw_all(Status.MOVED)
            applied = self._state.applied
            return HoldReply(
                "", applied.epoch, applied.to_messages(), applied.attempts, applied.units.pieces
            )

    def show_dense(self, request: MoveRequest) -> MovedRows:
        """The dense range as it is while this server holds.

        Raises:
            Refusal: There is no such move.
        """
        with self._serving.lock:
            if not self._outgoing(request).is_held:
                raise Refusal("move", "nothing is held")
            records = self._state.dense_records()
        return MovedRows(-1, 0, np.zeros(1, np.int64), records[None])

    def place(self, request: PlacementRequest, num_begun: int | None = None) -> None:
        """Holds what a durable placement says; moves other than the one named are void.

        Args:
            request: The placement.
            num_begun: `num_begun` when it was asked for: what was decided before a move began
                says nothing of it. None: it was not asked for.
        """
        with self._serving.lock:
            if num_begun not in {None, self.num_begun}:
                return
            if self._begins_empty(request):
                self._serving.announced = request.generation
                self._updates.begin_generation()
                self._state.begin_empty(request.placement)
                self._serving.generation = request.generation
                self._serving.moved_at = request.placement.version
            elif request.generation == self._serving.generation:
                self._settle_move(request)

    def drop_foreign_rows(self) -> None:
        """Frees what moves have left behind; `cutting` is held.

        A part at a time, so that nobody waits for long. A move away from here ends it, as that move
        looks at rows in their order; what is left is dropped after it.
        """
        end: int | None = None
        placement = self._state.placement
        while self._state.has_foreign_rows:
            # Rows are only added meanwhile, and those are this server's own.
            first, rows_U = self._state.find_foreign_rows(end)
            with self._serving.lock:
                if self._state.outgoing is not None or self._state.placement is not placement:
                    return
                with self._serving.all_or_end():
                    if len(rows_U) and not self._state.take_rows_out(rows_U):
                        continue
                    end = first
                    if not first:
                        self._state.forget_foreign_rows()

    def _begins_empty(self, request: PlacementRequest) -> bool:
        low, high = request.placement.range_of(self._serving.index)
        has_nothing = not request.placement.partitions_of(self._serving.index) and low == high
        return has_nothing and request.generation > self._serving.announced

    def _settle_move(self, request: PlacementRequest) -> None:
        placement, outgoing = request.placement, self._state.outgoing
        if placement.version > self._state.placement.version:
            gained = set(placement.partitions_of(self._serving.index)) - set(
                self._state.placement.partitions_of(self._serving.index)
            )
            arrived = None
            if self._incoming is not None and self._incoming.version == placement.version:
                arrived = self._arrived
            if gained and (
                arrived is None or self._incoming is None or gained != {*self._incoming.partitions}
            ):
                raise Refusal("move", f"partitions of version {placement.version} never came")
            if outgoing is not None and outgoing.is_held:
                self._end_hold()
            self._incoming = self._arrived = None
            if self._state.adopt(placement, arrived):
                self._serving.moved_at = placement.version
                self._updates.withdraw_all(Status.MOVED)
            return
        if outgoing is not None and outgoing.move.version != request.move:
            if outgoing.is_held:
                self._end_hold()
            self._state.outgoing = None
        if self._incoming is not None and self._incoming.version != request.move:
            self._incoming = self._arrived = None

    def _end_hold(self) -> None:
        seconds = self._serving.clock() - self._held_since
        self.longest_hold_seconds = max(self.longest_hold_seconds, seconds)

    def _refuse_move(self, request: MoveRequest) -> str:
        if self._serving.gate(request.generation) is not None:
            return f"generation {request.generation} is not the one that is served"
        if request.version <= self._state.placement.version:
            return f"the placement has version {self._state.placement.version}"
        return ""

    def _outgoing(self, move: MoveRequest) -> Outgoing:
        outgoing = self._state.outgoing
        is_served = self._serving.gate(move.generation) is None
        if outgoing is None or outgoing.move != move or not is_served:
            raise Refusal("move", f"there is no move to version {move.version}")
        return outgoing

    def _put(self, request: MoveRequest, moved: MovedRows) -> int:
        with self._serving.lock:
            if self._incoming != request:
                raise Refusal("move", "the move is void")
            self._state.put_rows(moved)
        return len(moved.keys)

    def forget_incoming(self) -> None:
        """The job was rolled back: what comes is void; the lock is held."""
        self._incoming = self._arrived = None
