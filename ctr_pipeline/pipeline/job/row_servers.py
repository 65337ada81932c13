"""Servers of embedding rows beside replicas: `runtime.embeddings: hybrid`."""

import secrets
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.encoded import load_meta
from ctr_pipeline.distributed.coordination.member_watch import report_seconds
from ctr_pipeline.distributed.coordination.messages import Member
from ctr_pipeline.distributed.replicas.reporting import MemberReporter
from ctr_pipeline.distributed.replicas.row_server import RowServer
from ctr_pipeline.distributed.replicas.served_rows import ServedRows
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import reachable_address
from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from ctr_pipeline.interruption import EXIT_TERMINATED, counting_sigterm
from ctr_pipeline.machine import available_cores
from ctr_pipeline.pipeline.model.embedding_rows import (
    build_store,
    memory_limit_of,
    row_layout,
    table_specs,
)
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.run_places import find_rendezvous
from ctr_pipeline.pipeline.stages.encode import load_counts
from ctr_pipeline.preprocessing.plan import PreprocessingPlan, load_plan

_MOST_THREADS = 4
_LOOK_SECONDS = 0.2


def run_row_server(
    loaded: LoadedConfig,
    index: int,
    *,
    bind: str,
    advertise: str | None = None,
    incarnation: str | None = None,
) -> int:
    """Serves the rows of one server until SIGTERM ends it; returns the exit code.

    It holds nothing until the first worker has it restored.

    Args:
        bind: `host:port` to serve on; port 0 takes a free one.
        advertise: `host:port` that workers are told; None: where it serves.
        incarnation: Name of this start, by which its launcher knows it; None: a random one.

    Raises:
        CtrPipelineError: The rows cannot be, or the config has no such server.
    """
    config, run = loaded.config, RunFolder(loaded.config.run_folder)
    num_servers = config.runtime.num_row_servers
    if not 0 <= index < num_servers:
        raise CtrPipelineError(
            f"the config has no server {index}: runtime.parameter_servers is {num_servers}",
            place="--index",
        )
    plan = load_plan(run.preprocessing)
    meta = load_meta(run.encoded / "train")
    counts = None if meta is None else load_counts(run, plan, meta.fingerprint)
    if counts is None:
        raise RunFolderError("holds no counts of these rows", place=str(run.encoded))
    threads = max(1, min(_MOST_THREADS, available_cores() // num_servers))
    store = build_store(
        plan,
        counts,
        config=config,
        threads=threads,
        memory_limit=memory_limit_of(config, run.path),
    )
    access = Access.load(run.replicas, "ps")
    server = RowServer(
        bind,
        access,
        store,
        index=index,
        num_servers=num_servers,
        checkpoints=run.checkpoint_storage,
    )
    address = advertise or reachable_address(server.address)
    reporter = MemberReporter(
        partial(find_rendezvous, run),
        access,
        member=Member("ps", index, incarnation or secrets.token_hex(8)),
        address=address,
        stats=lambda: replace(server.stats(), cores=threads),
        every_seconds=report_seconds(config.runtime.silence_seconds),
    )
    with counting_sigterm() as terminated, closing(server), reporter:
        file = _address_file(run, index)
        file.parent.mkdir(exist_ok=True)
        durable.write_text(file, address)
        while not terminated.times:
            time.sleep(_LOOK_SECONDS)
    return EXIT_TERMINATED


def served_rows(
    loaded: LoadedConfig,
    plan: PreprocessingPlan,
    access: Access,
    *,
    is_stopping: Callable[[], bool],
) -> ServedRows:
    """The rows of a run as one of its workers sees them."""
    config, run = loaded.config, RunFolder(loaded.config.run_folder)
    num_servers = config.runtime.num_row_servers
    return ServedRows(
        lambda: [_address_of(run, index) for index in range(num_servers)],
        access,
        tables=table_specs(config, plan),
        position_tables=plan.position_tables,
        layout=row_layout(config, plan),
        seed=config.train.seed,
        is_stopping=is_stopping,
    )


def _address_of(run: RunFolder, index: int) -> str:
    """Where a server was started last; empty: nowhere yet."""
    try:
        return _address_file(run, index).read_text("utf-8")
    except OSError:
        return ""


def _address_file(run: RunFolder, index: int) -> Path:
    return run.row_servers / str(index)
