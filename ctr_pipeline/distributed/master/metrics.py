"""The job as Prometheus metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.master.status import Disruption, JobView, TableUse

STATES = (
    "waiting",
    "restoring",
    "training",
    "checkpointing",
    "validating",
    "scoring",
    "stopping",
    "finished",
    "stopped",
    "failed",
)


class JobCollector(Collector):
    """Reads the job when Prometheus asks.

    Args:
        view: The job now.
    """

    def __init__(self, view: Callable[[], JobView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        view = self._view()
        state = GaugeMetricFamily("ctrpipe_state", "1 for the state of the job", labels=["state"])
        for name in STATES:
            state.add_metric([name], float(name == view.state))
        yield state
        records = CounterMetricFamily(
            "ctrpipe_records", "Training records; rollbacks take back", labels=["outcome"]
        )
        for outcome in ("trained", "repeated", "dropped"):
            records.add_metric([outcome], getattr(view.records, outcome))
        yield records
        yield _gauge("ctrpipe_epoch", "From 1", view.epoch + 1)
        yield _gauge("ctrpipe_step", "Batches counted", view.step)
        yield _gauge("ctrpipe_generation", "Rollbacks and restores", view.generation)
        yield _gauge("ctrpipe_samples_per_second", "Over the last seconds", view.samples_per_second)
        yield _gauge("ctrpipe_refused_reports", "Of older attempts", view.refused_reports)
        yield CounterMetricFamily(
            "ctrpipe_master_errors", "That the master went on after", value=view.master_errors.count
        )
        if view.train_logloss is not None:
            yield _gauge("ctrpipe_train_logloss", "Of this epoch so far", view.train_logloss)
        if view.auc is not None:
            yield _gauge("ctrpipe_valid_auc", "Of the last validation", view.auc)
        if view.checkpoint is not None:
            found = view.checkpoint
            yield _gauge("ctrpipe_checkpoint_number", "Of the newest", found.number)
            yield _gauge("ctrpipe_checkpoint_age_seconds", "Of the newest", found.age_seconds)
        yield _gauge("ctrpipe_records_planned", "Of all epochs", view.records.total)
        yield _gauge("ctrpipe_workers_wanted", "Now", view.workers_wanted)
        yield from _disruption_metrics(view.disruptions)
        yield from _table_metrics(view.tables)
        yield from _member_metrics(view.members)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _disruption_metrics(disruptions: tuple[Disruption, ...]) -> Iterator[Metric]:
    yield _gauge("ctrpipe_disruptions", "Failures among the last events", len(disruptions))
    yield _gauge(
        "ctrpipe_disruptions_repeated_records",
        "Trained again because of them",
        sum(one.records_repeated for one in disruptions),
    )
    yield _gauge(
        "ctrpipe_disruptions_lost_seconds",
        "In which nobody worked because of them",
        sum(one.seconds_lost for one in disruptions),
    )


def _table_metrics(tables: tuple[TableUse, ...]) -> Iterator[Metric]:
    rows = GaugeMetricFamily("ctrpipe_table_rows", "Rows made", labels=["table"])
    row_bytes = GaugeMetricFamily("ctrpipe_table_row_bytes", "Bytes of the rows", labels=["table"])
    for table in tables:
        rows.add_metric([table.name], table.rows)
        row_bytes.add_metric([table.name], table.row_bytes)
    yield from (rows, row_bytes)


def _member_metrics(members: tuple[MemberStatus, ...]) -> Iterator[Metric]:
    names = ["role", "index"]
    up = GaugeMetricFamily("ctrpipe_member_up", "1 while it is heard", labels=names)
    leases = GaugeMetricFamily("ctrpipe_member_leases", "Tasks that it holds", labels=names)
    rss = GaugeMetricFamily("ctrpipe_member_rss_bytes", "Resident memory", labels=names)
    rows = GaugeMetricFamily("ctrpipe_member_rows", "Rows held", labels=names)
    speed = GaugeMetricFamily("ctrpipe_member_samples_per_second", "Of a worker", labels=names)
    restarts = CounterMetricFamily("ctrpipe_member_restarts", "After the first start", labels=names)
    for member in members:
        labels = [member.role, str(member.index)]
        up.add_metric(labels, float(member.state in {"running", "standby", "leaving"}))
        leases.add_metric(labels, member.leases)
        restarts.add_metric(labels, member.restarts)
        if member.stats is not None:
            rss.add_metric(labels, member.stats.rss_bytes)
            rows.add_metric(labels, member.stats.rows_held)
            speed.add_metric(labels, member.stats.samples_per_second)
    yield from (up, leases, rss, rows, speed, restarts)
