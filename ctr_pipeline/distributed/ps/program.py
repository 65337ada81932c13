"""A parameter server as a process."""

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctr_pipeline.distributed.coordination.messages import Member, RestoreRequest
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.memory import release_compiler_pages
from ctr_pipeline.distributed.ps.metrics import PsFigures, PsMetrics
from ctr_pipeline.distributed.ps.service import SERVICE, ps_methods
from ctr_pipeline.distributed.ps.session import PsSession
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint, reachable_address
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.metrics_server import serve_metrics
from ctr_pipeline.distributed.rpc.packed import DenseRequest, PullRequest, PushRequest
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.interruption import EXIT_TERMINATED, Terminated, counting_sigterm
from ctr_pipeline.machine import available_cores
from ctr_pipeline.specs.course import UpdateRule
from ctr_pipeline.specs.table import TableSpec

_LOGGER = logging.getLogger(__name__)
_MASTER = "MasterService"
_MOST_ROW_THREADS = 4
_TOY_ROWS = 1 << 10
"""Rows, so many that their index grows."""

_GRACE_SECONDS = 1.0
_CLOCK_SECONDS = 0.25
_LONGEST_SLEEP_SECONDS = 0.2
"""A signal handler can wake nobody."""
_MOST_MARGIN_SECONDS = 3.0
"""Part of the grace period after the last word of the master; a quarter of it at most."""


def run_ps(
    run_folder: Path,
    index: int,
    master_address: str | None,
    bind: str,
    *,
    advertise: str | None = None,
    incarnation: str | None = None,
) -> int:
    """Serves rows and dense parameters until the master, a caller or a signal says to leave.

    It holds nothing until the master has it restored for the job's generation. After SIGTERM it
    stays until a checkpoint holds all that was trained, `runtime.termination_grace_seconds` at
    most; a second SIGTERM ends it at once.

    Args:
        run_folder: The job's; its `job` folder holds spec, secrets and the master's address.
        master_address: `host:port`; None: as announced in the run folder.
        bind: `host:port` to serve on; port 0 takes a free one.
        advertise: `host:port` that others are told; None: where it serves.
        incarnation: Name of this start, by which its launcher knows it; None: a random one.

    Returns:
        The exit code: 0, or 143 after SIGTERM.

    Raises:
        CtrPipelineError: It cannot serve, or the master refuses it.
    """
    job_folder = run_folder / "job"
    access = Access.load(job_folder, "ps")
    if advertise is not None:
        access.require_protected(advertise)
    if master_address is not None:
        access.require_protected(master_address)
    spec = load_spec(job_folder)
    if not 0 <= index < spec.num_partitions:
        raise CtrPipelineError(
            f"a job of {spec.num_partitions} partitions has no parameter server {index}",
            place="--index",
            remedy="Raise runtime.partitions and start the job anew",
        )
    over = threading.Event()
    core = PsCore(spec, index, run_folder=run_folder, threads=row_threads(spec))
    warm_up(spec)
    release_compiler_pages()
    server = RpcServer(
        SERVICE,
        ps_methods(core, over.set, lambda peer: RpcClient(SERVICE, peer, access)),
        address=bind,
        access=access,
    )
    address = server.start()
    host = address.rpartition(":")[0].strip("[]")
    figures = PsFigures(core, server, cores=row_threads(spec))

    def connect() -> RpcClient:
        return RpcClient(_MASTER, master_address or _announced(job_folder), access)

    try:
        with (
            counting_sigterm() as terminated,
            _keeping_time(core),
            serve_metrics(PsMetrics(figures), host) as metrics_address,
        ):
            session = PsSession(
                core,
                member=Member(
                    "ps", index, incarnation or secrets.token_hex(8), secrets.token_hex(16)
                ),
                address=advertise or reachable_address(address),
                metrics_address=reachable_address(metrics_address),
                connect=connect,
                stats=figures,
            )
            _LOGGER.info("Serves on %s", address)
            try:
                _talk(session, over, terminated, spec.supervision.termination_grace_seconds)
            finally:
                session.close()
    finally:
        server.stop(_GRACE_SECONDS)
    _LOGGER.info("Left")
    return EXIT_TERMINATED if terminated.times else 0


def warm_up(spec: JobSpec) -> None:
    """Compiles the kernels of rows like the job's, or reads them from their cache.

    Otherwise the first workers would wait for it, and what they time would be compilation.
    """
    num_dense = 1
    toy = replace(
        spec,
        tables=(TableSpec("toy", _TOY_ROWS),),
        counts_file="",
        num_dense=num_dense,
        num_partitions=1,
        num_parameter_servers=1,
        update_rule=UpdateRule(),
    )
    core = PsCore(toy, 0)
    core.checkpoints.restore(RestoreRequest(0, 0, (), (), ()))
    dense = np.zeros(num_dense, np.float32)
    core.updates.init_dense(DenseRequest(0, 0, dense))
    batch = BatchId(0, 0, 1, 0)
    # Through bytes, as over the network: kernels are compiled anew for arrays that may be written.
    pull = PullRequest(0, batch, 0, create=True, dense_version=-1, keys=np.arange(_TOY_ROWS))
    core.updates.pull(PullRequest.decode(pull.encode()))
    push = PushRequest(
        generation=0,
        batch=batch,
        worker=0,
        step=1,
        learning_rate_factor=1.0,
        num_examples=1,
        version=0,
        keys=np.array([0, 1, 1]),
        num_occurrences=np.ones(3, np.int32),
        sums=np.zeros((3, sum(segment.dim for segment in spec.segments)), np.float32),
        dense=dense,
        fresh_keys=np.arange(2),
    )
    core.updates.push(PushRequest.decode(push.encode()))
    distinct = replace(push, batch=replace(batch, batch=1), keys=np.arange(3))
    core.updates.push(PushRequest.decode(distinct.encode()))


def _talk(
    session: PsSession, over: threading.Event, terminated: Terminated, grace_seconds: float
) -> None:
    """Takes turns until told to leave."""
    margin = min(_MOST_MARGIN_SECONDS, grace_seconds / 4)
    while not session.must_leave:
        remaining = session.turn()
        while remaining > 0 and not session.must_leave:
            pause = min(remaining, _LONGEST_SLEEP_SECONDS)
            if terminated.times > 1 or over.wait(pause):
                return
            remaining -= pause
            if terminated.times and not session.is_leaving:
                session.leave_within(grace_seconds - margin)
                break


def row_threads(spec: JobSpec) -> int:
    """Threads that work on rows: cores of this process, divided as if all servers were here."""
    return max(1, min(_MOST_ROW_THREADS, available_cores() // spec.num_parameter_servers))


def _announced(job_folder: Path) -> str:
    endpoint = load_endpoint(job_folder)
    if endpoint is None:
        raise PeerUnavailable("no master has announced itself", place=str(job_folder))
    return endpoint.address


@contextmanager
def _keeping_time(core: PsCore) -> Iterator[None]:
    """Lets the server look at the clock meanwhile, in a thread that never waits for the master."""
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            core.updates.await_news(_CLOCK_SECONDS)
            core.updates.keep_time()

    thread = threading.Thread(target=keep, name="clock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
