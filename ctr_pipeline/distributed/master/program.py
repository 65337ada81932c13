"""The master of a job as a program: reads its ledger, serves its members, ends with it."""

import gc
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from ctr_pipeline import interruption
from ctr_pipeline.config import load_config
from ctr_pipeline.config.models import Config
from ctr_pipeline.distributed.coordination.codec import to_record
from ctr_pipeline.distributed.coordination.events import Json
from ctr_pipeline.distributed.coordination.launching import MemberControl
from ctr_pipeline.distributed.coordination.spec import RunFence
from ctr_pipeline.distributed.master.autoscaling import Autoscaler
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.durable_job import MasterGoneError
from ctr_pipeline.distributed.master.executor import JobExecutor
from ctr_pipeline.distributed.master.ledger.opening import identify_ledger, locate_ledger
from ctr_pipeline.distributed.master.manifests import Cuts
from ctr_pipeline.distributed.master.metrics import JobCollector
from ctr_pipeline.distributed.master.moves import Mover
from ctr_pipeline.distributed.master.recording import Recorder
from ctr_pipeline.distributed.master.recovery import (
    START_RECORD,
    MasterStart,
    await_storage,
    begin_job,
    find_newest_cut,
    read_events,
    read_start,
    read_timeline,
)
from ctr_pipeline.distributed.master.server_calls import ServerCalls
from ctr_pipeline.distributed.master.servicer import SERVICE, MasterServicer
from ctr_pipeline.distributed.master.settings import (
    bound_workers,
    is_queued,
    plan_job,
    steps_through,
)
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.master.validation import decide_epoch
from ctr_pipeline.distributed.rpc.access import Access, name_launch
from ctr_pipeline.distributed.rpc.endpoint import (
    Endpoint,
    load_endpoint,
    reachable_address,
    save_endpoint,
)
from ctr_pipeline.distributed.rpc.metrics_server import serve_metrics
from ctr_pipeline.distributed.rpc.pages import Pages, TokenGate, serve_pages
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.storage.commit_log import CommitReader
from ctr_pipeline.storage.opening import open_storage

_TICK_SECONDS = 0.5
_ALIVE_EVERY_SECONDS = 1.0
_SNAPSHOT_SECONDS = 600.0
_GRACE_SECONDS = 1.0
_SCORES = "scores"

PagesOfJob = Callable[[Path, Callable[[], JobView]], Pages]
"""Makes the pages of a job, of its run folder and what is known of it."""

_LOGGER = logging.getLogger(__name__)


def run_master(
    run_folder: Path,
    bind: str,
    launcher: MemberControl | None = None,
    *,
    pages: PagesOfJob | None = None,
) -> int:
    """Is the master of a prepared job until the job ends.

    What is prepared: `config.resolved.yaml`, `job/spec.json` and `job/token` in the run folder.

    Args:
        bind: `host:port` to serve on; with port 0, that of the master before if it is free.
        launcher: Starts and stops members; None: people do.
        pages: Makes the pages that the master serves; None: it serves none.

    Returns:
        Exit code: 0 if the job finished or was stopped, 1 if it failed.

    Raises:
        CtrPipelineError: The job cannot be mastered; with exit code 75, not by this process.
        Interrupted: A signal asked this process to end; members wait for the next master.
    """
    with Master(run_folder, bind, launcher, pages=pages) as master:
        return master.run()


