"""Cuts and restores of a server.

A cut begins between two updates, copies what is small and notes the instant for the rows; they are
written while updates go on. Before the first restore, and while one runs, nothing is served.
"""

import logging

from ctr_pipeline.distributed.coordination.claims import bitmaps_beyond
from ctr_pipeline.distributed.coordination.messages import (
    RestoreReply,
    RestoreRequest,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.ps.partition_moves import PartitionMoves
from ctr_pipeline.distributed.ps.serving import Serving
from ctr_pipeline.distributed.ps.updates import Updates
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.embeddings.snapshot import SnapshotAbandonedError
from ctr_pipeline.errors import CheckpointError, CtrPipelineError, RunFolderError, StorageError
from ctr_pipeline.machine import is_refused_thread

_LOGGER = logging.getLogger(__name__)


class Checkpoints:
    """Takes a server's part of a cut, and goes back to one.

    Attributes:
        last_pause_seconds: For how long updates waited for the last cut, at most.
    """

    def __init__(self, serving: Serving, updates: Updates, moves: PartitionMoves) -> None:
        self.last_pause_seconds = 0.0
        self._serving = serving
        self._state = serving.state
        self._updates = updates
        self._moves = moves
        self._wanted: RestoreRequest | None = None
        self._restored_version = 0
        self._last_cut: tuple[SnapshotRequest, SnapshotReply] | None = None

    def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        """This server's part of a cut; a repeated request gets the same answer."""
        self._serving.limits.check_snapshot(request)
        with self._serving.cutting:
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
                of_storage = self._serving.gate(request.generation) is None
                return _no_cut(str(error), of_storage=of_storage)
            finally:
                self._serving.is_evicting = False
                if self._serving.snapshot is not None:
                    self._serving.snapshot.abandon()
                self._serving.snapshot = None
            if not reply.refused:
                self._last_cut = (request, reply)
            return reply

    def restore(self, request: RestoreRequest) -> RestoreReply:
        """Holds what a cut has from now on, and serves its generation alone.

        A repeated request changes nothing. One of a generation that is known with other contents,
        or after an update, is of a master that has lost its ledger: it needs a newer generation.
        """
        self._serving.limits.check_restore(request)
        with self._serving.lock:
            if self._is_outrun_by(request):
                return _too_old(self._serving.announced)
            if request.generation == self._serving.generation:
                return RestoreReply("", self._state.num_rows)
            self._serving.announced, self._serving.generation = request.generation, -1
            self._wanted = request
            self._updates.begin_generation()
            if self._serving.snapshot is not None:
                self._serving.snapshot.abandon("the job was rolled back meanwhile")
            self._moves.forget_incoming()
        with self._serving.cutting:
            # Nobody else looks at the state while no generation is served.
            if self._is_outrun_by(request):
                return _too_old(self._serving.announced)
            if request.generation == self._serving.generation:
                return RestoreReply("", self._state.num_rows)
            try:
                self._state.restore(request)
            except CtrPipelineError as error:
                _LOGGER.warning("checkpoint %d cannot be restored: %s", request.cut, error)
                return RestoreReply(str(error), 0, damaged=isinstance(error, CheckpointError))
            except RuntimeError as error:
                if not is_refused_thread(error):
                    raise
                return RestoreReply("the system allows no more threads", 0)
            with self._serving.lock:
                if self._is_outrun_by(request):
                    return _too_old(self._serving.announced)
                self._serving.generation = request.generation
                self._restored_version = self._serving.version
                self._serving.moved_at = self._state.placement.version
                return RestoreReply("", self._state.num_rows)

    def _is_outrun_by(self, request: RestoreRequest) -> bool:
        """Whether a request is not of a newer generation, and not that of the newest one."""
        if request.generation != self._serving.announced:
            return request.generation < self._serving.announced
        is_served, version = self._serving.generation >= 0, self._serving.version
        return (is_served and version != self._restored_version) or request != self._wanted

    def _take_cut(self, request: SnapshotRequest) -> SnapshotReply:
        self._moves.drop_foreign_rows()
        snapshot = self._state.prepare_cut(request.cut)
        if request.oldest_step > 0:
            refused = self._evict(request)
            if refused:
                return _no_cut(refused)
        with self._serving.lock:
            self._serving.is_evicting = False
            refused = self._refuse_cut(request)
            if refused:
                return _no_cut(refused)
            started = self._serving.clock()
            self._serving.snapshot = snapshot
            with self._serving.all_or_end():
                cut = self._state.begin_cut(request, snapshot)
            version = self._serving.version
            pause_seconds = self._serving.clock() - started
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
        with self._serving.lock:
            refused = self._refuse_cut(request)
            if refused:
                return refused
            self._serving.is_evicting = True
            self._updates.withdraw_all(Status.NOT_READY)
        with self._serving.all_or_end():
            self._state.evict(request.oldest_step)
        return ""

    def _refuse_cut(self, request: SnapshotRequest) -> str:
        if self._serving.gate(request.generation) is not None:
            return f"generation {request.generation} is not the one that is served"
        held = self._state.placement.version
        if self._serving.gate_move(request.placement) or request.placement != held:
            return f"the placement has version {held}"
        if self._state.has_foreign_rows:
            return "rows of a move are left"
        if not self._state.has_dense:
            return "nobody gave the dense parameters their values yet"
        return ""


def _no_cut(reason: str, *, of_storage: bool = False) -> SnapshotReply:
    return SnapshotReply(reason, (), (), 0, 0.0, of_storage)


def _too_old(announced: int) -> RestoreReply:
    return RestoreReply(f"generation {announced} was announced before", 0, announced=announced)
