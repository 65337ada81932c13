"""Addresses of members, and where the master of a job is found: `job/endpoint.json`."""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, to_record

_FILE = "endpoint.json"
HOST_VARIABLE = "CTRPIPE_HOST"
"""Environment variable with the address of this machine, for where its name cannot be found."""

_EVERY_HOST = frozenset({"0.0.0.0", "[::]"})  # noqa: S104  recognised, not bound


@dataclass(frozen=True)
class Endpoint:
    """A master as it announced itself; it may be gone since.

    Attributes:
        address: `host:port` of its service.
        metrics_address: `host:port` of its Prometheus metrics.
        host: Where it runs.
        pid: Its process there.
        page_address: `host:port` of the page of its job; empty if it serves none.
    """

    address: str
    metrics_address: str
    host: str
    pid: int
    page_address: str = ""


def save_endpoint(job_folder: Path, endpoint: Endpoint) -> None:
    """Announces a master; replaces the one before as a whole.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    durable.write_text(job_folder / _FILE, json.dumps(to_record(endpoint), indent=2) + "\n")


def load_endpoint(job_folder: Path) -> Endpoint | None:
    """The master that announced itself last; None if none ever did, or its file is damaged."""
    try:
        return parse_endpoint((job_folder / _FILE).read_bytes())
    except OSError:
        return None


def parse_endpoint(content: bytes) -> Endpoint | None:
    """The master that a file announces; None if the file is damaged."""
    try:
        return decode(Endpoint, content)
    except MalformedMessage:
        return None


def reachable_address(address: str) -> str:
    """The address that others can use of one that a member listens on, `host:port`."""
    host, _, port = address.rpartition(":")
    if host not in _EVERY_HOST:
        return address
    found = os.environ.get(HOST_VARIABLE) or socket.gethostname()
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"
