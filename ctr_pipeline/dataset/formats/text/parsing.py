"""Blocks of delimited text as tables.

A block first takes the fast path: Arrow's CSV parser straight into the wanted types. If anything in
it does not fit, that block alone takes the exact path, which reads texts, finds every bad row and
its line, and gives the good ones.
"""

import codecs
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from ctr_pipeline.dataset.bad_rows import BadRowReason, BlockFaults
from ctr_pipeline.dataset.columns import (
    ARROW_TYPES,
    ParsedBlock,
    ReadingPlan,
    convert_texts,
    is_binary_label,
    is_weight,
    known_texts,
    parse_labels,
    present_numbers,
)
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.text.compression import Compression
from ctr_pipeline.dataset.formats.text.records import (
    Dialect,
    RecordPositions,
    count_lines,
    find_escaped_quotes,
    find_records,
    split_record,
)
from ctr_pipeline.dataset.lists import find_list_faults
from ctr_pipeline.dataset.times import points_in_time
from ctr_pipeline.specs.columns import ColumnType

_STEP_BYTES = 1 << 20
"""Arrow's own steps through a block; a longer record is left to the exact path."""


@dataclass(frozen=True)
class DelimitedText:
    """One file of delimited lines, as inspection found it.

    Attributes:
        path: The file.
        compression: How the file as a whole is compressed.
        dialect: Delimiter and quote.
        column_names: Names of all its columns, in its order.
        has_header: Whether the first record holds the names.
        num_skipped: Lines before it, or before the first row, that are no rows.
    """

    path: DataFile
    compression: Compression
    dialect: Dialect
    column_names: tuple[str, ...]
    has_header: bool
    num_skipped: int = 0


@dataclass(frozen=True)
class TextBlock:
    """Whole records of one file.

    Attributes:
        file: Where they are from.
        data: Their bytes.
        position_bytes: Bytes of the (compressed) file read so far.
        num_lines_skipped: Lines before the block that belong to no block, as the header's.
    """

    file: DelimitedText
    data: bytes
    position_bytes: int
    num_lines_skipped: int

    @property
    def path(self) -> DataFile:
        """The file."""
        return self.file.path

    def parse(self, plan: ReadingPlan) -> ParsedBlock:
        """The block's rows."""
        return _parse_fast(self, plan) or _parse_exact(self, plan)


def _read_csv(
    block: bytes,
    file: DelimitedText,
    convert: pa_csv.ConvertOptions,
    invalid_row_handler: Any = None,
) -> pa.Table:
    quote = file.dialect.quote
    escape = file.dialect.escape
    is_quoted = quote is not None and quote.encode() in block
    is_escaped = escape is not None and escape.encode() in block
    is_whole = is_quoted or is_escaped or invalid_row_handler is not None
    return pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(
            use_threads=False,
            block_size=len(block) + 1 if is_whole else _STEP_BYTES,
            column_names=list(file.column_names),
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=file.dialect.delimiter,
            quote_char=quote if is_quoted else False,
            escape_char=escape if is_escaped else False,
            newlines_in_values=is_quoted or is_escaped,
            invalid_row_handler=invalid_row_handler,
        ),
        convert_options=convert,
    )


def _parse_fast(block: TextBlock, plan: ReadingPlan) -> ParsedBlock | None:
    """The block's rows if all of them are good, else None."""
    if len(find_escaped_quotes(block.data, block.file.dialect)):
        return None
    types = {name: ARROW_TYPES[kind] for name, kind in plan.types.items()}
    if plan.label is not None:
        types[plan.label] = pa.float64() if plan.label_values is None else pa.string()
    convert = pa_csv.ConvertOptions(
        column_types=types,
        include_columns=plan.names,
        null_values=list(plan.missing_values),
        strings_can_be_null=True,
        check_utf8=not block.data.isascii(),
    )
    try:
        table = _read_csv(block.data, block.file, convert)
    except pa.ArrowInvalid:
        return None
    for index, name in enumerate(plan.names):
        column = table.column(index)
        if plan.time is not None and name == plan.time.name:
            points = [points_in_time(chunk, plan.time.format) for chunk in column.chunks]
            if any(np.isnan(chunk).any() for chunk in points):
                return None
        if name == plan.label:
            if plan.label_values is not None:
                column, _ = parse_labels(column, plan.label_values, plan.missing_values)
            else:
                column = present_numbers(column, plan.missing_values)
            if not is_binary_label(column):
                return None
            table = table.set_column(index, name, column.cast(pa.int8()))
        elif plan.types[name] is ColumnType.NUMBER:
            numbers = present_numbers(column, plan.missing_values)
            if name == plan.weight and not is_weight(numbers).all():
                return None
            if numbers is not column:
                table = table.set_column(index, name, numbers)
        elif plan.holds_values(name):
            known = [known_texts(chunk, plan.missing_values) for chunk in column.chunks]
            table = table.set_column(index, name, pa.chunked_array(known, pa.string()))
        elif name in plan.lists or name == plan.pairs_column:
            whole = (
                pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
            )
            if name == plan.pairs_column:
                faults = BlockFaults(len(whole), plan.sensitive)
                pairs = convert_texts(whole, name, plan, faults, np.arange(len(whole)))
                if faults.counts.total():
                    return None
                table = table.set_column(index, name, pairs)
            elif any(len(fault.rows) for fault in find_list_faults(whole, plan.lists[name])):
                return None
    return ParsedBlock(table, count_lines(block.data) + block.num_lines_skipped, {}, ())


