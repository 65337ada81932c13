"""Values of keys to places of a batch, gradients of places to sums of keys.

Axes: U distinct keys of a batch in the order of the servers that own them, P places, A leading
values of a row, B the others, W all.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.compilation import kernel
from ctr_pipeline.embeddings.prefetch import prefetch

_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_ZERO = np.float32(0)
_NONE = np.uint64(0)
_NEXT = np.uint64(1)
_LINE_FLOATS = np.uint64(16)
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
    width = num_leading + num_trailing
    last = np.uint64(end)
    for p in range(np.uint64(begin), last):
        ahead = p + _PLACES_AHEAD
        if ahead < last and inverse_P[ahead] >= 0:
            row = np.uint64(positions_U[np.uint64(inverse_P[ahead])])
            for column in range(_NONE, width, _LINE_FLOATS):
                prefetch(values_UW, (row, column))
        if inverse_P[p] >= 0:
            source = np.uint64(positions_U[np.uint64(inverse_P[p])])
            for i in range(num_leading):
                leading_PA[p, i] = values_UW[source, i]
            for i in range(num_trailing):
                trailing_PB[p, i] = values_UW[source, num_leading + i]
        else:
            for i in range(num_leading):
                leading_PA[p, i] = _ZERO
            for i in range(num_trailing):
                trailing_PB[p, i] = _ZERO


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

    The order is that of `update_kernels.update_rows_by_occurrence`, so that the sums have the same
    bits wherever they are made. `order_U` says which unique key stands where.
    """
    num_leading = np.uint64(leading_PA.shape[1])
    num_trailing = np.uint64(trailing_PB.shape[1])
    for position in range(np.uint64(begin), np.uint64(end)):
        u = np.uint64(order_U[position])
        earliest = np.uint64(offsets[u])
        after = np.uint64(offsets[u + _NEXT])
        place = np.uint64(occurrences[earliest])
        for i in range(num_leading):
            sums_UW[position, i] = leading_PA[place, i]
        for i in range(num_trailing):
            sums_UW[position, num_leading + i] = trailing_PB[place, i]
        for k in range(earliest + _NEXT, after):
            place = np.uint64(occurrences[k])
            for i in range(num_leading):
                sums_UW[position, i] += leading_PA[place, i]
            for i in range(num_trailing):
                sums_UW[position, num_leading + i] += trailing_PB[place, i]


@kernel
def index_keys(keys: Int64Array, slots: Int32Array) -> None:
    """Fills empty slots, a power of two at least twice the distinct keys, for `mark_common`."""
    mask = slots.shape[0] - 1
    shift = np.uint64(64)
    size = slots.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    for k in range(keys.shape[0]):
        slot = np.int64((np.uint64(keys[k]) * _FIBONACCI) >> shift)
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
        slot = np.int64((np.uint64(others[k]) * _FIBONACCI) >> shift)
        while slots[slot] != 0:
            if keys[slots[slot] - 1] == others[k]:
                found[num_found] = k
                num_found += 1
                break
            slot = (slot + 1) & mask
    return num_found
