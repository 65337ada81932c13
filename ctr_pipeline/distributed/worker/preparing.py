"""A worker that encodes rows: leases units one after another until none is left."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ctr_pipeline.distributed.coordination.preparation import (
    UnitAnswer,
    UnitLease,
    UnitReply,
    UnitReport,
    UnitRequest,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
_MASTER = "MasterService"
_DEADLINE_SECONDS = 5.0
_PATIENCE_SECONDS = 30.0
"""For the process that gives units to answer again."""
_WAIT_SECONDS = 0.2

EncodeUnit = Callable[[UnitLease, Callable[[int], None]], None]
"""Encodes a unit into a part; tells its second argument of rows that are encoded."""


class _LeaseLostError(Exception):
    """Another worker has the unit by now."""


def encode_units(
    folder: Path, incarnation: str, fingerprint: str, encode: EncodeUnit, report_seconds: float
) -> None:
    """Works until nothing is left.

    Args:
        folder: Where the secrets and the address of the process that gives units lie.
        incarnation: Name of this process.
        fingerprint: Fingerprint of the encoded rows.
        encode: Encodes a unit; its attempt writes where no other does.
        report_seconds: Between reports.

    Raises:
        PeerUnavailable: The process that gives units is gone.
        CallRefused: It gives units of other rows.
    """
    endpoint = load_endpoint(folder)
    if endpoint is None:
        raise PeerUnavailable("no process has announced that it gives units", place=str(folder))
    client = RpcClient(_MASTER, endpoint.address, Access.load(folder, "worker"))
    try:
        while True:
            reply = _call(client, "LeaseUnit", UnitRequest(incarnation, fingerprint), UnitReply)
            if reply.verdict == "end":
                return
            if reply.lease is None:
                time.sleep(_WAIT_SECONDS)
                continue
            _work_on(client, incarnation, reply.lease, encode, report_seconds)
    finally:
        client.close()


def _work_on(
    client: RpcClient,
    incarnation: str,
    lease: UnitLease,
    encode: EncodeUnit,
    report_seconds: float,
) -> None:
    reporter = _Reporter(client, incarnation, lease, report_seconds)
    failure = ""
    with reporter:
        try:
            encode(lease, reporter.add)
        except _LeaseLostError:
            _LOGGER.warning("%s was given to another worker", lease.unit.name)
            return
        except CtrPipelineError as error:
            _LOGGER.exception("%s cannot be encoded", lease.unit.name)
            failure = str(error)
    report = UnitReport(
        incarnation, lease, reporter.rows_done, finished=not failure, failure=failure
    )
    _call(client, "ReportUnit", report, UnitAnswer)


class _Reporter:
    """Reports from a thread of its own, so that a worker which computes is not silent."""

    def __init__(
        self, client: RpcClient, incarnation: str, lease: UnitLease, report_seconds: float
    ) -> None:
        self._client = client
        self._incarnation = incarnation
        self._lease = lease
        self._report_seconds = report_seconds
        self._is_lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)
        self.rows_done = 0

    def __enter__(self) -> "_Reporter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, num_rows: int) -> None:
        """So many more rows are encoded.

        Raises:
            _LeaseLostError: In vain.
        """
        if self._is_lost:
            raise _LeaseLostError
        self.rows_done += num_rows

    def _run(self) -> None:
        while not self._over.wait(self._report_seconds):
            report = UnitReport(self._incarnation, self._lease, self.rows_done)
            try:
                answer = self._client.call(
                    "ReportUnit", report, UnitAnswer, deadline_seconds=_DEADLINE_SECONDS
                )
            except CtrPipelineError as error:
                _LOGGER.warning("a report was lost: %s", error)
            else:
                self._is_lost = self._is_lost or not answer.has_lease


def _call(client: RpcClient, method: str, message: object, reply: type[T]) -> T:
    """Calls, and again while nobody answers."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return client.call(method, message, reply, deadline_seconds=_DEADLINE_SECONDS)
        except PeerUnavailable:
            if time.monotonic() >= until:
                raise
            time.sleep(_WAIT_SECONDS)