def _parse_exact(block: TextBlock, plan: ReadingPlan) -> ParsedBlock:
    """The block's good rows, and every bad one."""
    records = find_records(block.data, block.file.dialect)
    faults = BlockFaults(len(records.starts), plan.sensitive)
    data, mangled = _repair_utf8(block.data, records)
    wrong_counts: dict[int, Any] = {}

    def note_wrong_count(row: Any) -> str:
        wrong_counts[row.number - 1] = row
        return "skip"

    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(plan.names, pa.string()),
        include_columns=plan.names,
        null_values=[],
        strings_can_be_null=False,
    )
    table = _read_csv(data, block.file, convert, note_wrong_count).combine_chunks()
    wrong = np.array(sorted(wrong_counts), dtype=np.int64)

    def count_columns(index: int) -> str:
        row = wrong_counts[int(wrong[index])]
        return f"{row.actual_columns} instead of {row.expected_columns}"

    def show_row(index: int) -> str:
        return str(wrong_counts[int(wrong[index])].text)

    def show_record(index: int) -> str:
        record = escaped[index]
        raw = block.data[records.starts[record] : records.ends[record]]
        return raw.decode("utf-8", "backslashreplace")

    quotes = find_escaped_quotes(block.data, block.file.dialect)
    escaped = np.unique(np.searchsorted(records.starts, quotes, side="right") - 1)
    faults.reject(escaped, BadRowReason.ESCAPED_QUOTE, None, show_record)
    faults.reject(wrong, BadRowReason.WRONG_COLUMN_COUNT, None, show_row, count_columns)
    kept = np.setdiff1d(np.arange(len(records.starts)), wrong)
    if len(kept) != table.num_rows:
        raise AssertionError(
            f"{block.path}: {len(kept)} records by position, {table.num_rows} by the parser"
        )
    _reject_mangled(block, records, mangled, plan, faults)
    columns = []
    for name in plan.names:
        chunks = table.column(name).combine_chunks()
        texts = chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)
        columns.append(convert_texts(texts, name, plan, faults, kept))
    result = pa.table(columns, schema=plan.schema)
    if faults.counts.total():
        result = result.filter(pa.array(faults.good[kept]))
    skipped = block.num_lines_skipped
    return ParsedBlock(
        result,
        count_lines(block.data) + skipped,
        dict(faults.counts),
        [(fault, int(records.lines[fault.record]) + skipped + 1) for fault in faults.first()],
    )


def _repair_utf8(data: bytes, records: RecordPositions) -> tuple[bytes, list[int]]:
    """The block with U+FFFD for what is not UTF-8, and the records that were repaired."""
    view = memoryview(data)
    mangled: list[int] = []
    position = 0
    while position < len(data):
        try:
            codecs.utf_8_decode(view[position:], "strict", True)
        except UnicodeDecodeError as error:
            record = int(np.searchsorted(records.starts, position + error.start, side="right")) - 1
            mangled.append(record)
            position = int(records.ends[record])
        else:
            break
    return (data.decode("utf-8", "replace").encode() if mangled else data), mangled


def _reject_mangled(
    block: TextBlock,
    records: RecordPositions,
    mangled: list[int],
    plan: ReadingPlan,
    faults: BlockFaults,
) -> None:
    """Condemns the repaired records in which a wanted column is not UTF-8."""
    wanted = [(block.file.column_names.index(name), name) for name in plan.names]
    for record in mangled:
        if not faults.good[record]:
            continue
        raw = block.data[records.starts[record] : records.ends[record]].decode("latin-1")
        fields = split_record(raw, block.file.dialect)
        for index, name in wanted:
            value = fields[index].encode("latin-1")
            shown = value.decode("utf-8", "backslashreplace")
            if shown.encode() != value:
                faults.reject(np.array([record]), BadRowReason.BAD_UTF8, name, [shown].__getitem__)
                break


def texts_of_block(block: TextBlock) -> pa.Table:
    """All columns as texts, rows with a wrong number of columns left out, for a first look."""
    records = find_records(block.data, block.file.dialect)
    data, _ = _repair_utf8(block.data, records)
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(block.file.column_names, pa.string()),
        null_values=[],
        strings_can_be_null=False,
    )
    if not len(records.starts):
        return pa.table({name: pa.array([], pa.string()) for name in block.file.column_names})
    return _read_csv(data, block.file, convert, lambda _: "skip")
