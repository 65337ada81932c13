"""What the master of a large job spends, and how soon it answers: agents that train nothing.

Workers are the sessions of real ones over gRPC with TLS on the loopback device, and "train" by
waiting; servers register, restore at once and send heartbeats. The master is `run_master` in a
process of its own with its ledger in SQLite, and its processor time alone is counted. Bounded in
time; nothing is left behind.

    python benchmarks/master_load.py [--workers 10 100 200 500] [--servers 50] [--seconds 20]

A worker of the default trains a task of 64 batches in 3.2 s. It asks for more before it needs it,
and the master keeps the answer back until it does: how long that takes says nothing of the master.
So leases are timed by a few more workers that hold nothing when they ask, and are answered at once.
The other agents share the machine with the master and give way to it; milliseconds are upper bounds
nevertheless wherever the processor is busy.
"""

import argparse
import multiprocessing
import os
import secrets
import statistics
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import psutil
from machine import describe_machine, print_machine, print_table, write_results

from ctr_pipeline.config.models import Config
from ctr_pipeline.config.resolved import resolved_yaml
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.distributed.coordination.messages import (
    BatchLoss,
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    LeasedTask,
    LeaseReply,
    LeaseRequest,
    Member,
    MemberStats,
    RegisterReply,
    RegisterRequest,
    RestoreReply,
    RestoreRequest,
    TaskReport,
)
from ctr_pipeline.distributed.coordination.messages import Role as MemberRole
from ctr_pipeline.distributed.coordination.spec import (
    BATCHES_PER_TASK,
    PROTOCOL_VERSION,
    EncodedSplit,
    JobSpec,
)
from ctr_pipeline.distributed.master.ledger.sqlite import SqliteLedger
from ctr_pipeline.distributed.master.program import run_master
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import Role
from ctr_pipeline.distributed.rpc.client import PendingReply, RpcClient
from ctr_pipeline.distributed.rpc.endpoint import load_endpoint
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.distributed.rpc.spec_file import save_spec
from ctr_pipeline.distributed.worker.session import WorkerSession
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.specs.course import RowLifecycle, Supervision, TrainingCourse, UpdateRule
from ctr_pipeline.specs.optimizer import OptimizerSpec

T = TypeVar("T")

MASTER = "MasterService"
BATCH_SIZE = 1024
_DEADLINE_SECONDS = 10.0
_PATIENCE_SECONDS = 120.0
"""Time for all members to register and for the first task to be leased."""
NICE = 10
"""Niceness of the agents: on a machine of its own the master would not wait for them."""
_IDLE_WORKERS = 4
_IDLE_SECONDS = 0.1
"""Between the tasks of one that holds nothing when it asks."""


def prepare_job(
    run_folder: Path,
    *,
    servers: int,
    workers: int,
    tasks: int,
    mode: str = "processes",
    **sections: Any,
) -> None:
    """Everything that a master finds when it starts.

    Args:
        sections: Further ones of the config.
    """
    config = Config.model_validate(
        {
            "data": {"train": "rows.csv", "label": "click"},
            "output": str(run_folder),
            "train": {"epochs": 1, "batch_size": BATCH_SIZE},
            **sections,
            "runtime": {
                "mode": mode,
                "parameter_servers": servers,
                "workers": {"min": 1, "max": workers},
                # A loaded machine is late with heartbeats; their rate stays that of the default.
                "silence_seconds": 30.0,
                "startup_timeout_seconds": 600.0,
            },
        }
    )
    run_folder.mkdir(parents=True)
    CutStorage.at(run_folder / "checkpoints").begin("benchmark")
    (run_folder / "config.resolved.yaml").write_text(resolved_yaml(config))
    spec = JobSpec(
        job="benchmark",
        protocol=PROTOCOL_VERSION,
        config_fingerprint="config",
        rows_fingerprint="rows",
        plan_fingerprint="plan",
        tables=(),
        segments=(),
        counts_file="",
        num_dense=10,
        dense_optimizer=OptimizerSpec(name="adam", learning_rate=1e-3),
        num_partitions=64,
        num_parameter_servers=servers,
        update_rule=UpdateRule(),
        supervision=config.runtime.part(Supervision),
        splits=(EncodedSplit("train", "", tasks * BATCH_SIZE * BATCHES_PER_TASK),),
        course=TrainingCourse(
            batch_size=BATCH_SIZE, epochs=1, seed=1, checkpoint_seconds=3600.0, keep_checkpoints=1
        ),
        rows=RowLifecycle(),
        checkpoints_folder=str(run_folder / "checkpoints"),
    )
    Access.create(run_folder / "job", tls=True)
    save_spec(run_folder / "job", spec)


