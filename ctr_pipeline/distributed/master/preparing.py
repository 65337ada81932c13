"""Serves units of the phases before and after training to workers, one phase after another."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ctr_pipeline.distributed.coordination.preparation import (
    GivenUnit,
    Phase,
    PreparationBoard,
    UnitAnswer,
    UnitReply,
    UnitReport,
    UnitRequest,
)
from ctr_pipeline.distributed.coordination.timeouts import SteadyClock
from ctr_pipeline.distributed.master.ledger.unit_file import UnitLedger
from ctr_pipeline.distributed.master.servicer import SERVICE
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class ServedPhase:
    """A phase whose units are given to workers.

    Attributes:
        name: Which one.
        fingerprint: Fingerprint of what is written.
        board: Units, and who works on which.
        ledger: What is known of units, before anybody acts on it.
    """

    name: Phase
    fingerprint: str
    board: PreparationBoard
    ledger: UnitLedger

    def save(self) -> None:
        """Brings the ledger up to date."""
        changed = self.board.take_changed()
        if changed:
            self.ledger.commit(changed)


class PreparationServer:
    """Answers workers by the board of a phase; what it promises is in the ledger before.

    A context manager that serves while it is open. Workers wait until there is a phase, and for the
    next one when all units of it are done.

    Args:
        bind: `host:port`; port 0 takes a free one.
        access: Secrets, as of role `master`.
        most_clock_step_seconds: Counted between two looks at most; see `SteadyClock`.

    Raises:
        CtrPipelineError: The address cannot be served.
    """

    def __init__(self, *, bind: str, access: Access, most_clock_step_seconds: float) -> None:
        self._phase: ServedPhase | None = None
        self._is_over = False
        self._guard = threading.Lock()
        self._clock = SteadyClock(time.monotonic(), most_clock_step_seconds)
        methods = (
            Method("LeaseUnit", UnitRequest, UnitReply, self._lease, callers=("worker",)),
            Method("ReportUnit", UnitReport, UnitAnswer, self._report, callers=("worker",)),
        )
        self._server = RpcServer(SERVICE, methods, address=bind, access=access)
        self.address = self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(_STOP_SECONDS)

    def begin(self, phase: ServedPhase) -> None:
        """Gives the units of a phase from now on, and no others."""
        with self._guard:
            self._phase = phase

    def end(self) -> None:
        """No phase follows: workers that ask leave."""
        with self._guard:
            self._is_over = True

    def change(self, act: Callable[[PreparationBoard, float], None]) -> None:
        """Has something done with the board and the time on its clock, while nobody else does."""
        with self._guard:
            if self._phase is None:
                raise AssertionError("no phase has begun")
            act(self._phase.board, self._now())
            self._phase.save()

    def _lease(self, request: UnitRequest) -> UnitReply:
        with self._guard:
            phase = self._phase
            if self._is_over or phase is None:
                return UnitReply(self._is_over)
            lease = phase.board.lease(request.worker, self._now())
            phase.save()
        given = None if lease is None else GivenUnit(lease, phase.name, phase.fingerprint)
        return UnitReply(is_over=False, given=given)

    def _report(self, report: UnitReport) -> UnitAnswer:
        with self._guard:
            phase = self._phase
            if phase is None:
                return UnitAnswer(has_lease=False)
            answer = phase.board.report(report, self._now())
            phase.save()
        return answer

    def _now(self) -> float:
        self._clock.advance(time.monotonic())
        return self._clock.seconds
