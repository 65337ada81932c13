"""Partitions of keys, marks of changed rows, and copies of records for a snapshot.

A row's mark is a byte: 0, or the number of the era in which the row last changed. A snapshot begins
an era; there are two numbers, used by turns, because a finished snapshot leaves no mark of the era
before it.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array, UInt8Array
from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS
from ctr_pipeline.kernels.compilation import inlined, kernel
from ctr_pipeline.kernels.simd import address_of, prefetch_values
from ctr_pipeline.splitmix import GOLDEN, mix

_mix = inlined(mix)
_ROWS_AHEAD = 16
_NONE = np.uint64(0)
_UNMARKED = np.uint8(0)
_FIRST_VALUE = np.uint64(HEADER_WORDS)


@kernel
def _partition(key: np.int64, num_partitions: np.uint64) -> np.int32:
    """SplitMix64 of the key, mod the partitions.

    The addition before mixing makes it another hash than the index's: keys of one partition would
    otherwise crowd into a part of the index.
    """
    return np.int32(_mix(np.uint64(key) + GOLDEN) % num_partitions)


@kernel
def partition_keys(keys: Int64Array, num_partitions: int, out: Int32Array) -> None:
    """Writes the partition of each key."""
    for i in range(keys.shape[0]):
        out[i] = _partition(keys[i], np.uint64(num_partitions))


@kernel
def mark_rows(rows_U: Int32Array, marks_N: UInt8Array, era: np.uint8) -> None:
    """Marks rows as changed in an era; -1 stands for no row."""
    for u in range(rows_U.shape[0]):
        if rows_U[u] >= 0:
            marks_N[np.uint64(rows_U[u])] = era


@kernel
def save_rows(
    rows_U: Int32Array,
    begin: int,
    records_NR: Float32Array,
    keys_N: Int64Array,
    marks_N: UInt8Array,
    era: np.uint8,
    first_unwritten: int,
    num_rows: int,
    full: bool,
    saved_SR: Float32Array,
    saved_keys_S: Int64Array,
    num_saved: int,
) -> tuple[int, int]:
    """Marks rows, first saving the records that the snapshot still has to write.

    These are rows from `first_unwritten` up to `num_rows`, not marked with this era (they are saved
    already then) and, unless `full`, marked with the one before.

    Returns:
        The place in `rows_U` to go on from, short of its end if there is no more room, and the
        number of saved records.
    """
    size = np.uint64(records_NR.shape[1])
    for u in range(begin, rows_U.shape[0]):
        ahead = u + _ROWS_AHEAD
        if ahead < rows_U.shape[0] and rows_U[ahead] >= 0:
            prefetch_values(address_of(records_NR, (np.uint64(rows_U[ahead]), _NONE)), size)
        if rows_U[u] < 0:
            continue
        row = np.uint64(rows_U[u])
        mark = marks_N[row]
        if mark == era:
            continue
        if first_unwritten <= rows_U[u] < num_rows and (full or mark != _UNMARKED):
            if num_saved == saved_SR.shape[0]:
                return u, num_saved
            saved_keys_S[num_saved] = keys_N[row]
            place = np.uint64(num_saved)
            for i in range(size):
                saved_SR[place, i] = records_NR[row, i]
            num_saved += 1
        marks_N[row] = era
    return rows_U.shape[0], num_saved


@kernel
def collect_records(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    keys_N: Int64Array,
    marks_N: UInt8Array,
    era: np.uint8,
    full: bool,
    begin: int,
    end: int,
    most_rows: int,
    buffer_of_partition: Int32Array,
    sizes_P: Int64Array,
    keys_PB: Int64Array,
    headers_2PB: Int32Array,
    values_PBW: Float32Array,
    slots_PBS: Float32Array,
) -> int:
    """Puts records into the columns of their partitions, and takes their mark away.

    Records marked with this era are passed over, and those without a mark unless `full`.

    Returns:
        The row to go on from: short of `end` if its partition is full or `most_rows` were copied,
        and -1 - row if its partition is not one of those written.
    """
    num_partitions = np.uint64(buffer_of_partition.shape[0])
    width = np.uint64(values_PBW.shape[2])
    num_slots = np.uint64(slots_PBS.shape[2])
    num_copied = 0
    for i in range(begin, end):
        row = np.uint64(i)
        mark = marks_N[row]
        if mark == era or (mark == _UNMARKED and not full):
            continue
        if num_copied == most_rows:
            return i
        buffer = buffer_of_partition[_partition(keys_N[row], num_partitions)]
        if buffer < 0:
            return -1 - i
        column = np.uint64(buffer)
        if sizes_P[column] == keys_PB.shape[1]:
            return i
        place = np.uint64(sizes_P[column])
        keys_PB[column, place] = keys_N[row]
        for k in range(_FIRST_VALUE):
            headers_2PB[k, column, place] = headers_NR[row, k]
        for k in range(width):
            values_PBW[column, place, k] = records_NR[row, _FIRST_VALUE + k]
        for k in range(num_slots):
            slots_PBS[column, place, k] = records_NR[row, _FIRST_VALUE + width + k]
        sizes_P[column] += 1
        num_copied += 1
        marks_N[row] = _UNMARKED
    return end
