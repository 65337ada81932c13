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
from ctr_pipeline.embeddings.compilation import kernel
from ctr_pipeline.features import ColumnType

_LF, _MINUS, _ZERO = 10, 45, 48
_EACH_BYTE = np.uint64(0x0101010101010101)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH_BIT = np.uint64(0x80)
# Times 256 to the k, its highest byte is k.
_BYTE_NUMBERS = np.uint64(0x0001020304050607)
_MOST_DIGITS = 15
"""As many digits are a whole number that float64 holds exactly."""


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
    last_column, num_rows = len(ends_CN) - 1, ends_CN.shape[1]
    column, row = 0, 0
    delimiters, feeds = np.uint64(delimiter) * _EACH_BYTE, np.uint64(_LF) * _EACH_BYTE
    first = np.uint64(0)
    while first < len(data):
        marks = np.uint64(0)
        if first + np.uint64(8) <= len(data):
            word = _load_word(data, first)
            marks = _mark_zeros(word ^ delimiters) | _mark_zeros(word ^ feeds)
        else:
            for byte in range(len(data) - np.int64(first)):
                found = data[first + np.uint64(byte)]
                if (found == delimiter) | (found == _LF):
                    marks |= _HIGH_BIT << np.uint64(8 * byte)
        while marks != 0:
            lowest = marks & (~marks + np.uint64(1))
            place = first + ((lowest >> np.uint64(7)) * _BYTE_NUMBERS >> np.uint64(56))
            marks ^= lowest
            is_last = column == last_column
            if (data[place] == _LF) != is_last or row == num_rows:
                return False
            ends_CN[column, row] = place
            column = 0 if is_last else column + 1
            row += is_last
        first += np.uint64(8)
    return row == num_rows


@kernel
def _load_word(data: np.ndarray, start: np.uint64) -> np.uint64:
    """Eight bytes as a little-endian number; written out, it compiles to one load."""
    return (
        np.uint64(data[start])
        | (np.uint64(data[start + np.uint64(1)]) << np.uint64(8))
        | (np.uint64(data[start + np.uint64(2)]) << np.uint64(16))
        | (np.uint64(data[start + np.uint64(3)]) << np.uint64(24))
        | (np.uint64(data[start + np.uint64(4)]) << np.uint64(32))
        | (np.uint64(data[start + np.uint64(5)]) << np.uint64(40))
        | (np.uint64(data[start + np.uint64(6)]) << np.uint64(48))
        | (np.uint64(data[start + np.uint64(7)]) << np.uint64(56))
    )


@kernel
def _mark_zeros(word: np.uint64) -> np.uint64:
    """The high bit of each byte that is 0 (Warren, Hacker's Delight, section 6-1)."""
    return ~(((word & _LOW_BITS) + _LOW_BITS) | word | _LOW_BITS)


@kernel
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
    firsts_T = np.cumsum([0, *offsets_TN[:, -1]])
    texts = np.empty(firsts_T[-1], np.uint8)
    _copy_texts(fields, places, offsets_TN, firsts_T, texts)
    arrays = []
    for t, offsets in enumerate(offsets_TN):
        num_empty = int(num_empty_T[t])
        buffers = [
            pa.py_buffer(present_TN[t]) if num_empty else None,
            pa.py_buffer(offsets),
            pa.py_buffer(texts[firsts_T[t] : firsts_T[t + 1]]),
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
    """Row by row, so that the block is read from its beginning to its end."""
    data, ends_CN = fields
    for row in range(ends_CN.shape[1]):
        for t in range(len(places)):
            target = np.uint64(firsts_T[t] + offsets_TN[t, row])
            length = np.uint64(offsets_TN[t, row + 1] - offsets_TN[t, row])
            start = np.uint64(ends_CN[places[t], row]) - length
            for byte in range(length):
                texts[target + byte] = data[start + byte]


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
    for row in range(ends_CN.shape[1]):
        for k in range(len(places)):
            start = np.uint64(_start_of(ends_CN, places[k], row))
            end = np.uint64(ends_CN[places[k], row])
            is_missing_KN[k, row] = start == end
            is_negative = start < end and data[start] == _MINUS
            if is_negative:
                start += np.uint64(1)
            if (is_negative and start == end) or end - start > np.uint64(_MOST_DIGITS):
                is_whole_K[k] = False
                continue
            number = 0
            while start < end:
                digit = int(data[start]) - _ZERO
                if digit < 0 or digit > 9:
                    is_whole_K[k] = False
                    break
                number = 10 * number + digit
                start += np.uint64(1)
            # Not `-number`: minus zero is a number of its own.
            numbers_KN[k, row] = -1.0 * number if is_negative else 1.0 * number
