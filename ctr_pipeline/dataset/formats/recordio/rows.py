"""RecordIO files as blocks of rows, a record a row: delimited lines or `tf.train.Example`.

Rows are numbered by record, from 1, a record with names included. A line must be one row of its
own: an empty record, one with several rows and one that opens a quote and does not close it are bad
rows, so that no record is lost and none joins the next.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.arrow_columns import (
    as_utf8,
    check_type,
    convert_column,
    convert_floats,
)
from ctr_pipeline.dataset.bad_rows import BadRowReason, BlockFaults
from ctr_pipeline.dataset.columns import ParsedBlock, ReadingPlan, convert_texts
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.recordio.chunks import Positions, RecordIOReader, Records
from ctr_pipeline.dataset.formats.recordio.examples import (
    ExampleColumns,
    ExampleKind,
    read_examples,
)
from ctr_pipeline.dataset.formats.text.blocks import TextFile
from ctr_pipeline.dataset.formats.text.parsing import TextBlock
from ctr_pipeline.dataset.formats.text.records import Dialect, find_open_quote, find_records
from ctr_pipeline.dataset.source import WHOLE, Block, OneFile, Range
from ctr_pipeline.errors import DataError
from ctr_pipeline.kernels.compilation import kernel

_LF, _CR = 10, 13
_NO_QUOTE = -1
_SHOWN_BYTES = 240


@dataclass(frozen=True)
class LineFile(TextFile):
    """One file of delimited lines, each in a record."""

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`, in bytes, cut between chunks."""
        return _ranges_of(self.path, unit_bytes)

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        return read_line_blocks(self, block_bytes, part)


@dataclass(frozen=True)
class ExampleFile(OneFile):
    """One file of Examples, as inspection found it.

    Attributes:
        path: The file.
        schema: Schema of the features in its first records; later ones may have more.
    """

    path: DataFile
    schema: pa.Schema

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the features in its first records."""
        return tuple(self.schema.names)

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`, in bytes, cut between chunks."""
        return _ranges_of(self.path, unit_bytes)

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        return read_example_blocks(self, plan, block_bytes, part)


def _ranges_of(path: DataFile, unit_bytes: int | None) -> list[Range]:
    if unit_bytes is None:
        return [WHOLE]
    with RecordIOReader(path) as reader:
        return reader.ranges(unit_bytes)


@dataclass(frozen=True)
class LineBlock:
    """Some consecutive lines of one file.

    Attributes:
        file: Where they are from.
        records: The lines.
        position_bytes: Bytes of the file read so far.
        num_skipped: Records before them that belong to no block: the one with the names.
    """

    file: LineFile
    records: Records
    position_bytes: int
    num_skipped: int

    @property
    def path(self) -> DataFile:
        """The file."""
        return self.file.path

    def parse(self, plan: ReadingPlan) -> ParsedBlock:
        """The block's rows."""
        lines = join_lines(self.records, self.file.dialect)
        faults = BlockFaults(len(self.records), plan.sensitive)
        wrong = np.setdiff1d(np.arange(len(self.records)), lines.kept)

        def show(index: int) -> str:
            record = self.records[int(wrong[index])][:_SHOWN_BYTES]
            return bytes(record).decode("utf-8", "backslashreplace")

        faults.reject(wrong, BadRowReason.NOT_ONE_LINE, None, show)
        table, counts = plan.schema.empty_table(), Counter(faults.counts)
        found = faults.first()
        places = [(fault, fault.record) for fault in found]
        if lines.data:
            parsed = TextBlock(self.file, lines.data, self.position_bytes, 0).parse(plan)
            table = parsed.table
            counts.update(parsed.counts)
            places += [(fault, int(lines.kept[fault.record])) for fault, _ in parsed.faults]
        places.sort(key=lambda place: place[1])
        return ParsedBlock(
            table,
            len(self.records) + self.num_skipped,
            dict(counts),
            [(fault, record + self.num_skipped + 1) for fault, record in places],
        )


