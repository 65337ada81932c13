"""Columns as dictionaries: each distinct value once, and a number for each row.

Values are told apart by their bits: `0.0` and `-0.0` are two, texts are compared byte by byte. NULL
is a value of the dictionary like any other, so that no row number has a NULL of its own.

Axes: N rows, D distinct values, S slots of a hash table: a hash, and the length in bytes over the
number of the value plus 1, 0 where the slot is free.
"""

# NumPy's stubs give Any for arithmetic on uint64 scalars.
# mypy: disable-error-code="no-any-return"

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.kernels.compilation import inlined, kernel
from ctr_pipeline.kernels.loads import load_uint64
from ctr_pipeline.kernels.simd import Address, address_of

_KEY = np.uint64(secrets.randbits(64))
"""Of the hashes of this process. Who writes the texts, as of a URL, cannot know it and so cannot
make texts of which all want the same slot."""

_FIRST_SLOTS = 1024
_NUM_UINT16 = 1 << 16
_EMPTY = np.uint64(0)
_U0, _U1, _U2, _U8, _U32 = (np.uint64(number) for number in (0, 1, 2, 8, 32))
_LOW_32 = np.uint64(0xFFFFFFFF)


class _Texts(NamedTuple):
    """Text n is data[offsets[n]:offsets[n + 1]]; `is_null` is empty if no text is NULL."""

    offsets: np.ndarray
    data: np.ndarray
    is_null: np.ndarray
    key: np.uint64


class _Words(NamedTuple):
    """The bits of numbers; `is_null` is empty if none is NULL."""

    words: np.ndarray
    is_null: np.ndarray
    key: np.uint64


class _Done(NamedTuple):
    """How far the rows are encoded; `null_value` is the number of NULL, -1 if none was seen."""

    num_rows: int
    num_values: int
    null_value: int


def encode_dictionary(column: pa.Array, key: np.uint64 = _KEY) -> pa.DictionaryArray:
    """The column as a dictionary, its values in the order in which they first occur.

    Args:
        column: string or float64 [N].
        key: Key of the hashes; the result does not depend on it.

    Returns:
        Row numbers are uint16 where they fit, else int32; none is NULL.
    """
    indices = np.empty(len(column), np.int32)
    # A value more than there are rows, so that an empty column has a place for one.
    firsts = np.empty(len(column) + 1, np.int32)
    is_null = np.empty(0, np.bool_)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
    rows = slice(column.offset, column.offset + len(column))
    if pa.types.is_string(column.type):
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32) if offsets else np.zeros(1, np.int32)
        values = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        column_values: _Texts | _Words = _Texts(
            bounds[rows.start : rows.stop + 1], values, is_null, key
        )
        encode = _encode_texts
    else:
        column_values = _Words(np.frombuffer(column.buffers()[1], np.uint64)[rows], is_null, key)
        encode = _encode_words
    slots_S2 = np.zeros((_FIRST_SLOTS, 2), np.uint64)
    done = encode(column_values, slots_S2, indices, firsts, _Done(0, 0, -1))
    while done.num_rows < len(column):
        larger_S2 = np.zeros((4 * len(slots_S2), 2), np.uint64)
        _fill_again(slots_S2, larger_S2)
        slots_S2 = larger_S2
        done = encode(column_values, slots_S2, indices, firsts, done)
    return _dictionary(indices, column.take(pa.array(firsts[: done.num_values])))


