"""The first bytes of a text file: is it text at all, how are its fields separated and named."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.data_files import DataFile, open_bytes
from ctr_pipeline.dataset.formats.text.blocks import read_head
from ctr_pipeline.dataset.formats.text.compression import Compression, detect_compression
from ctr_pipeline.dataset.formats.text.records import (
    LINE,
    Dialect,
    count_lines,
    end_of_lines,
    find_escaped_quotes,
    find_first_end,
    find_last_end,
    find_records,
    split_record,
)
from ctr_pipeline.errors import DataError, ReadingKeyError

LONGEST_FIRST_RECORD_BYTES = 16 << 20
_NUMBER = re.compile(r"\s*[-+]?\d*[.,]?\d+(?:[eE][-+]?\d+)?\s*")
_RECORDS_COMPARED = 200
_BYTES_COMPARED = 1 << 18
_FEWEST_COUNTED = 3
"""Two labels may be 0 and 1."""

_LINES_LOOKED_AT = 16 << 10
_TOLD_DELIMITER = re.compile(rb"\"?sep=([\t -~])\"?(?:\r\n|\r|\n)", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00\x04-\x08\x0e-\x1a\x1c-\x1f]")
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{])")
_DELIMITERS = ("\t", ",", ";", "|")
_DELIMITER_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}


@dataclass(frozen=True)
class TextHead:
    """The start of a text file.

    Attributes:
        path: The file.
        dialect: Its delimiter and quote.
        first_record: Its first record, without line end.
        data: Its bytes from there on, up to where the look ended.
        first_end: Position in them after the first record.
        is_whole: Whether they are the rest of the file.
        num_skipped: Lines at the start of the file that are no rows.
        num_lines_before: Lines of the head, and empty lines before the first record.
    """

    path: DataFile
    compression: Compression
    dialect: Dialect
    first_record: str
    data: bytes
    first_end: int
    is_whole: bool
    num_skipped: int = 0
    num_lines_before: int = 0

    def next_records(self) -> list[tuple[int, list[str]]]:
        """The fields of some records after the first, each with its line in the file, from 1."""
        body = self.records(has_header=True)
        if len(body) > _BYTES_COMPARED:
            body = body[: find_last_end(body[:_BYTES_COMPARED], self.dialect)] or body
        found = find_records(body, self.dialect)
        before = self.num_lines_before + count_lines(self.data[: self.first_end]) + 1
        places = zip(found.starts, found.ends, found.lines, strict=True)
        return [
            (
                before + int(line),
                split_record(body[start:end].decode("utf-8", "replace"), self.dialect),
            )
            for start, end, line in itertools.islice(places, _RECORDS_COMPARED)
        ]

    def records(self, *, has_header: bool) -> bytes:
        """The whole records in it, the header left out."""
        body = self.data[self.first_end :]
        rows = body if self.is_whole else body[: find_last_end(body, self.dialect)]
        return rows if has_header else self.data[: self.first_end] + rows


def read_text_head(
    path: DataFile, data: DataConfig, num_bytes: int, delimiter: str | None, *, are_new: bool
) -> TextHead:
    """Reads the head of a text file.

    Args:
        path: The file.
        data: How it is read.
        num_bytes: How much of it, or more if its first record is longer.
        delimiter: The delimiter of earlier files, which this one has as well if it can.
        are_new: As of `SourceFormat.inspect`.

    Raises:
        DataError: The file is empty, damaged, binary, has no delimiter in its first record, or that
            does not end.
    """
    with open_bytes(path) as stream:
        compression = detect_compression(path, stream.read(8))
    while True:
        head, is_whole = read_head(path, compression, num_bytes)
        head, num_skipped, told = _skip_lines(head, data.skip_lines)
        if not head.strip(b"\r\n") and (is_whole or not data.skip_lines):
            raise DataError("is empty", place=str(path), remedy="Leave it out, or write it again")
        check_text(head, path)
        if data.columns is None and _JSON.match(head):
            raise DataError(
                "holds JSON, which is no format of rows here",
                place=str(path),
                remedy="Convert it, for example with pyarrow, which keeps texts and integers as "
                "they are: pyarrow.parquet.write_table(pyarrow.json.read_json(FILE), "
                "'rows.parquet')",
            )
        start = len(head) - len(head.lstrip(b"\r\n"))
        num_lines_before = num_skipped + count_lines(head[:start])
        head = head[start:]
        chosen = told or choose_delimiter(path, head, data, earlier=delimiter, are_new=are_new)
        dialect = Dialect(chosen, data.quote, data.escape)
        end = find_first_end(head, dialect)
        if is_whole and end is None:
            end = len(head)
        # A header alone tells nothing of the values: at least one whole row is wanted after it.
        if end is not None and (is_whole or find_last_end(head[end:], dialect)):
            break
        if num_bytes >= LONGEST_FIRST_RECORD_BYTES:
            plain = "; set data.quote: null if quotes are plain characters" if data.quote else ""
            raise DataError(
                f"the first rows do not end within {num_bytes >> 20} MiB",
                place=f"{path}, row 1",
                remedy=f"Check that this is delimited text with one row per line{plain}",
            )
        num_bytes *= 4
    try:
        first = head[:end].decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            "the first row is not UTF-8",
            place=f"{path}, row 1",
            remedy="Convert the file to UTF-8",
        ) from error
    found = TextHead(
        path, compression, dialect, first, head, end, is_whole, num_skipped, num_lines_before
    )
    if dialect.delimiter not in first:
        _explain_titles(found, data.columns)
    check_delimiter(path, first, dialect.delimiter)
    _explain_escapes(found)
    _explain_apostrophes(found)
    return found


def _explain_apostrophes(head: TextHead) -> None:
    """Raises ReadingKeyError if each value of the first row stands between apostrophes."""
    fields = [field.strip() for field in head.first_record.split(head.dialect.delimiter)]
    if head.dialect.quote == '"' and all(
        len(field) > 1 and field[0] == field[-1] == "'" for field in fields
    ):
        raise ReadingKeyError(
            "its values stand between apostrophes",
            place=f"{head.path}, row 1",
            key="quote",
            value="'",
        )


def _explain_escapes(head: TextHead) -> None:
    """Raises ReadingKeyError if the rows are whole only where a backslash escapes quotes."""
    dialect = head.dialect
    if dialect.quote is None or dialect.escape or f"\\{dialect.quote}".encode() not in head.data:
        return
    escaped = replace(head, dialect=replace(dialect, escape="\\"))
    width = len(split_record(head.first_record, escaped.dialect))
    rows, others = head.next_records(), escaped.next_records()
    odd = [line for line, row in rows if len(row) != width]
    is_whole = all(len(row) == width for _, row in others)
    found = find_escaped_quotes(head.data, dialect)
    if is_whole and (odd or len(found)):
        line = (
            head.num_lines_before + count_lines(head.data[: found[0]]) + 1 if len(found) else odd[0]
        )
        raise ReadingKeyError(
            "a backslash stands before a quote within a value",
            place=f"{head.path}, row {line}",
            key="escape",
            value="\\",
            otherwise=", or data.quote: null if quotes are plain characters",
        )


def _skip_lines(head: bytes, number: int) -> tuple[bytes, int, str | None]:
    """What follows some lines, how many they are, and the delimiter if one of them tells it.

    Excel writes `sep=;` into the first line, and reads it.
    """
    start = end_of_lines(head, number)
    head = b"" if start is None else head[start:]
    told = _TOLD_DELIMITER.match(head)
    if told is None:
        return head, number, None
    return head[told.end() :], number + 1, told[1].decode("ascii")


def _explain_titles(head: TextHead, columns: Sequence[str] | None) -> None:
    """Raises ReadingKeyError if names and rows of another width stand after some first lines."""
    whole = LINE.findall(head.data[:_LINES_LOOKED_AT])
    lines = [line.decode("utf-8", "replace").rstrip("\r\n") for line in whole]
    for delimiter in dict.fromkeys((head.dialect.delimiter, *_DELIMITERS)):
        dialect = replace(head.dialect, delimiter=delimiter)
        rows = [split_record(line, dialect) if line else [] for line in lines]
        width, times = Counter(len(row) for row in rows).most_common(1)[0] if rows else (0, 0)
        # A spreadsheet pads what stands before the names to their width.
        are_full = [len(row) == width and 2 * sum(map(bool, row)) > width for row in rows]
        first = are_full.index(True) if True in are_full else 0
        times -= sum(len(row) == width for row in rows[:first])
        if width < 2 or not first or times < max(2, 0.9 * (len(rows) - first)):
            continue
        names = rows[first]
        are_names = not any(_NUMBER.fullmatch(name) for name in names)
        if (are_names and len({*names}) == width) or (columns and len(columns) == width):
            separator = _DELIMITER_NAMES.get(delimiter, repr(delimiter))
            num_lines = head.num_lines_before + first
            raise ReadingKeyError(
                f"has {width} columns, separated by {separator}, from row {num_lines + 1} on; what "
                "stands before is no row",
                place=str(head.path),
                key="skip_lines",
                value=num_lines,
            )


def check_text(head: bytes, path: DataFile) -> None:
    """Raises DataError if this is not text."""
    sample = head[: 64 << 10]
    if b"\x00" in sample or len(_CONTROL.findall(sample)) * 20 > len(sample):
        raise DataError(
            "is not text: it holds binary content",
            place=str(path),
            remedy="Give CSV or TSV in UTF-8 (plain, gzip or zstd), Parquet, or RecordIO",
        )


def check_dialect(data: DataConfig) -> None:
    """Raises DataError unless delimiter, quote and escape are ASCII characters and no line ends."""
    for key in ("delimiter", "quote", "escape"):
        character = getattr(data, key)
        if character is not None and (not character.isascii() or character in "\r\n\x00"):
            raise DataError(
                f"{character!r} cannot separate, quote or escape",
                place=f"data.{key}",
                remedy="Use one ASCII character that is no line end",
            )


def choose_delimiter(
    path: DataFile, head: bytes, data: DataConfig, *, earlier: str | None, are_new: bool
) -> str:
    """The delimiter: by the config, else by earlier files, format, ending and first lines.

    The config's is that of new files as well if their first line has it. A delimiter that cuts each
    of the first lines into as many fields comes before one that does not.
    """
    whole = re.split(rb"\r\n|[\r\n]", head[:_LINES_LOOKED_AT])
    lines = [line.decode("utf-8", "replace") for line in whole[: max(1, len(whole) - 1)]]

    def widths(delimiter: str) -> list[int]:
        dialect = Dialect(delimiter, data.quote, data.escape)
        return [len(split_record(line, dialect)) for line in lines if line] or [1]

    told = data.delimiter or ("\t" if data.format == "tsv" else None)
    if told is not None and not (are_new and widths(told)[0] == 1):
        return told
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    preferred = "\t" if name.endswith((".tsv", ".tab")) else ","
    has_preference = name.endswith((".tsv", ".tab", ".csv")) or data.format == "csv"
    found = {one: counts for one in _DELIMITERS if (counts := widths(one))[0] > 1}

    def rank(delimiter: str) -> tuple[int, ...]:
        counts = found[delimiter]
        # Rows may have a number in front that the header does not name, or a delimiter at the end.
        is_even = len({*counts[1:]}) < 2 and counts[-1] - counts[0] in {0, 1}
        is_preferred = has_preference and delimiter == preferred
        return is_even, delimiter == earlier, is_even * counts[0], is_preferred, counts[0]

    return max(found, key=rank, default=earlier or preferred)


def check_delimiter(path: DataFile, record: str, delimiter: str) -> None:
    """Raises DataError unless the first row has the delimiter."""
    if delimiter in record:
        return
    found = {other: record.count(other) for other in _DELIMITERS if other in record}
    counts = ", ".join(f"{count} {_DELIMITER_NAMES[other]}" for other, count in found.items())
    raise DataError(
        f"the first row has no {_DELIMITER_NAMES.get(delimiter, repr(delimiter))} to separate "
        f"columns{f', but {counts}' if counts else ''}",
        place=f"{path}, row 1",
        remedy="Set data.delimiter to the character that separates columns",
    )


def find_names(head: TextHead, data: DataConfig, *, are_new: bool) -> tuple[tuple[str, ...], bool]:
    """The columns of a file, and whether its first row names them.

    A first row of names in `data.columns` is a header all the same, and tells which column is
    where: files of one kind may come with and without one.

    Raises:
        DataError: `data.columns` does not fit the first row.
    """
    fields = tuple(field.strip() for field in split_record(head.first_record, head.dialect))
    rows = head.next_records()
    if data.columns is None:
        return _complete(fields, rows, head), True
    without_label = tuple(name for name in data.columns if name != data.label)
    own = set(fields)
    if len(own) == len(fields) and (own <= {*data.columns} or own >= {*without_label}):
        if rows and all(len(row) == len(data.columns) for _, row in rows):
            # The header may lack the name of a column that data.columns tells.
            return fields if len(fields) == len(data.columns) else data.columns, True
        return _complete(fields, rows, head, data.columns), True
    if len(fields) == len(data.columns):
        return data.columns, False
    if are_new and len(fields) == len(without_label):
        return without_label, False
    if len(fields) == len(data.columns) + 1 and not any(
        row[-1] for _, row in [(1, fields), *rows] if len(row) == len(fields)
    ):
        return (*data.columns, _name_of_nameless(len(data.columns))), False
    raise DataError(
        f"the first row has {len(fields)} columns, but data.columns names {len(data.columns)}",
        place=f"{head.path}, row 1",
        remedy="List all columns of the file in data.columns, and check data.delimiter",
    )


def _complete(
    fields: tuple[str, ...],
    rows: Sequence[tuple[int, Sequence[str]]],
    head: TextHead,
    columns: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The names of a header, and one for a column before or after them that has none.

    Such are the numbers of rows that pandas and R write first, and what a delimiter at the end of
    each line begins.

    Raises:
        DataError: No row has as many columns as the header.
    """
    width = len(fields)
    if rows and all(len(row) == width + 1 for _, row in rows):
        if not any(row[-1] for _, row in rows):
            fields = (*fields, "")
        elif _counts_up([row[0] for _, row in rows]):
            fields = ("", *fields)
    if rows and not any(len(row) == len(fields) for _, row in rows):
        _explain_titles(head, columns)
        line, row = rows[0]
        raise DataError(
            f"the row has {len(row)} columns, and the header names {len(fields)}",
            place=f"{head.path}, row {line}",
            remedy="Quote values that hold the delimiter, or name all columns in data.columns",
        )
    if sum(map(bool, fields)) < 2:
        _explain_titles(head, columns)
    num_named = max((place for place, name in enumerate(fields, 1) if name), default=0)
    nameless = set[int]()
    if sum(map(bool, fields)) >= max(2, len(fields) - 2):
        nameless = {0, len(fields) - 1}
    if not any(any(row[num_named:]) for _, row in rows):
        nameless.update(range(num_named, len(fields)))
    return tuple(
        _name_of_nameless(place) if not name and place in nameless else name
        for place, name in enumerate(fields)
    )


def _name_of_nameless(place: int) -> str:
    """As pandas calls it, whose frames may be scored; the place counts from 0."""
    return f"Unnamed: {place}"


def _counts_up(texts: Sequence[str]) -> bool:
    """Whether they are some whole numbers, each one more than the one before."""
    if len(texts) < _FEWEST_COUNTED or not all(text.isdecimal() for text in texts):
        return False
    numbers = [int(text) for text in texts]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
