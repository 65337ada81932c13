"""Rows of one table of MaxCompute, with what reads them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.formats.maxcompute.table import TableFacts, TableRows
from ctr_pipeline.dataset.source import WHOLE, Block, Range, ranges_between

if TYPE_CHECKING:
    # It loads requests, which files never need.
    from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient


@dataclass(frozen=True)
class MaxComputeTable:
    """Rows of one table, as inspection found it.

    Attributes:
        path: The rows.
        facts: What the service says of the table.
        client: Reads them.
    """

    path: TableRows
    facts: TableFacts
    client: "MaxComputeClient" = field(repr=False, compare=False)

    @property
    def schema(self) -> pa.Schema:
        """Of the table's columns."""
        return self.facts.schema

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of all its columns, in its order."""
        return tuple(self.facts.schema.names)

    def size_bytes(self) -> int:
        """As the service says."""
        return self.facts.size_bytes

    def known_rows(self) -> int | None:
        """None: a table does not tell how many of its rows a split has."""
        return None

    def state(self) -> tuple[str | int, ...]:
        """Asks the service; changes when the rows do.

        Raises:
            DataError: The table is gone, or the service does not answer.
        """
        facts = self.client.describe(self.path.address)
        columns = ", ".join(f"{field.name} {field.type}" for field in facts.schema)
        # Made again from the same rows, a table of a SELECT is another one of the same rows.
        version = facts.version if self.path.key is None else ""
        return str(self.path), repr(self.path.chosen), version, columns

    def ranges(self, unit_bytes: int | None) -> list[Range]:
        """As `SourceFile.ranges`, in rows.

        Rows that a query selects have another order each time, so that they are not cut.
        """
        size = self.facts.size_bytes
        if unit_bytes is None or self.path.chosen is not None or size <= unit_bytes:
            return [WHOLE]
        from ctr_pipeline.dataset.formats.maxcompute.reading import open_rows

        num_rows = open_rows(self, list(self.column_names)).num_rows
        step = max(1, num_rows * unit_bytes // size)
        return ranges_between(range(0, num_rows, step))

    def read(self, part: Range, plan: ReadingPlan, block_bytes: int) -> Iterator[Block]:
        """As `SourceFile.read`."""
        from ctr_pipeline.dataset.formats.maxcompute.reading import read_table_blocks

        return read_table_blocks(self, plan, part)
