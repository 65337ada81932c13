"""Text to ids over Arrow buffers: the columnar face of `Hashing` and `IndexLookup`.

Each kernel releases the interpreter's lock and writes into one column of the batch's ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.kernels.arrow_values import TextColumn, text_column
from ctr_pipeline.kernels.compilation import inlined, kernel
from ctr_pipeline.kernels.fingerprint import KEY_MODULUS, fingerprint64, hash_factor
from ctr_pipeline.kernels.prefetch import prefetch
from ctr_pipeline.kernels.simd import Address, address_of
from ctr_pipeline.kernels.text_buffers import TextBuffers
from ctr_pipeline.splitmix import GOLDEN

_KEY_MODULUS = np.uint64(KEY_MODULUS)
_EMPTY = -1
_TEXTS_AT_ONCE = np.uint64(64)
_U0, _U1, _U3, _U7, _U63 = (np.uint64(number) for number in (0, 1, 3, 7, 63))
_NO_MISSING_ID = -1


class KeySlots(NamedTuple):
    """A vocabulary by open addressing; a named tuple, since Numba takes those.

    Attributes:
        slots: int64 [2**s, 2], key and id; key -1 is empty.
        shift: uint64, 64 - s.
        size: Number of values, which is the first out-of-vocabulary id.
    """

    slots: np.ndarray
    shift: np.uint64
    size: int


@inlined
def _length_of(
    offsets: Address, n: np.uint64, validity: Address, validity_offset: np.uint64, has_nulls: bool
) -> np.uint64:
    """Bytes of value n; NULL, whose bytes are undefined, counts as the empty text."""
    length = np.uint64(offsets[n + _U1]) - np.uint64(offsets[n])
    bit = validity_offset + n
    if has_nulls and (validity[bit >> _U3] >> (bit & _U7)) & _U1 == _U0:
        return _U0
    return length


@kernel
def _fingerprints(text: TextBuffers, fingerprints: np.ndarray) -> None:
    data, offsets = address_of(text.data, (_U0,)), address_of(text.offsets, (_U0,))
    validity, has_nulls = address_of(text.validity, (_U0,)), len(text.validity) > 0
    first_bit = np.uint64(text.validity_offset)
    for n in range(np.uint64(len(text.offsets) - 1)):
        length = _length_of(offsets, n, validity, first_bit, has_nulls)
        fingerprints[n] = fingerprint64(data, np.uint64(offsets[n]), length)


@kernel
def _hash_ids(text: TextBuffers, num_bins: np.uint64, missing_id: int, ids: np.ndarray) -> None:
    data, offsets = address_of(text.data, (_U0,)), address_of(text.offsets, (_U0,))
    validity, has_nulls = address_of(text.validity, (_U0,)), len(text.validity) > 0
    first_bit = np.uint64(text.validity_offset)
    for n in range(np.uint64(len(text.offsets) - 1)):
        length = _length_of(offsets, n, validity, first_bit, has_nulls)
        if length == _U0 and missing_id >= 0:
            ids[n] = missing_id
        else:
            ids[n] = fingerprint64(data, np.uint64(offsets[n]), length) % num_bins


@inlined
def _key_of(fingerprint: np.uint64) -> np.int64:
    """The fingerprint modulo `KEY_MODULUS`, of which 2**63 is one more."""
    folded = (fingerprint & _KEY_MODULUS) + (fingerprint >> _U63)
    return np.int64(folded - _KEY_MODULUS if folded >= _KEY_MODULUS else folded)


@inlined
def _first_slot(key: np.int64, shift: np.uint64) -> np.uint64:
    return (np.uint64(key) * GOLDEN) >> shift


@kernel
def _fill_slots(keys: np.ndarray, ids: np.ndarray, slots: np.ndarray, shift: np.uint64) -> None:
    mask = np.uint64(len(slots) - 1)
    for n in range(len(keys)):
        slot = _first_slot(keys[n], shift)
        while slots[slot, 0] != _EMPTY:
            slot = (slot + _U1) & mask
        slots[slot, 0] = keys[n]
        slots[slot, 1] = ids[n]


@kernel
def _lookup_ids(
    text: TextBuffers,
    vocabulary: KeySlots,
    oov_buckets: np.uint64,
    missing_id: int,
    ids: np.ndarray,
) -> None:
    data, offsets = address_of(text.data, (_U0,)), address_of(text.offsets, (_U0,))
    validity, has_nulls = address_of(text.validity, (_U0,)), len(text.validity) > 0
    first_bit = np.uint64(text.validity_offset)
    slots = address_of(vocabulary.slots, (_U0, _U0))
    mask = np.uint64(len(vocabulary.slots) - 1)
    known_missing = missing_id >= 0
    places = np.empty(_TEXTS_AT_ONCE, np.uint64)
    fingerprints = np.empty(_TEXTS_AT_ONCE, np.uint64)
    num_texts = np.uint64(len(text.offsets) - 1)
    # The slots of some texts are fetched while those texts are still being hashed.
    for first in range(_U0, num_texts, _TEXTS_AT_ONCE):
        num_wanted = _U0
        for n in range(first, min(first + _TEXTS_AT_ONCE, num_texts)):
            length = _length_of(offsets, n, validity, first_bit, has_nulls)
            if length == _U0 and known_missing:
                ids[n] = missing_id
                continue
            fingerprint = fingerprint64(data, np.uint64(offsets[n]), length)
            places[num_wanted], fingerprints[num_wanted] = n, fingerprint
            num_wanted += _U1
            prefetch(slots, _first_slot(_key_of(fingerprint), vocabulary.shift) << _U1)
        for k in range(num_wanted):
            fingerprint = fingerprints[k]
            key = _key_of(fingerprint)
            slot = _first_slot(key, vocabulary.shift)
            found = slots[slot << _U1]
            while found not in (key, _EMPTY):
                slot = (slot + _U1) & mask
                found = slots[slot << _U1]
            if found == key:
                ids[places[k]] = slots[(slot << _U1) + _U1]
            else:
                ids[places[k]] = vocabulary.size + np.int64(fingerprint % oov_buckets)


@dataclass(frozen=True)
class VocabularyTable:
    """A vocabulary as keys: what both faces look ids up in.

    A key is Fingerprint64 modulo 2**63 - 1. Should two values of one vocabulary have the same key
    (a chance of about size**2 / 2**64), the later one, which is the less frequent, shares the id of
    the earlier one, in both faces.

    Attributes:
        size: V, number of values; ids are 0..V-1.
        sorted_keys: int64 [K], ascending, without repeats.
        sorted_ids: int64 [K], id of each key.
        slots: The same keys and ids, for the kernel.
    """

    size: int
    sorted_keys: np.ndarray
    sorted_ids: np.ndarray
    slots: KeySlots


def vocabulary_table(values: pa.Array, *, source: str | None = None) -> VocabularyTable:
    """The lookup table of a vocabulary whose n-th value has id n.

    Args:
        values: Plain text [V].
        source: Where the values are from, for the error.

    Raises:
        PreprocessingError: A value is repeated.
    """
    keys = (fingerprint_values(values) % _KEY_MODULUS).astype(np.int64)
    # np.unique gives the first, and so most frequent, of values with one key.
    sorted_keys, sorted_ids = np.unique(keys, return_index=True)
    # Equal keys are nearly always equal values; only then is it worth comparing them.
    if len(sorted_keys) < len(values) and pc.count_distinct(values, mode="all").as_py() < len(
        values
    ):
        raise PreprocessingError(
            "the vocabulary repeats a value",
            place=source,
            remedy="Delete it and run 'ctrpipe train --resume' with the config of the run",
        )
    # At most half full, so that a search ends after one or two slots.
    num_bits = max(1, (2 * max(1, len(sorted_keys)) - 1).bit_length())
    slots = np.full((1 << num_bits, 2), _EMPTY, np.int64)
    shift = np.uint64(64 - num_bits)
    _fill_slots(sorted_keys, sorted_ids, slots, shift)
    return VocabularyTable(
        size=len(values),
        sorted_keys=sorted_keys,
        sorted_ids=sorted_ids.astype(np.int64),
        slots=KeySlots(slots, shift, len(values)),
    )


def fingerprint_values(values: pa.Array) -> np.ndarray:
    """Fingerprint64 of each value of a plain text array; uint64 [N], NULL as the empty text."""
    fingerprints = np.empty(len(values), np.uint64)
    _fingerprints(text_column(values, column="values").values, fingerprints)
    return fingerprints


def hash_ids(
    array: pa.Array | TextColumn,
    num_bins: int,
    *,
    missing_id: int | None = None,
    out: np.ndarray | None = None,
    column: str = "values",
) -> np.ndarray:
    """Fingerprint64 modulo `num_bins`, as `Hashing` and `tf.strings.to_hash_bucket_fast` give it.

    Args:
        array: Text, plain or dictionary-encoded, or integers, which are hashed as decimal text.
        num_bins: Number of buckets.
        missing_id: Id of NULL and of the empty text; None hashes both as the empty text.
        out: int32 or int64 [N] to write into, any stride; None makes an int64 one.
        column: Name for errors.

    Returns:
        `out`.
    """
    text = array if isinstance(array, TextColumn) else text_column(array, column=column)
    missing = _NO_MISSING_ID if missing_id is None else missing_id

    def compute(values: TextBuffers, ids: np.ndarray) -> None:
        _hash_ids(values, np.uint64(num_bins), missing, ids)

    return _by_values(text, compute, out)


def mixed_hash_ids(
    text: TextColumn,
    num_bins: int,
    *,
    function: int,
    missing_id: int,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Buckets by another hash function, as `Hashing` with that `function` gives them.

    Args:
        text: Values, not of a dictionary.
        num_bins: Number of buckets.
        function: From 1; 0 is `hash_ids`.
        missing_id: Id of NULL and of the empty text.
        out: int32 or int64 [N] to write into, any stride; None makes an int64 one.

    Returns:
        `out`.
    """
    # No key is the modulus itself, so that it can stand for a missing value.
    keys = hash_ids(text, KEY_MODULUS, missing_id=KEY_MODULUS)
    mixed = (keys ^ (keys >> 31)) * np.int64(hash_factor(function)) & np.int64(KEY_MODULUS)
    mixed ^= mixed >> 32
    ids: np.ndarray = np.where(keys == KEY_MODULUS, missing_id, mixed % num_bins)
    if out is None:
        return ids
    out[:] = ids
    return out


