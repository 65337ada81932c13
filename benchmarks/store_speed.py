"""Milliseconds of the embedding store's four calls for one batch.

Zipf-like ids, 26 tables; rows of a linear weight (Adagrad) and a vector of 16 (Adam). Prints a
Markdown table of medians.

    python benchmarks/store_speed.py [--batch 4096] [--ids 100000] [--threads 1 2] [--clock cpu]

All rows exist beforehand, in random order: the least favourable one for memory. On a machine that
does other work, `--clock cpu` shows what the calls cost, summed over threads.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import describe_machine, print_machine, print_table, write_results

from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

# Makes 29 thousand of the 106 thousand ids of a batch distinct, about as in Criteo data.
_SKEW = 2.8

SEGMENTS = (
    SegmentSpec(
        "linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.03), "sum", l2_strength=10.0
    ),
    SegmentSpec(
        "vector",
        16,
        OptimizerSpec(name="adam", learning_rate=3e-4),
        "mean",
        l2_strength=1e5,
        l2_count_power=2,
        initializer=InitializerSpec(name="uniform", scale=0.0173),
    ),
)


def zipf_batches(
    rng: np.random.Generator, num_batches: int, batch: int, fields: int, num_ids: int
) -> list[np.ndarray]:
    """Batches of ids whose frequency falls a little faster than 1 / rank."""
    return [
        (num_ids ** rng.random((batch, fields)) ** _SKEW).astype(np.int32).clip(0, num_ids - 1)
        for _ in range(num_batches)
    ]


def timed_ms(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Milliseconds of one call."""
    start = clock()
    call()
    return (clock() - start) * 1e3


def measure(
    threads: int, batches: list[np.ndarray], num_ids: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Times of every step; all rows exist before, as in a later epoch."""
    batch, fields = batches[0].shape
    tables = [TableSpec(f"C{field}", num_ids) for field in range(fields)]
    store = EmbeddingStore(tables, SEGMENTS, seed=0, threads=threads)
    store.set_training_counts([IdCounts.of_all(np.full(num_ids, 7, np.int64))] * fields)
    everything = np.arange(num_ids, dtype=np.int64)
    for table in range(fields):
        store.read_rows(
            (table << 44) | np.random.default_rng(table).permutation(everything), create=True
        )
    gradients = np.random.default_rng(1).normal(0, 1e-3, (batch, fields, store.width)).astype("f4")
    out = np.empty_like(gradients)
    times: dict[str, list[float]] = {"prepare": [], "locate": [], "gather": [], "update": []}
    for step, ids in enumerate(batches, start=1):
        prepared = store.prepare(ids, batch)
        times["prepare"].append(timed_ms(lambda ids=ids: store.prepare(ids, batch), clock))
        times["locate"].append(timed_ms(lambda p=prepared: store.locate(p, create=True), clock))
        times["gather"].append(timed_ms(lambda p=prepared: store.gather(p, out), clock))
        times["update"].append(
            timed_ms(
                lambda p=prepared, step=step: store.update(
                    p, gradients, step=step, learning_rate_factor=1.0, num_examples=batch
                ),
                clock,
            )
        )
    return times


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--fields", type=int, default=26)
    parser.add_argument("--ids", type=int, default=100_000, help="ids a table")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--quick", action="store_true", help="10,000 ids a table, 10 steps.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    options = parser.parse_args()
    if options.quick:
        options.ids, options.steps = 10_000, 10
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rng = np.random.default_rng(0)
    batches = zipf_batches(rng, options.steps, options.batch, options.fields, options.ids)
    unique = sum(len(np.unique(batches[0][:, f])) for f in range(options.fields))
    machine = describe_machine()
    print_machine(machine)
    print(
        f"{options.batch} × {options.fields} ids, {unique} distinct; "
        f"median (fastest) {options.clock} ms\n"
    )
    measured = {
        threads: measure(threads, batches, options.ids, clock) for threads in options.threads
    }
    print_table(
        ["threads", "prepare", "locate", "gather", "update"],
        [
            [str(threads), *(f"{statistics.median(t):.2f} ({min(t):.2f})" for t in times.values())]
            for threads, times in measured.items()
        ],
    )
    write_results(
        options.json,
        benchmark="store_speed",
        machine=machine,
        results={
            "clock": options.clock,
            "distinct": unique,
            "milliseconds": {str(threads): times for threads, times in measured.items()},
        },
    )


if __name__ == "__main__":
    main()
