"""Key → row lookup, fresh rows, and gathering of values.

The index is an open-addressing table with linear probing, at most half full. An entry is 8 bytes:
the upper half of the key's hash and the row + 1 (0: empty), so that a probe reads the key itself
only when 32 bits of hash agree.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

import numpy as np

from ctr_pipeline.embeddings.arrays import (
    BoolArray,
    Float32Array,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt64Array,
)
from ctr_pipeline.embeddings.initializers import draw_values
from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS, PLAN_DIM, PLAN_FIRST
from ctr_pipeline.kernels.compilation import inlined, kernel
from ctr_pipeline.kernels.prefetch import prefetch
from ctr_pipeline.kernels.simd import (
    address_of,
    after,
    clear_values,
    copy_values,
    prefetch_values,
)
from ctr_pipeline.specs.table import ID_BITS
from ctr_pipeline.splitmix import GOLDEN, mix

_mix = inlined(mix)
_SHIFT_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_EMPTY = np.uint64(0)
_ID_MASK = (1 << ID_BITS) - 1
_BLOCK = 64
_NONE = np.uint64(0)
_PLACES_AHEAD = np.uint64(24)
# Unsigned, as places in inner loops are: see `update_kernels`.
_FIRST_VALUE = np.uint64(HEADER_WORDS)


@kernel
def find_rows(
    keys_U: Int64Array,
    index: UInt64Array,
    row_keys: Int64Array,
    rows_U: Int32Array,
    first: int,
    last: int,
) -> int:
    """Writes the row of each key, -1 if there is none; returns how many there are none of."""
    mask = np.uint64(index.shape[0] - 1)
    hashes = np.empty(_BLOCK, np.uint64)
    entries = np.empty(_BLOCK, np.uint64)
    num_missing = 0
    entries_at, keys_at = address_of(index, (_NONE,)), address_of(row_keys, (_NONE,))
    for begin in range(first, last, _BLOCK):
        size = min(_BLOCK, last - begin)
        # Index entries of one block are fetched together, then the keys that they point to.
        for i in range(size):
            hashes[i] = _mix(np.uint64(keys_U[begin + i]))
            prefetch(entries_at, hashes[i] & mask)
        for i in range(size):
            entries[i] = index[hashes[i] & mask]
            if entries[i] != _EMPTY:
                prefetch(keys_at, (entries[i] & _LOW_32) - _ONE)
        for i in range(size):
            key = keys_U[begin + i]
            tag = hashes[i] >> _SHIFT_32
            place = hashes[i] & mask
            entry = entries[i]
            row = -1
            while entry != _EMPTY:
                if entry >> _SHIFT_32 == tag:
                    candidate = int(entry & _LOW_32) - 1
                    if row_keys[candidate] == key:
                        row = candidate
                        break
                place = (place + _ONE) & mask
                entry = index[place]
            rows_U[begin + i] = row
            if row < 0:
                num_missing += 1
    return num_missing


@kernel
def add_missing(
    keys_U: Int64Array,
    index: UInt64Array,
    row_keys: Int64Array,
    rows_U: Int32Array,
    num_rows: int,
) -> int:
    """Gives each key with row -1 the next row; returns the number of rows then.

    A key that stands twice in `keys_U` gets one row.
    """
    mask = np.uint64(index.shape[0] - 1)
    for u in range(keys_U.shape[0]):
        if rows_U[u] >= 0:
            continue
        key = keys_U[u]
        key_hash = _mix(np.uint64(key))
        tag = key_hash >> _SHIFT_32
        place = key_hash & mask
        row = -1
        while index[place] != _EMPTY:
            entry = index[place]
            if entry >> _SHIFT_32 == tag:
                candidate = int(entry & _LOW_32) - 1
                if row_keys[candidate] == key:
                    row = candidate
                    break
            place = (place + _ONE) & mask
        if row < 0:
            row = num_rows
            num_rows += 1
            row_keys[row] = key
            index[place] = (tag << _SHIFT_32) | np.uint64(row + 1)
        rows_U[u] = row
    return num_rows


@kernel
def index_rows(index: UInt64Array, row_keys: Int64Array, first: int, last: int) -> int:
    """Adds rows to an index; returns the first of them whose key stands in it already, or -1."""
    mask = np.uint64(index.shape[0] - 1)
    hashes = np.empty(_BLOCK, np.uint64)
    entries_at = address_of(index, (_NONE,))
    for begin in range(first, last, _BLOCK):
        size = min(_BLOCK, last - begin)
        for i in range(size):
            hashes[i] = _mix(np.uint64(row_keys[begin + i]))
            prefetch(entries_at, hashes[i] & mask)
        for i in range(size):
            row = begin + i
            tag = hashes[i] >> _SHIFT_32
            place = hashes[i] & mask
            while index[place] != _EMPTY:
                entry = index[place]
                candidate = int(entry & _LOW_32) - 1
                if entry >> _SHIFT_32 == tag and row_keys[candidate] == row_keys[row]:
                    return row
                place = (place + _ONE) & mask
            index[place] = (tag << _SHIFT_32) | np.uint64(row + 1)
    return -1


@kernel
def keep_rows(
    records_NR: Float32Array,
    row_keys: Int64Array,
    marks_N: UInt8Array,
    goes_N: BoolArray,
    first: int,
) -> int:
    """Moves rows down to where others go, from the first that goes on; how many stay in all."""
    place = first
    for row in range(first, goes_N.shape[0]):
        if not goes_N[row]:
            source = address_of(records_NR, (np.uint64(row), _NONE))
            target = address_of(records_NR, (np.uint64(place), _NONE))
            copy_values(source, target, np.uint64(records_NR.shape[1]))
            row_keys[place] = row_keys[row]
            marks_N[place] = marks_N[row]
            place += 1
    return place


@kernel
def take_rows_out(
    rows_U: Int32Array,
    index: UInt64Array,
    records_NR: Float32Array,
    row_keys: Int64Array,
    marks_N: UInt8Array,
    num_rows: int,
) -> int:
    """Removes rows, from the last of these to the first; the last of all takes each one's place.

    Args:
        rows_U: Distinct, ascending.
        records_NR: Records.
        row_keys: Keys.
        marks_N: Marks.
        num_rows: There are.

    Returns:
        How many there are then.
    """
    for u in range(rows_U.shape[0] - 1, -1, -1):
        row = int(rows_U[u])
        _forget_row(index, row_keys, row)
        num_rows -= 1
        if row != num_rows:
            place = _place_of(index, row_keys, num_rows)
            index[place] = (index[place] >> _SHIFT_32 << _SHIFT_32) | np.uint64(row + 1)
            source = address_of(records_NR, (np.uint64(num_rows), _NONE))
            target = address_of(records_NR, (np.uint64(row), _NONE))
            copy_values(source, target, np.uint64(records_NR.shape[1]))
            row_keys[row] = row_keys[num_rows]
            marks_N[row] = marks_N[num_rows]
        marks_N[num_rows] = 0
    return num_rows


@kernel
def _place_of(index: UInt64Array, row_keys: Int64Array, row: int) -> np.uint64:
    """Where a row that is indexed stands in the index."""
    mask = np.uint64(index.shape[0] - 1)
    place: np.uint64 = _mix(np.uint64(row_keys[row])) & mask
    while index[place] & _LOW_32 != np.uint64(row + 1):
        place = (place + _ONE) & mask
    return place


@kernel
def _forget_row(index: UInt64Array, row_keys: Int64Array, row: int) -> None:
    """Removes a row from the index; entries behind it move up, so that probes still find them.

    Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm R.
    """
    mask = np.uint64(index.shape[0] - 1)
    hole = _place_of(index, row_keys, row)
    place = (hole + _ONE) & mask
    while index[place] != _EMPTY:
        home = _mix(np.uint64(row_keys[int(index[place] & _LOW_32) - 1])) & mask
        # An entry must not stand before the place where probes for it begin.
        if (place - home) & mask >= (place - hole) & mask:
            index[hole] = index[place]
            hole = place
        place = (place + _ONE) & mask
    index[hole] = _EMPTY


@kernel
def write_fresh_rows(
    records_NR: Float32Array,
    row_keys: Int64Array,
    fresh_GR: Float32Array,
    plan_GSP: UInt64Array,
    draws_GSD: Float32Array,
    groups_T: UInt64Array,
    table_seeds_T: UInt64Array,
    first: int,
    last: int,
) -> None:
    """Writes records that were never updated, as table seed and id determine them."""
    for row in range(first, last):
        record = records_NR[row]
        key = row_keys[row]
        group = groups_T[key >> ID_BITS]
        for i in range(fresh_GR.shape[1]):
            record[i] = fresh_GR[group, i]
        row_seed = _mix(table_seeds_T[key >> ID_BITS] ^ _mix(np.uint64(key & _ID_MASK) + GOLDEN))
        for s in range(plan_GSP.shape[1]):
            start, dim = plan_GSP[group, s, PLAN_FIRST], plan_GSP[group, s, PLAN_DIM]
            draw_values(draws_GSD[group, s], row_seed, start, dim, record, _FIRST_VALUE)


@kernel
def gather_occurrences(
    records_NR: Float32Array,
    rows_U: Int32Array,
    inverse_P: Int32Array,
    leading_PA: Float32Array,
    trailing_PB: Float32Array,
    begin: int,
    end: int,
) -> None:
    """Copies the first A and the other B values of each occurrence's row; zeros without a row."""
    num_leading = np.uint64(leading_PA.shape[1])
    num_trailing = np.uint64(trailing_PB.shape[1])
    num_fetched = num_leading + num_trailing + _FIRST_VALUE
    last = np.uint64(end)
    for p in range(np.uint64(begin), last):
        ahead = p + _PLACES_AHEAD
        if ahead < last and inverse_P[ahead] >= 0:
            row = rows_U[np.uint64(inverse_P[ahead])]
            if row >= 0:
                prefetch_values(address_of(records_NR, (np.uint64(row), _NONE)), num_fetched)
        row = np.int32(-1)
        if inverse_P[p] >= 0:
            row = rows_U[np.uint64(inverse_P[p])]
        leading = address_of(leading_PA, (p, _NONE))
        trailing = address_of(trailing_PB, (p, _NONE))
        if row >= 0:
            source = address_of(records_NR, (np.uint64(row), _FIRST_VALUE))
            copy_values(source, leading, num_leading)
            copy_values(after(source, num_leading), trailing, num_trailing)
        else:
            clear_values(leading, num_leading)
            clear_values(trailing, num_trailing)


@kernel
def gather_rows(
    records_NR: Float32Array, rows_U: Int32Array, out_UW: Float32Array, begin: int, end: int
) -> None:
    """Copies the values of each row; zeros where it is -1."""
    width = np.uint64(out_UW.shape[1])
    last = np.uint64(end)
    for u in range(np.uint64(begin), last):
        ahead = u + _PLACES_AHEAD
        if ahead < last and rows_U[ahead] >= 0:
            row = np.uint64(rows_U[ahead])
            prefetch_values(address_of(records_NR, (row, _NONE)), width + _FIRST_VALUE)
        target = address_of(out_UW, (u, _NONE))
        if rows_U[u] >= 0:
            source = address_of(records_NR, (np.uint64(rows_U[u]), _FIRST_VALUE))
            copy_values(source, target, width)
        else:
            clear_values(target, width)
