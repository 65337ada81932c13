"""Parquet files as blocks of records.

A column used as a number may be of integers, floats, booleans, decimals or texts; one used as text
may be of texts (dictionary-encoded or not), UTF-8 bytes, integers, booleans or decimals. Integers
become their decimal digits; dates and timestamps become `2024-03-31 18:05:00`, in UTC, where a text
is asked for. Floats as texts are refused: which digits to write would be arbitrary.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr_pipeline.dataset.bad_rows import BadRowReason, BlockFaults
from ctr_pipeline.dataset.columns import (
    ParsedBlock,
    ReadingPlan,
    condemn_times,
    condemn_weights,
    convert_label,
    convert_texts,
    missing_to_null,
    nan_to_null,
)
from ctr_pipeline.dataset.data_files import DataFile, open_bytes, size_of
from ctr_pipeline.dataset.formats.parquet.chunks import ChunkReader
from ctr_pipeline.dataset.formats.parquet.layout import DamagedLayoutError, Layout
from ctr_pipeline.dataset.limits import check_values
from ctr_pipeline.dataset.lists import as_texts, is_list
from ctr_pipeline.dataset.partitions import Partition, add_partition
from ctr_pipeline.dataset.paths import Place
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec, VectorSpec
from ctr_pipeline.specs.columns import ColumnType

_BATCH_ROWS = 65_536
# A column that takes more bytes a value has a dictionary that is not worth its while.
_DICTIONARY_BYTES = 3


@dataclass(frozen=True)
class ParquetFile:
    """One Parquet file, as inspection found it.

    Attributes:
        path: The file.
        schema: Schema of its columns, those of its folders behind its own.
        partition: What its `key=value` folders say of all of its rows.
    """

    path: DataFile
    schema: pa.Schema
    num_rows: int
    partition: Partition = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of all its columns, in its order."""
        return tuple(self.schema.names)


@dataclass(frozen=True)
class RecordBlock:
    """Some consecutive records of one file or table."""

    path: Place
    batch: pa.RecordBatch
    position_bytes: int

    def parse(self, plan: ReadingPlan) -> ParsedBlock:
        """The block's rows."""
        faults = BlockFaults(self.batch.num_rows, plan.sensitive)
        records = np.arange(self.batch.num_rows, dtype=np.int64)
        columns = [
            convert_column(self.batch.column(name), name, plan, faults, records)
            for name in plan.names
        ]
        schema = plan.schema
        for index, column in enumerate(columns):
            if pa.types.is_dictionary(column.type):
                schema = schema.set(index, schema.field(index).with_type(column.type))
        table = pa.table(columns, schema=schema)
        if faults.counts.total():
            table = table.filter(pa.array(faults.good))
        return ParsedBlock(
            table,
            self.batch.num_rows,
            dict(faults.counts),
            [(fault, fault.record + 1) for fault in faults.first()],
        )


def read_schema(path: DataFile) -> tuple[pa.Schema, int]:
    """A file's columns and how many rows it has.

    Raises:
        DataError: The file is no Parquet, truncated, or has too many columns.
    """
    with _errors_explained(path), open_bytes(path) as stream:
        chunks = ChunkReader(path, stream)
        with pa.PythonFile(chunks, "r") as native, pq.ParquetFile(native) as file:
            # What a writer says beside the columns is of no use here, and may be of any length.
            return file.schema_arrow.remove_metadata(), int(chunks.layout.num_rows_G.sum())


def read_first_rows(file: ParquetFile, num_rows: int) -> pa.Table:
    """The first rows of a file, all columns.

    Raises:
        DataError: The file is damaged.
    """
    batch = next(read_batches(file, file.column_names, num_rows), None)
    return file.schema.empty_table() if batch is None else pa.Table.from_batches([batch])


