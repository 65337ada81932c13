"""Serves units of rows to the workers that encode them, and keeps those workers running."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

from ctr_pipeline.distributed.coordination.launching import (
    LauncherBusyError,
    MemberControl,
    ProcessState,
)
from ctr_pipeline.distributed.coordination.preparation import (
    PreparationBoard,
    UnitAnswer,
    UnitReply,
    UnitReport,
    UnitRequest,
)
from ctr_pipeline.distributed.coordination.relaunch import (
    decide_relaunch,
    explain_end,
    start_again_seconds,
)
from ctr_pipeline.distributed.coordination.timeouts import SteadyClock
from ctr_pipeline.distributed.master.ledger.unit_file import UnitLedger
from ctr_pipeline.distributed.master.servicer import SERVICE
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

_STOP_SECONDS = 1.0


class PreparationServer:
    """Answers workers by the board; what it promises is in the ledger before.

    A context manager that serves while it is open.

    Args:
        board: Who works on what.
        ledger: What is known of units, before anybody acts on it.
        fingerprint: Fingerprint of the encoded rows; workers that would encode others are refused.
        bind: `host:port`; port 0 takes a free one.
        access: Secrets, as of role `master`.
        most_clock_step_seconds: Counted between two looks at most; see `SteadyClock`.

    Raises:
        CtrPipelineError: The address cannot be served.
    """

    def __init__(
        self,
        board: PreparationBoard,
        ledger: UnitLedger,
        *,
        fingerprint: str,
        bind: str,
        access: Access,
        most_clock_step_seconds: float,
    ) -> None:
        self._board = board
        self._ledger = ledger
        self._fingerprint = fingerprint
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

    def change(self, act: Callable[[PreparationBoard, float], None]) -> None:
        """Has something done with the board and the time on its clock, while nobody else does."""
        with self._guard:
            self._clock.advance(time.monotonic())
            act(self._board, self._clock.seconds)
            self._save()

    def _lease(self, request: UnitRequest) -> UnitReply:
        if request.fingerprint != self._fingerprint:
            raise Refusal("rows", "this worker would encode other rows, or encode them otherwise")
        with self._guard:
            self._clock.advance(time.monotonic())
            reply = self._board.lease(request.worker, self._clock.seconds)
            self._save()
        return reply

    def _report(self, report: UnitReport) -> UnitAnswer:
        with self._guard:
            self._clock.advance(time.monotonic())
            answer = self._board.report(report, self._clock.seconds)
            self._save()
        return answer

    def _save(self) -> None:
        changed = self._board.take_changed()
        if changed:
            self._ledger.commit(changed)


@dataclass
class _Place:
    """The place of one worker.

    Attributes:
        start_at: When it is started; None while it runs or is not wanted.
        ended: Incarnation of the process whose end was taken in last.
        ends_in_row: Ends without a unit done between them.
        refusals_in_row: Starts that the launcher refused.
        units_done: Units done by all when it ended last.
    """

    start_at: float | None = 0.0
    ended: str = ""
    ends_in_row: int = 0
    refusals_in_row: int = 0
    units_done: int = 0


class WorkerKeeper:
    """Starts workers, and again those that end before all units are done.

    Args:
        launcher: Starts and stops them.
        num_workers: As many.
        max_failures: A worker whose program failed so often in a row fails the job.
    """

    def __init__(self, launcher: MemberControl, *, num_workers: int, max_failures: int) -> None:
        self._launcher = launcher
        self._max_failures = max_failures
        self._places = {index: _Place() for index in range(num_workers)}

    def look(self, board: PreparationBoard, now: float) -> None:
        """Takes in what became of the workers since the last look.

        Args:
            now: Seconds on the clock of the board.
        """
        # A launcher may know members of an earlier start of the job, too.
        processes = [one for one in self._launcher.observe() if self._is_ours(one)]
        for process in processes:
            place = self._places[process.index]
            if not process.running and process.incarnation != place.ended:
                self._take_in_end(board, process, place, now)
        self._kill(board.take_silent(now), processes)
        if board.is_over or board.failure:
            return
        for index, place in self._places.items():
            if place.start_at is not None and now >= place.start_at:
                self._start(index, place, now)

    def _is_ours(self, process: ProcessState) -> bool:
        return process.role == "worker" and process.index in self._places

    def _take_in_end(
        self, board: PreparationBoard, process: ProcessState, place: _Place, now: float
    ) -> None:
        place.ended = process.incarnation
        place.ends_in_row = 1 if board.num_done > place.units_done else place.ends_in_row + 1
        place.units_done = board.num_done
        had_unit = board.unit_of(process.incarnation) is not None
        relaunch = decide_relaunch(
            process.reason or "error", registered=had_unit, ends_in_row=place.ends_in_row
        )
        why = explain_end(
            process.reason or "error",
            process.exit_code,
            member=f"worker-{process.index}",
            rss_bytes=0,
        )
        described = f"{why}\n{process.traceback}".strip()
        board.lose(process.incarnation, described if relaunch.blames_program else "")
        if relaunch.blames_program and place.ends_in_row >= self._max_failures:
            board.failure = board.failure or described
        place.start_at = now + relaunch.delay_seconds

    def _start(self, index: int, place: _Place, now: float) -> None:
        try:
            self._launcher.start("worker", index)
        except LauncherBusyError:
            place.refusals_in_row += 1
            place.start_at = now + start_again_seconds(place.refusals_in_row)
        else:
            place.refusals_in_row, place.start_at = 0, None

    def _kill(self, silent: Collection[str], processes: Collection[ProcessState]) -> None:
        for process in processes:
            if process.running and process.incarnation in silent:
                self._launcher.stop("worker", process.index, process.incarnation, grace_seconds=0.0)
