"""Columns of texts as numbers where all of their values are, which only reading all of it tells."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.columns import parse_numbers
from ctr_pipeline.dataset.inference import is_numeric
from ctr_pipeline.dataset.rows import read_texts
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.progress import Progress

_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_MANY_DIGITS = r"^[+-]?[0-9]{19,}$"


def read_typed_texts(source: Source, progress: Progress) -> Iterator[pa.Table]:
    """All rows of delimited files or records: read once to find types, and once for the rows.

    Raises:
        DataError: A file is damaged, or a row is bad.
    """
    types = TextTypes()
    with progress.task("find types", total=source.size_bytes, unit="bytes") as task:
        for table in read_texts(source, task.advance):
            types.look(table)
    with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
        for table in read_texts(source, task.advance):
            yield types.typed(table)


@dataclass
class TextTypes:
    """Finds which columns of texts are numbers that lose nothing as such.

    A whole number has no sign `+`, no leading zeros and at most 18 digits; others are float64.
    """

    kinds: dict[str, pa.DataType | None] = field(default_factory=dict)

    def look(self, table: pa.Table) -> None:
        """Takes more rows into account."""
        for name in table.column_names:
            kind = self.kinds.get(name)
            column = table.column(name).drop_null()
            if kind == pa.string() or not len(column):
                self.kinds.setdefault(name, None)
                continue
            if kind != pa.float64() and pc.all(pc.match_substring_regex(column, _WHOLE)).as_py():
                self.kinds[name] = pa.int64()
                continue
            is_float = (
                pc.all(is_numeric(column)).as_py()
                and pc.all(pc.equal(pc.utf8_trim_whitespace(column), column)).as_py()
                and not pc.any(pc.match_substring_regex(column, _MANY_DIGITS)).as_py()
            )
            self.kinds[name] = pa.float64() if is_float else pa.string()

    def typed(self, table: pa.Table) -> pa.Table:
        """The rows with numbers where all rows have them."""
        columns: dict[str, Any] = {}
        for name in table.column_names:
            column = table.column(name)
            kind = self.kinds[name] or pa.string()
            if kind == pa.float64():
                columns[name] = parse_numbers(column.combine_chunks(), ("",))[0]
            else:
                columns[name] = pc.cast(column, kind)
        return pa.table(columns)