# The master, in a process of its own.


class CountedLedger:
    """Counts what goes to a ledger; in the master's process."""

    def __init__(self) -> None:
        self.commits = 0
        self.records = 0
        write = SqliteLedger._write_waiting

        def counted(ledger: SqliteLedger, *arguments: Any, **options: Any) -> None:
            self.records += len(ledger._waiting)
            self.commits += bool(ledger._waiting)
            write(ledger, *arguments, **options)

        SqliteLedger._write_waiting = counted  # type: ignore[method-assign]


def be_master(run_folder: Path, channel: Connection) -> None:
    """Is the master, and answers what it has used so far whenever the channel asks."""
    counted = CountedLedger()

    def answer() -> None:
        while channel.recv() == "used":
            held = psutil.Process().memory_info().rss
            channel.send((time.process_time(), counted.commits, counted.records, held))

    threading.Thread(target=answer, daemon=True).start()
    run_master(run_folder, "127.0.0.1:0")


def connect(run_folder: Path, role: Role) -> RpcClient:
    """Connects to the master, once it serves."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while (endpoint := load_endpoint(run_folder / "job")) is None:
        if time.monotonic() > give_up:
            raise RuntimeError("the master does not come up")
        time.sleep(0.05)
    return RpcClient(MASTER, endpoint.address, Access.load(run_folder / "job", role))


# Servers, all in one process.


def be_servers(run_folder: Path, number: int, channel: Connection) -> None:
    """Registers so many servers and sends their heartbeats until the channel says stop."""
    os.nice(NICE)
    server, address = open_server(Access.load(run_folder / "job", "ps"))
    stop, calls = threading.Event(), Tally()
    members = [_member("ps", index, f"server{index:010d}") for index in range(number)]
    threads = [
        threading.Thread(target=be_server, args=(run_folder, member, address, stop, calls))
        for member in members
    ]
    for thread in threads:
        thread.start()
    while channel.recv() != "stop":
        channel.send((calls.total, []))
    stop.set()
    for thread in threads:
        thread.join()
    server.stop(0)


def open_server(access: Access) -> tuple[RpcServer, str]:
    """Serves the restores of any number of servers; with its address."""
    server = RpcServer(
        "PsService",
        [Method("Restore", RestoreRequest, RestoreReply, lambda _: RestoreReply("", 0))],
        address="127.0.0.1:0",
        access=access,
    )
    return server, server.start()


def be_server(
    run_folder: Path, member: Member, address: str, stop: threading.Event, calls: "Tally"
) -> None:
    """Registers a server that serves at an address, and sends its heartbeats until it is over."""
    client = connect(run_folder, "ps")
    reply = client.call(
        "Register",
        _registration(member, address),
        RegisterReply,
        deadline_seconds=_DEADLINE_SECONDS,
    )
    pause = reply.heartbeat_seconds
    while not stop.wait(pause):
        try:
            answer = client.call(
                "Heartbeat",
                HeartbeatRequest(member, reply.generation, (), _stats()),
                HeartbeatReply,
                deadline_seconds=_DEADLINE_SECONDS,
            )
        except PeerUnavailable:
            # A loaded machine is late.
            continue
        calls.add(1)
        if answer.directive != "go_on":
            raise RuntimeError(f"server {member.index} was told to {answer.directive}")
    client.close()


def _member(role: MemberRole, index: int, incarnation: str) -> Member:
    return Member(role, index, incarnation, secrets.token_hex(16))


def _registration(member: Member, address: str) -> RegisterRequest:
    return RegisterRequest(member, os.getpid(), "host", address, "", PROTOCOL_VERSION, "config")


def _stats() -> MemberStats:
    return MemberStats(rss_bytes=10**9, cpu_seconds=time.process_time())


# Workers, many in a process.


class Tally:
    """A sum that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, number: int) -> None:
        """Adds."""
        with self._lock:
            self.total += number