class Master:
    """Everything that one master has open; it serves from the beginning of `run`.

    Args:
        bind: `host:port` to serve on.
        launcher: Starts and stops members; None: people do.
        pages: Makes the pages that it serves; None: it serves none.
        ledger_seconds: It waits no longer for another master to give back a ledger in a file.

    Raises:
        CtrPipelineError: The job is not prepared, or another master has its ledger.
    """

    def __init__(
        self,
        run_folder: Path,
        bind: str,
        launcher: MemberControl | None,
        *,
        pages: PagesOfJob | None = None,
        ledger_seconds: float = 20.0,
    ) -> None:
        self._pages = pages
        self._run_folder = run_folder
        self._bind = bind
        self._job_folder = run_folder / "job"
        self._spec = load_spec(self._job_folder)
        config = load_config(run_folder / "config.resolved.yaml").config
        self._access = Access.load(self._job_folder, "master")
        self._settings = plan_job(
            self._spec,
            scores_folder=_SCORES,
            mode=config.runtime.mode,
            is_queued=is_queued(config),
        )
        (run_folder / _SCORES).mkdir(exist_ok=True)
        with ExitStack() as stack:
            place = locate_ledger(config.runtime, self._job_folder)
            self.store = place.open(identify_ledger(self._spec), wait_seconds=ledger_seconds)
            stack.callback(self.store.close)
            records = self.store.load()
            self._before = read_start(records)
            self._launch = name_launch(self._job_folder, self._access)
            self.executor = self._begin(records, config, launcher, stack)
            self._closing = stack.pop_all()

    def _begin(
        self,
        records: Mapping[str, Json],
        config: Config,
        launcher: MemberControl | None,
        stack: ExitStack,
    ) -> JobExecutor:
        spec = self._spec
        checkpoints = spec.within(self._run_folder).checkpoints_folder
        cuts = Cuts(CutStorage.at(checkpoints), spec)
        job = await_storage(
            lambda: begin_job(
                self._settings,
                spec,
                records,
                cuts,
                time.monotonic(),
                resume=self._before is not None and not self._is_restart,
            ),
            spec.supervision.storage_timeout_seconds,
            wait=time.sleep,
        )
        calls = ServerCalls(self._access)
        stack.callback(calls.close)
        move_calls = ServerCalls(self._access)
        stack.callback(move_calls.close)
        recorder = Recorder(self._run_folder / "history.csv", self._run_folder / "tensorboard")
        stack.callback(recorder.close)
        executor = JobExecutor(
            job,
            self.store,
            launcher=launcher,
            cuts=CutKeeper(
                spec,
                cuts,
                calls,
                deadline_seconds=_SNAPSHOT_SECONDS,
                wall_clock=time.time,
                require_own=partial(_require_own, spec.fence),
            ),
            mover=Mover(move_calls),
            recorder=recorder,
            decide_epoch=lambda action: decide_epoch(
                action, config.train, step=steps_through(spec, action.totals.epoch)
            ),
            autoscaler=Autoscaler(bound_workers(spec.supervision), time.monotonic)
            if spec.supervision.workers == "auto"
            else None,
            events=read_events(records),
            timeline=read_timeline(records),
            newest_cut=find_newest_cut(cuts, job.status().last_cut),
        )
        stack.callback(executor.close)
        return executor

    @property
    def _is_restart(self) -> bool:
        """A master of the same start of the job was there before."""
        return self._before is not None and self._before.launch == self._launch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back all of it, the ledger last."""
        self._closing.close()

    def run(self) -> int:
        """Serves until the job ends, or this master does; the exit code of `run_master`."""
        before, executor = self._before, self.executor
        number = before.number + 1 if before is not None and self._is_restart else 0
        start = MasterStart(self._launch, number, time.time())
        servicer = MasterServicer(
            self._spec,
            executor,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            news_seconds=self._settings.news_seconds,
            restarts=number,
        )
        with ExitStack() as stack:
            metrics_address = stack.enter_context(
                serve_metrics(JobCollector(servicer.status), _host_of(self._bind))
            )
            server, address = self._serve(servicer)
            page_address = stack.enter_context(self._serve_pages(servicer))
            stack.callback(executor.release)
            stack.callback(lambda: server.stop(0.0 if executor.death else _GRACE_SECONDS))
            servicer.set_server(server, address, metrics_address)
            with suppress(MasterGoneError):
                self._take_over(start)
                save_endpoint(
                    self._job_folder,
                    Endpoint(
                        address, metrics_address, socket.gethostname(), os.getpid(), page_address
                    ),
                )
                _LOGGER.info("the master of job '%s' serves on %s", self._spec.job, address)
                stack.enter_context(_uncollected())
                _tick_until_over(executor, start)
        if executor.death is not None:
            raise executor.death
        return 1 if executor.ended == "failed" else 0

    def _take_over(self, start: MasterStart) -> None:
        """Begins to act, and says so if there was a master before."""
        before, executor = self._before, self.executor
        # What the machine makes of the ledger of an earlier start is durable before this start is
        # noted: a master that dies in between does the same once more.
        executor.tick()
        executor.note({START_RECORD: to_record(start)}, durable=True)
        if before is not None and self._is_restart:
            executor.announce(
                "the master was lost",
                "another one has read its ledger and goes on",
                max(0.0, time.time() - before.alive_at),
                topic="recovery",
            )

    @contextmanager
    def _serve_pages(self, servicer: MasterServicer) -> Iterator[str]:
        """Serves what people look at; gives where, empty if nothing is served."""
        if self._pages is None:
            yield ""
            return
        with serve_pages(
            self._pages(self._run_folder, servicer.status),
            TokenGate(self._access),
            host=_host_of(self._bind),
            tls=self._access.tls,
        ) as bound:
            yield reachable_address(bound)

    def _serve(self, servicer: MasterServicer) -> tuple[RpcServer, str]:
        """Serves where the master before did, so that members find this one at once."""
        host, _, port = self._bind.rpartition(":")
        before = load_endpoint(self._job_folder)
        addresses = [self._bind]
        if port == "0" and before is not None:
            addresses.insert(0, f"{host}:{before.address.rpartition(':')[2]}")
        while True:
            address = addresses.pop(0)
            server = RpcServer(SERVICE, servicer.methods, address=address, access=self._access)
            try:
                bound = server.start()
            except CtrPipelineError:
                if not addresses:
                    raise
            else:
                return server, reachable_address(bound)


def _require_own(fence: RunFence | None) -> None:
    """Raises FencedError where another process than the one of the fence works on the run."""
    if fence is not None:
        CommitReader(open_storage(fence.address)).require_newest(fence.generation)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps the cyclic collector from what is loaded by now: calls wait while it searches it."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _tick_until_over(executor: JobExecutor, start: MasterStart) -> None:
    """Lets time pass until the job ends, or this master does."""
    noted_at = time.monotonic()
    with interruption.deferred():
        while not executor.wait(_TICK_SECONDS) and not interruption.requested():
            executor.tick()
            if time.monotonic() - noted_at >= _ALIVE_EVERY_SECONDS:
                noted_at = time.monotonic()
                alive = replace(start, alive_at=time.time())
                # With it goes all that was not worth a write of its own.
                executor.note({START_RECORD: to_record(alive)}, durable=True)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