@dataclass(frozen=True)
class ExampleBlock:
    """Some consecutive Examples of one file.

    Attributes:
        path: The file.
        records: The Examples.
        position_bytes: Bytes of the file read so far.
    """

    path: DataFile
    records: Records
    position_bytes: int

    def parse(self, plan: ReadingPlan) -> ParsedBlock:
        """The block's rows."""
        columns = read_examples(self.records, plan.names)
        faults = BlockFaults(len(self.records), plan.sensitive)
        wrong = np.flatnonzero(~columns.is_good_N)

        def show(index: int) -> str:
            record = self.records[int(wrong[index])][:_SHOWN_BYTES]
            return bytes(record).decode("utf-8", "backslashreplace")

        faults.reject(wrong, BadRowReason.NOT_AN_EXAMPLE, None, show)
        table = pa.table(
            [
                _convert_feature(columns, feature, plan, faults)
                for feature in range(len(plan.names))
            ],
            schema=plan.schema,
        )
        if faults.counts.total():
            table = table.filter(pa.array(faults.good))
        return ParsedBlock(
            table,
            len(self.records),
            dict(faults.counts),
            [(fault, fault.record + 1) for fault in faults.first()],
        )


def read_line_blocks(file: LineFile, block_bytes: int, part: Range = WHOLE) -> Iterator[LineBlock]:
    """A file's lines after its names, in blocks of about `block_bytes`.

    Raises:
        DataError: The file is damaged.
    """
    skipped = 1 if file.has_header and part.first == 0 else 0
    for records, position in read_record_blocks(file.path, block_bytes, part):
        yield LineBlock(file, records.between(skipped, len(records)), position, skipped)
        skipped = 0


def read_example_blocks(
    file: ExampleFile, plan: ReadingPlan, block_bytes: int, part: Range = WHOLE
) -> Iterator[ExampleBlock]:
    """A file's Examples, in blocks of about `block_bytes`.

    Raises:
        DataError: The file is damaged, or a feature's type does not fit its use.
    """
    for name in plan.names:
        if name not in file.schema.names:
            continue
        kind = file.schema.field(name).type
        if pa.types.is_list(kind):
            raise DataError(
                "holds several values in one record, and one is read",
                place=f"{file.path}, column '{name}'",
                remedy="Leave the column out of features, or write one value a record",
            )
        check_type(file.path, kind, name, plan)
    for records, position in read_record_blocks(file.path, block_bytes, part):
        yield ExampleBlock(file.path, records, position)


def read_record_blocks(
    path: DataFile, block_bytes: int, part: Range = WHOLE
) -> Iterator[tuple[Records, int]]:
    """A file's records in blocks of about `block_bytes`, each with the position reached.

    Small chunks are put together, large ones are cut.

    Raises:
        DataError: The file is damaged.
    """
    pending, num_pending, before = list[Records](), 0, part.first
    with RecordIOReader(path) as reader:
        for records, after in reader.chunks(part):
            if not len(records):
                continue
            size = len(records.data)
            if pending and num_pending + size > block_bytes:
                yield _joined(pending), before
                pending, num_pending = [], 0
            if size > block_bytes:
                for start, stop in _cuts(records.ends, block_bytes):
                    share = int(records.ends[stop - 1]) / size
                    yield records.between(start, stop), before + int((after - before) * share)
            else:
                pending.append(records)
                num_pending += size
            before = after
    if pending:
        yield _joined(pending), before


def read_first_records(path: DataFile, num_records: int, num_bytes: int) -> Records:
    """About the first `num_bytes` of a file's records, at most `num_records` of them.

    Raises:
        DataError: The file is damaged, or has no records.
    """
    for records, _ in read_record_blocks(path, num_bytes):
        return records.between(0, num_records)
    raise DataError("has no records", place=str(path), remedy="Leave it out, or write it again")


def _joined(parts: list[Records]) -> Records:
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    return Records(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=True)]),
        np.concatenate([part.ends + shift for part, shift in zip(parts, shifts, strict=True)]),
    )