class TimedLink:
    """A worker's connection that notes what each request for tasks took, waiting included."""

    def __init__(self, client: RpcClient, calls: Tally, leases: list[float]) -> None:
        self._client, self._calls, self._leases = client, calls, leases

    def call(self, method: str, message: object, reply: type[T], *, deadline_seconds: float) -> T:
        """Sends a message and waits for the answer."""
        answer = self._client.call(method, message, reply, deadline_seconds=deadline_seconds)
        self._calls.add(1)
        return answer

    def start(
        self,
        method: str,
        message: object,
        reply: type[T],
        *,
        deadline_seconds: float,
        on_done: Callable[[], None],
    ) -> PendingReply[T]:
        """Sends a request for tasks."""
        begun = time.perf_counter()

        def note() -> None:
            self._calls.add(1)
            self._leases.append(time.perf_counter() - begun)
            on_done()

        return self._client.start(
            method, message, reply, deadline_seconds=deadline_seconds, on_done=note
        )

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class Worker:
    """A session and the task that it pretends to train."""

    def __init__(self, member: Member, connect_to: Callable[[], TimedLink]) -> None:
        self.session = WorkerSession(
            member=member,
            config_fingerprint="config",
            metrics_address="",
            connect=connect_to,
            stats=_stats,
        )
        self._task: LeasedTask | None = None
        self._batch = 0

    def step(self, seconds: float) -> None:
        """Another batch is trained."""
        if self._task is None or not self.session.holds(self._task):
            self._task, self._batch = self.session.wait_task(0.0), 0
            return
        batch, last = self._batch, self._batch + 1 == BATCHES_PER_TASK
        self.session.mark_batch(
            self._task, batch, loss_sum=0.45 + batch, repeated=False, finished=last, seconds=seconds
        )
        self._batch += 1
        if last:
            self._task = None


def be_workers(run_folder: Path, indices: range, batch_seconds: float, channel: Connection) -> None:
    """Is some of the workers, until the channel says stop; answers calls and times of leases."""
    os.nice(NICE)
    calls, leases = Tally(), list[float]()
    workers = [
        Worker(
            _member("worker", index, f"worker{index:010d}"),
            lambda: TimedLink(connect(run_folder, "worker"), calls, leases),
        )
        for index in indices
    ]
    for worker in workers:
        worker.session.__enter__()
    stop = threading.Event()

    def train() -> None:
        due = time.monotonic()
        while not stop.is_set():
            # One after another, so that not all of them report at the same moment.
            for worker in workers:
                due += batch_seconds / len(workers)
                stop.wait(max(0.0, due - time.monotonic()))
                worker.step(batch_seconds)

    trainer = threading.Thread(target=train)
    trainer.start()
    while channel.recv() != "stop":
        told = leases[:]
        del leases[: len(told)]
        channel.send((calls.total, told))
    stop.set()
    trainer.join()
    for worker in workers:
        worker.session.__exit__(None, None, None)


# Workers that hold nothing when they ask.


def be_idle_workers(run_folder: Path, indices: range, channel: Connection) -> None:
    """Is some more workers, until the channel says stop; answers calls and times of leases."""
    calls, leases, stop = Tally(), list[float](), threading.Event()
    threads = [
        threading.Thread(target=_be_idle_worker, args=(run_folder, index, stop, calls, leases))
        for index in indices
    ]
    for thread in threads:
        thread.start()
    while channel.recv() != "stop":
        told = leases[:]
        del leases[: len(told)]
        channel.send((calls.total, told))
    stop.set()
    for thread in threads:
        thread.join()


