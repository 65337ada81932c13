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
        yield GaugeMetricFamily("ctrpipe_epoch", "Epoch that is trained, from 1.", view.epoch + 1)
        yield GaugeMetricFamily("ctrpipe_step", "Batches counted.", view.step)
        yield GaugeMetricFamily("ctrpipe_generation", "Rollbacks and restores.", view.generation)
        yield GaugeMetricFamily(
            "ctrpipe_samples_per_second",
            "Rows trained or scored a second, over the last seconds.",
            view.samples_per_second,
        )
        yield GaugeMetricFamily(
            "ctrpipe_refused_reports",
            "Reports of older attempts, which count for nothing.",
            view.refused_reports,
        )
        yield CounterMetricFamily(
            "ctrpipe_master_errors",
            "Errors that the master went on after.",
            value=view.master_errors.count,
        )
        if view.train_logloss is not None:
            yield GaugeMetricFamily(
                "ctrpipe_train_logloss",
                "Training logloss of this epoch so far.",
                view.train_logloss,
            )
        if view.auc is not None:
            yield GaugeMetricFamily("ctrpipe_valid_auc", "AUC of the last validation.", view.auc)
        if view.checkpoint is not None:
            found = view.checkpoint
            yield GaugeMetricFamily(
                "ctrpipe_checkpoint_number", "Number of the newest checkpoint.", found.number
            )
            yield GaugeMetricFamily(
                "ctrpipe_checkpoint_age_seconds", "Age of the newest checkpoint.", found.age_seconds
            )
        yield GaugeMetricFamily(
            "ctrpipe_records_planned", "Records of all epochs.", view.records.total
        )
        yield GaugeMetricFamily(
            "ctrpipe_workers_wanted", "Workers that are wanted now.", view.workers_wanted
        )
        yield from _disruption_metrics(view.disruptions)
        yield from _table_metrics(view.tables)
        yield from _member_metrics(view.members)


def _disruption_metrics(disruptions: tuple[Disruption, ...]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "ctrpipe_disruptions", "Failures among the last events.", len(disruptions)
    )
    yield GaugeMetricFamily(
        "ctrpipe_disruptions_repeated_records",
        "Records trained again because of failures.",
        sum(one.records_repeated for one in disruptions),
    )
    yield GaugeMetricFamily(
        "ctrpipe_disruptions_lost_seconds",
        "Time in which nobody worked because of failures.",
        sum(one.seconds_lost for one in disruptions),
    )


def _table_metrics(tables: tuple[TableUse, ...]) -> Iterator[Metric]:
    rows = GaugeMetricFamily("ctrpipe_table_rows", "Rows made.", labels=["table"])
    row_bytes = GaugeMetricFamily("ctrpipe_table_row_bytes", "Bytes of the rows.", labels=["table"])
    for table in tables:
        rows.add_metric([table.name], table.rows)
        row_bytes.add_metric([table.name], table.row_bytes)
    yield from (rows, row_bytes)


def _member_metrics(members: tuple[MemberStatus, ...]) -> Iterator[Metric]:
    names = ["role", "index"]
    up = GaugeMetricFamily("ctrpipe_member_up", "1 while the member is heard.", labels=names)
    leases = GaugeMetricFamily(
        "ctrpipe_member_leases", "Tasks that the member holds.", labels=names
    )
    rss = GaugeMetricFamily("ctrpipe_member_rss_bytes", "Resident memory.", labels=names)
    rows = GaugeMetricFamily("ctrpipe_member_rows", "Rows held.", labels=names)
    speed = GaugeMetricFamily(
        "ctrpipe_member_samples_per_second", "Rows a second of a worker.", labels=names
    )
    restarts = CounterMetricFamily(
        "ctrpipe_member_restarts", "Starts after the first one.", labels=names
    )
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
