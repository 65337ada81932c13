"""Columns of Arrow's types as a reading plan wants them: what every typed format shares.

A column used as a number may be of integers, floats, booleans, decimals or texts; one used as text
may be of texts (dictionary-encoded or not), UTF-8 bytes, integers, booleans, decimals, or floats
that are whole numbers. Each has the one text that `value_texts` says; dates and timestamps become
`2024-03-31 18:05:00`, in UTC, where a text is asked for. Fractions as texts are bad rows: which
digits to write would be arbitrary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.bad_rows import BadRowReason, BlockFaults
from ctr_pipeline.dataset.columns import (
    ParsedBlock,
    ReadingPlan,
    convert_label,
    convert_texts,
    known_texts,
    missing_to_null,
    present_numbers,
    reject_lists,
    reject_times,
    reject_weights,
)
from ctr_pipeline.dataset.lists import as_texts, is_list
from ctr_pipeline.dataset.source import Place
from ctr_pipeline.dataset.value_texts import as_float64, texts_of_decimals, texts_of_floats
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import ListSpec, VectorSpec
from ctr_pipeline.specs.columns import ColumnType


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


def check_type(path: object, kind: pa.DataType, name: str, plan: ReadingPlan) -> None:
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


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds dates or timestamps."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _check_elements(kind: pa.DataType, cut: ListSpec, place: str) -> None:
    if pa.types.is_null(kind.value_type):  # all lists are empty
        return
    if isinstance(cut, VectorSpec):
        element = kind.value_type
        if not (pa.types.is_floating(element) or pa.types.is_integer(element)):
            raise DataError(
                f"has the type {kind}, and a vector holds floats or integers",
                place=place,
                remedy="Write its elements as numbers",
            )
        return
    element = kind.value_type
    is_number = pa.types.is_integer(element) or pa.types.is_floating(element)
    if not (_is_text(plain_type(element)) or is_number):
        raise DataError(
            f"has the type {kind}, and elements of a sequence are texts or whole numbers",
            place=place,
            remedy="Write the elements as texts or integers",
        )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, whether or not a dictionary holds them."""
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
        array, found = as_texts(array, plan.lists[name])
        reject_lists(found, name, faults, records)
    is_text_use = name != plan.label and plan.types[name] is ColumnType.TEXT
    if _is_text(array.type):
        return convert_texts(as_utf8(array, name, faults, records), name, plan, faults, records)
    is_written_label = name == plan.label and plan.label_values is not None
    if is_text_use and pa.types.is_timestamp(array.type):
        # As it is stored, in UTC, whatever the zone that is named: texts without one are in UTC.
        array = array.view(pa.int64()).view(pa.timestamp(array.type.unit))
    if is_text_use and pa.types.is_floating(array.type):
        array = convert_floats(array, name, plan, faults, records)
    if is_text_use and pa.types.is_decimal(array.type) and name not in plan.carried:
        array = texts_of_decimals(array)
    if is_text_use or is_written_label:
        return convert_texts(pc.cast(array, pa.string()), name, plan, faults, records)
    numbers = present_numbers(as_float64(array), plan.missing_values)
    none = np.empty(0, dtype=np.int64)

    def show(positions: Any) -> Any:
        return lambda index: str(array[int(positions[index])])

    if name == plan.weight:
        reject_weights(numbers, name, faults, records, show=show)
    if plan.time is not None and name == plan.time.name:
        reject_times(numbers, plan.time, faults, records, show=show)
    if name != plan.label:
        return numbers
    return convert_label(numbers, plan, faults, records, wrong=none, show=show)


def convert_floats(
    array: Any, name: str, plan: ReadingPlan, faults: BlockFaults, records: Any
) -> pa.Array:
    """Floats as texts; those of a feature of texts that have no one text are rejected."""
    if name in plan.carried:
        return pc.cast(array, pa.string())
    numbers = as_float64(array)
    if name == plan.label or plan.types[name] is ColumnType.NUMBER:
        return pc.cast(numbers, pa.string())
    is_there = pc.is_valid(present_numbers(numbers, plan.missing_values))
    array = pc.if_else(is_there, array, pa.scalar(None, array.type))
    texts, is_wrong = texts_of_floats(array)
    wrong = np.flatnonzero(is_wrong)
    faults.reject(
        records[wrong],
        BadRowReason.FLOAT_AS_TEXT,
        name,
        lambda index: str(array[int(wrong[index])]),
    )
    return texts


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
    values = known_texts(missing_to_null(values, plan.missing_values), plan.missing_values)
    return pa.DictionaryArray.from_arrays(array.indices, values)


def as_utf8(array: Any, name: str, faults: BlockFaults, records: Any) -> pa.Array:
    """Texts or bytes as valid UTF-8 strings; others are rejected and come out as NULL."""
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
    faults.reject(
        records[wrong],
        BadRowReason.BAD_UTF8,
        name,
        lambda index: values[int(wrong[index])].decode("utf-8", "backslashreplace"),
    )
    return pa.array(decoded, pa.string(), mask=invalid)
