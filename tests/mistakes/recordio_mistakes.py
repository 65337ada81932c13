"""What users get wrong about RecordIO and conversions."""

import io
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from ctr_pipeline.dataset.formats.recordio.chunks import Compressor, RecordIOWriter
from ctr_pipeline.dataset.formats.recordio.examples import write_examples
from tests.mistakes.spoiled_world import (
    CHECK,
    HEADER,
    PREDICT,
    Case,
    World,
    file,
    lines,
    nothing,
    setting,
)

CONVERT = ("convert", "rows.csv", "-o", "out.recordio")


def lines_file(rows: list[str] | None = None, compressor: Compressor = Compressor.NONE) -> bytes:
    """A file of lines with their names."""
    buffer = io.BytesIO()
    with RecordIOWriter(buffer, compressor=compressor, chunk_bytes=1000) as writer:
        for line in [HEADER.strip(), *(lines() if rows is None else rows)]:
            writer.write(line.encode())
    return buffer.getvalue()


def examples_file(**columns: object) -> bytes:
    """A file of Examples, with other columns in place of theirs."""
    parts = [line.split(",") for line in lines()]
    table = {
        "click": [int(part[0]) for part in parts],
        "price": [int(part[1]) for part in parts],
        "city": [part[2] for part in parts],
        **columns,
    }
    buffer = io.BytesIO()
    with RecordIOWriter(buffer) as writer:
        writer.write_all(write_examples(pa.record_batch(table)))
    return buffer.getvalue()


def recordio(content: bytes | Callable[[], bytes], **values: object) -> Callable[[World], None]:
    """The data is this RecordIO file; a function makes one whose kernels are compiled first."""

    def spoil(world: World) -> None:
        world.write("rows.recordio", content if isinstance(content, bytes) else content())
        world.config(data__train="rows.recordio", **values)

    return spoil


def changed(content: bytes, position: int, by: int = 1) -> bytes:
    """The file with one byte changed."""
    data = bytearray(content)
    data[position] ^= by
    return bytes(data)


WHOLE = lines_file()
SECOND = WHOLE.index(b"\x04\x03\x02\x01", 1)
SECOND_CHUNK = f"rows.recordio, chunk 2 at byte {SECOND}"
COPY = "Copy the file again"

ROW_MISTAKES = (
    Case("recordio_cut", recordio(WHOLE[:-5]), ("truncated", COPY)),
    Case(
        "recordio_cut_in_a_header", recordio(WHOLE[: SECOND + 9]), (SECOND_CHUNK, "9 of its", COPY)
    ),
    Case("recordio_magic", recordio(changed(WHOLE, SECOND)), (SECOND_CHUNK, "magic number")),
    Case("recordio_checksum", recordio(changed(WHOLE, SECOND + 40)), (SECOND_CHUNK, "checksum")),
    Case(
        "recordio_compressor",
        recordio(changed(WHOLE, SECOND + 8, 7)),
        (SECOND_CHUNK, "unknown compressor 7", "snappy"),
    ),
    Case("recordio_number", recordio(changed(WHOLE, SECOND + 16)), (SECOND_CHUNK, "promises")),
    Case(
        "recordio_snappy_frame",
        recordio(lambda: changed(lines_file(compressor=Compressor.SNAPPY), 8)),
        ("rows.recordio, chunk 1 at byte 0",),
    ),
    Case("recordio_empty", recordio(b""), ("rows.recordio", "is empty")),
    Case(
        "recordio_only_names",
        recordio(lines_file([])),
        ("rows.recordio", "no rows"),
        unset="there is no row",
    ),
    Case(
        "recordio_is_csv",
        recordio(HEADER.encode()),
        ("rows.recordio", "not a RecordIO file"),
        unset="there is no row",
    ),
    Case(
        "csv_said_recordio",
        setting(data__format="recordio"),
        ("rows.csv", "not a RecordIO file", "data.format"),
        tried=("data.format=auto",),
    ),
    Case(
        "recordio_said_csv",
        recordio(WHOLE, data__format="csv"),
        ("rows.recordio", "is RecordIO, but data.format is csv"),
    ),
    Case("record_unknown", setting(data__record="lines"), ("data.record", "'line'")),
    Case(
        "record_of_csv",
        setting(data__record="line", data__format="csv"),
        ("`record` belongs to format: recordio",),
    ),
    Case(
        "lines_said_examples",
        recordio(WHOLE, data__record="example"),
        ("rows.recordio", "no tf.train.Example", "data.record: line"),
        CHECK,
    ),
    Case(
        "examples_said_lines",
        recordio(examples_file, data__record="line"),
        ("rows.recordio", "data.record: example"),
        CHECK,
    ),
    Case(
        "line_with_two_rows",
        recordio(lines_file([*lines(), "1,2,a,u1\n0,3,b,u2"])),
        ("rows.recordio, row 302", "not one line", "data.bad_rows: skip"),
    ),
    Case(
        "line_empty",
        recordio(lines_file([*lines(), ""])),
        ("rows.recordio, row 302", "not one line"),
    ),
    Case(
        "line_with_an_open_quote",
        recordio(lines_file([*lines(), '1,2,"a,u1'])),
        ("rows.recordio, row 302", "not one line", "every quote closed"),
    ),
    Case(
        "line_with_fewer_fields",
        recordio(lines_file([*lines(), "1,2"])),
        ("rows.recordio, row 302", "wrong number of columns"),
    ),
    Case(
        "examples_with_columns",
        recordio(examples_file, data__columns=["click", "price", "city"]),
        ("rows.recordio", "Leave out data.columns"),
        CHECK,
    ),
    Case(
        "example_label_not_binary",
        recordio(partial(examples_file, click=[*[0, 1] * 149, 0, 7])),
        ("rows.recordio", "'click'", "7"),
    ),
    Case(
        "example_texts_as_numbers",
        recordio(partial(examples_file, price=[*["1"] * 299, "dear"])),
        ("rows.recordio, row 300, column 'price'", "not a number: 'dear'"),
    ),
)

