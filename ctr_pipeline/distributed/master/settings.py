"""From the job's spec and the user's config to what the job machine is told."""

import math
from dataclasses import replace
from pathlib import Path

from ctr_pipeline.config.models import RuntimeConfig, WorkersConfig
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.distributed.coordination.moves import HeatRules
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.scaling import WorkerBounds
from ctr_pipeline.distributed.coordination.settings import JobSettings
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK, EncodedSplit, JobSpec
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.machine import available_cores

_BATCHES_PER_SCORE_TASK = 16
_LEAST_ROWS_PER_SCORE_TASK = 16_384
_MOST_CLOCK_STEP_SECONDS = 2.0
_FINAL_SPLITS = ("valid", "test")
_NEWS_SECONDS = 0.2
_MOST_HEARTBEATS_A_SECOND = 300
"""Of all members together; a master spends about a millisecond on each."""


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
    spec: JobSpec, runtime: RuntimeConfig, *, scores_folder: Path, launched: bool
) -> JobSettings:
    """What the job machine is told.

    Args:
        runtime: The user's wishes.
        scores_folder: Where scores of the final splits go.
        launched: A launcher starts the members; otherwise people do, in their own time.

    Raises:
        TrainingError: There is nothing to train on.
    """
    _require_train(spec)
    workers = bound_workers(runtime)
    valid = spec.split("valid")
    finals = (spec.split(name) for name in _FINAL_SPLITS)
    members = spec.num_parameter_servers + workers.most + runtime.standby_workers
    crowded = members / _MOST_HEARTBEATS_A_SECOND
    # Three may be lost on the way before a member counts as silent.
    heartbeat = max(runtime.heartbeat_seconds, min(crowded, runtime.silence_seconds / 3))
    settings = JobSettings(
        num_parameter_servers=spec.num_parameter_servers,
        min_workers=workers.least,
        max_workers=workers.most,
        standby_workers=runtime.standby_workers,
        course=spec.course,
        plan_epoch=lambda epoch: plan_epoch(spec, epoch),
        valid=_plan_split(valid, spec.course.batch_size) if valid else None,
        final_splits=tuple(_plan_split(split, spec.course.batch_size) for split in finals if split),
        scores_folder=str(scores_folder),
        heartbeat_seconds=heartbeat,
        news_seconds=min(heartbeat, max(_NEWS_SECONDS, crowded)),
        has_rounds=spec.update.mode != "async",
        work_ahead_seconds=runtime.work_ahead_seconds,
        worker_silence_seconds=runtime.silence_seconds,
        server_silence_seconds=runtime.silence_seconds,
        most_clock_step_seconds=min(_MOST_CLOCK_STEP_SECONDS, runtime.silence_seconds / 3),
        storage_timeout_seconds=runtime.storage_timeout_seconds,
        max_task_failures=runtime.max_task_failures,
        max_dropped_tasks=runtime.max_dropped_tasks,
        placement=balanced_placement(spec),
        heat=_plan_heat(runtime.move_partitions_after_seconds),
    )
    return settings if launched else replace(settings, start_seconds=math.inf)


def _plan_heat(seconds: float | None) -> HeatRules:
    return HeatRules(may_move=False) if seconds is None else HeatRules(hot_seconds=seconds)


def bound_workers(runtime: RuntimeConfig) -> WorkerBounds:
    """How many workers there may be; where it is to be found out, one for each core at most."""
    if isinstance(runtime.workers, WorkersConfig):
        return WorkerBounds(runtime.workers.min, runtime.workers.max)
    return WorkerBounds(1, available_cores())


def _require_train(spec: JobSpec) -> EncodedSplit:
    train = spec.split("train")
    if train is None or not train.num_rows:
        raise TrainingError("the job has no training rows")
    return train


def _plan_split(split: EncodedSplit, batch_size: int) -> ScoredSplit:
    rows = max(_BATCHES_PER_SCORE_TASK * batch_size, _LEAST_ROWS_PER_SCORE_TASK)
    return ScoredSplit(split.name, split.num_rows, rows)
