"""Units of phases that workers do under leases: the side that gives them.

The ledger of a phase lies in a folder of the run folder until all its units are done: a run that is
resumed works only on what is left.
"""

import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.resolved import pinned_yaml
from ctr_pipeline.distributed.coordination.launching import Launcher, ProcessState
from ctr_pipeline.distributed.coordination.preparation import (
    Phase,
    PreparationBoard,
    Unit,
    UnitLease,
)
from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch, explain_end
from ctr_pipeline.distributed.launchers.restarts import KeptWorkers
from ctr_pipeline.distributed.master.ledger.unit_file import UnitLedger
from ctr_pipeline.distributed.master.preparing import PreparationServer, ServedPhase
from ctr_pipeline.distributed.master.settings import bound_workers
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, reachable_address, save_endpoint
from ctr_pipeline.errors import CtrPipelineError, TrainingError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.launchers import WorkerPhase, launch
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.sharing import SharedWork
from ctr_pipeline.specs.launchers import LAUNCHERS

_LOGGER = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
_FINISH_SECONDS = 5.0


_TITLES: Mapping[Phase, str] = {
    "read": "Reading",
    "divide": "Dividing",
    "analyze": "Analyzing",
    "encode": "Encoding",
    "finish": "Finishing",
}


@dataclass(frozen=True)
class OpenLauncher:
    """A launcher whose other members have ended.

    Attributes:
        launcher: Starts workers.
        phase: What it has them do.
    """

    launcher: Launcher
    phase: WorkerPhase


class PhaseWorkers:
    """Workers that do the units of one phase after another.

    A context manager: they start with the first unit, wait between phases, and leave at its end.

    Args:
        context: Context of the run.
        folder: Where they find who gives them units; deleted at the end unless there is an error.
        opened: Starts them, and they read the config of the run; None: a launcher is opened.
    """

    def __init__(
        self, context: RunContext, folder: Path, opened: OpenLauncher | None = None
    ) -> None:
        self._context = context
        self._members = RunFolder(folder)
        self._opened = opened
        self._stack = ExitStack()
        self._started: tuple[PreparationServer, KeptWorkers] | None = None
        self._num_workers = self._num_done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._started is not None:
            server, workers = self._started
            server.end()
            until = time.monotonic() + (_FINISH_SECONDS if kind is None else 0.0)
            while time.monotonic() < until and workers.are_running():
                time.sleep(LOOK_SECONDS)
        self._stack.__exit__(kind, error, trace)
        if kind is None:
            shutil.rmtree(self._members.path, ignore_errors=True)

    def share(self, work: SharedWork, units: Sequence[Unit]) -> Mapping[str, Sequence[str]]:
        """Gives workers the units of a phase, and follows them until all units are done.

        Args:
            work: What is done with units.
            units: All of them.

        Returns:
            The parts of each split, in the order of their rows.

        Raises:
            TrainingError: A unit, or a worker, failed too often.
            CtrPipelineError: A worker that did stages has found it.
            DataError: `work` found what makes the rest vain.
            Interrupted: By a signal; what is done is kept for `--resume`.
        """
        runtime = self._context.config.runtime
        ledger = _open_ledger(work, units)
        board = PreparationBoard(
            units,
            ledger.records,
            silence_seconds=runtime.silence_seconds,
            max_failures=runtime.max_task_failures,
        )
        if board.num_done:
            self._context.progress.log(
                f"{_TITLES[work.phase]}: {board.num_done} of {board.num_units} tasks are done "
                "already"
            )
        if not board.is_over:
            self._follow(work, ServedPhase(work.phase, work.fingerprint, board, ledger))
        work.look(board)
        return {
            split: board.parts_of(split) for split in dict.fromkeys(unit.split for unit in units)
        }

    def _follow(self, work: SharedWork, phase: ServedPhase) -> None:
        progress, board = self._context.progress, phase.board
        if self._started is None:
            self._started = self._start()
        server, workers = self._started
        server.begin(phase)
        # Those that find nothing to do in a phase wait for the next one.
        wanted = min(bound_workers(self._context.config.runtime).most, board.num_open)
        self._num_workers = max(self._num_workers, wanted)
        server.change(lambda _, now: workers.scale(self._num_workers, now, grace_seconds=0.0))
        keep = partial(keep_preparing, workers, done_before=self._num_done)
        with progress.task(_TITLES[phase.name], total=board.size, unit=board.measure) as task:
            shown = 0
            while not board.is_over:
                interruption.raise_if_requested()
                server.change(keep)
                for line in board.take_said():
                    progress.log(line)
                work.look(board)
                if board.failure:
                    raise self._failure_of(board)
                # What is done of a unit that begins anew was shown before.
                done = board.amount_done
                task.advance(max(0, done - shown))
                shown = max(shown, done)
                task.note(board.doing or f"{board.num_done} of {board.num_units} tasks done")
                time.sleep(LOOK_SECONDS)
            for line in board.take_said():
                progress.log(line)
            task.note(f"{board.num_done} of {board.num_units} tasks done")
            task.advance(max(0, board.size - shown))
        self._num_done += board.num_done

    def _start(self) -> tuple[PreparationServer, KeptWorkers]:
        """Serves units, to nobody yet."""
        runtime, folder = self._context.config.runtime, self._members.path
        access = Access.create(folder, tls=runtime.needs_tls)
        server = self._stack.enter_context(
            PreparationServer(
                bind=f"{LAUNCHERS[runtime.mode].bind_host}:0",
                access=Access.load(folder, "master"),
                most_clock_step_seconds=runtime.silence_seconds / 3,
            )
        )
        launcher = self._stack.enter_context(
            _launched(self._context, self._members, access)
            if self._opened is None
            else _on_units(self._opened, folder)
        )
        address = reachable_address(server.address)
        save_endpoint(folder, Endpoint(address, "", socket.gethostname(), os.getpid()))
        return server, KeptWorkers(launcher, 0)

    def _failure_of(self, board: PreparationBoard) -> CtrPipelineError:
        _LOGGER.error("%s", board.failure)
        if board.error is not None:
            return board.error.to_error()
        logs = self._members.logs if self._opened is None else self._context.run.logs
        return TrainingError(
            board.failure.partition("\n")[0],
            place=str(logs),
            remedy="What the workers wrote lies there; --resume goes on with what is left",
        )


