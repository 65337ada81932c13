"""A member's metrics over HTTP, for Prometheus, on a port of their own."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from ctr_pipeline.errors import CtrPipelineError

PORT_VARIABLE = "CTRPIPE_METRICS_PORT"
"""Environment variable with the port, where whoever reads metrics has to know it beforehand."""

_LOGGER = logging.getLogger(__name__)


@contextmanager
def serve_metrics(collector: Collector, host: str) -> Iterator[str]:
    """Serves metrics while the block runs; gives `host:port`.

    The port is that of `PORT_VARIABLE`; or a free one, also where another process has that one.

    Args:
        collector: Read whenever Prometheus asks.
        host: To bind.

    Raises:
        CtrPipelineError: The host is not one of this machine.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = _start(registry, host, int(os.environ.get(PORT_VARIABLE, "0")))
    except OSError as error:
        raise CtrPipelineError(
            f"metrics cannot be served on ({error.strerror})", place=host
        ) from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _start(registry: CollectorRegistry, host: str, port: int) -> tuple[WSGIServer, Thread]:
    try:
        return start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        if port == 0 or error.errno != errno.EADDRINUSE:
            raise
        _LOGGER.warning("port %d is taken: metrics are served on another one", port)
        return start_http_server(0, addr=host, registry=registry)
