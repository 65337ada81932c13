"""Columns of plain blocks of text, cut at their delimiters without a parser.

Most blocks hold no quote, no carriage return and the same number of fields in every row. Where
fields begin and end is then known from the delimiters alone. Whatever is different is left to
Arrow's parser: nothing is decided here that it would decide in another way.

Axes: N rows, C columns of the file, T of them texts and K numbers.
"""

# NumPy's stubs give Any for arithmetic on uint64 scalars.
# mypy: disable-error-code="no-any-return"

import codecs
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.dataset.columns import ColumnPlan, missing_to_null
from ctr_pipeline.dataset.records import Dialect, count_lines
from ctr_pipeline.embeddings.compilation import inlined, kernel
from ctr_pipeline.embeddings.lanes import Address, address_of
from ctr_pipeline.embeddings.words import find_byte, load_uint64, lowest_bit, store_uint64
from ctr_pipeline.features import ColumnType

_LF, _MINUS, _ZERO = np.uint8(10), 45, 48
_U0, _U1, _U8, _U64 = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(64)
_ALL_BITS = ~_U0
_ROWS_AT_ONCE = np.uint64(128)
_MOST_DIGITS = 15
"""As many digits are a whole number that float64 holds exactly."""

# Eight digits in a word, the first in its lowest byte.
_ZEROS = np.uint64(0x3030303030303030)
_SIXES = np.uint64(0x0606060606060606)
_HIGH_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)
# Neighbours are joined: digits to pairs, pairs to fours, fours to eight.
_PAIRS, _TO_PAIRS = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(10 * 2**8 + 1)
_FOURS, _TO_FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(100 * 2**16 + 1)
_EIGHT, _TO_EIGHT = np.uint64(0x0000FFFF0000FFFF), np.uint64(10_000 * 2**32 + 1)


class _Fields(NamedTuple):
    """The fields of a block: that of column c and row n ends at data[ends_CN[c, n]]."""

    data: np.ndarray
    ends_CN: np.ndarray


def read_plain_columns(
    block: bytes, dialect: Dialect, column_names: tuple[str, ...], plan: ColumnPlan
) -> pa.Table | None:
    """The plan's columns, the label as float64; None if the block is not plain.

    Args:
        block: Whole records.
        dialect: Of the file.
        column_names: Of all columns of the file.
        plan: What is wanted; NULL stands for its missing values.
    """
    fields = _find_fields(block, dialect, len(column_names))
    if fields is None:
        return None
    texts = [name for name, kind in plan.types.items() if kind is ColumnType.TEXT]
    numbers = [name for name in plan.names if name not in texts]
    columns = dict(zip(texts, _texts(fields, _places(texts, column_names)), strict=True))
    whole, is_missing, is_whole = _whole_numbers(fields, _places(numbers, column_names))
    for k, name in enumerate(numbers):
        if is_whole[k]:
            columns[name] = pa.array(whole[k], mask=is_missing[k])
            continue
        (written,) = _texts(fields, _places([name], column_names))
        try:
            columns[name] = pc.cast(missing_to_null(written, plan.missing_values), pa.float64())
        except pa.ArrowInvalid:
            return None
    if len(plan.missing_values) > 1:
        columns |= {name: missing_to_null(columns[name], plan.missing_values) for name in texts}
    return pa.table([columns[name] for name in plan.names], names=plan.names)


def _places(names: list[str], column_names: tuple[str, ...]) -> NDArray[np.int64]:
    return np.array([column_names.index(name) for name in names], np.int64)


def _find_fields(block: bytes, dialect: Dialect, num_columns: int) -> _Fields | None:
    """None if the block is not plain."""
    quote = dialect.quote
    if num_columns == 1:
        return None  # A blank line, which is no row, would look like one.
    if b"\r" in block or (quote is not None and quote.encode() in block) or block[-1:] != b"\n":
        return None
    if not block.isascii():
        try:
            codecs.utf_8_decode(block, "strict", True)
        except UnicodeDecodeError:
            return None
    data = np.frombuffer(block, np.uint8)
    ends_CN = np.empty((num_columns, count_lines(block)), np.int32)
    is_plain = _find_ends(data, ord(dialect.delimiter), ends_CN)
    return _Fields(data, ends_CN) if is_plain else None


