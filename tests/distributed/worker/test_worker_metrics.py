from urllib.request import urlopen

from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.rpc.metrics_server import serve_metrics
from ctr_pipeline.distributed.worker.metrics import WorkerMetrics


def test_figures_are_read_when_they_are_asked_for():
    stats = MemberStats(samples_per_second=12.5, rss_bytes=1000, cpu_seconds=3.0, bytes_sent=7)
    asked = []

    def figures():
        asked.append(1)
        return stats

    with serve_metrics(WorkerMetrics(figures), "127.0.0.1") as address:
        before = len(asked)
        with urlopen(f"http://{address}/metrics", timeout=60) as reply:
            text = reply.read().decode()
    assert len(asked) == before + 1
    lines = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert lines == {
        "ctrpipe_worker_samples_per_second": "12.5",
        "ctrpipe_worker_memory_bytes": "1000.0",
        "ctrpipe_worker_cpu_seconds_total": "3.0",
        "ctrpipe_worker_received_bytes_total": "0.0",
        "ctrpipe_worker_sent_bytes_total": "7.0",
    }