def _be_idle_worker(
    run_folder: Path, index: int, stop: threading.Event, calls: Tally, leases: list[float]
) -> None:
    """Leases one task at a time and says at once that it is trained, in the others' time."""
    member = _member("worker", index, f"idle{index:010d}")
    client = connect(run_folder, "worker")
    answer = client.call(
        "Register", _registration(member, ""), RegisterReply, deadline_seconds=_DEADLINE_SECONDS
    )
    generation, reports = answer.generation, ()
    while not stop.wait(_IDLE_SECONDS):
        beat = client.call(
            "Heartbeat",
            HeartbeatRequest(member, generation, reports, _stats()),
            HeartbeatReply,
            deadline_seconds=_DEADLINE_SECONDS,
        )
        generation, reports = beat.generation, ()
        begun = time.perf_counter()
        lease = client.call(
            "Lease",
            LeaseRequest(member, generation, num_tasks=1),
            LeaseReply,
            deadline_seconds=_DEADLINE_SECONDS,
        )
        took = time.perf_counter() - begun
        calls.add(2)
        if lease.verdict == "tasks":
            leases.append(took)
            reports = tuple(_trained(task) for task in lease.tasks)
    client.close()


def _trained(task: LeasedTask) -> TaskReport:
    batches = range(BATCHES_PER_TASK)
    return TaskReport(
        key=task.key,
        attempt=task.attempt,
        done_mask=2**BATCHES_PER_TASK - 1,
        repeated_mask=0,
        losses=tuple(BatchLoss(batch, 0.45 * BATCH_SIZE) for batch in batches),
        finished=True,
        failure="",
        seconds=3.2,
        scores=None,
    )


# The measurement.


