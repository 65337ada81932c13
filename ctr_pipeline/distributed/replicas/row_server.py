"""A server of embedding rows beside replicas: it adds the gradients that all members bring.

`coordination.row_steps` decides which sums are applied.
"""

import itertools
import logging
import threading
from collections.abc import Iterable
from dataclasses import asdict

import numpy as np

from ctr_pipeline.distributed.coordination.messages import Empty, MemberStats
from ctr_pipeline.distributed.coordination.row_steps import RowSteps, Settled
from ctr_pipeline.distributed.coordination.step_sums import Complete, Void
from ctr_pipeline.distributed.ps.merging import RowGradients, merge_rows
from ctr_pipeline.distributed.replicas.messages import (
    ROW_SERVICE,
    EnterWorld,
    EvictRows,
    LeaveWorld,
    ReadSavedRows,
    RestoreRows,
    RowPull,
    RowsEvicted,
    RowShare,
    RowsHeld,
    RowValues,
    SavedRows,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import Role
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.embeddings.arrays import BoolArray, Float32Array, Int64Array
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import RunFolderError, TrainingError
from ctr_pipeline.kernels.ranges import RangeRunner
from ctr_pipeline.machine import measure_usage
from ctr_pipeline.storage.protocol import Storage
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.parameters import load_rows

_LOGGER = logging.getLogger(__name__)
_STOP_SECONDS = 1.0

RowRecords = tuple[Int64Array, Float32Array]
"""Keys, int64 [U], and records, float32 [U, R]."""


class RowServer:
    """Serves the rows whose keys fall to one server, to the members of a world.

    Args:
        address: `host:port` to bind; port 0 takes a free one.
        access: Secrets of the job, as of role `ps`.
        store: Its rows; nobody else uses it.
        index: Which of the servers it is.
        num_servers: How many there are.
        checkpoints: Where those of the training are, with the rows of all servers.
    """

    def __init__(
        self,
        address: str,
        access: Access,
        store: EmbeddingStore,
        *,
        index: int,
        num_servers: int,
        checkpoints: Storage,
    ) -> None:
        self._store = store
        self._index = index
        self._num_servers = num_servers
        self._checkpoints = checkpoints
        self._lock = threading.Lock()
        self._steps: RowSteps[RowShare] = RowSteps()
        self._calls: dict[int, LaterReply] = {}
        self._numbers = itertools.count()
        # What the rows were before the last sum that can be taken back.
        self._before: RowRecords | None = None
        callers: tuple[Role, ...] = ("worker",)
        methods = (
            Method("Ping", Empty, Empty, lambda empty: empty, callers=callers),
            Method("State", Empty, RowsHeld, self._state, callers=callers),
            Method("Restore", RestoreRows, Empty, self._restore, callers=callers),
            Method("Enter", EnterWorld, Empty, self._enter, callers=callers),
            Method("Leave", LeaveWorld, Empty, self._leave, callers=callers),
            Method("Pull", RowPull, RowValues, self._pull, callers=callers),
            Method("Share", RowShare, None, self._share, callers=callers),
            Method("ReadSaved", ReadSavedRows, SavedRows, self._read_saved, callers=callers),
            Method("Evict", EvictRows, RowsEvicted, self._evict, callers=callers),
        )
        self._server = RpcServer(ROW_SERVICE, methods, address=address, access=access)
        self.address = self._server.start()

    def stats(self) -> MemberStats:
        """The server's figures now; waits for no call."""
        return MemberStats(
            **asdict(measure_usage()),
            rows_held=self._store.num_rows,
            bytes_received=self._server.bytes_received,
            bytes_sent=self._server.bytes_sent,
        )

    def close(self) -> None:
        """Takes no more calls."""
        with self._lock:
            self._void(self._steps.forget())
        self._server.stop(_STOP_SECONDS)

    def _state(self, _: Empty) -> RowsHeld:
        with self._lock:
            return RowsHeld(self._steps.lineage, self._steps.steps)

    def _restore(self, request: RestoreRows) -> Empty:
        with self._lock:
            self._void(self._steps.forget())
            self._before = None
            rows = self._store.rows
            with rows.lock:
                if request.step:
                    checkpoint = Checkpoints(self._checkpoints).load(request.step)
                    load_rows(checkpoint, self._store, only=self._are_mine)
                else:
                    rows.clear()
            self._steps.restore(request.lineage, request.step)
        _LOGGER.info("Holds %d rows, of step %d", rows.num_rows, request.step)
        return Empty()

    def _are_mine(self, keys: Int64Array) -> BoolArray:
        found: BoolArray = partitions_of(keys, self._num_servers) == self._index
        return found

    def _enter(self, request: EnterWorld) -> Empty:
        with self._lock:
            outcome = self._steps.enter(request.lineage, request.world, request.size, request.made)
            self._settle(outcome)
        return Empty()

    def _leave(self, request: LeaveWorld) -> Empty:
        with self._lock:
            self._void(self._steps.leave(request.world))
        return Empty()

    def _pull(self, request: RowPull) -> RowValues:
        with self._lock:
            self._settle(self._steps.read(request.world, request.step))
            keys = self._checked(request.keys)
            try:
                return RowValues(self._store.read_rows(keys, create=request.create))
            except (TrainingError, RunFolderError) as error:
                raise Refusal("no_room", str(error)) from error

    def _share(self, share: RowShare) -> LaterReply:
        """Takes a share; answered when all members have brought theirs."""
        if share.sums.shape != (len(share.keys), self._store.width):
            raise Refusal("mismatch", f"gradients of shape {share.sums.shape}, not of these rows")
        if not (np.isfinite(share.sums).all() and np.isfinite(share.learning_rate_factor)):
            raise Refusal(
                "not_finite",
                f"gradients of embedding rows in step {share.step} are not finite: the training "
                "diverges, or a value of the rows is out of bounds",
            )
        reply = LaterReply()
        with self._lock:
            self._checked(share.keys)
            call = next(self._numbers)
            settled, outcome = self._steps.bring(
                version=share.world, step=share.step, rank=share.rank, share=share, call=call
            )
            if settled is not None:
                self._settle(settled)
            if isinstance(outcome, Void):
                raise Refusal("void", outcome.reason)
            self._calls[call] = reply
            if isinstance(outcome, Complete):
                # All members have the step before: nobody takes it back.
                self._before = None
                for one in outcome.calls:
                    self._calls.pop(one).give(b"")
        return reply

    def _read_saved(self, request: ReadSavedRows) -> SavedRows:
        with self._lock:
            self._settle(self._steps.read(request.world, request.step))
            rows = self._store.rows
            last = min(request.first + request.most, rows.num_rows)
            first = min(request.first, last)
            records = rows.records_NR[first:last].copy()
            return SavedRows(
                num_rows=rows.num_rows,
                keys=rows.keys_N[first:last].copy(),
                records=records if request.with_records else records[:, :0],
            )

    def _evict(self, request: EvictRows) -> RowsEvicted:
        with self._lock:
            self._settle(self._steps.read(request.world, request.step))
            return RowsEvicted(self._store.evict(request.oldest_step))

    def _settle(self, outcome: Settled[RowShare] | Void) -> None:
        """Makes the rows those of the step that was named; the lock is held."""
        if isinstance(outcome, Void):
            raise Refusal("void", outcome.reason)
        self._void(outcome.over)
        if outcome.action == "nothing":
            return
        try:
            if outcome.action == "apply":
                self._apply(outcome.shares)
            elif self._before is not None:
                self._store.rows.put(*self._before, RangeRunner(1))
                self._before = None
        except BaseException:
            # They are half of one step and half of another: nobody may see them.
            self._void(self._steps.forget())
            raise

    def _apply(self, shares: tuple[RowShare, ...]) -> None:
        filled = [share for share in shares if share.num_examples]
        merged = merge_rows(
            [RowGradients(one.keys, one.num_occurrences, one.sums) for one in filled]
        )
        # The kernels are compiled for arrays that may be written.
        keys, sums = merged.keys.copy(), merged.sums.copy()
        store = self._store
        store.read_rows(keys, create=True)
        rows_U, _ = store.rows.find(keys, RangeRunner(1))
        has_row = rows_U >= 0
        self._before = keys[has_row], store.rows.records_NR[rows_U[has_row]]
        store.apply_gradients(
            keys,
            sums,
            merged.num_occurrences.copy(),
            step=filled[0].total_step,
            learning_rate_factor=filled[0].learning_rate_factor,
            num_examples=sum(share.num_examples for share in filled),
        )

    def _checked(self, keys: Int64Array) -> Int64Array:
        """A copy of keys that are to be of this server."""
        keys = keys.copy()
        if not self._are_mine(keys).all():
            raise Refusal("mismatch", f"a key is not one of server {self._index}")
        return keys

    def _void(self, calls: Iterable[int]) -> None:
        for call in calls:
            self._calls.pop(call).refuse(Refusal("void", "the world is over"))
