"""Values of keys to places of a batch, gradients of places to sums of keys.

Axes: U distinct keys of a batch in the order of the servers that own them, P places, A leading
values of a row, B the others, W all.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.kernels.simd import (
    address_of,
    after,
    clear_values,
    copy_values,
    prefetch_values,
    sum_occurrences,
)
from ctr_pipeline.splitmix import GOLDEN

_NONE = np.uint64(0)
_NEXT = np.uint64(1)
_PLACES_AHEAD = np.uint64(24)


@kernel
def spread_values(
    values_UW: Float32Array,
    positions_U: Int32Array,
    inverse_P: Int32Array,
    leading_PA: Float32Array,
    trailing_PB: Float32Array,
    begin: int,
    end: int,
) -> None:
    """Copies the first A and the other B values of the key of each place; zeros in padding.

    `positions_U` says where the values of each unique key stand.
    """
    num_leading = np.uint64(leading_PA.shape[1])
    num_trailing = np.uint64(trailing_PB.shape[1])
    last = np.uint64(end)
    for p in range(np.uint64(begin), last):
        ahead = p + _PLACES_AHEAD
        if ahead < last and inverse_P[ahead] >= 0:
            row = np.uint64(positions_U[np.uint64(inverse_P[ahead])])
            prefetch_values(address_of(values_UW, (row, _NONE)), num_leading + num_trailing)
        leading = address_of(leading_PA, (p, _NONE))
        trailing = address_of(trailing_PB, (p, _NONE))
        if inverse_P[p] >= 0:
            row = np.uint64(positions_U[np.uint64(inverse_P[p])])
            source = address_of(values_UW, (row, _NONE))
            copy_values(source, leading, num_leading)
            copy_values(after(source, num_leading), trailing, num_trailing)
        else:
            clear_values(leading, num_leading)
            clear_values(trailing, num_trailing)


@kernel
def sum_gradients(
    order_U: Int32Array,
    offsets: Int32Array,
    occurrences: Int32Array,
    leading_PA: Float32Array,
    trailing_PB: Float32Array,
    sums_UW: Float32Array,
    begin: int,
    end: int,
) -> None:
    """Sums the gradients of each key in the order of its occurrences.

    As `update_kernels.update_rows_by_occurrence` does, so that the sums have the same bits wherever
    they are made. `order_U` says which unique key stands where.
    """
    num_leading = np.uint64(leading_PA.shape[1])
    num_trailing = np.uint64(trailing_PB.shape[1])
    num_places = np.uint64(occurrences.shape[0])
    leading = address_of(leading_PA, (_NONE, _NONE))
    trailing = address_of(trailing_PB, (_NONE, _NONE))
    for position in range(np.uint64(begin), np.uint64(end)):
        u = np.uint64(order_U[position])
        earliest = np.uint64(offsets[u])
        past = np.uint64(offsets[u + _NEXT])
        for k in range(earliest + _PLACES_AHEAD, min(past + _PLACES_AHEAD, num_places)):
            place = np.uint64(occurrences[k])
            prefetch_values(after(trailing, place * num_trailing), num_trailing)
        places = address_of(occurrences, (earliest,))
        sums = address_of(sums_UW, (position, _NONE))
        sum_occurrences(leading, num_leading, places, past - earliest, sums)
        sum_occurrences(trailing, num_trailing, places, past - earliest, after(sums, num_leading))


@kernel
def index_keys(keys: Int64Array, slots: Int32Array) -> None:
    """Fills empty slots, a power of two at least twice the distinct keys, for `find_common`."""
    mask = slots.shape[0] - 1
    shift = np.uint64(64)
    size = slots.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    for k in range(keys.shape[0]):
        slot = np.int64((np.uint64(keys[k]) * GOLDEN) >> shift)
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = k + 1


@kernel
def find_common(keys: Int64Array, slots: Int32Array, others: Int64Array, found: Int32Array) -> int:
    """Writes the places of those of `others` that are among the indexed keys; returns how many."""
    mask = slots.shape[0] - 1
    shift = np.uint64(64)
    size = slots.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    num_found = 0
    for k in range(others.shape[0]):
        slot = np.int64((np.uint64(others[k]) * GOLDEN) >> shift)
        while slots[slot] != 0:
            if keys[slots[slot] - 1] == others[k]:
                found[num_found] = k
                num_found += 1
                break
            slot = (slot + 1) & mask
    return num_found