def merge_dictionaries(chunks: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Dictionaries of texts, one behind the other, as one; as `encode_dictionary` of all rows.

    Args:
        chunks: Strings; row numbers and values may be NULL, values may repeat or belong to no row.
    """
    # NULL behind all others, for rows without a number.
    values = pa.concat_arrays([*(chunk.dictionary for chunk in chunks), pa.nulls(1, pa.string())])
    coded = encode_dictionary(values)
    places, first = [], 0
    for chunk in chunks:
        rows = chunk.indices.cast(pa.int32())
        if rows.null_count:
            rows = rows.fill_null(len(values) - 1 - first)
        places.append(rows.to_numpy() + np.int32(first))
        first += len(chunk.dictionary)
    places_N = np.concatenate(places) if places else np.empty(0, np.int32)
    numbers_D = np.full(len(coded.dictionary), -1, np.int32)
    order_D = np.empty(len(coded.dictionary), np.int32)
    indices = np.empty(len(places_N), np.int32)
    codes = np.asarray(coded.indices).astype(np.int32)
    num_values = _renumber(places_N, codes, numbers_D, order_D, indices)
    return _dictionary(indices, coded.dictionary.take(pa.array(order_D[:num_values])))


def _dictionary(indices: NDArray[np.int32], values: pa.Array) -> pa.DictionaryArray:
    narrow = indices.astype(np.uint16) if len(values) <= _NUM_UINT16 else indices
    return pa.DictionaryArray.from_arrays(pa.array(narrow), values, safe=False)


@kernel
def _renumber(
    places_N: np.ndarray,
    codes: np.ndarray,
    numbers_D: np.ndarray,
    order_D: np.ndarray,
    indices: np.ndarray,
) -> int:
    """Numbers values in the order in which they first occur; how many do."""
    num_values = 0
    for n in range(len(places_N)):
        code = codes[places_N[n]]
        number = numbers_D[code]
        if number < 0:
            number = num_values
            numbers_D[code] = number
            order_D[number] = code
            num_values += 1
        indices[n] = number
    return num_values


def count_indices(
    indices: NDArray[np.uint16] | NDArray[np.int32], is_click: NDArray[np.bool_], num_values: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many rows each value of a dictionary has, and how many of them are clicks.

    Args:
        indices: [N], below `num_values`.
        is_click: bool [N].
        num_values: D.

    Returns:
        int64 [D] each.
    """
    num_rows_D = np.zeros(num_values, np.int64)
    num_clicks_D = np.zeros(num_values, np.int64)
    _count(indices, is_click, num_rows_D, num_clicks_D)
    return num_rows_D, num_clicks_D


def sum_indices(
    indices: NDArray[np.uint16] | NDArray[np.int32],
    is_click: NDArray[np.bool_],
    weights: NDArray[np.float64],
    num_values: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the rows of each value of a dictionary weigh, and what those of them that are clicks do.

    Args:
        indices: [N], below `num_values`.
        is_click: bool [N].
        weights: float64 [N].
        num_values: D.

    Returns:
        float64 [D] each.
    """
    weights_D = np.zeros(num_values)
    click_weights_D = np.zeros(num_values)
    _sum(indices, is_click, weights, weights_D, click_weights_D)
    return weights_D, click_weights_D


@kernel
def _sum(
    indices: np.ndarray,
    is_click: np.ndarray,
    weights: np.ndarray,
    weights_D: np.ndarray,
    click_weights_D: np.ndarray,
) -> None:
    for n in range(len(indices)):
        weights_D[indices[n]] += weights[n]
        click_weights_D[indices[n]] += weights[n] * is_click[n]


@kernel
def _count(
    indices: np.ndarray, is_click: np.ndarray, num_rows_D: np.ndarray, num_clicks_D: np.ndarray
) -> None:
    for n in range(len(indices)):
        num_rows_D[indices[n]] += 1
        num_clicks_D[indices[n]] += is_click[n]


@inlined
def _mix(word: np.uint64) -> np.uint64:
    """A bijection of 64 bits: the finalizer of MurmurHash3 (Appleby, public domain)."""
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@inlined
def _load(data: Address, start: np.uint64, length: np.uint64) -> np.uint64:
    """Up to eight bytes as a little-endian number."""
    if length == _U8:
        return load_uint64(data, start)
    word = np.uint64(0)
    for byte in range(length):
        word |= np.uint64(data[start + byte]) << (_U8 * byte)
    return word


@inlined
def _hash_text(data: Address, start: np.uint64, length: np.uint64, key: np.uint64) -> np.uint64:
    """Of texts of up to eight bytes and equal length, different ones have different hashes."""
    hashed = key
    position = np.uint64(0)
    while length - position > _U8:
        hashed = _mix(hashed ^ load_uint64(data, start + position))
        position += _U8
    return _mix(hashed ^ _load(data, start + position, length - position))


@inlined
def _is_same(data: Address, one: np.uint64, other: np.uint64, length: np.uint64) -> bool:
    for byte in range(length):  # noqa: SIM110  Compiled
        if data[one + byte] != data[other + byte]:
            return False
    return True


@kernel
def _fill_again(slots_S2: np.ndarray, larger_S2: np.ndarray) -> None:
    mask = np.uint64(len(larger_S2) - 1)
    for old in range(len(slots_S2)):
        if slots_S2[old, 1] == _EMPTY:
            continue
        slot = slots_S2[old, 0] & mask
        while larger_S2[slot, 1] != _EMPTY:
            slot = (slot + np.uint64(1)) & mask
        larger_S2[slot, 0] = slots_S2[old, 0]
        larger_S2[slot, 1] = slots_S2[old, 1]


@kernel
def _encode_texts(
    text: _Texts,
    slots_S2: np.ndarray,
    indices: np.ndarray,
    firsts: np.ndarray,
    done: _Done,
) -> _Done:
    """Goes on until all rows are done or half of the slots are taken."""
    data, offsets = address_of(text.data, (_U0,)), address_of(text.offsets, (_U0,))
    slots = address_of(slots_S2, (_U0, _U0))
    is_null, has_nulls = text.is_null, len(text.is_null) > 0
    mask = np.uint64(len(slots_S2) - 1)
    most_values = len(slots_S2) >> 1
    num_values, null_value = done.num_values, done.null_value
    for n in range(done.num_rows, len(indices)):
        if has_nulls and is_null[n]:
            if null_value < 0:
                null_value = num_values
                firsts[num_values] = n
                num_values += 1
            indices[n] = null_value
            continue
        start = np.uint64(offsets[np.uint64(n)])
        length = np.uint64(offsets[np.uint64(n) + _U1]) - start
        hashed = _hash_text(data, start, length, text.key)
        slot = hashed & mask
        while True:
            taken = slots[_U2 * slot + _U1]
            if taken == _EMPTY:
                if num_values >= most_values:
                    return _Done(n, num_values, null_value)
                slots[_U2 * slot] = hashed
                slots[_U2 * slot + _U1] = (length << _U32) | np.uint64(num_values + 1)
                firsts[num_values] = n
                indices[n] = num_values
                num_values += 1
                break
            if slots[_U2 * slot] == hashed and taken >> _U32 == length:
                value = np.int64(taken & _LOW_32) - 1
                if length <= _U8 or _is_same(
                    data, np.uint64(offsets[np.uint64(firsts[value])]), start, length
                ):
                    indices[n] = value
                    break
            slot = (slot + _U1) & mask
    return _Done(len(indices), num_values, null_value)


@kernel
def _encode_words(
    text: _Words,
    slots_S2: np.ndarray,
    indices: np.ndarray,
    firsts: np.ndarray,
    done: _Done,
) -> _Done:
    """As `_encode_texts`, for values of eight bytes, whose hash tells them apart."""
    words, is_null, key = text
    mask = np.uint64(len(slots_S2) - 1)
    most_values = len(slots_S2) >> 1
    num_values, null_value = done.num_values, done.null_value
    for n in range(done.num_rows, len(indices)):
        if len(is_null) > 0 and is_null[n]:
            if null_value < 0:
                null_value = num_values
                firsts[num_values] = n
                num_values += 1
            indices[n] = null_value
            continue
        hashed = _mix(words[n] ^ key)
        slot = hashed & mask
        while slots_S2[slot, 1] != _EMPTY and slots_S2[slot, 0] != hashed:
            slot = (slot + np.uint64(1)) & mask
        if slots_S2[slot, 1] == _EMPTY:
            if num_values >= most_values:
                return _Done(n, num_values, null_value)
            slots_S2[slot, 0] = hashed
            slots_S2[slot, 1] = np.uint64(num_values + 1)
            firsts[num_values] = n
            indices[n] = num_values
            num_values += 1
        else:
            indices[n] = np.int64(slots_S2[slot, 1]) - 1
    return _Done(len(indices), num_values, null_value)
