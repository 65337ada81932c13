"""Where records begin and end in delimited text, quotes respected.

The rules are those of Arrow's CSV parser, so that both always agree: a quote opens a quoted field
only at the field's start, a doubled quote inside is one quote, and after the closing quote the
field goes on as an unquoted one. Records end at LF, CR or CR LF outside quoted fields. Blank lines
are no records. The character after an escape is one as any other, wherever it stands.
"""

import csv
import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ctr_pipeline.dataset.limits import LONGEST_VALUE_BYTES

LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?=[^\n]))")
"""A line with its end, whatever is quoted; at the end of a block CR may be the half of an end."""

csv.field_size_limit(LONGEST_VALUE_BYTES)
Positions = npt.NDArray[np.int64]
_LF, _CR = 10, 13


@dataclass(frozen=True)
class Dialect:
    """How fields are separated and quoted; each one ASCII character, or no quote, or no escape."""

    delimiter: str
    quote: str | None
    escape: str | None = None

    @property
    def ends_rows_at_line_ends(self) -> bool:
        """Whether each line end ends a row, whatever stands before it."""
        return self.quote is None and self.escape is None


def split_record(record: str, dialect: Dialect) -> list[str]:
    """The fields of one record."""
    if dialect.quote is None and dialect.escape is None:
        return record.rstrip("\r\n").split(dialect.delimiter)
    rows = csv.reader(
        [record],
        delimiter=dialect.delimiter,
        quotechar=dialect.quote,
        quoting=csv.QUOTE_NONE if dialect.quote is None else csv.QUOTE_MINIMAL,
        escapechar=dialect.escape,
    )
    return next(rows, [])


def _unescaped(bytes_: npt.NDArray[np.uint8], positions: Positions, dialect: Dialect) -> Positions:
    """Positions before which no escape stands that is none's own."""
    if dialect.escape is None:
        return positions
    escapes = np.flatnonzero(bytes_ == ord(dialect.escape))
    if not len(escapes):
        return positions
    # How many escapes stand in a row up to each: of two, the second is one as any other character.
    is_first = np.append(True, np.diff(escapes) != 1)
    in_row = np.arange(len(escapes)) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1] + 1
    before = np.minimum(np.searchsorted(escapes, positions - 1), len(escapes) - 1)
    is_escaped = (escapes[before] == positions - 1) & (in_row[before] % 2 == 1)
    unescaped: Positions = positions[~is_escaped]
    return unescaped


def _active_quotes(block: bytes, dialect: Dialect) -> Positions:
    """Positions of the quotes that open or close, alternating, from a block that starts a record.

    A doubled quote closes and opens again, which leaves the alternation intact.
    """
    if dialect.quote is None or dialect.quote.encode() not in block:
        return np.empty(0, dtype=np.int64)
    bytes_ = np.frombuffer(block, dtype=np.uint8)
    quotes = _unescaped(bytes_, np.flatnonzero(bytes_ == ord(dialect.quote)), dialect)
    if not len(quotes):
        return quotes
    before = bytes_[quotes - 1]
    at_start = (before == ord(dialect.delimiter)) | (before == _LF) | (before == _CR)
    if dialect.escape is not None:
        at_start &= np.isin(quotes - 1, _unescaped(bytes_, quotes - 1, dialect))
    at_start[quotes == 0] = True
    adjacent = np.zeros(len(quotes), dtype=np.bool_)
    adjacent[1:] = np.diff(quotes) == 1
    if bool((at_start | adjacent)[::2].all()):
        return quotes
    # Some quote stands inside an unquoted field, where it is an ordinary character: walk.
    active: list[int] = []
    inside = False
    starts = at_start.tolist()
    for index, position in enumerate(quotes.tolist()):
        if inside:
            inside = False
        elif starts[index] or (active and active[-1] == position - 1):
            inside = True
        else:
            continue
        active.append(position)
    return np.array(active, dtype=np.int64)


