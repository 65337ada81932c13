"""Ids and clicks for speed: 26 tables of 100,000 ids, Zipf-like, from a planted model.

The clicks follow main effects and a factorization machine over the same ids, so that a model that
trains correctly is seen to by its held-out logloss. A pure function of the arguments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.apps.sample.counter_random import derive_key, normal, uniform

NUM_TABLES = 26
ROWS_PER_TABLE = 100_000
_LATENT_SIZE = 3


@dataclass(frozen=True)
class SpeedRows:
    """Rows in order.

    Attributes:
        ids_BF: int32 [rows, tables].
        labels_B: float32 [rows], 0 or 1.
    """

    ids_BF: NDArray[np.int32]
    labels_B: NDArray[np.float32]


def draw_rows(
    num_rows: int, *, seed: int, num_tables: int = NUM_TABLES, rows_per_table: int = ROWS_PER_TABLE
) -> SpeedRows:
    """The first `num_rows` rows of the stream that `seed` names."""
    counters = np.arange(num_rows, dtype=np.uint64)
    ids_BF = np.empty((num_rows, num_tables), dtype=np.int32)
    logits_B = np.full(num_rows, -1.3)
    sums_BK = np.zeros((num_rows, _LATENT_SIZE))
    squares_B = np.zeros(num_rows)
    ranks = np.arange(rows_per_table)
    importance = 1.0 / np.sqrt(1.0 + ranks / 30.0)
    for table in range(num_tables):
        exponent = 1.05 + 0.01 * table
        last = (rows_per_table + 1.0) ** (1.0 - exponent)
        spots = 1.0 + uniform(counters, derive_key(seed, table, 0)) * (last - 1.0)
        ids_B = np.minimum(spots ** (1.0 / (1.0 - exponent)) - 1.0, rows_per_table - 1.0)
        ids_BF[:, table] = ids_B.astype(np.int32)
        tickets = ranks.astype(np.uint64)
        weights = 0.2 * importance * normal(tickets, derive_key(seed, table, 1))
        logits_B += weights[ids_BF[:, table]]
        for coordinate in range(_LATENT_SIZE):
            factors = normal(tickets, derive_key(seed, table, 2 + coordinate))
            values_B = (0.2 * importance * factors)[ids_BF[:, table]]
            sums_BK[:, coordinate] += values_B
            squares_B += values_B**2
    logits_B += 0.5 * ((sums_BK**2).sum(axis=1) - squares_B)
    clicks = uniform(counters, derive_key(seed, num_tables, 9)) < 1.0 / (1.0 + np.exp(-logits_B))
    return SpeedRows(ids_BF, clicks.astype(np.float32))


def mean_unique_ids(rows: SpeedRows, *, batch_size: int, num_batches: int = 8) -> float:
    """Distinct (table, id) pairs of a batch, on average over the first batches."""
    counts = [
        sum(len(np.unique(column)) for column in rows.ids_BF[first : first + batch_size].T)
        for first in range(0, min(num_batches * batch_size, len(rows.labels_B)), batch_size)
    ]
    return float(np.mean(counts))
