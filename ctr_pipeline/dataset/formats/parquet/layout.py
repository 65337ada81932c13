"""Where the values of a Parquet file lie, and how long they can get, from its own bytes.

Arrow tells less than what is needed here, and ends the process where some parts of damaged metadata
are asked for. Footer and page headers are therefore read here, with every length held against the
bytes that are there: structs of Thrift's compact protocol (apache/parquet-format, parquet.thrift).

Axes: G row groups, C columns (leaves of the schema), P pages.
"""

# NumPy's stubs give Any for arithmetic on uint64 scalars.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.dataset.limits import DEEPEST
from ctr_pipeline.kernels.compilation import kernel

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_DEEPEST_THRIFT = 24
_NUM_FIELDS = 12
"""Fields of a struct that are looked at have smaller numbers."""

_ABSENT = -1
_BYTE_ARRAY, _FIXED_BYTES = 6, 7
_REPEATED = 2
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_DELTA_BYTE_ARRAY = 7
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}

Int64s = NDArray[np.int64]


class DamagedLayoutError(ValueError):
    """Bytes that are no footer or pages of Parquet; the message completes `damaged (…)`.

    Args:
        what: The message.
        remedy: What to do about it.
    """

    def __init__(self, what: str, remedy: str = "Copy or write the file again") -> None:
        super().__init__(what)
        self.remedy = remedy


class _Of(IntEnum):
    """What is kept of a column's part of a row group: the last axis of `Layout.chunks_GC`."""

    CODEC = 0
    NUM_VALUES = 1
    UNFOLDED_BYTES = 2
    START = 3
    END = 4
    HAS_DICTIONARY = 5


@dataclass(frozen=True)
class Leaf:
    """A column of values.

    Attributes:
        path: Names from the top down, with dots between them.
        top: The first of them, the column of the table.
        is_text: Whether values are texts, or bytes of any length.
        is_bytes: Whether they are these, or bytes of a length that the schema tells.
        is_repeated: Whether a row may have several values.
    """

    path: str
    top: str
    is_text: bool
    is_bytes: bool
    is_repeated: bool


@dataclass(frozen=True)
class Layout:
    """What a footer says.

    Attributes:
        footer_start: Where it begins in the file.
        leaves: In their order [C].
        num_rows_G: Rows of each row group.
        chunks_GC: int64 [G, C, 6].
    """

    footer_start: int
    leaves: tuple[Leaf, ...]
    num_rows_G: Int64s
    chunks_GC: Int64s

    def chunk(self, group: int, column: int) -> "Chunk":
        """A column's part of a row group."""
        facts = self.chunks_GC[group, column].tolist()
        return Chunk(facts[_Of.CODEC], facts[_Of.NUM_VALUES], facts[_Of.START], facts[_Of.END])

    def few_texts(self, most_bytes: int) -> list[str]:
        """Columns of texts that have a dictionary in each row group and take few bytes a value.

        Args:
            most_bytes: A value may take, on average.
        """
        has_dictionary_C: NDArray[np.bool_] = np.all(
            self.chunks_GC[:, :, _Of.HAS_DICTIONARY], axis=0
        )
        bytes_C: NDArray[np.float64] = self.chunks_GC[:, :, _Of.UNFOLDED_BYTES].sum(
            axis=0, dtype=np.float64
        )
        most_bytes_of_column = most_bytes * float(self.num_rows_G.sum(dtype=np.float64))
        return [
            leaf.path
            for number, leaf in enumerate(self.leaves)
            if leaf.is_text and has_dictionary_C[number] and bytes_C[number] <= most_bytes_of_column
        ]


class Chunk(NamedTuple):
    """A column's part of a row group: its bytes lie between `start` and `end` of the file."""

    codec: int
    num_values: int
    start: int
    end: int


