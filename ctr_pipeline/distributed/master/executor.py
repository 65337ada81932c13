"""Feeds the job machine with what happens and does what it decides.

Calls to launchers and servers and files of checkpoints are left to threads of their own, and come
back as events.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ctr_pipeline.distributed.coordination.codec import to_record
from ctr_pipeline.distributed.coordination.events import (
    Action,
    AnnouncePlacement,
    DecideEpoch,
    DropCuts,
    EpochDecided,
    MovePartitions,
    RestoreCut,
    StartMember,
    StopMember,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.job.status import JobStatus
from ctr_pipeline.distributed.coordination.launching import MemberControl
from ctr_pipeline.distributed.master.autoscaling import Autoscaler
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.durable_job import DurableJob
from ctr_pipeline.distributed.master.ledger.store import LedgerStore
from ctr_pipeline.distributed.master.long_work import LongWork
from ctr_pipeline.distributed.master.members import Members
from ctr_pipeline.distributed.master.moves import Mover
from ctr_pipeline.distributed.master.recording import Recorder
from ctr_pipeline.distributed.master.recovery import TIMELINE_RECORD
from ctr_pipeline.distributed.master.status import NO_CUT, JobEvent, NewestCut
from ctr_pipeline.distributed.master.timeline import JobMoment, Timeline
from ctr_pipeline.distributed.rpc.backoff import delays

_LOGGER = logging.getLogger(__name__)
_NOTE_PROGRESS_EVERY_SECONDS = 2.0
_SCALE_EVERY_SECONDS = 1.0


class JobExecutor(DurableJob):
    """The job machine with its surroundings; may be called by many threads.

    Args:
        job: The machine.
        store: Where its records go.
        launcher: Starts and stops members; None: people do.
        cuts: Takes and restores cuts.
        mover: Moves partitions.
        recorder: Writes metrics and events for people.
        decide_epoch: Metrics of an epoch and whether to stop.
        autoscaler: Chooses the number of workers; None: people do.
        clock: Seconds, never backwards.
        wall_clock: Unix time, seconds.
        delays: Pauses between tries, as of `backoff.delays`.
        events: Events of the masters before this one, oldest first.
        timeline: Moments that they kept, oldest first.
        newest_cut: When this master starts.
    """

    def __init__(
        self,
        job: Job,
        store: LedgerStore,
        *,
        launcher: MemberControl | None,
        cuts: CutKeeper,
        mover: Mover,
        recorder: Recorder,
        decide_epoch: Callable[[DecideEpoch], EpochDecided],
        autoscaler: Autoscaler | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        delays: Callable[..., Iterator[float]] = delays,
        events: Sequence[JobEvent] = (),
        timeline: Sequence[JobMoment] = (),
        newest_cut: NewestCut = NO_CUT,
    ) -> None:
        super().__init__(job, store, clock=clock, wall_clock=wall_clock, events=events)
        self._recorder = recorder
        self._autoscaler = autoscaler
        self._timeline = Timeline(timeline)
        self._progress_due = self._scaling_due = clock()
        self._members = Members(self, launcher, delays)
        self._long_work = LongWork(
            self,
            cuts=cuts,
            mover=mover,
            recorder=recorder,
            decide_epoch=decide_epoch,
            delays=delays,
            wall_clock=wall_clock,
            newest_cut=newest_cut,
        )
        self._members.watch()

    @property
    def timeline(self) -> tuple[JobMoment, ...]:
        """Members, records and speed so far."""
        return self._timeline.moments

    @property
    def newest_cut(self) -> NewestCut:
        """The newest cut that can be restored."""
        return self._long_work.newest_cut

    def tick(self) -> None:
        """Time has passed."""
        now = self._clock()
        if self._autoscaler is not None and now >= self._scaling_due:
            self._scaling_due = now + _SCALE_EVERY_SECONDS
            self._scale(self._autoscaler)
        self.submit(Tick())
        if now < self._progress_due:
            return
        self._progress_due = now + _NOTE_PROGRESS_EVERY_SECONDS
        status = self.status()
        self._note_moment(status)
        if status.phase == "training" and status.epochs and status.epochs[-1].trained:
            totals = status.epochs[-1]
            self._recorder.note_progress(
                status.step,
                train_logloss=totals.loss_sum / totals.trained,
                samples_per_second=self.samples_per_second,
            )

    def _note_moment(self, status: JobStatus) -> None:
        running = Counter(one.role for one in status.members if one.state == "running")
        moment = JobMoment(
            time=self._wall_clock(),
            workers=running["worker"],
            servers=running["ps"],
            trained=status.trained,
            samples_per_second=self.samples_per_second,
        )
        with self._lock:
            is_kept = self._timeline.note(moment)
        if is_kept:
            record = {"moments": to_record(self._timeline.moments)}
            self.note({TIMELINE_RECORD: record}, durable=False)

    def _scale(self, autoscaler: Autoscaler) -> None:
        step = autoscaler.poll(self.status())
        if step is None:
            return
        if step.scale is not None:
            number = step.scale.target_workers
            wanted = "1 worker is" if number == 1 else f"{number} workers are"
            _LOGGER.info("%s wanted: %s", wanted, step.reason)
            self.submit(step.scale)
        for worker in step.stragglers:
            what = f"worker {worker} stays far behind the others"
            self.announce(what, "it is replaced", topic="member")
            self._members.replace_soon(worker)

    def _do_soon(self, action: Action) -> None:
        match action:
            case StartMember() | StopMember():
                self._members.change_soon(action)
            case (
                TakeCut()
                | RestoreCut()
                | DropCuts()
                | MovePartitions()
                | AnnouncePlacement()
                | DecideEpoch()
            ):
                self._long_work.do_soon(action)

    def close(self) -> None:
        """Ends its threads; waits for what they are doing, but not for ever."""
        self.release()
        self._members.close()
        self._long_work.close()
