"""`tf.train.Example` messages as columns and back, without TensorFlow.

The messages, by field number (tensorflow/core/example, example.proto and feature.proto):

    Example      1: Features
    Features     1: map<string, Feature>: entries of 1: key, 2: Feature
    Feature      one of 1: BytesList, 2: FloatList, 3: Int64List
    BytesList    1: bytes, repeated
    FloatList    1: float, repeated, packed or not
    Int64List    1: int64, repeated, packed or not

A feature that a record lacks, or that holds no value, is missing. Of a name that comes twice the
last one counts, and fields of other numbers are passed over, as in protocol buffers.

The library protobuf takes three times as long to read messages of 40 columns, and twenty times as
long to write them: with it a whole job of one epoch would take 10 % longer; see
`benchmarks/recordio_speed.py`.

Axes: N records, T features.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.dataset.formats.recordio.chunks import Records
from ctr_pipeline.kernels.compilation import kernel, read_only

_VARINT, _FIXED_64, _DELIMITED, _FIXED_32 = 0, 1, 2, 5
_DISCOVERY_STEP = 16
"""Records whose unknown names are looked up before the others are asked again."""


class ExampleKind(IntEnum):
    """Which list a feature holds, by its field number; MISSING where it holds none."""

    MISSING = 0
    BYTES = 1
    FLOAT = 2
    INT64 = 3


@dataclass(frozen=True)
class ExampleColumns:
    """Features of some records, undecided as to types.

    Attributes:
        data: The buffer of the records.
        kinds_TN: `ExampleKind` of each value, uint8.
        counts_TN: How many values each holds, int32.
        numbers_TN: The last value: an int64, or the bits of a float32, or where bytes start.
        lengths_TN: How many bytes, int32.
        is_good_N: Whether the record is an Example at all.
        num_unknown_N: Entries of other names in each record, int32.
    """

    names: tuple[str, ...]
    data: NDArray[np.uint8]
    kinds_TN: NDArray[np.uint8]
    counts_TN: NDArray[np.int32]
    numbers_TN: NDArray[np.int64]
    lengths_TN: NDArray[np.int32]
    is_good_N: NDArray[np.bool_]
    num_unknown_N: NDArray[np.int32]

    def kinds_of(self, feature: int) -> set[ExampleKind]:
        """The kinds that a feature has in these records, MISSING left out."""
        found = np.flatnonzero(np.bincount(self.kinds_TN[feature], minlength=4))
        return {ExampleKind(int(kind)) for kind in found if kind}

    def bytes_of(self, feature: int) -> pa.Array:
        """The bytes of a feature [N]; NULL where it has none."""
        is_present = self.kinds_TN[feature] == ExampleKind.BYTES
        starts = np.where(is_present, self.numbers_TN[feature], 0)
        lengths = np.where(is_present, self.lengths_TN[feature], 0)
        offsets = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        joined = np.empty(offsets[-1], np.uint8)
        _gather(self.data, starts, offsets, joined)
        values = pa.Array.from_buffers(
            pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
        )
        if is_present.all():
            return values
        return pc.if_else(pa.array(is_present), values, pa.scalar(None, pa.large_binary()))

    def int64_of(self, feature: int) -> pa.Array:
        """The whole numbers of a feature [N]; NULL where it has none."""
        return pa.array(self.numbers_TN[feature], mask=self.kinds_TN[feature] != ExampleKind.INT64)

    def float_of(self, feature: int) -> pa.Array:
        """The float32 numbers of a feature [N]; NULL where it has none."""
        bits = self.numbers_TN[feature].astype(np.uint32)
        return pa.array(bits.view(np.float32), mask=self.kinds_TN[feature] != ExampleKind.FLOAT)


class _Keys(NamedTuple):
    """Names of features: that of feature t ends at data[ends[t + 1]]."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]