def lookup_ids(
    array: pa.Array | TextColumn,
    table: VocabularyTable,
    *,
    oov_buckets: int = 1,
    missing_id: int | None = None,
    out: np.ndarray | None = None,
    column: str = "values",
) -> np.ndarray:
    """The id of each value in a vocabulary; V + Fingerprint64 % `oov_buckets` of any other.

    Args:
        array: Text, plain or dictionary-encoded, or integers, looked up as decimal text.
        table: The vocabulary, of V values.
        oov_buckets: Ids shared by values outside the vocabulary.
        missing_id: Id of NULL and of the empty text; None looks both up as the empty text.
        out: int32 or int64 [N] to write into, any stride; None makes an int64 one.
        column: Name for errors.

    Returns:
        `out`.
    """
    text = array if isinstance(array, TextColumn) else text_column(array, column=column)
    missing = _NO_MISSING_ID if missing_id is None else missing_id

    def compute(values: TextBuffers, ids: np.ndarray) -> None:
        _lookup_ids(values, table.slots, np.uint64(oov_buckets), missing, ids)

    return _by_values(text, compute, out)


def _by_values(
    text: TextColumn, compute: Callable[[TextBuffers, np.ndarray], None], out: np.ndarray | None
) -> np.ndarray:
    """Computes ids once per value, then spreads those of a dictionary over its rows."""
    if text.indices is None:
        ids = np.empty(text.num_values, np.int64) if out is None else out
        compute(text.values, ids)
        return ids
    value_ids = np.empty(text.num_values, np.int64)
    compute(text.values, value_ids)
    ids = np.empty(len(text.indices), np.int64) if out is None else out
    ids[:] = value_ids[text.indices]
    return ids
