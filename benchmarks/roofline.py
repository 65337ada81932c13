"""How fast this machine could train the benchmark's DeepFM, were nothing lost.

    samples/s = 1 / (F / G + M / W)

F, floating point operations a sample: 3 times the forward pass of the MLP's matrix products (the
backward pass makes two products of the same size for each), 2 for each weight. G, the machine's
float32 rate on those very products, forward and backward, as TensorFlow reaches it on all cores.
M, bytes a sample that must pass through memory at least once:

- the gathered rows, read and written;  their gradients, written and read;
- the unique rows of the batch with their optimizer slots (the vector's two moments, the linear
  weight's accumulator, an 8-byte header), read and written;
- the MLP's activations, written and read in the forward pass, and again in the backward pass.

W, the machine's memory bandwidth: a copy of arrays far larger than the caches, on all cores,
counting bytes read and bytes written. Arithmetic and memory traffic are added, not overlapped: a
step's matrix products wait for its rows. The factorization machine, the loss and the finding of
unique ids are left out, so the bound is not within reach.

    python benchmarks/roofline.py
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine, print_machine, print_table, write_results
from speed_data import NUM_TABLES, draw_rows, mean_unique_ids

BATCH_SIZE = 4096
EMBEDDING_DIM = 16
HIDDEN_UNITS = (256, 128, 64)
_FLOAT_BYTES = 4
_HEADER_BYTES = 8


@dataclass(frozen=True)
class Roofline:
    """What was measured, and the bound that follows.

    Attributes:
        float32_gflops: On the model's own products, forward and backward.
        float32_large_gflops: On a square product of 2048.
        bfloat16_gflops: On the model's own products.
        bandwidth_gb_per_second: Of a copy, bytes read plus bytes written.
        flops_per_sample: F.
        bytes_per_sample: M.
        samples_per_second: The bound.
    """

    float32_gflops: float
    float32_large_gflops: float
    bfloat16_gflops: float
    bandwidth_gb_per_second: float
    flops_per_sample: float
    bytes_per_sample: float
    samples_per_second: float


def layer_shapes() -> list[tuple[int, int]]:
    """Inputs and outputs of each layer of the MLP, its head included."""
    widths = [NUM_TABLES * EMBEDDING_DIM, *HIDDEN_UNITS, 1]
    return list(pairwise(widths))


def count_flops_per_sample() -> float:
    """F of the module's formula."""
    return 3.0 * sum(2.0 * inputs * outputs for inputs, outputs in layer_shapes())


def count_bytes_per_sample(unique_rows: float) -> float:
    """M of the module's formula, for batches with so many distinct rows."""
    width = EMBEDDING_DIM + 1
    gathered = 4 * NUM_TABLES * width * _FLOAT_BYTES
    record = (3 * EMBEDDING_DIM + 2) * _FLOAT_BYTES + _HEADER_BYTES
    updated = 2 * record * unique_rows / BATCH_SIZE
    activations = 4 * sum(HIDDEN_UNITS) * _FLOAT_BYTES
    return gathered + updated + activations


def _best_seconds(work: Callable[[], object], seconds: float) -> float:
    """The fastest of the repeats that fit into `seconds`, after one to warm up."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def measure_products(dtype: str, seconds: float) -> float:
    """GFLOPS of the model's own matrix products, forward and backward, in the proportion it has."""
    import tensorflow as tf

    spent = 0.0
    for inputs, outputs in layer_shapes():
        x = tf.cast(tf.random.normal((BATCH_SIZE, inputs)), dtype)
        weights = tf.cast(tf.random.normal((inputs, outputs)), dtype)
        gradient = tf.cast(tf.random.normal((BATCH_SIZE, outputs)), dtype)

        def products(x: Any = x, weights: Any = weights, gradient: Any = gradient) -> None:
            tf.matmul(x, weights)
            tf.matmul(gradient, weights, transpose_b=True)
            tf.matmul(x, gradient, transpose_a=True)

        spent += _best_seconds(products, seconds / 4)
    return count_flops_per_sample() * BATCH_SIZE / spent / 1e9


def measure_large_product(seconds: float) -> float:
    """GFLOPS of a float32 product of 2048 x 2048 matrices."""
    import tensorflow as tf

    left, right = tf.random.normal((2048, 2048)), tf.random.normal((2048, 2048))
    return 2.0 * 2048**3 / _best_seconds(lambda: tf.matmul(left, right), seconds) / 1e9


def measure_bandwidth(seconds: float) -> float:
    """GB/s of a copy on all cores, each its own part; numpy lets go of the lock while copying."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    source = np.ones(256 * 2**20 // 8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))

        return 2.0 * source.nbytes / _best_seconds(copy, seconds) / 1e9


def measure_roofline(*, unique_rows: float, seconds: float) -> Roofline:
    """Measures the machine, about four times `seconds` in all.

    Args:
        unique_rows: Distinct rows of a batch.
        seconds: For each of the four measurements.
    """
    float32 = measure_products("float32", seconds)
    bandwidth = measure_bandwidth(seconds)
    flops, bytes_moved = count_flops_per_sample(), count_bytes_per_sample(unique_rows)
    return Roofline(
        float32_gflops=float32,
        float32_large_gflops=measure_large_product(seconds),
        bfloat16_gflops=measure_products("bfloat16", seconds),
        bandwidth_gb_per_second=bandwidth,
        flops_per_sample=flops,
        bytes_per_sample=bytes_moved,
        samples_per_second=1.0 / (flops / (float32 * 1e9) + bytes_moved / (bandwidth * 1e9)),
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="For each measurement.")
    parser.add_argument("--quick", action="store_true", help="Half a second for each.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    machine = describe_machine()
    unique_rows = mean_unique_ids(draw_rows(8 * BATCH_SIZE, seed=0), batch_size=BATCH_SIZE)
    roofline = measure_roofline(
        unique_rows=unique_rows, seconds=0.5 if arguments.quick else arguments.seconds
    )
    print_machine(machine)
    print_table(
        ["what", "measured"],
        [
            ["float32 GFLOPS, the model's products", f"{roofline.float32_gflops:,.0f}"],
            ["float32 GFLOPS, 2048 x 2048", f"{roofline.float32_large_gflops:,.0f}"],
            ["bfloat16 GFLOPS, the model's products", f"{roofline.bfloat16_gflops:,.0f}"],
            ["memory bandwidth, GB/s", f"{roofline.bandwidth_gb_per_second:.1f}"],
            ["unique rows a batch", f"{unique_rows:,.0f}"],
            ["floating point operations a sample", f"{roofline.flops_per_sample:,.0f}"],
            ["bytes a sample", f"{roofline.bytes_per_sample:,.0f}"],
            ["bound in float32, samples/s", f"{roofline.samples_per_second:,.0f}"],
        ],
    )
    write_results(arguments.json, benchmark="roofline", machine=machine, results=asdict(roofline))


if __name__ == "__main__":
    main()