def _cuts(ends: Positions, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of records of about `block_bytes` each."""
    start = 0
    limit = block_bytes
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, limit)), start + 1)
        yield start, min(stop, len(ends))
        start, limit = stop, max(limit, int(ends[min(stop, len(ends)) - 1])) + block_bytes


@dataclass(frozen=True)
class Lines:
    """Records as text.

    Attributes:
        data: Each kept record and a line feed.
        kept: The records that are one row, ascending.
    """

    data: bytes
    kept: Positions


class _Text(NamedTuple):
    """Lines to write: that of record n ends at data[line_ends[n]]."""

    data: np.ndarray
    line_ends: np.ndarray


def join_lines(records: Records, dialect: Dialect) -> Lines:
    """The records that are one row each as delimited text; a line end at their end is left out."""
    text, ends = _join(records, dialect)
    every = np.arange(len(records), dtype=np.int64)
    if ends is None:
        return Lines(text, every)
    found = find_records(text, dialect)
    starts = np.append(np.zeros(1, np.int64), ends + 1)[:-1]
    if np.array_equal(found.ends, ends) and np.array_equal(found.starts, starts):
        return Lines(text, every)
    good = [
        _is_one_row(text[start:end], dialect)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    kept = np.flatnonzero(good)
    parts = Records(records.data, records.starts[kept], records.ends[kept])
    return Lines(_join(parts, dialect)[0], kept)


def _join(records: Records, dialect: Dialect) -> tuple[bytes, Positions | None]:
    """The text, and where its lines end [N]; None if each surely is one row."""
    quote = ord(dialect.quote) if dialect.quote is not None else _NO_QUOTE
    text = np.empty(records.num_bytes + len(records), np.uint8)
    ends = np.empty(len(records), np.int64)
    is_plain = _join_lines(records.data, records.starts, records.ends, quote, _Text(text, ends))
    size = int(ends[-1]) + 1 if len(records) else 0
    return text[:size].tobytes(), None if is_plain and dialect.escape is None else ends


def _is_one_row(line: bytes, dialect: Dialect) -> bool:
    found = find_records(line, dialect)
    is_one = len(found.starts) == 1 and found.starts[0] == 0 and found.ends[0] == len(line)
    return is_one and find_open_quote(line, dialect) is None


@kernel
def _join_lines(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, quote: int, text: _Text
) -> bool:
    """Whether no record is empty or has a quote or a line end within."""
    is_plain = True
    position = 0
    for record in range(len(starts)):
        start, end = starts[record], ends[record]
        if end > start and data[end - 1] == _LF:
            end -= 1
        if end > start and data[end - 1] == _CR:
            end -= 1
        is_plain &= end > start
        for source in range(start, end):
            byte = data[source]
            is_plain &= (byte != _LF) & (byte != _CR) & (byte != quote)
            text.data[position] = byte
            position += 1
        text.line_ends[record] = position
        text.data[position] = _LF
        position += 1
    return is_plain


def _convert_feature(
    columns: ExampleColumns, feature: int, plan: ReadingPlan, faults: BlockFaults
) -> pa.Array:
    """One feature as the plan wants it; records that do not fit are rejected."""
    name = columns.names[feature]
    counts = columns.counts_TN[feature]
    several = np.flatnonzero(counts > 1)

    def show(index: int) -> str:
        return f"{counts[several[index]]} values"

    faults.reject(several, BadRowReason.SEVERAL_VALUES, name, show)
    return _convert_kinds(columns, feature, columns.kinds_of(feature), plan, faults)


def _convert_kinds(
    columns: ExampleColumns,
    feature: int,
    kinds: set[ExampleKind],
    plan: ReadingPlan,
    faults: BlockFaults,
) -> pa.Array:
    name = columns.names[feature]
    every = np.arange(faults.num_records, dtype=np.int64)
    if kinds == {ExampleKind.INT64}:
        return convert_column(columns.int64_of(feature), name, plan, faults, every)
    if kinds == {ExampleKind.FLOAT}:
        # Carried as a text, a float32 has fewer digits than the float64 of the same value.
        return convert_column(columns.float_of(feature), name, plan, faults, every)
    if kinds == {ExampleKind.BYTES}:
        return convert_column(columns.bytes_of(feature), name, plan, faults, every)
    # Of several kinds, or none: the text of each value means the same.
    texts: list[Any] = [pa.nulls(len(every), pa.string())]
    if ExampleKind.BYTES in kinds:
        texts.append(as_utf8(columns.bytes_of(feature), name, faults, every))
    if ExampleKind.INT64 in kinds:
        texts.append(pc.cast(columns.int64_of(feature), pa.string()))
    if ExampleKind.FLOAT in kinds:
        texts.append(convert_floats(columns.float_of(feature), name, plan, faults, every))
    return convert_texts(pc.coalesce(*texts), name, plan, faults, every)