@contextmanager
def _launched(context: RunContext, members: RunFolder, access: Access) -> Iterator[Launcher]:
    """A launcher of workers; they read the config as it is now, and the run may hold another."""
    durable.write_text(members.config, pinned_yaml(context.config, ()))
    with launch(context.config, members, access, phase=WorkerPhase(members.path)) as launcher:
        yield launcher


@contextmanager
def _on_units(opened: OpenLauncher, folder: Path) -> Iterator[Launcher]:
    """A launcher that has its workers do units meanwhile."""
    before, opened.phase.units = opened.phase.units, folder
    try:
        yield opened.launcher
    finally:
        opened.phase.units = before


def keep_preparing(
    workers: KeptWorkers, board: PreparationBoard, now: float, *, done_before: int = 0
) -> None:
    """Takes units back from workers that ended or hang, and has workers started again.

    Args:
        now: Seconds on the clock of the board.
        done_before: Units of earlier phases that these workers have done.
    """
    for process in workers.take_ended(now, progress=done_before + board.num_done):
        board.lose(process.incarnation, _fault_of(process))
    board.failure = board.failure or workers.failure
    workers.stop(board.take_silent(now), grace_seconds=0.0)
    if not (board.is_over or board.failure):
        workers.start_missing(now)


def _fault_of(process: ProcessState) -> str:
    """Why a worker ended, if its program is to blame; empty if not."""
    reason = process.reason or "error"
    relaunch = decide_relaunch(
        reason, registered=True, ends_in_row=1, is_remedied=bool(process.remedy)
    )
    if not relaunch.blames_program:
        return ""
    member = f"worker-{process.index}"
    why = explain_end(reason, process.exit_code, member=member, rss_bytes=0)
    return f"{why}\n{process.traceback}".strip()


def _open_ledger(work: SharedWork, units: Sequence[Unit]) -> UnitLedger:
    """The ledger of these units, less what it says of parts that somebody has deleted."""
    facts = repr((work.fingerprint, list(units)))
    with durable.os_errors_explained(work.folder):
        work.folder.mkdir(parents=True, exist_ok=True)
    ledger = UnitLedger(work.folder, hashlib.sha256(facts.encode()).hexdigest(), len(units))
    for unit in units:
        record = ledger.records.get(unit.name)
        if record is None or not record["is_done"]:
            continue
        if not work.is_whole(UnitLease(unit, record["attempt"])):
            ledger.commit({unit.name: {**record, "is_done": False}})
    return ledger
