"""A worker before or after training: leases units, phase after phase, until none is left."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ctr_pipeline.distributed.coordination.preparation import (
    GivenUnit,
    Phase,
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
from ctr_pipeline.errors import CarriedError, CtrPipelineError, DataError

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
_MASTER = "MasterService"
_DEADLINE_SECONDS = 5.0
_PATIENCE_SECONDS = 30.0
"""Time for the process that gives units to answer again."""
_WAIT_SECONDS = 0.2


class UnitWork(Protocol):
    """What is done with the units of a phase."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of what is written."""

    def work_on(self, lease: UnitLease, report: "Reporter") -> None:
        """Writes the part of an attempt, where no other does, and reports what is done."""

    def is_final(self, error: CtrPipelineError) -> bool:
        """Whether every attempt would fail as this one did."""


class _LeaseLostError(Exception):
    """Another worker has the unit by now."""


def work_on_units(
    folder: Path,
    incarnation: str,
    open_work: Callable[[Phase], UnitWork],
    *,
    report_seconds: float,
) -> None:
    """Works on the units of one phase after another, until none is left.

    Args:
        folder: Where the secrets and the address of the process that gives units lie.
        incarnation: Name of this process.
        open_work: Opens what is done in a phase; called when the first unit of it is leased.
        report_seconds: Between reports.

    Raises:
        PeerUnavailable: The process that gives units has never answered. One that is gone since may
            be followed by another, whose launcher starts this worker again.
    """
    endpoint = load_endpoint(folder)
    if endpoint is None:
        raise PeerUnavailable("no process has announced that it gives units", place=str(folder))
    client = RpcClient(_MASTER, endpoint.address, Access.load(folder, "worker"))
    try:
        _UnitWorker(client, incarnation, open_work, report_seconds).run()
    finally:
        client.close()


@dataclass
class _UnitWorker:
    """Goes on from unit to unit; what is done in their phase stays open until the next one."""

    client: RpcClient
    incarnation: str
    open_work: Callable[[Phase], UnitWork]
    report_seconds: float
    work: UnitWork | None = None

    def run(self) -> None:
        """Works until nothing is left, or nobody gives units any more."""
        reply = self._ask()
        try:
            while not reply.is_over:
                if reply.given is None:
                    time.sleep(_WAIT_SECONDS)
                else:
                    self._work_on(reply.given)
                reply = self._ask()
        except PeerUnavailable as error:
            _LOGGER.warning("nobody gives units any more: %s", error)

    def _ask(self) -> UnitReply:
        return _call(self.client, "LeaseUnit", UnitRequest(self.incarnation), UnitReply)

    def _work_on(self, given: GivenUnit) -> None:
        lease, failed = given.lease, None
        with Reporter(self.client, self.incarnation, lease, self.report_seconds) as reporter:
            try:
                self._opened(given).work_on(lease, reporter)
            except _LeaseLostError:
                _LOGGER.warning("%s was given to another worker", lease.unit.name)
                return
            except CtrPipelineError as error:
                _LOGGER.exception("%s cannot be done", lease.unit.name)
                failed = error
        report = UnitReport(
            self.incarnation,
            lease,
            reporter.amount_done,
            finished=failed is None,
            failure="" if failed is None else str(failed),
            error=None if failed is None else CarriedError.of(failed),
            is_final=failed is not None and self.work is not None and self.work.is_final(failed),
            said=reporter.unreported,
        )
        _call(self.client, "ReportUnit", report, UnitAnswer)

    def _opened(self, given: GivenUnit) -> UnitWork:
        if self.work is None or self.work.fingerprint != given.fingerprint:
            # That of the phase before is let go first.
            self.work = None
            work = self.open_work(given.phase)
            if work.fingerprint != given.fingerprint:
                raise DataError("this worker would work on other rows, or otherwise")
            self.work = work
        return self.work


class Reporter:
    """Reports from a thread of its own, so that a worker which computes is not silent."""

    def __init__(
        self, client: RpcClient, incarnation: str, lease: UnitLease, report_seconds: float
    ) -> None:
        self._client = client
        self._incarnation = incarnation
        self._lease = lease
        self._report_seconds = report_seconds
        self._is_lost = False
        self._said: list[str] = []
        self._doing = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)
        self.amount_done = 0

    def __enter__(self) -> "Reporter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, amount: int) -> None:
        """Counts so much more as done.

        Raises:
            _LeaseLostError: In vain.
        """
        if self._is_lost:
            raise _LeaseLostError
        self.amount_done += amount

    def say(self, line: str) -> None:
        """A line for whoever watches the run."""
        self._said.append(line)

    def note(self, text: str) -> None:
        """What it does at this moment, for the same."""
        self._doing = text

    @property
    def unreported(self) -> tuple[str, ...]:
        """Lines that no answered report holds."""
        return tuple(self._said)

    def _run(self) -> None:
        while not self._over.wait(self._report_seconds):
            said = self.unreported
            report = UnitReport(
                self._incarnation, self._lease, self.amount_done, said=said, doing=self._doing
            )
            try:
                answer = self._client.call(
                    "ReportUnit", report, UnitAnswer, deadline_seconds=_DEADLINE_SECONDS
                )
            except CtrPipelineError as error:
                _LOGGER.warning("a report was lost: %s", error)
            else:
                self._is_lost = self._is_lost or not answer.has_lease
                del self._said[: len(said)]


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
