import socket
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ctr_pipeline.distributed.rpc.metrics_server import PORT_VARIABLE, serve_metrics
from ctr_pipeline.errors import CtrPipelineError


class Height(Collector):
    def collect(self):
        yield GaugeMetricFamily("height", "Of the room.", value=2.5)


def test_metrics_are_served_until_the_block_ends():
    with (
        serve_metrics(Height(), "127.0.0.1") as address,
        urlopen(f"http://{address}/metrics", timeout=60) as reply,
    ):
        assert "height 2.5" in reply.read().decode().splitlines()
    with pytest.raises(URLError):
        urlopen(f"http://{address}/metrics", timeout=60)


def test_a_host_of_another_machine_is_named():
    # 192.0.2.0/24 is kept for documentation: no machine has an address of it.
    with (
        pytest.raises(CtrPipelineError, match="metrics cannot be served on") as refused,
        serve_metrics(Height(), "192.0.2.1"),
    ):
        pass
    assert refused.value.place == "192.0.2.1"


def test_a_port_that_is_known_beforehand_is_used_unless_another_process_has_it(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(PORT_VARIABLE, str(port))
        with serve_metrics(Height(), "127.0.0.1") as address:
            assert address != f"127.0.0.1:{port}"
    with serve_metrics(Height(), "127.0.0.1") as address:
        assert address == f"127.0.0.1:{port}"