class _Found(NamedTuple):
    """As in `ExampleColumns`."""

    kinds_TN: NDArray[np.uint8]
    counts_TN: NDArray[np.int32]
    numbers_TN: NDArray[np.int64]
    lengths_TN: NDArray[np.int32]
    is_good_N: NDArray[np.bool_]
    num_unknown_N: NDArray[np.int32]


class _Rows(NamedTuple):
    """Rows to write: numbers are int64, bits of float32, or where in `texts` a text starts."""

    keys: _Keys
    kinds_T: NDArray[np.uint8]
    is_present_TN: NDArray[np.bool_]
    numbers_TN: NDArray[np.int64]
    lengths_TN: NDArray[np.int64]
    texts: NDArray[np.uint8]


def read_examples(records: Records, names: Sequence[str]) -> ExampleColumns:
    """The features `names` of some records, in one pass over their bytes."""
    shape = len(names), len(records)
    found = _Found(
        np.zeros(shape, np.uint8),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int32),
        np.zeros(len(records), np.bool_),
        np.zeros(len(records), np.int32),
    )
    _read_examples(read_only(records.data), records.starts, records.ends, _keys_of(names), found)
    return ExampleColumns(tuple(names), records.data, *found)


def find_features(records: Records, known: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of all features of some records: those known, then others as they appear.

    Records that are no Examples have none.
    """
    names = dict.fromkeys(known)
    is_asked = np.zeros(len(records), np.bool_)
    while True:
        columns = read_examples(records, list(names))
        has_others = (columns.num_unknown_N > 0) & columns.is_good_N & ~is_asked
        if not has_others.any():
            return tuple(names)
        for record in np.flatnonzero(has_others)[:_DISCOVERY_STEP]:
            is_asked[record] = True
            names |= dict.fromkeys(_names_of(bytes(records[int(record)])))


def is_example(record: bytes) -> bool:
    """Whether a record is an Example with at least one feature."""
    ends = np.array([len(record)], np.int64)
    one = Records(np.frombuffer(record, np.uint8), np.zeros(1, np.int64), ends)
    columns = read_examples(one, ())
    return bool(columns.is_good_N[0] and columns.num_unknown_N[0])


def write_examples(table: pa.RecordBatch) -> Records:
    """Rows as Examples; NULL is a feature left out.

    Args:
        table: Columns of int64, float32, string, binary, or large ones of these.

    Returns:
        One record a row, its features in the order of the columns.
    """
    num_features, num_rows = table.num_columns, table.num_rows
    kinds_T = np.zeros(num_features, np.uint8)
    is_present_TN = np.empty((num_features, num_rows), np.bool_)
    numbers_TN = np.zeros((num_features, num_rows), np.int64)
    lengths_TN = np.zeros((num_features, num_rows), np.int64)
    texts, num_bytes = list[NDArray[np.uint8]](), 0
    for feature, column in enumerate(table.columns):
        is_present_TN[feature] = pc.is_valid(column).to_numpy(zero_copy_only=False)
        if pa.types.is_int64(column.type):
            kinds_T[feature] = ExampleKind.INT64
            numbers_TN[feature] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        elif pa.types.is_float32(column.type):
            kinds_T[feature] = ExampleKind.FLOAT
            values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
            numbers_TN[feature] = np.ascontiguousarray(values).view(np.uint32)
        else:
            kinds_T[feature] = ExampleKind.BYTES
            offsets, text = _text_of(column)
            numbers_TN[feature] = offsets[:-1] + num_bytes
            lengths_TN[feature] = np.diff(offsets)
            texts.append(text)
            num_bytes += len(text)
    all_texts = np.concatenate(texts) if texts else np.empty(0, np.uint8)
    keys = _keys_of(table.schema.names)
    rows = _Rows(keys, kinds_T, is_present_TN, numbers_TN, lengths_TN, all_texts)
    ends = np.empty(num_rows, np.int64)
    data = np.empty(_measure_examples(rows, ends), np.uint8)
    _write_examples(rows, num_rows, data)
    return Records(data, np.append(np.zeros(1, np.int64), ends)[:-1], ends)


def _keys_of(names: Sequence[str]) -> _Keys:
    keys = [name.encode() for name in names]
    ends = np.cumsum([0, *(len(key) for key in keys)], dtype=np.int64)
    return _Keys(np.frombuffer(b"".join(keys), np.uint8), ends)


def _text_of(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Offsets [N + 1], from 0, and bytes of a column of texts; NULL has none."""
    plain = pc.cast(pc.cast(column, pa.binary()), pa.large_binary())
    plain = pc.fill_null(plain, b"")
    _, offset_buffer, data_buffer = plain.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[plain.offset : plain.offset + len(plain) + 1]
    if data_buffer is None:
        return offsets - offsets[0], np.empty(0, np.uint8)
    data = np.frombuffer(data_buffer, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def _names_of(record: bytes) -> list[str]:
    """Names of the features of a record that is a good Example; what is not UTF-8 is no name."""
    names = []
    for features in _fields(record, 1):
        for entry in _fields(features, 1):
            keys = _fields(entry, 1)
            with suppress(UnicodeDecodeError):
                names.append((keys[-1] if keys else b"").decode("utf-8"))
    return names


def _fields(message: bytes, number: int) -> list[bytes]:
    """The contents of the delimited fields of this number."""
    data = np.frombuffer(message, np.uint8)
    found, position = list[bytes](), 0
    while position < len(data):
        tag, start, end = _next_field(data, position, len(data))
        if tag == number << 3 | _DELIMITED:
            found.append(message[start:end])
        position = end
    return found


@kernel
def _varint(data: np.ndarray, position: int, end: int) -> tuple[np.int64, int]:
    """The number at `position` as 64 bits, and where it ends; -1 if it does not."""
    value = np.uint64(0)
    for byte in range(10):
        if position + byte >= end:
            return np.int64(0), -1
        part = np.uint64(data[position + byte])
        value |= (part & np.uint64(0x7F)) << np.uint64(7 * byte)
        if part < np.uint64(0x80):
            return np.int64(value), position + byte + 1
    return np.int64(0), -1


@kernel
def _next_field(data: np.ndarray, position: int, end: int) -> tuple[int, int, int]:
    """The tag of a field, where its content starts and ends; an end of -1 if it is damaged."""
    tag, start = _varint(data, position, end)
    # A field has a number from 1 on, and of tags only 32 bits are used.
    if start < 0 or tag < 8 or tag >= 1 << 32:
        return 0, 0, -1
    wire = tag & 7
    size = np.int64(0)
    if wire == _DELIMITED:
        size, start = _varint(data, start, end)
    elif wire == _VARINT:
        _, after = _varint(data, start, end)
        size = np.int64(after - start) if after >= 0 else np.int64(-1)
    elif wire == _FIXED_64:
        size = np.int64(8)
    elif wire == _FIXED_32:
        size = np.int64(4)
    else:
        return 0, 0, -1
    if start < 0 or size < 0 or size > end - start:
        return 0, 0, -1
    return int(tag), start, int(start + size)


@kernel
def _read_list(data: np.ndarray, start: int, end: int, kind: int) -> tuple[int, np.int64, np.int64]:
    """How many values a list holds (-1: damaged), the last one, and its length in bytes."""
    count = 0
    number, length = np.int64(0), np.int64(0)
    position = start
    while position < end:
        tag, first, after = _next_field(data, position, end)
        if after < 0:
            return -1, number, length
        position = after
        wire = tag & 7
        if tag >> 3 != 1:
            continue
        if kind == 1:
            if wire != 2:
                return -1, number, length
            count += 1
            number, length = np.int64(first), np.int64(after - first)
        elif kind == 2:
            if wire not in (2, 5) or (after - first) % 4 != 0:
                return -1, number, length
            count += (after - first) // 4
            if after > first:
                number = (
                    np.int64(data[after - 4])
                    | np.int64(data[after - 3]) << 8
                    | np.int64(data[after - 2]) << 16
                    | np.int64(data[after - 1]) << 24
                )
        elif wire == 0:
            number, _ = _varint(data, first, after)
            count += 1
        elif wire == 2:
            place = first
            while place < after:
                number, place = _varint(data, place, after)
                if place < 0:
                    return -1, number, length
                count += 1
        else:
            return -1, number, length
    return count, number, length


@kernel
def _find_key(data: np.ndarray, start: int, end: int, keys: _Keys, hint: int) -> int:
    """Which key this is, -1 if it is none; `hint` is looked at first."""
    num_keys = len(keys.ends) - 1
    for step in range(num_keys):
        key = hint + step
        if key >= num_keys:
            key -= num_keys
        first = keys.ends[key]
        if keys.ends[key + 1] - first != end - start:
            continue
        is_same = True
        for byte in range(end - start):
            if keys.data[first + byte] != data[start + byte]:
                is_same = False
                break
        if is_same:
            return key
    return -1


@kernel
def _read_entry(data: np.ndarray, position: int, end: int) -> tuple[int, int, int, int]:
    """Where key and feature of an entry start and end; an end of -1 if it is damaged."""
    key, key_end, value, value_end = 0, 0, 0, 0
    while position < end:
        tag, first, after = _next_field(data, position, end)
        number, wire = tag >> 3, tag & 7
        if after < 0 or (number <= 2 and wire != 2):
            return 0, 0, 0, -1
        if number == 1:
            key, key_end = first, after
        elif number == 2:
            value, value_end = first, after
        position = after
    return key, key_end, value, value_end


@kernel
def _read_feature(data: np.ndarray, position: int, end: int) -> tuple[int, int, np.int64, np.int64]:
    """Kind and number of values of a feature (-1: damaged), the last value, its length in bytes."""
    kind, count = 0, 0
    number, length = np.int64(0), np.int64(0)
    while position < end:
        tag, first, after = _next_field(data, position, end)
        if after < 0 or (tag >> 3 <= 3 and tag & 7 != 2):
            return 0, -1, number, length
        position = after
        if tag >> 3 > 3:
            continue
        if tag >> 3 != kind:
            kind, count = tag >> 3, 0
        more, last, size = _read_list(data, first, after, kind)
        if more < 0:
            return 0, -1, number, length
        if more > 0:
            count, number, length = count + more, last, size
    return kind if count > 0 else 0, count, number, length


@kernel
def _read_features(
    data: np.ndarray, span: tuple[int, int], keys: _Keys, record: int, found: _Found
) -> bool:
    """Whether the features of a record, between both ends of `span`, are not damaged."""
    position, end = span
    hint, num_keys = 0, len(keys.ends) - 1
    while position < end:
        tag, entry, entry_end = _next_field(data, position, end)
        if entry_end < 0:
            return False
        position = entry_end
        if tag >> 3 != 1:
            continue
        if tag & 7 != 2:
            return False
        key, key_end, value, value_end = _read_entry(data, entry, entry_end)
        if value_end < 0:
            return False
        feature = _find_key(data, key, key_end, keys, hint)
        if feature < 0:
            found.num_unknown_N[record] += 1
            continue
        # Features mostly come in one order.
        hint = feature + 1 if feature + 1 < num_keys else 0
        kind, count, number, length = _read_feature(data, value, value_end)
        if count < 0:
            return False
        found.kinds_TN[feature, record] = kind
        found.counts_TN[feature, record] = count
        found.numbers_TN[feature, record] = number
        found.lengths_TN[feature, record] = length
    return True


@kernel
def _read_examples(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, keys: _Keys, found: _Found
) -> None:
    for record in range(len(starts)):
        is_good = True
        position = starts[record]
        while is_good and position < ends[record]:
            tag, first, after = _next_field(data, position, ends[record])
            is_good = after >= 0
            position = after
            if is_good and tag >> 3 == 1:
                is_good = tag & 7 == 2 and _read_features(data, (first, after), keys, record, found)
        found.is_good_N[record] = is_good
        if not is_good:
            found.kinds_TN[:, record] = 0
            found.counts_TN[:, record] = 0


@kernel
def _gather(data: np.ndarray, starts: np.ndarray, offsets: np.ndarray, joined: np.ndarray) -> None:
    for record in range(len(starts)):
        target, start = offsets[record], starts[record]
        for byte in range(offsets[record + 1] - target):
            joined[target + byte] = data[start + byte]


@kernel
def _varint_size(value: np.int64) -> int:
    left = np.uint64(value) >> np.uint64(7)
    size = 1
    while left != 0:
        left >>= np.uint64(7)
        size += 1
    return int(size)


@kernel
def _put_varint(data: np.ndarray, position: int, value: np.int64) -> int:
    """Writes a number and gives the position after it."""
    left = np.uint64(value)
    while left >= np.uint64(0x80):
        data[position] = np.uint8((left & np.uint64(0x7F)) | np.uint64(0x80))
        left >>= np.uint64(7)
        position += 1
    data[position] = np.uint8(left)
    return position + 1


@kernel
def _delimited_size(size: int) -> int:
    """Bytes of a delimited field with a tag of one byte and a content of `size` bytes."""
    return int(1 + _varint_size(np.int64(size)) + size)


@kernel
def _list_size(kind: int, number: np.int64, length: np.int64) -> int:
    """Bytes of the message with one value."""
    size = _varint_size(number) if kind == 3 else 4
    return int(_delimited_size(length if kind == 1 else size))


@kernel
def _entry_size(key_size: int, list_size: int) -> int:
    return int(_delimited_size(key_size) + _delimited_size(_delimited_size(list_size)))


@kernel
def _features_size(rows: _Rows, row: int) -> int:
    total = 0
    for feature in range(len(rows.kinds_T)):
        if rows.is_present_TN[feature, row]:
            key_size = rows.keys.ends[feature + 1] - rows.keys.ends[feature]
            number, length = rows.numbers_TN[feature, row], rows.lengths_TN[feature, row]
            size = _list_size(rows.kinds_T[feature], number, length)
            total += _delimited_size(_entry_size(key_size, size))
    return total


@kernel
def _measure_examples(rows: _Rows, ends: np.ndarray) -> int:
    """Where each record will end, and where the last one does."""
    total = 0
    for row in range(len(ends)):
        total += _delimited_size(_features_size(rows, row))
        ends[row] = total
    return total


@kernel
def _put_head(data: np.ndarray, position: int, number: int, size: int) -> int:
    """Writes tag and length of a delimited field and gives the position after them."""
    data[position] = number << 3 | 2
    return int(_put_varint(data, position + 1, np.int64(size)))


@kernel
def _write_examples(rows: _Rows, num_rows: int, data: np.ndarray) -> None:
    position = 0
    key_ends = rows.keys.ends
    for row in range(num_rows):
        position = _put_head(data, position, 1, _features_size(rows, row))
        for feature in range(len(rows.kinds_T)):
            if not rows.is_present_TN[feature, row]:
                continue
            kind, number = rows.kinds_T[feature], rows.numbers_TN[feature, row]
            length = rows.lengths_TN[feature, row]
            key_size = key_ends[feature + 1] - key_ends[feature]
            list_size = _list_size(kind, number, length)
            position = _put_head(data, position, 1, _entry_size(key_size, list_size))
            position = _put_head(data, position, 1, key_size)
            for byte in range(key_size):
                data[position + byte] = rows.keys.data[key_ends[feature] + byte]
            position += key_size
            position = _put_head(data, position, 2, _delimited_size(list_size))
            position = _put_head(data, position, kind, list_size)
            if kind == 1:
                position = _put_head(data, position, 1, length)
                for byte in range(length):
                    data[position + byte] = rows.texts[number + byte]
                position += length
            elif kind == 2:
                position = _put_head(data, position, 1, 4)
                for byte in range(4):
                    data[position + byte] = (number >> (8 * byte)) & 0xFF
                position += 4
            else:
                position = _put_head(data, position, 1, _varint_size(number))
                position = _put_varint(data, position, number)