@kernel
def _find_ends(data: np.ndarray, delimiter: int, ends_CN: np.ndarray) -> bool:
    """False if a row has another number of fields. The last byte is a line feed."""
    last_column, num_rows = np.uint64(len(ends_CN) - 1), np.uint64(ends_CN.shape[1])
    column, row = _U0, _U0
    bytes_at, ends = address_of(data, (_U0,)), address_of(ends_CN, (_U0, _U0))
    num_bytes = np.uint64(len(data))
    for first in range(_U0, num_bytes, _U64):
        if first + _U64 <= num_bytes:
            feeds = find_byte(bytes_at, first, _LF)
            marks = feeds | find_byte(bytes_at, first, np.uint8(delimiter))
        else:
            feeds = marks = _U0
            for k in range(num_bytes - first):
                byte = bytes_at[first + k]
                feeds |= np.uint64(byte == _LF) << k
                marks |= np.uint64((byte == _LF) | (byte == delimiter)) << k
        while marks != _U0:
            k = lowest_bit(marks)
            marks &= marks - _U1
            is_last = column == last_column
            if ((feeds >> k) & _U1 == _U1) != is_last or row == num_rows:
                return False
            ends[column * num_rows + row] = np.int32(first + k)
            if is_last:
                column, row = _U0, row + _U1
            else:
                column += _U1
    return row == num_rows


@inlined
def _start_of(ends_CN: np.ndarray, column: int, row: int) -> int:
    if column > 0:
        return int(ends_CN[column - 1, row]) + 1
    return int(ends_CN[len(ends_CN) - 1, row - 1]) + 1 if row > 0 else 0


