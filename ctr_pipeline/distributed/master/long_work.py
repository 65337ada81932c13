"""Work of the master that takes long: checkpoints, moves of partitions, ends of epochs."""

from collections.abc import Callable, Iterator
from functools import partial

from ctr_pipeline.distributed.coordination.events import (
    AnnouncePlacement,
    CannotGoOn,
    CutFailed,
    CutTaken,
    DecideEpoch,
    DropCuts,
    EpochDecided,
    MovePartitions,
    RestoreCut,
    RestoreFailed,
    TakeCut,
)
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.durable_job import DurableJob
from ctr_pipeline.distributed.master.moves import Mover
from ctr_pipeline.distributed.master.recording import Recorder
from ctr_pipeline.distributed.master.serial_executor import SerialExecutor
from ctr_pipeline.distributed.master.status import NewestCut
from ctr_pipeline.distributed.master.validation import read_record
from ctr_pipeline.errors import CtrPipelineError

_CLOSE_SECONDS = 5.0
_MAX_DECISIONS = 5
"""An epoch whose end cannot be decided on so often fails the job."""

LongAction = TakeCut | RestoreCut | DropCuts | MovePartitions | AnnouncePlacement | DecideEpoch


class LongWork:
    """Does one thing after another, in a thread of its own, and tells the job how it went.

    Args:
        job: Is told.
        cuts: Takes and restores cuts.
        mover: Moves partitions.
        recorder: Writes metrics and events for people.
        decide_epoch: Metrics of an epoch and whether to stop.
        delays: Pauses between tries, as of `backoff.delays`.
        wall_clock: Unix time, seconds.
        newest_cut: When it begins.

    Attributes:
        newest_cut: The newest cut that can be restored.
    """

    def __init__(
        self,
        job: DurableJob,
        *,
        cuts: CutKeeper,
        mover: Mover,
        recorder: Recorder,
        decide_epoch: Callable[[DecideEpoch], EpochDecided],
        delays: Callable[..., Iterator[float]],
        wall_clock: Callable[[], float],
        newest_cut: NewestCut,
    ) -> None:
        self._job = job
        self._cuts = cuts
        self._mover = mover
        self._recorder = recorder
        self._decide_epoch = decide_epoch
        self._delays = delays
        self._wall_clock = wall_clock
        self.newest_cut = newest_cut
        self._executor = SerialExecutor("cuts", partial(job.stumble, "its checkpoints"))

    def do_soon(self, action: LongAction) -> None:
        """Does it after all that it was given before; returns at once."""
        self._executor.put(partial(self._do, action))

    def close(self) -> None:
        """Ends its thread; waits for what it is doing, but not for ever."""
        self._executor.close(_CLOSE_SECONDS)

    def _do(self, action: LongAction) -> None:
        match action:
            case TakeCut():
                self._take_cut(action)
            case RestoreCut():
                self._restore_cut(action)
            case MovePartitions():
                self._move_partitions(action)
            case AnnouncePlacement():
                self._announce_placement(action)
            case DropCuts(keep):
                for damage in self._cuts.keep_only(keep):
                    self._job.submit_unless_gone(damage)
            case DecideEpoch():
                self._job.submit_unless_gone(self._decide(action))

    def _move_partitions(self, action: MovePartitions) -> None:
        outcome = self._mover.move(
            action,
            self._job.ps_addresses_with(action.planned.source),
            abandoned=partial(self._job.is_void, action.generation),
        )
        self._job.submit_unless_gone(outcome)

    def _announce_placement(self, action: AnnouncePlacement) -> None:
        held_seconds = self._mover.place(
            action,
            self._job.ps_addresses_with(action.planned.source),
            abandoned=partial(self._job.is_void, action.generation),
        )
        planned = action.planned
        if action.is_done and not self._job.closing.is_set():
            what = f"{len(planned.partitions)} partitions"
            what += " and the dense parameters" if planned.takes_dense else ""
            self._job.announce(
                f"{what} moved from parameter server {planned.source} to {planned.target}: "
                f"{planned.reason}",
                ""
                if held_seconds is None
                else f"updates of them were held for {held_seconds:.3f} s at most",
            )

    def _take_cut(self, action: TakeCut) -> None:
        try:
            outcome = self._cuts.take(
                action,
                *self._job.holders(),
                abandoned=partial(self._job.is_void, action.generation),
                fence=partial(self._job.fence, action.cut),
            )
        except Exception as error:
            self._job.submit_unless_gone(CutFailed(action.cut, f"{type(error).__name__}: {error}"))
            raise
        if isinstance(outcome, CutTaken):
            self.newest_cut = NewestCut(action.cut, action.step, self._wall_clock())
        self._job.submit_unless_gone(outcome)

    def _restore_cut(self, action: RestoreCut) -> None:
        try:
            outcome, restored = self._cuts.restore(
                action,
                *self._job.holders(),
                abandoned=partial(self._job.is_void, action.generation),
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._job.submit_unless_gone(
                RestoreFailed(action.generation, action.cut, reason, "server")
            )
            raise
        self._job.submit_unless_gone(outcome)
        if restored is None:
            return
        # What the machine made of it: the best cut at the end takes nothing back.
        status = self._job.status()
        if status.last_cut == restored.cut:
            self.newest_cut = restored
        self._recorder.roll_back(status.step, [read_record(line) for line in status.history])

    def _decide(self, action: DecideEpoch) -> EpochDecided | CannotGoOn:
        pauses = self._delays(0.1, 4.0, 10.0, seed=0)
        attempts = 0
        while True:
            try:
                outcome = self._decide_epoch(action)
                history = [read_record(line) for line in (*action.history, outcome.record)]
                self._recorder.end_epoch(history)
            except CtrPipelineError as error:
                return CannotGoOn(str(error))
            except Exception as error:  # noqa: BLE001  of a disk that is away, for example
                attempts += 1
                self._job.stumble("the end of an epoch", error)
                if attempts >= _MAX_DECISIONS or self._job.closing.wait(next(pauses)):
                    return CannotGoOn(f"the end of an epoch cannot be noted: {error}")
            else:
                return outcome
