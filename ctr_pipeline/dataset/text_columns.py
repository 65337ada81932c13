"""What columns of texts hold, by their first rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ctr_pipeline.dataset.columns import parse_numbers
from ctr_pipeline.dataset.inference import infer_time, infer_type
from ctr_pipeline.specs.columns import ColumnType


@dataclass(frozen=True)
class TextColumns:
    """Columns of texts, as the first rows show them.

    Attributes:
        types: The type of each.
        typed: The first rows, numbers as float64 and texts as strings.
        times: Columns of points in time, and their `datetime` format.
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
    times = {name: infer_time(texts.column(name)) for name in texts.column_names}
    found = {name: format for name, format in times.items() if format is not None}
    return TextColumns(types, pa.table(typed), found)
