"""The state of a job, what can be asked of it, and what several of its decisions do to it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self

from ctr_pipeline.distributed.coordination.claims import Claims
from ctr_pipeline.distributed.coordination.cuts import CutRecord, CutSchedule
from ctr_pipeline.distributed.coordination.events import (
    Action,
    Announce,
    EpochTotals,
    Fail,
    Phase,
)
from ctr_pipeline.distributed.coordination.job.head import JobHead, Servers
from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.members import MemberState
from ctr_pipeline.distributed.coordination.messages import Member, Role, TaskKey, TaskKind
from ctr_pipeline.distributed.coordination.moves import HeatWatch, MoveSchedule
from ctr_pipeline.distributed.coordination.news import Topic
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.storage_wait import StorageWait
from ctr_pipeline.distributed.coordination.task_board import TaskBoard
from ctr_pipeline.distributed.coordination.timeouts import MovingAverage, SteadyClock
from ctr_pipeline.distributed.coordination.work_sharing import Queue, WaitingLease

_OVER: frozenset[Phase] = frozenset({"finished", "stopped", "failed"})


@dataclass
class JobState:
    """All that a job knows; every decision reads and changes nothing else.

    The ledger holds what the first group says: `records.LedgerRecords` compares it with what is
    written. The rest a new master finds out again.

    Attributes:
        clock: The job's.
        head: The state that a job has once.
        servers: Which parameter server holds what.
        ledger: Which batches count as trained.
        scoring: Tasks that score splits; None: nothing is being scored.
        cuts: Cuts that can be restored, by number.
        members: By role and index.
        claims: Batches that were reported and that no cut has shown yet.

        actions: The executor's next actions, in this order.
        cut_schedule: When the next cut is due.
        pending_cut: The cut that is being taken; None: none is, or it no longer counts.
        pending_ends_epoch: It holds a whole epoch.
        counted_since_cut: There is something that no cut holds.
        cut_began_at: When the cut that was begun last was, on the job's clock.
        cut_seconds: What the last cut took.
        move_schedule: When partitions move.
        heat: Which parameter servers are busy.
        restore_in_flight: Parameter servers are loading a cut.
        restore_retry_at: No restore is asked for earlier, on the job's clock.
        restore_failures: In a row.
        storage: Whether checkpoints can be read and written.
        waiting: Workers without enough to do, by name, in the order in which they asked.
        look_at: Waiting workers for which there may be work now; None: all.
        is_deciding: The executor decides on the epoch that was validated last.
        stops_with: The first cut that is new enough for an asked stop.
        stop_rests_by: An asked stop waits no longer for workers, on the job's clock.
        recovering_since: When servers, or all workers, were lost, on the job's clock; None: work
            goes on.
        rows_rolled_back: By the last restore.
        still_seconds: For how long workers have held work of which nothing was counted.
        stall_checked_at: When that was looked at last, on the job's clock.
        seconds_per_row: Measured on tasks that ended, by kind.
        over_since: When the job was over, on the job's clock; None: it was not seen to be.
        seen_since_over: The launcher has told of its processes since.
        has_ended: The executor was told to end.
    """

    settings: JobSettings
    clock: SteadyClock
    head: JobHead
    servers: Servers
    ledger: Ledger
    cut_schedule: CutSchedule
    heat: HeatWatch
    storage: StorageWait
    scoring: TaskBoard | None = None
    cuts: dict[int, CutRecord] = field(default_factory=dict)
    members: dict[tuple[Role, int], MemberState] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)

    actions: list[Action] = field(default_factory=list)
    pending_cut: CutRecord | None = None
    pending_ends_epoch: bool = False
    counted_since_cut: bool = False
    cut_began_at: float = 0.0
    cut_seconds: float = 0.0
    move_schedule: MoveSchedule = field(default_factory=MoveSchedule)
    restore_in_flight: bool = False
    restore_retry_at: float = 0.0
    restore_failures: int = 0
    waiting: dict[str, WaitingLease] = field(default_factory=dict)
    look_at: set[str] | None = field(default_factory=set)
    is_deciding: bool = False
    stops_with: int = 0
    stop_rests_by: float = 0.0
    recovering_since: float | None = None
    rows_rolled_back: int = 0
    still_seconds: float = 0.0
    stall_checked_at: float = 0.0
    seconds_per_row: dict[TaskKind, MovingAverage] = field(
        default_factory=lambda: {"train": MovingAverage(), "score": MovingAverage()}
    )
    over_since: float | None = None
    seen_since_over: bool = False
    has_ended: bool = False

    @classmethod
    def begin(cls, settings: JobSettings, now: float) -> Self:
        """A job of which nothing has happened yet."""
        return cls(
            settings=settings,
            clock=SteadyClock(now, settings.most_clock_step_seconds),
            head=JobHead(
                min_workers=settings.min_workers,
                max_workers=settings.max_workers,
                target_workers=settings.max_workers,
            ),
            servers=Servers(settings.first_placement(), settings.num_parameter_servers),
            ledger=Ledger(),
            cut_schedule=CutSchedule(settings.course.checkpoint_seconds, 0.0),
            heat=HeatWatch(settings.heat),
            storage=StorageWait(settings.supervision.storage_timeout_seconds),
        )

    @property
    def now(self) -> float:
        """Seconds on the job's clock."""
        return self.clock.seconds

    @property
    def is_over(self) -> bool:
        """Whether the job has finished, was stopped, or has failed."""
        return self.head.phase in _OVER

    @property
    def newest_cut(self) -> int:
        """The newest cut that can be restored; 0: there is none."""
        return max(self.cuts, default=0)

    @property
    def scored_epoch(self) -> int:
        """The epoch that was trained last."""
        return max(0, self.ledger.epoch - 1)

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """Addresses of the servers that hold something, by index; empty where one is missing."""
        return self.all_ps_addresses[: self.servers.placement.num_servers]

    @property
    def all_ps_addresses(self) -> tuple[str, ...]:
        """The same addresses, and after them those of servers that are to hold something."""
        return self.ps_addresses_with(0)

    def ps_addresses_with(self, server: int) -> tuple[str, ...]:
        """All these addresses, and that of a parameter server that is about to leave."""
        number = max(self.servers.number, server + 1)
        return tuple(self.member("ps", index).address for index in range(number))

    def announce(
        self,
        what: str,
        done: str,
        seconds: float | None = None,
        *,
        topic: Topic = "job",
        is_disruption: bool = False,
    ) -> None:
        """Tells people what has happened, what the job does about it, and how long it took."""
        self.actions.append(Announce(what, done, seconds, topic, is_disruption))

    @property
    def all_is_scored(self) -> bool:
        """The final splits are scored, or there are none."""
        return bool(self.head.final_scores) or not self.settings.final_splits

    def repeated(self) -> dict[int, int]:
        """Records executed beyond those counted, by epoch."""
        board, epoch = self.ledger.board, self.ledger.epoch
        repeated = dict(self.head.repeated)
        if board is not None and board.rows_repeated:
            repeated[epoch] = repeated.get(epoch, 0) + board.rows_repeated
        return repeated

    def totals(self) -> list[EpochTotals]:
        """Totals of all epochs so far, the open one last."""
        repeated = self.repeated()
        found = [
            EpochTotals(
                epoch.epoch,
                epoch.trained,
                repeated.get(epoch.epoch, 0),
                epoch.dropped,
                epoch.loss_sum,
                self.head.seconds.get(epoch.epoch, 0.0),
            )
            for epoch in self.ledger.closed
        ]
        board, epoch = self.ledger.board, self.ledger.epoch
        if board is not None:
            found.append(
                EpochTotals(
                    epoch,
                    board.rows_done,
                    repeated.get(epoch, 0),
                    board.rows_dropped,
                    board.loss_sum,
                    self.head.seconds.get(epoch, 0.0),
                )
            )
        return found

    def pass_time(self, now: float) -> None:
        """Advances the job's clock."""
        step = self.clock.advance(now)
        if self.head.phase == "training":
            epoch = self.ledger.epoch
            self.head.seconds[epoch] = self.head.seconds.get(epoch, 0.0) + step

    def enter(self, phase: Phase) -> None:
        """The job goes over into another phase."""
        self.head.phase = phase
        self.look_at = None
        if phase in _OVER:
            self.over_since = None
            self.release_all()

    def cut_to_restore(self, among: Collection[int] | None = None) -> int:
        """The cut to go back to, of all or some; 0: the beginning."""
        cuts = self.cuts if among is None else among
        if not self.head.training_over:
            return max(cuts, default=0)
        best = self.ledger.best_cut
        if best in cuts:
            return best
        # The best cut is damaged: the newest epoch that has one is the next best thing.
        return max((cut for cut in self.ledger.epoch_cuts.values() if cut in cuts), default=0)

    def member(self, role: Role, index: int) -> MemberState:
        """The place of a member, filled or not."""
        place = (role, index)
        if place not in self.members:
            self.members[place] = MemberState(role, index)
        return self.members[place]

    def workers(self) -> list[MemberState]:
        """The places of all workers that there ever were."""
        return [member for member in self.members.values() if member.role == "worker"]

    def registered(self, who: Member) -> MemberState | None:
        """The member that a caller is; None: it has not registered, or was given up."""
        member = self.members.get((who.role, who.index))
        return member if member is not None and member.is_process(who) else None

    def is_void(self, who: Member) -> bool:
        """Whether an unknown process has no place here, now or later."""
        member = self.members.get((who.role, who.index))
        if self.is_over:
            return True
        # Its place is taken by another process, or it was given up.
        return member is not None and (
            bool(member.incarnation) or who.incarnation in member.given_up
        )

    def is_wanted(self, member: MemberState) -> bool:
        """Whether the job needs the place to be filled now."""
        if self.is_over:
            return False
        if member.role == "ps":
            return member.index < self.servers.number
        wanted = self.head.target_workers + self.settings.supervision.standby_workers
        return member.index < wanted

    def release_all(self) -> None:
        """Nobody holds a task any more."""
        for board in self.boards():
            for key, _ in board.held():
                self.release(board, key)

    def release_leases_of(self, member: MemberState) -> int:
        """A worker holds nothing any more; how many tasks it held."""
        num_leases = 0
        for board in self.boards():
            for key, _ in board.held_by(member.incarnation):
                self.release(board, key)
                num_leases += 1
        return num_leases

    def fail(self, reason: str, traceback: str = "") -> None:
        """The job is over and has failed, unless it is over already."""
        if self.is_over:
            return
        self.head.reason, self.head.traceback = reason, traceback
        self.enter("failed")
        self.actions.append(Fail(reason, traceback))

    def open_board(self) -> TaskBoard | None:
        """Tasks that workers may work on now; None: there are none."""
        if not self.head.is_restored:
            return None
        if self.head.phase == "training":
            return self.ledger.board
        return self.scoring if self.head.phase in {"validating", "scoring"} else None

    def boards(self) -> list[TaskBoard]:
        """The boards of training and of scoring, where there are any."""
        boards = (self.ledger.board, self.scoring)
        return [board for board in boards if board is not None]

    def board_of(self, key: TaskKey) -> TaskBoard | None:
        """The tasks that one belongs to; None: it is not among those of now."""
        board = self.ledger.board if key.kind == "train" else self.scoring
        return board if board is not None and key in board else None

    def is_done(self, key: TaskKey) -> bool:
        """Whether all batches of a task are counted."""
        board = self.board_of(key)
        return board is not None and board.task(key).is_done

    def release(self, board: TaskBoard, key: TaskKey) -> None:
        """A held task is there for all again."""
        board.release(key)
        self.look_at = None

    def begin_recovery(self) -> None:
        """Work stands still from now on, until `announce_recovery`."""
        if self.recovering_since is None and self.head.has_started:
            self.recovering_since = self.now

    def announce_recovery(self) -> None:
        """Work goes on for the first time since servers, or all workers, were lost."""
        if self.recovering_since is not None:
            seconds = self.now - self.recovering_since
            self.recovering_since = None
            done = "its work goes on"
            if self.rows_rolled_back:
                done = f"{self.rows_rolled_back:,} records are trained again"
            self.rows_rolled_back = 0
            self.announce("the job has recovered", done, seconds, topic="recovery")

    def forget_cut(self, cut: int) -> None:
        """A cut can no longer be restored; its files are left to others."""
        del self.cuts[cut]

    def begin_scoring(self) -> None:
        """Splits begin to be scored: the final ones, or the one after every epoch."""
        splits = self.settings.splits_to_score(final=self.head.training_over)
        self.scoring = TaskBoard.of_splits(splits, self.scored_epoch)

    def end_scoring(self) -> None:
        """Nothing is being scored any more."""
        self.scoring = None

    def queue_of(self, member: MemberState, board: TaskBoard) -> Queue:
        """What a worker holds of a board."""
        kind: TaskKind = "train" if board is self.ledger.board else "score"
        return Queue(board.held_by(member.incarnation), member.speed_of(kind))
