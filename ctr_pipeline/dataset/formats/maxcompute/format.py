"""Tables of MaxCompute as a source."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.formats.maxcompute.table import TableAddress, is_address, parse_address
from ctr_pipeline.dataset.source import HEAD_ROWS, Place, ServiceAccess, Source, SourceFormat
from ctr_pipeline.dataset.typed_source import read_typed_tables, refuse_columns, typed_source
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.source_formats import is_query

if TYPE_CHECKING:
    from ctr_pipeline.dataset.statement import Query


class MaxComputeFormat(SourceFormat):
    """Tables and partitions of MaxCompute, `odps://project/table/ds=20240101`, and its SELECTs."""

    name = "MaxCompute"
    rows_have_order = False
    is_remote = True
    driver = "maxcompute"

    def is_address(self, text: str) -> bool:
        """As `SourceFormat.is_address`."""
        return is_address(text)

    def find(self, address: str, key: str) -> "TableAddress | Query":
        """As `SourceFormat.find`; the service is not asked."""
        if not is_query(address):
            return parse_address(address, key)
        # sqlglot is imported only where there is a query.
        from ctr_pipeline.dataset.statement import Query

        return Query(address, key, dialect="hive")

    def find_access(self) -> ServiceAccess:
        """As `SourceFormat.find_access`."""
        from ctr_pipeline.dataset.formats.maxcompute.client import (
            connect,
            is_set_up,
            missing_variables,
        )

        missing = missing_variables()
        if missing or not is_set_up():
            return ServiceAccess(is_set_up(), tuple(missing))
        try:
            connect().ping()
        except CtrPipelineError as error:
            return ServiceAccess(True, failure=str(error))
        return ServiceAccess(True)

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        are_new: bool,
    ) -> Source:
        """As `SourceFormat.inspect`; rows that are divided at random are divided here."""
        # PyODPS and sqlglot are imported only where a table is named.
        from ctr_pipeline.dataset.formats.maxcompute.inspection import find_tables, head_of
        from ctr_pipeline.dataset.statement import Query

        if seed is not None:
            refuse_columns(data, "tables", "data.columns")
        named = {
            split: [place for place in group if isinstance(place, TableAddress | Query)]
            for split, group in places.items()
        }
        files, opened = find_tables(data, named, seed=seed)
        schema = next(iter(opened.values())).schema
        return typed_source(
            self,
            "table",
            files=files,
            opened=opened.values(),
            schema=schema,
            head=head_of(opened, HEAD_ROWS),
        )

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`, with the types of the first rows."""
        from ctr_pipeline.dataset.formats.maxcompute.reading import read_rows

        return read_typed_tables(source, progress, read_rows)
