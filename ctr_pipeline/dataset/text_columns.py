"""What columns of texts hold, by their first rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ctr_pipeline.dataset.columns import parse_numbers
from ctr_pipeline.dataset.inference import (
    holds_beyond_floats,
    infer_epoch,
    infer_type,
    whole_numbers,
)
from ctr_pipeline.specs.columns import ColumnType


@dataclass(frozen=True)
class TextColumns:
    """Columns of texts, as the first rows show them.

    Attributes:
        types: The type of each.
        typed: The first rows, numbers as float64 and texts as strings.
        times: Columns of whole numbers that are points in time, and their `datetime` format.
    """

    types: Mapping[str, ColumnType]
    typed: pa.Table
    times: Mapping[str, str]


def read_text_columns(texts: pa.Table, missing_values: Sequence[str]) -> TextColumns:
    """Finds out what columns hold.

    Args:
        texts: The first rows, every column as string, NULL where missing.
        missing_values: Texts that mean missing, the empty one among them.
    """
    types = {name: infer_type(texts.column(name)) for name in texts.column_names}
    numbers = [name for name, kind in types.items() if kind is ColumnType.NUMBER]
    typed = {name: texts.column(name).combine_chunks() for name in texts.column_names}
    for name in numbers:
        typed[name], _ = parse_numbers(typed[name], missing_values)
    return TextColumns(
        types,
        pa.table(typed),
        _times_of(texts, types),
    )


def _times_of(texts: pa.Table, types: Mapping[str, ColumnType]) -> dict[str, str]:
    found = {}
    for name, kind in types.items():
        is_whole = kind is ColumnType.NUMBER or holds_beyond_floats(texts.column(name))
        numbers = whole_numbers(texts.column(name)) if is_whole else None
        format = None if numbers is None else infer_epoch(numbers)
        if format is not None:
            found[name] = format
    return found
