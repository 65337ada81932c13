"""Which partition a row belongs to; fixed for the life of a job and of its row log."""

import numpy as np

from ctr_pipeline.embeddings import log_kernels
from ctr_pipeline.embeddings.arrays import Int32Array, Int64Array


def partitions_of(keys: Int64Array, num_partitions: int) -> Int32Array:
    """The partition of each key: the finaliser of SplitMix64 of key + 0x9E3779B97F4A7C15, mod.

    Keys are hashed, so that regular ids do not heap up in one partition; the hash is another one
    than that of the store's index, so that rows of one partition spread over the whole index.

    Args:
        keys: int64 [n], table << 44 | id.
        num_partitions: From 1.

    Returns:
        int32 [n], 0 … num_partitions - 1.
    """
    if keys.ndim != 1 or keys.dtype != np.int64:
        raise ValueError(f"keys of shape {keys.shape}, type {keys.dtype}, not int64 [n]")
    if not 1 <= num_partitions < 1 << 31:
        raise ValueError(f"num_partitions {num_partitions} is not in 1 … 2**31 - 1")
    partitions = np.empty(len(keys), np.int32)
    log_kernels.partition_keys(np.ascontiguousarray(keys), num_partitions, partitions)
    return partitions