def _texts(fields: _Fields, places: NDArray[np.int64]) -> list[pa.Array]:
    """The columns at `places` as texts, NULL where empty."""
    num_rows = fields.ends_CN.shape[1]
    offsets_TN = np.empty((len(places), num_rows + 1), np.int32)
    # A bit a row, 1 where there is a text.
    present_TN = np.zeros((len(places), -(-num_rows // 8)), np.uint8)
    num_empty_T = np.zeros(len(places), np.int64)
    _find_offsets(fields, places, offsets_TN, present_TN, num_empty_T)
    # Texts are copied in whole words, so that the last one of a column needs room behind it.
    firsts_T = np.cumsum([0, *(offsets_TN[:, -1] + np.int64(_U8))])
    texts = np.empty(firsts_T[-1], np.uint8)
    _copy_texts(fields, places, offsets_TN, firsts_T, texts)
    arrays = []
    for t, offsets in enumerate(offsets_TN):
        num_empty = int(num_empty_T[t])
        buffers = [
            pa.py_buffer(present_TN[t]) if num_empty else None,
            pa.py_buffer(offsets),
            pa.py_buffer(texts[firsts_T[t] : firsts_T[t] + offsets[-1]]),
        ]
        arrays.append(pa.Array.from_buffers(pa.string(), num_rows, buffers, num_empty))
    return arrays


@kernel
def _find_offsets(
    fields: _Fields,
    places: np.ndarray,
    offsets_TN: np.ndarray,
    present_TN: np.ndarray,
    num_empty_T: np.ndarray,
) -> None:
    ends_CN = fields.ends_CN
    for t in range(len(places)):
        end = 0
        offsets_TN[t, 0] = 0
        for row in range(ends_CN.shape[1]):
            length = ends_CN[places[t], row] - _start_of(ends_CN, places[t], row)
            num_empty_T[t] += length == 0
            present_TN[t, row >> 3] |= np.uint8(length > 0) << np.uint8(row & 7)
            end += length
            offsets_TN[t, row + 1] = end


@kernel
def _copy_texts(
    fields: _Fields,
    places: np.ndarray,
    offsets_TN: np.ndarray,
    firsts_T: np.ndarray,
    texts: np.ndarray,
) -> None:
    """Some rows at a time, so that those of the block stay in a core's cache.

    What is copied beyond a text is overwritten by the next one of its column.
    """
    data, ends_CN = fields
    num_rows = np.uint64(ends_CN.shape[1])
    source, num_bytes = address_of(data, (_U0,)), np.uint64(len(data))
    for first in range(_U0, num_rows, _ROWS_AT_ONCE):
        for t in range(len(places)):
            ends = address_of(ends_CN, (np.uint64(places[t]), _U0))
            offsets = address_of(offsets_TN, (np.uint64(t), _U0))
            target = address_of(texts, (np.uint64(firsts_T[t]),))
            for row in range(first, min(first + _ROWS_AT_ONCE, num_rows)):
                to = np.uint64(offsets[row])
                length = np.uint64(offsets[row + _U1]) - to
                start = np.uint64(ends[row]) - length
                byte = _U0
                if start + length + _U8 <= num_bytes:
                    while byte < length:
                        store_uint64(target, to + byte, load_uint64(source, start + byte))
                        byte += _U8
                else:
                    while byte < length:
                        target[to + byte] = source[start + byte]
                        byte += _U1


def _whole_numbers(
    fields: _Fields, places: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """The columns at `places` [K]: values [K, N], which are missing, and which columns are good."""
    shape = len(places), fields.ends_CN.shape[1]
    numbers_KN, is_missing_KN = np.empty(shape, np.float64), np.empty(shape, np.bool_)
    is_whole_K = np.ones(len(places), np.bool_)
    _parse_whole_numbers(fields, places, numbers_KN, is_missing_KN, is_whole_K)
    return numbers_KN, is_missing_KN, is_whole_K


@kernel
def _parse_whole_numbers(
    fields: _Fields,
    places: np.ndarray,
    numbers_KN: np.ndarray,
    is_missing_KN: np.ndarray,
    is_whole_K: np.ndarray,
) -> None:
    """A column is whole if its fields are empty or whole numbers of few digits."""
    data, ends_CN = fields
    source = address_of(data, (_U0,))
    for row in range(ends_CN.shape[1]):
        for k in range(len(places)):
            start = np.uint64(_start_of(ends_CN, places[k], row))
            end = np.uint64(ends_CN[places[k], row])
            is_missing_KN[k, row] = start == end
            is_negative = start < end and source[start] == _MINUS
            if is_negative:
                start += _U1
            length = end - start
            if (is_negative and length == _U0) or length > np.uint64(_MOST_DIGITS):
                is_whole_K[k] = False
                continue
            if _U0 < length <= _U8 <= end:
                number, is_number = _eight_digits(source, end, length)
            else:
                number, is_number = _digits(source, start, end)
            if not is_number:
                is_whole_K[k] = False
            # Not `-number`: minus zero is a number of its own.
            numbers_KN[k, row] = -1.0 * number if is_negative else 1.0 * number


@inlined
def _eight_digits(source: Address, end: np.uint64, length: np.uint64) -> tuple[np.int64, bool]:
    """The number in the 1 to 8 bytes before `end`, and whether all of them are digits.

    Eight at once, by three multiplications (Lemire, Number Parsing at a Gigabyte per Second, 2021).
    """
    kept = _ALL_BITS << (_U8 * (_U8 - length))
    word = (load_uint64(source, end - _U8) & kept) | (_ZEROS & ~kept)
    is_number = (word & _HIGH_HALVES) == _ZEROS and ((word + _SIXES) & _HIGH_HALVES) == _ZEROS
    word = ((word & _PAIRS) * _TO_PAIRS) >> _U8
    word = ((word & _FOURS) * _TO_FOURS) >> np.uint64(16)
    word = ((word & _EIGHT) * _TO_EIGHT) >> np.uint64(32)
    return np.int64(word), is_number


@inlined
def _digits(source: Address, start: np.uint64, end: np.uint64) -> tuple[np.int64, bool]:
    """The same of up to 15 bytes; 0 for none."""
    number = np.int64(0)
    for place in range(start, end):
        digit = np.int64(source[place]) - _ZERO
        if digit < 0 or digit > 9:
            return number, False
        number = 10 * number + digit
    return number, True
