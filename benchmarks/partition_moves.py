"""What a move of partitions costs while a worker trains: how long updates are held, time, bytes.

Two parameter servers in processes of their own, over the loopback device, and a worker that trains
as fast as it can: 26 tables, rows of a linear weight (Adagrad) and a vector of 16 (Adam). A quarter
of one server's 256 partitions moves to the other and back, again and again, as the master moves
them. Prints a Markdown table: for how long the source held updates up at most, the longest step of
the worker while partitions moved and while none did, and a move's median time, rows and bytes.

    python benchmarks/partition_moves.py [--rows 100000 1000000 3000000] [--moves 6]
"""

import argparse
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from machine import describe_machine, print_machine, print_table, write_results
from ps_speed import ACCESS, FIELDS, job_spec, serve
from store_speed import SEGMENTS, zipf_batches

from ctr_pipeline.distributed.coordination.events import (
    AnnouncePlacement,
    MoveFailed,
    MovePartitions,
)
from ctr_pipeline.distributed.coordination.messages import MoveReply
from ctr_pipeline.distributed.coordination.moves import MOST_PARTITIONS_A_MOVE, PlannedMove
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.coordination.spec import BATCHES_PER_TASK
from ctr_pipeline.distributed.master.moves import Mover
from ctr_pipeline.distributed.master.server_calls import ServerCalls
from ctr_pipeline.distributed.worker.ps_calls import Moved
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.embeddings.layout import plan_layout

T = TypeVar("T")

NUM_PARTITIONS, NUM_DENSE, BATCH_SIZE = 512, 100_000, 1024
WIDTH = sum(segment.dim for segment in SEGMENTS)


class NotedCalls(ServerCalls):
    """Calls of the master; notes what targets say of moves."""

    def __init__(self) -> None:
        super().__init__(ACCESS)
        self.moves: list[MoveReply] = []

    def call_all(
        self,
        method: str,
        addresses: Sequence[str],
        message: object,
        reply: type[T],
        *,
        deadline_seconds: float,
        abandoned: Callable[[], bool],
        first_number: int = 0,
        keep: Sequence[str] = (),
    ) -> list[T]:
        """As the master's."""
        answers = super().call_all(
            method,
            addresses,
            message,
            reply,
            deadline_seconds=deadline_seconds,
            abandoned=abandoned,
            first_number=first_number,
            keep=keep,
        )
        self.moves += [answer for answer in answers if isinstance(answer, MoveReply)]
        return answers


class Trainer:
    """A worker that does with each batch what one does, but for computing gradients.

    Args:
        client: Routed.
    """

    def __init__(self, client: PsClient) -> None:
        self._client = client
        dice = np.random.default_rng(2)
        self._gradients = (
            dice.standard_normal((BATCH_SIZE, FIELDS, 1), dtype=np.float32),
            dice.standard_normal((BATCH_SIZE, FIELDS, WIDTH - 1), dtype=np.float32),
        )
        self._dense_gradient = dice.standard_normal(NUM_DENSE, dtype=np.float32)
        self.num_steps = 0
        self.steps: list[tuple[float, float]] = []
        """When each step ended, and its seconds."""
        self.failure: BaseException | None = None

    def step(self, ids_BF: np.ndarray) -> None:
        """Trains a batch, again where partitions moved meanwhile."""
        started = time.perf_counter()
        while not self._try(ids_BF):
            pass
        self.num_steps += 1
        ended = time.perf_counter()
        self.steps.append((ended, ended - started))

    def _try(self, ids_BF: np.ndarray) -> bool:
        task, number = divmod(self.num_steps, BATCHES_PER_TASK)
        batch = BatchId(0, task, 1, number)
        prepared = self._client.prepare(ids_BF, len(ids_BF))
        try:
            pull = self._client.start_pull(prepared, create=True, batch=batch)
            self._client.gather_parts(pull, 1)
            self._client.dense(pull)
            outcome = self._client.start_push(
                pull,
                self._gradients,
                self._dense_gradient,
                batch,
                step=self.num_steps + 1,
                learning_rate_factor=1.0,
                num_examples=BATCH_SIZE,
                refresh=None,
            ).wait()
        except Moved:
            return False
        return outcome.verdict == "applied"

    def run(self, batches: Sequence[np.ndarray], over: threading.Event) -> None:
        """Trains until that is over."""
        try:
            while not over.is_set():
                self.step(batches[self.num_steps % len(batches)])
        except BaseException as error:
            self.failure = error
            raise

    def longest(self, begin: float, end: float) -> float:
        """Seconds of the longest step that ended between."""
        return max((seconds for at, seconds in self.steps if begin <= at <= end), default=0.0)


