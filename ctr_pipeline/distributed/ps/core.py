"""A parameter server without its network: pulls, pushes, rounds, cuts, restores.

Axes: U keys of a message, W values of a row.

One lock orders everything that reads or changes what the server holds, so that a pull sees one
version and a push is one step; what a message alone tells is found out before it is taken. A push
of synchronous mode is answered when its round is complete, a pull of a worker that is too far ahead
when the others have come closer; neither holds a thread until then. A cut begins between two
updates, copies what is small and notes the instant for the rows; they are written while updates go
on, and an update for whose old rows there is no room waits before it takes the lock. Before the
first restore, and while one runs, nothing is served.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ctr_pipeline.distributed.coordination.claims import bitmaps_beyond
from ctr_pipeline.distributed.coordination.messages import (
    HoldReply,
    MovedRowsRequest,
    MoveReply,
    MoveRequest,
    PartitionLoads,
    PlaceRequest,
    RestoreReply,
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.coordination.rounds import (
    ROUND_TIMEOUT_SECONDS,
    BatchId,
    Pace,
    Round,
    admit_push,
    worker_number,
)
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.ps.fail_stop import end_process
from ctr_pipeline.distributed.ps.limits import RequestLimits
from ctr_pipeline.distributed.ps.measured_lock import MeasuredLock
from ctr_pipeline.distributed.ps.merging import RowGradients, without_repeats
from ctr_pipeline.distributed.ps.moving import Arrived, MoveSource, Outgoing
from ctr_pipeline.distributed.ps.server_state import ServerGradients, ServerState
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.packed import (
    DenseReply,
    DenseRequest,
    MovedRows,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    Status,
)
from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.snapshot import RowSnapshot, SnapshotAbandonedError
from ctr_pipeline.errors import (
    CheckpointError,
    CtrPipelineError,
    RunFolderError,
    StorageError,
    TrainingError,
)
from ctr_pipeline.machine import is_refused_thread

_LOGGER = logging.getLogger(__name__)
# A source holds when so few keys are left that have changed; or after so many answers, as its
# updates may outrun what is copied.
_FEW_CHANGED = 1 << 12
_MOST_ROUNDS = 64


@dataclass
class CallCounts:
    """What became of calls so far.

    Attributes:
        pulls: Answered.
        applied: Batches applied, wholly or where they were missing.
        repeated: Were applied before.
        stale: Their round did not fill.
        refused: Messages of an old generation or attempt.
        vanished_keys: Keys whose gradients were dropped, because they have no row; where rows are
            admitted by count, those below it are among them.
        dense_bytes: Bytes of dense gradients taken and dense values given.
    """

    pulls: int = 0
    applied: int = 0
    repeated: int = 0
    stale: int = 0
    refused: int = 0
    vanished_keys: int = 0
    dense_bytes: int = 0


@dataclass
class _WaitingPush:
    """A push of the open round; a lost call that is tried again waits for the same one.

    Attributes:
        weight: Its weight in the round.
        until: When it is given up.
        calls: Calls that wait for it.
    """

    gradients: ServerGradients
    weight: float
    until: float
    calls: list[tuple[PushRequest, LaterReply]] = field(default_factory=list)


@dataclass(frozen=True)
class _HeldPull:
    """A pull of a worker that is too far ahead."""

    request: PullRequest
    keys: Int64Array
    partitions_U: Int32Array
    later: LaterReply


class PsCore:
    """State of one parameter server; safe to call from several threads.

    Args:
        threads: Threads that work on rows.
        round_timeout_seconds: A push of synchronous mode is answered `stale` after so long.
        fail_stop: Ends the process for an exception while rows or dense values were made or moved:
            they are half of one state and half of another then, and nobody may see them.
        clock: Seconds, monotonic.

    Attributes:
        counts: Results of calls so far.
        last_pause_seconds: For how long updates waited for the last cut, at most.
        longest_hold_seconds: For how long updates waited for a move of partitions, at most.
    """

    def __init__(
        self,
        spec: JobSpec,
        index: int,
        *,
        threads: int = 1,
        round_timeout_seconds: float = ROUND_TIMEOUT_SECONDS,
        fail_stop: Callable[[BaseException], None] = end_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.index = index
        self.counts = CallCounts()
        self.last_pause_seconds = 0.0
        self._limits = RequestLimits(spec)
        # Epochs follow each other; after a restore the first batch tells which one it is.
        self._epoch: int | None = None
        self._state = ServerState(spec, index, threads=threads)
        self._timeout_seconds = round_timeout_seconds
        self._fail_stop = fail_stop
        self._clock = clock
        self._lock = MeasuredLock()
        # The newest generation that was announced, and the one that is served.
        self._announced = -1
        self._served = -1
        self._wanted: RestoreRequest | None = None
        self._version = self._restored_version = 0
        self._round = Round()
        self._waiting: dict[BatchId, _WaitingPush] = {}
        self._pace = Pace(spec.update.max_staleness, round_timeout_seconds)
        self._held: list[_HeldPull] = []
        self._active_workers: frozenset[int] | None = None
        self._news = threading.Event()
        # Cuts and restores exclude each other; a restore gives up the cut that is being written.
        self._cutting = threading.Lock()
        self._is_evicting = False
        self._snapshot: RowSnapshot | None = None
        self._last_cut: tuple[SnapshotRequest, SnapshotReply] | None = None
        # Of the placement since which this server holds what it holds.
        self._moved_at = 0
        self._incoming: MoveRequest | None = None
        self._arrived: Arrived | None = None
        self._moves_begun = 0
        self._held_since = 0.0
        self.longest_hold_seconds = 0.0

    @property
    def generation(self) -> int:
        """That is served; -1 before the first restore and while one runs."""
        return self._served

    @property
    def version(self) -> int:
        """Updates made by this process."""
        return self._version

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return self._state.num_rows

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory of the rows and of what finds them."""
        return self._state.memory_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of rows that lie in a file, beyond the memory limit."""
        return self._state.spilled_bytes

    @property
    def num_evicted(self) -> int:
        """Rows removed by this process because nothing had updated them for long."""
        return self._state.num_evicted

    @property
    def placement(self) -> Placement:
        """Who holds what, as far as this server knows."""
        return self._state.placement

    @property
    def takes_part_in_move(self) -> bool:
        """Whether partitions move to or from here; needs no lock."""
        return self._incoming is not None or self._state.outgoing is not None

    @property
    def moves_begun(self) -> int:
        """Moves that this server has begun to take part in."""
        return self._moves_begun

    def partition_loads(self) -> PartitionLoads:
        """What each partition holds and serves; needs no lock."""
        return self._state.partition_loads()

    @property
    def longest_lock_seconds(self) -> float:
        """For how long callers had to wait for one of them, at most."""
        return self._lock.longest_seconds

    @property
    def lock_seconds(self) -> float:
        """For how long calls have held the lock that others wait for, in all."""
        return self._lock.held_seconds

    def take_longest_lock(self) -> float:
        """`longest_lock_seconds`, which begins anew."""
        return self._lock.take_longest()

    @property
    def num_waiting(self) -> int:
        """Pushes in the open round, and pulls of workers that are too far ahead."""
        return len(self._round.members) + len(self._held)

    def set_active_workers(self, incarnations: Collection[str]) -> None:
        """Says which workers can still push; a round does not wait for others.

        Takes no lock: whoever tells the master that this server lives must not wait for rows. What
        follows from it is done by `keep_time`.
        """
        self._active_workers = frozenset(worker_number(name) for name in incarnations)
        self._news.set()

    def await_news(self, seconds: float) -> None:
        """Returns when the active workers are known anew, or after some seconds."""
        self._news.wait(seconds)
        self._news.clear()

    def keep_time(self) -> None:
        """Closes a round that nobody else can come to and ends what has waited for too long."""
        if not self._waiting and not self._held:
            return
        with self._lock_with_room():
            now = self._clock()
            for batch, waiting in list(self._waiting.items()):
                if waiting.until <= now:
                    self._withdraw(batch, Status.STALE)
            self._close_complete_round()
            self._let_pull()

    def pull(self, request: PullRequest) -> PullReply | LaterReply:
        """Values of keys, and the dense values if they are newer than the caller's.

        Where staleness is bounded, the answer may have to wait for slower workers.

        Raises:
            Refusal: The keys are not of this server, or there is no room for their rows.
            RunFolderError: The disk has no room for them; there may be some later.
        """
        if request.batch is not None:
            self._limits.check_batch(request.batch)
        keys, partitions_U = self._divided(request.keys)
        if request.batch is not None and self.spec.update.mode == "bounded":
            with self._lock:
                is_served = self._gate(request.generation) is None
                if is_served and self._must_wait(request.worker):
                    later = LaterReply()
                    self._held.append(_HeldPull(request, keys, partitions_U, later))
                    return later
        return self._pull(request, keys, partitions_U)

    def _must_wait(self, worker: int) -> bool:
        now = self._clock()
        self._pace.note_heard(worker, self._active_workers, now)
        return self._pace.must_wait(worker, self._pace.slowest(self._active_workers, now))

    def _let_pull(self) -> None:
        """Answers the pulls that need not wait any longer; the lock is held."""
        slowest = self._pace.slowest(self._active_workers, self._clock())
        for held in list(self._held):
            is_over = self._gate(held.request.generation) is not None or held.later.is_over
            if is_over or not self._pace.must_wait(held.request.worker, slowest):
                self._held.remove(held)
                held.later.resume(partial(self._pull, held.request, held.keys, held.partitions_U))

    def _pull(self, request: PullRequest, keys: Int64Array, partitions_U: Int32Array) -> PullReply:
        with self._lock:
            status = self._gate(request.generation) or self._gate_move(request.placement)
            if status is None:
                self._require_owned(keys, partitions_U)
                self._state.counts.count_pull(partitions_U)
            if status is None and request.batch is not None:
                status = self._fence(request.batch)
            known = request.dense_version
            if status is None and known is not None and not self._state.has_dense:
                status = Status.NOT_READY
            if status is not None:
                return PullReply(status, self._shown_generation(), 0, self._no_values(), None)
            try:
                values = self._read_rows(keys, create=request.create)
            except TrainingError as error:
                # Nothing here makes room: asking again would go on for ever.
                _LOGGER.error("a pull is refused: %s", error)
                raise Refusal("no_room", str(error)) from error
            self.counts.pulls += 1
            is_newer = known is not None and known < self._version
            return PullReply(
                status=Status.DONE,
                generation=self._served,
                version=self._version,
                values=values,
                dense=self._dense_values() if is_newer else None,
            )

    def _read_rows(self, keys: Int64Array, *, create: bool) -> Float32Array:
        if not create:
            return self._state.read_rows(keys, create=False)
        # That there is no room is found out before a row is made.
        with self._all_or_end(TrainingError, RunFolderError):
            return self._state.read_rows(keys, create=True)

    def push(self, request: PushRequest) -> PushReply | LaterReply:
        """Applies the gradients of a batch, once.

        In synchronous mode the answer comes with the end of the round.

        Raises:
            Refusal: The gradients do not fit what this server holds.
        """
        self._limits.check_push(request)
        keys, partitions_U = self._divided(request.keys)
        if len(keys) and request.sums.shape[1] != self._state.width:
            raise Refusal("mismatch", f"rows of {request.sums.shape[1]} values, not of this job")
        rows = without_repeats(RowGradients(keys, request.num_occurrences.copy(), request.sums))
        fresh_keys, fresh_partitions = self._divided(request.fresh_keys)
        with self._lock_with_room(len(keys)):
            status = self._gate(request.generation) or self._gate_move(request.placement)
            if status is None:
                self._require_owned(keys, partitions_U)
                first, last = self._state.range
                if len(request.dense) != last - first:
                    what = f"{len(request.dense)} dense gradients for {last - first}"
                    raise Refusal("mismatch", what)
                self._require_owned(fresh_keys, fresh_partitions)
                self._state.counts.count_push(partitions_U)
                self.counts.dense_bytes += request.dense.nbytes
            if status is None and not self._state.has_dense:
                status = Status.NOT_READY
            if status is None:
                # Versions are of one generation: a server that was started again begins anew.
                self._limits.check_version(request, self._version)
                status = self._fence(request.batch)
            if status is not None:
                return self._push_reply(request, status)
            outcome = self._admit(request, rows)
            if isinstance(outcome, LaterReply):
                return outcome
            if self.spec.update.mode == "bounded":
                self._pace.note_heard(request.worker, self._active_workers, self._clock())
                self._pace.count(request.worker, request.batch)
                self._let_pull()
            return self._push_reply(request, outcome)

    def _end_of_round(self, request: PushRequest, status: Status) -> PushReply:
        """The answer to a push that waited."""
        with self._lock:
            # The job may have been rolled back, or partitions moved, meanwhile.
            gate = self._gate(request.generation) or self._gate_move(request.placement)
            return self._push_reply(request, gate or status)

    def _push_reply(self, request: PushRequest, status: Status) -> PushReply:
        """What a push comes to, with the values of now; the lock is held."""
        if status in {Status.DONE, Status.REPEATED}:
            return PushReply(
                status=status,
                generation=self._shown_generation(),
                version=self._version,
                dense=self._dense_values(),
                fresh=self._state.read_rows(request.fresh_keys.copy(), create=False),
            )
        if status is Status.STALE:
            self.counts.stale += 1
        elif status not in {Status.NOT_READY, Status.MOVED}:
            self.counts.refused += 1
        return PushReply(
            status=status,
            generation=self._shown_generation(),
            version=0,
            dense=np.empty(0, np.float32),
            fresh=self._no_values(),
        )

    def init_dense(self, request: DenseRequest) -> DenseReply:
        """Takes the initial dense values of the first caller.

        Others are told where theirs differ in the last bits, as they may on another processor.

        Raises:
            Refusal: They are not those of this server, or of another model than the first caller's.
        """
        with self._lock:
            status = self._gate(request.generation) or self._gate_move(request.placement)
            if status is None:
                first, last = self._state.range
                if (request.first, len(request.values)) != (first, last - first):
                    raise Refusal("mismatch", f"dense values {first} … {last - 1} are expected")
                if not np.isfinite(request.values).all():
                    raise Refusal("not_finite", "an initial dense value is not finite")
                outcome = self._state.initialise_dense(request.values)
                if outcome == "other":
                    raise Refusal(
                        "dense_differs",
                        "another worker gave other initial values for the dense parameters",
                    )
                status = Status.DONE if outcome == "taken" else Status.REPEATED
                return DenseReply(status, self._shown_generation(), differs=outcome == "close")
            return DenseReply(status, self._shown_generation())

    def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        """This server's part of a cut; a repeated request gets the same answer."""
        self._limits.check_snapshot(request)
        with self._cutting:
            if self._last_cut is not None and self._last_cut[0] == request:
                return self._last_cut[1]
            try:
                reply = self._take_cut(request)
            except CtrPipelineError as error:
                _LOGGER.warning("checkpoint %d failed: %s", request.cut, error)
                of_storage = isinstance(error, (StorageError, RunFolderError))
                return _no_cut(str(error), of_storage=of_storage)
            except SnapshotAbandonedError as error:
                _LOGGER.warning("checkpoint %d was given up: %s", request.cut, error)
                # By a restore, or by an update that waited for the disk.
                of_storage = self._gate(request.generation) is None
                return _no_cut(str(error), of_storage=of_storage)
            finally:
                self._is_evicting = False
                if self._snapshot is not None:
                    self._snapshot.abandon()
                self._snapshot = None
            if not reply.refused:
                self._last_cut = (request, reply)
            return reply

    def restore(self, request: RestoreRequest) -> RestoreReply:
        """Holds what a cut has from now on, and serves its generation alone.

        A repeated request changes nothing. One of a generation that is known with other contents,
        or after an update, is of a master that has lost its ledger: it needs a newer generation.
        """
        self._limits.check_restore(request)
        with self._lock:
            if self._is_outrun_by(request):
                return _too_old(self._announced)
            if request.generation == self._served:
                return RestoreReply("", self.num_rows)
            self._announced, self._served = request.generation, -1
            self._wanted = request
            self._epoch = None
            for batch in list(self._waiting):
                self._withdraw(batch, Status.ROLLED_BACK)
            self._let_pull()
            self._pace = Pace(self.spec.update.max_staleness, self._timeout_seconds)
            if self._snapshot is not None:
                self._snapshot.abandon("the job was rolled back meanwhile")
            self._incoming = self._arrived = None
        with self._cutting:
            # Nobody else looks at the state while no generation is served.
            if self._is_outrun_by(request):
                return _too_old(self._announced)
            if request.generation == self._served:
                return RestoreReply("", self.num_rows)
            try:
                self._state.restore(request)
            except CtrPipelineError as error:
                _LOGGER.warning("checkpoint %d cannot be restored: %s", request.cut, error)
                return RestoreReply(str(error), 0, damaged=isinstance(error, CheckpointError))
            except RuntimeError as error:
                if not is_refused_thread(error):
                    raise
                return RestoreReply("the system allows no more threads", 0)
            with self._lock:
                if self._is_outrun_by(request):
                    return _too_old(self._announced)
                self._served, self._restored_version = request.generation, self._version
                self._moved_at = self.placement.version
                return RestoreReply("", self.num_rows)

    def _is_outrun_by(self, request: RestoreRequest) -> bool:
        """Whether a request is not of a newer generation, and not that of the newest one."""
        if request.generation != self._announced:
            return request.generation < self._announced
        has_moved = self._served >= 0 and self._version != self._restored_version
        return has_moved or request != self._wanted

    # Moves of partitions.

    def take_over(self, request: MoveRequest, source: MoveSource) -> MoveReply:
        """Copies partitions of another server while that goes on, until it holds.

        What is copied is served once `place` says so.

        Args:
            source: Where it is.

        Raises:
            CtrPipelineError: The source does not answer, or there is no room.
        """
        with self._cutting:
            with self._lock:
                refused = self._refuse_move(request)
                if refused:
                    return MoveReply(refused, 0, 0)
                if self._incoming == request and self._arrived is not None:
                    # The answer was lost, and the source holds.
                    return MoveReply("", 0, 0)
                self._moves_begun += 1
                self._incoming, self._arrived = request, None
            self._drop_foreign_rows()
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
            with self._lock:
                if self._incoming != request:
                    return MoveReply("the move is void", 0, 0)
                self._arrived = Arrived(state, dense)
            return MoveReply("", num_rows, num_changed)

    def show_rows(self, request: MovedRowsRequest) -> MovedRows:
        """Some rows that are to move away; the first call begins to note what changes.

        Raises:
            Refusal: There is no such move.
        """
        with self._lock:
            if request.first_row == 0:
                refused = self._refuse_move(request.move)
                before = self._state.outgoing
                if before is not None and before.is_held and before.move == request.move:
                    refused = "it holds for this move already"
                if refused:
                    raise Refusal("move", refused)
                self._moves_begun += 1
                self._state.begin_outgoing(request.move)
            return self._state.show_rows(self._outgoing(request.move), request.first_row)

    def hold(self, request: MoveRequest) -> HoldReply:
        """Answers nobody from now on, until `place` says what became of the move.

        Raises:
            Refusal: There is no such move.
        """
        with self._lock:
            outgoing = self._outgoing(request)
            if not self._state.has_dense:
                return HoldReply("nobody gave the dense values yet", 0, (), (), ())
            if not outgoing.is_held:
                outgoing.is_held = True
                self._held_since = self._clock()
            for batch in list(self._waiting):
                self._withdraw(batch, Status.MOVED)
            applied = self._state.applied
            return HoldReply(
                "", applied.epoch, applied.to_messages(), applied.attempts, applied.units.pieces
            )

    def show_dense(self, request: MoveRequest) -> MovedRows:
        """The dense range as it is while this server holds.

        Raises:
            Refusal: There is no such move.
        """
        with self._lock:
            if not self._outgoing(request).is_held:
                raise Refusal("move", "nothing is held")
            records = self._state.dense_records()
        return MovedRows(-1, 0, np.zeros(1, np.int64), records[None])

    def place(self, request: PlaceRequest, moves_begun: int | None = None) -> None:
        """Holds what a durable placement says; moves other than the one named are void.

        Args:
            request: The placement.
            moves_begun: `moves_begun` when it was asked for: what was decided before a move began
                says nothing of it. None: it was not asked for.
        """
        with self._lock:
            if moves_begun not in {None, self._moves_begun}:
                return
            if self._begins_empty(request):
                self._announced, self._epoch = request.generation, None
                self._state.begin_empty(request.placement)
                self._served, self._moved_at = request.generation, request.placement.version
            elif request.generation == self._served:
                self._settle_move(request)

    def drop_foreign_rows(self) -> None:
        """Frees what moves have left behind."""
        with self._cutting:
            self._drop_foreign_rows()

    def _drop_foreign_rows(self) -> None:
        """A part at a time, so that nobody waits for long; a move away from here ends it.

        That move looks at rows in their order. What is left is dropped after it.
        """
        end: int | None = None
        placement = self.placement
        while self._state.has_foreign_rows:
            # Rows are only added meanwhile, and those are this server's own.
            first, rows_U = self._state.find_foreign_rows(end)
            with self._lock:
                if self._state.outgoing is not None or self.placement is not placement:
                    return
                with self._all_or_end():
                    if len(rows_U) and not self._state.take_rows_out(rows_U):
                        continue
                    end = first
                    if not first:
                        self._state.forget_foreign_rows()

    def _begins_empty(self, request: PlaceRequest) -> bool:
        low, high = request.placement.range_of(self.index)
        has_nothing = not request.placement.partitions_of(self.index) and low == high
        return has_nothing and request.generation > self._announced

    def _settle_move(self, request: PlaceRequest) -> None:
        placement, outgoing = request.placement, self._state.outgoing
        if placement.version > self.placement.version:
            gained = set(placement.partitions_of(self.index)) - set(
                self.placement.partitions_of(self.index)
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
                self._moved_at = placement.version
                for batch in list(self._waiting):
                    self._withdraw(batch, Status.MOVED)
            return
        if outgoing is not None and outgoing.move.version != request.move:
            if outgoing.is_held:
                self._end_hold()
            self._state.outgoing = None
        if self._incoming is not None and self._incoming.version != request.move:
            self._incoming = self._arrived = None

    def _end_hold(self) -> None:
        seconds = self._clock() - self._held_since
        self.longest_hold_seconds = max(self.longest_hold_seconds, seconds)

    def _refuse_move(self, request: MoveRequest) -> str:
        if self._gate(request.generation) is not None:
            return f"generation {request.generation} is not the one that is served"
        if request.version <= self.placement.version:
            return f"the placement has version {self.placement.version}"
        return ""

    def _outgoing(self, move: MoveRequest) -> Outgoing:
        outgoing = self._state.outgoing
        if outgoing is None or outgoing.move != move or self._gate(move.generation) is not None:
            raise Refusal("move", f"there is no move to version {move.version}")
        return outgoing

    def _put(self, request: MoveRequest, moved: MovedRows) -> int:
        with self._lock:
            if self._incoming != request:
                raise Refusal("move", "the move is void")
            self._state.put_rows(moved)
        return len(moved.keys)

    def _take_cut(self, request: SnapshotRequest) -> SnapshotReply:
        self._drop_foreign_rows()
        snapshot = self._state.prepare_cut(request.cut)
        if request.oldest_step > 0:
            refused = self._evict(request)
            if refused:
                return _no_cut(refused)
        with self._lock:
            self._is_evicting = False
            refused = self._refuse_cut(request)
            if refused:
                return _no_cut(refused)
            started = self._clock()
            self._snapshot = snapshot
            with self._all_or_end():
                cut = self._state.begin_cut(request, snapshot)
            version = self._version
            pause_seconds = self._clock() - started
        files = self._state.write_cut(request, cut)
        if snapshot is not None:
            pause_seconds = max(pause_seconds, snapshot.longest_pause_seconds)
        self.last_pause_seconds = pause_seconds
        bitmaps = bitmaps_beyond(cut.bitmaps, request.epoch, request.over)
        return SnapshotReply("", files, bitmaps, version, pause_seconds)

    def _evict(self, request: SnapshotRequest) -> str:
        """Removes rows for a cut, or says why not.

        Rows move, for longer than the lock may be held. Nobody is served from then on until the cut
        has begun: no batch is on its way, but of workers that the master has given up.
        """
        with self._lock:
            refused = self._refuse_cut(request)
            if refused:
                return refused
            self._is_evicting = True
            for batch in list(self._waiting):
                self._withdraw(batch, Status.NOT_READY)
        with self._all_or_end():
            self._state.evict(request.oldest_step)
        return ""

    def _refuse_cut(self, request: SnapshotRequest) -> str:
        if self._gate(request.generation) is not None:
            return f"generation {request.generation} is not the one that is served"
        if self._gate_move(request.placement) or request.placement != self.placement.version:
            return f"the placement has version {self.placement.version}"
        if self._state.has_foreign_rows:
            return "rows of a move are left"
        if not self._state.has_dense:
            return "nobody gave the dense parameters their values yet"
        return ""

    def _divided(self, keys: Int64Array) -> tuple[Int64Array, Int32Array]:
        # A copy, because the kernels are compiled for arrays that may be written.
        keys = keys.copy()
        return keys, self._state.partitions_of(keys)

    def _require_owned(self, keys: Int64Array, partitions_U: Int32Array) -> None:
        if not self._state.owns(keys, partitions_U):
            raise Refusal("mismatch", f"a key is not one of server {self.index}")

    def _dense_values(self) -> Float32Array:
        values = self._state.dense_values()
        self.counts.dense_bytes += values.nbytes
        return values

    def _no_values(self) -> Float32Array:
        return np.empty((0, self._state.width), np.float32)

    def _shown_generation(self) -> int:
        return max(self._announced, 0)

    def _gate(self, generation: int) -> Status | None:
        """Why a caller of that generation is not served; None if it is."""
        if generation < self._announced:
            return Status.ROLLED_BACK
        is_served = generation == self._served and not self._is_evicting
        return None if is_served else Status.NOT_READY

    def _gate_move(self, placement: int) -> Status | None:
        """Why a caller that knows that version of the placement is not served; None if it is."""
        outgoing = self._state.outgoing
        if (outgoing is not None and outgoing.is_held) or placement > self.placement.version:
            return Status.NOT_READY
        return Status.MOVED if placement < self._moved_at else None

    def _fence(self, batch: BatchId) -> Status | None:
        """Refuses what a later attempt has taken over; notes the attempt otherwise."""
        if self._epoch is not None:
            self._limits.check_next_epoch(batch, self._epoch)
        self._epoch = max(batch.epoch, self._epoch or 0)
        if not self._state.applied.begin(batch):
            return Status.SUPERSEDED
        for other in list(self._waiting):
            same_task = (other.epoch, other.task) == (batch.epoch, batch.task)
            if other.epoch < batch.epoch or (same_task and other.attempt < batch.attempt):
                self._withdraw(other, Status.SUPERSEDED)
        return None

    def _admit(self, request: PushRequest, rows: RowGradients) -> Status | LaterReply:
        """Applies a push, or lets it wait for its round; the lock is held."""
        if not self._state.applied.missing_units(request.batch).any():
            self.counts.repeated += 1
            self._round = self._round.excusing(request.worker)
            self._close_complete_round()
            return Status.REPEATED
        waiting = self._waiting.get(request.batch)
        if waiting is None:
            admission = admit_push(
                self.spec.update, version=self._version, pulled_version=request.version
            )
            factor = request.learning_rate_factor
            if admission.action == "apply":
                factor *= admission.weight
            gradients = ServerGradients(
                batch=request.batch,
                step=request.step,
                learning_rate_factor=factor,
                num_examples=request.num_examples,
                rows=rows,
                dense=request.dense,
            )
            if admission.action == "apply":
                self._apply([gradients])
                return Status.DONE
            until = self._clock() + self._timeout_seconds
            waiting = self._waiting[request.batch] = _WaitingPush(
                gradients, admission.weight, until
            )
            self._round = self._round.joined_by(request.worker, request.batch)
        later = LaterReply()
        waiting.calls.append((request, later))
        self._close_complete_round()
        return later

    def _withdraw(self, batch: BatchId, status: Status) -> None:
        waiting = self._waiting.pop(batch)
        self._round = self._round.left_by(batch)
        self._answer(waiting, status)

    def _close_complete_round(self) -> None:
        if not self._round.is_complete(self.spec.update, self._active_workers):
            return
        members = list(self._waiting.values())
        self._apply(_weighed(members))
        self._waiting.clear()
        self._round = Round()
        for waiting in members:
            self._answer(waiting, Status.DONE)

    def _answer(self, waiting: _WaitingPush, status: Status) -> None:
        for request, later in waiting.calls:
            later.resume(partial(self._end_of_round, request, status))

    @contextmanager
    def _lock_with_room(self, num_rows: int = 0) -> Iterator[None]:
        """Holds the lock, once no update of what has come would wait for a cut's disk meanwhile.

        Args:
            num_rows: Rows of a push, beside those of the open round.
        """
        while True:
            with self._lock:
                needed = num_rows + sum(
                    len(waiting.gradients.rows.keys) for waiting in self._waiting.values()
                )
                snapshot = self._snapshot
                if snapshot is None or snapshot.has_room(needed):
                    yield
                    return
            snapshot.await_room(needed)

    @contextmanager
    def _all_or_end(self, *harmless: type[Exception]) -> Iterator[None]:
        """What makes or moves rows or dense values is done whole, or the process ends.

        Args:
            harmless: Errors before which nothing was done.
        """
        try:
            yield
        except harmless:
            raise
        except BaseException as error:
            self._fail_stop(error)
            raise

    def _apply(self, batches: list[ServerGradients]) -> None:
        with self._all_or_end():
            self.counts.vanished_keys += self._state.apply(batches)
        self.counts.applied += len(batches)
        self._version += 1


def _weighed(members: list[_WaitingPush]) -> list[ServerGradients]:
    """What members bring to a round, each by its weight.

    Weights are relative in the gradients, and their mean is a factor on the learning rate: rules
    that divide by the size of gradients, such as Adam, would take no notice of smaller ones.
    """
    num_examples = sum(member.gradients.num_examples for member in members)
    mean = sum(member.weight * member.gradients.num_examples for member in members) / num_examples
    return [_scaled(member.gradients, member.weight / mean, mean) for member in members]


def _scaled(gradients: ServerGradients, scale: float, factor: float) -> ServerGradients:
    if scale != 1.0:
        rows = replace(gradients.rows, sums=gradients.rows.sums * np.float32(scale))
        gradients = replace(gradients, rows=rows, dense=gradients.dense * np.float32(scale))
    return replace(gradients, learning_rate_factor=gradients.learning_rate_factor * factor)


def _no_cut(reason: str, *, of_storage: bool = False) -> SnapshotReply:
    return SnapshotReply(reason, (), (), 0, 0.0, of_storage)


def _too_old(announced: int) -> RestoreReply:
    return RestoreReply(f"generation {announced} was announced before", 0, announced=announced)
