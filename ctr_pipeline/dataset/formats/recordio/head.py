"""The first records of a RecordIO file: what do they hold, how are they separated and named."""

import codecs
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.recordio.examples import (
    ExampleColumns,
    ExampleKind,
    find_features,
    is_example,
    read_examples,
)
from ctr_pipeline.dataset.formats.recordio.rows import join_lines, read_first_records
from ctr_pipeline.dataset.formats.text.compression import Compression
from ctr_pipeline.dataset.formats.text.head import (
    TextHead,
    check_delimiter,
    check_text,
    choose_delimiter,
)
from ctr_pipeline.dataset.formats.text.records import Dialect
from ctr_pipeline.dataset.value_texts import as_float64
from ctr_pipeline.errors import DataError

RecordKind = Literal["line", "example"]
_LOOKED_AT = 100
"""Records at the start among which the first that is not empty tells what a file holds."""


def find_record_kind(path: DataFile, wanted: Literal["auto", "line", "example"]) -> RecordKind:
    """What a file's records hold, by `data.record` or else by its first records.

    Args:
        path: The file.
        wanted: `data.record`.

    Raises:
        DataError: The file is damaged, has no records, or others than `data.record` says.
    """
    records = read_first_records(path, _LOOKED_AT, 1)
    first = next((bytes(record) for record in records if len(record) > 2), b"")
    found = is_example(first)
    if wanted == "example" and not found and first:
        raise DataError(
            "the first record is no tf.train.Example",
            place=str(path),
            remedy="Set data.record: line if its records are delimited lines",
        )
    if wanted == "line" and found:
        raise DataError(
            "the first record is a tf.train.Example and not a line",
            place=str(path),
            remedy="Set data.record: example",
        )
    if wanted != "auto":
        return wanted
    return "example" if found else "line"


def read_head_of_lines(
    path: DataFile,
    data: DataConfig,
    num_records: int,
    num_bytes: int,
    delimiter: str | None,
    *,
    are_new: bool,
) -> TextHead:
    """The first records as the head of a text file.

    Args:
        path: The file.
        data: How it is read.
        num_records: How many at most.
        num_bytes: About how much of it.
        delimiter: The delimiter of earlier files; None: it is detected.
        are_new: As of `SourceFormat.inspect`.

    Raises:
        DataError: The file is damaged or has no records, they are not text, or the first one is not
            one row with a delimiter.
    """
    records = read_first_records(path, num_records, num_bytes)
    first_bytes = bytes(records[0]).rstrip(b"\r\n").removeprefix(codecs.BOM_UTF8)
    place = f"{path}, row 1"
    # Judged by the records alone: between them stand lengths, which are no text.
    sample = b"\n".join(bytes(record) for record in records.between(0, _LOOKED_AT))
    check_text(sample, path)
    separator = choose_delimiter(path, first_bytes, data, earlier=delimiter, are_new=are_new)
    dialect = Dialect(separator, data.quote, data.escape)
    if not len(join_lines(records.between(0, 1), dialect).kept):
        raise DataError(
            "the first record is empty" if not first_bytes else "the first record is not one row",
            place=place,
            remedy="Write one delimited line a record, names or values",
        )
    try:
        first = first_bytes.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "the first row is not UTF-8", place=place, remedy="Write the records in UTF-8"
        ) from error
    check_delimiter(path, first, separator)
    rest = join_lines(records.between(1, len(records)), dialect).data
    text = first_bytes + b"\n" + rest
    return TextHead(path, Compression.NONE, dialect, first, text, len(first_bytes) + 1, True)


def read_head_of_examples(path: DataFile, num_records: int, num_bytes: int) -> pa.Table:
    """The first records as a table: texts, int64 and float64 columns, and lists where several.

    A list column tells its type and no values. Records that are no Examples are left out; so is
    what is not UTF-8 in texts.

    Raises:
        DataError: The file is damaged, or has no record with a feature.
    """
    records = read_first_records(path, num_records, num_bytes)
    names = find_features(records)
    if not names:
        raise DataError(
            "has no record that is a tf.train.Example with features",
            place=str(path),
            remedy="Set data.record: line if its records are delimited lines",
        )
    columns = read_examples(records, names)
    table = pa.table([_typed(columns, feature) for feature in range(len(names))], names=list(names))
    return table.filter(pa.array(columns.is_good_N))


def _typed(columns: ExampleColumns, feature: int) -> pa.Array:
    kinds, num_records = columns.kinds_of(feature), columns.kinds_TN.shape[1]
    if (columns.counts_TN[feature] > 1).any():
        item = pa.string() if ExampleKind.BYTES in kinds else pa.float64()
        return pa.nulls(num_records, pa.list_(pa.int64() if kinds == {ExampleKind.INT64} else item))
    if not kinds:
        return pa.nulls(num_records)
    if kinds == {ExampleKind.INT64}:
        return columns.int64_of(feature)
    floats = as_float64(columns.float_of(feature))
    if ExampleKind.BYTES not in kinds:
        return pc.coalesce(floats, pc.cast(columns.int64_of(feature), pa.float64(), safe=False))
    texts = [
        None if value is None else value.decode("utf-8", "replace")
        for value in columns.bytes_of(feature).to_pylist()
    ]
    return pc.coalesce(
        pa.array(texts, pa.string()),
        pc.cast(columns.int64_of(feature), pa.string()),
        pc.cast(floats, pa.string()),
    )
