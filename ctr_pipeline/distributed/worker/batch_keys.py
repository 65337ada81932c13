"""The distinct keys of a batch, in the order of the servers that own them.

Axes: B examples, F fields, U distinct keys, P partitions, W values of a row, A the leading ones,
D the others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.distributed.coordination.placement import Placement
from ctr_pipeline.distributed.worker import value_kernels
from ctr_pipeline.embeddings.arrays import Float32Array, IdArray, Int32Array, Int64Array
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.unique import PreparedBatch
from ctr_pipeline.kernels.compilation import read_only
from ctr_pipeline.kernels.ranges import RangeRunner


@dataclass(frozen=True)
class PreparedKeys:
    """A batch's ids, made unique and divided among the servers.

    Attributes:
        batch: Unique keys in order of occurrence, and where each occurs.
        keys_U: int64, by owner.
        order_U: int32, which of the batch's unique keys stands where in `keys_U`.
        positions_U: int32, the inverse: where in `keys_U` each of the batch's unique keys stands.
        bounds: Server s owns `keys_U[bounds[s] : bounds[s + 1]]`.
        placement: The placement that `bounds` follows from.
        num_occurrences_U: int32, of each key in the batch.
    """

    batch: PreparedBatch
    keys_U: Int64Array
    order_U: Int32Array
    positions_U: Int32Array
    bounds: tuple[int, ...]
    num_occurrences_U: Int32Array
    placement: Placement


def divide_keys(batch: PreparedBatch, placement: Placement, num_partitions: int) -> PreparedKeys:
    """Orders a batch's keys by the servers that own them."""
    num_unique = batch.num_unique
    if placement.num_servers == 1:
        order_U = np.arange(num_unique, dtype=np.int32)
        return PreparedKeys(
            batch=batch,
            keys_U=batch.keys_U,
            order_U=order_U,
            positions_U=order_U,
            bounds=(0, num_unique),
            num_occurrences_U=batch.num_occurrences,
            placement=placement,
        )
    # Narrow integers are sorted by counting.
    owners_P = np.array(placement.owners, np.int16)
    owners = owners_P[partitions_of(batch.keys_U, num_partitions)]
    order_U = np.argsort(owners, kind="stable").astype(np.int32)
    positions_U = np.empty(num_unique, np.int32)
    positions_U[order_U] = np.arange(num_unique, dtype=np.int32)
    sizes = np.bincount(owners, minlength=placement.num_servers)
    bounds = (0, *np.cumsum(sizes).tolist())
    return PreparedKeys(
        batch=batch,
        keys_U=batch.keys_U[order_U],
        order_U=order_U,
        positions_U=positions_U,
        bounds=bounds,
        num_occurrences_U=batch.num_occurrences[order_U],
        placement=placement,
    )


def sum_gradients(
    prepared: PreparedKeys,
    gradients: tuple[NDArray[np.float32], NDArray[np.float32]],
    width: int,
    runner: RangeRunner,
) -> Float32Array:
    """Sums the gradients of each key over its occurrences.

    Args:
        prepared: The keys of the batch.
        gradients: float32 [B, F, A] and [B, F, D]; padding is not read.
        width: A + D.
        runner: Works on ranges of keys.

    Returns:
        float32 [U, W], in the order of `keys_U`.

    Raises:
        ValueError: The gradients are of another batch, or of other rows.
    """
    leading, trailing = (np.ascontiguousarray(part, np.float32) for part in gradients)
    shape, num_leading = prepared.batch.shape, leading.shape[-1]
    num_trailing = width - num_leading
    if leading.shape != (*shape, num_leading) or trailing.shape != (*shape, num_trailing):
        raise ValueError(f"gradients of shapes {leading.shape}, {trailing.shape} do not fit")
    num_places = len(prepared.batch.inverse_P)
    leading_PA = leading.reshape(num_places, num_leading)
    trailing_PD = trailing.reshape(num_places, num_trailing)
    sums_UW = np.empty((len(prepared.keys_U), width), np.float32)

    def work(first: int, last: int) -> None:
        value_kernels.sum_gradients(
            prepared.order_U,
            prepared.batch.offsets,
            prepared.batch.occurrences,
            read_only(leading_PA),
            read_only(trailing_PD),
            sums_UW,
            first,
            last,
        )

    runner.run(work, len(sums_UW))
    return sums_UW


def batch_without_keys(ids_BF: IdArray, num_valid: int) -> PreparedBatch:
    """A batch of a model without fields."""
    if ids_BF.ndim != 2 or ids_BF.shape[1]:
        raise ValueError(f"ids of shape {ids_BF.shape}, not [B, 0]")
    return PreparedBatch(
        shape=(ids_BF.shape[0], 0),
        num_valid=num_valid,
        keys_U=np.empty(0, np.int64),
        inverse_P=np.empty(0, np.int32),
        offsets=np.zeros(1, np.int32),
        occurrences=np.empty(0, np.int32),
    )


def common_positions(keys: Int64Array, others: Int64Array) -> Int32Array:
    """Places of those of `others` that are among the keys, ascending."""
    num_slots = 16
    while num_slots < 2 * len(keys):
        num_slots *= 2
    slots = np.zeros(num_slots, np.int32)
    value_kernels.index_keys(keys, slots)
    found = np.empty(len(others), np.int32)
    return found[: value_kernels.find_common(keys, slots, others, found)]
