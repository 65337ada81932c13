"""Milliseconds of a worker's pull and push, one batch, over the loopback device.

Zipf-like ids, 26 tables, rows of a linear weight (Adagrad) and a vector of 16 (Adam), dense
parameters of a DeepFM. Servers are processes of their own. Prints a Markdown table of medians.

    python benchmarks/ps_speed.py [--servers 1 2 4] [--threads 1 2 4] [--batch 4096] [--steps 100]

Pull and push are what a worker waits for, one after the other and alone; in a run the pull of the
next batch hides behind the step. Cores' milliseconds are what both sides spend on one batch.

A second table has pulls and pushes of several threads at once, as of several workers, of one server
without a network: batches a second, beside one thread in the same round; what the process spends on
a batch; and for how much of the time its lock was held. The rounds of all numbers of threads
alternate.

    python benchmarks/ps_speed.py --without-lock 3

compares, in alternating rounds, such calls of three threads with the lock and with one that does
nothing: the bound of whatever finer locks could gain.
"""

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from machine import describe_machine, print_machine, print_table, write_results
from store_speed import SEGMENTS, zipf_batches

from ctr_pipeline.distributed.coordination.messages import RestoreRequest
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import (
    BATCHES_PER_TASK,
    PROTOCOL_VERSION,
    JobSpec,
)
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.measured_lock import MeasuredLock
from ctr_pipeline.distributed.ps.program import row_threads, warm_up
from ctr_pipeline.distributed.ps.service import SERVICE, ps_methods
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.packed import (
    DenseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    Status,
)
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.specs.course import RowLifecycle, Supervision, TrainingCourse, UpdateRule
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.table import ID_BITS, TableSpec

FIELDS = 26
ROUNDS = 15
ACCESS = Access(token="benchmark", tls=None)  # noqa: S106  guards nothing


def job_spec(
    num_servers: int, num_ids: int, num_dense: int, *, batch_size: int = 4096, folder: str = ""
) -> JobSpec:
    """A job that has what a server looks at."""
    return JobSpec(
        job="benchmark",
        protocol=PROTOCOL_VERSION,
        config_fingerprint="",
        rows_fingerprint="",
        plan_fingerprint="",
        tables=tuple(TableSpec(f"t{field}", num_ids) for field in range(FIELDS)),
        segments=SEGMENTS,
        counts_file="",
        num_dense=num_dense,
        dense_optimizer=OptimizerSpec(name="adam", learning_rate=1e-3),
        num_partitions=64,
        num_parameter_servers=num_servers,
        update_rule=UpdateRule(),
        supervision=Supervision(),
        splits=(),
        course=TrainingCourse(
            batch_size=batch_size, epochs=1, seed=1, checkpoint_seconds=3600.0, keep_checkpoints=1
        ),
        rows=RowLifecycle(),
        checkpoints_folder=folder,
    )


def serve(spec: JobSpec, index: int, channel: Connection) -> None:
    """A server in a process of its own, until the channel says stop; answers with its seconds."""
    warm_up(spec)
    core = PsCore(spec, index, threads=row_threads(spec))
    core.checkpoints.restore(RestoreRequest(0, 0, (), (), ()))
    server = RpcServer(
        SERVICE,
        ps_methods(core, lambda: None, lambda peer: RpcClient(SERVICE, peer, ACCESS)),
        address="127.0.0.1:0",
        access=ACCESS,
    )
    channel.send(server.start())
    while channel.recv() == "seconds":
        channel.send(time.process_time())
    server.stop(0)


class Worker:
    """What a worker does with each batch, but for computing gradients.

    Args:
        client: Routed.
        batches: Ids, used in turns.
        num_dense: Dense parameters.
        width: Values in a row.
    """

    def __init__(
        self, client: PsClient, batches: list[np.ndarray], num_dense: int, width: int
    ) -> None:
        self.client = client
        self.prepared = [client.prepare(ids, len(ids)) for ids in batches]
        rng = np.random.default_rng(2)
        shape = batches[0].shape
        self.num_examples = shape[0]
        self.gradients = (
            rng.standard_normal((*shape, 1), dtype=np.float32),
            rng.standard_normal((*shape, width - 1), dtype=np.float32),
        )
        self.dense_gradient = rng.standard_normal(num_dense, dtype=np.float32)
        self.number = 0
        self.ahead = client.start_pull(self.prepared[0], create=True, batch=None)

    def step(self) -> tuple[float, float]:
        """Pulls the next batch, pushes this one; milliseconds of waiting for each."""
        number, pull = self.number, self.ahead
        self.number += 1
        task, place = divmod(number, BATCHES_PER_TASK)
        self.client.gather_parts(pull, 1)
        self.client.dense(pull)
        started = time.perf_counter()
        self.ahead = self.client.start_pull(
            self.prepared[self.number % len(self.prepared)], create=True, batch=None, dense=False
        )
        self.ahead.wait()
        pulled = time.perf_counter()
        outcome = self.client.start_push(
            pull,
            self.gradients,
            self.dense_gradient,
            BatchId(0, task, 1, place),
            step=number + 1,
            learning_rate_factor=1.0,
            num_examples=self.num_examples,
            refresh=self.ahead,
        ).wait()
        pushed = time.perf_counter()
        if outcome.repeated or outcome.verdict != "applied":
            raise RuntimeError(f"batch {number} was not applied")
        return (pulled - started) * 1e3, (pushed - pulled) * 1e3


