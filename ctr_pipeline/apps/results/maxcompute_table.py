"""Rows of results in a table of MaxCompute, or a partition: `odps://ads/scores/ds=20240101`."""

from collections.abc import Iterable
from functools import cached_property

import pyarrow as pa

from ctr_pipeline.apps.results.target import ResultPlan
from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient, connect
from ctr_pipeline.dataset.formats.maxcompute.table import parse_address
from ctr_pipeline.errors import RunFolderError


class MaxComputeTarget:
    """A table that is there, and has the columns of the results; a partition is made if absent.

    Rows become visible by one commit, which replaces those of the table or partition.
    """

    def __init__(self, address: str) -> None:
        self._address = parse_address(address, "--output")

    @cached_property
    def _client(self) -> MaxComputeClient:
        return connect()

    def check(self, results: ResultPlan) -> None:
        """As `ResultTarget.check`; probabilities may be FLOAT or DOUBLE, all else is STRING."""
        place = str(self._address)
        results.require_other_data(place)
        facts = self._client.describe(self._address, may_lack_partition=True)
        there = [(field.name.lower(), _kind(field.type)) for field in facts.schema]
        wanted = [(field.name.lower(), _kind(field.type)) for field in results.schema]
        if facts.is_view or there != wanted:
            columns = ", ".join(f"{field.name} {_sql_type(field.type)}" for field in results.schema)
            raise RunFolderError(
                "is a view" if facts.is_view else "is a table of other columns",
                place=place,
                remedy=f"Name a table with the columns {columns}, in this order",
            )
        if facts.size_bytes > 0:
            results.require_overwrite(place, "has rows already")

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """As `ResultTarget.write`."""
        self._client.replace_rows(self._address, batches)


def _kind(of: pa.DataType) -> str:
    return "number" if pa.types.is_floating(of) else str(of)


def _sql_type(of: pa.DataType) -> str:
    return "DOUBLE" if pa.types.is_floating(of) else "STRING"
