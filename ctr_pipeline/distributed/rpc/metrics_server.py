"""A member's metrics over HTTP, for Prometheus, on a port of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from ctr_pipeline.errors import CtrPipelineError


@contextmanager
def serve_metrics(collector: Collector, host: str) -> Iterator[str]:
    """Serves metrics on a free port while the block runs; gives `host:port`.

    Args:
        collector: Read whenever Prometheus asks.
        host: To bind.

    Raises:
        CtrPipelineError: The host is not one of this machine.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(0, addr=host, registry=registry)
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
