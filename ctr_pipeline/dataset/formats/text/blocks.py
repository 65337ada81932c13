"""Text files as blocks of whole records."""

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass

from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.data_files import DataFile, open_bytes
from ctr_pipeline.dataset.formats.text.compression import Compression, PlainStream, open_plain
from ctr_pipeline.dataset.formats.text.parsing import DelimitedText, TextBlock
from ctr_pipeline.dataset.formats.text.records import (
    Dialect,
    count_lines,
    end_of_lines,
    find_first_end,
    find_last_end,
    find_open_quote,
)
from ctr_pipeline.dataset.limits import LONGEST_VALUE_BYTES
from ctr_pipeline.dataset.source import WHOLE, Block, OneFile, Range, ranges_between
from ctr_pipeline.errors import DataError

_BOM = codecs.BOM_UTF8


@dataclass(frozen=True)
class TextFile(DelimitedText, OneFile):
    """One text file."""

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`, in bytes.

        Files are cut at line ends, where each line end ends a row: in plain files without quotes.
        """
        size = self.size_bytes()
        is_cut = self.compression is Compression.NONE and self.dialect.ends_rows_at_line_ends
        if unit_bytes is None or not is_cut or size <= unit_bytes:
            return [WHOLE]
        cuts = [0]
        with open_bytes(self.path) as stream:
            at_least = _end_of_first_row(stream, self.num_skipped)
            while (wanted := max(cuts[-1] + unit_bytes, at_least)) < size:
                stream.seek(wanted - 1)
                if not stream.readline(LONGEST_VALUE_BYTES).endswith(b"\n"):
                    break
                if stream.tell() < size:
                    cuts.append(stream.tell())
                else:
                    break
        return ranges_between(cuts)

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        return read_text_blocks(self, block_bytes, part)


def _end_of_first_row(stream: io.BufferedReader, num_skipped: int) -> int:
    """Where the first line ends that is not blank, after those that are skipped."""
    for _ in range(num_skipped):
        stream.readline(LONGEST_VALUE_BYTES)
    while (line := stream.readline(LONGEST_VALUE_BYTES)) and not line.strip(_BOM + b"\r\n"):
        pass
    return stream.tell()


def read_head(path: DataFile, compression: Compression, num_bytes: int) -> tuple[bytes, bool]:
    """The first bytes of the plain text without byte order mark, and whether they are all of it.

    Raises:
        DataError: The file cannot be read.
    """
    with open_plain(path, compression) as stream:
        head = _read_fully(stream, num_bytes + 1)
    return head[:num_bytes].removeprefix(_BOM), len(head) <= num_bytes


def read_text_blocks(
    file: DelimitedText, block_bytes: int, part: Range = WHOLE
) -> Iterator[TextBlock]:
    """A file's records after the header, in blocks of about `block_bytes`.

    Raises:
        DataError: The file is damaged, or a record does not end.
    """
    num_lines = 0
    skipped = 0
    is_first = part.first == 0
    header_pending = (file.has_header or file.num_skipped > 0) and is_first
    with open_plain(file.path, file.compression, part) as stream:
        carry = b""
        while chunk := _read_fully(stream, block_bytes):
            if is_first:
                chunk, is_first = chunk.removeprefix(_BOM), False
            if header_pending:
                chunk, lines = _skip_header(carry + chunk, file)
                carry = b""
                header_pending = lines == 0
                skipped += lines
                if header_pending:
                    carry = chunk
                    _check_record_length(file, carry, num_lines + skipped)
                    continue
            block, carry = _cut(carry, chunk, file.dialect)
            if block:
                yield TextBlock(file, block, stream.position_bytes(), skipped)
                num_lines += count_lines(block) + skipped
                skipped = 0
            _check_record_length(file, carry, num_lines + skipped)
        if carry and not header_pending:
            position = find_open_quote(carry, file.dialect)
            if position is not None:
                lines = num_lines + skipped + count_lines(carry[:position])
                raise _unclosed(file, lines + 1)
            yield TextBlock(file, carry, stream.position_bytes(), skipped)


def _read_fully(stream: PlainStream, num_bytes: int) -> bytes:
    """As many bytes as asked for unless the file ends: a decompressor may give fewer at once."""
    block = stream.read(num_bytes)
    if not block or len(block) == num_bytes:
        return block
    parts, missing = [block], num_bytes - len(block)
    while missing and (block := stream.read(missing)):
        parts.append(block)
        missing -= len(block)
    return b"".join(parts)


def _cut(carry: bytes, chunk: bytes, dialect: Dialect) -> tuple[bytes, bytes]:
    """Whole records of both together, and the rest."""
    quote = dialect.quote.encode() if dialect.quote is not None else None
    is_plain = quote is None or (quote not in carry and quote not in chunk)
    if is_plain and dialect.escape is None:
        # Without quotes the last line feed decides; this way all is copied only once.
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            return b"", carry + chunk
        return b"".join((carry, memoryview(chunk)[:cut])), chunk[cut:]
    data = carry + chunk
    cut = find_last_end(data, dialect)
    return data[:cut], data[cut:]


def _skip_header(data: bytes, file: DelimitedText) -> tuple[bytes, int]:
    """The bytes after the header and the lines before them, 0 lines if they do not end."""
    start = end_of_lines(data, file.num_skipped)
    if start is None:
        return data, 0
    if not file.has_header:
        return data[start:], file.num_skipped
    start += len(data[start:]) - len(data[start:].lstrip(b"\r\n"))
    end = find_first_end(data[start:], file.dialect)
    if end is None or (start + end == len(data) and data.endswith(b"\r")):
        # That may be half of a line end.
        return data, 0
    return data[start + end :], count_lines(data[: start + end])


def _check_record_length(file: DelimitedText, carry: bytes, num_lines: int) -> None:
    if len(carry) <= LONGEST_VALUE_BYTES:
        return
    position = find_open_quote(carry, file.dialect)
    if position is not None:
        raise _unclosed(file, num_lines + count_lines(carry[:position]) + 1)
    raise DataError(
        f"a row is longer than {LONGEST_VALUE_BYTES >> 20} MiB",
        place=f"{file.path}, row {num_lines + 1}",
        remedy="Check that this is delimited text with one row per line",
    )


def _unclosed(file: DelimitedText, line: int) -> DataError:
    return DataError(
        f"a quote ({file.dialect.quote}) is opened here and never closed",
        place=f"{file.path}, row {line}",
        remedy="Mend the row, or set data.quote: null if quotes are plain characters",
    )
