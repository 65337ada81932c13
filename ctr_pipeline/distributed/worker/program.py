"""One worker as a process."""

import logging
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from ctr_pipeline.distributed.coordination.messages import Member, MemberStats
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.metrics_server import serve_metrics
from ctr_pipeline.distributed.worker.loop import WorkerLoop
from ctr_pipeline.distributed.worker.metrics import WorkerMetrics
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.distributed.worker.session import WorkerSession
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.machine import available_cores, measure_usage
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.step import TrainingStep

_LOGGER = logging.getLogger(__name__)
_MASTER = "MasterService"
_PS_SECONDS = 5.0
"""Deadline of a parameter server; then the loop looks up whether to go on waiting."""
_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class WorkerModel:
    """What a worker computes with.

    Attributes:
        compiled: The model.
        deterministic: `train.deterministic`.
        config_fingerprint: Fingerprint of the config that the model was made from.
    """

    compiled: CompiledModel
    deterministic: bool
    config_fingerprint: str


class _Figures:
    """What the worker says of itself; asked by the session's thread and by Prometheus."""

    def __init__(self) -> None:
        self.client: PsClient | None = None
        self.loop: WorkerLoop | None = None

    def __call__(self) -> MemberStats:
        return MemberStats(
            **asdict(measure_usage()),
            cores=available_cores(),
            samples_per_second=self.loop.samples_per_second if self.loop else 0.0,
            bytes_received=self.client.bytes_received if self.client else 0,
            bytes_sent=self.client.bytes_sent if self.client else 0,
        )


def run_worker(
    run_folder: Path,
    index: int,
    master_address: str | None,
    *,
    build: Callable[[], WorkerModel],
    incarnation: str | None = None,
    host: str = "127.0.0.1",
) -> int:
    """Works for a job until there is nothing left, or the master or a signal says to leave.

    Args:
        run_folder: The job's; its `job` folder holds the secrets and the master's address.
        master_address: `host:port`; None: as announced in the run folder.
        build: Makes the model; called once, and first: a worker that is taken in can work.
        incarnation: Name of this start, by which its launcher knows it; None: a random one.
        host: Address that metrics are served on.

    Returns:
        The exit code: 0, or 143 after SIGTERM.

    Raises:
        CtrPipelineError: The model or the data is wrong, or the master refuses the worker.
    """
    job_folder = run_folder / "job"
    access = Access.load(job_folder, "worker")
    if master_address is not None:
        access.require_protected(master_address)
    try:
        model = build()
    except CtrPipelineError as error:
        if error.__cause__ is not None:
            # Where in the user's own file it went wrong.
            _LOGGER.error("The model cannot be built", exc_info=error)
        raise
    figures = _Figures()

    def connect() -> RpcClient:
        return RpcClient(_MASTER, master_address or _announced(job_folder), access)

    with serve_metrics(WorkerMetrics(figures), host) as metrics_address:
        session = WorkerSession(
            member=Member(
                "worker", index, incarnation or secrets.token_hex(8), secrets.token_hex(16)
            ),
            config_fingerprint=model.config_fingerprint,
            metrics_address=metrics_address,
            connect=connect,
            stats=figures,
        )
        with session, _leaving_on_sigterm(session) as terminated:
            spec = session.wait_registered()
            if spec is not None:
                spec = spec.within(run_folder)
                _require_same_model(spec, model)
                client = PsClient(
                    spec,
                    access,
                    incarnation=session.incarnation,
                    deadline_seconds=_PS_SECONDS,
                    call_seconds=_PS_SECONDS,
                )
                try:
                    loop = WorkerLoop(
                        spec=spec,
                        session=session,
                        client=client,
                        compiled=model.compiled,
                        step=TrainingStep(spec.course, model.compiled),
                        scores_root=run_folder,
                        # For the same bits each time, a batch knows of all before it.
                        overlap_pushes=spec.update_rule.update == "async"
                        and not model.deterministic,
                    )
                    figures.client, figures.loop = client, loop
                    loop.run()
                finally:
                    client.close()
    _LOGGER.info("Left")
    return _TERMINATED if terminated.is_set() else 0


def _announced(job_folder: Path) -> str:
    endpoint = load_endpoint(job_folder)
    if endpoint is None:
        raise PeerUnavailable("no master has announced itself", place=str(job_folder))
    return endpoint.address


def _require_same_model(spec: JobSpec, model: WorkerModel) -> None:
    """The fingerprint has been compared; this catches a model file that changed."""
    ours = model.compiled.num_parameters
    if spec.num_dense != ours:
        raise CtrPipelineError(
            f"the model has {ours} dense parameters, the job was started with {spec.num_dense}",
            place="model",
            remedy="Start the job again after a change of the model's own file",
        )


@contextmanager
def _leaving_on_sigterm(session: WorkerSession) -> Iterator[threading.Event]:
    """SIGTERM ends the session after the batch in progress; gives whether it came."""
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        terminated.set()
        session.leave()

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, previous)
