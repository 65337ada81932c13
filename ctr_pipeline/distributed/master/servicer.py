"""`MasterService`: what members and people ask of the master."""

import os
import socket
import time
from dataclasses import asdict

from ctr_pipeline.distributed.coordination.events import ScaleAsked, ServersAsked, StopAsked
from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    MemberStats,
    RegisterReply,
    RegisterRequest,
    ScaleRequest,
)
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION, JobSpec
from ctr_pipeline.distributed.master.executor import JobExecutor
from ctr_pipeline.distributed.master.status import JobView, view_job
from ctr_pipeline.distributed.rpc.certificates import Role
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.machine import measure_usage

SERVICE = "MasterService"

_SHORTEST_SECRET = 32
_MEMBERS: tuple[Role, ...] = ("ps", "worker")
_PEOPLE: tuple[Role, ...] = ("client", "launcher")


class MasterServicer:
    """Answers with what the job machine says.

    Args:
        executor: The machine with its surroundings.
        heartbeat_seconds: Between heartbeats of a member.
        news_seconds: For which a worker's progress waits for its heartbeat, at most.
        restarts: Masters of this job before this one.
    """

    def __init__(
        self,
        spec: JobSpec,
        executor: JobExecutor,
        *,
        heartbeat_seconds: float,
        news_seconds: float,
        restarts: int,
    ) -> None:
        self._spec = spec
        self._executor = executor
        self._heartbeat_seconds = heartbeat_seconds
        self._news_seconds = news_seconds
        self._restarts = restarts
        self._server: RpcServer | None = None
        self._address = ""
        self._metrics_address = ""

    @property
    def methods(self) -> tuple[Method, ...]:
        """What is served."""
        return (
            Method("Register", RegisterRequest, RegisterReply, self.register, callers=_MEMBERS),
            Method(
                "Heartbeat",
                HeartbeatRequest,
                HeartbeatReply,
                self._executor.heartbeat,
                callers=_MEMBERS,
            ),
            Method("Lease", LeaseRequest, LeaseReply, self._executor.lease, callers=("worker",)),
            Method("Status", Empty, JobView, lambda _: self.status()),
            Method("Stop", Empty, Empty, self._stop, callers=_PEOPLE),
            Method("Scale", ScaleRequest, Empty, self._scale, callers=_PEOPLE),
        )

    def set_server(self, server: RpcServer, address: str, metrics_address: str) -> None:
        """The job is served: by whom, and where it and its metrics are found."""
        self._server, self._address, self._metrics_address = server, address, metrics_address

    def register(self, request: RegisterRequest) -> RegisterReply:
        """Takes in a member that is one of this job and speaks as we do."""
        refused = self._find_difference(request) or self._executor.register(request)
        return RegisterReply(
            refused=refused,
            generation=self._executor.generation,
            spec=self._spec,
            ps_addresses=() if refused else self._executor.ps_addresses,
            heartbeat_seconds=self._heartbeat_seconds,
            news_seconds=self._news_seconds,
        )

    def status(self) -> JobView:
        """The job now."""
        executor, spec = self._executor, self._spec
        train = spec.split("train")
        return view_job(
            executor.status(),
            job=spec.job,
            epochs=spec.course.epochs,
            records_per_epoch=train.num_rows if train else 0,
            newest_cut=executor.newest_cut,
            unix_time=time.time(),
            samples_per_second=executor.samples_per_second,
            events=executor.events,
            timeline=executor.timeline,
            tables=spec.tables,
            table_features=spec.table_features,
            master=self._view_self(),
            master_errors=executor.errors,
        )

    def _find_difference(self, request: RegisterRequest) -> str:
        if request.protocol != PROTOCOL_VERSION:
            return (
                f"it speaks protocol {request.protocol} and the master protocol "
                f"{PROTOCOL_VERSION}: start all members with the same version of ctrpipe"
            )
        if request.config_fingerprint != self._spec.config_fingerprint:
            return (
                "it was started with another config than the master: features, model or training "
                "differ"
            )
        if len(request.member.secret) < _SHORTEST_SECRET:
            return "it has no secret of its own"
        return ""

    def _stop(self, _: Empty) -> Empty:
        self._executor.submit(StopAsked())
        return Empty()

    def _scale(self, request: ScaleRequest) -> Empty:
        wanted = (request.min_workers, request.max_workers, request.target_workers)
        if any(number is not None and number < 1 for number in wanted):
            raise Refusal("scale", "a job needs at least one worker")
        if (
            request.min_workers is not None
            and request.max_workers is not None
            and request.min_workers > request.max_workers
        ):
            raise Refusal(
                "scale",
                f"at least {request.min_workers} and at most {request.max_workers} workers is no "
                "range",
            )
        servers = request.parameter_servers
        if servers is not None and not 1 <= servers <= self._spec.num_partitions:
            raise Refusal("scale", f"1 … {self._spec.num_partitions} parameter servers may be")
        if servers is not None:
            self._executor.submit(ServersAsked(servers))
        if servers is None or wanted != (None, None, None):
            self._executor.submit(ScaleAsked(*wanted))
        return Empty()

    def _view_self(self) -> MemberStatus:
        server = self._server
        return MemberStatus(
            role="master",
            index=0,
            pid=os.getpid(),
            host=socket.gethostname(),
            address=self._address,
            metrics_address=self._metrics_address,
            state="running",
            restarts=self._restarts,
            last_seen_seconds=0.0,
            stats=MemberStats(
                **asdict(measure_usage()),
                bytes_received=server.bytes_received if server else 0,
                bytes_sent=server.bytes_sent if server else 0,
            ),
        )