@dataclass(frozen=True)
class Pages:
    """The pages of a column's part of a row group.

    Attributes:
        num_values_P: Rows of each page of values, or elements where rows have several.
        unfolded_P: Its plain bytes.
        largest_bytes: Bytes of the largest page, uncompressed.
        longest_bytes: What any value can take that is not written out in its page.
    """

    num_values_P: Int64s
    unfolded_P: Int64s
    largest_bytes: int
    longest_bytes: int


def footer_span(tail: bytes, size_bytes: int) -> tuple[int, int]:
    """Where the footer begins and ends in a file.

    Args:
        tail: The last bytes of the file, eight at least.

    Raises:
        DamagedLayoutError: The file does not end like Parquet.
    """
    if len(tail) < _TAIL_BYTES or tail[-4:] != _MAGIC:
        raise DamagedLayoutError("Parquet magic bytes not found in footer")
    length = int.from_bytes(tail[-8:-4], "little")
    end = size_bytes - _TAIL_BYTES
    if length > end - len(_MAGIC):
        raise DamagedLayoutError(f"the footer of {length:,} bytes is longer than the file")
    return end - length, end


def read_layout(footer: bytes, footer_start: int) -> Layout:
    """What a footer says.

    Raises:
        DamagedLayoutError: It is damaged, its names are not UTF-8, or types are nested too deeply.
    """
    data = np.frombuffer(footer, np.uint8)
    found = _fields_of(data, 0)
    leaves = tuple(_leaves(data, _list_at(data, int(found[2]))))
    first, num_groups = _list_at(data, int(found[4])) if found[4] >= 0 else (0, 0)
    # Before memory is asked for: every part of a row group takes several bytes.
    if num_groups * max(len(leaves), 1) > len(data):
        raise DamagedLayoutError("the footer promises more columns than it holds")
    num_rows_G = np.zeros(num_groups, np.int64)
    chunks_GC = np.zeros((num_groups, len(leaves), len(_Of)), np.int64)
    if not _read_groups(data, first, num_rows_G, chunks_GC):
        raise DamagedLayoutError("the footer's row groups are damaged")
    layout = Layout(footer_start, leaves, num_rows_G, chunks_GC)
    _check_groups(layout)
    return layout


def _check_groups(layout: Layout) -> None:
    starts, ends = layout.chunks_GC[:, :, _Of.START], layout.chunks_GC[:, :, _Of.END]
    is_inside = (starts >= 0) & (starts <= ends) & (ends <= layout.footer_start)
    if not is_inside.all() or (layout.num_rows_G < 0).any():
        raise DamagedLayoutError("a column lies outside the file")


def _fields_of(data: NDArray[np.uint8], position: int) -> Int64s:
    found = np.empty(_NUM_FIELDS, np.int64)
    if _read_struct(data, position, found) < 0:
        raise DamagedLayoutError(f"the struct at byte {position} is damaged")
    return found


def _list_at(data: NDArray[np.uint8], position: int) -> tuple[int, int]:
    """Where the first struct of a list is, and how many there are."""
    first, num_items, kind = _read_list_head(data, position) if position >= 0 else (-1, 0, 0)
    if first < 0 or (num_items and kind != 12):
        raise DamagedLayoutError(f"the list at byte {position} is damaged")
    return int(first), int(num_items)


