"""Rows of one table of MaxCompute, with what reads them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr_pipeline.dataset.formats.maxcompute.table import TableFacts, TableRows

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

    def current_version(self) -> str:
        """What the service says now; changes when the rows do.

        Raises:
            DataError: The table is gone, or the service does not answer.
        """
        return self.client.describe(self.path.address).version
