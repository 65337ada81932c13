"""Rows that a SELECT gives as a source."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.source import HEAD_ROWS, Place, Source, SourceFormat
from ctr_pipeline.dataset.typed_source import (
    lists_of,
    read_typed_tables,
    refuse_columns,
    typed_source,
)
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.source_formats import is_query

if TYPE_CHECKING:
    from ctr_pipeline.dataset.formats.query.database import DatabaseRows
    from ctr_pipeline.dataset.formats.query.reading import QueryRows
    from ctr_pipeline.dataset.statement import Query

_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"
"""After 8 bytes; the upper half of the version, 4 bytes later, is zero and in a text is not."""


class QueryFormat(SourceFormat):
    """A SELECT: of DuckDB over files and stores, or of the database of `data.connection`."""

    name = "a query"

    def is_address(self, text: str) -> bool:
        """Whether a text of the config is a SELECT, and no path."""
        return is_query(text)

    def find(self, address: str, key: str) -> "Query":
        """The query; it is parsed when it is inspected."""
        # sqlglot and DuckDB are imported only where there is a query.
        from ctr_pipeline.dataset.statement import Query

        return Query(address, key)

    def title_of(self, address: str) -> str:
        """The first table or file that it reads."""
        from ctr_pipeline.dataset.statement import Query

        return Query(address, "the query").first_table

    def local_files(self, place: Place) -> tuple[Path, ...]:
        """The files on this machine that it names."""
        from ctr_pipeline.dataset.statement import Query

        if not isinstance(place, Query):
            return ()
        return tuple(file for file in place.files() if isinstance(file, Path))

    def begins(self, first_bytes: bytes, file: DataFile) -> bool:
        """False; raises DataError for a database, of which a SELECT has to name the table."""
        if first_bytes.startswith(_SQLITE_MAGIC):
            raise DataError(
                "is an SQLite database, and tables of these are not read",
                place=str(file),
                remedy="Write the table to a file, such as with "
                f"sqlite3 -header -csv {file} 'SELECT * FROM clicks' > clicks.csv",
            )
        if first_bytes[8:12] == _DUCKDB_MAGIC and first_bytes[16:20] == bytes(4):
            raise _which_table(file)
        return False

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        are_new: bool,
    ) -> Source:
        """As `SourceFormat.inspect`; executes the query for its first rows."""
        from ctr_pipeline.dataset.formats.query.database import describe as describe_in_database
        from ctr_pipeline.dataset.formats.query.reading import describe
        from ctr_pipeline.dataset.formats.query.ties import describe_ties
        from ctr_pipeline.dataset.schema_checks import check_same_types
        from ctr_pipeline.dataset.statement import Query, missing_database

        if not are_new:
            refuse_columns(data, "columns of a query", "data.columns")
        attached = {name: Path(file).expanduser() for name, file in data.attach.items()}
        for name, file in attached.items():
            if not file.is_file():
                raise missing_database(str(file), f"data.attach.{name}")
        connection = data.connection
        opened: dict[Query, DatabaseRows | QueryRows] = {
            place: describe(place, attached)
            if connection is None
            else describe_in_database(place, connection)
            for group in places.values()
            for place in group
            if isinstance(place, Query)
        }
        first, *others = opened.values()
        for other in others:
            check_same_types(other.schema, other.path, first.schema, first.path)
        divided = data.split.valid + data.split.test > 0 and not {"valid", "test"} <= set(places)
        is_by_order = seed is not None and divided and data.split.by == "order"
        if is_by_order and not first.path.has_order:
            raise DataError(
                "divides rows by their order, and the query names none",
                place="data.split.by",
                remedy="Add ORDER BY to the query, or set data.split.by to random, hash or time",
            )
        looks = [list(rows.batches(first.column_names, HEAD_ROWS)) for rows in opened.values()]
        batches = next((look for look in looks if any(batch.num_rows for batch in look)), None)
        if batches is None:
            raise DataError("gives no rows", place=str(first.path), remedy="Check its conditions")
        head = pa.Table.from_batches(batches)
        found = typed_source(
            self,
            "query",
            files={
                split: tuple(opened[place].path for place in group if isinstance(place, Query))
                for split, group in places.items()
            },
            opened=opened.values(),
            schema=first.schema,
            head=head.slice(0, HEAD_ROWS),
        )
        found = replace(found, lists=lists_of(found.head))
        if is_by_order or connection is not None:
            note = describe_ties(first.path, found.head, is_stable=connection is None)
            return replace(found, notes=(note,) if note else ())
        return found

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`, with the types of the query."""
        return read_typed_tables(
            source, progress, lambda rows: rows.batches(list(rows.column_names))
        )


def _which_table(file: DataFile) -> DataError:
    """The error for a DuckDB database of which no table is named."""
    from ctr_pipeline.dataset.formats.query.reading import tables_of

    tables = tables_of(file) if isinstance(file, Path) else ["clicks"]
    if not tables:
        return DataError(
            "is a DuckDB database without tables", place=str(file), remedy="Write the rows into it"
        )
    return DataError(
        f"is a DuckDB database, and which of its tables is meant is not said: {', '.join(tables)}",
        place=str(file),
        remedy=f'Write data.query: SELECT * FROM "{file}".{tables[0]} ORDER BY rowid',
    )