def _leaves(data: NDArray[np.uint8], elements: tuple[int, int]) -> Iterator[Leaf]:
    """The leaves of the schema, which is a tree written from the root in depth-first order."""
    position, num_elements = elements
    found = np.empty(_NUM_FIELDS, np.int64)
    # Of the groups that are open: names down to them, whether repeated, children that are missing.
    open_groups: list[tuple[tuple[str, ...], bool, int]] = []
    for element in range(num_elements):
        position = _read_struct(data, position, found)
        if position < 0:
            raise DamagedLayoutError("the schema is damaged")
        kind, _, repetition, name_at, num_children = found[1:6].tolist()
        above, was_repeated, _ = open_groups[-1] if open_groups else ((), False, 0)
        name = _text_at(data, name_at)
        names = (*above, name) if element else ()
        is_repeated = was_repeated or (bool(element) and repetition == _REPEATED)
        if len(names) > DEEPEST:
            raise DamagedLayoutError(
                f"types are nested more than {DEEPEST} levels deep",
                "Write the file without the column",
            )
        if element and not open_groups:
            raise DamagedLayoutError("the schema has elements outside its root")
        if open_groups:
            open_groups[-1] = (above, was_repeated, open_groups[-1][2] - 1)
        if num_children > 0:
            open_groups.append((names, is_repeated, num_children))
        elif element:
            is_text = kind == _BYTE_ARRAY
            is_bytes = is_text or kind == _FIXED_BYTES
            yield Leaf(".".join(names), names[0], is_text, is_bytes, is_repeated)
        while open_groups and open_groups[-1][2] == 0:
            open_groups.pop()
    if open_groups:
        raise DamagedLayoutError("the schema lacks elements")


def _text_at(data: NDArray[np.uint8], position: int) -> str:
    start, length = _read_text_head(data, position) if position >= 0 else (-1, 0)
    if start < 0:
        raise DamagedLayoutError("a column has no name")
    try:
        return data[start : start + length].tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedLayoutError(
            "the name of a column is not UTF-8", "Write the file again with another name"
        ) from error


def read_pages(data: bytes, chunk: Chunk, leaf: Leaf) -> Pages:
    """The pages of a column's part of a row group.

    Args:
        data: Its bytes.
        chunk: What the footer says of it.
        leaf: Its column.

    Raises:
        DamagedLayoutError: A page's header is damaged, or the page does not end within the bytes.
    """
    stored = np.frombuffer(data, np.uint8)
    num_pages = _walk_pages(stored, chunk.num_values, np.empty((0, 6), np.int64))
    if num_pages < 0:
        raise DamagedLayoutError(f"a page of the column '{leaf.path}' is damaged")
    pages = np.empty((num_pages, 6), np.int64)
    _walk_pages(stored, chunk.num_values, pages)
    kinds, num_values, plain, starts, sizes, encodings = pages.T
    is_data = (kinds == _DATA_PAGE) | (kinds == _DATA_PAGE_V2)
    longest = 0
    if leaf.is_bytes:
        # A value may be the one before it and a rest: what is before it is in the same page.
        repeats = is_data & (encodings == _DELTA_BYTE_ARRAY)
        longest = int(plain[repeats].max(initial=0))
        for page in np.flatnonzero(kinds == _DICTIONARY_PAGE):
            block = stored[starts[page] : starts[page] + sizes[page]]
            longest = max(longest, _longest_of(block, chunk.codec, int(plain[page])))
    return Pages(num_values[is_data], plain[is_data], int(plain.max(initial=0)), longest)


_MOST_DICTIONARY_BYTES = 64 << 20
"""Of a larger one its values are not looked at: any may be as long as it is."""


def _longest_of(block: NDArray[np.uint8], codec: int, plain_bytes: int) -> int:
    """The longest value of a dictionary page, or all of its bytes where that cannot be told."""
    if plain_bytes > _MOST_DICTIONARY_BYTES or (codec and codec not in _CODECS):
        return plain_bytes
    plain = block
    if codec:
        try:
            text = pa.Codec(_CODECS[codec]).decompress(
                pa.py_buffer(block), decompressed_size=plain_bytes
            )
        except (OSError, pa.ArrowException):
            return plain_bytes
        plain = np.frombuffer(text, np.uint8)
    longest = _longest_text(plain)
    return plain_bytes if longest < 0 else int(longest)


@kernel
def _longest_text(data: np.ndarray) -> int:
    """The longest of texts that each stand behind their length; -1 if they do not end so."""
    position, longest, size = np.int64(0), np.int64(0), np.int64(len(data))
    while size - position >= 4:
        length = (
            np.int64(data[position])
            | np.int64(data[position + 1]) << 8
            | np.int64(data[position + 2]) << 16
            | np.int64(data[position + 3]) << 24
        )
        position += 4
        if length > size - position:
            return -1
        longest = max(longest, length)
        position += length
    return int(longest) if position == size else -1


