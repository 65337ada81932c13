"""Rows that a SELECT gives as a source."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.source import HEAD_ROWS, Place, Source, SourceFormat
from ctr_pipeline.dataset.typed_source import read_typed_tables, refuse_columns, typed_source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.source_formats import is_query

if TYPE_CHECKING:
    from ctr_pipeline.dataset.formats.query.statement import Query


class QueryFormat(SourceFormat):
    """A SELECT over files, object stores and attached databases, executed by DuckDB."""

    name = "a query"

    def is_address(self, text: str) -> bool:
        """Whether a text of the config is a SELECT, and no path."""
        return is_query(text)

    def find(self, address: str, key: str) -> "Query":
        """The query; it is parsed when it is inspected."""
        # sqlglot and DuckDB are imported only where there is a query.
        from ctr_pipeline.dataset.formats.query.statement import Query

        return Query(address, key)

    def local_files(self, place: Place) -> tuple[Path, ...]:
        """The files on this machine that it names."""
        from ctr_pipeline.dataset.formats.query.statement import Query

        if not isinstance(place, Query):
            return ()
        return tuple(file for file in place.files() if isinstance(file, Path))

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        may_lack_label: bool,
    ) -> Source:
        """As `SourceFormat.inspect`; executes the query for its first rows."""
        from ctr_pipeline.dataset.formats.query.reading import describe
        from ctr_pipeline.dataset.formats.query.statement import Query
        from ctr_pipeline.dataset.schema_checks import check_same_types

        if not may_lack_label:
            refuse_columns(data, "columns of a query", "data.columns")
        attached = [(name, Path(file).expanduser()) for name, file in data.attach.items()]
        for name, file in attached:
            if not file.is_file():
                raise DataError(
                    f"no such file: '{file}'",
                    place=f"data.attach.{name}",
                    remedy="Name a DuckDB database; paths are relative to the folder that the "
                    "command runs in",
                )
        opened = {
            place: describe(place, attached)
            for group in places.values()
            for place in group
            if isinstance(place, Query)
        }
        first, *others = opened.values()
        for other in others:
            check_same_types(other.schema, other.path, first.schema, first.path)
        divided = data.split.valid + data.split.test > 0 and not {"valid", "test"} <= set(places)
        if seed is not None and divided and data.split.by == "order" and not first.path.has_order:
            raise DataError(
                "divides rows by their order, and the query names none",
                place="data.split.by",
                remedy="Add ORDER BY to the query, or set data.split.by to random, hash or time",
            )
        batches = [
            batch
            for rows in opened.values()
            for batch in rows.batches(first.column_names, HEAD_ROWS)
        ]
        head = pa.Table.from_batches(batches, schema=batches[0].schema if batches else first.schema)
        if not head.num_rows:
            raise DataError("gives no rows", place=str(first.path), remedy="Check its conditions")
        return typed_source(
            self,
            "query",
            files=places,
            opened=opened.values(),
            schema=first.schema,
            head=head.slice(0, HEAD_ROWS),
        )

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`, with the types of the query."""
        return read_typed_tables(
            source, progress, lambda rows: rows.batches(list(rows.column_names))
        )
