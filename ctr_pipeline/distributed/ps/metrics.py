"""What a parameter server tells Prometheus, and the master."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ctr_pipeline.distributed.coordination.messages import MemberStats, PartitionLoads
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.machine import measure_usage

_LOADS_EVERY_SECONDS = 2.0


class PsFigures:
    """The figures of a server, read when somebody asks.

    Args:
        cores: How many it may keep busy.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        core: PsCore,
        server: RpcServer,
        *,
        cores: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self._server = server
        self._cores = cores
        self._clock = clock
        self._loads_due = -math.inf

    def __call__(self) -> MemberStats:
        """The figures for the master; loads of partitions every few seconds, as they are long."""
        loads, now = None, self._clock()
        if now >= self._loads_due:
            self._loads_due = now + _LOADS_EVERY_SECONDS
            loads = self.core.state.partition_loads()
        return replace(self.of_process(), loads=loads)

    def of_process(self) -> MemberStats:
        """Without the loads of partitions."""
        return MemberStats(
            **asdict(measure_usage()),
            cores=self._cores,
            rows_held=self.core.state.num_rows,
            bytes_received=self._server.bytes_received,
            bytes_sent=self._server.bytes_sent,
            dense_bytes=self.core.updates.counts.dense_bytes,
            version=self.core.serving.version,
        )


class PsMetrics(Collector):
    """Reads a server's figures whenever Prometheus asks."""

    def __init__(self, figures: PsFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        stats, core = self._figures.of_process(), self._figures.core
        counts = core.updates.counts
        pushes = CounterMetricFamily(
            "ctrpipe_ps_pushes", "Pushes by what became of them.", labels=["outcome"]
        )
        for outcome in ("applied", "repeated", "stale", "refused"):
            pushes.add_metric([outcome], getattr(counts, outcome))
        yield pushes
        yield CounterMetricFamily("ctrpipe_ps_pulls", "Pulls answered.", value=counts.pulls)
        yield CounterMetricFamily(
            "ctrpipe_ps_vanished_keys",
            "Gradients dropped because their key has no row.",
            value=counts.vanished_keys,
        )
        yield CounterMetricFamily(
            "ctrpipe_ps_evicted_rows",
            "Rows removed because nothing had updated them for long.",
            value=core.state.num_evicted,
        )
        yield from _partition_metrics(core.state.partition_loads())
        yield GaugeMetricFamily("ctrpipe_ps_rows", "Embedding rows held.", stats.rows_held)
        yield GaugeMetricFamily(
            "ctrpipe_ps_row_bytes", "Memory of the rows.", core.state.memory_bytes
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_spilled_row_bytes",
            "Rows in a file, beyond the memory limit.",
            core.state.spilled_bytes,
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_version", "Updates made by this process.", stats.version
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_generation",
            "Generation that is served; -1: none yet.",
            core.serving.generation,
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_waiting_calls",
            "Calls that wait for other workers.",
            core.updates.num_waiting,
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_cut_pause_seconds",
            "Longest wait of an update for the last checkpoint.",
            core.checkpoints.last_pause_seconds,
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_longest_hold_seconds",
            "Longest wait of an update for a move of partitions.",
            core.moves.longest_hold_seconds,
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_longest_lock_seconds",
            "Longest wait of a call for another one.",
            core.serving.lock.longest_seconds,
        )
        yield CounterMetricFamily(
            "ctrpipe_ps_lock_seconds",
            "Time for which calls held what others wait for; near 1 a second, more servers help.",
            value=core.serving.lock.held_seconds,
        )
        yield GaugeMetricFamily("ctrpipe_ps_memory_bytes", "Resident memory.", stats.rss_bytes)
        yield CounterMetricFamily(
            "ctrpipe_ps_cpu_seconds", "User and system time.", value=stats.cpu_seconds
        )
        yield GaugeMetricFamily(
            "ctrpipe_ps_cores", "Cores that its threads may keep busy.", stats.cores
        )
        yield CounterMetricFamily(
            "ctrpipe_ps_received_bytes", "Payload of requests.", value=stats.bytes_received
        )
        yield CounterMetricFamily(
            "ctrpipe_ps_sent_bytes", "Payload of answers.", value=stats.bytes_sent
        )


def _partition_metrics(loads: PartitionLoads) -> Iterator[Metric]:
    label = ["partition"]
    rows = GaugeMetricFamily("ctrpipe_ps_partition_rows", "Rows of each partition.", labels=label)
    row_bytes = GaugeMetricFamily(
        "ctrpipe_ps_partition_row_bytes", "Bytes of the rows of each partition.", labels=label
    )
    pulled = CounterMetricFamily(
        "ctrpipe_ps_partition_pulled_keys", "Keys asked for, by partition.", labels=label
    )
    pushed = CounterMetricFamily(
        "ctrpipe_ps_partition_pushed_keys", "Keys with gradients, by partition.", labels=label
    )
    for family, values in (
        (rows, loads.rows),
        (row_bytes, loads.row_bytes),
        (pulled, loads.pulled_keys),
        (pushed, loads.pushed_keys),
    ):
        for partition, value in zip(loads.partitions, values, strict=True):
            family.add_metric([str(partition)], value)
        yield family