def measure(
    *, servers: int, workers: int, tasks: int, batch_seconds: float, seconds: float, processes: int
) -> dict[str, float]:
    """Figures of one job."""
    context = multiprocessing.get_context("spawn")
    started = []

    def start(target: Callable[..., None], *arguments: object) -> Connection:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
        process.start()
        started.append((process, ours))
        return ours

    with tempfile.TemporaryDirectory(prefix="master-load-") as folder:
        run_folder = Path(folder) / "run"
        prepare_job(run_folder, servers=servers, workers=workers + _IDLE_WORKERS, tasks=tasks)
        try:
            master = start(be_master, run_folder)
            client = connect(run_folder, "client")
            agents = [start(be_servers, run_folder, servers)]
            idle = range(workers, workers + _IDLE_WORKERS)
            agents.append(start(be_idle_workers, run_folder, idle))
            share = -(-workers // min(processes, workers))
            for first in range(0, workers, share):
                some = range(first, min(first + share, workers))
                agents.append(start(be_workers, run_folder, some, batch_seconds))
            _await(client, servers + workers + _IDLE_WORKERS)
            time.sleep(2.0)
            figures = _measure(master, agents, client, seconds)
            client.close()
        finally:
            for process, channel in started[1:]:
                if process.is_alive():
                    channel.send("stop")
            for process, _ in started[1:]:
                process.join(20)
            for process, _ in started:
                process.kill()
                process.join()
    return figures


def _await(client: RpcClient, num_members: int) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        view = client.call("Status", Empty(), JobView, deadline_seconds=_DEADLINE_SECONDS)
        there = sum(member.state in {"running", "silent"} for member in view.members)
        if view.state == "training" and there > num_members and view.records.trained:
            return
        if time.monotonic() > give_up:
            raise RuntimeError(f"{there} members of {num_members} are there, it is {view.state}")
        time.sleep(0.5)


def _measure(
    master: Connection, agents: list[Connection], client: RpcClient, seconds: float
) -> dict[str, float]:
    *used_before, _ = _used(master)
    calls_before = sum(calls for calls, _ in _ask(agents))
    begun, statuses = time.monotonic(), list[float]()
    while time.monotonic() < begun + seconds:
        asked = time.perf_counter()
        view = client.call("Status", Empty(), JobView, deadline_seconds=_DEADLINE_SECONDS)
        statuses.append(time.perf_counter() - asked)
        time.sleep(1.0)
    took = time.monotonic() - begun
    (*used, held), answers = _used(master), _ask(agents)
    calls = sum(calls for calls, _ in answers)
    # In the order in which they were started.
    _, (_, leases), *others = answers
    kept_back = [one for _, some in others for one in some]
    percentiles = statistics.quantiles(leases, n=100) if len(leases) > 1 else [0.0] * 99
    cores, commits, records = (
        (after - before) / took for after, before in zip(used, used_before, strict=True)
    )
    return {
        "cores": cores,
        "calls": (calls - calls_before) / took,
        "commits": commits,
        "records": records,
        "leases": len(leases),
        "lease_p50_ms": percentiles[49] * 1e3,
        "lease_p99_ms": percentiles[98] * 1e3,
        "kept_back": len(kept_back) / took,
        "kept_back_p50_ms": statistics.median(kept_back) * 1e3 if kept_back else 0.0,
        "status_ms": statistics.median(statuses) * 1e3,
        "rows": view.records.trained,
        "master_bytes": held,
        "load": psutil.getloadavg()[0],
    }


def _used(master: Connection) -> tuple[float, int, int, int]:
    """The master's processor seconds, commits and records so far, and the bytes it holds."""
    master.send("used")
    return master.recv()


def _ask(agents: list[Connection]) -> list[tuple[int, list[float]]]:
    """Calls so far and times of leases since it was asked last, of each of them."""
    for agent in agents:
        agent.send("calls")
    return [agent.recv() for agent in agents]


def order_bytes(tasks: int) -> int:
    """Most that a worker holds to know the rows of a task of so many, those themselves left out."""
    order = EpochOrder(tasks * BATCH_SIZE * BATCHES_PER_TASK, BATCH_SIZE, seed=1, epoch=0)
    tracemalloc.start()
    for task in range(0, order.num_tasks, max(order.num_tasks // 10, 1)):
        order.rows_of(task)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 200, 500])
    parser.add_argument("--servers", type=int, default=50)
    parser.add_argument(
        "--tasks", type=int, default=15_259, help="of the epoch, 65,536 rows each: a billion"
    )
    parser.add_argument("--batch-seconds", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=4, help="that hold the workers")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = describe_machine()
    print_machine(machine)
    numbers, servers, seconds = options.workers, options.servers, options.seconds
    if options.quick:
        numbers, servers, seconds = [4], 2, 3.0
    results = {
        str(number): measure(
            servers=servers,
            workers=number,
            tasks=options.tasks,
            batch_seconds=options.batch_seconds,
            seconds=seconds,
            processes=options.processes,
        )
        for number in numbers
    }
    print_table(
        [
            "workers",
            "master's cores",
            "calls/s",
            "commits/s",
            "records/s",
            "lease p50, ms",
            "lease p99, ms",
            "kept back p50, ms",
            "status, ms",
            "master, MB",
        ],
        [
            [
                number,
                f"{figures['cores']:.2f}",
                f"{figures['calls']:.0f}",
                f"{figures['commits']:.0f}",
                f"{figures['records']:.0f}",
                f"{figures['lease_p50_ms']:.1f}",
                f"{figures['lease_p99_ms']:.1f}",
                f"{figures['kept_back_p50_ms']:.0f}",
                f"{figures['status_ms']:.0f}",
                f"{figures['master_bytes'] / 1e6:.0f}",
            ]
            for number, figures in results.items()
        ],
    )
    order = order_bytes(options.tasks)
    print(f"\nA worker holds {order / 1e6:.1f} MB at most to know the rows of a task.")
    write_results(
        options.json,
        benchmark="master_load",
        machine=machine,
        results={**results, "tasks": options.tasks, "order_bytes": order},
    )


if __name__ == "__main__":
    main()
