"""What a job is told before it starts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ctr_pipeline.distributed.coordination.moves import HeatRules
from ctr_pipeline.distributed.coordination.placement import Placement, even_placement
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit
from ctr_pipeline.specs.course import Supervision, TrainingCourse


@dataclass(frozen=True)
class JobSettings:
    """What a job is told before it starts.

    Attributes:
        num_parameter_servers: Parameter servers that the job begins with, all needed.
        min_workers: Training starts when so many have registered.
        max_workers: Wanted.
        course: For how long it is trained, and when a cut is taken and kept.
        supervision: How many workers it keeps, and when it replaces a member.
        plan_epoch: The tasks of an epoch; pure.
        valid: Scored after every epoch; None skips it.
        final_splits: Scored under the best cut at the end, with files of scores.
        scores_folder: Where those files go: `<split>-<task>.f32`.
        first_cut: Cuts have this number and higher ones.
        full_every: One cut in so many holds all rows.
        heartbeat_seconds: Between heartbeats of a member; longer than asked for where there are
            many members.
        news_seconds: For which a worker's progress waits for its heartbeat, at most.
        has_rounds: Parameter servers wait for the workers that train, and are told of them.
        task_timeout_floor_seconds: No task is taken back sooner for being slow.
        task_timeout_factor: A task is taken back after so many times the usual time.
        max_start_failures: A job fails after so many errors in a row without progress, so many
            of them of one member.
        max_workers_starting: Workers that are being started at a time.
        max_workers_queued: Workers among these that wait for a place to run, where members wait
            for quota in a queue; they come after all servers have a place. None: there is no queue.
        leave_seconds: For members to leave at the end before they are stopped.
        most_clock_step_seconds: More than this between two calls counts as this.
        placement: Which server holds what when the job begins; None: one partition per server.
        heat: When partitions of a busy server move.
    """

    num_parameter_servers: int
    min_workers: int
    max_workers: int
    course: TrainingCourse
    supervision: Supervision
    plan_epoch: Callable[[int], EpochPlan]
    valid: ScoredSplit | None = None
    final_splits: tuple[ScoredSplit, ...] = ()
    scores_folder: str = ""
    first_cut: int = 1
    full_every: int = 10
    heartbeat_seconds: float = 1.0
    news_seconds: float = 0.2
    has_rounds: bool = True
    task_timeout_floor_seconds: float = 60.0
    task_timeout_factor: float = 3.0
    max_start_failures: int = 3
    max_workers_starting: int = 4
    max_workers_queued: int | None = None
    leave_seconds: float = 10.0
    most_clock_step_seconds: float = 2.0
    placement: Placement | None = None
    heat: HeatRules = field(default_factory=HeatRules)

    def first_placement(self) -> Placement:
        """The placement when the job begins."""
        servers = self.num_parameter_servers
        return self.placement or even_placement(servers, 0, servers, is_divided=True)

    def splits_to_score(self, *, final: bool) -> tuple[ScoredSplit, ...]:
        """What is scored at the end, or after every epoch."""
        if final:
            return self.final_splits
        return () if self.valid is None else (self.valid,)
