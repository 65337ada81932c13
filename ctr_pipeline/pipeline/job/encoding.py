"""Rows that workers encode, in units which they lease: the side that gives them, and the worker's.

The ledger of the units lies in `cache/encoding` of the run folder until all are done: a run that is
resumed encodes only what is left.
"""

import hashlib
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence

from ctr_pipeline import durable, interruption
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.resolved import pinned_yaml
from ctr_pipeline.dataset.encoded import load_meta, part_folder
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.distributed.coordination.preparation import (
    PreparationBoard,
    Unit,
    UnitLease,
)
from ctr_pipeline.distributed.master.ledger.unit_file import UnitLedger
from ctr_pipeline.distributed.master.preparing import PreparationServer, WorkerKeeper
from ctr_pipeline.distributed.master.settings import bound_workers
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, reachable_address, save_endpoint
from ctr_pipeline.distributed.worker.preparing import encode_units
from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.launchers import launch, needs_tls
from ctr_pipeline.pipeline.resources import threads_of_worker
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.encode import SplitEncoder, encode_unit
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.specs.launchers import LAUNCHERS

_LOGGER = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
_FINISH_SECONDS = 5.0


def encode_by_workers(
    context: RunContext, encoder: SplitEncoder, units: Sequence[Unit]
) -> Mapping[str, Sequence[str]]:
    """Starts workers, gives them units, and follows them until all units are encoded.

    Returns:
        The parts of each split, in the order of their rows.

    Raises:
        TrainingError: A unit, or a worker, failed too often.
        Interrupted: By a signal; what is encoded is kept for `--resume`.
    """
    runtime = context.config.runtime
    ledger = _open_ledger(encoder, units)
    board = PreparationBoard(
        units,
        ledger.records,
        silence_seconds=runtime.silence_seconds,
        max_failures=runtime.max_task_failures,
    )
    if board.num_done:
        context.progress.log(
            f"{board.num_done} of {board.num_units} tasks of encoding are done already"
        )
    if not board.is_over:
        _follow(context, encoder, board, ledger)
    return {split: board.parts_of(split) for split in dict.fromkeys(unit.split for unit in units)}


def _follow(
    context: RunContext, encoder: SplitEncoder, board: PreparationBoard, ledger: UnitLedger
) -> None:
    run, runtime = context.run, context.config.runtime
    members = RunFolder(run.encoding)
    durable.write_text(members.config, pinned_yaml(context.config, ()))
    access = Access.create(run.encoding, tls=needs_tls(runtime))
    with (
        PreparationServer(
            board,
            ledger,
            fingerprint=encoder.fingerprint,
            bind=f"{LAUNCHERS[runtime.mode].bind_host}:0",
            access=Access.load(run.encoding, "master"),
            most_clock_step_seconds=runtime.silence_seconds / 3,
        ) as server,
        launch(context.config, members, access, encodes=True) as launcher,
        context.progress.task("Encoding", total=board.num_rows) as task,
    ):
        address = reachable_address(server.address)
        save_endpoint(run.encoding, Endpoint(address, "", socket.gethostname(), os.getpid()))
        num_workers = min(bound_workers(runtime).most, board.num_open)
        keeper = WorkerKeeper(
            launcher, num_workers=num_workers, max_failures=runtime.max_task_failures
        )
        shown = 0
        while not board.is_over:
            interruption.raise_if_requested()
            server.change(keeper.look)
            if board.failure:
                _LOGGER.error("%s", board.failure)
                raise TrainingError(
                    board.failure.partition("\n")[0],
                    place=str(members.logs),
                    remedy="What the workers wrote lies there; --resume encodes what is left",
                )
            # Rows of a unit that begins anew were shown before.
            rows_done = board.rows_done
            task.advance(max(0, rows_done - shown))
            shown = max(shown, rows_done)
            task.note(f"{board.num_done} of {board.num_units} tasks done")
            time.sleep(LOOK_SECONDS)
        task.advance(max(0, board.num_rows - shown))
        until = time.monotonic() + _FINISH_SECONDS
        while time.monotonic() < until and any(one.running for one in launcher.observe()):
            time.sleep(LOOK_SECONDS)


def _open_ledger(encoder: SplitEncoder, units: Sequence[Unit]) -> UnitLedger:
    """The ledger of these units, less what it says of parts that somebody has deleted."""
    facts = repr((encoder.fingerprint, list(units)))
    folder = encoder.run.encoding
    with durable.os_errors_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    ledger = UnitLedger(folder, hashlib.sha256(facts.encode()).hexdigest(), len(units))
    for unit in units:
        record = ledger.records.get(unit.name)
        if record is not None and record["is_done"]:
            part = UnitLease(unit, record["attempt"]).part
            meta = load_meta(part_folder(encoder.run.encoded / unit.split, part))
            if meta is None or meta.fingerprint != encoder.fingerprint:
                ledger.commit({unit.name: {**record, "is_done": False}})
    return ledger


def encode_as_worker(loaded: LoadedConfig, incarnation: str) -> None:
    """Encodes units until none is left.

    Raises:
        CtrPipelineError: What it encodes with cannot be read, or nobody gives it units.
    """
    config, run = loaded.config, RunFolder(loaded.config.run_folder)
    ingested = load_ingested(run.ingested)
    if ingested is None:
        raise DataError("holds no rows", place=str(run.ingested), remedy="Start the run again")
    encoder = SplitEncoder(
        config, run, load_plan(run.preprocessing), ingested, threads_of_worker(config.runtime)
    )
    encode_units(
        run.encoding,
        incarnation,
        encoder.fingerprint,
        lambda lease, on_rows: encode_unit(encoder, lease, on_rows),
        report_seconds=min(config.runtime.heartbeat_seconds, config.runtime.silence_seconds / 3),
    )