@kernel
def _varint(data: np.ndarray, position: int) -> tuple[np.uint64, int]:
    """The number at `position`, and where it ends; -1 if it does not."""
    value = np.uint64(0)
    for byte in range(10):
        if position + byte >= len(data):
            return np.uint64(0), -1
        part = np.uint64(data[position + byte])
        value |= (part & np.uint64(0x7F)) << np.uint64(7 * byte)
        if part < np.uint64(0x80):
            return value, position + byte + 1
    return np.uint64(0), -1


@kernel
def _zigzag(value: np.uint64) -> np.int64:
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@kernel
def _read_list_head(data: np.ndarray, position: int) -> tuple[int, int, int]:
    """Where the first item is, how many there are and of which kind; -1 if that cannot be."""
    if position < 0 or position >= len(data):
        return -1, 0, 0
    head = np.int64(data[position])
    position += 1
    num_items = np.int64(head >> 4)
    if num_items == 15:
        large, position = _varint(data, position)
        if position < 0 or large > np.uint64(len(data)):
            return -1, 0, 0
        num_items = np.int64(large)
    # An item takes a byte at least.
    if num_items > len(data) - position:
        return -1, 0, 0
    return position, int(num_items), int(head & 15)


@kernel
def _read_text_head(data: np.ndarray, position: int) -> tuple[int, np.int64]:
    """Where a text starts and its length; -1 if it does not end."""
    length, position = _varint(data, position)
    if position < 0 or length > np.uint64(len(data) - position):
        return -1, np.int64(0)
    return position, np.int64(length)


@kernel
def _skip(data: np.ndarray, position: int, kind: int) -> int:
    """Where the value at `position` ends, -1 if it does not or is nested too deeply."""
    # Of each open struct or list: the kind of its items, 0 of a struct; and how many are missing.
    kinds = np.zeros(_DEEPEST_THRIFT, np.int64)
    missing = np.zeros(_DEEPEST_THRIFT, np.int64)
    depth = 0
    is_field = True
    while True:
        if kind == 1 or kind == 2:  # noqa: PLR1714  Compiled
            position += 0 if is_field else 1
        elif kind == 3:
            position += 1
        elif kind == 4 or kind == 5 or kind == 6:  # noqa: PLR1714  Compiled
            _, position = _varint(data, position)
        elif kind == 7:
            position += 8
        elif kind == 8:
            start, length = _read_text_head(data, position)
            position = int(start + length) if start >= 0 else -1
        elif kind == 9 or kind == 10 or kind == 12:  # noqa: PLR1714  Compiled
            if depth == _DEEPEST_THRIFT:
                return -1
            kinds[depth], missing[depth] = 0, 0
            if kind != 12:
                position, num_items, kind_of_items = _read_list_head(data, position)
                missing[depth], kinds[depth] = num_items, kind_of_items
                if position >= 0 and missing[depth] > 0 and kinds[depth] == 0:
                    return -1
                if missing[depth] == 0:
                    kinds[depth] = -1
            depth += 1
        else:
            return -1
        if position < 0 or position > len(data):
            return -1
        # The next value: another field, another item, or what follows those that have ended.
        while depth > 0:
            if kinds[depth - 1] == 0:
                if position >= len(data):
                    return -1
                head = np.int64(data[position])
                position += 1
                if head == 0:
                    depth -= 1
                    continue
                if head >> 4 == 0:
                    _, position = _varint(data, position)
                    if position < 0:
                        return -1
                kind, is_field = int(head & 15), True
                break
            if missing[depth - 1] == 0:
                depth -= 1
                continue
            missing[depth - 1] -= 1
            kind, is_field = int(kinds[depth - 1]), False
            break
        if depth == 0:
            return position