def measure(num_rows: int, num_moves: int) -> dict[str, float]:
    """Figures with so many rows on both servers together."""
    num_ids = -(-num_rows // FIELDS)
    spec = replace(
        job_spec(2, num_ids, NUM_DENSE, batch_size=BATCH_SIZE), num_partitions=NUM_PARTITIONS
    )
    context = multiprocessing.get_context("spawn")
    channels, processes = [], []
    for index in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(spec, index, theirs), daemon=True)
        process.start()
        channels.append(ours)
        processes.append(process)
    addresses = [channel.recv() for channel in channels]
    client, calls = PsClient(spec, ACCESS), NotedCalls()
    client.route(0, addresses)
    client.init_dense(np.zeros(NUM_DENSE, np.float32))
    trainer = Trainer(client)
    every_id = np.resize(np.arange(num_ids, dtype=np.int32), -(-num_ids // BATCH_SIZE) * BATCH_SIZE)
    for ids in every_id.reshape(-1, BATCH_SIZE):
        trainer.step(np.repeat(ids[:, None], FIELDS, axis=1))
    batches = zipf_batches(np.random.default_rng(1), 20, BATCH_SIZE, FIELDS, num_ids)
    over = threading.Event()
    thread = threading.Thread(target=trainer.run, args=(batches, over))
    thread.start()
    time.sleep(2.0)
    seconds, held, busy, quiet = [], 0.0, 0.0, 0.0
    placement, mover = balanced_placement(spec), Mover(calls)
    moving = placement.partitions_of(0)[:MOST_PARTITIONS_A_MOVE]
    for version in range(1, num_moves + 1):
        rested = time.perf_counter()
        time.sleep(1.0)
        began = time.perf_counter()
        source = (version - 1) % 2
        planned = PlannedMove(source, 1 - source, moving, takes_dense=False)
        moved = mover.move(
            MovePartitions(0, version, placement, planned), addresses, abandoned=lambda: False
        )
        if isinstance(moved, MoveFailed):
            raise RuntimeError(moved.reason)
        placement = planned.applied_to(placement, version)
        held_here = mover.place(
            AnnouncePlacement(0, placement, planned, is_done=True),
            addresses,
            abandoned=lambda: False,
        )
        ended = time.perf_counter()
        seconds.append(ended - began)
        held = max(held, held_here)
        busy = max(busy, trainer.longest(began, ended + 0.1))
        quiet = max(quiet, trainer.longest(rested, began))
    over.set()
    thread.join()
    if trainer.failure is not None:
        raise RuntimeError("the worker failed") from trainer.failure
    client.close()
    calls.close()
    for channel, process in zip(channels, processes, strict=True):
        channel.send("stop")
        process.join(5)
    row_bytes = plan_layout(SEGMENTS).record_bytes + 8
    shown = [reply.num_rows + reply.num_changed for reply in calls.moves]
    return {
        "held_ms": held * 1e3,
        "step_ms": busy * 1e3,
        "quiet_step_ms": quiet * 1e3,
        "move_seconds": statistics.median(seconds),
        "rows": statistics.median(reply.num_rows for reply in calls.moves),
        "changed": statistics.median(reply.num_changed for reply in calls.moves),
        "megabytes": statistics.median(shown) * row_bytes / 1e6,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 3_000_000])
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = describe_machine()
    print_machine(machine)
    rows, moves = ([100_000], 2) if options.quick else (options.rows, options.moves)
    results = {str(number): measure(number, moves) for number in rows}
    print_table(
        [
            "rows",
            "held, ms",
            "longest step, ms",
            "longest step without a move, ms",
            "a move, s",
            "rows moved",
            "shown again",
            "MB",
        ],
        [
            [
                f"{int(number):,}",
                *(f"{figures[name]:,.0f}" for name in ("held_ms", "step_ms", "quiet_step_ms")),
                f"{figures['move_seconds']:.2f}",
                *(f"{figures[name]:,.0f}" for name in ("rows", "changed")),
                f"{figures['megabytes']:.1f}",
            ]
            for number, figures in results.items()
        ],
    )
    write_results(options.json, benchmark="partition_moves", machine=machine, results=results)


if __name__ == "__main__":
    main()