def measure(
    num_servers: int, batches: list[np.ndarray], *, steps: int, num_ids: int, num_dense: int
) -> dict[str, float]:
    """Milliseconds with so many servers."""
    spec = job_spec(num_servers, num_ids, num_dense, batch_size=len(batches[0]))
    context = multiprocessing.get_context("spawn")
    channels, processes = [], []
    for index in range(num_servers):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(spec, index, theirs), daemon=True)
        process.start()
        channels.append(ours)
        processes.append(process)
    client = PsClient(spec, ACCESS)
    client.route(0, [channel.recv() for channel in channels])
    client.init_dense(np.zeros(num_dense, np.float32))
    worker = Worker(client, batches, num_dense, width=sum(part.dim for part in SEGMENTS))
    for _ in batches:
        worker.step()
    servers_before, worker_before = seconds_of(channels), time.process_time()
    times = [worker.step() for _ in range(steps)]
    worker_seconds = time.process_time() - worker_before
    servers_seconds = seconds_of(channels) - servers_before
    client.close()
    for channel, process in zip(channels, processes, strict=True):
        channel.send("stop")
        process.join(5)
    pull_ms, push_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "keys": statistics.mean(keys.batch.num_unique for keys in worker.prepared),
        "pull_ms": pull_ms,
        "push_ms": push_ms,
        "worker_ms": worker_seconds * 1e3 / steps,
        "servers_ms": servers_seconds * 1e3 / steps,
    }


class Calls:
    """What workers ask of a server, without the network: from messages to the bytes of answers.

    Args:
        core: The server.
        batches: Ids, used in turns.
        num_dense: Dense parameters.
    """

    def __init__(self, core: PsCore, batches: list[np.ndarray], num_dense: int) -> None:
        self._core = core
        self._numbers = itertools.count()
        rng = np.random.default_rng(2)
        keys = [np.unique(ids + (np.arange(FIELDS) << ID_BITS)) for ids in batches]
        self._pulls = [
            PullRequest(0, None, 0, create=True, dense_version=None, keys=found) for found in keys
        ]
        width = sum(part.dim for part in SEGMENTS)
        dense = rng.standard_normal(num_dense, dtype=np.float32)
        pushes = [
            PushRequest(
                generation=0,
                batch=BatchId(0, 0, 1, 0),
                worker=0,
                step=1,
                learning_rate_factor=1.0,
                num_examples=len(batches[0]),
                version=0,
                keys=found,
                num_occurrences=np.ones(len(found), np.int32),
                sums=rng.standard_normal((len(found), width), dtype=np.float32),
                dense=dense,
                # As workers do: what the pull ahead of the push has read too early.
                fresh_keys=np.intersect1d(found, following),
            )
            for found, following in zip(keys, [*keys[1:], keys[0]], strict=True)
        ]
        # As they come out of messages.
        self._pushes = [PushRequest.decode(push.encode()) for push in pushes]
        self.num_keys = statistics.mean(len(found) for found in keys)

    def step(self) -> None:
        """One batch: a pull and a push."""
        number = next(self._numbers)
        task, place = divmod(number, BATCHES_PER_TASK)
        pulled = self._core.updates.pull(self._pulls[number % len(self._pulls)])
        push = replace(self._pushes[number % len(self._pushes)], batch=BatchId(0, task, 1, place))
        pushed = self._core.updates.push(push)
        if not isinstance(pulled, PullReply) or not isinstance(pushed, PushReply):
            raise TypeError("asynchronous mode answers at once")
        if (pulled.status, pushed.status) != (Status.DONE, Status.DONE):
            raise RuntimeError(f"batch {number}: {pulled.status.name}, {pushed.status.name}")
        pulled.encode()
        pushed.encode()


def server_in_process(
    batches: list[np.ndarray], num_ids: int, num_dense: int
) -> tuple[PsCore, Calls]:
    """A server without a network that has all rows of the batches, and calls of it."""
    spec = job_spec(1, num_ids, num_dense, batch_size=len(batches[0]))
    warm_up(spec)
    core = PsCore(spec, 0, threads=row_threads(spec))
    core.checkpoints.restore(RestoreRequest(0, 0, (), (), ()))
    core.updates.init_dense(DenseRequest(0, 0, np.zeros(num_dense, np.float32)))
    calls = Calls(core, batches, num_dense)
    for _ in batches:
        calls.step()
    return core, calls


class NoLock(MeasuredLock):
    """Guards nothing; the updates of several threads may then be lost, which costs no time."""

    def __enter__(self) -> None:
        """Lets everybody in."""

    def __exit__(self, *_error: object) -> None:
        """Lets everybody out."""