def read_batches(
    file: ParquetFile,
    names: Sequence[str],
    num_rows: int,
    as_dictionaries: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, `num_rows` at most in a batch, with the columns `names` in this order.

    Those of `as_dictionaries` come as dictionaries where the file repeats few texts.

    Raises:
        DataError: The file is damaged.
    """
    of_folders = [name for name, _ in file.partition]
    own = [name for name in names if name not in of_folders]
    with _errors_explained(file.path), open_bytes(file.path) as stream:
        chunks = ChunkReader(file.path, stream)
        coded = [
            name for name in chunks.layout.few_texts(_DICTIONARY_BYTES) if name in as_dictionaries
        ]
        with (
            pa.PythonFile(chunks, "r") as native,
            # Not ahead of what is asked for, which is checked before Arrow sees it.
            pq.ParquetFile(native, read_dictionary=coded, pre_buffer=False) as rows,
        ):
            for groups in _runs(chunks.layout, num_rows):
                step = chunks.hold(groups, own, num_rows)
                for batch in rows.iter_batches(batch_size=step, row_groups=groups, columns=own):
                    check_values(batch, file.path)
                    yield add_partition(batch, file.partition, names)


def _runs(layout: Layout, num_rows: int) -> Iterator[list[int]]:
    """Row groups to read together, so that small ones make whole batches."""
    run, rows_of_run = list[int](), 0
    for group, rows in enumerate(layout.num_rows_G.tolist()):
        run.append(group)
        rows_of_run += rows
        if rows_of_run >= num_rows:
            yield run
            run, rows_of_run = [], 0
    if run:
        yield run


def read_parquet_blocks(file: ParquetFile, plan: ReadingPlan) -> Iterator[RecordBlock]:
    """A file's records, the wanted columns only.

    Raises:
        DataError: The file is damaged, or a column's type does not fit its use.
    """
    for name in plan.names:
        check_type(file.path, file.schema.field(name).type, name, plan)
    size_bytes = size_of(file.path)
    done = 0
    for batch in read_batches(file, plan.names, _BATCH_ROWS, plan.as_dictionaries):
        done += batch.num_rows
        yield RecordBlock(file.path, batch, size_bytes * done // max(file.num_rows, 1))


@contextmanager
def _errors_explained(path: DataFile) -> Iterator[None]:
    """Errors of Arrow, and of what is no Parquet, as what they mean to the user.

    Raises:
        DataError: In their place.
    """
    try:
        yield
    except (OSError, pa.ArrowException, DamagedLayoutError, UnicodeDecodeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"cannot be read as Parquet: truncated or damaged ({first_line})",
            place=str(path),
            remedy=getattr(error, "remedy", "Copy or write the file again"),
        ) from error


def column_type_of(kind: pa.DataType) -> ColumnType | None:
    """What a Parquet column is read as by itself; None if it fits no feature."""
    if pa.types.is_dictionary(kind):
        return column_type_of(kind.value_type)
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ):
        return ColumnType.NUMBER
    return ColumnType.TEXT if _is_text(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def check_type(path: Place, kind: pa.DataType, name: str, plan: ReadingPlan) -> None:
    """Raises DataError if a column's type does not fit its use."""
    if name in plan.lists and is_list(kind):
        _check_elements(kind, plan.lists[name], f"{path}, column '{name}'")
        return
    own = column_type_of(kind)
    place = f"{path}, column '{name}'"
    is_carried = name in plan.carried and not pa.types.is_nested(kind)
    is_time_as_text = is_time(kind) and plan.types.get(name) is ColumnType.TEXT
    if own is None and not is_carried and not is_time_as_text:
        raise DataError(
            f"has the type {kind}, which is neither a number nor a text",
            place=place,
            remedy="Leave the column out of features, write it as a number or a text, or read a "
            "time with id: datetime or number: age",
        )
    is_text_use = name != plan.label and plan.types[name] is ColumnType.TEXT
    if is_text_use and pa.types.is_floating(_plain(kind)) and name not in plan.carried:
        raise DataError(
            f"has the type {kind} but is used as text, and floats have no unique text",
            place=place,
            remedy="Write it as an integer or a text (missing values make pandas turn integers "
            "into floats), or use id: round_identity or bucketize",
        )


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds dates or timestamps."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _check_elements(kind: pa.DataType, cut: ListSpec, place: str) -> None:
    if isinstance(cut, VectorSpec):
        element = kind.value_type
        if not (pa.types.is_floating(element) or pa.types.is_integer(element)):
            raise DataError(
                f"has the type {kind}, and a vector holds floats or integers",
                place=place,
                remedy="Write its elements as numbers",
            )
        return
    if not (_is_text(_plain(kind.value_type)) or pa.types.is_integer(kind.value_type)):
        raise DataError(
            f"has the type {kind}, and elements of a sequence are texts or integers",
            place=place,
            remedy="Write the elements as texts or integers",
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def convert_column(
    array: Any, name: str, plan: ReadingPlan, faults: BlockFaults, records: Any
) -> pa.Array:
    """One column as the plan wants it; a dictionary if it was one and the plan takes it so."""
    if pa.types.is_dictionary(array.type):
        if name in plan.as_dictionaries:
            converted = _convert_dictionary(array, plan)
            if converted is not None:
                return converted
        array = array.dictionary_decode()
    if name in plan.lists and is_list(array.type):
        array, wrong, elements = as_texts(array, plan.lists[name])
        faults.condemn(records[wrong], BadRowReason.DELIMITER_INSIDE, name, elements.__getitem__)
    is_text_use = name != plan.label and plan.types[name] is ColumnType.TEXT
    if _is_text(array.type):
        return convert_texts(as_utf8(array, name, faults, records), name, plan, faults, records)
    is_written_label = name == plan.label and plan.label_values is not None
    if is_text_use and pa.types.is_timestamp(array.type):
        # As it is stored, in UTC, whatever the zone that is named: texts without one are in UTC.
        array = array.view(pa.int64()).view(pa.timestamp(array.type.unit))
    if is_text_use or is_written_label:
        return convert_texts(pc.cast(array, pa.string()), name, plan, faults, records)
    numbers = nan_to_null(pc.cast(array, pa.float64(), safe=False))
    none = np.empty(0, dtype=np.int64)

    def show(positions: Any) -> Any:
        return lambda index: str(array[int(positions[index])])

    if name == plan.weight:
        condemn_weights(numbers, name, faults, records, show=show)
    if plan.time is not None and name == plan.time.name:
        condemn_times(numbers, plan.time, faults, records, show=show)
    if name != plan.label:
        return numbers
    return convert_label(numbers, plan, faults, records, wrong=none, show=show)


def _convert_dictionary(array: pa.DictionaryArray, plan: ReadingPlan) -> pa.Array | None:
    """A dictionary of texts as the plan wants it; None where its values have to be seen row by row.

    That is where there are as many values as rows, or some are no texts.
    """
    if not _is_text(array.type.value_type) or 2 * len(array.dictionary) > len(array):
        return None
    try:
        values = pc.cast(pc.cast(array.dictionary, pa.binary()), pa.string())
    except pa.ArrowInvalid:
        return None
    values = missing_to_null(values, plan.missing_values)
    return pa.DictionaryArray.from_arrays(array.indices, values)


def as_utf8(array: Any, name: str, faults: BlockFaults, records: Any) -> pa.Array:
    """Texts or bytes as valid UTF-8 strings; others are condemned and come out as NULL."""
    raw = pc.cast(array, pa.binary())
    try:
        return pc.cast(raw, pa.string())
    except pa.ArrowInvalid:
        values = raw.to_pylist()
    decoded = [None if value is None else value.decode("utf-8", "replace") for value in values]
    invalid = np.array(
        [
            value is not None and text is not None and text.encode() != value
            for value, text in zip(values, decoded, strict=True)
        ]
    )
    wrong = np.flatnonzero(invalid)
    faults.condemn(
        records[wrong],
        BadRowReason.BAD_UTF8,
        name,
        lambda index: values[int(wrong[index])].decode("utf-8", "backslashreplace"),
    )
    return pa.array(decoded, pa.string(), mask=invalid)
