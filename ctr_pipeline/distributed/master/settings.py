"""What a job is told before it starts, from its spec."""

from operator import attrgetter

from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.distributed.coordination.moves import HeatRules
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.scaling import WorkerBounds
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK, EncodedSplit, JobSpec
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.machine import available_cores
from ctr_pipeline.specs.course import Supervision, WorkersConfig
from ctr_pipeline.specs.launchers import DEFAULT_MODE, LAUNCHERS

_BATCHES_PER_SCORE_TASK = 16
_LEAST_ROWS_PER_SCORE_TASK = 16_384
_MOST_CLOCK_STEP_SECONDS = 2.0
_FINAL_SPLITS = ("valid", "test")
_NEWS_SECONDS = 0.2
_MOST_HEARTBEATS_A_SECOND = 300
"""Heartbeats of all members together; a master spends about a millisecond on each."""

_WORKERS_QUEUED = 32
"""Enough to take at once what quota is freed, and few to lie in the queue before others."""


def plan_epoch(spec: JobSpec, epoch: int) -> EpochPlan:
    """The tasks of an epoch.

    Args:
        spec: The job's spec, with training rows.
        epoch: From 0.
    """
    order = _order_of(spec, epoch)
    return EpochPlan(
        epoch=epoch,
        num_tasks=order.num_tasks,
        rows_per_task=order.rows_per_task,
        batch_size=spec.course.batch_size,
        other_rows=order.uneven_tasks,
    )


def steps_through(spec: JobSpec, epoch: int) -> int:
    """Batches of all epochs up to and with one.

    Epochs need not have equally many: the block of rows that is short may stand in any task.
    """
    return sum(_order_of(spec, number).num_batches for number in range(epoch + 1))


def _order_of(spec: JobSpec, epoch: int) -> EpochOrder:
    rows, course = _require_train(spec).num_rows, spec.course
    return EpochOrder(rows, course.batch_size, course.seed, epoch, course.shuffle, BATCHES_PER_TASK)


def plan_job(
    spec: JobSpec, *, scores_folder: str, mode: str = DEFAULT_MODE, is_queued: bool = False
) -> JobSettings:
    """What the job machine is told.

    Args:
        scores_folder: Where scores of the final splits go, from the run folder.
        mode: The launcher's mode; where people start members, any.
        is_queued: As `is_queued` finds it.

    Raises:
        TrainingError: There is nothing to train on.
    """
    _require_train(spec)
    supervision = spec.supervision
    workers = bound_workers(supervision)
    valid = spec.split("valid")
    finals = (spec.split(name) for name in _FINAL_SPLITS)
    members = spec.num_parameter_servers + workers.most + supervision.standby_workers
    crowded = members / _MOST_HEARTBEATS_A_SECOND
    # Three may be lost on the way before a member counts as silent.
    heartbeat = max(supervision.heartbeat_seconds, min(crowded, supervision.silence_seconds / 3))
    return JobSettings(
        num_parameter_servers=spec.num_parameter_servers,
        min_workers=workers.least,
        max_workers=workers.most,
        course=spec.course,
        supervision=supervision,
        plan_epoch=lambda epoch: plan_epoch(spec, epoch),
        valid=_plan_split(valid, spec.course.batch_size) if valid else None,
        final_splits=tuple(_plan_split(split, spec.course.batch_size) for split in finals if split),
        scores_folder=scores_folder,
        first_cut=1 if spec.fence is None else spec.fence.first_cut,
        heartbeat_seconds=heartbeat,
        news_seconds=min(heartbeat, max(_NEWS_SECONDS, crowded)),
        has_rounds=spec.update_rule.update != "async",
        max_workers_starting=LAUNCHERS.get(mode, LAUNCHERS[DEFAULT_MODE]).max_workers_starting,
        max_workers_queued=_WORKERS_QUEUED if is_queued else None,
        most_clock_step_seconds=min(_MOST_CLOCK_STEP_SECONDS, supervision.silence_seconds / 3),
        placement=balanced_placement(spec),
        heat=_plan_heat(supervision.move_partitions_after_seconds),
    )


def is_queued(config: Config) -> bool:
    """Whether members wait for quota in a queue of the cluster."""
    kind = LAUNCHERS.get(config.runtime.mode)
    if kind is None or kind.queue_key is None:
        return False
    return attrgetter(kind.queue_key)(config) is not None


def _plan_heat(seconds: float | None) -> HeatRules:
    return HeatRules(may_move=False) if seconds is None else HeatRules(hot_seconds=seconds)


def bound_workers(supervision: Supervision) -> WorkerBounds:
    """How many workers there may be; where it is to be found out, one for each core at most."""
    workers = supervision.workers
    if isinstance(workers, WorkersConfig):
        return WorkerBounds(workers.min, workers.max)
    return WorkerBounds(1, available_cores())


def _require_train(spec: JobSpec) -> EncodedSplit:
    train = spec.split("train")
    if train is None or not train.num_rows:
        raise TrainingError("the job has no training rows")
    return train


def _plan_split(split: EncodedSplit, batch_size: int) -> ScoredSplit:
    rows = max(_BATCHES_PER_SCORE_TASK * batch_size, _LEAST_ROWS_PER_SCORE_TASK)
    return ScoredSplit(split.name, split.num_rows, rows)
