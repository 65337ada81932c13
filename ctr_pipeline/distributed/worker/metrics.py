"""What a worker tells Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ctr_pipeline.distributed.coordination.messages import MemberStats


class WorkerMetrics(Collector):
    """Reads the worker's figures whenever Prometheus asks.

    Args:
        stats: The figures now.
    """

    def __init__(self, stats: Callable[[], MemberStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """One metric a figure."""
        stats = self._stats()
        yield GaugeMetricFamily(
            "ctrpipe_worker_samples_per_second",
            "Rows trained or scored a second, over the last seconds.",
            value=stats.samples_per_second,
        )
        yield GaugeMetricFamily(
            "ctrpipe_worker_memory_bytes", "Resident memory.", value=stats.rss_bytes
        )
        yield CounterMetricFamily(
            "ctrpipe_worker_cpu_seconds", "User and system time.", value=stats.cpu_seconds
        )
        yield CounterMetricFamily(
            "ctrpipe_worker_received_bytes",
            "Payload from parameter servers.",
            value=stats.bytes_received,
        )
        yield CounterMetricFamily(
            "ctrpipe_worker_sent_bytes", "Payload to parameter servers.", value=stats.bytes_sent
        )
