"""What a parameter server tells Prometheus, and the master."""

import os
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.server import RpcServer


class PsFigures:
    """The figures of a server, read when somebody asks.

    Args:
        core: What it holds.
        server: What it serves with.
    """

    def __init__(self, core: PsCore, server: RpcServer) -> None:
        self.core = core
        self._server = server
        self._process = psutil.Process()

    def __call__(self) -> MemberStats:
        """For the master."""
        times = os.times()
        return MemberStats(
            rss_bytes=self._process.memory_info().rss,
            cpu_seconds=times.user + times.system,
            rows_held=self.core.num_rows,
            bytes_received=self._server.bytes_received,
            bytes_sent=self._server.bytes_sent,
            version=self.core.version,
        )


class PsMetrics(Collector):
    """Reads a server's figures whenever Prometheus asks.

    Args:
        figures: Of the server.
    """

    def __init__(self, figures: PsFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        stats, core = self._figures(), self._figures.core
        counts = core.counts
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
            value=core.num_evicted,
        )
        yield _gauge("ctrpipe_ps_rows", "Embedding rows held.", stats.rows_held)
        yield _gauge("ctrpipe_ps_row_bytes", "Memory of the rows.", core.memory_bytes)
        yield _gauge(
            "ctrpipe_ps_spilled_row_bytes",
            "Rows in a file, beyond the memory limit.",
            core.spilled_bytes,
        )
        yield _gauge("ctrpipe_ps_version", "Updates made by this process.", stats.version)
        yield _gauge("ctrpipe_ps_generation", "Served; -1: none yet.", core.generation)
        yield _gauge("ctrpipe_ps_waiting_pushes", "In the open round.", core.num_waiting)
        yield _gauge(
            "ctrpipe_ps_cut_pause_seconds",
            "For how long updates waited for the last cut, at most.",
            core.last_pause_seconds,
        )
        yield _gauge("ctrpipe_ps_memory_bytes", "Resident memory.", stats.rss_bytes)
        yield CounterMetricFamily(
            "ctrpipe_ps_cpu_seconds", "User and system time.", value=stats.cpu_seconds
        )
        yield CounterMetricFamily(
            "ctrpipe_ps_received_bytes", "Payload of requests.", value=stats.bytes_received
        )
        yield CounterMetricFamily(
            "ctrpipe_ps_sent_bytes", "Payload of answers.", value=stats.bytes_sent
        )


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=float(value))
