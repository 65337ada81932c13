"""A parameter server without its network."""

import time
from collections.abc import Callable
from pathlib import Path

from ctr_pipeline.distributed.coordination.rounds import ROUND_TIMEOUT_SECONDS
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.ps.checkpoints import Checkpoints
from ctr_pipeline.distributed.ps.fail_stop import end_process
from ctr_pipeline.distributed.ps.partition_moves import PartitionMoves
from ctr_pipeline.distributed.ps.serving import Serving
from ctr_pipeline.distributed.ps.updates import Updates


class PsCore:
    """The parts of one parameter server; each is safe to call from several threads.

    Args:
        run_folder: Where the paths of the spec begin.
        threads: Threads that work on rows.
        round_timeout_seconds: A push of synchronous mode is answered `stale` after so long.
        fail_stop: As of `Serving`.
        clock: Seconds, monotonic.

    Attributes:
        serving: The state, and who may see it.
        state: The same state: rows, dense range, bitmaps.
        updates: Pulls and pushes of workers.
        moves: Moves of partitions.
        checkpoints: Cuts and restores.
    """

    def __init__(
        self,
        spec: JobSpec,
        index: int,
        *,
        run_folder: Path = Path(),
        threads: int = 1,
        round_timeout_seconds: float = ROUND_TIMEOUT_SECONDS,
        fail_stop: Callable[[BaseException], None] = end_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.index = index
        self.serving = Serving(
            spec.within(run_folder), index, threads=threads, fail_stop=fail_stop, clock=clock
        )
        self.state = self.serving.state
        self.updates = Updates(self.serving, round_timeout_seconds=round_timeout_seconds)
        self.moves = PartitionMoves(self.serving, self.updates)
        self.checkpoints = Checkpoints(self.serving, self.updates, self.moves)
