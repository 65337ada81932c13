"""What a job says of itself to people and programs; the reply of `MasterService.Status`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctr_pipeline.distributed.coordination.events import Phase, SplitTotals
from ctr_pipeline.distributed.coordination.job.status import JobFacts, JobStatus, MemberStatus
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.training.history import EpochRecord


@dataclass(frozen=True)
class RecordCounts:
    """Training records of the job.

    Attributes:
        total: Total of all epochs, if none is stopped early.
        trained: Counted, each once an epoch.
        repeated: Executions beyond that.
        dropped: Records of tasks that were given up.
    """

    total: int
    trained: int
    repeated: int
    dropped: int


@dataclass(frozen=True)
class NewestCut:
    """The newest cut, or the one that the job went back to, for whoever tells of it.

    Attributes:
        cut: Its number; 0: none, or the beginning.
        step: Batches of the job that it counts.
        taken_at: Unix time, seconds.
    """

    cut: int
    step: int
    taken_at: float


OVER = frozenset({"finished", "stopped", "failed"})
"""States that a job does not leave by itself."""

NO_CUT = NewestCut(0, 0, 0.0)


@dataclass(frozen=True)
class CheckpointStatus:
    """The newest checkpoint, as users call a cut.

    Attributes:
        step: Batches of the job that it counts.
        age_seconds: Since it was taken.
        best: Number of that of the best epoch; 0: none yet.
    """

    number: int
    step: int
    age_seconds: float
    best: int


@dataclass(frozen=True)
class JobEvent:
    """A line of the event log.

    Attributes:
        time: Unix time, seconds.
        done: How the job reacted; may be empty.
        recovery_seconds: From the failure to work going on; None if that is not what this is.
    """

    time: float
    what: str
    done: str
    recovery_seconds: float | None


@dataclass(frozen=True)
class MasterErrors:
    """Unexpected exceptions of one master, which it went on after.

    Attributes:
        count: Since it started.
        last: Where the last one was, its type and its words; empty if there was none.
    """

    count: int
    last: str


NO_ERRORS = MasterErrors(0, "")


@dataclass(frozen=True)
class SplitMetrics:
    """A split scored in full under the best cut; exact metrics are computed from its scores.

    Attributes:
        split: Its name.
        num_rows: Rows scored.
        logloss: Mean over the rows.
        auc: From the histogram; None if only one class is there.
        auc_error_bound: The exact one is no further away.
        calibration: Sum of predictions over sum of labels; None without a positive row.
    """

    split: str
    num_rows: int
    logloss: float
    auc: float | None
    auc_error_bound: float
    calibration: float | None


@dataclass(frozen=True, kw_only=True)
class JobView(JobFacts):
    """The job as people and programs are told of it.

    Attributes:
        job: Its name.
        state: `waiting`, `restoring`, `training`, `checkpointing` at the end of an epoch,
            `validating`, `scoring`, `stopping`, `finished`, `stopped` or `failed`.
        answering: A master answered; otherwise this is what its ledger held.
        epochs: Most epochs.
        samples_per_second: Counted over the last seconds.
        train_logloss: Logloss of this epoch so far; None before the first batch.
        checkpoint: None before the first cut.
        auc: AUC of the last validation; None before it.
        history: Epochs so far.
        workers_wanted: Now.
        events: The last ones, oldest first.
        master_errors: Errors of the master that answers; none if only the ledger does.
        final_metrics: Metrics of the splits scored under the best cut, once they are.
    """

    job: str
    state: str
    answering: bool
    epochs: int
    records: RecordCounts
    samples_per_second: float
    train_logloss: float | None
    checkpoint: CheckpointStatus | None
    auc: float | None
    history: tuple[EpochRecord, ...]
    workers_wanted: int
    events: tuple[JobEvent, ...]
    master_errors: MasterErrors
    final_metrics: tuple[SplitMetrics, ...]


def view_job(
    status: JobStatus,
    *,
    job: str,
    epochs: int,
    records_per_epoch: int,
    newest_cut: NewestCut,
    unix_time: float,
    samples_per_second: float,
    events: Sequence[JobEvent],
    master: MemberStatus | None,
    master_errors: MasterErrors = NO_ERRORS,
) -> JobView:
    """What is known of a job as it is told.

    Args:
        job: Name.
        epochs: Most epochs.
        records_per_epoch: Training rows.
        unix_time: Now, seconds.
        samples_per_second: Counted over the last seconds.
        events: The last ones.
        master: The one that tells; None: the ledger does.
        master_errors: Errors that the master survived.
    """
    history = tuple(EpochRecord(**record) for record in status.history)
    current = status.epochs[-1] if status.epochs else None
    checkpoint = None
    if newest_cut.cut:
        checkpoint = CheckpointStatus(
            newest_cut.cut,
            newest_cut.step,
            max(0.0, unix_time - newest_cut.taken_at),
            status.best_cut,
        )
    members = status.members
    if master is None:
        members = tuple(_without_master(member, status.phase) for member in members)
    if status.phase == "finished":
        members = tuple(
            replace(one, state="finished") if one.state == "left" else one for one in members
        )
    facts = replace(status, members=(master, *members) if master else members).facts()
    return JobView(
        **facts,
        job=job,
        state="checkpointing" if status.phase == "cutting" else status.phase,
        answering=master is not None,
        epochs=epochs,
        records=RecordCounts(
            total=epochs * records_per_epoch,
            trained=status.trained,
            repeated=status.repeated,
            dropped=status.dropped,
        ),
        samples_per_second=samples_per_second,
        train_logloss=current.loss_sum / current.trained if current and current.trained else None,
        checkpoint=checkpoint,
        auc=_finite(history[-1].valid_auc) if history else None,
        history=history,
        workers_wanted=status.target_workers,
        events=tuple(events),
        master_errors=master_errors,
        final_metrics=tuple(measure_split(totals) for totals in status.final_scores),
    )


def measure_split(totals: SplitTotals) -> SplitMetrics:
    """Metrics of a scored split from its histogram."""
    scores = ScoreHistogram.from_sparse(
        totals.scores.positives,
        totals.scores.negatives,
        loss_sum=totals.scores.loss_sum,
        probability_sum=totals.scores.probability_sum,
    )
    both_classes = 0 < scores.num_positive < scores.num_rows
    estimate = scores.auc(place=totals.split) if both_classes else None
    return SplitMetrics(
        split=totals.split,
        num_rows=totals.num_rows,
        logloss=scores.logloss() if scores.num_rows else math.nan,
        auc=estimate.value if estimate else None,
        auc_error_bound=estimate.error_bound if estimate else 0.0,
        calibration=scores.calibration() if scores.num_positive else None,
    )


def _without_master(member: MemberStatus, phase: Phase) -> MemberStatus:
    """A member as a ledger describes it: nobody knows how it is, unless the master saw it leave."""
    state = "left" if phase in OVER else "unknown"
    return replace(member, state=state, last_seen_seconds=None, stats=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