def find_last_end(block: bytes, dialect: Dialect) -> int:
    """The position after the last line feed outside quotes, 0 if there is none."""
    quotes = _active_quotes(block, dialect)
    if not len(quotes) and dialect.escape is None:
        return block.rfind(b"\n") + 1
    bytes_ = np.frombuffer(block, dtype=np.uint8)
    newlines = _unescaped(bytes_, np.flatnonzero(bytes_ == _LF), dialect)
    outside = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def find_escaped_quotes(block: bytes, dialect: Dialect) -> Positions:
    """Positions of quotes that a backslash seems to escape, though the dialect has no escape.

    Each would close a field that goes on behind it, as no quote is meant to.
    """
    quote = dialect.quote
    # In a block one character is found many times faster than two.
    may_escape = quote is not None and dialect.escape is None and b"\\" in block
    if quote is None or not may_escape or f"\\{quote}".encode() not in block:
        return np.empty(0, dtype=np.int64)
    closing = _active_quotes(block, dialect)[1::2]
    closing = closing[closing < len(block) - 1]
    bytes_ = np.frombuffer(block, dtype=np.uint8)
    ends = np.array([_LF, _CR, ord(dialect.delimiter), ord(quote)], np.uint8)
    is_escaped = (bytes_[closing - 1] == ord("\\")) & ~np.isin(bytes_[closing + 1], ends)
    found: Positions = closing[is_escaped]
    return found


def find_open_quote(block: bytes, dialect: Dialect) -> int | None:
    """The position of a quote that is opened and not closed, None if all are closed."""
    quotes = _active_quotes(block, dialect)
    return int(quotes[-1]) if len(quotes) % 2 else None


def find_first_end(block: bytes, dialect: Dialect) -> int | None:
    """The position after the first record's line end, None if it has none."""
    ends, nexts = _line_ends(block, dialect)
    outside = np.searchsorted(_active_quotes(block, dialect), ends) % 2 == 0
    return int(nexts[outside][0]) if outside.any() else None


def end_of_lines(block: bytes, number: int) -> int | None:
    """The position after so many lines, whatever is quoted; None if there are fewer."""
    position = 0
    for _ in range(number):
        line = LINE.match(block, position)
        if line is None:
            return None
        position = line.end()
    return position


def count_lines(block: bytes) -> int:
    """Line ends in the block: LF, CR LF, and CR alone."""
    # NumPy compares many bytes at once, where `bytes.count` begins anew at every line.
    count = int(np.count_nonzero(np.frombuffer(block, np.uint8) == _LF))
    if b"\r" in block:
        count += block.count(b"\r") - block.count(b"\r\n")
    return count


@dataclass(frozen=True)
class RecordPositions:
    """The records of a block.

    Attributes:
        starts: Position of each record's first byte.
        ends: Position after its last byte, line end left out.
        lines: Lines of the block before the one it starts in.
    """

    starts: Positions
    ends: Positions
    lines: Positions


def find_records(block: bytes, dialect: Dialect) -> RecordPositions:
    """Every record of a block that starts at a record, blank lines left out."""
    line_ends, line_nexts = _line_ends(block, dialect)
    outside = np.searchsorted(_active_quotes(block, dialect), line_ends) % 2 == 0
    ends = np.append(line_ends[outside], len(block))
    starts = np.append(0, line_nexts[outside])
    filled = starts < ends
    starts, ends = starts[filled], ends[filled]
    if dialect.escape is not None:
        # An escaped line end ends a line all the same.
        _, line_nexts = _line_ends(block, replace(dialect, escape=None))
    return RecordPositions(starts, ends, np.searchsorted(line_nexts, starts, side="right"))


def _line_ends(block: bytes, dialect: Dialect) -> tuple[Positions, Positions]:
    """Positions of all line ends, quoted ones included, and the positions after them."""
    bytes_ = np.frombuffer(block, dtype=np.uint8)
    if b"\r" not in block:
        feeds = _unescaped(bytes_, np.flatnonzero(bytes_ == _LF), dialect)
        return feeds, feeds + 1
    ends = np.flatnonzero((bytes_ == _LF) | (bytes_ == _CR))
    ends = _unescaped(bytes_, ends, dialect)
    after_cr = (bytes_[ends] == _LF) & np.isin(ends - 1, ends[bytes_[ends] == _CR])
    ends = ends[~after_cr]
    follows = np.append(bytes_, 0)[ends + 1] == _LF
    return ends, ends + 1 + ((bytes_[ends] == _CR) & follows)
