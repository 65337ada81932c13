"""The first bytes of a text file: is it text at all, how are its fields separated and named."""

import re
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.compression import Compression, detect_compression
from ctr_pipeline.dataset.records import Dialect, find_first_end, find_last_end, split_record
from ctr_pipeline.dataset.text import read_head
from ctr_pipeline.errors import DataError

_LONGEST_FIRST_RECORD_BYTES = 16 << 20
_CONTROL = re.compile(rb"[\x00\x04-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_DELIMITERS = ("\t", ",", ";", "|")
_DELIMITER_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}


@dataclass(frozen=True)
class TextHead:
    """The start of a text file.

    Attributes:
        path: The file.
        compression: Of the file.
        first_record: Its first record, without line end.
        data: Its bytes from there on, up to where the look ended.
        first_end: Position in them after the first record.
        is_whole: Whether they are the rest of the file.
    """

    path: Path
    compression: Compression
    first_record: str
    data: bytes
    first_end: int
    is_whole: bool

    def records(self, dialect: Dialect, *, has_header: bool) -> bytes:
        """The whole records in it, the header left out."""
        body = self.data[self.first_end :]
        rows = body if self.is_whole else body[: find_last_end(body, dialect)]
        return rows if has_header else self.data[: self.first_end] + rows


def look_at(path: Path, data: DataConfig, num_bytes: int) -> TextHead:
    """Reads the head of a text file.

    Raises:
        DataError: The file is empty, damaged, binary, or its first record does not end.
    """
    with path.open("rb") as stream:
        compression = detect_compression(path, stream.read(8))
    while True:
        head, is_whole = read_head(path, compression, num_bytes)
        if not head.strip(b"\r\n"):
            raise DataError("is empty", place=str(path), remedy="Leave it out, or write it again")
        _check_text(head, path)
        start = len(head) - len(head.lstrip(b"\r\n"))
        head = head[start:]
        end = _end_of_first(head, data)
        if end is None and is_whole:
            end = len(head)
        if end is not None:
            break
        if num_bytes >= _LONGEST_FIRST_RECORD_BYTES:
            raise DataError(
                f"the first row does not end within {num_bytes >> 20} MiB",
                place=f"{path}, row 1",
                remedy="Check that this is delimited text with one row per line; set data.quote: "
                "null if quotes are plain characters",
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
    return TextHead(path, compression, first, head, end, is_whole)


def _end_of_first(head: bytes, data: DataConfig) -> int | None:
    """Where the first record ends.

    Quotes open only beside the delimiter, so without the right one a quoted line end would look
    like the record's own: of the usual delimiters, the one that sees the longest record is right.
    """
    candidates = _DELIMITERS if data.delimiter is None else (data.delimiter,)
    ends = [find_first_end(head, Dialect(delimiter, data.quote)) for delimiter in candidates]
    known = [end for end in ends if end is not None]
    return max(known) if known else None


def _check_text(head: bytes, path: Path) -> None:
    """Raises DataError if this is not text."""
    sample = head[: 64 << 10]
    if b"\x00" in sample or len(_CONTROL.findall(sample)) * 20 > len(sample):
        raise DataError(
            "is not text: it holds binary content",
            place=str(path),
            remedy="Give CSV or TSV in UTF-8 (plain, gzip or zstd) or Parquet",
        )


def check_dialect(data: DataConfig) -> None:
    """Raises DataError unless delimiter and quote are ASCII characters and no line ends."""
    for key, character in (("data.delimiter", data.delimiter), ("data.quote", data.quote)):
        if character is not None and (not character.isascii() or character in "\r\n\x00"):
            raise DataError(
                f"{character!r} cannot separate or quote fields",
                place=key,
                remedy="Use one ASCII character that is no line end",
            )


def find_delimiter(head: TextHead, data: DataConfig) -> str:
    """The field separator: from the config, else by format, ending and first record.

    Raises:
        DataError: There is none in the first record.
    """
    record = head.first_record
    if data.delimiter is not None:
        delimiter = data.delimiter
    elif data.format == "tsv":
        delimiter = "\t"
    else:
        delimiter = _guess_delimiter(head, data)
    if delimiter not in record:
        found = {other: record.count(other) for other in _DELIMITERS if other in record}
        counts = ", ".join(f"{count} {_DELIMITER_NAMES[other]}" for other, count in found.items())
        raise DataError(
            f"the first row has no {_DELIMITER_NAMES.get(delimiter, repr(delimiter))} to separate "
            f"columns{f', but {counts}' if counts else ''}",
            place=f"{head.path}, row 1",
            remedy="Set data.delimiter to the character that separates columns",
        )
    return delimiter


def _guess_delimiter(head: TextHead, data: DataConfig) -> str:
    name = head.path.name.lower().removesuffix(".gz").removesuffix(".zst")
    preferred = "\t" if name.endswith((".tsv", ".tab")) else ","
    has_preference = name.endswith((".tsv", ".tab", ".csv")) or data.format == "csv"

    def num_fields(delimiter: str) -> int:
        return len(split_record(head.first_record, Dialect(delimiter, data.quote)))

    if has_preference and num_fields(preferred) > 1:
        return preferred
    best = max(_DELIMITERS, key=num_fields)
    return best if num_fields(best) > 1 else preferred


def find_names(
    head: TextHead, dialect: Dialect, data: DataConfig, *, may_lack_label: bool
) -> tuple[str, ...]:
    """The columns of a file, from its header or from `data.columns`.

    Raises:
        DataError: `data.columns` does not fit the first row, or repeats it.
    """
    fields = tuple(field.strip() for field in split_record(head.first_record, dialect))
    if data.columns is None:
        return fields
    if len(fields) == len(data.columns):
        if fields == data.columns:
            raise DataError(
                "the first row holds the names in data.columns: the file has a header",
                place=f"{head.path}, row 1",
                remedy="Remove data.columns",
            )
        return data.columns
    without_label = tuple(name for name in data.columns if name != data.label)
    if may_lack_label and len(fields) == len(without_label):
        return without_label
    raise DataError(
        f"the first row has {len(fields)} columns, but data.columns names {len(data.columns)}",
        place=f"{head.path}, row 1",
        remedy="List all columns of the file in data.columns, and check data.delimiter",
    )
