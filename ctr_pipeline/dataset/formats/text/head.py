"""The first bytes of a text file: is it text at all, how are its fields separated and named."""

import re
from dataclasses import dataclass

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.data_files import DataFile, open_bytes
from ctr_pipeline.dataset.formats.text.blocks import read_head
from ctr_pipeline.dataset.formats.text.compression import Compression, detect_compression
from ctr_pipeline.dataset.formats.text.records import (
    Dialect,
    count_lines,
    find_first_end,
    find_last_end,
    split_record,
)
from ctr_pipeline.errors import DataError

LONGEST_FIRST_RECORD_BYTES = 16 << 20
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
        num_lines_before: Empty lines before the first record.
    """

    path: DataFile
    compression: Compression
    dialect: Dialect
    first_record: str
    data: bytes
    first_end: int
    is_whole: bool
    num_lines_before: int = 0

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
        delimiter: The delimiter of earlier files; None: it is detected.
        are_new: As of `SourceFormat.inspect`.

    Raises:
        DataError: The file is empty, damaged, binary, has no delimiter in its first record, or that
            does not end.
    """
    with open_bytes(path) as stream:
        compression = detect_compression(path, stream.read(8))
    while True:
        head, is_whole = read_head(path, compression, num_bytes)
        if not head.strip(b"\r\n"):
            raise DataError("is empty", place=str(path), remedy="Leave it out, or write it again")
        check_text(head, path)
        if data.columns is None and _JSON.match(head):
            raise DataError(
                "holds JSON, which is no format of rows here",
                place=str(path),
                remedy="Convert it, for example with pandas: "
                "pd.read_json(FILE, lines=True).to_parquet('rows.parquet')",
            )
        start = len(head) - len(head.lstrip(b"\r\n"))
        num_lines_before = count_lines(head[:start])
        head = head[start:]
        dialect = Dialect(
            delimiter or choose_delimiter(path, head, data, are_new=are_new), data.quote
        )
        end = find_first_end(head, dialect)
        if is_whole and end is None:
            end = len(head)
        # A header alone tells nothing of the values: at least one whole row is wanted after it.
        if end is not None and (is_whole or find_last_end(head[end:], dialect)):
            break
        if num_bytes >= LONGEST_FIRST_RECORD_BYTES:
            raise DataError(
                f"the first rows do not end within {num_bytes >> 20} MiB",
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
    check_delimiter(path, first, dialect.delimiter)
    return TextHead(path, compression, dialect, first, head, end, is_whole, num_lines_before)


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
    """Raises DataError unless delimiter and quote are ASCII characters and no line ends."""
    for key, character in (("data.delimiter", data.delimiter), ("data.quote", data.quote)):
        if character is not None and (not character.isascii() or character in "\r\n\x00"):
            raise DataError(
                f"{character!r} cannot separate or quote fields",
                place=key,
                remedy="Use one ASCII character that is no line end",
            )


def choose_delimiter(path: DataFile, head: bytes, data: DataConfig, *, are_new: bool) -> str:
    """From the config, else by format, ending and first line.

    The config's is that of new files as well if their first line has it.
    """
    first_line = re.split(rb"[\r\n]", head, maxsplit=1)[0].decode("utf-8", "replace")

    def num_fields(delimiter: str) -> int:
        return len(split_record(first_line, Dialect(delimiter, data.quote)))

    told = data.delimiter or ("\t" if data.format == "tsv" else None)
    if told is not None and not (are_new and num_fields(told) == 1):
        return told
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    preferred = "\t" if name.endswith((".tsv", ".tab")) else ","
    has_preference = name.endswith((".tsv", ".tab", ".csv")) or data.format == "csv"
    if has_preference and num_fields(preferred) > 1:
        return preferred
    best = max(_DELIMITERS, key=num_fields)
    return best if num_fields(best) > 1 else preferred


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
    if data.columns is None:
        return fields, True
    without_label = tuple(name for name in data.columns if name != data.label)
    own = set(fields)
    if len(own) == len(fields) and (own <= {*data.columns} or own >= {*without_label}):
        return fields, True
    if len(fields) == len(data.columns):
        return data.columns, False
    if are_new and len(fields) == len(without_label):
        return without_label, False
    raise DataError(
        f"the first row has {len(fields)} columns, but data.columns names {len(data.columns)}",
        place=f"{head.path}, row 1",
        remedy="List all columns of the file in data.columns, and check data.delimiter",
    )
