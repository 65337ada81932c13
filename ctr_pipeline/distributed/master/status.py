"""What a job says of itself to people and programs; the reply of `MasterService.Status`."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from ctr_pipeline.distributed.coordination.events import Phase, SplitTotals
from ctr_pipeline.distributed.coordination.job.status import JobFacts, JobStatus, MemberStatus
from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.coordination.news import Topic
from ctr_pipeline.distributed.master.timeline import JobMoment
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.specs.table import TableSpec
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

_CLOCKS_DIFFER_BY_SECONDS = 0.5

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
        is_disruption: Work was lost, or stood still, because of it.
        repeated: Records executed beyond those counted, when it happened.
    """

    time: float
    what: str
    done: str
    recovery_seconds: float | None
    topic: Topic = "job"
    is_disruption: bool = False
    repeated: int = 0

    @property
    def sentence(self) -> str:
        """What happened, what was done about it, and how long it took."""
        text = f"{self.what}: {self.done}" if self.done else self.what
        if self.recovery_seconds is not None:
            text += f" ({self.recovery_seconds:.1f} s)"
        return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Disruption:
    """Failures that came together, and what they cost.

    Attributes:
        time: Unix time of the first, seconds.
        what: What happened.
        done: How the job reacted; may be empty.
        records_repeated: Records trained again because of it, so far.
        seconds_lost: Seconds in which nobody worked; 0 where others went on.
    """

    time: float
    what: str
    done: str
    records_repeated: int
    seconds_lost: float


@dataclass(frozen=True)
class TableUse:
    """What the rows of one embedding table take.

    Attributes:
        name: Name of the table.
        features: Features whose ids it holds rows of.
        num_ids: Ids that there can be.
        rows: Rows made so far.
        row_bytes: Bytes of their records, keys and marks.
    """

    name: str
    features: tuple[str, ...]
    num_ids: int
    rows: int
    row_bytes: int


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
        timeline: Members, records and speed so far.
        disruptions: What failures have cost, as far as `events` goes back.
        tables: Embedding tables; empty if no parameter server has told of its rows.
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
    timeline: tuple[JobMoment, ...] = ()
    disruptions: tuple[Disruption, ...] = ()
    tables: tuple[TableUse, ...] = ()

    def to_metrics(self) -> dict[str, Any]:
        """Records, restarts, disruptions and members of a job that is over, for `metrics.json`."""
        return {
            "records": asdict(self.records),
            "dropped_tasks": list(self.dropped_tasks),
            "generation": self.generation,
            "refused_reports": self.refused_reports,
            "restarts": {
                role: sum(one.restarts for one in self.members if one.role == role)
                for role in ("master", "ps", "worker")
            },
            "disruptions": [asdict(one) for one in self.disruptions],
            "members": [_member_facts(one) for one in self.members],
        }


def _member_facts(member: MemberStatus) -> dict[str, Any]:
    stats = member.stats or MemberStats()
    return {
        "role": member.role,
        "index": member.index,
        "pid": member.pid,
        "restarts": member.restarts,
        "rows_held": stats.rows_held,
        "bytes_received": stats.bytes_received,
        "bytes_sent": stats.bytes_sent,
        "cpu_seconds": stats.cpu_seconds,
        "rss_bytes": stats.rss_bytes,
    }


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
    timeline: Sequence[JobMoment] = (),
    tables: Sequence[TableSpec] = (),
    table_features: Sequence[tuple[str, ...]] = (),
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
        timeline: Members, records and speed so far.
        tables: Embedding tables.
        table_features: Features of each table; empty: that of the table's name.
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
        timeline=tuple(timeline),
        disruptions=price_disruptions(events, status.repeated),
        tables=_measure_tables(members, tables, table_features),
    )


def price_disruptions(events: Sequence[JobEvent], repeated: int) -> tuple[Disruption, ...]:
    """What each failure has cost.

    Failures while work stood still are one disruption. Records repeated after a disruption, up to
    the next one, are its price.

    Args:
        events: Events of the job, oldest first.
        repeated: Records executed beyond those counted, now.
    """
    groups: list[list[JobEvent]] = []
    seconds: list[float] = []
    for event in events:
        if event.is_disruption:
            groups.append([event])
            seconds.append(0.0)
        elif event.recovery_seconds is not None:
            # The clock of the job and that of the log differ by little.
            since = event.time - event.recovery_seconds - _CLOCKS_DIFFER_BY_SECONDS
            together: list[JobEvent] = []
            while groups and groups[-1][-1].time >= since:
                together = groups.pop() + together
                seconds.pop()
            groups.append(together or [event])
            seconds.append(event.recovery_seconds)
    counts = [*(group[0].repeated for group in groups), repeated]
    return tuple(
        Disruption(
            time=group[0].time,
            what="; ".join(dict.fromkeys(event.what for event in group)),
            done="; ".join(dict.fromkeys(event.done for event in group if event.done)),
            records_repeated=max(0, after - before),
            seconds_lost=lost,
        )
        for group, lost, (before, after) in zip(groups, seconds, pairwise(counts), strict=True)
    )


def _measure_tables(
    members: Sequence[MemberStatus],
    tables: Sequence[TableSpec],
    features: Sequence[tuple[str, ...]],
) -> tuple[TableUse, ...]:
    """Rows and bytes of each table, over all parameter servers."""
    loads = [one.stats.loads for one in members if one.stats is not None and one.stats.loads]
    if not any(one.table_rows for one in loads):
        return ()
    return tuple(
        TableUse(
            name=table.name,
            features=features[number] if features else (table.name,),
            num_ids=table.num_ids,
            rows=sum(one.table_rows[number] for one in loads),
            row_bytes=sum(one.table_rows[number] * one.bytes_a_row for one in loads),
        )
        for number, table in enumerate(tables)
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