APP_MISTAKES = (
    Case(
        "predict_damaged_recordio",
        file("new.csv", changed(WHOLE, SECOND + 40)),
        ("new.csv, chunk 2", "checksum"),
        PREDICT,
        trained=True,
    ),
    Case(
        "convert_a_bad_row",
        lambda w: w.spoil_row(7, "1,2"),
        ("rows.csv, row 9", "wrong number of columns"),
        CONVERT,
        unset="the row is short",
    ),
    Case(
        "convert_damaged_recordio",
        file("rows.recordio", changed(WHOLE, SECOND + 40)),
        (SECOND_CHUNK, "checksum"),
        ("convert", "rows.recordio", "-o", "x.parquet"),
    ),
    Case(
        "convert_compressed_csv",
        nothing,
        ("--compression", "an option of RecordIO", ".gz"),
        ("convert", "rows.csv", "-o", "x.csv", "--compression", "gzip"),
    ),
    Case(
        "convert_parquet_gz",
        nothing,
        ("x.parquet.gz", "compressed within"),
        ("convert", "rows.csv", "-o", "x.parquet.gz"),
    ),
    Case(
        "convert_wrong_columns",
        nothing,
        ("rows.csv", "row 1", "4 columns", "names 2"),
        (*CONVERT, "--columns", "a,b"),
        unset="--columns says the wrong names",
    ),
    Case(
        "convert_one_column", nothing, ("--columns", "fewer than two"), (*CONVERT, "--columns", "a")
    ),
    Case(
        "convert_wrong_delimiter",
        nothing,
        ("--set data.delimiter='::'", "at most 1 character"),
        (*CONVERT, "--set", "data.delimiter='::'"),
    ),
    Case(
        "convert_a_list",
        lambda w: w.parquet(city=[["a"]] * 300),
        ("rows.parquet, column 'city'", "list", "leave the column out"),
        ("convert", "rows.parquet", "-o", "x.csv"),
    ),
)

COMMAND_MISTAKES = (
    Case("convert_nothing", nothing, ("nowhere.csv",), ("convert", "nowhere.csv", "-o", "x.csv")),
    Case(
        "convert_to_no_format",
        nothing,
        ("x.xls", "names no format", "--to"),
        ("convert", "rows.csv", "-o", "x.xls"),
    ),
    Case(
        "convert_over_a_file",
        file("out.recordio", "x"),
        ("out.recordio", "exists already", "--overwrite"),
        CONVERT,
        followed=True,
    ),
    Case(
        "convert_onto_itself",
        nothing,
        ("rows.csv", "is a file that this command reads"),
        ("convert", "rows.csv", "-o", "rows.csv", "--overwrite"),
    ),
    Case("convert_to_nowhere", nothing, ("--output",), ("convert", "rows.csv")),
    Case(
        "convert_into_a_folder", nothing, (".", "folder"), (*CONVERT[:2], "-o", ".", "--to", "csv")
    ),
)
