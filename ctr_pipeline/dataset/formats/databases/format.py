"""Tables of DuckDB and SQLite files as a source."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.databases.table import (
    MAGIC_BYTES,
    DatabaseAddress,
    engine_of,
    is_database_address,
    parse_database_address,
)
from ctr_pipeline.dataset.schema_checks import check_names, check_same_types
from ctr_pipeline.dataset.source import HEAD_ROWS, Place, Source, SourceFormat
from ctr_pipeline.dataset.typed_source import read_typed_tables, refuse_columns, typed_source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress


class DatabaseFormat(SourceFormat):
    """Tables of database files: `duckdb://data/shop.duckdb/clicks`, `sqlite://…`."""

    name = "a database"

    def is_address(self, text: str) -> bool:
        """As `SourceFormat.is_address`."""
        return is_database_address(text)

    def find(self, address: str, key: str) -> DatabaseAddress:
        """As `SourceFormat.find`; the file is there and is a database of that kind."""
        return parse_database_address(address, key)

    def local_files(self, place: Place) -> tuple[Path, ...]:
        """The database."""
        return (place.file,) if isinstance(place, DatabaseAddress) else ()

    def begins(self, first_bytes: bytes, file: DataFile) -> bool:
        """False; raises DataError if a database is named as a file."""
        engine = engine_of(first_bytes[:MAGIC_BYTES])
        if engine is None:
            return False
        raise DataError(
            "is a database, and which of its tables is meant is not said",
            place=str(file),
            remedy=f"Write {engine}://{file}/TABLE",
        )

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        may_lack_label: bool,
    ) -> Source:
        """As `SourceFormat.inspect`."""
        # sqlglot and DuckDB are imported only where a database is named.
        from ctr_pipeline.dataset.formats.databases.inspection import describe, head_of

        if not may_lack_label:
            refuse_columns(data, "tables", "data.columns")
        opened = {
            place: describe(place)
            for group in places.values()
            for place in group
            if isinstance(place, DatabaseAddress)
        }
        first, *others = opened
        schema = opened[first].schema
        check_names(schema.names, first)
        for other in others:
            check_same_types(opened[other].schema, other, schema, first)
        return typed_source(
            self,
            "database",
            files=places,
            opened=opened.values(),
            schema=schema,
            head=head_of(opened, HEAD_ROWS),
        )

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`, with the types of the first rows."""
        from ctr_pipeline.dataset.formats.databases.inspection import read_rows

        return read_typed_tables(source, progress, read_rows)