@kernel
def _read_struct(data: np.ndarray, position: int, found: np.ndarray) -> int:
    """Where the struct at `position` ends, -1 if it is damaged.

    Of each of its fields, `found` gets the number, or the position of what is no number; -1 where
    it is absent.
    """
    found[:] = _ABSENT
    field = np.int64(0)
    while True:
        if position < 0 or position >= len(data):
            return -1
        head = np.int64(data[position])
        position += 1
        if head == 0:
            return position
        if head >> 4:
            field += head >> 4
        else:
            number, position = _varint(data, position)
            if position < 0:
                return -1
            field = _zigzag(number)
        kind = head & 15
        if 0 <= field < len(found):
            if kind == 4 or kind == 5 or kind == 6:  # noqa: PLR1714  Compiled
                number, _ = _varint(data, position)
                found[field] = _zigzag(number)
            else:
                found[field] = position
        position = _skip(data, position, kind)


@kernel
def _read_groups(
    data: np.ndarray, position: int, num_rows_G: np.ndarray, chunks_GC: np.ndarray
) -> bool:
    """Whether the row groups are whole, with as many columns as the schema has."""
    group = np.empty(_NUM_FIELDS, np.int64)
    column = np.empty(_NUM_FIELDS, np.int64)
    about = np.empty(_NUM_FIELDS, np.int64)
    for g in range(len(num_rows_G)):
        position = _read_struct(data, position, group)
        if position < 0 or group[1] < 0:
            return False
        num_rows_G[g] = group[3]
        place, num_columns, kind = _read_list_head(data, group[1])
        if place < 0 or num_columns != chunks_GC.shape[1] or (num_columns > 0 and kind != 12):
            return False
        for c in range(num_columns):
            place = _read_struct(data, place, column)
            if place < 0 or column[3] < 0 or _read_struct(data, column[3], about) < 0:
                return False
            chunks_GC[g, c, 0] = about[4]
            chunks_GC[g, c, 1] = about[5]
            chunks_GC[g, c, 2] = about[6]
            start = about[9]
            # As Arrow has it: writers that have no dictionary may say that it is at 0.
            if 0 < about[11] < start:
                start = about[11]
            if start < 0 or about[7] < 0 or about[7] > np.int64(1) << 62 or start > 1 << 62:
                return False
            chunks_GC[g, c, 3] = start
            chunks_GC[g, c, 4] = start + about[7]
            chunks_GC[g, c, 5] = np.int64(about[11] > 0)
    return True


@kernel
def _walk_pages(data: np.ndarray, num_values: int, pages: np.ndarray) -> int:
    """How many pages there are up to the last value, -1 if one is damaged.

    Of each, `pages` [P, 6] gets its kind, number of values, plain bytes, position, stored bytes and
    encoding, if it has room for all.
    """
    header = np.empty(_NUM_FIELDS, np.int64)
    about = np.empty(_NUM_FIELDS, np.int64)
    position, seen, num_pages = 0, np.int64(0), 0
    while seen < num_values and position < len(data):
        position = _read_struct(data, position, header)
        kind, plain, stored = header[1], header[2], header[3]
        if position < 0 or plain < 0 or stored < 0 or stored > len(data) - position:
            return -1
        place = np.int64(_ABSENT)
        if kind == 0:
            place = header[5]
        elif kind == 2:
            place = header[7]
        elif kind == 3:
            place = header[8]
        about[:] = 0
        if kind == 0 or kind == 2 or kind == 3:  # noqa: PLR1714  Compiled
            if place < 0 or _read_struct(data, place, about) < 0 or about[1] < 0:
                return -1
            if kind != 2:
                seen += about[1]
        if num_pages < len(pages):
            pages[num_pages, 0] = kind
            pages[num_pages, 1] = about[1]
            pages[num_pages, 2] = plain
            pages[num_pages, 3] = position
            pages[num_pages, 4] = stored
            pages[num_pages, 5] = about[4] if kind == 3 else about[2]
        num_pages += 1
        position = int(position + stored)
    return num_pages
