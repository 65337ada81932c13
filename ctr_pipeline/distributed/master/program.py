"""The master of a job as a program: reads its ledger, serves its members, ends with it."""

import hashlib
import logging
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ctr_pipeline import interruption
from ctr_pipeline.config import load_config
from ctr_pipeline.config.models import Config
from ctr_pipeline.distributed.coordination.job import JobSettings
from ctr_pipeline.distributed.coordination.launching import Launcher
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.master.beginning import (
    START_RECORD,
    MasterStart,
    begin_job,
    find_newest_cut,
    open_ledger,
    read_events,
    read_start,
)
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.executor import JobExecutor
from ctr_pipeline.distributed.master.ledger.store import LedgerStore
from ctr_pipeline.distributed.master.manifests import CheckpointsFolder
from ctr_pipeline.distributed.master.metrics import MetricsServer
from ctr_pipeline.distributed.master.recording import Recorder
from ctr_pipeline.distributed.master.server_calls import ServerCalls
from ctr_pipeline.distributed.master.servicer import SERVICE, MasterServicer
from ctr_pipeline.distributed.master.settings import batches_per_epoch, plan_job
from ctr_pipeline.distributed.master.validation import decide_epoch
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint, load_endpoint, save_endpoint
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.errors import CtrPipelineError

_TICK_SECONDS = 0.1
_ALIVE_EVERY_SECONDS = 1.0
_SNAPSHOT_SECONDS = 600.0
_GRACE_SECONDS = 1.0
_EVERY_HOST = frozenset({"0.0.0.0", "[::]"})  # noqa: S104  recognised, not bound

_LOGGER = logging.getLogger(__name__)


def run_master(run_folder: Path, bind: str, launcher: Launcher | None = None) -> int:
    """Is the master of a prepared job until the job ends.

    What is prepared: `config.resolved.yaml`, `job/spec.json` and `job/token` in the run folder.

    Args:
        run_folder: Of the job.
        bind: `host:port` to serve on; with port 0, that of the master before if it is free.
        launcher: Starts and stops members; None: people do.

    Returns:
        Exit code: 0 if the job finished or was stopped, 1 if it failed.

    Raises:
        CtrPipelineError: The job cannot be mastered; with exit code 75, not by this process.
        Interrupted: A signal asked this process to end; members wait for the next master.
    """
    job_folder = run_folder / "job"
    spec = load_spec(job_folder)
    config = load_config(run_folder / "config.resolved.yaml").config
    access = Access.load(job_folder)
    scores = run_folder / "scores"
    settings = plan_job(spec, config.runtime, scores_folder=scores, launched=launcher is not None)
    scores.mkdir(exist_ok=True)
    store = open_ledger(config, spec, job_folder)
    try:
        surroundings = _Surroundings(
            run_folder, bind, spec, config, access, settings, store, launcher
        )
        return _be_master(surroundings)
    finally:
        store.close()


@dataclass(frozen=True)
class _Surroundings:
    """What a master finds when it starts."""

    run_folder: Path
    bind: str
    spec: JobSpec
    config: Config
    access: Access
    settings: JobSettings
    store: LedgerStore
    launcher: Launcher | None


def _be_master(found: _Surroundings) -> int:
    spec, settings, store = found.spec, found.settings, found.store
    folder = CheckpointsFolder(found.run_folder / spec.checkpoints_folder, spec.job)
    records = store.load()
    before = read_start(records)
    launch = _name_launch(found.access)
    is_restart = before is not None and before.launch == launch
    job = begin_job(
        settings,
        spec,
        records,
        folder,
        time.monotonic(),
        resume=before is not None and not is_restart,
    )
    steps_per_epoch = batches_per_epoch(spec)
    with ExitStack() as stack:
        calls = ServerCalls(found.access)
        stack.callback(calls.close)
        recorder = Recorder(found.run_folder / "history.csv", found.run_folder / "tensorboard")
        stack.callback(recorder.close)
        executor = JobExecutor(
            job,
            store,
            launcher=found.launcher,
            cuts=CutKeeper(
                spec, folder, calls, deadline_seconds=_SNAPSHOT_SECONDS, wall_clock=time.time
            ),
            recorder=recorder,
            decide_epoch=lambda action: decide_epoch(
                action, found.config.train, steps_per_epoch=steps_per_epoch
            ),
            events=read_events(records),
            newest_cut=find_newest_cut(folder, job.status().last_cut),
        )
        stack.callback(executor.close)
        start = MasterStart(
            launch, before.number + 1 if before is not None and is_restart else 0, time.time()
        )
        servicer = MasterServicer(
            spec,
            executor,
            heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=settings.worker_silence_seconds,
            restarts=start.number,
        )
        metrics = MetricsServer(servicer.status, host=_host_of(found.bind))
        stack.callback(metrics.close)
        server, address = _serve(found, servicer)
        stack.callback(lambda: server.stop(_GRACE_SECONDS if executor.death is None else 0.0))
        servicer.know_server(server, address, metrics.address)
        # What the machine makes of the ledger of an earlier start is durable before this start is
        # noted: a master that dies in between does the same once more.
        executor.tick()
        store.commit({START_RECORD: asdict(start)}, durable=True)
        if before is not None and is_restart:
            executor.announce(
                "the master was lost",
                "another one has read its ledger and goes on",
                max(0.0, time.time() - before.alive_at),
            )
        save_endpoint(
            found.run_folder / "job",
            Endpoint(address, metrics.address, socket.gethostname(), os.getpid()),
        )
        _LOGGER.info("the master of job '%s' serves on %s", spec.job, address)
        _live(executor, start)
    if executor.death is not None:
        raise executor.death
    return 1 if executor.ended == "failed" else 0


def _live(executor: JobExecutor, start: MasterStart) -> None:
    """Lets time pass until the job ends, or this master does."""
    noted_at = time.monotonic()
    with interruption.deferred():
        while not executor.wait(_TICK_SECONDS) and not interruption.requested():
            executor.tick()
            if time.monotonic() - noted_at >= _ALIVE_EVERY_SECONDS:
                noted_at = time.monotonic()
                executor.note({START_RECORD: asdict(replace(start, alive_at=time.time()))})


def _serve(found: _Surroundings, servicer: MasterServicer) -> tuple[RpcServer, str]:
    """Serves where the master before did, so that members find this one at once."""
    host, _, port = found.bind.rpartition(":")
    before = load_endpoint(found.run_folder / "job")
    addresses = [found.bind]
    if port == "0" and before is not None:
        addresses.insert(0, f"{host}:{before.address.rpartition(':')[2]}")
    while True:
        address = addresses.pop(0)
        server = RpcServer(SERVICE, servicer.methods, address=address, access=found.access)
        try:
            bound = server.start()
        except CtrPipelineError:
            if not addresses:
                raise
        else:
            return server, _reachable(bound)


def _reachable(address: str) -> str:
    """An address that others can use, of one that may stand for all of this host's."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in _EVERY_HOST else address


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def _name_launch(access: Access) -> str:
    """Names a start of the whole job: each makes secrets of its own."""
    return hashlib.sha256(access.token.encode()).hexdigest()[:16]
