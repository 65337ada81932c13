"""What a server serves now: the rows and dense values of one generation and one placement."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.ps.fail_stop import end_process
from ctr_pipeline.distributed.ps.limits import RequestLimits
from ctr_pipeline.distributed.ps.measured_lock import MeasuredLock
from ctr_pipeline.distributed.ps.server_state import ServerState
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.embeddings.snapshot import RowSnapshot


class Serving:
    """The state of a server, its locks, and who may see it.

    Args:
        threads: Threads that work on rows.
        fail_stop: Ends the process for an exception while rows or dense values were made or moved:
            they are half of one state and half of another then, and nobody may see them.
        clock: Seconds, monotonic.

    Attributes:
        state: Rows, dense range and bitmaps.
        lock: Orders everything that reads or changes the state.
        cutting: Held by cuts, restores and moves to this server, which exclude each other; taken
            before `lock`.
        announced: The newest generation that a master has named; -1: none.
        generation: The generation that is served; -1 before the first restore and while one runs.
        version: Updates made by this process.
        moved_at: The placement since which this server holds what it holds.
        is_evicting: Rows are removed for a cut, for longer than the lock may be held.
        snapshot: Rows of the cut that is being written; None: none is.
    """

    def __init__(
        self,
        spec: JobSpec,
        index: int,
        *,
        threads: int = 1,
        fail_stop: Callable[[BaseException], None] = end_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.index = index
        self.limits = RequestLimits(spec)
        self.clock = clock
        self.state = ServerState(spec, index, threads=threads)
        self.lock = MeasuredLock()
        self.cutting = threading.Lock()
        self.announced = self.generation = -1
        self.version = self.moved_at = 0
        self.is_evicting = False
        self.snapshot: RowSnapshot | None = None
        self._fail_stop = fail_stop

    def gate(self, generation: int) -> Status | None:
        """Why a caller of that generation is not served; None if it is."""
        if generation < self.announced:
            return Status.ROLLED_BACK
        is_served = generation == self.generation and not self.is_evicting
        return None if is_served else Status.NOT_READY

    def gate_move(self, placement: int) -> Status | None:
        """Why a caller that knows that version of the placement is not served; None if it is."""
        outgoing = self.state.outgoing
        if (outgoing is not None and outgoing.is_held) or placement > self.state.placement.version:
            return Status.NOT_READY
        return Status.MOVED if placement < self.moved_at else None

    def gate_call(self, generation: int, placement: int) -> Status | None:
        """As both of these."""
        return self.gate(generation) or self.gate_move(placement)

    @contextmanager
    def all_or_end(self, *harmless: type[Exception]) -> Iterator[None]:
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