def measure_without_lock(
    threads: int, batches: list[np.ndarray], *, rounds: int, num_ids: int, num_dense: int
) -> dict[str, float]:
    """How many times as many batches as with its lock a server serves without one."""
    core, calls = server_in_process(batches, num_ids, num_dense)
    locks = {"locked": core.serving.lock, "unlocked": NoLock()}
    rates: dict[str, list[float]] = {side: [] for side in locks}
    with ThreadPoolExecutor(threads) as pool:
        for _, (side, lock) in itertools.product(range(rounds), locks.items()):
            core.serving.lock = lock
            started = time.perf_counter()
            for done in [pool.submit(calls.step) for _ in batches]:
                done.result()
            rates[side].append(len(batches) / (time.perf_counter() - started))
    pairs = zip(rates["unlocked"], rates["locked"], strict=True)
    return spread_of(unlocked / locked for unlocked, locked in pairs)


def measure_threads(
    numbers: Sequence[int], batches: list[np.ndarray], *, rounds: int, num_ids: int, num_dense: int
) -> dict[str, dict[str, float]]:
    """One server called by so many threads at once; by their number."""
    core, calls = server_in_process(batches, num_ids, num_dense)
    pools = {number: ThreadPoolExecutor(number) for number in {1, *numbers}}
    steps = len(batches)
    found: dict[int, list[tuple[float, float, float]]] = {number: [] for number in pools}
    for _, number in itertools.product(range(rounds), sorted(pools)):
        cpu, lock, started = (
            time.process_time(),
            core.serving.lock.held_seconds,
            time.perf_counter(),
        )
        for done in [pools[number].submit(calls.step) for _ in range(steps)]:
            done.result()
        seconds = time.perf_counter() - started
        found[number].append(
            (
                steps / seconds,
                (time.process_time() - cpu) * 1e3 / steps,
                (core.serving.lock.held_seconds - lock) / seconds,
            )
        )
    for pool in pools.values():
        pool.shutdown()
    return {
        str(number): {
            "batches_a_second": statistics.median(rate for rate, _, _ in found[number]),
            **spread_of(
                rate / alone[0] for (rate, *_), alone in zip(found[number], found[1], strict=True)
            ),
            "server_ms": statistics.median(cpu for _, cpu, _ in found[number]),
            "lock_share": statistics.median(share for *_, share in found[number]),
        }
        for number in numbers
    }


def spread_of(ratios: Iterator[float]) -> dict[str, float]:
    """Median and quartiles of ratios."""
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return {
        "ratio": statistics.median(ordered),
        "ratio_low": ordered[quarter],
        "ratio_high": ordered[-1 - quarter],
    }


def seconds_of(channels: list[Connection]) -> float:
    """Processor time of all servers."""
    for channel in channels:
        channel.send("seconds")
    return sum(float(channel.recv()) for channel in channels)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=20, help="different ones, used in turns")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ids", type=int, default=100_000, help="of each table")
    parser.add_argument("--dense", type=int, default=300_000)
    parser.add_argument("--without-lock", type=int, metavar="THREADS")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = describe_machine()
    print_machine(machine)
    num_batches, steps = (4, 8) if options.quick else (options.batches, options.steps)
    rng = np.random.default_rng(1)
    batches = zipf_batches(rng, num_batches, options.batch, FIELDS, options.ids)
    rounds = 3 if options.quick else ROUNDS
    if options.without_lock is not None:
        found = measure_without_lock(
            options.without_lock,
            batches,
            rounds=rounds,
            num_ids=options.ids,
            num_dense=options.dense,
        )
        print_table(
            ["threads", "batches without a lock, beside with (quartiles)"],
            [
                [
                    str(options.without_lock),
                    f"{found['ratio']:.2f} ({found['ratio_low']:.2f}-{found['ratio_high']:.2f})",
                ]
            ],
        )
        write_results(options.json, benchmark="ps_speed", machine=machine, results=found)
        return
    results = {
        str(number): measure(
            number, batches, steps=steps, num_ids=options.ids, num_dense=options.dense
        )
        for number in options.servers
    }
    print_table(
        ["servers", "keys", "pull, ms", "push, ms", "worker's core, ms", "servers' cores, ms"],
        [
            [number, f"{figures['keys']:.0f}", *(f"{figures[n]:.1f}" for n in list(figures)[1:])]
            for number, figures in results.items()
        ],
    )
    threads = measure_threads(
        options.threads,
        batches,
        rounds=rounds,
        num_ids=options.ids,
        num_dense=options.dense,
    )
    print_table(
        ["threads", "batches/s", "beside one (quartiles)", "server's cores, ms", "lock held"],
        [
            [
                number,
                f"{figures['batches_a_second']:.0f}",
                f"{figures['ratio']:.2f} ({figures['ratio_low']:.2f}-{figures['ratio_high']:.2f})",
                f"{figures['server_ms']:.1f}",
                f"{figures['lock_share']:.0%}",
            ]
            for number, figures in threads.items()
        ],
    )
    write_results(
        options.json,
        benchmark="ps_speed",
        machine=machine,
        results={"servers": results, "threads": threads},
    )


if __name__ == "__main__":
    main()
